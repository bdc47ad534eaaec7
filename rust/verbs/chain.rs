// SPDX-License-Identifier: GPL-2.0

//! Staged work requests: built, and posted together with one doorbell.
//!
//! The send queue, the receive queue and the SRQ each have a [`Chain`]. It has a fixed number of
//! places, each with room for its SGEs, so staging allocates nothing. The driver copies what it is
//! given, so the places are free again as soon as they were posted.
//!
//! Work requests that belong together are built behind the staged ones and become staged all at
//! once. When the places run out in the middle of that, those staged before are posted; building
//! goes on behind, where the places begin again. Nothing is copied, and nobody sees half of it.

use super::qp::filled;
use crate::sys;
use kernel::prelude::*;

/// A C work request that can stand in a chain.
///
/// # Safety
///
/// `link` makes the C object point at `next` and at `sges`, and changes nothing else.
pub(super) unsafe trait Link {
    /// One that asks for nothing.
    fn empty() -> Self;

    /// Points it at its successor and at its SGEs.
    fn link(&mut self, next: *mut Self, sges: *mut sys::ib_sge);
}

// SAFETY: Sets these two fields of the header.
unsafe impl Link for super::wr::RawWr {
    fn empty() -> Self {
        super::wr::RawWr::empty()
    }

    fn link(&mut self, next: *mut Self, sges: *mut sys::ib_sge) {
        let header = self.header();
        // Each member of the union starts with the header.
        header.next = next.cast();
        header.sg_list = sges;
    }
}

// SAFETY: Sets these two fields.
unsafe impl Link for sys::ib_recv_wr {
    fn empty() -> Self {
        Self::default()
    }

    fn link(&mut self, next: *mut Self, sges: *mut sys::ib_sge) {
        self.next = next;
        self.sg_list = sges;
    }
}

/// Places for work requests of one queue.
///
/// # Invariants
///
/// * The `len` places from `first` on, going round at the end, hold finished work requests. What
///   they and their SGEs name lives until they are dropped or, once posted, completed.
/// * There are `width` SGEs for each place; `first` is a place and `len` at most as many as there
///   are.
pub(super) struct Chain<W> {
    wrs: KVVec<W>,
    sges: KVVec<sys::ib_sge>,
    width: usize,
    first: usize,
    len: usize,
    /// Work requests that were handed to the driver.
    pub(super) posts: u64,
    /// Times that some were.
    pub(super) doorbells: u64,
}

/// Why a driver did not take all of a chain.
pub(super) struct Refused {
    /// What it said.
    pub(super) error: Error,
    /// How many work requests, the last ones, it did not take. None if it did not say: then it may
    /// have taken all.
    pub(super) left: usize,
}

impl Refused {
    /// What the owner of the queue is told, whose device overtakes or not: one that does
    /// ([`super::caps::Caps::overtakes`]) refuses what others flush while the connection ends, of which
    /// the CM tells.
    pub(super) fn outcome(self, overtakes: bool) -> Result {
        match overtakes && self.error == ENOTCONN {
            true => Ok(()),
            false => Err(self.error),
        }
    }
}

impl<W: Link> Chain<W> {
    /// Makes `places` (at least one) with `width` SGEs each.
    pub(super) fn new(places: usize, width: usize) -> Result<Self> {
        let places = places.max(1);
        let sges = places.checked_mul(width).ok_or(EINVAL)?;
        // INVARIANT: Nothing is staged.
        Ok(Self {
            wrs: filled(places, W::empty)?,
            sges: filled(sges, sys::ib_sge::default)?,
            width,
            first: 0,
            len: 0,
            posts: 0,
            doorbells: 0,
        })
    }

    /// How many places there are.
    pub(super) fn places(&self) -> usize {
        self.wrs.len()
    }

    /// How many work requests are staged.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The place that comes `n` behind the first, for `n` of at most twice the places.
    fn at(&self, n: usize) -> usize {
        let at = self.first + n;
        if at >= self.wrs.len() {
            at - self.wrs.len()
        } else {
            at
        }
    }

    /// The place `ahead` of the next, to be built; `None` if there is none.
    pub(super) fn place(&mut self, ahead: usize) -> Option<(&mut W, &mut [sys::ib_sge])> {
        let n = self.len + ahead;
        if n >= self.wrs.len() {
            return None;
        }
        let at = self.at(n);
        let sges = self.sges.get_mut(at * self.width..(at + 1) * self.width)?;
        Some((self.wrs.get_mut(at)?, sges))
    }

    /// Stages the next `n`.
    ///
    /// # Safety
    ///
    /// [`Chain::place`] gave these `n` places since the last staging, and they are finished, but
    /// for the links. What they name lives as the type's invariants say.
    pub(super) unsafe fn stage(&mut self, n: usize) {
        // INVARIANT: By the function's safety requirement.
        self.len += n;
    }

    /// Forgets what is staged.
    pub(super) fn clear(&mut self) {
        self.first = 0;
        self.len = 0;
    }

    /// Posts what is staged, by `post`, which gets the first of the linked work requests and says
    /// at which one it stopped. `building` is whether places behind are being built; those keep
    /// their numbers.
    ///
    /// On error nothing is staged any more, either.
    pub(super) fn post(
        &mut self,
        building: bool,
        post: impl FnOnce(*mut W, &mut *mut W) -> i32,
    ) -> core::result::Result<(), Refused> {
        let n = self.len;
        if n == 0 {
            return Ok(());
        }
        self.posts += n as u64;
        self.doorbells += 1;
        let first = self.first;
        let wrs = self.wrs.as_mut_ptr();
        let sges = self.sges.as_mut_ptr();
        for i in 0..n {
            let at = self.at(i);
            let next = if i + 1 < n {
                // SAFETY: A place.
                unsafe { wrs.add(self.at(i + 1)) }
            } else {
                core::ptr::null_mut()
            };
            // SAFETY: A place and its SGEs (type invariants).
            unsafe { (*wrs.add(at)).link(next, sges.add(at * self.width)) };
        }
        let mut bad = core::ptr::null_mut();
        // SAFETY: A place.
        let ret = post(unsafe { wrs.add(first) }, &mut bad);
        let refused = (ret != 0).then(|| {
            let taken = (0..n).position(|i| {
                // SAFETY: A place.
                core::ptr::eq(unsafe { wrs.add(self.at(i)) }, bad)
            });
            Refused {
                error: refusal(ret),
                left: n - taken.unwrap_or(n),
            }
        });
        self.first = if building { self.at(n) } else { 0 };
        self.len = 0;
        refused.map_or(Ok(()), Err)
    }
}

/// The error that a driver's refusal to post is.
pub(super) fn refusal(ret: i32) -> Error {
    // Not every driver keeps to negative numbers.
    if ret < 0 {
        Error::from_errno(ret)
    } else {
        EIO
    }
}
