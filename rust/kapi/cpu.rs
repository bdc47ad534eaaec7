// SPDX-License-Identifier: GPL-2.0

//! Which CPUs and memory nodes there are.
//!
//! C headers: `include/linux/cpumask.h`, `include/linux/nodemask.h`

use crate::sys;

/// Whether a CPU is online now; not for a number that no CPU can have. Any context.
pub(crate) fn is_online(cpu: u32) -> bool {
    // SAFETY: Looks a bit up, and checks the number itself.
    unsafe { sys::rivet_cpu_online(cpu) }
}

/// Whether a memory node is online now; not for a number that no node can have. Any context.
pub(crate) fn is_node_online(node: u32) -> bool {
    // SAFETY: Looks a bit up, and checks the number itself.
    unsafe { sys::rivet_node_online(node) }
}
