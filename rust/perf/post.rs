// SPDX-License-Identifier: GPL-2.0

//! How a thread is told that there is something for it, without a lock for its looking. `make unit`
//! explores it (`rust/races/post.rs`).
//!
//! `Relaxed` is enough: who is told takes the lock of what was put there, or was woken, which orders
//! all that was done before.

use kernel::sync::atomic::{Atomic, Relaxed};

/// That something was put there.
pub(crate) struct Flag(Atomic<bool>);

impl Flag {
    /// Nothing was.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(false))
    }

    /// Something is, if `put` puts it, with a lock taken and given back; `wake` then wakes who looks.
    #[inline]
    pub(crate) fn put(&self, put: impl FnOnce() -> bool, wake: impl FnOnce()) {
        if put() {
            self.0.store(true, Relaxed);
            wake();
        }
    }

    /// Whether something was put there since the last time: to be taken out now, with the lock.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        self.0.xchg(false, Relaxed)
    }
}

/// How many are not done, for one who waits for the last.
pub(crate) struct Left(Atomic<u32>);

impl Left {
    /// So many.
    pub(crate) fn new(n: u32) -> Self {
        Self(Atomic::new(n))
    }

    /// One is done; `wake` wakes who waits.
    #[inline]
    pub(crate) fn done(&self, wake: impl FnOnce()) {
        self.0.fetch_sub(1, Relaxed);
        wake();
    }

    /// Whether all are done.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.0.load(Relaxed) == 0
    }
}
