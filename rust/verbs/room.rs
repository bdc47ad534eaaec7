// SPDX-License-Identifier: GPL-2.0

//! The room of a CQ: what its QPs may ever have outstanding must fit; and of a device for regions.
//! `make unit` explores it (`rust/races/room.rs`).
//!
//! All is `Relaxed`: what counts is that completions are put in and taken out under the driver's
//! lock, between the steps here, and that regions are made after room was set aside and freed
//! before it is given back, by the same thread.

use kernel::sync::atomic::{Atomic, Relaxed};

/// The room of a CQ, or of a device.
pub(crate) struct Room {
    entries: u32,
    reserved: Atomic<u32>,
    /// Part of `reserved`: for completions of QPs that are gone, which may still be in the queue.
    stale: Atomic<u32>,
}

impl Room {
    /// For so many completions or regions, all of it free.
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            entries,
            reserved: Atomic::new(0),
            stale: Atomic::new(0),
        }
    }

    /// How large it is.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Sets room for `n` aside, for good or until it is given back; `false` if there is
    /// not so much.
    #[must_use]
    pub(crate) fn reserve(&self, n: u32) -> bool {
        let mut now = self.reserved.load(Relaxed);
        loop {
            let next = now.checked_add(n).filter(|next| *next <= self.entries);
            let Some(next) = next else { return false };
            match self.reserved.cmpxchg(now, next, Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
    }

    /// Gives room back in which nothing can be.
    pub(crate) fn release(&self, n: u32) {
        self.reserved.fetch_sub(n, Relaxed);
    }

    /// Gives room back in which completions may be that came before this: it becomes free when the
    /// queue is next polled empty.
    pub(crate) fn abandon(&self, n: u32) {
        self.stale.fetch_add(n, Relaxed);
    }

    /// What `poll`, which takes up to `most` completions out of the queue, returns; with fewer the
    /// queue ran empty. By one at a time: where two polled, one could give back what was abandoned
    /// after it had looked.
    #[inline]
    pub(crate) fn poll<E>(
        &self,
        most: usize,
        poll: impl FnOnce() -> Result<usize, E>,
    ) -> Result<usize, E> {
        let stale = self.stale.load(Relaxed);
        let n = poll()?;
        // What was in the queue before this began is out.
        if stale != 0 && n < most && self.stale.cmpxchg(stale, 0, Relaxed).is_ok() {
            self.release(stale);
        }
        Ok(n)
    }

    /// For how many nobody has set room aside.
    pub(crate) fn left(&self) -> u32 {
        self.entries - self.reserved.load(Relaxed)
    }
}
