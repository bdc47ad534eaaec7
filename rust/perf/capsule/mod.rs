// SPDX-License-Identifier: GPL-2.0

//! `capsule_read`: READs of a namespace of an NVMe/RDMA target, by as little as that takes.
//!
//! It is what an NVMe/RDMA host is measured by: the same target and the same network, without block
//! layer, tags, requests and pages of callers. A client connects as a host does, with no server of
//! perf at the other end, so there is neither its control connection nor its protocol ([`super`]).
//!
//! # A run
//!
//! ```text
//! admin queue   connect, Connect; CAP, enable, CSTS; Identify of controller and namespace; queues
//! I/O queues    connect, Connect; memory registered (by the admin queue, whose PD it is)
//! load          READs, until the goal
//! ```
//!
//! A queue is a lane of the engine ([`capsules`], [`reading`]), on the poller of a CPU of the policy, which also
//! completes: who is told of an answer sends what comes next. The thread of the run ([`run`]) makes
//! the queues ([`link`]) and looks whether they get on; it has no part in the load.
//!
//! # How READs are sent
//!
//! All memory is registered beforehand and all capsules are written beforehand, two for each READ
//! that can be under way: they take turns, and have command ids and blocks of their own. So nothing
//! is written to a capsule that may be sent again, an answer that comes twice is not taken for that
//! of the next READ, and data that never came for data that did.
//!
//! READs are sent in lots: of as many as `batch` says, but not more than `depth`. A lot goes when so
//! many have been answered, with one doorbell, and one of `signal_every` of them asks for a
//! completion. With a lot of one each turn of the poller sends as many as it has had answers.
//!
//! # Trust
//!
//! The target's word is taken for what a READ under way can be answered with, and else ends the run
//! ([`Broken`]). It reaches, as long as the run lasts, the memory of READs and the page for the data
//! of Connect and Identify, and nothing else: the PD is the run's.

mod capsules;
mod link;
mod reading;

use super::{
    client::{share, Goal, Started},
    end::Config,
    failure::{Because, Failure, Outcome},
    params::Load,
    session::Settings,
    slots::{self, Exposed},
    stats::{Part, Stats},
};
use crate::{
    engine::{
        knobs::{self, Knobs},
        placement, policy,
    },
    kapi::{
        cpu,
        event::Event,
        random::secret,
        time::{now_ns, MS},
    },
    nvme::{
        fabrics::{self, Capabilities, Connected, Namespace, Property, Refused, State, Status},
        wire::{self, Completion, Data, COMMAND},
    },
    verbs::{
        device::{self, Watch},
        Access, Buffer, Device, Direction, Mapped, Mr, NetNs, RegisteredMr, SocketAddr,
    },
};
use capsules::Broken;
use kernel::{
    prelude::*,
    str::CString,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};
use link::{Queue, Target};
use reading::{Blocks, Reading};

/// Between looks at a load that goes on, ms.
const TICK_MS: u64 = 100;
/// Between looks at a controller that is getting ready, ms.
const READY_MS: u32 = 2;
/// The CM may know why work requests were flushed: it is waited for so long, ns.
const REASON: u64 = 200 * MS;

/// How others reach the thread of a run.
#[pin_data]
pub(crate) struct Signals {
    #[pin]
    event: Event,
    stop: Atomic<bool>,
}

impl Signals {
    /// Nothing has happened. Sleeps.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                event <- Event::new(),
                stop: Atomic::new(false),
            }),
            GFP_KERNEL,
        )
    }

    /// Asks the run to end. Any context.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.event.raise();
    }

    /// Has the thread look around. Any context.
    fn nudge(&self) {
        self.event.raise();
    }

    /// Waits up to `ms` for what `look` looks for.
    ///
    /// # Errors
    ///
    /// What `look` says; `ETIMEDOUT`, and that it was `what`; `ECANCELED` if the run is to end.
    fn wait<T>(
        &self,
        what: &str,
        ms: u32,
        mut look: impl FnMut() -> Option<Outcome<T>>,
    ) -> Outcome<T> {
        let end = now_ns() + u64::from(ms) * MS;
        loop {
            if let Some(outcome) = look() {
                return outcome;
            }
            if self.stop.load(Relaxed) {
                return Err(stopped());
            }
            let left = end.saturating_sub(now_ns());
            if left == 0 {
                return Err(Failure::new(
                    ETIMEDOUT,
                    fmt!("{what}: no answer in {ms} ms"),
                ));
            }
            self.event.wait((left / MS) as u32 + 1);
        }
    }
}

impl Watch for Signals {
    fn removing(&self, _device: &Device) {
        // The thread looks for itself whether it is its device.
        self.nudge();
    }
}

fn stopped() -> Failure {
    Failure::new(ECANCELED, fmt!("stopped"))
}

/// What a run is to do.
pub(crate) struct Plan {
    net: Arc<NetNs>,
    address: SocketAddr,
    /// Name of the device that it must be; empty for any.
    device: KVec<u8>,
    goal: Goal,
    nqn: CString,
    hostnqn: CString,
    host_id: [u8; 16],
    nsid: u32,
}

impl Plan {
    /// As an end is configured. Without a name for the host it is one by chance. Sleeps.
    pub(crate) fn new(
        config: &Config,
        net: Arc<NetNs>,
        address: SocketAddr,
        device: KVec<u8>,
    ) -> Outcome<Self> {
        let Some(nqn) = &config.nqn else {
            return Err(Failure::new(
                EINVAL,
                fmt!("nqn is not set: capsule_read needs a subsystem to connect to"),
            ));
        };
        let (high, low) = (secret(), secret());
        // A UUID of version 4.
        let mut host_id = [0; 16];
        host_id[..8].copy_from_slice(&high.to_be_bytes());
        host_id[8..].copy_from_slice(&low.to_be_bytes());
        host_id[6] = (host_id[6] & 0xf) | 0x40;
        host_id[8] = (host_id[8] & 0x3f) | 0x80;
        let hostnqn = match &config.hostnqn {
            Some(hostnqn) => CString::try_from(&**hostnqn)?,
            None => {
                let id = u128::from_be_bytes(host_id);
                CString::try_from_fmt(fmt!(
                    "nqn.2014-08.org.nvmexpress:uuid:{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                    (id >> 96) as u32,
                    (id >> 80) as u16,
                    (id >> 64) as u16,
                    (id >> 48) as u16,
                    (id & 0xffff_ffff_ffff) as u64,
                ))?
            }
        };
        Ok(Self {
            net,
            address,
            device,
            goal: config.goal(),
            nqn: CString::try_from(&**nqn)?,
            hostnqn,
            host_id,
            nsid: config.nsid(),
        })
    }
}

/// Runs: the body of a client's thread. Sleeps.
pub(crate) fn run(
    plan: &Plan,
    load: &Load,
    settings: &Settings,
    stats: &Stats,
    signals: &Arc<Signals>,
    started: &Started,
) -> Outcome {
    let knobs = settings.policy.knobs();
    let cpus = policy::online_cpus(&knobs)?;
    if cpus.is_empty() {
        return Err(Failure::new(
            ENODEV,
            fmt!("none of the policy's cpus is online"),
        ));
    }
    let _watching = device::watch(signals.clone())?;
    let mut run = Run {
        queues: KVec::with_capacity(load.connections as usize, GFP_KERNEL)?,
        page: None,
        admin: None,
        cpus,
        knobs,
        plan,
        load,
        settings,
        signals,
    };
    let done = run.connect().and_then(|(controller, namespace)| {
        run.prepare(&controller, &namespace)?;
        let parts = run.parts()?;
        stats.parts.populate(parts);
        started.tell(Ok(()));
        run.load()
    });
    run.disconnect();
    done
}

/// A controller that is connected.
struct Controller {
    cntlid: u16,
    capabilities: Capabilities,
    info: fabrics::Controller,
}

/// A run. Fields are dropped in order: the memory that a controller reaches after the queues.
struct Run<'a> {
    queues: KVec<Queue>,
    admin: Option<Queue>,
    /// For what goes with a Connect and comes with an Identify.
    page: Option<RegisteredMr>,
    cpus: KVec<u32>,
    knobs: Knobs,
    plan: &'a Plan,
    load: &'a Load,
    settings: &'a Settings,
    signals: &'a Arc<Signals>,
}

impl Run<'_> {
    fn timeout(&self) -> u32 {
        self.settings.timeout_ms
    }

    fn admin(&self) -> Outcome<&Queue> {
        Ok(self.admin.as_ref().ok_or(ENOTCONN)?)
    }

    /// The CPU of queue `index`.
    fn cpu(&self, index: u32) -> u32 {
        let at = placement::cpu_of(index, self.cpus.len() as u32);
        self.cpus.get(at as usize).copied().unwrap_or(0)
    }

    /// Connects a queue of the controller with that id.
    fn link(&self, qid: u16, cntlid: u16, depth: u32, places: u32) -> Outcome<Queue> {
        let cpu = match qid {
            0 => self.cpu(0),
            qid => self.cpu(u32::from(qid) - 1),
        };
        let pd = self.admin.as_ref().map(Queue::pd);
        let node = match self.knobs.numa {
            knobs::Numa::Node(node) => Some(node as i32),
            knobs::Numa::Auto => None,
        };
        Queue::connect(&Target {
            net: &self.plan.net,
            address: &self.plan.address,
            device: &self.plan.device,
            policy: &self.settings.policy,
            timeout_ms: self.timeout(),
            batch: self.knobs.batch,
            signals: self.signals,
            pd,
            qid,
            cntlid,
            depth,
            places,
            // Near who completes, unless the policy says where.
            node: node.unwrap_or_else(|| cpu::node_of(cpu)),
            every: self.load.signal_every(self.knobs.signal_every) as u32,
            cpu,
        })
    }

    /// Connects the admin queue, and asks what there is.
    fn connect(&mut self) -> Outcome<(Controller, Namespace)> {
        let depth = u32::from(wire::ADMIN_QUEUE_SIZE) - 1;
        self.admin = Some(self.link(0, 0, depth, 0)?);
        self.page = Some(self.make_page()?);
        let answer = self.introduce(self.admin()?, fabrics::ANY_CONTROLLER, depth)?;
        let Connected {
            cntlid,
            authentication,
        } = Connected::of(answer.result);
        if authentication {
            return Err(refused(Refused::Authentication, 0));
        }
        let capabilities = self.command("CAP", fabrics::get_property(Property::Cap))?;
        let capabilities = Capabilities(capabilities.result);
        if capabilities.under_way() < self.load.depth {
            return Err(self.too_deep(capabilities.under_way()));
        }
        self.command("enabling", fabrics::enable(capabilities))?;
        self.await_ready(capabilities)?;
        let data = self.identify("Identify of the controller", fabrics::identify_controller())?;
        let controller = Controller {
            cntlid,
            capabilities,
            info: fabrics::Controller::parse(&data),
        };
        let namespace = self.namespace(&controller)?;
        self.ask_for_queues()?;
        Ok((controller, namespace))
    }

    fn too_deep(&self, most: u32) -> Failure {
        let depth = self.load.depth;
        Failure::new(
            E2BIG,
            fmt!("depth {depth}: a queue of the controller takes {most} commands at a time"),
        )
    }

    fn await_ready(&self, capabilities: Capabilities) -> Outcome {
        let ms = capabilities.ready_ms().max(500).min(self.timeout());
        let end = now_ns() + u64::from(ms) * MS;
        loop {
            let csts = self.command("CSTS", fabrics::get_property(Property::Csts))?;
            match State::of(csts.result) {
                State::Ready => return Ok(()),
                State::Fatal => {
                    return Err(Failure::new(EIO, fmt!("the controller has failed")));
                }
                State::NotReady if now_ns() >= end => {
                    return Err(Failure::new(
                        ETIMEDOUT,
                        fmt!("the controller is not ready after {ms} ms"),
                    ));
                }
                State::NotReady => {
                    self.signals.event.wait(READY_MS);
                }
            }
        }
    }

    /// What the namespace is, if the load can be read from it.
    fn namespace(&self, controller: &Controller) -> Outcome<Namespace> {
        let Self { plan, load, .. } = self;
        if !controller.info.keyed {
            return Err(Failure::new(
                EOPNOTSUPP,
                fmt!("the controller takes no keyed SGLs"),
            ));
        }
        let (size, longest) = (load.size, controller.info.longest(controller.capabilities));
        if u64::from(size) > longest {
            return Err(Failure::new(
                EMSGSIZE,
                fmt!("size {size}: a command of the controller takes {longest} bytes at most"),
            ));
        }
        let nsid = plan.nsid;
        let what = "Identify of the namespace";
        let answer = self.brought(what, fabrics::identify_namespace(nsid))?;
        let absent = || {
            Failure::new(
                ENXIO,
                fmt!("nsid {nsid}: the subsystem has no such namespace"),
            )
        };
        let data = match answer {
            Ok(data) => data,
            Err(status) if wire::status_code(status) == INVALID_NAMESPACE => return Err(absent()),
            Err(status) => return Err(status_of(what, status)),
        };
        let namespace = Namespace::parse(&data).map_err(|why| match why {
            fabrics::Unreadable::Absent => absent(),
            fabrics::Unreadable::Metadata => Failure::new(
                EOPNOTSUPP,
                fmt!("nsid {nsid}: its blocks have metadata, which is not read"),
            ),
            fabrics::Unreadable::Blocks(shift) => Failure::new(
                EPROTO,
                fmt!("nsid {nsid}: blocks of 2^{shift} bytes; allowed: 2^9 to 2^20"),
            ),
        })?;
        let block = 1u64 << namespace.shift;
        if u64::from(size) % block != 0 {
            return Err(Failure::new(
                EINVAL,
                fmt!("size {size}: not whole blocks; nsid {nsid} has {block} bytes each"),
            ));
        }
        if u64::from(size) > namespace.blocks << namespace.shift {
            let all = namespace.blocks << namespace.shift;
            return Err(Failure::new(
                ENOSPC,
                fmt!("size {size}: nsid {nsid} has {all} bytes"),
            ));
        }
        Ok(namespace)
    }

    fn ask_for_queues(&self) -> Outcome {
        let wanted = self.load.connections;
        let asked = fabrics::ask_for_queues(wanted as u16);
        let granted = fabrics::granted(self.command("the number of queues", asked)?.result);
        if granted < wanted {
            return Err(Failure::new(
                E2BIG,
                fmt!("connections {wanted}: the controller has {granted} I/O queues"),
            ));
        }
        Ok(())
    }

    /// Connects the I/O queues, and prepares their READs.
    fn prepare(&mut self, controller: &Controller, namespace: &Namespace) -> Outcome {
        let (load, nsid) = (*self.load, self.plan.nsid);
        let blocks = load.size >> namespace.shift;
        for index in 0..load.connections {
            let qid = index as u16 + 1;
            let queue = self.link(qid, controller.cntlid, load.depth, load.slots())?;
            // There is room for each.
            let _ = self.queues.push_within_capacity(queue);
            let queue = self.queues.last().ok_or(ENOTCONN)?;
            self.introduce(queue, controller.cntlid, load.depth)?;
            let memory = self.expose()?;
            let reading = Reading::new(
                &load,
                self.knobs.batch,
                memory,
                Blocks {
                    shift: namespace.shift,
                    each: blocks,
                    all: namespace.blocks,
                    first: u64::from(index) * u64::from(load.slots()),
                },
            )?;
            let queue = self.queues.last().ok_or(ENOTCONN)?;
            for id in 0..reading.capsules() {
                let mut command = fabrics::read(nsid, reading.first_block(id), blocks);
                wire::set_command_id(&mut command, id);
                wire::set_data(&mut command, reading.data(id)?);
                queue
                    .lane
                    .with(|capsules, _, _| capsules.write(id, &command))?;
            }
            queue
                .lane
                .with(|capsules, _, _| capsules.set_reading(reading));
        }
        Ok(())
    }

    /// Memory for a queue's READs, which the controller can write to. Sleeps.
    fn expose(&self) -> Outcome<Exposed> {
        let pd = self.admin()?.pd();
        let (slots, stride) = (self.load.exposed_slots(true), self.load.stride());
        let mut exposed = Exposed::new(&pd, stride);
        loop {
            let piece = slots::piece(&pd, slots, stride, exposed.pieces(), Access::REMOTE_WRITE);
            let Some(registration) = piece.because("memory")? else {
                return Ok(exposed);
            };
            let region = self.admin()?.register(registration, self.timeout())?;
            exposed.add(region, slots)?;
        }
    }

    fn make_page(&self) -> Outcome<RegisteredMr> {
        let admin = self.admin()?;
        let pd = admin.pd();
        let buffer = Buffer::new(fabrics::IDENTIFY, None)?;
        let memory = Mapped::new(&pd, buffer, Direction::Bidirectional)?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = Mr::new(&pd, memory.len()).because("memory region")?;
        admin.register(region.register(memory, access)?, self.timeout())
    }

    // ---- commands ------------------------------------------------------------------

    /// Has a queue do a command whose data is the first `len` bytes of the page.
    fn ask(
        &self,
        queue: &Queue,
        what: &str,
        mut command: [u8; COMMAND],
        len: usize,
    ) -> Outcome<Completion> {
        let data = match len {
            0 => Data::None,
            len => {
                let remote = self.page.as_ref().ok_or(ENOTCONN)?.remote(0)?;
                Data::Keyed {
                    addr: remote.addr,
                    len: len as u32,
                    rkey: remote.rkey,
                    invalidate: false,
                }
            }
        };
        wire::set_data(&mut command, data);
        queue.ask(what, command, self.timeout())
    }

    /// The same with the admin queue, a command without data that has to succeed.
    fn command(&self, what: &str, command: [u8; COMMAND]) -> Outcome<Completion> {
        let answer = self.ask(self.admin()?, what, command, 0)?;
        match wire::is_success(answer.status) {
            true => Ok(answer),
            false => Err(status_of(what, answer.status)),
        }
    }

    /// The same for an Identify: what it has brought, or its status.
    fn brought(
        &self,
        what: &str,
        command: [u8; COMMAND],
    ) -> Outcome<core::result::Result<KVec<u8>, u16>> {
        let page = self.page.as_ref().ok_or(ENOTCONN)?;
        // What does not come is not there.
        page.memory().clear(0, fabrics::IDENTIFY)?;
        let answer = self.ask(self.admin()?, what, command, fabrics::IDENTIFY)?;
        if !wire::is_success(answer.status) {
            return Ok(Err(answer.status));
        }
        let mut data = KVec::from_elem(0, fabrics::IDENTIFY, GFP_KERNEL)?;
        page.memory().read(0, &mut data)?;
        Ok(Ok(data))
    }

    fn identify(&self, what: &str, command: [u8; COMMAND]) -> Outcome<KVec<u8>> {
        self.brought(what, command)?
            .map_err(|status| status_of(what, status))
    }

    /// Tells the controller who it is that has connected, and as which queue.
    fn introduce(&self, queue: &Queue, cntlid: u16, depth: u32) -> Outcome<Completion> {
        let plan = self.plan;
        let data = fabrics::connect_data(
            plan.host_id,
            cntlid,
            plan.nqn.to_bytes(),
            plan.hostnqn.to_bytes(),
        );
        let page = self.page.as_ref().ok_or(ENOTCONN)?;
        page.memory().write(0, &data)?;
        let command = fabrics::connect(queue.qid(), depth as u16);
        let answer = self.ask(queue, "Connect", command, data.len())?;
        match wire::is_success(answer.status) {
            true => Ok(answer),
            false => Err(refused(
                Refused::of(answer.status, answer.result),
                queue.qid(),
            )),
        }
    }

    // ---- the load ------------------------------------------------------------------

    /// What the queues count, for who shows it.
    fn parts(&self) -> Result<KVec<Part>> {
        let mut parts: KVec<Part> = KVec::new();
        for queue in self.queues.iter() {
            let poller = queue.poller().stats();
            // Queues of one poller share its counters.
            let known = parts.iter().any(|part| {
                let known = part.poller.as_ref();
                known.is_some_and(|(known, _)| Arc::ptr_eq(known, poller))
            });
            let part = Part {
                stats: queue.lane.with(|capsules, _, _| capsules.stats())?,
                lane: queue.lane.stats.clone(),
                poller: (!known).then(|| (poller.clone(), poller.read())),
            };
            parts.push(part, GFP_KERNEL)?;
        }
        Ok(parts)
    }

    /// Has the queues read, and waits for the end.
    fn load(&self) -> Outcome {
        let (goal, connections) = (self.plan.goal, u64::from(self.load.connections));
        let mut end = match goal {
            Goal::Duration(ms) => now_ns() + ms * MS,
            Goal::Count(_) => u64::MAX,
        };
        for (i, queue) in self.queues.iter().enumerate() {
            let quota = share(goal, connections, i as u64);
            queue
                .lane
                .with(|capsules, queue, _| capsules.begin(queue, quota));
        }
        let timeout = u64::from(self.timeout()) * MS;
        let mut progress: KVec<(u64, u64)> = KVec::new();
        for _ in self.queues.iter() {
            progress.push((0, now_ns()), GFP_KERNEL)?;
        }
        loop {
            let now = now_ns();
            if self.signals.stop.load(Relaxed) {
                return Err(stopped());
            }
            if now >= end {
                end = u64::MAX;
                for queue in self.queues.iter() {
                    queue.lane.with(|capsules, _, _| capsules.finish());
                }
            }
            self.admin()?.check()?;
            let mut over = true;
            for (queue, progress) in self.queues.iter().zip(progress.iter_mut()) {
                queue.check()?;
                let (ended, busy) = queue.lane.with(|capsules, _, _| capsules.progress());
                over &= !busy;
                if ended != progress.0 || !busy {
                    *progress = (ended, now);
                }
                if now.saturating_sub(progress.1) > timeout {
                    let (qid, ms) = (queue.qid(), timeout / MS);
                    return Err(Failure::new(
                        ETIMEDOUT,
                        fmt!("queue {qid}: no READ was answered for {ms} ms"),
                    ));
                }
            }
            if over {
                return Ok(());
            }
            let ms = end.saturating_sub(now).div_ceil(MS).clamp(1, TICK_MS);
            self.signals.event.wait(ms as u32);
        }
    }

    /// Ends all connections. Sleeps.
    fn disconnect(&mut self) {
        for queue in self.queues.iter_mut() {
            queue.disconnect();
        }
        if let Some(admin) = &mut self.admin {
            admin.disconnect();
        }
    }
}

/// Status of a command that names a namespace which is not there.
const INVALID_NAMESPACE: u16 = 0xb;

fn status_of(what: &str, status: u16) -> Failure {
    Failure::new(
        EIO,
        fmt!("{what}: the controller answers with {}", Status(status)),
    )
}

/// The failure that a Connect is which was refused.
fn refused(why: Refused, qid: u16) -> Failure {
    match why {
        Refused::Subsystem => Failure::new(ENOENT, fmt!("nqn: the target has no such subsystem")),
        Refused::Host => Failure::new(
            EACCES,
            fmt!("hostnqn: the subsystem does not take this host"),
        ),
        Refused::QueueSize => Failure::new(
            E2BIG,
            fmt!("depth: queue {qid} is too long for the controller"),
        ),
        Refused::Authentication => Failure::new(
            EACCES,
            fmt!("the controller asks for authentication, which capsule_read has not"),
        ),
        Refused::Other(status) => status_of("Connect", status),
    }
}

crate::kapi::fmt::kernel_display!(Broken, Status, wire::BadReply, wire::Refusal);
