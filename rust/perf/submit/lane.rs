// SPDX-License-Identifier: GPL-2.0

//! A data connection that is a lane: the parts that it is made of, and its submitters' threads.

use super::{
    roster::Roster,
    submission::{AnyLane, Bell, Op, Outside, Submission},
    work::{Reads, Sends, Work},
    Left,
};
use crate::{
    engine::{
        accounting::{self, Accounting},
        knobs::{self, Knobs},
        lane::{Guard, Lane, Percpu},
        memory::{Carrier, Memory, Need},
        naive::{FastWaited, Global, GlobalLock, Register},
        policy::Policy,
        poller::{Poller, Seat, Takes},
        stats::{LaneStats, PollerStats},
    },
    kapi::{cpu, kthread},
    perf::{
        failure::{Because, Failure, Outcome},
        params::{self, Load},
        session::Mailbox,
        slots::Remote,
        stats::Stats,
    },
    verbs::{Buffer, CmId, Pd, Qp, QpConfig, QpType},
};
use kernel::{
    debugfs::{Dir, File},
    prelude::*,
    str::CString,
    sync::Arc,
};

/// A data connection that is a lane. Fields are dropped in order.
pub(crate) struct LaneConn {
    /// First, so that the poller lets the lane go.
    seat: Seat,
    /// The lane.
    pub(crate) lane: Arc<dyn AnyLane>,
    /// The CM's connection.
    pub(crate) id: CmId,
    /// The peer's memory, as far as it told, until the load begins.
    pub(crate) remote: Remote,
    /// Operations that its submitters have to do, all together.
    pub(crate) share: u64,
    submitters: KVec<Submitter>,
    /// What its operations count.
    pub(crate) stats: Arc<Stats>,
    /// What the engine counts of it.
    pub(crate) counts: Arc<LaneStats>,
    /// The same, in debugfs.
    #[allow(dead_code)]
    shown: Option<Pin<KBox<File<View>>>>,
}

/// A thread that submits to the lane.
struct Submitter {
    number: u32,
    cpu: u32,
    /// How it is told.
    bell: Arc<Bell>,
}

/// What debugfs shows of a lane.
struct View {
    cpu: u32,
    connection: u32,
    /// Of its payloads, and where those pass through: how much is really on which memory node.
    nodes: KVec<(i32, u64)>,
    lane: Arc<LaneStats>,
    poller: Arc<PollerStats>,
}

/// Adds `bytes` on `node` to what is there. Sleeps.
fn count_node(nodes: &mut KVec<(i32, u64)>, node: i32, bytes: usize) -> Result {
    match nodes.iter_mut().find(|(other, _)| *other == node) {
        Some((_, sum)) => *sum += bytes as u64,
        None => nodes.push((node, bytes as u64), GFP_KERNEL)?,
    }
    Ok(())
}

impl View {
    /// Puts a directory for lane `index` into `dir`. Sleeps.
    fn show(self, dir: &Dir, index: u32) -> Result<Pin<KBox<File<Self>>>> {
        let name = CString::try_from_fmt(fmt!("lane{index}"))?;
        let dir = dir.subdir(&name);
        let file = dir.read_callback_file(c"stats", Ok(self), &|view: &View, f| {
            writeln!(f, "cpu {}", view.cpu)?;
            writeln!(f, "connection {}", view.connection)?;
            for (node, bytes) in &view.nodes {
                writeln!(f, "node{node}_bytes {bytes}")?;
            }
            view.lane.read().write(f)?;
            view.poller.read().write(f)
        });
        KBox::pin_init::<Error>(file, GFP_KERNEL)
    }
}

/// What [`LaneConn::new`] needs.
pub(super) struct Making<'a> {
    pub(crate) index: u32,
    pub(crate) load: &'a Load,
    pub(crate) knobs: &'a Knobs,
    pub(crate) policy: &'a Arc<Policy>,
    pub(crate) roster: &'a Roster,
    pub(crate) global: &'a Arc<GlobalLock>,
    pub(crate) mailbox: &'a Arc<Mailbox>,
    pub(crate) pd: &'a Arc<Pd>,
    pub(crate) debug: Option<&'a Dir>,
    /// Operations of each submitter.
    pub(crate) quota: &'a dyn Fn(u32) -> u64,
}

impl LaneConn {
    /// Makes a lane on a CM id, which connects it. Sleeps.
    pub(super) fn new(making: &Making<'_>, id: CmId) -> Outcome<Self> {
        match making.knobs.lock {
            knobs::Lock::Percpu => Self::guarded(making, id, Percpu),
            knobs::Lock::Global => Self::guarded(making, id, Global(making.global.clone())),
        }
    }

    fn guarded<G: Guard>(making: &Making<'_>, id: CmId, guard: G) -> Outcome<Self> {
        match making.load.op {
            params::Op::Read => Self::working::<Reads, G>(making, id, guard),
            _ => Self::working::<Sends, G>(making, id, guard),
        }
    }

    fn working<W: Work, G: Guard>(making: &Making<'_>, id: CmId, guard: G) -> Outcome<Self> {
        type Pages = Arc<Buffer>;
        match making.knobs.memory {
            knobs::Memory::Register => {
                Self::of::<Register<Pages, W::Flow>, W, G>(making, id, guard, Register::new)
            }
            knobs::Memory::FastWaited => {
                Self::of::<FastWaited<Pages, W::Flow>, W, G>(making, id, guard, FastWaited::new)
            }
            _ => Self::of::<Memory<Pages, W::Flow>, W, G>(making, id, guard, Memory::new),
        }
    }

    fn of<M, W, G>(
        making: &Making<'_>,
        id: CmId,
        guard: G,
        memory: fn(&Arc<Pd>, &Knobs, &Need) -> Result<M>,
    ) -> Outcome<Self>
    where
        M: Carrier<Arc<Buffer>, Op<W>, Flow = W::Flow>,
        W: Work,
        G: Guard,
    {
        let Making {
            index,
            load,
            knobs,
            policy,
            roster,
            pd,
            debug,
            ..
        } = *making;
        let cpu = roster.cpu_of_lane(index);
        let depth = roster.lane_depth(index).max(1);
        // So that what one of its submitters waits for is not behind all signals.
        let every = accounting::every(roster.depth(), knobs.signal_every);
        let size = accounting::queue_for(depth, every, M::LONGEST);
        let caps = pd.device().caps();
        // With a marker behind them, and the end of that.
        let most = caps.max_qp_wr.min(caps.max_cqe).saturating_sub(2);
        if size > most {
            let name = pd.device().name();
            let name = name.as_str();
            return Err(Failure::new(
                E2BIG,
                fmt!(
                    "depth: the lane's submitters need {size} work requests, {name} queues {most}"
                ),
            ));
        }
        let node = match knobs.numa {
            knobs::Numa::Node(node) => Some(node as i32),
            knobs::Numa::Auto => Some(pd.device().node().unwrap_or_else(|| cpu::node_of(cpu))),
        };
        // For what others allocate: the device's queues, the CQ's, and what is kept of the lane.
        let _near = node.and_then(kthread::near);
        let seat = Poller::sit(policy, pd.device(), cpu).because("poller")?;
        // Room for the marker of its end as well.
        let cq = seat
            .cq(size + 2, (size + 2) * 4)
            .because("completion queue")?;
        let config = QpConfig {
            qp_type: QpType::Rc,
            max_send_wr: size,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            batch: knobs.batch.max(M::longest(knobs, load.size as usize)),
        };
        let qp = Qp::new_cm(&id, pd, &cq, &cq, None, config).because("data QP")?;
        let key = qp.key();

        let need = Need {
            depth,
            len: load.size as usize,
            lanes: roster.all_lanes(),
            node,
        };
        let mut nodes = KVec::new();
        let mut buffers = KVec::new();
        for _ in 0..roster.buffers(index).max(1) {
            let buffer = Arc::new(Buffer::new(load.size as usize, node)?, GFP_KERNEL)?;
            count_node(&mut nodes, buffer.node(), buffer.len())?;
            buffers.push(Some(buffer), GFP_KERNEL)?;
        }
        let mut quotas = KVec::new();
        let mut bells = KVec::new();
        let mut submitters = KVec::new();
        for submitter in roster.of_lane(index) {
            quotas.push((making.quota)(submitter), GFP_KERNEL)?;
            let bell = Bell::new()?;
            bells.push(bell.clone(), GFP_KERNEL)?;
            let submitter = Submitter {
                number: submitter,
                cpu: roster.cpu_of_submitter(submitter),
                bell,
            };
            submitters.push(submitter, GFP_KERNEL)?;
        }
        let memory = memory(pd, knobs, &need).map_err(|e| lack(e, roster, pd))?;
        memory.each_piece(&mut |node, len| count_node(&mut nodes, node, len))?;
        let accounting = Accounting::new(depth, every, size, M::LONGEST).ok_or(EINVAL)?;
        let work = W::new(index, load, roster.depth(), depth)?;
        let submission = Submission::new(
            load,
            roster.depth(),
            work,
            memory,
            accounting,
            buffers,
            &quotas,
        )?;
        let stats = submission.stats().clone();
        let checker = load.server_checks().then(|| making.mailbox.clone());
        let outside = Outside::new(bells, qp.health(), checker);
        let lane = Lane::new(qp, submission, outside, guard)?;
        let counts = lane.stats.clone();
        let view = View {
            cpu,
            connection: roster.place(index).0,
            nodes,
            lane: counts.clone(),
            poller: seat.poller().stats().clone(),
        };
        let shown = match debug {
            Some(dir) => Some(view.show(dir, index)?),
            None => None,
        };
        let takes: Arc<dyn Takes> = lane.clone();
        let mut seat = seat;
        seat.take(key, takes)?;
        Ok(Self {
            seat,
            lane,
            id,
            remote: Remote::new(load.exposed_slots(false)),
            share: quotas.iter().copied().fold(0, u64::saturating_add),
            submitters,
            stats,
            counts,
            shown,
        })
    }

    /// The poller that its completions come by.
    pub(crate) fn poller(&self) -> &Arc<Poller> {
        self.seat.poller()
    }

    /// Starts its submitters, which count themselves out of `left` when they end. Sleeps.
    pub(super) fn start(
        &mut self,
        threads: &mut KVec<kthread::Thread>,
        left: &Arc<Left>,
    ) -> Outcome {
        let remote = core::mem::replace(&mut self.remote, Remote::new(0));
        self.lane.begin(remote);
        for (who, submitter) in self.submitters.iter().enumerate() {
            let name = CString::try_from_fmt(fmt!("rivet_sub/{}", submitter.number))?;
            let (lane, bell, cpu) = (self.lane.clone(), submitter.bell.clone(), submitter.cpu);
            let (poller, left) = (self.poller().clone(), left.clone());
            threads.reserve(1, GFP_KERNEL)?;
            let thread = kthread::spawn(&name, move || {
                lane.run(who, cpu, &bell, &poller);
                left.left.done(|| left.mailbox.nudge());
            });
            threads.push(thread.because("thread")?, GFP_KERNEL)?;
        }
        Ok(())
    }
}

/// Why there is no memory for a lane, in words.
fn lack(e: Error, roster: &Roster, pd: &Pd) -> Failure {
    if e == ENOSPC {
        // Each lane has the same share, whatever is under way on it.
        let least = u64::from(roster.most()) * 2 * u64::from(roster.all_lanes());
        return Failure::new(
            e,
            fmt!("mr_cache_entries: this load needs {least}, for each lane twice what one has under way"),
        );
    }
    if e == ENFILE {
        let name = pd.device().name();
        let (name, left) = (name.as_str(), pd.device().regions().left());
        let least = u64::from(roster.most()) * 2;
        return Failure::new(
            e,
            fmt!("mr_cache_entries: each lane needs {least} regions, {name} has {left} left for caches"),
        );
    }
    Failure::new(e, fmt!("memory of the lane: error {}", e.to_errno()))
}
