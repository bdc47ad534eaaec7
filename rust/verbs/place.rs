// SPDX-License-Identifier: GPL-2.0

//! A place for one, which who finds it taken does not wait for. `make unit` explores it
//! (`rust/races/place.rs`).

use kernel::sync::atomic::{Acquire, Atomic, Release};

/// A place for one.
pub(crate) struct Place(Atomic<bool>);

impl Place {
    /// Free.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(false))
    }

    /// Takes it, if it is free; what its last holder did is done.
    #[must_use]
    pub(crate) fn take(&self) -> bool {
        !self.0.xchg(true, Acquire)
    }

    /// Gives it back.
    pub(crate) fn free(&self) {
        self.0.store(false, Release);
    }
}
