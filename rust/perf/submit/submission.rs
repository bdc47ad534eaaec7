// SPDX-License-Identifier: GPL-2.0

//! What perf keeps for a lane, and what its submitters do with it.

use super::work::{End, Work};
use crate::{
    engine::{
        accounting::{Accounting, Next},
        lane::{Fault, Guard, Lane, Queue, Service},
        memory::{Carrier, Remains, Step, Transfer},
        poller::{Poller, Waiter},
        stats::LaneStats,
        wait::{wait, Look, Waits},
    },
    kapi::{event::Event, kthread, sched, time::now_ns, trace},
    perf::{params::Load, session::Mailbox, slots::Remote, stats::Stats},
    verbs::{qp::QpHealth, Buffer, Wc, WcStatus},
};
use kernel::{
    prelude::*,
    processor::cpu_relax,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// One operation.
pub(super) struct Op<W: Work> {
    submitter: u32,
    /// What it is.
    mark: W::Mark,
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
    /// Those that have begun and are not over.
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
    /// Its work requests cannot be made or posted.
    Posting(Error),
    /// The device reported an error of its QP.
    Qp,
    /// Its CQ failed.
    Cq,
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Posting(e) => Self::Posting(e),
            Fault::Cq => Self::Cq,
        }
    }
}

/// What perf keeps for a lane.
pub(super) struct Submission<M, W> {
    load: Load,
    /// Operations at a time of a submitter.
    depth: u32,
    memory: M,
    work: W,
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

impl<M: Carrier<Arc<Buffer>, Op<W>, Flow = W::Flow>, W: Work> Submission<M, W> {
    /// Of a lane that does `work` and has `buffers`; each of its submitters does `depth` operations
    /// at a time, and as many in all as one of `quotas` says. Sleeps.
    pub(super) fn new(
        load: &Load,
        depth: u32,
        work: W,
        memory: M,
        accounting: Accounting,
        buffers: KVec<Option<Arc<Buffer>>>,
        quotas: &[u64],
    ) -> Result<Self> {
        let mut own = KVec::with_capacity(quotas.len(), GFP_KERNEL)?;
        for quota in quotas {
            let quota = Quota {
                begun: 0,
                ended: 0,
                quota: *quota,
                in_flight: 0,
            };
            own.push(quota, GFP_KERNEL)?;
        }
        Ok(Self {
            load: *load,
            depth,
            memory,
            work,
            accounting,
            buffers,
            next_buffer: 0,
            quotas: own,
            stats: Arc::new(Stats::new()?, GFP_KERNEL)?,
            broken: None,
        })
    }

    /// What its operations count.
    pub(super) fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

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
        let now = now_ns();
        loop {
            let Some(quota) = self.quotas.get_mut(who) else {
                return Filled::Broken;
            };
            if quota.ended >= quota.quota {
                return Filled::Finished;
            }
            if quota.begun >= quota.quota || quota.in_flight >= self.depth {
                return Filled::Waiting;
            }
            let Some(next) = self.work.may_begin() else {
                return Filled::Waiting;
            };
            let next = match quota.begun + 1 == quota.quota {
                true => Next::Nothing,
                false => next,
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
            let begun = match self.work.prepare(quota.begun, &buffer) {
                Err(e) => Err((e, Some(buffer))),
                Ok((mark, verb)) => {
                    let op = Op {
                        submitter: who as u32,
                        mark,
                        begin: now,
                        buffer: at,
                    };
                    let transfer = Transfer {
                        user: op,
                        verb,
                        len: self.load.size as usize,
                        signaled,
                    };
                    trace::submit(queue.qp.key(), now, self.load.size.into());
                    let staged = self
                        .memory
                        .stage(&mut queue.qp, ready, transfer, buffer, stats);
                    staged.map_err(|(e, op, buffer)| {
                        self.work.cancel(op.mark);
                        (e, buffer)
                    })
                }
            };
            let begun = begun.map_err(|(e, buffer)| {
                self.buffers[at as usize] = buffer;
                e
            });
            match begun {
                Ok(()) => {
                    self.work.begun();
                    quota.begun += 1;
                    quota.in_flight += 1;
                    self.accounting.begun(M::LONGEST, signaled);
                }
                Err(e) if e == EAGAIN => return Filled::Waiting,
                Err(e) => {
                    self.broken = Some(Broken::Posting(e));
                    return Filled::Broken;
                }
            }
        }
    }

    /// An operation on `queue` is over.
    fn over(
        &mut self,
        queue: &Queue<Self>,
        op: &Op<W>,
        status: WcStatus,
        buffer: Option<Arc<Buffer>>,
    ) {
        for _ in 0..M::LONGEST {
            self.accounting.done();
        }
        self.accounting.ended();
        let Some(quota) = self.quotas.get_mut(op.submitter as usize) else {
            return;
        };
        if status != WcStatus::Success {
            quota.in_flight -= 1;
            // The first error is the one that says something.
            if self.broken.is_none() {
                self.stats.errors.add(1);
                self.broken = Some(Broken::Status(status));
            }
        } else {
            let size = u64::from(self.load.size);
            self.stats
                .operation(queue.qp.key(), op.begin, queue.now, 1, size);
            let end = self.work.completed(op.submitter, op.mark, buffer.as_ref());
            if end == End::Wrong {
                self.stats.miscompares.add(1);
            }
            if end != End::Check {
                quota.in_flight -= 1;
                quota.ended += 1;
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

/// What of a lane can be reached without its lock.
pub(crate) struct Outside {
    /// Of its submitters.
    bells: KVec<Arc<Bell>>,
    /// [`Submission::broken`] or the queue's failure is set.
    broken: Atomic<bool>,
    health: QpHealth,
    /// Who has to be told when there is something for the server to check.
    checker: Option<Arc<Mailbox>>,
}

impl Outside {
    /// Of a QP with that health; each submitter has one of the bells. `checker` is who asks the
    /// server for checks, if it is to do any.
    pub(super) fn new(
        bells: KVec<Arc<Bell>>,
        health: QpHealth,
        checker: Option<Arc<Mailbox>>,
    ) -> Self {
        Self {
            bells,
            broken: Atomic::new(false),
            health,
            checker,
        }
    }
}

impl<M: Carrier<Arc<Buffer>, Op<W>, Flow = W::Flow>, W: Work> Service for Submission<M, W> {
    type Send = M::Token;
    type Recv = ();
    type Shared = Outside;
    /// A bit for each submitter of the lane that something ended for; all, if it is broken.
    type After = u64;

    const BROKEN: u64 = u64::MAX;

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
                        *after = Self::BROKEN;
                    } else {
                        stats.bytes.add(u64::from(self.load.size));
                    }
                    *after |= 1 << op.submitter;
                    self.over(queue, &op, status, buffer);
                }
                Step::Next(token) => {
                    if let Err(e) = self.memory.next(&mut queue.qp, token) {
                        self.broken.get_or_insert(Broken::Posting(e));
                        *after = Self::BROKEN;
                    }
                }
            }
        }
        let _ = queue.qp.take_recv(wc);
    }

    fn after(outside: &Outside, after: u64) {
        if after == Self::BROKEN {
            outside.broken.store(true, Relaxed);
        }
        for (i, bell) in outside.bells.iter().enumerate() {
            if after & (1 << i) != 0 {
                bell.event.raise();
            }
        }
        if let Some(checker) = outside.checker.as_ref().filter(|_| after != 0) {
            checker.nudge();
        }
    }
}

/// A submitter that waits.
struct Waiting<'a> {
    bell: &'a Bell,
    waiter: Waiter<'a>,
}

impl Waits for Waiting<'_> {
    #[inline]
    fn told(&mut self) -> bool {
        self.bell.event.take()
    }

    #[inline]
    fn look(&mut self) -> Look {
        self.waiter.look()
    }

    #[inline]
    fn give_way(&mut self) {
        sched::resched();
    }

    #[inline]
    fn let_others(&mut self) {
        sched::yield_to_others();
        cpu_relax();
    }

    #[inline]
    fn sleep(&mut self) {
        self.bell.event.wait(1000);
    }
}

/// A lane, whatever its kind, as the session and its submitters see it.
pub(crate) trait AnyLane: Send + Sync + 'static {
    /// Runs submitter `who` of the lane on `cpu` until it has done everything, or nothing more can
    /// be done.
    fn run(&self, who: usize, cpu: u32, bell: &Bell, poller: &Poller);

    /// The peer's memory is known.
    fn begin(&self, remote: Remote);

    /// The peer has taken so many messages since the beginning. `false` if that cannot be.
    fn credit(&self, received: u64) -> bool;

    /// Takes out the number and the slot of an operation that the server has to look at.
    fn take_check(&self) -> Option<(u64, u32)>;

    /// The server has looked at operation `seq`. `false` if it was not asked for.
    fn checked(&self, seq: u64) -> bool;

    /// Operations begun and ended so far.
    fn progress(&self) -> (u64, u64);

    /// No new operations, but for one that makes the last of those before it complete.
    fn finish(&self);

    /// Why it is of no more use, if it is. As long as it is, nobody waits for this.
    fn broken(&self) -> Option<Broken>;

    /// Nothing new, and that what is under way fails from here on is no error.
    fn close(&self);

    /// What is under way ends, behind [`crate::verbs::CmId::disconnect`]. Sleeps.
    fn stop(&self);

    /// What is posted and not completed.
    fn outstanding(&self) -> u32;

    /// Takes apart what could not be while its lock was held. Sleeps.
    fn bury(&self);
}

impl<M, W, G> AnyLane for Lane<Submission<M, W>, G>
where
    M: Carrier<Arc<Buffer>, Op<W>, Flow = W::Flow>,
    W: Work,
    G: Guard,
{
    fn run(&self, who: usize, cpu: u32, bell: &Bell, poller: &Poller) {
        let mut waiting = Waiting {
            bell,
            waiter: Waiter::new(poller),
        };
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
                            lane.broken.get_or_insert(Broken::Posting(e));
                        });
                        return Submission::<M, W>::after(&self.shared, Submission::<M, W>::BROKEN);
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
                Filled::Broken => {
                    return Submission::<M, W>::after(&self.shared, Submission::<M, W>::BROKEN)
                }
                // It was used: there may be room for one more.
                Filled::Waiting if had && fresh.is_none() => waiting.give_way(),
                Filled::Waiting if buried => waiting.give_way(),
                Filled::Waiting => wait(&mut waiting),
            }
        }
    }

    fn begin(&self, remote: Remote) {
        self.with(|lane, _, _| lane.work.set_remote(remote));
    }

    fn credit(&self, received: u64) -> bool {
        let can_be = self.with(|lane, _, _| lane.work.credit(received));
        for bell in self.shared.bells.iter() {
            bell.event.raise();
        }
        can_be
    }

    fn take_check(&self) -> Option<(u64, u32)> {
        self.with(|lane, _, _| lane.work.take_check())
    }

    fn checked(&self, seq: u64) -> bool {
        let submitter = self.with(|lane, _, _| {
            let submitter = lane.work.checked(seq)? as usize;
            let quota = lane.quotas.get_mut(submitter)?;
            quota.in_flight -= 1;
            quota.ended += 1;
            Some(submitter)
        });
        let bell = submitter.and_then(|submitter| self.shared.bells.get(submitter));
        if let Some(bell) = bell {
            bell.event.raise();
        }
        bell.is_some()
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
            return Some(Broken::Qp);
        }
        if !self.shared.broken.load(Relaxed) {
            return None;
        }
        self.with(|lane, queue, _| lane.broken.or(queue.failed.map(Broken::from)))
    }

    fn close(&self) {
        self.with(|lane, _, _| {
            lane.broken.get_or_insert(Broken::Status(WcStatus::Flushed));
        });
    }

    fn stop(&self) {
        // Where that fails, the QP's end flushes what there is.
        let _ = self.shared.health.enter_error();
        self.with(|_, queue, _| {
            let _ = queue.qp.mark_end();
        });
        Submission::<M, W>::after(&self.shared, Submission::<M, W>::BROKEN);
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
