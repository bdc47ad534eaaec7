// SPDX-License-Identifier: GPL-2.0

//! How queues are connected.
//!
//! ```text
//! resolve the address -> make the QP -> resolve the route -> connect -> the controller's reply
//! ```
//!
//! Each step is waited for, with a limit. Queues are connected beside each other, a few at a time, by
//! tasks that help the one that sets a controller up ([`together`]): the CM's events only tell them. The
//! first that fails has all others give up what they wait for, and nothing more is begun; when
//! [`connect`] returns, no task is at work any more. What is connected by then is its caller's to end.

use super::{
    commands::{work_requests, Broken, Commands, Regions, Shape},
    controller::Controller,
    queue::{Link, Looks, Place},
    show::View,
    wire::{self, BadReply, ConnectRequest, Refusal},
};
use crate::{
    engine::{
        lane::{Lane, Percpu},
        policy::Policy,
        polled::PolledCq,
        poller::{Dues, Poller, Takes},
    },
    kapi::{
        event::Event,
        nvme::{together, Ctrl, Trouble},
    },
    verbs::{
        cm, CmId, ConnParam, Cq, Device, NetNs, Pd, Qp, QpConfig, QpType, RejectReason, SocketAddr,
    },
};
use core::fmt;
use kernel::{
    debugfs::Dir,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc, Mutex, SpinLock,
    },
};

/// How long an address or a route may take to be found, ms.
const RESOLVE_MS: u32 = 3000;
/// How long the peer may take to answer a connect request, ms. The CM itself would try for minutes.
const CONNECT_MS: u32 = 10_000;

/// Which queue to whom.
pub(super) struct Target<'t> {
    /// Of which controller.
    pub(super) ctrl: &'t Ctrl<Controller>,
    /// Where from.
    pub(super) net: &'t NetNs,
    /// The same, if an address was given.
    pub(super) src: Option<SocketAddr>,
    /// Where to.
    pub(super) dst: &'t SocketAddr,
    /// With which type of service.
    pub(super) tos: Option<u8>,
    /// How completions are handled.
    pub(super) policy: &'t Arc<Policy>,
    /// Work requests of one doorbell.
    pub(super) batch: u32,
    /// Where memory is to be, if not near the device.
    pub(super) node: Option<i32>,
    /// Where its queues are shown.
    pub(super) debug: &'t Dir,
    /// The PD of its queues, which is made if there is none.
    pub(super) domain: &'t Mutex<Option<Arc<Pd>>>,
}

/// Who is to look at a queue's completions.
#[derive(Clone, Copy)]
pub(super) enum Watch {
    /// The poller of this CPU.
    Cpu(u32),
    /// Whoever waits.
    Polled,
}

/// Why a queue could not be connected.
#[derive(Clone, Copy)]
pub(super) enum Reason {
    /// The address or the route could not be found, or the like.
    Failed(&'static str, Error),
    /// The peer has not answered.
    Silence(&'static str),
    /// The peer refused.
    Refused(RejectReason, Option<Refusal>),
    /// What it answered is no good.
    Reply(BadReply),
    /// It has ended what was just connected.
    Ended,
    /// Another queue has failed.
    GivenUp,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Failed(what, e) => write!(f, "{what}: error {}", e.to_errno()),
            Reason::Silence(what) => write!(f, "{what}: no answer"),
            Reason::Refused(_, Some(refusal)) => {
                write!(f, "the controller refused the connection: {refusal}")
            }
            Reason::Refused(reason, None) => write!(f, "the connection was refused: {reason}"),
            Reason::Reply(bad) => write!(f, "the controller's reply is {bad}"),
            Reason::Ended => f.write_str("the controller ended the connection"),
            Reason::GivenUp => f.write_str("given up, as another queue has failed"),
        }
    }
}

impl Reason {
    fn code(&self) -> Error {
        match self {
            Reason::Failed(_, e) => *e,
            Reason::Silence(_) => ETIMEDOUT,
            Reason::Refused(..) => ECONNREFUSED,
            Reason::Reply(_) => EPROTO,
            Reason::Ended => ECONNRESET,
            Reason::GivenUp => ECANCELED,
        }
    }
}

/// What the CM has said of a connection that is being made.
enum Stage {
    /// Nothing that was not waited for.
    Waiting,
    Resolved,
    Routed,
    /// With the number of commands that the controller takes at a time.
    Up(u16),
    Down(Reason),
}

/// What the CM says of a connection.
#[pin_data]
pub(crate) struct Progress {
    ctrl: Ctrl<Controller>,
    qid: u16,
    #[pin]
    told: Event,
    #[pin]
    stage: SpinLock<Stage>,
    /// Whoever makes it has seen that it is up: from there on what ends it is told to the controller.
    up: Atomic<bool>,
    /// It has ended, or will be by us.
    over: Atomic<bool>,
    /// Whoever makes it is to give up.
    given_up: Atomic<bool>,
}

impl Progress {
    fn new(ctrl: &Ctrl<Controller>, qid: u16) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ctrl: ctrl.clone(),
                qid,
                told <- Event::new(),
                stage <- new_spinlock!(Stage::Waiting),
                up: Atomic::new(false),
                over: Atomic::new(false),
                given_up: Atomic::new(false),
            }),
            GFP_KERNEL,
        )
    }

    /// Of whose controller it is.
    pub(super) fn ctrl(&self) -> &Ctrl<Controller> {
        &self.ctrl
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Waits up to `ms` for the CM to say something.
    fn wait(&self, what: &'static str, ms: u32) -> core::result::Result<Stage, Reason> {
        loop {
            if self.given_up.load(Relaxed) {
                return Err(Reason::GivenUp);
            }
            match core::mem::replace(&mut *self.stage.lock(), Stage::Waiting) {
                Stage::Waiting => {}
                Stage::Down(reason) => return Err(reason),
                stage => return Ok(stage),
            }
            if !self.told.wait(ms) {
                return Err(Reason::Silence(what));
            }
        }
    }

    /// Has whoever makes it not wait any longer. Any context.
    fn give_up(&self) {
        self.given_up.store(true, Relaxed);
        self.told.raise();
    }

    fn say(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.told.raise();
    }

    /// We end it: whatever comes of that is no news.
    pub(super) fn retire(&self) {
        self.over.store(true, Relaxed);
    }

    /// Its queue is of no more use. One that is not up yet fails when it is. Any context.
    pub(super) fn broke(&self, why: &Broken) {
        // Either this sees that it is up, or who makes it sees that it is over.
        if !self.over.xchg(true, Full) && self.up.load(Relaxed) {
            self.ctrl.data().queue_failed(&self.ctrl, self.qid, why);
        }
    }

    /// The connection has ended.
    fn ended(&self) {
        if !self.up.load(Relaxed) {
            self.say(Stage::Down(Reason::Ended));
        }
        self.broke(&Broken::Disconnected);
    }
}

/// Listens to the CM.
struct Ear(Arc<Progress>);

impl cm::Handler for Ear {
    fn event(&self, event: cm::Event<'_>) {
        let down = |what, e| Stage::Down(Reason::Failed(what, e));
        self.0.say(match event {
            cm::Event::AddrResolved => Stage::Resolved,
            cm::Event::AddrError(e) => down("the address cannot be resolved", e),
            cm::Event::RouteResolved => Stage::Routed,
            cm::Event::RouteError(e) => down("there is no route", e),
            cm::Event::Established(data) => match wire::parse_reply(data) {
                Ok(room) => Stage::Up(room),
                Err(bad) => Stage::Down(Reason::Reply(bad)),
            },
            cm::Event::ConnectError(e) => down("connecting failed", e),
            cm::Event::Unreachable(e) => down("the controller does not answer", e),
            cm::Event::Rejected(reason, data) => {
                Stage::Down(Reason::Refused(reason, Refusal::parse(data)))
            }
            // Its removal is told by the device itself.
            cm::Event::DeviceRemoval => return,
            cm::Event::Disconnected | cm::Event::AddrChange | cm::Event::TimewaitExit => {
                return self.0.ended()
            }
        });
    }
}

/// A queue that is being connected. Fields are dropped in order.
struct Connecting {
    made: Option<(Looks, Arc<Lane<Commands>>)>,
    id: CmId,
    progress: Arc<Progress>,
}

/// Queues that are connected beside each other.
struct Attempt<'t> {
    target: &'t Target<'t>,
    places: &'t [Arc<Place>],
    /// What the CM says of each.
    progress: KVec<Arc<Progress>>,
    /// Why the first that has failed did.
    failed: &'t SpinLock<Option<Trouble>>,
}

/// Connects queues: each place gets a connection, whose QP is made for `shape` and completes where
/// `watch` tells, and then `made` goes on with it; all from several tasks. Sleeps.
///
/// # Errors
///
/// Of the queue that has failed first; why, the log says. Others may be connected then.
pub(super) fn connect(
    target: &Target<'_>,
    places: &[Arc<Place>],
    shape: &Shape,
    watch: &(dyn Fn(u16) -> Watch + Sync),
    made: &(dyn Fn(&Place) -> Result<(), Trouble> + Sync),
) -> Result<(), Trouble> {
    pin_init::stack_pin_init!(let failed = new_spinlock!(None));
    let mut progress = KVec::with_capacity(places.len(), GFP_KERNEL)?;
    for place in places {
        progress.push(Progress::new(target.ctrl, place.qid())?, GFP_KERNEL)?;
    }
    let attempt = Attempt {
        target,
        places,
        progress,
        failed: &failed,
    };
    // There are no more than 2^16.
    together(places.len() as u32, &|i| {
        let i = i as usize;
        if let (Some(place), Some(progress)) = (places.get(i), attempt.progress.get(i)) {
            attempt.one(place, progress, shape, watch, made);
        }
    });
    let failed = *failed.lock();
    failed.map_or(Ok(()), Err)
}

impl Attempt<'_> {
    /// Connects one of them, unless another has failed.
    fn one(
        &self,
        place: &Place,
        progress: &Arc<Progress>,
        shape: &Shape,
        watch: &(dyn Fn(u16) -> Watch + Sync),
        made: &(dyn Fn(&Place) -> Result<(), Trouble> + Sync),
    ) {
        if self.has_failed() {
            return;
        }
        let qid = place.qid();
        let link = Connecting::run(self.target, progress, qid, shape, watch(qid));
        let put = link.and_then(|link| {
            let put = place.put(link);
            put.map_err(|e| Reason::Failed("memory", e))
        });
        match put {
            Ok(()) => {}
            Err(Reason::GivenUp) => return,
            Err(reason) => {
                let first = self.fail(reason.code().into());
                if first {
                    let n = self.target.ctrl.number();
                    pr_err!("nvme{n}: queue {qid}: {reason}\n");
                }
                return;
            }
        }
        // Who fails ends what is in the places: before this, or this sees that it has.
        if self.has_failed() {
            return place.end();
        }
        // What breaks from here on is told to the controller, which has commands that wait for it end.
        if place.has_failed() {
            if self.fail(ECONNRESET.into()) {
                let n = self.target.ctrl.number();
                pr_err!("nvme{n}: queue {qid}: the connection has ended as soon as it was there\n");
            }
            return;
        }
        if let Err(why) = made(place) {
            self.fail(why);
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.lock().is_some()
    }

    /// A queue cannot be connected: all others are not to be either, and commands that are under way
    /// on them end. Whether it is the first. Sleeps.
    fn fail(&self, why: Trouble) -> bool {
        let mut failed = self.failed.lock();
        if failed.is_some() {
            return false;
        }
        *failed = Some(why);
        drop(failed);
        for progress in &self.progress {
            progress.give_up();
        }
        for place in self.places {
            place.end();
        }
        true
    }
}

impl Connecting {
    /// Does all steps.
    fn run(
        target: &Target<'_>,
        progress: &Arc<Progress>,
        qid: u16,
        shape: &Shape,
        watch: Watch,
    ) -> core::result::Result<Link, Reason> {
        let begun = Self::begin(target, progress);
        let mut queue = begun.map_err(|e| Reason::Failed("connecting failed", e))?;
        queue.resolved(target, shape, watch)?;
        queue.routed(target, qid, shape)?;
        queue.up(target.debug, shape)
    }

    /// Begins to resolve the address.
    fn begin(target: &Target<'_>, progress: &Arc<Progress>) -> Result<Self> {
        let mut id = CmId::new(target.net, Ear(progress.clone()))?;
        id.resolve_addr(target.src, target.dst, RESOLVE_MS)?;
        Ok(Self {
            made: None,
            id,
            progress: progress.clone(),
        })
    }

    /// Waits for the address, makes what the queue needs on the device that this is of, and begins
    /// to resolve the route.
    fn resolved(
        &mut self,
        target: &Target<'_>,
        shape: &Shape,
        watch: Watch,
    ) -> core::result::Result<(), Reason> {
        self.progress
            .wait("resolving the address", RESOLVE_MS + 1000)?;
        let made = self.make(target, shape, watch);
        self.made = Some(made.map_err(|e| Reason::Failed("making the queue pair failed", e))?);
        if let Some(tos) = target.tos {
            self.id.set_tos(tos);
        }
        let begun = self.id.resolve_route(RESOLVE_MS);
        begun.map_err(|e| Reason::Failed("there is no route", e))
    }

    fn make(
        &self,
        target: &Target<'_>,
        shape: &Shape,
        watch: Watch,
    ) -> Result<(Looks, Arc<Lane<Commands>>)> {
        let mut domain = target.domain.lock();
        let pd = match &*domain {
            Some(pd) => pd.clone(),
            None => domain.insert(Pd::new(&self.id.device()?)?).clone(),
        };
        drop(domain);
        let device = pd.device();
        let each = work_requests(device.caps());
        let sends = (u32::from(shape.depth) + 1) * each;
        let receives = u32::from(shape.depth) + 1;
        // With the marker of the QP's end.
        let sent = sends + 1;
        let config = QpConfig {
            qp_type: QpType::Rc,
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: shape.sges,
            max_recv_sge: 1,
            batch: target.batch.max(each),
        };
        // Others may have taken the room of a CQ before the QP could.
        let mut tries = 0;
        let (mut looks, qp, dues) = loop {
            let (looks, send_cq, cq, dues) =
                Self::watched(target, shape, watch, device, sent, receives)?;
            match Qp::new_cm(&self.id, &pd, &send_cq, &cq, None, config) {
                Ok(qp) => break (looks, qp, dues),
                Err(e) if e == ENOSPC && tries < 8 => tries += 1,
                Err(e) => return Err(e),
            }
        };
        let key = qp.key();
        let commands = Commands::new(&pd, shape, target.node.or(device.node()), dues)?;
        if shape.cache.is_some() && !commands.has_cache() {
            target.ctrl.data().goes_uncached(target.ctrl);
        }
        let lane = Lane::new(qp, commands, self.progress.clone(), Percpu)?;
        if let Looks::Poller(seat) = &mut looks {
            let takes: Arc<dyn Takes> = lane.clone();
            seat.take(key, takes)?;
        }
        lane.with(|commands, queue, _| commands.prime(queue))?;
        Ok((looks, lane))
    }

    /// Who looks at the completions of a queue, and where those of its SENDs and its receives go.
    #[allow(clippy::type_complexity)]
    fn watched(
        target: &Target<'_>,
        shape: &Shape,
        watch: Watch,
        device: &Arc<Device>,
        sent: u32,
        receives: u32,
    ) -> Result<(Looks, Arc<Cq>, Arc<Cq>, Option<Dues>)> {
        Ok(match watch {
            // What a SEND's completion is for waits for the answer, which comes later. On iWARP their
            // order matters: see the commands.
            Watch::Cpu(cpu) if shape.regions == Regions::Chained && !device.caps().iwarp => {
                let seat = Poller::sit(target.policy, device, cpu)?;
                let cq = seat.cq(receives, receives * 4)?;
                let (send_cq, dues) = seat.quiet_cq(sent, sent * 4)?;
                (Looks::Poller(seat), send_cq, cq, Some(dues))
            }
            Watch::Cpu(cpu) => {
                let seat = Poller::sit(target.policy, device, cpu)?;
                let cq = seat.cq(sent + receives, (sent + receives) * 4)?;
                (Looks::Poller(seat), cq.clone(), cq, None)
            }
            Watch::Polled => {
                let polled = PolledCq::new(device, sent + receives)?;
                let cq = polled.cq().clone();
                (Looks::Polled(polled), cq.clone(), cq, None)
            }
        })
    }

    /// Waits for the route, and asks the controller for a connection.
    fn routed(
        &mut self,
        target: &Target<'_>,
        qid: u16,
        shape: &Shape,
    ) -> core::result::Result<(), Reason> {
        self.progress
            .wait("resolving the route", RESOLVE_MS + 1000)?;
        let device = self.id.device();
        let device = device.map_err(|e| Reason::Failed("the device goes", e))?;
        let request = ConnectRequest {
            qid,
            queue_size: shape.queue_size,
            cntlid: if qid == 0 { 0 } else { target.ctrl.cntlid() },
        };
        let param = ConnParam {
            private_data: &request.to_bytes(),
            // The controller reads and writes what it is told to; we never read.
            responder_resources: device.caps().max_qp_rd_atom.min(255) as u8,
            initiator_depth: 0,
        };
        let asked = self.id.connect(&param);
        asked.map_err(|e| Reason::Failed("connecting failed", e))
    }

    /// Waits for the controller's reply.
    fn up(self, debug: &Dir, shape: &Shape) -> core::result::Result<Link, Reason> {
        let stage = self.progress.wait("connecting", CONNECT_MS)?;
        let (Stage::Up(room), Some((looks, lane))) = (stage, self.made) else {
            return Err(Reason::Failed("connecting failed", EPROTO));
        };
        // One for the event request, which may stay for long, and one for all else.
        if shape.admin && room < 2 {
            return Err(Reason::Reply(BadReply::NoRoom));
        }
        lane.with(|commands, queue, _| {
            commands.limit(room);
            commands.open_pool(queue);
        });
        let view = View {
            depth: shape.depth,
            lane: lane.stats.clone(),
            poller: match &looks {
                Looks::Poller(seat) => Some((seat.poller().cpu(), seat.poller().stats().clone())),
                Looks::Polled(_) => None,
            },
        };
        let shown = view.show(debug, self.progress.qid);
        let shown = shown.map_err(|e| Reason::Failed("memory", e))?;
        self.progress.up.xchg(true, Full);
        Ok(Link {
            _shown: shown,
            looks: Some(looks),
            lane,
            id: self.id,
            progress: self.progress,
        })
    }
}
