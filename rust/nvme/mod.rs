// SPDX-License-Identifier: GPL-2.0

//! The NVMe over RDMA host: a transport of the kernel's nvme-fabrics.
//!
//! ```text
//! controller   set up, recovery, reset, end            connect   how queues are connected
//! queue        a queue's place, and what is in it      commands  what is under way on it
//! pool         the memory that short reads go through  wire      what goes over the network
//! show         what debugfs shows                      fabrics   how it is set up without nvme core
//! ```
//!
//! A queue is a lane of the engine ([`crate::engine::lane`]), which completes on its CPU's poller;
//! a policy that is taken by its name when a controller is connected says how. A controller has a
//! PD of its own, so no controller reaches another's buffers. Memory goes by a pool, by regions that
//! are registered for one command, or by the engine's MR cache, and not by its memory modes, which
//! carry our own READs and SENDs: here the peer reads and writes.

mod commands;
mod connect;
mod controller;
pub(crate) mod fabrics;
mod pool;
mod queue;
mod show;
pub(crate) mod wire;

use crate::{
    engine::policy::InUse,
    kapi::nvme::{self, Connect, Ctrl, New, State},
    verbs::{
        device::{self, Watch, Watching},
        Device, NetNs, SocketAddr,
    },
};
use controller::{Address, Controller};
use kernel::{
    debugfs::Dir,
    module::this_module,
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};

/// The port of a controller, where none is given.
const PORT: &CStr = c"4420";

/// Gives the policy that a controller is to run by, as a configuration names it.
pub(crate) trait Policies: Send + Sync + 'static {
    /// Takes it into use. Sleeps.
    fn take(&self) -> Result<InUse>;
}

/// The host's controllers.
#[pin_data]
pub(crate) struct Host {
    policies: Arc<dyn Policies>,
    /// Of debugfs, where queues are shown.
    debug: Dir,
    #[pin]
    controllers: Mutex<KVec<Ctrl<Controller>>>,
}

/// The host, as long as it can be connected from.
pub(crate) struct Service {
    // First: with its end all controllers are gone.
    registration: Pin<KBox<nvme::Registration>>,
    _watching: Watching,
}

impl Service {
    /// Has the host take connects by the name `rdma` as well, or not any more. `EEXIST` if
    /// nvme-rdma is loaded, which then has them. Sleeps.
    pub(crate) fn claim_rdma(&self, claim: bool) -> Result {
        self.registration.claim(claim)
    }

    /// Whether it does. Sleeps.
    pub(crate) fn has_rdma(&self) -> bool {
        self.registration.has_claimed()
    }
}

/// Starts the host, whose queues are shown in `debug`. Sleeps.
pub(crate) fn start(policies: Arc<dyn Policies>, debug: Dir) -> Result<Service> {
    let host = Arc::pin_init(
        pin_init!(Host {
            policies,
            debug,
            controllers <- new_mutex!(KVec::new()),
        }),
        GFP_KERNEL,
    )?;
    let watching = device::watch(host.clone())?;
    Ok(Service {
        registration: nvme::register(host, this_module::<crate::Rivet>())?,
        _watching: watching,
    })
}

impl Host {
    /// A controller goes.
    fn forget(&self, ctrl: &Ctrl<Controller>) {
        let mut controllers = self.controllers.lock();
        let at = controllers.iter().position(|other| other.is(ctrl));
        let gone = at.and_then(|at| controllers.remove(at).ok());
        drop(controllers);
        drop(gone);
    }
}

/// The controllers' host, which makes them.
impl Connect for Host {
    type Transport = Controller;

    fn make(self: &Arc<Self>, new: New<'_>) -> Result<Ctrl<Controller>> {
        let mut new = new;
        let options = &mut new.options;
        if options.trsvcid().is_none() {
            options.set_trsvcid(PORT)?;
        }
        let net = NetNs::current()?;
        let port = options.trsvcid().and_then(|port| port.to_str().ok());
        let port = port.and_then(|port| port.parse().ok()).ok_or(EINVAL);
        let port = port.inspect_err(|_| pr_err!("trsvcid: no port; allowed: 1 to 65535\n"))?;
        let parse = |host: &CStr, port| {
            SocketAddr::parse(&net, host, port).inspect_err(|_| {
                let host = host.to_str().unwrap_or("?");
                pr_err!("'{host}' is no address; allowed: IPv4 or IPv6\n");
            })
        };
        let dst = parse(options.traddr().ok_or(EINVAL)?, port)?;
        let src = match options.host_traddr() {
            Some(host) => Some(parse(host, 0)?),
            None => None,
        };
        if !options.duplicate_connect() {
            let controllers = self.controllers.lock();
            if controllers.iter().any(|ctrl| ctrl.matches(options)) {
                return Err(EALREADY);
            }
        }
        let (tos, queues) = (options.tos(), options.all_io_queues());
        let address = Address { net, src, dst, tos };
        let policy = self.policies.take()?;
        let sleeps = controller::submitting_sleeps(&policy.knobs());
        new.make(Controller::new(self, address, policy, queues)?, sleeps)
    }

    fn connect(&self, ctrl: &Ctrl<Controller>) -> Result {
        let controller = ctrl.data();
        let (n, to) = (ctrl.number(), controller.address());
        controller.set_up(ctrl, true).map_err(|why| {
            pr_err!("nvme{n}: {to}: not connected: {why}\n");
            why.to_error()
        })?;
        pr_info!("nvme{n}: {to}: connected to {}\n", ctrl.subsystem());
        let listed = self.controllers.lock().push(ctrl.clone(), GFP_KERNEL);
        // One that is not listed would be left behind when the device or the module goes.
        if listed.is_err() || controller.device_is_gone() {
            ctrl.delete();
        }
        // Somebody may have deleted it before it was listed.
        if matches!(ctrl.state(), State::Deleting | State::DeletingNoIo) {
            self.forget(ctrl);
        }
        Ok(())
    }

    fn leave(&self) {
        for ctrl in self.controllers.lock().iter() {
            ctrl.delete();
        }
    }
}

impl Watch for Host {
    fn removing(&self, device: &Device) {
        for ctrl in self.controllers.lock().iter() {
            if ctrl.data().is_on(device) {
                ctrl.delete();
            }
        }
    }
}

crate::kapi::fmt::kernel_display!(commands::Broken, connect::Reason, nvme::Trouble);
