// SPDX-License-Identifier: GPL-2.0

//! Work that a transport has done on a controller: recovery, reconnecting, giving up, and the reset.
//!
//! [`Ctrl::recover`] changes the state and queues in one step, so that a controller that is being
//! reset or deleted is not recovered as well; work that is queued or runs has a reference. The core
//! asks for its end (`stop_ctrl`) before it resets or deletes.
//!
//! What such work, or whoever connects, has to do for each of many queues is done [`together`].
//!
//! C header: `include/linux/workqueue.h`

use super::{
    ctrl::{Ctrl, Object, State, Trouble},
    Transport,
};
use crate::sys;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Completion, SpinLock,
    },
    types::Opaque,
    workqueue::Queue,
};

/// The work items of a controller, but for its reset, which is the core's.
///
/// # Invariants
///
/// It is the `work` of an [`Object<T>`]. The items are initialised with functions for `T`; a
/// reference belongs to each that is queued or has not given it back.
#[pin_data]
pub(super) struct Work<T: Transport> {
    #[pin]
    recover: Opaque<sys::work_struct>,
    #[pin]
    reconnect: Opaque<sys::delayed_work>,
    #[pin]
    give_up: Opaque<sys::work_struct>,
    _transport: PhantomData<fn() -> T>,
}

impl<T: Transport> Work<T> {
    /// Items that are not queued, for the object that they are made in.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            recover <- Opaque::ffi_init(|slot: *mut sys::work_struct| {
                // SAFETY: Memory for it that stays where it is.
                unsafe { sys::rivet_nvme_init_work(slot, Some(recover::<T>)) }
            }),
            reconnect <- Opaque::ffi_init(|slot: *mut sys::delayed_work| {
                // SAFETY: As above.
                unsafe { sys::rivet_nvme_init_delayed_work(slot, Some(reconnect::<T>)) }
            }),
            give_up <- Opaque::ffi_init(|slot: *mut sys::work_struct| {
                // SAFETY: As above.
                unsafe { sys::rivet_nvme_init_work(slot, Some(give_up::<T>)) }
            }),
            _transport: PhantomData,
        })
    }
}

impl<T: Transport> Ctrl<T> {
    fn work(&self) -> &Work<T> {
        &self.this().work
    }

    /// Something has failed: a controller that works has [`Transport::recover`] run soon. `false`
    /// if it is in another state. Any context.
    pub(crate) fn recover(&self) -> bool {
        if !self.set_resetting() {
            return false;
        }
        let work = self.work().recover.get();
        // SAFETY: The work is initialised, and what follows from it has a reference; the workqueue
        // is the core's.
        self.hand_over(|| unsafe { sys::rivet_nvme_queue_work(sys::nvme_reset_wq, work) });
        true
    }

    /// Work has a reference of its own from here on, if `queue` has queued it.
    fn hand_over(&self, queue: impl FnOnce() -> bool) {
        let reference = self.clone();
        if queue() {
            core::mem::forget(reference);
        }
    }

    /// Has [`Transport::give_up`] run soon: something has failed in a state in which that is not
    /// for [`Ctrl::recover`]. Any context.
    pub(crate) fn give_up(&self) {
        let work = self.work().give_up.get();
        // SAFETY: As in `recover`.
        self.hand_over(|| unsafe { sys::rivet_nvme_queue_work(sys::nvme_wq, work) });
    }

    /// It is not connected, for `reason` if connecting has failed so: tries again when it is time,
    /// by [`Transport::reconnect`], or deletes it where the core says that it was enough. Returns
    /// whether it will try again. Sleeps.
    pub(crate) fn reconnect_or_delete(&self, reason: Option<Trouble>) -> bool {
        if self.state() != State::Connecting {
            // It is being deleted, by somebody else.
            return false;
        }
        if !self.should_reconnect(reason) {
            self.delete();
            return false;
        }
        let work = self.work().reconnect.get();
        let delay = self.options().reconnect_delay();
        // SAFETY: As in `recover`.
        self.hand_over(|| unsafe { sys::rivet_nvme_queue_delayed_work(sys::nvme_wq, work, delay) });
        true
    }

    /// Waits for a recovery that is under way, and takes back an attempt to reconnect. Sleeps.
    pub(super) fn stop_work(&self) {
        let work = self.work();
        // SAFETY: The items are initialised; that which is cancelled has a reference to be given
        // back, which is not the last one.
        unsafe {
            sys::flush_work(work.recover.get());
            if sys::cancel_delayed_work_sync(work.reconnect.get()) {
                drop(Ctrl::from_object(self.object()));
            }
        }
    }
}

/// The controller of an item that has come to run.
///
/// # Safety
///
/// The items are an object's, of which a reference is ours now.
unsafe fn of<T: Transport>(work: *mut Work<T>) -> Ctrl<T> {
    // SAFETY: By the function's safety requirement.
    unsafe {
        let object = kernel::container_of!(work, Object<T>, work);
        Ctrl::from_object(NonNull::new_unchecked(object))
    }
}

/// # Safety
///
/// For the workqueue: `work` is the `recover` of an object, with a reference that is ours now.
unsafe extern "C" fn recover<T: Transport>(work: *mut sys::work_struct) {
    // SAFETY: By the function's safety requirement. `Opaque` is transparent.
    let ctrl = unsafe {
        of(kernel::container_of!(
            work.cast::<Opaque<_>>(),
            Work<T>,
            recover
        ))
    };
    ctrl.data().recover(&ctrl);
}

/// # Safety
///
/// For the workqueue: `work` is the `give_up` of an object, with a reference that is ours now.
unsafe extern "C" fn give_up<T: Transport>(work: *mut sys::work_struct) {
    // SAFETY: As in `recover`.
    let ctrl = unsafe {
        of(kernel::container_of!(
            work.cast::<Opaque<_>>(),
            Work<T>,
            give_up
        ))
    };
    ctrl.data().give_up(&ctrl);
}

/// # Safety
///
/// For the workqueue: `work` is the `reconnect` of an object, with a reference that is ours now.
unsafe extern "C" fn reconnect<T: Transport>(work: *mut sys::work_struct) {
    // SAFETY: By the function's safety requirement. The work is in the delayed one.
    let ctrl = unsafe {
        let delayed = kernel::container_of!(work, sys::delayed_work, work);
        of(kernel::container_of!(
            delayed.cast::<Opaque<_>>(),
            Work<T>,
            reconnect
        ))
    };
    ctrl.data().reconnect(&ctrl);
}

/// What the core calls where a controller is to be reset.
///
/// # Safety
///
/// For the workqueue: `work` is the `reset_work` of one of ours, which the core keeps meanwhile.
pub(super) unsafe extern "C" fn reset<T: Transport>(work: *mut sys::work_struct) {
    // SAFETY: By the function's safety requirement.
    let ctrl = unsafe {
        let raw = kernel::container_of!(work, sys::nvme_ctrl, reset_work);
        Ctrl::<T>::borrow(raw)
    };
    ctrl.data().reset(&ctrl);
}

// ---- many things at once -----------------------------------------------------------

/// Tasks that do things together, at most.
const TASKS: u32 = 16;

/// What is to be done: [`together`]'s function, without its lifetime.
#[derive(Clone, Copy)]
struct Job(NonNull<dyn Fn(u32) + Sync>);

// SAFETY: The function may be called from any thread.
unsafe impl Send for Job {}

/// Who is at work.
struct Roll {
    /// `None` once nobody may begin any more.
    job: Option<Job>,
    /// Helpers that have begun.
    inside: u32,
}

/// Tasks that do things together.
///
/// # Invariants
///
/// The job's function lives as long as `roll` has it, or a helper is `inside`.
#[pin_data]
struct Team {
    n: u32,
    /// The number of what nobody does yet.
    next: Atomic<u32>,
    #[pin]
    roll: SpinLock<Roll>,
    /// The last helper has left, and none will begin.
    #[pin]
    left: Completion,
}

/// Calls `f` with each number below `n`, from several tasks at once, of which the caller's is one, and
/// returns when all have returned. `f` may sleep. Sleeps.
///
/// Nothing depends on whether there is memory or a worker for the others: what they have not begun, the
/// caller does.
pub(crate) fn together(n: u32, f: &(dyn Fn(u32) + Sync)) {
    let helpers = n.clamp(1, TASKS) - 1;
    let team = match helpers {
        0 => None,
        _ => Team::new(n, f).ok(),
    };
    let Some(team) = team else {
        return (0..n).for_each(f);
    };
    // SAFETY: The workqueue is the core's and there as long as that is loaded. It is waited for before
    // this module goes (`wait_for_all`).
    let queue = unsafe { Queue::from_raw(sys::nvme_wq.cast()) };
    for _ in 0..helpers {
        let helper = team.clone();
        if queue.try_spawn(GFP_KERNEL, move || helper.help()).is_err() {
            break;
        }
    }
    team.work(f);
    team.close();
}

impl Team {
    fn new(n: u32, f: &(dyn Fn(u32) + Sync)) -> Result<Arc<Self>> {
        let f = NonNull::from(f);
        // SAFETY: Only the lifetime changes, which the type's invariant is for.
        let f = unsafe {
            core::mem::transmute::<
                NonNull<dyn Fn(u32) + Sync + '_>,
                NonNull<dyn Fn(u32) + Sync + 'static>,
            >(f)
        };
        let roll = Roll {
            job: Some(Job(f)),
            inside: 0,
        };
        // INVARIANT: `together`, which has the function, closes it before it returns.
        Arc::pin_init(
            pin_init!(Self {
                n,
                next: Atomic::new(0),
                roll <- new_spinlock!(roll),
                left <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Does what nobody does yet, until there is nothing left to begin.
    fn work(&self, f: &(dyn Fn(u32) + Sync)) {
        // Each of few tasks goes beyond the end once, so it does not come round.
        let next = || self.next.fetch_add(1, Relaxed);
        core::iter::repeat_with(next)
            .take_while(|i| *i < self.n)
            .for_each(f);
    }

    /// The same, unless it is over already.
    fn help(&self) {
        let mut roll = self.roll.lock();
        let Some(Job(f)) = roll.job else { return };
        roll.inside += 1;
        drop(roll);
        // SAFETY: This is inside (type invariant).
        self.work(unsafe { f.as_ref() });
        let mut roll = self.roll.lock();
        roll.inside -= 1;
        if roll.job.is_none() && roll.inside == 0 {
            self.left.complete_all();
        }
    }

    /// Nobody begins any more; waits for those who have.
    fn close(&self) {
        let mut roll = self.roll.lock();
        roll.job = None;
        let inside = roll.inside;
        drop(roll);
        if inside > 0 {
            self.left.wait_for_completion();
        }
    }
}
