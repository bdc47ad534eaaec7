// SPDX-License-Identifier: GPL-2.0

//! A transport's names in nvme-fabrics, and the controllers that are connected by them.
//!
//! C header: `drivers/nvme/host/fabrics.h`

use super::{
    ctrl::{self, Ctrl, Object},
    Transport,
};
use crate::sys;
use core::{cell::UnsafeCell, ptr::NonNull};
use kernel::{
    error::to_result,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Who makes controllers.
pub(crate) trait Connect: Send + Sync + 'static {
    /// What its controllers are.
    type Transport: Transport;

    /// Makes a controller ([`New::make`]). Runs in the task that asks for it. Sleeps.
    fn make(self: &Arc<Self>, new: New<'_>) -> Result<Ctrl<Self::Transport>>;

    /// Connects it. Sleeps.
    fn connect(&self, ctrl: &Ctrl<Self::Transport>) -> Result;

    /// No connect comes any more: deletes all controllers. Sleeps.
    fn leave(&self);
}

/// [`Connect`], whatever its transport.
trait Make: Send + Sync {
    fn make(&self, new: New<'_>) -> Result<*mut sys::nvme_ctrl>;

    fn leave(&self);
}

struct Maker<C>(Arc<C>);

impl<C: Connect> Make for Maker<C> {
    fn make(&self, new: New<'_>) -> Result<*mut sys::nvme_ctrl> {
        let ctrl = self.0.make(new)?;
        match self.0.connect(&ctrl) {
            Ok(()) => Ok(ctrl.give()),
            Err(e) => {
                ctrl.take_back();
                Err(e)
            }
        }
    }

    fn leave(&self) {
        self.0.leave();
    }
}

kernel::sync::global_lock! {
    // SAFETY: `register` initialises it before any transport is known to the core.
    unsafe(uninit) static MAKER: Mutex<Option<Arc<dyn Make>>> = None;
}

/// What the core is told of a transport. Static, as a connect that is under way uses it after the
/// transport has left.
struct Name {
    transport: UnsafeCell<sys::nvmf_transport_ops>,
    ctrl: UnsafeCell<sys::nvme_ctrl_ops>,
    /// The same, for controllers whose [`Transport::submit`] sleeps.
    sleeping: UnsafeCell<sys::nvme_ctrl_ops>,
}

// SAFETY: Written by `register` before anybody else sees it; then the core has its lock for the
// list entry, and everything else only reads.
unsafe impl Sync for Name {}

const fn nameless() -> Name {
    // SAFETY: Pointers, optional functions and numbers: zeros are valid.
    unsafe { core::mem::zeroed() }
}

static RIVET: Name = nameless();
static RDMA: Name = nameless();

/// The first in a module's life has come.
static TAKEN: Atomic<bool> = Atomic::new(false);

/// A transport that connects can be asked of. Dropping it takes its names away, has all controllers
/// deleted, and waits until the last is gone. Sleeps.
///
/// # Invariants
///
/// [`RIVET`] is registered with the core, and [`RDMA`] if `claimed` says so.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration {
    #[pin]
    claimed: Mutex<bool>,
}

/// Registers the transport `rivet`, whose controllers `connect` makes. Sleeps.
///
/// # Errors
///
/// `EBUSY` the second time; what the core says.
pub(crate) fn register<C: Connect>(
    connect: Arc<C>,
    module: &ThisModule,
) -> Result<Pin<KBox<Registration>>> {
    if TAKEN.xchg(true, Relaxed) {
        return Err(EBUSY);
    }
    // SAFETY: Only the first comes here, and nobody uses it before.
    unsafe { MAKER.init() };
    let maker: Arc<dyn Make> = Arc::new(Maker(connect), GFP_KERNEL)?;
    // SAFETY: Only the first comes here, before any transport is registered.
    unsafe {
        RIVET.fill::<C::Transport>(c"rivet", module, create_rivet);
        RDMA.fill::<C::Transport>(c"rdma", module, create_rdma);
    }
    *MAKER.lock() = Some(maker);
    let registered = RIVET.register().and_then(|()| {
        // INVARIANT: Registered just now, if this gives one.
        let registration = pin_init!(Registration {
            claimed <- new_mutex!(false),
        });
        let made = KBox::pin_init(registration, GFP_KERNEL);
        made.inspect_err(|_| RIVET.unregister())
    });
    registered.inspect_err(|_| drop(MAKER.lock().take()))
}

impl Registration {
    /// Has connects by the name `rdma` come here as well, or not any more; controllers that there are
    /// stay. Sleeps.
    ///
    /// # Errors
    ///
    /// `EEXIST` if nvme-rdma is loaded: as it came first, it would have the connects.
    pub(crate) fn claim(&self, claim: bool) -> Result {
        let mut claimed = self.claimed.lock();
        match (*claimed, claim) {
            (false, true) => {
                // SAFETY: Looks at a path of sysfs.
                if unsafe { sys::rivet_module_is_loaded(c"/sys/module/nvme_rdma".as_char_ptr()) } {
                    return Err(EEXIST);
                }
                RDMA.register()?;
            }
            (true, false) => RDMA.unregister(),
            _ => {}
        }
        *claimed = claim;
        Ok(())
    }

    /// Whether connects by the name `rdma` come here. Sleeps.
    pub(crate) fn has_claimed(&self) -> bool {
        *self.claimed.lock()
    }
}

impl Name {
    /// Sets what the core reads.
    ///
    /// # Safety
    ///
    /// It is not registered, and nobody else sets it.
    unsafe fn fill<T: Transport>(
        &self,
        name: &'static CStr,
        module: &ThisModule,
        create: unsafe extern "C" fn(
            *mut sys::device,
            *mut sys::nvmf_ctrl_options,
        ) -> *mut sys::nvme_ctrl,
    ) {
        // SAFETY: By the function's safety requirement.
        unsafe {
            *self.ctrl.get() = ctrl::ops::<T>(name, module);
            *self.sleeping.get() = ctrl::ops::<T>(name, module);
            (*self.sleeping.get()).flags |= sys::NVME_F_BLOCKING;
            *self.transport.get() = sys::nvmf_transport_ops {
                module: module.as_ptr(),
                name: name.as_char_ptr(),
                required_opts: sys::NVMF_OPT_TRADDR as i32,
                allowed_opts: (sys::NVMF_OPT_TRSVCID
                    | sys::NVMF_OPT_RECONNECT_DELAY
                    | sys::NVMF_OPT_HOST_TRADDR
                    | sys::NVMF_OPT_CTRL_LOSS_TMO
                    | sys::NVMF_OPT_NR_WRITE_QUEUES
                    | sys::NVMF_OPT_NR_POLL_QUEUES
                    | sys::NVMF_OPT_TOS) as i32,
                create_ctrl: Some(create),
                ..Default::default()
            };
        }
    }

    /// Makes it known to the core.
    fn register(&self) -> Result {
        // SAFETY: Filled before there is a `Registration`, and static; the callers see to it that it
        // is not registered.
        to_result(unsafe { sys::nvmf_register_transport(self.transport.get()) })
    }

    /// The core forgets it.
    fn unregister(&self) {
        // SAFETY: The callers see to it that it is registered.
        unsafe { sys::nvmf_unregister_transport(self.transport.get()) };
    }
}

#[pinned_drop]
impl PinnedDrop for Registration {
    fn drop(self: Pin<&mut Self>) {
        RIVET.unregister();
        if *self.claimed.lock() {
            RDMA.unregister();
        }
        let maker = MAKER.lock().take();
        // Outside of the lock, and what it holds goes there as well.
        if let Some(maker) = maker {
            maker.leave();
        }
        ctrl::wait_for_all();
    }
}

/// # Safety
///
/// For the core: both are valid.
unsafe extern "C" fn create_rivet(
    dev: *mut sys::device,
    opts: *mut sys::nvmf_ctrl_options,
) -> *mut sys::nvme_ctrl {
    // SAFETY: By the function's safety requirement.
    unsafe { create(dev, opts, &RIVET) }
}

/// # Safety
///
/// For the core: both are valid.
unsafe extern "C" fn create_rdma(
    dev: *mut sys::device,
    opts: *mut sys::nvmf_ctrl_options,
) -> *mut sys::nvme_ctrl {
    // SAFETY: By the function's safety requirement.
    unsafe { create(dev, opts, &RDMA) }
}

/// # Safety
///
/// Device and options are valid.
unsafe fn create(
    dev: *mut sys::device,
    opts: *mut sys::nvmf_ctrl_options,
    name: &'static Name,
) -> *mut sys::nvme_ctrl {
    let maker = MAKER.lock().clone();
    let made = maker.ok_or(ENODEV).and_then(|maker| {
        let opts = NonNull::new(opts).ok_or(EINVAL)?;
        maker.make(New {
            dev,
            // SAFETY: By the function's safety requirement.
            options: unsafe { Options::from_raw(opts) },
            name,
        })
    });
    match made {
        Ok(ctrl) => ctrl,
        Err(e) => e.to_ptr(),
    }
}

/// What somebody asks to be connected.
pub(crate) struct New<'n> {
    dev: *mut sys::device,
    /// How.
    pub(crate) options: Options<'n>,
    name: &'static Name,
}

impl New<'_> {
    /// Makes the controller, which is not connected yet; its [`Transport::submit`] may sleep if
    /// `sleeps` says so. Sleeps.
    ///
    /// # Errors
    ///
    /// What the core says.
    pub(crate) fn make<T: Transport>(
        &self,
        data: impl PinInit<T, Error>,
        sleeps: bool,
    ) -> Result<Ctrl<T>> {
        let ops = match sleeps {
            true => self.name.sleeping.get(),
            false => self.name.ctrl.get(),
        };
        // SAFETY: Filled by `register`, without which this is not reached, for this transport, as
        // there is one.
        unsafe { Object::make(self.dev, self.options.0, ops, data) }
    }
}

/// What the user has asked for.
///
/// # Invariants
///
/// The options are valid for the lifetime; their strings are terminated or null.
#[derive(Clone, Copy)]
pub(crate) struct Options<'o>(
    NonNull<sys::nvmf_ctrl_options>,
    core::marker::PhantomData<&'o ()>,
);

impl<'o> Options<'o> {
    fn get(&self) -> &'o sys::nvmf_ctrl_options {
        // SAFETY: Valid (type invariant), and not written while they are used.
        unsafe { &*self.0.as_ptr() }
    }

    fn text(text: *mut kernel::ffi::c_char) -> Option<&'o CStr> {
        // SAFETY: Terminated or null, and as long-lived as the options (type invariant).
        (!text.is_null()).then(|| unsafe { CStr::from_char_ptr(text) })
    }

    /// The controller's address.
    pub(crate) fn traddr(&self) -> Option<&'o CStr> {
        Self::text(self.get().traddr)
    }

    /// Its port.
    pub(crate) fn trsvcid(&self) -> Option<&'o CStr> {
        Self::text(self.get().trsvcid)
    }

    /// The address to connect from.
    pub(crate) fn host_traddr(&self) -> Option<&'o CStr> {
        Self::text(self.get().host_traddr)
    }

    /// Has the controller known by its port as well, where none was given; so that another connect
    /// to it is seen to be one.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn set_trsvcid(&mut self, port: &CStr) -> Result {
        let mut opts = self.0;
        // SAFETY: The options are ours until the controller is made; they are freed by the core,
        // with what is in them.
        unsafe {
            let opts = opts.as_mut();
            opts.trsvcid = sys::kstrdup(port.as_char_ptr(), sys::GFP_KERNEL);
            if opts.trsvcid.is_null() {
                return Err(ENOMEM);
            }
            opts.mask |= sys::NVMF_OPT_TRSVCID;
        }
        Ok(())
    }

    /// Commands of an I/O queue at a time.
    pub(crate) fn queue_size(&self) -> usize {
        self.get().queue_size
    }

    /// The type of service of the connections, if one was given.
    pub(crate) fn tos(&self) -> Option<u8> {
        u8::try_from(self.get().tos).ok()
    }

    /// Whether a second controller of the same kind is wanted.
    pub(crate) fn duplicate_connect(&self) -> bool {
        self.get().duplicate_connect
    }

    /// I/O queues of all kinds that are wanted.
    pub(crate) fn all_io_queues(&self) -> u32 {
        let opts = self.get();
        opts.nr_io_queues + opts.nr_write_queues + opts.nr_poll_queues
    }

    /// Polled queues that are wanted.
    pub(crate) fn poll_queues(&self) -> u32 {
        self.get().nr_poll_queues
    }

    /// Seconds between two attempts to reconnect.
    pub(crate) fn reconnect_delay(&self) -> u32 {
        self.get().reconnect_delay
    }

    pub(super) fn as_raw(&self) -> *mut sys::nvmf_ctrl_options {
        self.0.as_ptr()
    }

    /// # Safety
    ///
    /// As the type's invariants say.
    pub(super) unsafe fn from_raw(opts: NonNull<sys::nvmf_ctrl_options>) -> Self {
        // INVARIANT: By the function's safety requirement.
        Self(opts, core::marker::PhantomData)
    }
}
