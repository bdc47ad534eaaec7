// SPDX-License-Identifier: GPL-2.0

//! Memory regions that peers may reach, by fast registration.
//!
//! # The life of a region
//!
//! ```text
//! Mr --register(memory)--> Registration --(REG_MR posted and completed)--> RegisteredMr
//!  ^                                                                            |
//!  +------------- reclaim (proof that an invalidation completed) --------------+
//! ```
//!
//! An [`Mr`] describes nothing and no key of it is valid. The step back from [`RegisteredMr`] takes
//! the proof that [`super::Qp::take_send`] gives for a completed LOCAL_INV or an arrived SEND with
//! invalidate; so a region is never mapped again while its old rkey could still reach memory (some
//! devices rewrite the live region at once in `ib_map_mr_sg`). The rkey changes with each
//! registration. Whoever just drops a region deregisters it before its memory goes.

use super::{caps::Op, Access, Mapped, Pd, RemoteAddr};
use crate::sys;
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    error::{from_err_ptr, to_result},
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// Gives each registration a number of its own.
static LAST_ID: Atomic<u64> = Atomic::new(0);

/// A number that no other registration has or had.
fn new_id() -> u64 {
    LAST_ID.fetch_add(1, Relaxed) + 1
}

/// A region that describes nothing.
///
/// # Invariants
///
/// `raw` is a region of `pd` that nobody else deregisters; no valid key of it exists.
pub(crate) struct Mr {
    raw: NonNull<sys::ib_mr>,
    pd: Arc<Pd>,
    max_len: usize,
}

// SAFETY: The C object may be used from any thread.
unsafe impl Send for Mr {}
// SAFETY: `&Mr` offers reading.
unsafe impl Sync for Mr {}

impl Mr {
    /// Allocates a region that can cover `len` bytes. Sleeps.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the device has no fast registration, `EINVAL` if `len` is zero or more than
    /// it registers at once, `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize) -> Result<Self> {
        let caps = pd.device().caps();
        caps.check(Op::RegMr)?;
        let pages = u32::try_from(len.div_ceil(PAGE_SIZE))?;
        if pages == 0 || pages > caps.max_fast_reg_pages {
            return Err(EINVAL);
        }
        // SAFETY: The PD is valid.
        let raw = from_err_ptr(unsafe {
            sys::ib_alloc_mr(pd.as_raw(), sys::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })?;
        // INVARIANT: Allocated just now, never registered.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            pd: pd.clone(),
            max_len: pages as usize * PAGE_SIZE,
        })
    }

    /// Describes the whole of `memory` to the region under a new key. The peers' rights begin when
    /// the work request that [`super::SendWr::reg_mr`] makes of it is executed. Does not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `memory` is of another PD, does not start at a page, or is too long. Region and
    /// memory are given up then.
    pub(crate) fn register(self, memory: Mapped, access: Access) -> Result<Registration> {
        if !Arc::ptr_eq(&self.pd, memory.pd())
            || memory.len() > self.max_len
            || memory.cpu().align_offset(PAGE_SIZE) != 0
        {
            return Err(EINVAL);
        }
        let raw = self.raw.as_ptr();
        // SAFETY: The region is valid and describes nothing that is in use (type invariant); the
        // range is mapped.
        let n = unsafe {
            sys::rivet_ib_map_mr_single(raw, memory.cpu().cast(), memory.dma(), memory.len())
        };
        if n != 1 {
            return Err(if n < 0 { Error::from_errno(n) } else { EINVAL });
        }
        // SAFETY: The region is valid and ours alone.
        let key = unsafe {
            sys::rivet_ib_update_fast_reg_key(raw, ((*raw).rkey as u8).wrapping_add(1));
            (*raw).rkey
        };
        Ok(Registration(RegisteredMr {
            mr: ManuallyDrop::new(self),
            memory: ManuallyDrop::new(memory),
            key,
            access,
            id: 0,
        }))
    }

    pub(super) fn as_raw(&self) -> *mut sys::ib_mr {
        self.raw.as_ptr()
    }
}

impl Mr {
    /// Deregisters: no key is valid after this, and the HCA has done what it was doing by one.
    fn end(&mut self) -> Result {
        // SAFETY: The region is ours (type invariant), and this is called once, at its end.
        let ret = unsafe { sys::ib_dereg_mr_user(self.as_raw(), core::ptr::null_mut()) };
        to_result(ret).inspect_err(|e| {
            pr_err!(
                "a memory region could not be deregistered: error {}\n",
                e.to_errno()
            );
        })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // It covers nothing: there is nothing to keep if it fails.
        let _ = self.end();
    }
}

/// A region on its way to be registered: the token of a REG_MR work request.
pub(crate) struct Registration(pub(super) RegisteredMr);

impl Registration {
    /// The region, once the REG_MR has completed (or, for work requests that follow on the same
    /// QP, once it is posted). Taken earlier, its rkey is just not valid yet.
    pub(crate) fn done(self) -> RegisteredMr {
        let mut region = self.0;
        region.id = new_id();
        region
    }
}

/// A region with a valid rkey: peers may reach `memory` with the rights that were given. Its end
/// deregisters it before its memory is unmapped.
pub(crate) struct RegisteredMr {
    pub(super) mr: ManuallyDrop<Mr>,
    memory: ManuallyDrop<Mapped>,
    pub(super) key: u32,
    pub(super) access: Access,
    pub(super) id: u64,
}

impl Drop for RegisteredMr {
    fn drop(&mut self) {
        // SAFETY: Neither is used after this.
        let (mr, memory) = unsafe {
            (
                ManuallyDrop::take(&mut self.mr),
                ManuallyDrop::take(&mut self.memory),
            )
        };
        let mut mr = ManuallyDrop::new(mr);
        if mr.end().is_err() {
            // The rkey may still be valid: what it reaches must stay.
            core::mem::forget(memory);
        }
        // SAFETY: Not used after this; the region itself has ended above.
        drop(unsafe { core::ptr::read(&mr.pd) });
    }
}

impl RegisteredMr {
    /// The memory that it covers.
    pub(crate) fn memory(&self) -> &Mapped {
        &self.memory
    }

    /// The name by which a peer reaches the byte at `offset`.
    pub(crate) fn remote(&self, offset: usize) -> Result<RemoteAddr> {
        if offset >= self.memory.len() {
            return Err(EINVAL);
        }
        // SAFETY: The region is valid; the field changes only in `ib_map_mr_sg`.
        let start = unsafe { (*self.mr.as_raw()).iova };
        Ok(RemoteAddr {
            addr: start + offset as u64,
            rkey: self.key,
        })
    }

    /// Takes region and memory back, with the proof that this registration was invalidated;
    /// without it, they stay registered and come back as the error.
    pub(crate) fn reclaim(
        self,
        proof: &Revocation<'_>,
    ) -> core::result::Result<(Mr, Mapped), Self> {
        let proven = match proof.what {
            Revoked::Id(id) => id == self.id,
            Revoked::Key { key, seen } => {
                key == self.key && self.id <= seen && core::ptr::eq(proof.pd, &*self.mr.pd)
            }
        };
        if proven {
            let mut this = ManuallyDrop::new(self);
            // INVARIANT: The only key of the region was invalidated.
            // SAFETY: `this` is not used, nor dropped, after this.
            Ok(unsafe {
                (
                    ManuallyDrop::take(&mut this.mr),
                    ManuallyDrop::take(&mut this.memory),
                )
            })
        } else {
            Err(self)
        }
    }
}

/// Proof that a registration is no longer valid, from [`super::Qp::take_send`] (of a LOCAL_INV) or
/// [`super::Qp::take_recv`] (of the peer's SEND with invalidate).
pub(crate) struct Revocation<'c> {
    pub(super) what: Revoked,
    pub(super) pd: &'c Pd,
}

/// What was invalidated.
pub(super) enum Revoked {
    /// By our own LOCAL_INV: the registration of that number.
    Id(u64),
    /// By the peer's SEND with invalidate: the registration of that key, if it is one of those that
    /// were made up to then. Keys come again, registrations' numbers do not.
    Key { key: u32, seen: u64 },
}

impl Revoked {
    /// By a message that has just been seen.
    pub(super) fn of_key(key: u32) -> Self {
        Revoked::Key {
            key,
            seen: LAST_ID.load(Relaxed),
        }
    }
}
