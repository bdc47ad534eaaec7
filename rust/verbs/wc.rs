// SPDX-License-Identifier: GPL-2.0

//! Work completions.

use super::{
    mr::{Revocation, Revoked},
    Pd, WcStatus,
};
use crate::sys;

/// A completion, as [`super::Cq::poll`] took it out of the queue.
#[repr(transparent)]
pub(crate) struct Wc(sys::ib_wc);

/// Where a completion belongs: what [`super::QpConfig::key`] said, which queue, and which work
/// request of that queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The key of the QP or SRQ.
    pub(crate) key: u32,
    /// Of the receive queue, not of the send queue.
    pub(crate) recv: bool,
    /// Number within the queue.
    pub(super) index: u32,
}

/// Marks a receive's `wr_id`.
const RECV: u64 = 1 << 31;

impl Route {
    /// Numbers within a queue lie below this.
    pub(super) const MAX_INDEX: u32 = 1 << 31;

    pub(super) fn to_wr_id(self) -> u64 {
        let recv = if self.recv { RECV } else { 0 };
        (u64::from(self.key) << 32) | recv | u64::from(self.index)
    }

    fn from_wr_id(id: u64) -> Self {
        Self {
            key: (id >> 32) as u32,
            recv: id & RECV != 0,
            index: (id & (RECV - 1)) as u32,
        }
    }
}

// SAFETY: Numbers, and pointers that are compared and never followed.
unsafe impl Send for Wc {}

impl Wc {
    /// Room for one completion.
    pub(crate) const EMPTY: Self = {
        // SAFETY: All members are numbers, raw pointers and unions of those: zeros are valid.
        Self(unsafe { core::mem::zeroed() })
    };

    /// Where it belongs.
    pub(crate) fn route(&self) -> Route {
        // SAFETY: Every work request of this module is posted with a `wr_id`; any value is valid.
        Route::from_wr_id(unsafe { self.0.__bindgen_anon_1.wr_id })
    }

    /// How the work request ended.
    /// As in `enum ib_wc_status`.
    pub(super) fn raw_status(&self) -> u32 {
        self.0.status
    }

    pub(crate) fn status(&self) -> WcStatus {
        WcStatus::from_raw(self.0.status)
    }

    /// The device's own code for an error, for the log.
    pub(crate) fn vendor_err(&self) -> u32 {
        self.0.vendor_err
    }

    /// Bytes received (or read). Only of a successful receive or READ. For UD it includes
    /// [`super::caps::UD_GRH_LEN`].
    pub(crate) fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate data, if the message had one.
    pub(crate) fn imm(&self) -> Option<u32> {
        let has = self.0.wc_flags & sys::ib_wc_flags_IB_WC_WITH_IMM as i32 != 0;
        // SAFETY: A plain number in either reading of the union.
        has.then(|| u32::from_be(unsafe { self.0.ex.imm_data }))
    }

    /// The rkey that the message invalidated, if it did.
    pub(crate) fn invalidated(&self) -> Option<u32> {
        let has = self.0.wc_flags & sys::ib_wc_flags_IB_WC_WITH_INVALIDATE as i32 != 0;
        // SAFETY: A plain number in either reading of the union.
        let rkey = unsafe { self.0.ex.invalidate_rkey };
        has.then_some(rkey)
    }

    /// The sender's QP number (UD).
    pub(crate) fn src_qp(&self) -> u32 {
        self.0.src_qp
    }

    /// Whether it is of this QP and was not taken yet. The pointer is compared, never followed:
    /// the QP may be gone.
    pub(super) fn is_of(&self, qp: *mut sys::ib_qp) -> bool {
        core::ptr::eq(self.0.qp, qp)
    }

    /// Whether it was taken already, or never filled.
    pub(super) fn is_consumed(&self) -> bool {
        self.0.qp.is_null()
    }

    /// Makes it a completion of nobody, so that it cannot free a second work request.
    pub(super) fn consume(&mut self) {
        self.0.qp = core::ptr::null_mut();
    }
}

/// A completed work request, or chain of such.
pub(crate) struct Done<'c, T> {
    /// The token that was given when it was posted.
    pub(crate) token: T,
    /// How it ended. Of a chain, the first error, if there was one.
    pub(crate) status: WcStatus,
    /// What it did to registrations, if it did something.
    pub(crate) revocation: Option<Revocation<'c>>,
}

impl<'c, T> Done<'c, T> {
    /// Of a receive, whose completion is used up by this.
    pub(super) fn received(token: T, wc: &mut Wc, pd: &'c Pd) -> Self {
        let status = wc.status();
        let revoked = wc.invalidated().filter(|_| status == WcStatus::Success);
        wc.consume();
        Self {
            token,
            status,
            revocation: revoked.map(|key| Revocation {
                what: Revoked::of_key(key),
                pd,
            }),
        }
    }
}
