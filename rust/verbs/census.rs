// SPDX-License-Identifier: GPL-2.0

//! How many of something exist, and whether any may: whoever closes it waits for the last, and then
//! nothing is left that uses what was there for them. `make unit` explores it
//! (`rust/races/census.rs`).

use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};

/// How many exist, or [`CLOSED`].
pub(crate) struct Census(pub(crate) Atomic<usize>);

/// None exists, and none may be made.
pub(crate) const CLOSED: usize = usize::MAX;

impl Census {
    /// From here on some may be made. What was done before is seen by who makes one.
    pub(crate) fn open(&self) {
        self.0.store(0, Release);
    }

    /// Counts one that is to be made; `false` if none may be.
    #[must_use]
    pub(crate) fn enter(&self) -> bool {
        let mut now = self.0.load(Relaxed);
        while now != CLOSED {
            match self.0.cmpxchg(now, now + 1, Acquire) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// One that was counted is gone, or was not made.
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Release);
    }

    /// Closes it if none is left: what they did is done.
    ///
    /// # Errors
    ///
    /// How many are left.
    pub(crate) fn close(&self) -> Result<(), usize> {
        self.0.cmpxchg(0, CLOSED, Acquire).map(|_| ())
    }
}
