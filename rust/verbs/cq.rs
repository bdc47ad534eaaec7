// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! # Normal operation
//!
//! A CQ is polled by its owner with [`Cq::poll`]. An owner that wants to sleep arms it with
//! [`Cq::arm`]; the handler is then told of the next completion once. When `arm` says that
//! completions may have slipped in before it took effect, the owner polls again and does not
//! sleep: so none is ever missed.
//!
//! # No overflow
//!
//! A CQ that is full loses completions, and kernel users cannot resize one. So a CQ counts what
//! its QPs may ever have outstanding ([`Cq::reserve`]); a QP that does not fit is refused with
//! `ENOSPC` and its owner takes another CQ. A QP that goes with work outstanding leaves its
//! reservation until the CQ has been polled empty, as its completions may still be in there.
//!
//! C header: `include/rdma/ib_verbs.h`

use super::{room::Room, Device, Wc};
use crate::sys;
use core::ptr::NonNull;
use kernel::{
    error::{from_err_ptr, to_result},
    ffi::c_void,
    prelude::*,
    sync::Arc,
};

/// Who is told of completions.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The CQ was armed and a completion came. Runs in any context, maybe with interrupts off and
    /// the CQ's lock held: it must not poll, arm, sleep or take time, only tell somebody.
    fn kick(&self);

    /// The device reported an error of the CQ (an overrun, say). Completions may be lost; the QPs
    /// on it are of no more use. Runs in any context.
    fn failed(&self);
}

/// A completion queue.
///
/// # Invariants
///
/// * `raw` is a CQ of `device` that nobody else destroys.
/// * `handler` came from `Arc::into_raw` for the type that `release` releases, and is what the C
///   object has as its context.
pub(crate) struct Cq {
    raw: NonNull<sys::ib_cq>,
    device: Arc<Device>,
    room: Room,
    handler: *const c_void,
    release: unsafe fn(*const c_void),
}

// SAFETY: The C object may be used from any thread, and handlers are `Send`.
unsafe impl Send for Cq {}
// SAFETY: Polling and arming lock in the driver, and handlers are `Sync`.
unsafe impl Sync for Cq {}

impl Cq {
    /// Makes a CQ with room for `entries` completions, whose events come on completion vector
    /// `vector` (modulo what the device has). Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for zero entries or more than the device's `max_cqe`.
    pub(crate) fn new<H: Handler>(
        device: &Arc<Device>,
        entries: u32,
        vector: u32,
        handler: Arc<H>,
    ) -> Result<Arc<Self>> {
        if entries == 0 || entries > device.caps().max_cqe {
            return Err(EINVAL);
        }
        // SAFETY: The device is registered (invariant of `Device`).
        let vectors = unsafe { (*device.as_raw()).num_comp_vectors }.max(1);
        let attr = sys::ib_cq_init_attr {
            cqe: entries,
            comp_vector: vector % u32::try_from(vectors)?,
            flags: 0,
        };
        let handler = Arc::into_raw(handler).cast::<c_void>();
        // SAFETY: The device is registered; the callbacks match the type of the context, which
        // lives until after the CQ is destroyed (by `Drop`, or below if it was never made).
        let raw = from_err_ptr(unsafe {
            sys::__ib_create_cq(
                device.as_raw(),
                Some(on_completion::<H>),
                Some(on_event::<H>),
                handler.cast_mut(),
                &attr,
                c"rivet".as_char_ptr(),
            )
        });
        let raw = match raw.and_then(|raw| NonNull::new(raw).ok_or(ENOMEM)) {
            Ok(raw) => raw,
            Err(e) => {
                // SAFETY: From `into_raw` above, and no CQ has it.
                unsafe { release::<H>(handler) };
                return Err(e);
            }
        };
        // INVARIANT: Made for us just now, with `handler` as its context.
        let cq = Self {
            raw,
            device: device.clone(),
            room: Room::new(entries),
            handler,
            release: release::<H>,
        };
        Ok(Arc::new(cq, GFP_KERNEL)?)
    }

    pub(super) fn as_raw(&self) -> *mut sys::ib_cq {
        self.raw.as_ptr()
    }

    /// The device that it is on.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Takes up to `wcs.len()` completions out; returns those that came. Does not sleep.
    ///
    /// Completions of one QP's send queue come in the order in which they were posted, and so do
    /// those of its receive queue. To be called by one at a time.
    pub(crate) fn poll<'a>(&self, wcs: &'a mut [Wc]) -> Result<&'a mut [Wc]> {
        let most = wcs.len();
        let len = i32::try_from(most).unwrap_or(i32::MAX);
        let n = self.room.poll(most, || {
            // SAFETY: The CQ is valid; `Wc` is a transparent `ib_wc`, and there are `len` of them.
            let n = unsafe { sys::rivet_ib_poll_cq(self.as_raw(), len, wcs.as_mut_ptr().cast()) };
            usize::try_from(n).map_err(|_| Error::from_errno(n))
        })?;
        wcs.get_mut(..n).ok_or(EIO)
    }

    /// Asks for one call of the handler at the next completion. Returns `true` if completions may
    /// be there already, for which no call need come: poll again before sleeping. Does not sleep.
    pub(crate) fn arm(&self) -> bool {
        self.notify(sys::ib_cq_notify_flags_IB_CQ_NEXT_COMP)
    }

    /// The same at the next completion that has an error, or is of a receive whose sender wanted that
    /// (`IB_CQ_SOLICITED`; the InfiniBand specification, 11.4.2.2). If it is armed for all already, that
    /// stays.
    pub(crate) fn arm_for_errors(&self) -> bool {
        self.notify(sys::ib_cq_notify_flags_IB_CQ_SOLICITED)
    }

    fn notify(&self, flag: sys::ib_cq_notify_flags) -> bool {
        let flags = flag | sys::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS;
        // SAFETY: The CQ is valid.
        let ret = unsafe { sys::rivet_ib_req_notify_cq(self.as_raw(), flags) };
        // An error is no promise of a call either.
        ret != 0
    }

    /// Has the device hold events of an armed CQ back until `count` completions have come or `usecs`
    /// microseconds went by since the first of them; zero of either means that it does not count.
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the device cannot ([`super::caps::Caps::cq_moderation`]); what it says of the
    /// numbers.
    pub(crate) fn set_moderation(&self, count: u16, usecs: u16) -> Result {
        // SAFETY: The CQ is valid, and not one of the core's shared ones.
        to_result(unsafe { sys::rdma_set_cq_moderation(self.as_raw(), count, usecs) })
    }

    /// Sets room for `n` completions aside, for good or until [`Cq::release`].
    pub(super) fn reserve(&self, n: u32) -> Result {
        self.room.reserve(n).then_some(()).ok_or(ENOSPC)
    }

    /// Gives room back that [`Cq::reserve`] set aside.
    pub(super) fn release(&self, n: u32) {
        self.room.release(n);
    }

    /// Gives room back of which `n` entries may still be taken by completions of a QP that is gone:
    /// those become free when the queue is next polled empty.
    pub(super) fn abandon(&self, n: u32) {
        self.room.abandon(n);
    }

    /// Completions that no QP has reserved.
    pub(crate) fn room(&self) -> u32 {
        self.room.left()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: The CQ is ours; the QPs on it held references to this object. The driver does not
        // return before a running handler has.
        let ret = unsafe { sys::ib_destroy_cq_user(self.as_raw(), core::ptr::null_mut()) };
        if ret != 0 {
            // It may still call the handler, which therefore stays, and so does the device.
            pr_err!("a CQ was still in use: error {ret}\n");
            core::mem::forget(self.device.clone());
            return;
        }
        // SAFETY: By the type invariant, and the CQ that could use it is gone.
        unsafe { (self.release)(self.handler) };
    }
}

/// # Safety
///
/// `handler` comes from `Arc::<H>::into_raw`, and that reference is given up.
unsafe fn release<H: Handler>(handler: *const c_void) {
    // SAFETY: By the function's safety requirement.
    drop(unsafe { Arc::<H>::from_raw(handler.cast()) });
}

/// # Safety
///
/// For the core: `context` is the `H` that [`Cq::new`] gave.
unsafe extern "C" fn on_completion<H: Handler>(_cq: *mut sys::ib_cq, context: *mut c_void) {
    // SAFETY: The context is the `H` that `Cq::new` gave, which outlives the CQ.
    unsafe { &*context.cast::<H>() }.kick();
}

/// # Safety
///
/// For the core: `context` is the `H` that [`Cq::new`] gave.
unsafe extern "C" fn on_event<H: Handler>(_event: *mut sys::ib_event, context: *mut c_void) {
    // SAFETY: The context is the `H` that `Cq::new` gave, which outlives the CQ.
    unsafe { &*context.cast::<H>() }.failed();
}
