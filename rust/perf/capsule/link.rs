// SPDX-License-Identifier: GPL-2.0

//! A queue of a controller, and how it is connected.
//!
//! ```text
//! resolve the address -> make the QP -> resolve the route -> connect -> the controller's reply
//! ```

use super::{
    capsules::{Broken, Capsules},
    Signals, REASON,
};
use crate::{
    engine::{
        lane::{Lane, Percpu},
        policy::Policy,
        poller::{Poller, Seat, Takes},
    },
    kapi::time::MS,
    nvme::wire::{self, BadReply, Completion, ConnectRequest, Refusal, COMMAND},
    perf::{
        cause::{look_at, EndedWith, Stage as At},
        failure::{check_device, Because, Failure, Outcome},
    },
    verbs::{
        cm, qp::QpHealth, CmId, ConnParam, NetNs, Pd, Qp, QpConfig, QpType, RegisteredMr,
        Registration, RejectReason, SocketAddr,
    },
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{Arc, SpinLock},
};

/// Which queue to whom.
pub(super) struct Target<'t> {
    pub(super) net: &'t NetNs,
    pub(super) address: &'t SocketAddr,
    /// Name of the device that it must be; empty for any.
    pub(super) device: &'t [u8],
    pub(super) policy: &'t Arc<Policy>,
    /// How long each step may take, ms.
    pub(super) timeout_ms: u32,
    /// Work requests of one doorbell.
    pub(super) batch: u32,
    pub(super) signals: &'t Arc<Signals>,
    /// Of the controller; `None` for its first queue.
    pub(super) pd: Option<Arc<Pd>>,
    pub(super) qid: u16,
    pub(super) cntlid: u16,
    /// Commands under way.
    pub(super) depth: u32,
    /// Capsules of READs.
    pub(super) places: u32,
    /// Where its memory is.
    pub(super) node: i32,
    /// One of so many SENDs asks for a completion.
    pub(super) every: u32,
    /// Whose poller completes.
    pub(super) cpu: u32,
}

/// What the CM has said that was not looked at yet.
enum Stage {
    Waiting,
    Resolved,
    Routed,
    /// With the number of commands that the controller takes at a time.
    Up(core::result::Result<u16, BadReply>),
    /// In words.
    Down(Failure),
}

/// What the CM says of a connection.
#[pin_data]
struct News {
    signals: Arc<Signals>,
    #[pin]
    stage: SpinLock<Stage>,
}

impl News {
    /// What it has said since the last time: the first failure stays for whoever looks.
    fn take(&self) -> Stage {
        core::mem::replace(&mut *self.stage.lock(), Stage::Waiting)
    }

    fn say(&self, new: Stage) {
        let mut stage = self.stage.lock();
        let old = match &*stage {
            // What follows from it says less.
            Stage::Down(_) => Some(new),
            _ => Some(core::mem::replace(&mut *stage, new)),
        };
        drop(stage);
        drop(old);
        self.signals.nudge();
    }
}

/// Listens to the CM.
struct Ear(Arc<News>);

impl cm::Handler for Ear {
    fn event(&self, event: cm::Event<'_>) {
        let down = |code, text| Stage::Down(Failure::new(code, text));
        let number = |e: Error| e.to_errno();
        self.0.say(match event {
            cm::Event::AddrResolved => Stage::Resolved,
            cm::Event::RouteResolved => Stage::Routed,
            cm::Event::Established(data) => Stage::Up(wire::parse_reply(data)),
            cm::Event::AddrError(e) => down(
                e,
                fmt!(
                    "the address cannot be resolved to an RDMA device: {}",
                    EndedWith(At::Address, number(e))
                ),
            ),
            cm::Event::RouteError(e) => down(
                e,
                fmt!(
                    "the address is resolved, but not the path: {}",
                    EndedWith(At::Route, number(e))
                ),
            ),
            cm::Event::ConnectError(e) => down(e, fmt!("connecting: error {}", number(e))),
            cm::Event::Unreachable(e) => down(
                EHOSTUNREACH,
                fmt!(
                    "the target does not answer the connect request: {}",
                    EndedWith(At::Request, number(e))
                ),
            ),
            cm::Event::Rejected(reason, data) => match (Refusal::parse(data), reason) {
                (_, RejectReason::Other(errno)) => down(
                    ECONNREFUSED,
                    fmt!(
                        "refused: {reason}; {}",
                        look_at(At::Refusal, i32::try_from(errno).unwrap_or(0))
                    ),
                ),
                (Some(refusal), _) => down(
                    ECONNREFUSED,
                    fmt!("the controller refused the connection: {refusal}"),
                ),
                (None, reason) => down(ECONNREFUSED, fmt!("refused: {reason}")),
            },
            cm::Event::Disconnected => {
                down(ECONNRESET, fmt!("the controller ended the connection"))
            }
            cm::Event::DeviceRemoval => down(ENODEV, fmt!("the device is being removed")),
            cm::Event::AddrChange => down(
                EADDRNOTAVAIL,
                fmt!("the address moved to another interface"),
            ),
            cm::Event::TimewaitExit => return,
        });
    }
}

/// A queue of a controller. Fields are dropped in order.
pub(super) struct Queue {
    /// First, so that no more completions come.
    seat: Seat,
    pub(super) lane: Arc<Lane<Capsules>>,
    health: QpHealth,
    pd: Arc<Pd>,
    id: CmId,
    news: Arc<News>,
    signals: Arc<Signals>,
    qid: u16,
}

impl Queue {
    /// Connects one. Sleeps.
    ///
    /// # Errors
    ///
    /// In words, what it was; `ECANCELED` if the run is to end.
    pub(super) fn connect(target: &Target<'_>) -> Outcome<Self> {
        let (qid, ms, address) = (target.qid, target.timeout_ms, target.address);
        let named = |failure: Failure| match failure.code == ECANCELED {
            true => failure,
            false => Failure::new(failure.code, fmt!("queue {qid}: {failure}")),
        };
        let news = Arc::pin_init(
            pin_init!(News {
                signals: target.signals.clone(),
                stage <- new_spinlock!(Stage::Waiting),
            }),
            GFP_KERNEL,
        )?;
        let mut id = CmId::new(target.net, Ear(news.clone())).because("connection id")?;
        id.resolve_addr(None, address, ms).map_err(|e| {
            Failure::new(
                e,
                fmt!(
                    "{address} cannot be reached: {}",
                    EndedWith(At::Address, e.to_errno())
                ),
            )
        })?;
        target.step(&news, "resolving the address").map_err(named)?;
        let mut queue = Self::make(target, id, news)?;
        let begun = queue.id.resolve_route(ms);
        begun.because("resolving the route").map_err(named)?;
        target
            .step(&queue.news, "resolving the route")
            .map_err(named)?;
        let request = ConnectRequest {
            qid,
            // One more than can be under way.
            queue_size: target.depth as u16 + 1,
            cntlid: target.cntlid,
        };
        let param = ConnParam {
            private_data: &request.to_bytes(),
            // The controller reads what goes with a Connect; we never read.
            responder_resources: queue.pd.device().caps().max_qp_rd_atom.min(255) as u8,
            initiator_depth: 0,
        };
        queue
            .id
            .connect(&param)
            .because("connecting")
            .map_err(named)?;
        let stage = target.step(&queue.news, "the connect request");
        match stage.map_err(named)? {
            // The admin queue has one command at a time.
            Stage::Up(Ok(room)) if qid == 0 || u32::from(room) >= target.depth => Ok(queue),
            Stage::Up(Ok(room)) => Err(Failure::new(
                E2BIG,
                fmt!("queue {qid}: the controller takes {room} commands at a time, too few for depth"),
            )),
            Stage::Up(Err(bad)) => Err(Failure::new(
                EPROTO,
                fmt!("queue {qid}: the controller's reply is {bad}"),
            )),
            _ => Err(Failure::new(
                EPROTO,
                fmt!("queue {qid}: connecting: what the CM says is out of turn"),
            )),
        }
    }

    /// Makes what it needs on the device that the address is of.
    fn make(target: &Target<'_>, id: CmId, news: Arc<News>) -> Outcome<Self> {
        let device = id.device().because("the device")?;
        let name = device.name();
        let name = name.as_str();
        if !target.device.is_empty() && target.device != name.as_bytes() {
            let address = target.address;
            return Err(Failure::new(
                ENODEV,
                fmt!("{address} is reached by device {name}, not by the one that is set"),
            ));
        }
        let pd = match &target.pd {
            Some(pd) => pd.clone(),
            None => Pd::new(&device).because("protection domain")?,
        };
        let caps = device.caps();
        if !caps.mem_mgt {
            return Err(Failure::new(
                EOPNOTSUPP,
                fmt!("device {name} has no fast registration"),
            ));
        }
        // One for what is no READ.
        let (sends, receives) = (target.places.max(2) + 2, target.depth + 1);
        let most = caps.max_qp_wr.min(caps.max_cqe).saturating_sub(2);
        if sends.max(receives) > most {
            return Err(Failure::new(
                E2BIG,
                fmt!("depth: a queue needs {sends} work requests, {name} queues {most}"),
            ));
        }
        let seat = Poller::sit(target.policy, &device, target.cpu).because("poller")?;
        // With the marker of the QP's end.
        let sent = sends + 1;
        let what = "completion queue";
        // As the NVMe host has it: on iWARP their order matters.
        let (send_cq, cq, dues) = match caps.iwarp {
            false => {
                let cq = seat.cq(receives, receives * 4).because(what)?;
                let (send_cq, dues) = seat.quiet_cq(sent, sent * 4).because(what)?;
                (send_cq, cq, Some(dues))
            }
            true => {
                let all = sent + receives;
                let cq = seat.cq(all, all * 4).because(what)?;
                (cq.clone(), cq, None)
            }
        };
        let config = QpConfig {
            qp_type: QpType::Rc,
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            batch: target.batch,
        };
        let qp = Qp::new_cm(&id, &pd, &send_cq, &cq, None, config).because("queue pair")?;
        let (key, health) = (qp.key(), qp.health());
        let Target {
            places,
            every,
            node,
            ..
        } = *target;
        let capsules = Capsules::new(&pd, places, receives, every, node, dues)?;
        let lane = Lane::new(qp, capsules, target.signals.clone(), Percpu)?;
        let takes: Arc<dyn Takes> = lane.clone();
        let mut seat = seat;
        seat.take(key, takes).because("completion queue")?;
        lane.with(|capsules, queue, _| capsules.prime(queue))?;
        Ok(Self {
            seat,
            lane,
            health,
            pd,
            id,
            news,
            signals: target.signals.clone(),
            qid: target.qid,
        })
    }

    /// Its number; 0 is the admin queue.
    pub(super) fn qid(&self) -> u16 {
        self.qid
    }

    /// The PD of its controller.
    pub(super) fn pd(&self) -> Arc<Pd> {
        self.pd.clone()
    }

    /// The poller that its completions come by.
    pub(super) fn poller(&self) -> &Arc<Poller> {
        self.seat.poller()
    }

    /// Fails if it is of no more use, and says why. Where all that is known is that work requests
    /// were flushed, the CM may tell more, which is waited for a moment. Sleeps.
    pub(super) fn check(&self) -> Outcome {
        let qid = self.qid;
        check_device(self.pd.device())?;
        let named = |failure: &Failure| Failure::new(failure.code, fmt!("queue {qid}: {failure}"));
        let broken = self.lane.with(|capsules, queue, _| capsules.broken(queue));
        let broken = match broken {
            None if self.health.has_failed() => Some(Broken::Qp),
            broken => broken,
        };
        let of_itself = broken.filter(|broken| !broken.is_flushed());
        if let Some(broken) = of_itself {
            return Err(named(&Failure::new(broken.code(), fmt!("{broken}"))));
        }
        if let Stage::Down(failure) = self.news.take() {
            return Err(named(&failure));
        }
        let Some(broken) = broken else {
            return Ok(());
        };
        let told = self
            .signals
            .wait("", (REASON / MS) as u32, || match self.news.take() {
                Stage::Down(failure) => Some(Ok(failure)),
                _ => None,
            });
        match told {
            Ok(failure) => Err(named(&failure)),
            Err(failure) if failure.code == ECANCELED => Err(failure),
            Err(_) => Err(named(&Failure::new(broken.code(), fmt!("{broken}")))),
        }
    }

    /// Has it do a command that is no READ, and waits for the answer up to `ms`. Sleeps.
    pub(super) fn ask(&self, what: &str, command: [u8; COMMAND], ms: u32) -> Outcome<Completion> {
        self.lane
            .with(|capsules, queue, _| capsules.ask(queue, command))?;
        self.signals.wait(what, ms, || {
            let answer = self.lane.with(|capsules, _, _| capsules.take_answer());
            answer.map(Ok).or_else(|| self.check().err().map(Err))
        })
    }

    /// Has memory registered, and waits for that up to `ms`. Sleeps.
    pub(super) fn register(&self, registration: Registration, ms: u32) -> Outcome<RegisteredMr> {
        self.lane
            .with(|capsules, queue, _| capsules.register(queue, registration));
        self.signals.wait("registering memory", ms, || {
            let region = self.lane.with(|capsules, _, _| capsules.take_registered());
            region.map(Ok).or_else(|| self.check().err().map(Err))
        })
    }

    /// Tells the controller that it ends. Sleeps.
    pub(super) fn disconnect(&mut self) {
        // One that does not know of us any more needs not be told.
        let _ = self.id.disconnect();
    }
}

impl Target<'_> {
    /// Waits for the CM.
    fn step(&self, news: &News, what: &str) -> Outcome<Stage> {
        self.signals
            .wait(what, self.timeout_ms, || match news.take() {
                Stage::Waiting => None,
                Stage::Down(failure) => Some(Err(failure)),
                stage => Some(Ok(stage)),
            })
    }
}
