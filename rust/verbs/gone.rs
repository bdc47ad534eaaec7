// SPDX-License-Identifier: GPL-2.0

//! How it is told that something goes: to those who watch, and to those who came too late for that.
//! `make unit` explores it (`rust/races/gone.rs`).
//!
//! ```text
//! it goes: mark it; walk the list, with the lock      who comes: put in the list, with the lock; look
//! ```
//!
//! Either the walk comes upon who came, or that one got the lock after the walk's end, and so sees
//! the mark.

use kernel::sync::atomic::{Atomic, Relaxed};

/// Whether something is gone.
pub(crate) struct Gone(Atomic<bool>);

impl Gone {
    /// It is there.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(false))
    }

    /// Whether it is gone.
    #[inline]
    pub(crate) fn is(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// It goes. `next` gives the first of the list behind a number, and its own, with the list's lock
    /// taken and given back; `tell` is called without it.
    pub(crate) fn announce<W>(
        &self,
        next: impl FnMut(u64) -> Option<(u64, W)>,
        tell: impl FnMut(W),
    ) {
        self.0.store(true, Relaxed);
        walk(next, tell);
    }
}

/// Calls `tell` for each of a list, see [`Gone::announce`]: the list may change meanwhile.
pub(crate) fn walk<W>(mut next: impl FnMut(u64) -> Option<(u64, W)>, mut tell: impl FnMut(W)) {
    let mut seen = 0;
    while let Some((number, watcher)) = next(seen) {
        tell(watcher);
        seen = number;
    }
}

/// The first of `list`, which has ascending numbers, behind number `seen`.
pub(crate) fn behind<W: Clone>(list: &[(u64, W)], seen: u64) -> Option<(u64, W)> {
    list.iter().find(|(number, _)| *number > seen).cloned()
}
