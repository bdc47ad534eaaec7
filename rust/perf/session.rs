// SPDX-License-Identifier: GPL-2.0

//! A session: the thread that owns both kinds of connections to one peer, and its loop.
//!
//! # The loop
//!
//! Poll the CQs and act on each completion; take what others put into the mailbox; let the role
//! ([`Role`]) make new work; ring the doorbells. When nothing moved, the policy's moderation says
//! how to go on: give the CPU to whoever wants it and look again, sleep for some time, or arm the
//! CQs, look once more, and sleep until somebody raises the session's event: a CQ, the CM, a
//! device's removal, or whoever wants it to stop. Timers are looked at about once a millisecond.

use super::{
    cause::{look_at, EndedWith, LongPackets, Stage},
    client::Client,
    conn::{Conn, Queueing},
    control::{Arrival, Control},
    failure::{check_device, Because, Failure, Outcome},
    params::{Load, Op},
    post::Flag,
    server::Server,
    slots::Remote,
    stats::Stats,
    submit::{Broken, Crew, Workforce},
    wire::{Message, Refused},
};
use crate::{
    engine::{
        knobs::{Knobs, POLL_BUDGET},
        moderation::{Moderator, Next},
        policy::Policy,
        stats::Shared,
    },
    kapi::{
        event::Event,
        sched,
        time::{now_ns, MS},
    },
    verbs::{
        self, cm, cq, device,
        qp::{self, QpCounts},
        Cq, Device, Pd, RejectReason, Wc, WcStatus,
    },
};
use kernel::{
    debugfs::Dir,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    processor::cpu_relax,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Rounds without progress of a polling session between looks at the clock.
const IDLE_ROUNDS: u32 = 64;
/// The CM moves QPs to error before it tells why: the reason is waited for so long, ns.
pub(super) const REASON: u64 = 200 * MS;
/// How long an orderly end may take, ns.
const DRAIN: u64 = 2_000 * MS;

/// What the CM has to say, copied out of its callback.
pub(crate) enum CmNews {
    AddrResolved,
    RouteResolved,
    /// With the private data of the accept.
    Established(KVec<u8>),
    /// In words already.
    Failed(Failure),
    Disconnected,
}

/// What others put into a session's mailbox.
pub(crate) enum Mail {
    /// Something happened to the control connection (`None`) or a data connection.
    Cm(Option<u32>, CmNews),
    /// A peer's connect request for data connection `.0` of a server's session.
    Data(u32, verbs::CmId),
}

struct Letters {
    mail: KVec<Mail>,
    /// Nobody will take anything out any more.
    closed: bool,
}

/// How others reach a session.
#[pin_data]
pub(crate) struct Mailbox {
    #[pin]
    event: Event,
    #[pin]
    mail: Mutex<Letters>,
    /// CQ events that the session has not counted yet.
    cq_events: Shared,
    filled: Flag,
    stop: Atomic<bool>,
    cq_failed: Atomic<bool>,
    overflowed: Atomic<bool>,
}

impl Mailbox {
    /// An empty one.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                event <- Event::new(),
                mail <- new_mutex!(Letters { mail: KVec::new(), closed: false }),
                cq_events: Shared::new(),
                filled: Flag::new(),
                stop: Atomic::new(false),
                cq_failed: Atomic::new(false),
                overflowed: Atomic::new(false),
            }),
            GFP_KERNEL,
        )
    }

    /// Puts mail in. Sleeps. Without memory for it the session ends.
    pub(crate) fn put(&self, mail: Mail) {
        // What it holds goes outside of the lock, if it is not put in.
        let mut mail = Some(mail);
        let put = || {
            let mut letters = self.mail.lock();
            if letters.closed {
                return false;
            }
            // Bounded by what the CM sends about connections that exist.
            let pushed = mail.take().map(|mail| letters.mail.push(mail, GFP_KERNEL));
            if pushed.is_some_and(|pushed| pushed.is_err()) {
                self.overflowed.store(true, Relaxed);
            }
            true
        };
        self.filled.put(put, || self.event.raise());
    }

    /// Takes nothing more, and drops what is in it: a connection in the mail refers back to the
    /// mailbox. To be called when the session is over.
    pub(crate) fn close(&self) {
        let mut letters = self.mail.lock();
        letters.closed = true;
        let mail = core::mem::take(&mut letters.mail);
        drop(letters);
        drop(mail);
    }

    /// Has the session look around.
    pub(crate) fn nudge(&self) {
        self.event.raise();
    }

    /// Waits for a moment. Only for the session's own thread.
    pub(crate) fn doze(&self) {
        self.event.wait(1);
    }

    /// Asks the session to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.event.raise();
    }
}

impl cq::Handler for Mailbox {
    fn kick(&self) {
        self.cq_events.add(1);
        self.event.raise();
    }

    fn failed(&self) {
        self.cq_failed.store(true, Relaxed);
        self.event.raise();
    }
}

impl device::Watch for Mailbox {
    fn removing(&self, _device: &Device) {
        // The session looks for itself whether it is its device.
        self.event.raise();
    }
}

/// The CM's handler of a session's connections.
pub(crate) struct CmMail {
    pub(crate) mailbox: Arc<Mailbox>,
    /// Which data connection it is; `None` for the control connection.
    pub(crate) connection: Option<u32>,
}

impl cm::Handler for CmMail {
    fn event(&self, event: cm::Event<'_>) {
        let failed = |code, text| CmNews::Failed(Failure::new(code, text));
        let news = match event {
            cm::Event::AddrResolved => CmNews::AddrResolved,
            cm::Event::RouteResolved => CmNews::RouteResolved,
            cm::Event::Established(data) => {
                let mut copy = KVec::new();
                match copy.extend_from_slice(data, GFP_KERNEL) {
                    Ok(()) => CmNews::Established(copy),
                    Err(e) => CmNews::Failed(e.into()),
                }
            }
            cm::Event::AddrError(e) => failed(
                e,
                fmt!(
                    "the address cannot be resolved to an RDMA device: {}",
                    EndedWith(Stage::Address, e.to_errno())
                ),
            ),
            cm::Event::RouteError(e) => failed(
                e,
                fmt!(
                    "the address is resolved, but not the path: {}",
                    EndedWith(Stage::Route, e.to_errno())
                ),
            ),
            cm::Event::ConnectError(e) => failed(e, fmt!("connecting: error {}", e.to_errno())),
            cm::Event::Unreachable(e) => failed(
                EHOSTUNREACH,
                fmt!(
                    "the peer does not answer the connect request: {}",
                    EndedWith(Stage::Request, e.to_errno())
                ),
            ),
            cm::Event::Rejected(reason, data) => match (Refused::decode(data), reason) {
                (Ok(refused), _) => failed(ECONNREFUSED, fmt!("refused: {refused}")),
                (Err(_), RejectReason::Other(errno)) => failed(
                    ECONNREFUSED,
                    fmt!(
                        "refused: {reason}; {}",
                        look_at(Stage::Refusal, i32::try_from(errno).unwrap_or(0))
                    ),
                ),
                (Err(_), reason) => failed(ECONNREFUSED, fmt!("refused: {reason}")),
            },
            cm::Event::Disconnected => CmNews::Disconnected,
            cm::Event::DeviceRemoval => failed(ENODEV, fmt!("the device is being removed")),
            cm::Event::AddrChange => failed(
                EADDRNOTAVAIL,
                fmt!("the address moved to another interface"),
            ),
            cm::Event::TimewaitExit => return,
        };
        self.mailbox.put(Mail::Cm(self.connection, news));
    }
}

/// What the end that runs a session wants of it.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Silence of the peer that ends the session, ms.
    pub(crate) timeout_ms: u32,
    /// The policy, which the end holds in use for longer than its sessions live.
    pub(crate) policy: Arc<Policy>,
    /// SGEs per operation.
    pub(crate) sges: u32,
    /// Threads that make the load, instead of the session's own.
    pub(crate) crew: Option<Crew>,
    /// Where their lanes are shown.
    pub(crate) debug: Option<Dir>,
}

/// What differs between client and server.
pub(crate) enum Role {
    Client(Client),
    Server(Server),
}

/// Everything of a session but its role. Fields are dropped in order: connections before CQs.
pub(crate) struct Session {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) load: Load,
    pub(crate) settings: Settings,
    /// The policy's knobs when the session began: all that do not change under a connection.
    knobs: Knobs,
    pub(crate) is_client: bool,
    /// Time of the current round, ns.
    pub(crate) now: u64,
    /// Set when a round did something.
    pub(crate) moved: bool,
    /// Data connections by number.
    pub(crate) conns: KVec<Conn>,
    /// Key of each data QP, and the connection's number; ascending, as keys are.
    keys: KVec<(u32, u32)>,
    /// Room for the completions of one poll.
    wcs: KVVec<Wc>,
    moderator: Moderator,
    pub(crate) control: Option<Control>,
    pub(crate) fabric: Option<Fabric>,
    /// Lanes and submitters of a client that has them: its data connections then.
    pub(crate) workforce: Option<Workforce>,
    /// The data connection of which work requests were flushed first, and when, ns.
    flushed: Option<(usize, u64)>,
    #[allow(dead_code)]
    watching: device::Watching,
}

/// What a session has of the device.
pub(crate) struct Fabric {
    pub(crate) pd: Arc<Pd>,
    /// Bytes of payload that a packet of the port has at most.
    mtu: u32,
    cqs: KVec<Arc<Cq>>,
}

impl Fabric {
    fn new(device: &Arc<Device>, port: u32) -> Result<Self> {
        Ok(Self {
            pd: Pd::new(device)?,
            mtu: device.port(port)?.active_mtu,
            cqs: KVec::new(),
        })
    }

    /// A CQ with room for `completions`; makes one for `expected` if need be. Sleeps.
    pub(crate) fn cq(
        &mut self,
        completions: u32,
        expected: u64,
        mailbox: &Arc<Mailbox>,
    ) -> Result<Arc<Cq>> {
        if let Some(cq) = self.cqs.iter().find(|cq| cq.room() >= completions) {
            return Ok(cq.clone());
        }
        let device = self.pd.device();
        let max = u64::from(device.caps().max_cqe);
        let entries = expected.max(u64::from(completions)).min(max) as u32;
        let vector = self.cqs.len() as u32;
        let cq = Cq::new(device, entries, vector, mailbox.clone())?;
        self.cqs.push(cq.clone(), GFP_KERNEL)?;
        Ok(cq)
    }
}

impl Session {
    /// A session without connections. Sleeps.
    pub(crate) fn new(
        mailbox: &Arc<Mailbox>,
        stats: &Arc<Stats>,
        mut load: Load,
        settings: Settings,
        is_client: bool,
    ) -> Outcome<Self> {
        let knobs = settings.policy.knobs();
        let workforce = match settings.crew {
            Some(crew) => Some(Workforce::new(
                &knobs,
                crew,
                &mut load,
                mailbox,
                settings.debug.clone(),
            )?),
            None => None,
        };
        Ok(Self {
            mailbox: mailbox.clone(),
            stats: stats.clone(),
            load,
            knobs,
            settings,
            is_client,
            now: now_ns(),
            moved: false,
            conns: KVec::new(),
            keys: KVec::new(),
            wcs: qp::filled(POLL_BUDGET.max as usize, || Wc::EMPTY)?,
            moderator: Moderator::new(now_ns()),
            control: None,
            fabric: None,
            workforce,
            flushed: None,
            watching: device::watch(mailbox.clone())?,
        })
    }

    /// Makes PD and control QP on a CM id that is bound to a device. On error the id comes back.
    /// Sleeps.
    pub(crate) fn make_control(
        &mut self,
        id: verbs::CmId,
    ) -> core::result::Result<(), (Failure, Option<verbs::CmId>)> {
        let made = (|| {
            let device = id.device().because("the device")?;
            self.check_device(&device)?;
            let mut fabric = Fabric::new(&device, id.port()).because("protection domain")?;
            let completions = super::control::COMPLETIONS;
            let parts = self.parts(device.caps());
            let each = super::conn::completions(&self.load, self.is_client, parts);
            let all = u64::from(completions) + u64::from(each) * u64::from(self.load.connections);
            let cq = fabric
                .cq(completions, all, &self.mailbox)
                .because("completion queue")?;
            Ok((fabric, cq))
        })();
        let (fabric, cq) = match made {
            Ok(made) => made,
            Err(failure) => return Err((failure, Some(id))),
        };
        let pd = fabric.pd.clone();
        self.fabric = Some(fabric);
        let control = Control::new(id, &pd, &cq, self.settings.timeout_ms, self.now);
        self.control = Some(control.map_err(|failure| (failure, None))?);
        Ok(())
    }

    /// Work requests per operation on a device.
    fn parts(&self, caps: &verbs::caps::Caps) -> u32 {
        super::conn::parts(&self.load, self.is_client, self.settings.sges, caps)
    }

    /// Refuses what the device cannot do, in words.
    fn check_device(&self, device: &Device) -> Outcome {
        let caps = device.caps();
        let name = device.name();
        let name = name.as_str();
        let op = self.load.op;
        let kind = match op {
            Op::Read | Op::ExchangeIn => verbs::caps::Op::Read,
            op if op.is_atomic() => verbs::caps::Op::Atomic,
            Op::SendImm => verbs::caps::Op::SendImm,
            Op::WriteImm => verbs::caps::Op::WriteImm,
            _ => verbs::caps::Op::Send,
        };
        let transport = self.load.transport;
        caps.check_transport(transport.qp_type())
            .map_err(|e| Failure::new(e, fmt!("{name} has no {transport}")))?;
        caps.check(kind)
            .map_err(|e| Failure::new(e, fmt!("{name} has no {op}")))?;
        if op.needs_region() {
            let reg = caps.check(verbs::caps::Op::RegMr);
            reg.map_err(|e| Failure::new(e, fmt!("{name} has no fast registration")))?;
            let longest = caps.max_fast_reg_pages as usize * PAGE_SIZE;
            let stride = self.load.stride();
            if stride > longest && self.workforce.is_none() {
                return Err(Failure::new(
                    E2BIG,
                    fmt!("size: {name} registers {longest} bytes at once, with what is around the payload it takes {stride}"),
                ));
            }
        }
        let parts = self.parts(caps);
        let max = caps.max_sges(kind);
        if self.settings.sges > max && parts == 1 {
            return Err(Failure::new(
                E2BIG,
                fmt!("sges: {name} has at most {max} for {op}"),
            ));
        }
        let each = super::conn::completions(&self.load, self.is_client, parts);
        let queue = self.load.send_queue(self.is_client) * parts;
        let queue = queue.max(self.load.receives());
        if each > caps.max_cqe || queue >= caps.max_qp_wr {
            return Err(Failure::new(
                E2BIG,
                fmt!("depth: more than {name} can queue"),
            ));
        }
        Ok(())
    }

    /// The control connection.
    pub(crate) fn control(&mut self) -> Outcome<&mut Control> {
        self.control.as_mut().ok_or_else(|| ENOTCONN.into())
    }

    /// Sends a control message about a connection.
    pub(crate) fn send(&mut self, connection: u32, message: Message) -> Outcome {
        let now = self.now;
        self.control()?.send(connection, message, now)
    }

    /// Data connections so far.
    fn connections(&mut self) -> u32 {
        let lanes = self.workforce.as_mut().map_or(0, |w| w.lanes().len());
        (self.conns.len() + lanes) as u32
    }

    /// What the peer told of its memory for a data connection.
    pub(crate) fn remote(&mut self, connection: u32) -> Option<&mut Remote> {
        match &mut self.workforce {
            Some(workforce) => Some(&mut workforce.lanes().get_mut(connection as usize)?.remote),
            None => Some(&mut self.conns.get_mut(connection as usize)?.remote),
        }
    }

    /// Makes the next data connection as a lane. `quota` tells a submitter's operations. Sleeps.
    pub(crate) fn make_lane(&mut self, id: verbs::CmId, quota: &dyn Fn(u32) -> u64) -> Outcome {
        let fabric = self.fabric.as_ref().ok_or(ENOTCONN)?;
        let workforce = self.workforce.as_mut().ok_or(EINVAL)?;
        let policy = &self.settings.policy;
        workforce.add(id, &self.load, &self.knobs, policy, &fabric.pd, quota)?;
        Ok(())
    }

    /// Makes the next data connection. Sleeps.
    pub(crate) fn make_conn(&mut self, id: Option<verbs::CmId>) -> Outcome<&mut Conn> {
        let index = self.conns.len() as u32;
        let port = self.control()?.id.port();
        let fabric = self.fabric.as_ref().ok_or(ENOTCONN)?;
        let parts = self.parts(fabric.pd.device().caps());
        let each = super::conn::completions(&self.load, self.is_client, parts);
        let left = u64::from(each) * u64::from(self.load.connections - index);
        let fabric = self.fabric.as_mut().ok_or(ENOTCONN)?;
        let cq = fabric
            .cq(each, left, &self.mailbox)
            .because("completion queue")?;
        let queueing = Queueing {
            sges: self.settings.sges,
            parts,
            batch: self.knobs.batch,
            signal_every: self.load.signal_every(self.knobs.signal_every),
        };
        let conn = Conn::new(
            index,
            &self.load,
            self.is_client,
            queueing,
            &fabric.pd,
            &cq,
            id,
            port,
        )?;
        self.keys.push((conn.qp.key(), index), GFP_KERNEL)?;
        self.conns.push(conn, GFP_KERNEL)?;
        self.conns.last_mut().ok_or_else(|| EINVAL.into())
    }

    /// Which data connection a key is of.
    fn connection_of(&self, key: u32) -> Option<usize> {
        let at = self.keys.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(self.keys[at].1 as usize)
    }

    /// Runs until the role is done, something fails, or somebody says stop; then ends in order.
    pub(crate) fn run(&mut self, role: &mut Role) -> Outcome {
        let outcome = self.run_loop(role);
        self.finish();
        outcome
    }

    fn run_loop(&mut self, role: &mut Role) -> Outcome {
        let mut idle = 0;
        let mut next_tick = 0;
        loop {
            self.moved = false;
            self.poll(role)?;
            if self.mailbox.filled.take() {
                self.take_mail(role)?;
            }
            if idle == 0 || idle >= IDLE_ROUNDS || self.moved {
                self.now = now_ns();
            }
            if self.flushed.is_none() {
                role.work(self)?;
            }
            if self.now >= next_tick {
                next_tick = self.now + MS;
                self.tick(role)?;
            }
            if role.is_done(self) {
                return Ok(());
            }
            if self.mailbox.stop.load(Relaxed) {
                return Err(Failure::new(ECANCELED, fmt!("stopped")));
            }
            if self.moved {
                idle = 1;
                sched::resched();
                continue;
            }
            idle = if idle >= IDLE_ROUNDS { 1 } else { idle + 1 };
            match self.wait_how(role) {
                Next::Spin => {
                    sched::yield_to_others();
                    cpu_relax();
                }
                Next::Hold(ns) => {
                    self.mailbox.event.wait_ns(ns);
                    idle = 0;
                }
                Next::Arm => {
                    self.sleep(role);
                    idle = 0;
                }
            }
        }
    }

    /// How a session goes on that found nothing to do.
    fn wait_how(&mut self, role: &Role) -> Next {
        if role.polls_memory(self) {
            return Next::Spin;
        }
        if !role.awaits_completions(self) {
            return Next::Arm;
        }
        let rules = self.settings.policy.moderation();
        let next = self.moderator.empty(&rules, true, self.now);
        self.stats.poller.mode_changes.set(self.moderator.changes());
        next
    }

    /// Sleeps until something happens or a timer is due, unless something has happened already.
    fn sleep(&mut self, role: &Role) {
        if let Some(fabric) = &self.fabric {
            let mut missed = false;
            for cq in fabric.cqs.iter() {
                self.stats.poller.arms.add(1);
                missed |= cq.arm();
            }
            if missed {
                return;
            }
        }
        self.now = now_ns();
        let control = self
            .control
            .as_ref()
            .map_or(1000 * MS, |c| c.next_tick(self.now));
        let reason = self.flushed.map_or(u64::MAX, |(_, since)| {
            (since + REASON + MS).saturating_sub(self.now)
        });
        let ns = control.min(role.next_tick(self)).min(reason);
        self.mailbox.event.wait((ns / MS) as u32 + 1);
        let events = self.mailbox.cq_events.take();
        self.stats.poller.cq_events.add(events);
    }

    /// Takes completions and acts on them.
    fn poll(&mut self, role: &mut Role) -> Outcome {
        // Out of the session meanwhile, so that the roles can have the session.
        let mut wcs = core::mem::take(&mut self.wcs);
        let mut outcome = Ok(());
        let budget = self.settings.policy.moderation().poll_budget as usize;
        let mut at = 0;
        while let Some(cq) = self.fabric.as_ref().and_then(|fabric| fabric.cqs.get(at)) {
            at += 1;
            let room = budget.min(wcs.len());
            let wcs = cq.poll(&mut wcs[..room]).map_err(|_| cq_failed())?;
            self.stats.poller.polls.add(1);
            if wcs.is_empty() {
                self.stats.poller.empty_polls.add(1);
                continue;
            }
            self.moved = true;
            self.now = now_ns();
            self.moderator.found(wcs.len() as u32, self.now);
            self.stats.lane.completions.add(wcs.len() as u64);
            for wc in wcs {
                match &outcome {
                    Ok(()) => outcome = self.dispatch(role, wc),
                    // Polled is polled: what they complete is over, and must be seen to be.
                    Err(_) => self.drain(wc),
                }
            }
            if outcome.is_err() {
                break;
            }
        }
        self.wcs = wcs;
        outcome
    }

    fn dispatch(&mut self, role: &mut Role, wc: &mut Wc) -> Outcome {
        let key = wc.route().key;
        if let Some(index) = self.connection_of(key) {
            return role.completed(self, index, wc);
        }
        let now = self.now;
        let Some(control) = self.control.as_mut().filter(|c| c.key() == key) else {
            return Ok(());
        };
        match control.completed(wc, now)? {
            Some(arrival) => self.arrived(role, arrival),
            None => Ok(()),
        }
    }

    fn arrived(&mut self, role: &mut Role, arrival: Arrival) -> Outcome {
        match arrival {
            Arrival::Message(_, Message::Heartbeat) => Ok(()),
            Arrival::Message(connection, message) => {
                if connection >= self.connections() && !matches!(message, Message::Open(_)) {
                    return Err(self.lie(connection, "there is no such connection"));
                }
                role.message(self, connection, message)
            }
            Arrival::Registered(region, connection) => {
                let slots = self.load.exposed_slots(self.is_client);
                let load = self.load;
                let conn = self.conns.get_mut(connection as usize).ok_or(EINVAL)?;
                let told = conn.exposed.add(region, slots)?;
                if load.verify && load.op == Op::Read {
                    for slot in told.first..told.first + told.slots {
                        let pattern = super::pattern::Pattern::new(connection, slot.into(), false);
                        let offset = load.offset(slot.into());
                        conn.exposed
                            .fill(slot, offset, load.size as usize, pattern)?;
                    }
                }
                role.registered(self, connection, told)
            }
        }
    }

    /// A work request of a data connection failed. That it was flushed says nothing about the
    /// reason: who knows it may speak within [`REASON`].
    pub(crate) fn failed(&mut self, index: usize, status: WcStatus) -> Outcome {
        if status != WcStatus::Flushed {
            self.stats.errors.add(1);
            return Err(self.broken(index, status));
        }
        if self.flushed.is_none() {
            self.stats.errors.add(1);
            self.flushed = Some((index, self.now));
        }
        Ok(())
    }

    /// The failure that a message of the peer is which does not fit.
    pub(crate) fn lie(&self, connection: u32, what: &str) -> Failure {
        let place = self.place(connection as usize);
        Failure::new(
            EPROTO,
            fmt!("bad message of the peer about {place}: {what}"),
        )
    }

    /// Bytes of payload that a packet has at most; 0 without a device.
    pub(crate) fn mtu(&self) -> u32 {
        self.fabric.as_ref().map_or(0, |fabric| fabric.mtu)
    }

    /// What a data connection is called.
    pub(crate) fn place(&self, index: usize) -> Place {
        match &self.workforce {
            Some(workforce) => {
                let (connection, lane) = workforce.place(index as u32);
                Place {
                    connection,
                    lane: Some(lane),
                }
            }
            None => Place {
                connection: index as u32,
                lane: None,
            },
        }
    }

    /// The failure that a work request is which ended so.
    fn broken(&self, index: usize, status: WcStatus) -> Failure {
        let code = match status {
            WcStatus::RetryExceeded | WcStatus::RnrRetryExceeded | WcStatus::ResponseTimeout => {
                ETIMEDOUT
            }
            _ => ECONNRESET,
        };
        let place = self.place(index);
        match status {
            WcStatus::RetryExceeded => Failure::new(
                code,
                fmt!(
                    "{place} broke: {status}; the peer's device is gone, or {}",
                    LongPackets(self.mtu())
                ),
            ),
            _ => Failure::new(code, fmt!("{place} broke: {status}")),
        }
    }

    /// Begins to register the next piece of a connection's memory; `false` if all is registered.
    pub(crate) fn expose(&mut self, connection: u32) -> Outcome<bool> {
        let slots = self.load.exposed_slots(self.is_client);
        let access = super::conn::exposed_access(self.load.op);
        let stride = self.load.stride();
        let conn = self.conns.get(connection as usize).ok_or(EINVAL)?;
        let at = conn.exposed.pieces();
        let pd = conn.qp.pd().clone();
        let piece = super::slots::piece(&pd, slots, stride, at, access);
        let Some(registration) = piece.because("memory for the peer")? else {
            return Ok(false);
        };
        self.control()?.register(registration, connection)?;
        Ok(true)
    }

    fn take_mail(&mut self, role: &mut Role) -> Outcome {
        if self.mailbox.overflowed.load(Relaxed) {
            return Err(Failure::new(
                ENOMEM,
                fmt!("out of memory for connection events"),
            ));
        }
        let mail = core::mem::take(&mut self.mailbox.mail.lock().mail);
        for mail in mail {
            self.moved = true;
            role.mail(self, mail)?;
        }
        Ok(())
    }

    /// Shows what the data QPs have counted.
    fn publish(&self) {
        let mut sum = QpCounts::default();
        for conn in self.conns.iter() {
            sum.add(&conn.qp.counts());
        }
        self.stats.lane.posted(&sum);
    }

    /// What has to be looked at now and then.
    fn tick(&mut self, role: &mut Role) -> Outcome {
        self.publish();
        if self.mailbox.cq_failed.load(Relaxed) {
            return Err(cq_failed());
        }
        if let Some(fabric) = &self.fabric {
            check_device(fabric.pd.device())?;
        }
        if let Some(conn) = self.conns.iter().find(|conn| conn.qp.has_failed()) {
            return Err(qp_failed(&self.place(conn.index as usize)));
        }
        match self.workforce.as_ref().and_then(Workforce::broken) {
            Some((index, Broken::Status(status))) => self.failed(index, status)?,
            Some((index, Broken::Qp)) => return Err(qp_failed(&self.place(index))),
            Some((_, Broken::Cq)) => return Err(cq_failed()),
            Some((index, Broken::Posting(e))) => {
                let place = self.place(index);
                return Err(Failure::new(
                    e,
                    fmt!("posting on {place}: error {}", e.to_errno()),
                ));
            }
            None => {}
        }
        let now = self.now;
        if let Some(control) = &mut self.control {
            control.tick(now)?;
        }
        match self.flushed {
            Some((index, since)) if now.saturating_sub(since) > REASON => {
                Err(self.broken(index, WcStatus::Flushed))
            }
            Some(_) => Ok(()),
            None => role.tick(self),
        }
    }

    /// The orderly end: nothing new, all completions seen, the peer told.
    fn finish(&mut self) {
        let deadline = now_ns() + DRAIN;
        let lanes_left = match &mut self.workforce {
            Some(workforce) => workforce.end(deadline),
            None => 0,
        };
        self.workforce = None;
        for conn in self.conns.iter_mut() {
            let _ = conn.qp.enter_error();
        }
        if let Some(control) = &mut self.control {
            // Tells the peer, and moves the QP to error.
            let _ = control.id.disconnect();
            control.begin_drain();
        }
        for conn in self.conns.iter_mut() {
            if let Some(id) = &mut conn.id {
                let _ = id.disconnect();
            }
        }
        let mut wcs = core::mem::take(&mut self.wcs);
        while self.outstanding() > 0 && now_ns() < deadline {
            let mut seen = 0;
            let cqs = self.fabric.as_ref().map_or(0, |fabric| fabric.cqs.len());
            for at in 0..cqs {
                let cq = self
                    .fabric
                    .as_ref()
                    .and_then(|fabric| fabric.cqs.get(at))
                    .cloned();
                let polled = cq.as_ref().and_then(|cq| cq.poll(&mut wcs).ok());
                for wc in polled.into_iter().flatten() {
                    seen += 1;
                    self.drain(wc);
                }
            }
            if seen == 0 {
                self.mailbox.event.wait(1);
            }
        }
        self.publish();
        let left = self.outstanding() + lanes_left;
        if left > 0 {
            pr_warn!(
                "perf: {left} work requests did not complete before their QPs were destroyed\n"
            );
        }
        self.conns.clear();
        self.control = None;
        self.fabric = None;
    }

    fn outstanding(&self) -> u32 {
        let control = self.control.as_ref().map_or(0, Control::outstanding);
        let data: u32 = self.conns.iter().map(|conn| conn.qp.outstanding()).sum();
        control + data
    }

    fn drain(&mut self, wc: &mut Wc) {
        let key = wc.route().key;
        if let Some(index) = self.connection_of(key) {
            let qp = &mut self.conns[index].qp;
            while qp.take_send(wc).is_some() {}
            let _ = qp.take_recv(wc);
        } else if let Some(control) = &mut self.control {
            control.drain(wc);
        }
    }
}

/// What a data connection is called: that of lanes has a number for each of them.
pub(crate) struct Place {
    connection: u32,
    lane: Option<u32>,
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "connection {}", self.connection)?;
        match self.lane {
            Some(lane) => write!(f, ", lane {lane}"),
            None => Ok(()),
        }
    }
}

fn qp_failed(place: &Place) -> Failure {
    Failure::new(EIO, fmt!("the device reported an error of {place}"))
}

fn cq_failed() -> Failure {
    Failure::new(EIO, fmt!("a completion queue failed"))
}

impl Role {
    fn work(&mut self, session: &mut Session) -> Outcome {
        match self {
            Role::Client(client) => client.work(session),
            Role::Server(server) => server.work(session),
        }
    }

    fn completed(&mut self, session: &mut Session, index: usize, wc: &mut Wc) -> Outcome {
        match self {
            Role::Client(client) => client.completed(session, index, wc),
            Role::Server(server) => server.completed(session, index, wc),
        }
    }

    fn message(&mut self, session: &mut Session, connection: u32, message: Message) -> Outcome {
        match self {
            Role::Client(client) => client.message(session, connection, message),
            Role::Server(server) => server.message(session, connection, message),
        }
    }

    fn registered(
        &mut self,
        session: &mut Session,
        connection: u32,
        region: super::wire::Region,
    ) -> Outcome {
        match self {
            Role::Client(client) => client.registered(session, connection, region),
            Role::Server(server) => server.registered(session, connection, region),
        }
    }

    fn mail(&mut self, session: &mut Session, mail: Mail) -> Outcome {
        match self {
            Role::Client(client) => client.mail(session, mail),
            Role::Server(server) => server.mail(session, mail),
        }
    }

    fn tick(&mut self, session: &mut Session) -> Outcome {
        match self {
            Role::Client(client) => client.tick(session),
            Role::Server(server) => server.tick(session),
        }
    }

    /// Ns until its tick has something to do.
    fn next_tick(&self, session: &Session) -> u64 {
        match self {
            Role::Client(client) => client.next_tick(session),
            Role::Server(server) => server.next_tick(session),
        }
    }

    /// Whether it waits, now, for what only looking at memory tells.
    fn polls_memory(&self, session: &Session) -> bool {
        match self {
            Role::Client(client) => client.polls_memory(session),
            Role::Server(server) => server.polls_memory(session),
        }
    }

    /// Whether completions of operations are what it waits for now.
    fn awaits_completions(&self, session: &Session) -> bool {
        match self {
            Role::Client(client) => client.awaits_completions(session),
            Role::Server(server) => server.awaits_completions(session),
        }
    }

    fn is_done(&self, session: &Session) -> bool {
        match self {
            Role::Client(client) => client.is_done(session),
            Role::Server(server) => server.is_done(session),
        }
    }
}
