// SPDX-License-Identifier: GPL-2.0

//! Load by submitters: kernel threads, each on a CPU of its own, that share lanes as the tasks of a
//! machine share those of a storage transport.
//!
//! A data connection of such a load is a lane ([`Lane`]), and [`Submission`] what perf keeps for it.
//! Each submitter has one lane, keeps `depth` operations of its own on it, and waits for them by
//! looking for completions itself, or asleep until somebody else has found them ([`Waiter`]).
//! The session's thread makes the connections, looks after the peer, and waits for the end.
//!
//! Each lane has `buffers` buffers, which its operations use in turn; so an operation has another
//! buffer each time, like a page cache, and comes back to the same one after a while, like an
//! application.

use super::{
    failure::{Because, Failure, Outcome},
    params::Load,
    pattern::Pattern,
    session::Mailbox,
    slots::Remote,
    stats::{Part, Stats},
};
use crate::{
    engine::{
        accounting::{self, Accounting, Next},
        knobs::{self, Knobs},
        lane::{Guard, Lane, Percpu, Queue, Service},
        memory::{Memory, Need, Read, Reader, Remains, Step},
        naive::{FastWaited, Global, GlobalLock, Register},
        placement,
        policy::Policy,
        poller::{Look, Poller, Seat, Takes, Waiter},
        stats::{LaneStats, PollerStats},
    },
    kapi::{cpu, event::Event, kthread, memory, sched, time::now_ns},
    verbs::{pages, qp::QpHealth, Buffer, CmId, Pd, Qp, QpConfig, QpType, Wc, WcStatus},
};
use kernel::{
    debugfs::{Dir, File},
    prelude::*,
    processor::cpu_relax,
    str::CString,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// Submitters of a client at most: a lane tells them apart by a bit each.
pub(crate) const SUBMITTERS: crate::value::Bounds = crate::value::Bounds { min: 0, max: 64 };
/// Buffers of a lane; 0 = as many as operations at a time.
pub(crate) const BUFFERS: crate::value::Bounds = crate::value::Bounds { min: 0, max: 4096 };

/// Bytes that are compared at a time.
const STEP: usize = 256;
/// Looks without a find between looks at the own event and the CPU.
const LOOKS: u32 = 256;

/// What is to be submitted.
#[derive(Clone, Copy)]
pub(crate) struct Crew {
    /// Threads.
    pub(crate) submitters: u32,
    /// Buffers of a lane.
    pub(crate) buffers: u32,
}

/// One operation.
pub(crate) struct Op {
    submitter: u32,
    seq: u64,
    /// When it began, ns.
    begin: u64,
    /// Where in the list of buffers its own belongs.
    buffer: u32,
}

/// What a lane knows of one submitter.
struct Quota {
    begun: u64,
    ended: u64,
    /// Operations to do.
    quota: u64,
    in_flight: u32,
}

/// What a submitter can be told without a lock.
#[pin_data]
pub(crate) struct Bell {
    #[pin]
    event: Event,
}

impl Bell {
    /// Silent. Sleeps.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(pin_init!(Self { event <- Event::new() }), GFP_KERNEL)
    }
}

/// Why a lane is of no more use.
#[derive(Clone, Copy)]
pub(crate) enum Broken {
    /// A work request ended so.
    Status(WcStatus),
    /// Something else.
    Error(Error),
}

/// What perf keeps for a lane.
pub(crate) struct Submission<M> {
    connection: u32,
    load: Load,
    memory: M,
    remote: Remote,
    accounting: Accounting,
    buffers: KVec<Option<Arc<Buffer>>>,
    next_buffer: u32,
    quotas: KVec<Quota>,
    stats: Arc<Stats>,
    broken: Option<Broken>,
}

/// How filling a lane ended.
enum Filled {
    /// All that can be is on its way.
    Waiting,
    /// The submitter has done everything.
    Finished,
    /// Nothing more can be done.
    Broken,
}

impl<M: Reader<Arc<Buffer>, Op>> Submission<M> {
    /// Begins operations of submitter `who` until it has `depth` of them, with one doorbell.
    fn fill(
        &mut self,
        who: usize,
        fresh: &mut Option<M::Fresh>,
        queue: &mut Queue<Self>,
        stats: &LaneStats,
    ) -> Filled {
        if self.broken.is_some() || queue.failed.is_some() {
            return Filled::Broken;
        }
        let depth = self.load.depth;
        let now = now_ns();
        loop {
            let Some(quota) = self.quotas.get_mut(who) else {
                return Filled::Broken;
            };
            if quota.ended >= quota.quota {
                return Filled::Finished;
            }
            if quota.begun >= quota.quota || quota.in_flight >= depth {
                return Filled::Waiting;
            }
            let next = match quota.begun + 1 == quota.quota {
                true => Next::Nothing,
                false => Next::More,
            };
            let Some(signaled) = self.accounting.plan(M::LONGEST, next) else {
                return Filled::Waiting;
            };
            let Some((at, buffer)) = take_buffer(&mut self.buffers, &mut self.next_buffer) else {
                return Filled::Waiting;
            };
            let Some(ready) = fresh.take().or_else(M::at_once) else {
                self.buffers[at as usize] = Some(buffer);
                return Filled::Waiting;
            };
            let seq = quota.begun;
            let op = Op {
                submitter: who as u32,
                seq,
                begin: now,
                buffer: at,
            };
            let from = (seq % u64::from(depth)) as u32;
            let begun = self
                .remote
                .at(from, self.load.offset(from.into()))
                .and_then(|from| {
                    if self.load.verify {
                        poison(&buffer, self.connection, seq, self.load.size as usize)?;
                    }
                    let read = Read {
                        user: op,
                        from,
                        len: self.load.size as usize,
                        signaled,
                    };
                    let pushed = self.memory.read(&mut queue.qp, ready, read, buffer, stats);
                    pushed.map_err(|(e, op, buffer)| {
                        self.buffers[op.buffer as usize] = buffer;
                        e
                    })
                });
            match begun {
                Ok(()) => {
                    quota.begun += 1;
                    quota.in_flight += 1;
                    self.accounting.begun(M::LONGEST, signaled);
                }
                Err(e) if e == EAGAIN => return Filled::Waiting,
                Err(e) => {
                    self.broken = Some(Broken::Error(e));
                    return Filled::Broken;
                }
            }
        }
    }

    /// An operation is over.
    fn over(&mut self, op: &Op, status: WcStatus, buffer: Option<Arc<Buffer>>, now: u64) {
        for _ in 0..M::LONGEST {
            self.accounting.done();
        }
        self.accounting.ended();
        let Some(quota) = self.quotas.get_mut(op.submitter as usize) else {
            return;
        };
        quota.in_flight -= 1;
        if status != WcStatus::Success {
            // The first error is the one that says something.
            if self.broken.is_none() {
                self.stats.errors.add(1);
                self.broken = Some(Broken::Status(status));
            }
        } else {
            quota.ended += 1;
            let size = self.load.size;
            self.stats.operation(op.begin, now, 1, u64::from(size));
            if self.load.verify {
                let from = op.seq % u64::from(self.load.depth);
                let pattern = Pattern::new(self.connection, from, false);
                // Without its buffer, which a broken lane keeps, it cannot be told.
                let wrong = buffer
                    .as_ref()
                    .is_some_and(|buffer| !holds(buffer, size as usize, pattern));
                if wrong {
                    self.stats.miscompares.add(1);
                }
            }
        }
        if let Some(place) = self.buffers.get_mut(op.buffer as usize) {
            *place = buffer;
        }
    }
}

/// The next buffer in the round that is free, and its number.
fn take_buffer(
    buffers: &mut KVec<Option<Arc<Buffer>>>,
    next: &mut u32,
) -> Option<(u32, Arc<Buffer>)> {
    let len = buffers.len() as u32;
    for _ in 0..len {
        let at = *next % len;
        *next = (at + 1) % len;
        if let Some(buffer) = buffers.get_mut(at as usize).and_then(Option::take) {
            return Some((at, buffer));
        }
    }
    None
}

/// Fills a buffer with what will not match.
fn poison(buffer: &Arc<Buffer>, connection: u32, seq: u64, len: usize) -> Result {
    let pattern = Pattern::new(connection, seq, true);
    let mut bytes = [0; STEP];
    let mut at = 0;
    while at < len {
        let n = STEP.min(len - at);
        pattern.fill(at, &mut bytes[..n]);
        pages::write(buffer, at, &bytes[..n])?;
        at += n;
    }
    Ok(())
}

/// Whether a buffer begins with `len` bytes of that payload.
fn holds(buffer: &Arc<Buffer>, len: usize, pattern: Pattern) -> bool {
    let mut bytes = [0; STEP];
    let mut at = 0;
    while at < len {
        let n = STEP.min(len - at);
        let read = pages::read(buffer, at, &mut bytes[..n]);
        if read.is_err() || !pattern.matches(at, &bytes[..n]) {
            return false;
        }
        at += n;
    }
    true
}

/// What of a lane can be reached without its lock.
pub(crate) struct Outside {
    /// Of its submitters.
    bells: KVec<Arc<Bell>>,
    /// [`Submission::broken`] or the queue's failure is set.
    broken: Atomic<bool>,
    health: QpHealth,
}

impl<M: Reader<Arc<Buffer>, Op>> Service for Submission<M> {
    type Send = M::Token;
    type Recv = ();
    type Shared = Outside;
    /// A bit for each submitter of the lane that something ended for; all, if it is broken.
    type After = u64;

    fn completed(
        &mut self,
        queue: &mut Queue<Self>,
        wc: &mut Wc,
        stats: &LaneStats,
        after: &mut u64,
    ) {
        while let Some(done) = queue.qp.take_send(wc) {
            match self.memory.completed(done, stats) {
                Step::Over(op, status, buffer) => {
                    if status != WcStatus::Success {
                        stats.errors.add(1);
                        // Whoever waits has to see it.
                        *after = u64::MAX;
                    } else {
                        stats.bytes.add(u64::from(self.load.size));
                    }
                    *after |= 1 << op.submitter;
                    self.over(&op, status, buffer, queue.now);
                }
                Step::Next(token) => {
                    if let Err(e) = self.memory.next(&mut queue.qp, token) {
                        self.broken.get_or_insert(Broken::Error(e));
                        *after = u64::MAX;
                    }
                }
            }
        }
        let _ = queue.qp.take_recv(wc);
    }

    fn after(outside: &Outside, after: u64) {
        if after == u64::MAX {
            outside.broken.store(true, Relaxed);
        }
        for (i, bell) in outside.bells.iter().enumerate() {
            if after & (1 << i) != 0 {
                bell.event.raise();
            }
        }
    }
}

/// A lane, whatever its kind, as the session and its submitters see it.
pub(crate) trait AnyLane: Send + Sync + 'static {
    /// Runs submitter `who` of the lane on `cpu` until it has done everything, or nothing more can
    /// be done.
    fn run(&self, who: usize, cpu: u32, bell: &Bell, poller: &Poller);

    /// The peer's memory is known.
    fn begin(&self, remote: Remote);

    /// Operations begun and ended so far.
    fn progress(&self) -> (u64, u64);

    /// No new operations, but for one that makes the last of those before it complete.
    fn finish(&self);

    /// Why it is of no more use, if it is. As long as it is, nobody waits for this.
    fn broken(&self) -> Option<Broken>;

    /// Nothing new, and that what is under way fails from here on is no error.
    fn close(&self);

    /// What is under way ends: to be called when the CM has moved the QP to error.
    fn stop(&self);

    /// What is posted and not completed.
    fn outstanding(&self) -> u32;

    /// Takes apart what could not be while its lock was held. Sleeps.
    fn bury(&self);
}

impl<M: Reader<Arc<Buffer>, Op>, G: Guard> AnyLane for Lane<Submission<M>, G> {
    fn run(&self, who: usize, cpu: u32, bell: &Bell, poller: &Poller) {
        let mut waiter = Waiter::new(poller);
        let (pd, len) =
            self.with(|lane, queue, _| (queue.qp.pd().clone(), lane.load.size as usize));
        let mut fresh = None;
        loop {
            kthread::stay_on(cpu);
            if fresh.is_none() && M::at_once().is_none() {
                match M::fresh(&pd, len) {
                    Ok(made) => fresh = Some(made),
                    Err(e) => {
                        self.with(|lane, _, _| {
                            lane.broken.get_or_insert(Broken::Error(e));
                        });
                        return Submission::<M>::after(&self.shared, u64::MAX);
                    }
                }
            }
            let had = fresh.is_some();
            let (filled, remains) = self.with(|lane, queue, stats| {
                let filled = lane.fill(who, &mut fresh, queue, stats);
                (filled, lane.memory.remains())
            });
            let buried = remains.is_some();
            drop(remains);
            match filled {
                Filled::Finished => return,
                Filled::Broken => return Submission::<M>::after(&self.shared, u64::MAX),
                // It was used: there may be room for one more.
                Filled::Waiting if had && fresh.is_none() => continue,
                Filled::Waiting if buried => continue,
                Filled::Waiting => {}
            }
            let mut looks = 0;
            while !bell.event.take() {
                match waiter.look() {
                    Look::Found => {}
                    Look::Again => {
                        sched::yield_to_others();
                        cpu_relax();
                    }
                    Look::Sleep => {
                        bell.event.wait(1000);
                        break;
                    }
                }
                looks += 1;
                if looks >= LOOKS {
                    break;
                }
            }
        }
    }

    fn begin(&self, remote: Remote) {
        self.with(|lane, _, _| lane.remote = remote);
    }

    fn progress(&self) -> (u64, u64) {
        self.with(|lane, _, _| {
            let sum = |f: fn(&Quota) -> u64| lane.quotas.iter().map(f).sum();
            (sum(|quota| quota.begun), sum(|quota| quota.ended))
        })
    }

    fn finish(&self) {
        self.with(|lane, _, _| {
            let owes = lane.accounting.owes();
            for (i, quota) in lane.quotas.iter_mut().enumerate() {
                quota.quota = quota.begun + u64::from(owes && i == 0);
            }
        });
        for bell in self.shared.bells.iter() {
            bell.event.raise();
        }
    }

    fn broken(&self) -> Option<Broken> {
        if self.shared.health.has_failed() {
            return Some(Broken::Error(EIO));
        }
        if !self.shared.broken.load(Relaxed) {
            return None;
        }
        self.with(|lane, queue, _| lane.broken.or(queue.failed.map(Broken::Error)))
    }

    fn close(&self) {
        self.with(|lane, _, _| {
            lane.broken.get_or_insert(Broken::Status(WcStatus::Flushed));
        });
    }

    fn stop(&self) {
        self.with(|_, queue, _| {
            let _ = queue.qp.mark_end();
        });
        Submission::<M>::after(&self.shared, u64::MAX);
    }

    fn outstanding(&self) -> u32 {
        self.with(|_, queue, _| queue.qp.outstanding())
    }

    fn bury(&self) {
        while let Some(remains) = self.with(|lane, _, _| lane.memory.remains()) {
            drop::<Remains<Arc<Buffer>>>(remains);
        }
    }
}

/// How a client's submitters and lanes lie on the CPUs.
pub(crate) struct Roster {
    /// CPUs of the policy that are online.
    cpus: KVec<u32>,
    /// Lanes of the connection.
    pub(crate) lanes: u32,
    crew: Crew,
}

impl Roster {
    /// By the policy, as the CPUs are now. Sleeps.
    pub(crate) fn new(knobs: &Knobs, crew: Crew) -> Outcome<Self> {
        let mut cpus = KVec::new();
        for cpu in 0..cpu::possible() {
            let wanted = knobs.cpus.is_empty() || knobs.cpus.contains(cpu);
            if wanted && cpu::is_online(cpu) {
                cpus.push(cpu, GFP_KERNEL)?;
            }
        }
        if cpus.is_empty() {
            return Err(Failure::new(
                ENODEV,
                fmt!("none of the policy's cpus is online"),
            ));
        }
        Ok(Self {
            lanes: placement::lanes(knobs.lanes, cpus.len() as u32),
            cpus,
            crew,
        })
    }

    fn cpu(&self, number: u32) -> u32 {
        let at = placement::cpu_of(number, self.cpus.len() as u32);
        self.cpus.get(at as usize).copied().unwrap_or(0)
    }

    /// The submitters of a lane.
    fn of_lane(&self, lane: u32) -> impl Iterator<Item = u32> + '_ {
        let cpus = self.cpus.len() as u32;
        (0..self.crew.submitters).filter(move |n| placement::lane_of(*n, self.lanes, cpus) == lane)
    }

    /// Operations at a time on a lane.
    pub(crate) fn lane_depth(&self, load: &Load, lane: u32) -> u32 {
        load.depth * self.of_lane(lane).count() as u32
    }

    /// The most operations at a time that a lane has.
    fn most(&self, load: &Load) -> u32 {
        let depths = (0..self.lanes).map(|lane| self.lane_depth(load, lane));
        depths.max().unwrap_or(0)
    }

    /// Buffers of a lane.
    pub(crate) fn buffers(&self, load: &Load, lane: u32) -> u32 {
        match self.crew.buffers {
            0 => self.lane_depth(load, lane),
            n => n,
        }
    }

    /// Bytes that the lanes take.
    pub(crate) fn memory(&self, load: &Load) -> u64 {
        let size = (load.size as usize).next_power_of_two().max(4096) as u64;
        (0..self.lanes)
            .map(|lane| {
                let each = self.buffers(load, lane) + self.lane_depth(load, lane);
                size.saturating_mul(each.into())
            })
            .fold(0, u64::saturating_add)
    }
}

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
    /// Its submitters: number, CPU, and how they are told.
    submitters: KVec<(u32, Arc<Bell>)>,
    cpu_of: KVec<u32>,
    /// What its operations count.
    pub(crate) stats: Arc<Stats>,
    /// What the engine counts of it.
    pub(crate) counts: Arc<LaneStats>,
    /// The same, in debugfs.
    #[allow(dead_code)]
    shown: Option<Pin<KBox<File<View>>>>,
}

/// What debugfs shows of a lane.
struct View {
    cpu: u32,
    lane: Arc<LaneStats>,
    poller: Arc<PollerStats>,
}

impl View {
    /// Puts a directory for lane `index` into `dir`. Sleeps.
    fn show(self, dir: &Dir, index: u32) -> Result<Pin<KBox<File<Self>>>> {
        let name = CString::try_from_fmt(fmt!("lane{index}"))?;
        let dir = dir.subdir(&name);
        let file = dir.read_callback_file(c"stats", Ok(self), &|view: &View, f| {
            writeln!(f, "cpu {}", view.cpu)?;
            view.lane.read().write(f)?;
            view.poller.read().write(f)
        });
        KBox::pin_init::<Error>(file, GFP_KERNEL)
    }
}

/// What [`LaneConn::new`] needs.
pub(crate) struct Making<'a> {
    pub(crate) index: u32,
    pub(crate) load: &'a Load,
    pub(crate) knobs: &'a Knobs,
    pub(crate) policy: &'a Arc<Policy>,
    pub(crate) roster: &'a Roster,
    pub(crate) global: &'a Arc<GlobalLock>,
    pub(crate) pd: &'a Arc<Pd>,
    pub(crate) debug: Option<&'a Dir>,
    /// Operations of each submitter.
    pub(crate) quota: &'a dyn Fn(u32) -> u64,
}

impl LaneConn {
    /// Makes a lane on a CM id, which connects it. Sleeps.
    pub(crate) fn new(making: &Making<'_>, id: CmId) -> Outcome<Self> {
        match making.knobs.lock {
            knobs::Lock::Percpu => Self::guarded(making, id, Percpu),
            knobs::Lock::Global => Self::guarded(making, id, Global(making.global.clone())),
        }
    }

    fn guarded<G: Guard>(making: &Making<'_>, id: CmId, guard: G) -> Outcome<Self> {
        type Pages = Arc<Buffer>;
        match making.knobs.memory {
            knobs::Memory::Register => Self::of(making, id, guard, Register::<Pages>::new),
            knobs::Memory::FastWaited => Self::of(making, id, guard, FastWaited::<Pages>::new),
            _ => Self::of(making, id, guard, Memory::<Pages>::new),
        }
    }

    fn of<M: Reader<Arc<Buffer>, Op>, G: Guard>(
        making: &Making<'_>,
        id: CmId,
        guard: G,
        memory: fn(&Arc<Pd>, &Knobs, &Need) -> Result<M>,
    ) -> Outcome<Self> {
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
        let cpu = roster.cpu(index);
        let depth = roster.lane_depth(load, index).max(1);
        let every = accounting::every(load.depth, knobs.signal_every);
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
            lanes: roster.lanes,
            node,
        };
        let mut buffers = KVec::new();
        for _ in 0..roster.buffers(load, index).max(1) {
            let buffer = Arc::new(Buffer::new(load.size as usize, node)?, GFP_KERNEL)?;
            buffers.push(Some(buffer), GFP_KERNEL)?;
        }
        let mut quotas = KVec::new();
        let mut bells = KVec::new();
        let mut submitters = KVec::new();
        let mut cpu_of = KVec::new();
        for submitter in roster.of_lane(index) {
            let quota = Quota {
                begun: 0,
                ended: 0,
                quota: (making.quota)(submitter),
                in_flight: 0,
            };
            quotas.push(quota, GFP_KERNEL)?;
            let bell = Bell::new()?;
            bells.push(bell.clone(), GFP_KERNEL)?;
            submitters.push((submitter, bell), GFP_KERNEL)?;
            cpu_of.push(roster.cpu(submitter), GFP_KERNEL)?;
        }
        let stats = Arc::new(Stats::new()?, GFP_KERNEL)?;
        let submission = Submission {
            connection: index,
            load: *load,
            memory: memory(pd, knobs, &need).map_err(|e| lack(e, roster, load))?,
            remote: Remote::new(0),
            accounting: Accounting::new(depth, every, size, M::LONGEST).ok_or(EINVAL)?,
            buffers,
            next_buffer: 0,
            quotas,
            stats: stats.clone(),
            broken: None,
        };
        let outside = Outside {
            bells,
            broken: Atomic::new(false),
            health: qp.health(),
        };
        let lane = Lane::new(qp, submission, outside, guard)?;
        let counts = lane.stats.clone();
        let view = View {
            cpu,
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
            submitters,
            cpu_of,
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
    fn start(&mut self, threads: &mut KVec<kthread::Thread>, left: &Arc<Left>) -> Outcome {
        let remote = core::mem::replace(&mut self.remote, Remote::new(0));
        self.lane.begin(remote);
        for (who, ((submitter, bell), cpu)) in self.submitters.iter().zip(&self.cpu_of).enumerate()
        {
            let name = CString::try_from_fmt(fmt!("rivet_sub/{submitter}"))?;
            let (lane, bell, cpu) = (self.lane.clone(), bell.clone(), *cpu);
            let (poller, left) = (self.poller().clone(), left.clone());
            threads.reserve(1, GFP_KERNEL)?;
            let thread = kthread::spawn(&name, move || {
                lane.run(who, cpu, &bell, &poller);
                left.left.fetch_sub(1, Relaxed);
                left.mailbox.nudge();
            });
            threads.push(thread.because("thread")?, GFP_KERNEL)?;
        }
        Ok(())
    }
}

/// Why there is no memory for a lane, in words.
fn lack(e: Error, roster: &Roster, load: &Load) -> Failure {
    if e == ENOSPC {
        // Each lane has the same share, whatever is under way on it.
        let least = u64::from(roster.most(load)) * 2 * u64::from(roster.lanes);
        return Failure::new(
            e,
            fmt!("mr_cache_entries: this load needs {least}, for each lane twice what one has under way"),
        );
    }
    Failure::new(e, fmt!("memory of the lane: error {}", e.to_errno()))
}

/// How a client's submitters are doing.
struct Left {
    /// Submitters that are not done.
    left: Atomic<u32>,
    mailbox: Arc<Mailbox>,
}

/// The lanes and submitters of a client.
pub(crate) struct Workforce {
    /// Joined when they are dropped, which must be before the lanes go.
    threads: KVec<kthread::Thread>,
    lanes: KVec<LaneConn>,
    roster: Roster,
    global: Arc<GlobalLock>,
    left: Arc<Left>,
    debug: Option<Dir>,
}

impl Workforce {
    /// By the policy, as the CPUs are now; without lanes yet. Sleeps.
    pub(crate) fn new(
        knobs: &Knobs,
        crew: Crew,
        load: &Load,
        mailbox: &Arc<Mailbox>,
        debug: Option<Dir>,
    ) -> Outcome<Self> {
        let roster = Roster::new(knobs, crew)?;
        let most = roster.most(load);
        if crew.buffers != 0 && crew.buffers < most {
            return Err(Failure::new(
                EINVAL,
                fmt!("buffers: a lane has up to {most} operations under way; allowed: 0, or that many"),
            ));
        }
        let (need, most) = (roster.memory(load) >> 20, memory::total_bytes() >> 21);
        if need > most {
            return Err(Failure::new(
                ENOMEM,
                fmt!("buffers: the lanes need {need} MiB; a client may have {most}"),
            ));
        }
        let left = Left {
            left: Atomic::new(crew.submitters),
            mailbox: mailbox.clone(),
        };
        Ok(Self {
            threads: KVec::new(),
            lanes: KVec::new(),
            roster,
            global: GlobalLock::new()?,
            left: Arc::new(left, GFP_KERNEL)?,
            debug,
        })
    }

    /// Lanes that there will be: data connections.
    pub(crate) fn wanted(&self) -> u32 {
        self.roster.lanes
    }

    /// Lanes so far.
    pub(crate) fn lanes(&mut self) -> &mut [LaneConn] {
        &mut self.lanes
    }

    /// READs that a lane may have outstanding.
    pub(crate) fn depth(&self, load: &Load, lane: u32) -> u32 {
        self.roster.lane_depth(load, lane)
    }

    /// Makes the next lane on a CM id. `quota` tells a submitter's operations. Sleeps.
    pub(crate) fn add(
        &mut self,
        id: CmId,
        load: &Load,
        knobs: &Knobs,
        policy: &Arc<Policy>,
        pd: &Arc<Pd>,
        quota: &dyn Fn(u32) -> u64,
    ) -> Outcome<&mut LaneConn> {
        let making = Making {
            index: self.lanes.len() as u32,
            load,
            knobs,
            policy,
            roster: &self.roster,
            global: &self.global,
            pd,
            debug: self.debug.as_ref(),
            quota,
        };
        let lane = LaneConn::new(&making, id)?;
        self.lanes.push(lane, GFP_KERNEL)?;
        self.lanes.last_mut().ok_or_else(|| EINVAL.into())
    }

    /// Starts the submitters. Sleeps.
    pub(crate) fn start(&mut self) -> Outcome {
        for lane in self.lanes.iter_mut() {
            lane.start(&mut self.threads, &self.left)?;
        }
        Ok(())
    }

    /// Whether all submitters have ended.
    pub(crate) fn is_done(&self) -> bool {
        self.left.left.load(Relaxed) == 0
    }

    /// Ends a load by time: what is under way is waited for.
    pub(crate) fn finish(&self) {
        for lane in self.lanes.iter() {
            lane.lane.finish();
        }
    }

    /// Why a lane is of no more use, and which: of several, one whose status is a reason.
    pub(crate) fn broken(&self) -> Option<(usize, Broken)> {
        let mut flushed = None;
        for (index, lane) in self.lanes.iter().enumerate() {
            match lane.lane.broken() {
                None => {}
                Some(Broken::Status(WcStatus::Flushed)) => {
                    flushed.get_or_insert((index, Broken::Status(WcStatus::Flushed)));
                }
                Some(reason) => return Some((index, reason)),
            }
        }
        flushed
    }

    /// The orderly end: nothing new, all completions seen. Returns what is left outstanding after
    /// `deadline` (ns). Sleeps.
    pub(crate) fn end(&mut self, deadline: u64) -> u32 {
        for lane in self.lanes.iter_mut() {
            lane.lane.close();
            // Moves the QP to error. One that was never connected has nothing under way.
            let _ = lane.id.disconnect();
            lane.lane.stop();
        }
        self.threads.clear();
        let outstanding = |lanes: &[LaneConn]| lanes.iter().map(|l| l.lane.outstanding()).sum();
        let mut left: u32 = outstanding(&self.lanes);
        while left > 0 && now_ns() < deadline {
            self.left.mailbox.doze();
            left = outstanding(&self.lanes);
        }
        for lane in self.lanes.iter() {
            lane.lane.bury();
        }
        self.lanes.clear();
        left
    }

    /// What the lanes count, for who shows it.
    pub(crate) fn parts(&self) -> Result<KVec<Part>> {
        let mut parts: KVec<Part> = KVec::new();
        for lane in self.lanes.iter() {
            let poller = lane.poller().stats();
            // Lanes of one poller share its counters.
            let known = parts.iter().any(|part| {
                let known = part.poller.as_ref();
                known.is_some_and(|(known, _)| Arc::ptr_eq(known, poller))
            });
            let part = Part {
                stats: lane.stats.clone(),
                lane: lane.counts.clone(),
                poller: (!known).then(|| (poller.clone(), poller.read())),
            };
            parts.push(part, GFP_KERNEL)?;
        }
        Ok(parts)
    }
}
