// SPDX-License-Identifier: GPL-2.0

//! How much memory there is, and how it may be got.
//!
//! C headers: `include/linux/mm.h`, `include/linux/sched/mm.h`

use crate::sys;
use kernel::{page::PAGE_SIZE, types::NotThreadSafe};

/// All memory of the machine that the page allocator manages, bytes. Any context.
pub(crate) fn total_bytes() -> u64 {
    // SAFETY: Reads a counter.
    let pages = unsafe { sys::rivet_totalram_pages() };
    pages as u64 * PAGE_SIZE as u64
}

/// As long as it lives, the task's allocations start no I/O. Process context.
///
/// # Invariants
///
/// `flags` is what the task had before, and it has lost none since.
pub(crate) struct NoIo {
    flags: u32,
    /// It is of one task.
    _task: NotThreadSafe,
}

impl NoIo {
    /// From here on. They may be nested.
    pub(crate) fn new() -> Self {
        Self {
            // INVARIANT: Given by the function.
            // SAFETY: Changes a flag of the current task.
            flags: unsafe { sys::rivet_memalloc_noio_save() },
            _task: NotThreadSafe,
        }
    }
}

impl Drop for NoIo {
    fn drop(&mut self) {
        // SAFETY: What was given by the other function, to this task, as this cannot leave it.
        unsafe { sys::rivet_memalloc_noio_restore(self.flags) };
    }
}
