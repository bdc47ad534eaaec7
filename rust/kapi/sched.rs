// SPDX-License-Identifier: GPL-2.0

//! Manners of a task that polls.
//!
//! Kernels with lazy preemption let a running kernel thread keep the CPU until the next tick, and
//! `cond_resched` does nothing there. A poller whose completions are made by a worker that waits
//! for this very CPU would hold itself up for milliseconds.
//!
//! C header: `include/linux/sched.h`

use crate::sys;

/// For a poller that has work: gives the CPU up if the scheduler has chosen somebody else for it,
/// be it lazily. Process context, without locks.
pub(crate) fn resched() {
    // SAFETY: The callers run in process context without locks, as the function's rule says.
    unsafe { sys::rivet_resched() };
}

/// For a poller that has found nothing: lets every other task that waits for this CPU go first.
/// The scheduler protects who runs for some milliseconds even against a short task like the worker
/// of a soft device. Returns at once if nobody waits. Process context, without locks.
pub(crate) fn yield_to_others() {
    // SAFETY: The callers run in process context without locks, as the function's rule says.
    unsafe { sys::rivet_yield() };
}
