// SPDX-License-Identifier: GPL-2.0

//! A lane: one CPU's share of a connection.
//!
//! It has a QP, what a service keeps for it ([`Service`]), and counters. Threads of its CPU submit
//! to it and its poller completes on it, so its lock is never wanted by two CPUs in normal use; it
//! is held with interrupts off, as completions come in softirq.
//!
//! The service decides what is posted and what a completion means; the lane sees to it that one
//! thing happens at a time, that what the service staged is posted with one doorbell when the lock
//! is given back, and that nobody is woken while it is held ([`Service::after`]).
//!
//! `lock=global`, which exists to be compared with, is another type ([`super::naive::Global`]) in
//! the place of [`Percpu`]: the code of one knows nothing of the other.

use super::{
    poller::Takes,
    stats::{LaneStats, Shared},
};
use crate::{
    kapi::trace,
    verbs::{qp::QpCounts, Qp, Wc},
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{Arc, SpinLockIrq},
};

/// What uses a lane.
pub(crate) trait Service: Sized + Send + Unpin + 'static {
    /// Token of work requests on the send queue.
    type Send: Send + 'static;
    /// Token of receives.
    type Recv: Send + 'static;
    /// What can be reached without the lane's lock.
    type Shared: Send + Sync + 'static;
    /// What has to be done once the lock is given back.
    type After: Default;

    /// Has whoever uses the lane see that it is of no more use.
    const BROKEN: Self::After;

    /// A completion of the lane's QP. The lock is held.
    fn completed(
        &mut self,
        queue: &mut Queue<Self>,
        wc: &mut Wc,
        stats: &LaneStats,
        after: &mut Self::After,
    );

    /// The lock was given back. Softirq or a thread; must not sleep.
    fn after(shared: &Self::Shared, after: Self::After);
}

/// Why a lane's QP is of no more use.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// Posting failed so.
    Posting(Error),
    /// Its CQ failed.
    Cq,
}

/// The QP of a lane, and what counts its use.
pub(crate) struct Queue<S: Service> {
    /// The QP.
    pub(crate) qp: Qp<S::Send, S::Recv>,
    /// When the completions that are being handled were seen, ns.
    pub(crate) now: u64,
    /// The QP is of no more use.
    pub(crate) failed: Option<Fault>,
}

impl<S: Service> Queue<S> {
    /// Posts what is staged.
    fn flush(&mut self) {
        let posted = self.qp.flush().and_then(|()| self.qp.flush_recv());
        if let Err(e) = posted {
            self.failed.get_or_insert(Fault::Posting(e));
        }
    }
}

impl LaneStats {
    /// Takes over what the lane's QPs have posted. By the writer only.
    pub(crate) fn posted(&self, counts: &QpCounts) {
        self.posts.set(counts.posts);
        self.doorbells.set(counts.doorbells);
        self.recv_doorbells.set(counts.recv_doorbells);
        self.signalled.set(counts.signaled);
    }
}

/// What guards a lane beside its own lock.
pub(crate) trait Guard: Send + Sync + 'static {
    /// Held as long as the lane's lock.
    type Held<'a>;

    /// Takes it; counts in `waits` if somebody else has it.
    fn hold(&self, waits: &Shared) -> Self::Held<'_>;
}

/// Nothing: the lane's own lock is enough.
pub(crate) struct Percpu;

impl Guard for Percpu {
    type Held<'a> = ();

    fn hold(&self, _waits: &Shared) {}
}

struct Inner<S: Service> {
    // Before the service, so that the QP is gone when that ends the memory which it keeps.
    queue: Queue<S>,
    service: S,
}

/// One CPU's share of a connection.
#[pin_data]
pub(crate) struct Lane<S: Service, G: Guard = Percpu> {
    /// Counters.
    pub(crate) stats: Arc<LaneStats>,
    /// What can be reached without the lock.
    pub(crate) shared: S::Shared,
    guard: G,
    #[pin]
    inner: SpinLockIrq<Inner<S>>,
}

impl<S: Service, G: Guard> Lane<S, G> {
    /// A lane with that QP. Sleeps.
    pub(crate) fn new(
        qp: Qp<S::Send, S::Recv>,
        service: S,
        shared: S::Shared,
        guard: G,
    ) -> Result<Arc<Self>> {
        let inner = Inner {
            queue: Queue {
                qp,
                now: 0,
                failed: None,
            },
            service,
        };
        let stats = Arc::new(LaneStats::new(), GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                stats,
                shared,
                guard,
                inner <- new_spinlock_irq!(inner),
            }),
            GFP_KERNEL,
        )
    }

    /// Does something with the service and the QP, and posts what was staged. Any context but that
    /// of a hard interrupt; `f` must not sleep. Where posting fails for the first time, the service
    /// has [`Service::BROKEN`] to do.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut S, &mut Queue<S>, &LaneStats) -> R) -> R {
        self.hold(true, f)
    }

    /// As [`Lane::with`], but what is staged is posted only if `post` says so; else by whoever comes
    /// next, which has to be soon.
    pub(crate) fn hold<R>(
        &self,
        post: bool,
        f: impl FnOnce(&mut S, &mut Queue<S>, &LaneStats) -> R,
    ) -> R {
        let _held = self.guard.hold(&self.stats.lock_waits);
        let mut inner = match self.inner.try_lock() {
            Some(inner) => inner,
            None => {
                self.stats.lock_waits.add(1);
                trace::waiting(|| self.inner.lock())
            }
        };
        let Inner { service, queue } = &mut *inner;
        let failed = queue.failed.is_some();
        let result = f(service, queue, &self.stats);
        if post {
            queue.flush();
        }
        self.stats.posted(&queue.qp.counts());
        let broke = !failed && queue.failed.is_some();
        drop(inner);
        if broke {
            S::after(&self.shared, S::BROKEN);
        }
        result
    }
}

impl<S: Service, G: Guard> Takes for Lane<S, G> {
    fn completed(&self, wcs: &mut [Wc], now: u64) {
        let mut after = S::After::default();
        self.with(|service, queue, stats| {
            queue.now = now;
            for wc in wcs {
                stats.completions.add(1);
                service.completed(queue, wc, stats, &mut after);
            }
        });
        S::after(&self.shared, after);
    }

    fn cq_failed(&self) {
        self.with(|_, queue, _| {
            queue.failed.get_or_insert(Fault::Cq);
        });
    }
}
