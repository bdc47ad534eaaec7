// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues: receives that whichever QP needs one next takes.

use super::{
    chain::Chain,
    qp::{filled, new_key},
    recv_queue::all_free,
    wc::Done,
    wr::RecvWr,
    Pd, Wc,
};
use crate::{kapi::trace, sys};
use core::ptr::NonNull;
use kernel::{
    error::from_err_ptr,
    new_spinlock,
    prelude::*,
    sync::{Arc, SpinLock},
};

/// A shared receive queue that keeps tokens of type `R`, which borrow nothing (see [`super::Qp`]).
///
/// # Invariants
///
/// * `raw` is an SRQ of `pd` that nobody else destroys.
/// * The slots hold a token for each receive that is posted and whose completion was not seen.
#[pin_data(PinnedDrop)]
pub(crate) struct Srq<R: 'static> {
    raw: NonNull<sys::ib_srq>,
    pd: Arc<Pd>,
    key: u32,
    max_sge: u32,
    capacity: u32,
    #[pin]
    slots: SpinLock<Slots<R>>,
}

struct Slots<R> {
    tokens: KVVec<Option<R>>,
    free: KVVec<u32>,
    /// One receive is posted at a time.
    chain: Chain<sys::ib_recv_wr>,
}

/// The most SGEs of a receive.
const MAX_SGE: usize = 32;

const EMPTY: sys::ib_sge = sys::ib_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

// SAFETY: The C object may be used from any thread; tokens are `Send` by the bound.
unsafe impl<R: Send> Send for Srq<R> {}
// SAFETY: The slots are under a lock, and posting locks in the driver.
unsafe impl<R: Send> Sync for Srq<R> {}

impl<R: 'static> Srq<R> {
    /// Makes an SRQ for `capacity` receives of up to `max_sge` SGEs. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for numbers beyond the device's limits, `EOPNOTSUPP` if it has no SRQs.
    pub(crate) fn new(pd: &Arc<Pd>, capacity: u32, max_sge: u32) -> Result<Arc<Self>> {
        let caps = pd.device().caps();
        if caps.max_srq_wr == 0 {
            return Err(EOPNOTSUPP);
        }
        let most_sges = caps.max_srq_sge.min(MAX_SGE as u32);
        if capacity == 0 || capacity > caps.max_srq_wr || max_sge == 0 || max_sge > most_sges {
            return Err(EINVAL);
        }
        let tokens = filled(capacity as usize, || None)?;
        let free = all_free(capacity)?;
        let chain = Chain::new(1, max_sge as usize)?;
        let mut init = sys::ib_srq_init_attr {
            attr: sys::ib_srq_attr {
                max_wr: capacity,
                max_sge,
                srq_limit: 0,
            },
            srq_type: sys::ib_srq_type_IB_SRQT_BASIC,
            ..Default::default()
        };
        // SAFETY: The PD is valid; no user object or data, as for any kernel user.
        let raw = from_err_ptr(unsafe {
            sys::ib_create_srq_user(
                pd.as_raw(),
                &mut init,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        })?;
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        let made = Arc::pin_init(
            // INVARIANT: Made just now, nothing posted.
            pin_init!(Self {
                raw,
                pd: pd.clone(),
                key: new_key(),
                max_sge,
                capacity,
                slots <- new_spinlock!(Slots { tokens, free, chain }),
            }),
            GFP_KERNEL,
        );
        if made.is_err() {
            // SAFETY: Made above, and nobody has it.
            unsafe { sys::ib_destroy_srq_user(raw.as_ptr(), core::ptr::null_mut()) };
        }
        made
    }

    pub(super) fn as_raw(&self) -> *mut sys::ib_srq {
        self.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Receives that it holds at most.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The key that its completions carry.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Posts a receive; see [`super::Qp::post_recv`]. Does not sleep or allocate.
    pub(crate) fn post_recv<F>(&self, token: R, build: F) -> core::result::Result<(), (Error, R)>
    where
        F: for<'t> FnOnce(&'t R, &mut RecvWr<'_, 't>) -> Result,
    {
        // Built before the lock is taken: `build` is the caller's, and may do what it likes.
        let mut sges = [const { EMPTY }; MAX_SGE];
        let mut wr = RecvWr::new(&mut sges[..self.max_sge as usize], Arc::as_ptr(&self.pd));
        if let Err(e) = build(&token, &mut wr) {
            return Err((e, token));
        }
        let mut guard = self.slots.lock();
        let slots = &mut *guard;
        let Some(slot) = slots.free.pop() else {
            return Err((EAGAIN, token));
        };
        // Never full: what is staged is posted below, or forgotten.
        if let Some((raw, room)) = slots.chain.place(0) {
            wr.copy_sges(room);
            wr.finish(raw, self.key, slot);
            // SAFETY: Just finished, in the next place. What it names is kept alive by the token,
            // which goes into its slot below, if it is posted. Should it complete before that,
            // whoever takes the completion waits for the lock that is held here.
            unsafe { slots.chain.stage(1) };
        }
        let srq = self.as_raw();
        trace::doorbell(self.key, true, 1);
        let posted = slots.chain.post(false, |first, bad| {
            let bad: *mut *mut sys::ib_recv_wr = bad;
            // SAFETY: The SRQ is valid; the driver copies the work request.
            unsafe { sys::rivet_ib_post_srq_recv(srq, first, bad.cast()) }
        });
        match posted {
            // The one was not taken.
            Err(refused) if refused.left == 1 => {
                let _ = slots.free.push_within_capacity(slot);
                Err((refused.error, token))
            }
            posted => {
                slots.tokens[slot as usize] = Some(token);
                if let Err(refused) = posted {
                    // It may have taken it all the same.
                    let code = refused.error.to_errno();
                    pr_err!(
                        "an SRQ's driver gave error {code} and did not say for which receive\n"
                    );
                }
                Ok(())
            }
        }
    }

    /// Takes the receive that `wc` says is done; `None` for a completion of somebody else.
    pub(crate) fn take_recv(&self, wc: &mut Wc) -> Option<Done<'_, R>> {
        let route = wc.route();
        if !route.recv || route.key != self.key || wc.is_consumed() {
            return None;
        }
        let mut slots = self.slots.lock();
        let token = slots.tokens.get_mut(route.index as usize)?.take()?;
        let _ = slots.free.push_within_capacity(route.index);
        trace::complete(route.key, route.index, true, wc.raw_status());
        Some(Done::received(token, wc, &self.pd))
    }
}

#[pinned_drop]
impl<R: 'static> PinnedDrop for Srq<R> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The SRQ is ours; the QPs on it held references to this object.
        let ret = unsafe { sys::ib_destroy_srq_user(self.raw.as_ptr(), core::ptr::null_mut()) };
        if ret != 0 {
            pr_err!("an SRQ could not be destroyed: error {ret}\n");
        }
    }
}
