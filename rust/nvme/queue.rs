// SPDX-License-Identifier: GPL-2.0

//! A queue of a controller: a place that stays, and the connection that comes and goes in it.
//!
//! The connection is a lane with its commands ([`super::commands`]), and what leads to it. Who
//! submits holds the place's lock meanwhile, so once the lane was taken out of the place nobody
//! uses it but completions, and these end with the seat on a poller, or with the place's polled CQ. Then QP, regions and requests end, in this
//! order, in process context. [`Place::end`] may be called by several at once, by a teardown and by
//! a timeout, say: who comes second waits, and finds nothing left; what the queue held has ended
//! when it returns, whoever did it.

use super::{commands::Commands, connect::Progress, show::Shown};
use crate::{
    engine::{
        lane::Lane,
        polled::{Polled, PolledCq},
        poller::Seat,
    },
    kapi::nvme::{Batch, Request, Submitted, Unsent},
    verbs::{CmId, Mr},
};
use kernel::{
    new_mutex, new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed, Release},
        Arc, Mutex, SpinLockIrq,
    },
};

/// Who looks at a connection's completions.
pub(super) enum Looks {
    /// A CPU's poller.
    Poller(Seat),
    /// Whoever waits for them.
    Polled(PolledCq),
}

/// What a connection is made of. Fields are dropped in order.
pub(super) struct Link {
    /// In debugfs.
    pub(super) _shown: Shown,
    /// First, so that no more completions come. Of a polled one it is in its place.
    pub(super) looks: Option<Looks>,
    /// The QP, and the commands.
    pub(super) lane: Arc<Lane<Commands>>,
    /// The CM's connection.
    pub(super) id: CmId,
    /// What the CM says of it.
    pub(super) progress: Arc<Progress>,
}

/// A queue's place.
#[pin_data]
pub(super) struct Place {
    qid: u16,
    /// The controller has made a queue of it.
    live: Atomic<bool>,
    /// It has to end.
    failed: Atomic<bool>,
    /// For submission.
    #[pin]
    lane: SpinLockIrq<Option<Arc<Lane<Commands>>>>,
    /// For whoever polls, if it is polled.
    #[pin]
    polled: Polled,
    /// For whoever makes or ends it.
    #[pin]
    link: Mutex<Option<Link>>,
}

impl Place {
    /// An empty one. Sleeps.
    pub(super) fn new(qid: u16) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                qid,
                live: Atomic::new(false),
                failed: Atomic::new(false),
                lane <- new_spinlock_irq!(None),
                polled <- Polled::new(),
                link <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )
    }

    /// The queue's number.
    pub(super) fn qid(&self) -> u16 {
        self.qid
    }

    /// Whether the controller has made a queue of it. Any context.
    pub(super) fn is_live(&self) -> bool {
        self.live.load(Acquire)
    }

    /// The controller has. Any context.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` if its connection has ended or failed meanwhile.
    pub(super) fn set_live(&self) -> Result {
        // Who ends it takes the liveness with the connection.
        let link = self.link.lock();
        if link.is_none() || self.has_failed() {
            return Err(ECONNRESET);
        }
        self.live.store(true, Release);
        Ok(())
    }

    /// What is in it has failed. Any context.
    pub(super) fn set_failed(&self) {
        self.failed.store(true, Relaxed);
    }

    /// Whether it has.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Puts a connection into it, in place of what there may be. Sleeps.
    pub(super) fn put(&self, mut new: Link) -> Result {
        self.end();
        let mut link = self.link.lock();
        // What breaks it from here on is told to the place, or is seen below.
        self.failed.xchg(false, Full);
        if let Some(Looks::Polled(cq)) = new.looks.take_if(|l| matches!(l, Looks::Polled(_))) {
            self.polled.put(cq, new.lane.clone())?;
        }
        let failed = new.progress.is_over();
        *self.lane.lock() = Some(new.lane.clone());
        *link = Some(new);
        if failed {
            self.set_failed();
        }
        Ok(())
    }

    /// Ends the connection, and with it all commands that are under way on it. Sleeps.
    pub(super) fn end(&self) {
        self.end_if(|| true);
    }

    /// The same, if it has failed, and no new one has come since. Sleeps.
    pub(super) fn end_failed(&self) {
        self.end_if(|| self.has_failed());
    }

    fn end_if(&self, wanted: impl FnOnce() -> bool) {
        let mut link = self.link.lock();
        if !wanted() {
            return;
        }
        self.live.store(false, Release);
        let lane = self.lane.lock().take();
        // Not the last reference: that of the link is.
        drop(lane);
        self.polled.clear();
        if let Some(mut link) = link.take() {
            link.progress.retire();
            // Tells the peer. One that does not know of us any more needs not be told.
            let _ = link.id.disconnect();
        }
    }

    /// Whether nothing can be sent: there is no connection, or it has to end. Any context.
    pub(super) fn is_dead(&self) -> bool {
        self.has_failed() || self.lane.lock().is_none()
    }

    /// Does something with the lane, if there is one. Must not sleep.
    pub(super) fn with<R>(&self, f: impl FnOnce(&Lane<Commands>) -> R) -> Option<R> {
        self.lane.lock().as_deref().map(f)
    }

    /// Sends a request; it is posted if it is the last for now. Must not sleep.
    pub(super) fn submit(&self, request: Request, last: bool) -> Submitted {
        match self.lane.lock().as_deref() {
            Some(lane) => lane.hold(last, |commands, queue, stats| {
                commands.submit(queue, stats, request)
            }),
            None => Submitted::Lost(request),
        }
    }

    /// Sends requests that came together, with as few doorbells as they need. Must not sleep.
    pub(super) fn submit_batch(&self, mut batch: Batch) -> Unsent {
        let mut unsent = Unsent::new();
        match self.lane.lock().as_deref() {
            Some(lane) => lane.with(|commands, queue, stats| {
                batch.for_each(|request| unsent.add(commands.submit(queue, stats, request)));
            }),
            None => core::mem::swap(&mut unsent.lost, &mut batch),
        }
        unsent
    }

    /// As [`Place::submit`], with a region that was made for the request. Sleeps.
    pub(super) fn submit_fresh(&self, request: Request, region: Mr) -> Submitted {
        let mut old = None;
        let submitted = match self.lane.lock().as_deref() {
            Some(lane) => lane.with(|commands, queue, stats| {
                old = commands.refresh(region);
                commands.submit(queue, stats, request)
            }),
            None => Submitted::Lost(request),
        };
        // Not under a lock, as a region's end sleeps.
        drop(old);
        submitted
    }

    /// Posts what was not. Must not sleep.
    pub(super) fn commit(&self) {
        self.with(|lane| lane.with(|_, _, _| ()));
    }

    /// Looks for completions, if it is polled; says how many there were. Process context; must not
    /// sleep.
    pub(super) fn poll(&self) -> u32 {
        self.polled.look()
    }
}
