// SPDX-License-Identifier: GPL-2.0

//! How much memory there is.
//!
//! C header: `include/linux/mm.h`

use crate::sys;
use kernel::page::PAGE_SIZE;

/// All memory of the machine that the page allocator manages, bytes. Any context.
pub(crate) fn total_bytes() -> u64 {
    // SAFETY: Reads a counter.
    let pages = unsafe { sys::rivet_totalram_pages() };
    pages as u64 * PAGE_SIZE as u64
}
