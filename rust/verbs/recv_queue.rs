// SPDX-License-Identifier: GPL-2.0

//! The receive queue of a QP. Receives complete one by one, so each has a slot of its own.
//!
//! Receives that the driver does not take keep their slots, with their tokens, until the QP goes:
//! they are refused where posting happens, which may be in a context where tokens must not be
//! dropped.

use super::{caps::Caps, chain::Chain, qp::filled, wc::Done, wr::RecvWr, Pd, Wc};
use crate::{kapi::trace, sys};
use core::ptr::NonNull;
use kernel::{prelude::*, sync::Arc};

/// A receive queue with tokens of type `R`.
///
/// # Invariants
///
/// A slot is free or holds the token of a receive that is staged, or was posted and whose
/// completion was not seen, or was refused.
pub(super) struct RecvQueue<R> {
    slots: KVVec<Option<R>>,
    free: KVVec<u32>,
    refused: u32,
    /// See [`super::caps::Caps::overtakes`].
    overtakes: bool,
    chain: Chain<sys::ib_recv_wr>,
}

impl<R> RecvQueue<R> {
    /// Allocates for `size` receives of `sges` SGEs; `batch` of them are posted at a time.
    pub(super) fn new(size: u32, batch: u32, sges: u32, caps: &Caps) -> Result<Self> {
        // INVARIANT: All slots are free.
        Ok(Self {
            slots: filled(size as usize, || None)?,
            free: all_free(size)?,
            refused: 0,
            overtakes: caps.overtakes,
            chain: Chain::new(batch.min(size) as usize, sges as usize)?,
        })
    }

    /// How often the doorbell rang.
    pub(super) fn doorbells(&self) -> u64 {
        self.chain.doorbells
    }

    /// See [`super::Qp::recv_room`].
    pub(super) fn room(&self) -> u32 {
        self.free.len() as u32
    }

    /// See [`super::Qp::recv_staged`].
    pub(super) fn staged(&self) -> u32 {
        self.chain.len() as u32
    }

    /// Receives that are posted and not completed.
    pub(super) fn outstanding(&self) -> u32 {
        let taken = self.slots.len() - self.free.len() - self.chain.len();
        taken as u32 - self.refused
    }

    /// See [`super::Qp::post_recv`].
    pub(super) fn push<F>(
        &mut self,
        qp: NonNull<sys::ib_qp>,
        key: u32,
        pd: &Arc<Pd>,
        token: R,
        build: F,
    ) -> core::result::Result<(), (Error, R)>
    where
        F: for<'t> FnOnce(&'t R, &mut RecvWr<'_, 't>) -> Result,
    {
        if self.chain.len() == self.chain.places() {
            if let Err(e) = self.flush(qp, key) {
                return Err((e, token));
            }
        }
        let Some(slot) = self.free.pop() else {
            return Err((EAGAIN, token));
        };
        let built = match self.chain.place(0) {
            None => Err(EINVAL),
            Some((raw, sges)) => {
                let mut wr = RecvWr::new(sges, Arc::as_ptr(pd));
                let built = build(&token, &mut wr);
                wr.finish(raw, key, slot);
                built
            }
        };
        if let Err(e) = built {
            let _ = self.free.push_within_capacity(slot);
            return Err((e, token));
        }
        self.slots[slot as usize] = Some(token);
        // SAFETY: Just finished, in the next place; the slot keeps what it names.
        unsafe { self.chain.stage(1) };
        Ok(())
    }

    /// See [`super::Qp::flush_recv`]. `qp` is the one that all calls are for, and `key` its key.
    pub(super) fn flush(&mut self, qp: NonNull<sys::ib_qp>, key: u32) -> Result {
        let staged = self.chain.len() as u32;
        let posted = self.chain.post(false, |first, bad| {
            trace::doorbell(key, true, staged);
            let bad: *mut *mut sys::ib_recv_wr = bad;
            // SAFETY: The QP is valid. The chain is linked and finished; the driver copies it and
            // its SGEs; the memory that they name is kept alive by the tokens in the slots until
            // their completion was seen.
            unsafe { sys::rivet_ib_post_recv(qp.as_ptr(), first, bad.cast()) }
        });
        posted.or_else(|refused| {
            self.refused += refused.left as u32;
            refused.outcome(self.overtakes)
        })
    }

    /// Takes the receive that `wc`, which is of this QP, says is done.
    pub(super) fn take<'c>(&mut self, pd: &'c Pd, wc: &mut Wc) -> Option<Done<'c, R>> {
        let index = wc.route().index;
        let token = self.slots.get_mut(index as usize)?.take()?;
        let _ = self.free.push_within_capacity(index);
        trace::complete(wc.route().key, index, true, wc.raw_status());
        Some(Done::received(token, wc, pd))
    }

    /// Gives all tokens up without dropping them.
    pub(super) fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.slots));
    }
}

/// The numbers of `size` slots, the first on top.
pub(super) fn all_free(size: u32) -> Result<KVVec<u32>> {
    let mut next = size;
    filled(size as usize, || {
        next -= 1;
        next
    })
}
