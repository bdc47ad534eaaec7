// SPDX-License-Identifier: GPL-2.0

//! Random numbers.

use crate::sys;

/// A number that a peer cannot guess. Any context.
///
/// C header: `include/linux/random.h`
pub(crate) fn secret() -> u64 {
    // SAFETY: May be called at any time.
    unsafe { sys::get_random_u64() }
}
