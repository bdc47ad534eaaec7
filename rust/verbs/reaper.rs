// SPDX-License-Identifier: GPL-2.0

//! The end of CM ids where it must not be waited for.
//!
//! `rdma_destroy_id` waits for handlers of the id and for work that the CM has queued for it.
//! Inside of a handler, or behind it on one of the CM's ordered workqueues, that may be what is
//! running now. [`super::cm`] gives such ids to a workqueue of this module, which waits in their
//! place. It is there from the registration with the RDMA core on.
//!
//! The code that an id's handler is must not go before the id. So ids are counted, there are none
//! before the reaper or after it, and its end waits until none is left, even of those that were
//! forgotten instead of dropped, or that their own handlers own: then the module cannot be
//! unloaded, and the log says why.

use super::{
    census::{self, Census},
    cm::{self, Header},
};
use crate::sys;
use core::{cell::Cell, ptr::NonNull};
use kernel::{
    prelude::*,
    sync::atomic::{Acquire, Atomic, Relaxed, Release},
    time::{delay::fsleep, Delta},
    types::Opaque,
};

/// CM ids that exist.
static IDS: Census = Census(Atomic::new(census::CLOSED));

/// Counts an id that is to be made.
///
/// # Errors
///
/// `ENODEV` while there is no reaper.
pub(super) fn enter() -> Result {
    IDS.enter().then_some(()).ok_or(ENODEV)
}

/// An id that was counted is gone, or was not made.
pub(super) fn leave() {
    IDS.leave();
}

/// The workqueue, as a number; 0 while there is none.
static QUEUE: Atomic<usize> = Atomic::new(0);

/// The workqueue of doomed ids.
///
/// # Invariants
///
/// `0` is a workqueue that belongs to this object; only who has an id queues to it.
pub(super) struct Reaper(NonNull<sys::workqueue_struct>);

// SAFETY: Workqueues may be destroyed from any thread.
unsafe impl Send for Reaper {}
// SAFETY: `&Reaper` offers nothing.
unsafe impl Sync for Reaper {}

impl Reaper {
    /// Makes the workqueue. There is one at a time: to be called by the one registration.
    pub(super) fn new() -> Result<Self> {
        // SAFETY: Allocates.
        let queue = NonNull::new(unsafe { sys::rivet_alloc_reaper() }).ok_or(ENOMEM)?;
        QUEUE.store(queue.as_ptr() as usize, Release);
        IDS.open();
        Ok(Self(queue))
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        const STEP_MS: u32 = 20;
        let mut waited = 0;
        while let Err(left) = IDS.close() {
            fsleep(Delta::from_millis(i64::from(STEP_MS)));
            waited += STEP_MS;
            // Soon, and then every ten seconds.
            if waited % 10_000 == 200 {
                pr_warn!("unloading waits for the end of {left} CM ids\n");
            }
        }
        QUEUE.store(0, Relaxed);
        // SAFETY: Ours (type invariant). Runs what is queued to its end.
        unsafe { sys::destroy_workqueue(self.0.as_ptr()) };
    }
}

/// An id's link in the workqueue.
pub(super) struct Doomed {
    work: Opaque<sys::work_struct>,
    id: Cell<Option<(NonNull<sys::rdma_cm_id>, NonNull<Header>)>>,
}

impl Doomed {
    pub(super) const fn new() -> Self {
        Self {
            work: Opaque::uninit(),
            id: Cell::new(None),
        }
    }
}

/// Whether this task may be one that the CM, or another id's end, waits for: handlers run on
/// workqueues. Always `false` when there is no reaper.
pub(super) fn must_defer() -> bool {
    // SAFETY: Looks at the current task.
    QUEUE.load(Relaxed) != 0 && unsafe { sys::rivet_in_worker() }
}

/// Has [`cm::destroy`] called for an id, from elsewhere.
///
/// # Safety
///
/// As for [`cm::destroy`], but also inside of a handler. `doomed` lies in what `context` leads to,
/// and this is called once for it.
pub(super) unsafe fn defer(
    doomed: &Doomed,
    id: NonNull<sys::rdma_cm_id>,
    context: NonNull<Header>,
) {
    let queue = QUEUE.load(Acquire) as *mut sys::workqueue_struct;
    doomed.id.set(Some((id, context)));
    let work = doomed.work.get();
    // SAFETY: The work lives until `reap` has run, as only that frees the context. The queue is
    // there: this id is counted.
    unsafe { sys::rivet_queue_doomed(queue, work, Some(reap)) };
}

/// # Safety
///
/// For the workqueue: `work` is that of a [`Doomed`].
unsafe extern "C" fn reap(work: *mut sys::work_struct) {
    // SAFETY: The workqueue calls this with the work of a `Doomed`, which lives until the end of
    // `cm::destroy` below.
    let doomed = unsafe { &*kernel::container_of!(Opaque::cast_from(work), Doomed, work) };
    if let Some((id, context)) = doomed.id.take() {
        // SAFETY: As `defer` was promised; here is the reaper's own workqueue, not a handler.
        unsafe { cm::destroy(id, context) };
    }
}
