// SPDX-License-Identifier: GPL-2.0

//! Which CPUs and memory nodes there are.
//!
//! C headers: `include/linux/cpumask.h`, `include/linux/nodemask.h`

use crate::sys;

/// Numbers of CPUs that there can be lie below this. Any context.
pub(crate) fn possible() -> u32 {
    kernel::cpu::nr_cpu_ids()
}

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

/// The memory node of a CPU; that of CPU 0 for a number that no CPU can have. Any context.
pub(crate) fn node_of(cpu: u32) -> i32 {
    // SAFETY: Looks a number up, and checks the index itself.
    unsafe { sys::rivet_cpu_to_node(cpu) }
}
