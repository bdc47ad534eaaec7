// SPDX-License-Identifier: GPL-2.0

//! The clock that latencies and timeouts are taken by.

use kernel::time::{ClockSource, Monotonic};

/// Nanoseconds since some point before (`CLOCK_MONOTONIC`). Any context.
pub(crate) fn now_ns() -> u64 {
    // Never negative.
    Monotonic::ktime_get() as u64
}

/// One millisecond.
pub(crate) const MS: u64 = 1_000_000;
