// SPDX-License-Identifier: GPL-2.0

//! Manners of a task that polls.
//!
//! C header: `include/linux/sched.h`

use crate::sys;

/// Gives the CPU to whoever waits for it, and returns at once if nobody does. Process context.
///
/// Kernels with lazy preemption let a running kernel thread keep the CPU until the next tick, and
/// `cond_resched` does nothing there; a poller whose completions are made by a worker that waits
/// for this very CPU would hold itself up for milliseconds. So this looks at the lazy flag too.
pub(crate) fn yield_if_wanted() {
    // SAFETY: The callers run in process context without locks, as the function's rule says.
    unsafe { sys::rivet_yield_cpu() };
}
