// SPDX-License-Identifier: GPL-2.0

//! Memory regions that peers may reach, by fast registration.
//!
//! # The life of a region
//!
//! ```text
//! Mr --register(memory)--> Registration --(REG_MR posted and completed)--> RegisteredMr
//!  ^                            |                                               |
//!  +------------- reclaim (proof that an invalidation completed) ---------------+
//! ```
//!
//! An [`Mr`] describes nothing and no key of it is valid. The steps back take the proof that
//! [`super::Qp::take_send`] gives for a completed LOCAL_INV or [`super::Qp::take_recv`] for an
//! arrived SEND with invalidate; so a region is never mapped again while its old rkey could still
//! reach memory (some devices rewrite the live region at once in `ib_map_mr_sg`). The keys change
//! with each registration. Whoever just drops a region deregisters it before its memory goes.
//!
//! # Two proofs
//!
//! Each registration has a number, by which a LOCAL_INV names what it ends. For a [`RegisteredMr`]
//! the REG_MR has completed, so a LOCAL_INV comes after it. A [`Registration`] is still owned by
//! the token of its REG_MR; it can be ended only in the same chain, behind it, or when that is
//! known to be done ([`Registration::confirm`]), and its work requests are all made on one QP; a
//! chain that ends it does not begin it again. So when chain and token are back, that LOCAL_INV was
//! the last that happened to it.
//!
//! A peer names a key, and keys come again. It can only end what was a [`RegisteredMr`] when its
//! message was seen, which is told by a second number, from [`Registration::done`]. With two CQs that
//! does not tell whether it *came* before: there the device has to refuse the invalidation of a key that
//! is not registered, which soft-iWARP does not, and must not register it once more after that, which
//! soft-RoCE may ([`super::caps::Caps::registers_twice`]). So on these a claim proves nothing on a QP with
//! two CQs.

use super::{bond::Bond, caps::Op, dma::sge_of, send_queue, Access, Mapped, Pd, RemoteAddr, Sge};
use crate::sys;
use core::{mem::ManuallyDrop, ops::Range, ptr::NonNull};
use kernel::{
    error::{from_err_ptr, to_result},
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// Counts what became a [`RegisteredMr`].
static LAST_ID: Atomic<u64> = Atomic::new(0);

/// A number that no other [`RegisteredMr`] has or had.
fn new_id() -> u64 {
    LAST_ID.fetch_add(1, Relaxed) + 1
}

/// Numbers of registrations that a region takes at a time, so that it rarely touches what all
/// regions share.
const BLOCK: u64 = 1 << 16;

/// Counts blocks.
static LAST_BLOCK: Atomic<u64> = Atomic::new(0);

/// A region that describes nothing.
///
/// A pointer, as are all that hold one, because each operation moves it several times.
///
/// # Invariants
///
/// `raw` is a region of `pd` that nobody else deregisters; no valid key of it exists.
pub(crate) struct Mr(KBox<Described>);

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
        // Before the region, which nothing would end if there were no memory for this.
        let place = KBox::<Described>::new_uninit(GFP_KERNEL)?;
        // SAFETY: The PD is valid.
        let raw = from_err_ptr(unsafe {
            sys::ib_alloc_mr(pd.as_raw(), sys::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })?;
        // INVARIANT: Allocated just now, never registered.
        let described = Described {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            pd: pd.clone(),
            max_len: pages as usize * PAGE_SIZE,
            key: 0,
            access: Access::LOCAL_READ,
            number: Self::new_block(),
            bond: Bond::new(),
            id: 0,
        };
        Ok(Self(place.write(described)))
    }

    /// The number before the first of a block of its own.
    fn new_block() -> u64 {
        LAST_BLOCK.fetch_add(1, Relaxed) * BLOCK
    }

    /// Gives it a number for a registration; never 0.
    fn new_number(&mut self) {
        let number = &mut self.0.number;
        if *number % BLOCK == BLOCK - 1 {
            *number = Self::new_block();
        }
        // INVARIANT: Of the same block.
        *number += 1;
    }

    /// Describes the whole of `memory` to the region under new keys. The peers' rights begin when
    /// the work request that [`super::SendWr::reg_mr`] makes of it is executed. Does not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `memory` is of another PD, too long, or cannot be one region (it does not start
    /// at a page, say). Region and memory are given up then; [`Mr::try_register`] returns them.
    pub(crate) fn register<C: Cover>(self, memory: C, access: Access) -> Result<Registration<C>> {
        self.try_register(memory, access).map_err(|(e, ..)| e)
    }

    /// The same, but for what becomes of region and memory on error.
    #[allow(clippy::type_complexity)]
    pub(crate) fn try_register<C: Cover>(
        mut self,
        memory: C,
        access: Access,
    ) -> core::result::Result<Registration<C>, (Error, Self, C)> {
        if !Arc::ptr_eq(&self.0.pd, memory.domain()) || memory.length() > self.0.max_len {
            return Err((EINVAL, self, memory));
        }
        // SAFETY: The region is valid and describes nothing that is in use (type invariant).
        if let Err(e) = unsafe { memory.describe(self.0.raw) } {
            return Err((e, self, memory));
        }
        let raw = self.0.as_raw();
        // SAFETY: The region is valid and ours alone.
        let (rkey, lkey) = unsafe {
            sys::rivet_ib_update_fast_reg_key(raw, ((*raw).rkey as u8).wrapping_add(1));
            ((*raw).rkey, (*raw).lkey)
        };
        self.new_number();
        let described = &mut *self.0;
        // A region without rights of peers goes by its local name.
        described.key = if access.is_remote() { rkey } else { lkey };
        described.access = access;
        described.bond = Bond::new();
        described.id = 0;
        Ok(Registration(RegisteredMr {
            mr: ManuallyDrop::new(self),
            memory: ManuallyDrop::new(memory),
        }))
    }

    /// Deregisters: no key is valid after this, and the HCA has done what it was doing by one.
    fn end(&mut self) -> Result {
        // SAFETY: The region is ours (type invariant), and this is called once, at its end.
        let ret = unsafe { sys::ib_dereg_mr_user(self.0.as_raw(), core::ptr::null_mut()) };
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

/// What only `verbs` can implement.
pub(super) mod sealed {
    use super::{Arc, Described, NonNull, Pd, Result};
    use crate::sys;

    /// Memory that a region can be told of.
    pub(crate) trait Describe {
        /// The PD that it is mapped for.
        fn domain(&self) -> &Arc<Pd>;

        /// Bytes.
        fn length(&self) -> usize;

        /// Describes all of it to a region.
        ///
        /// # Safety
        ///
        /// The region is valid and describes nothing that is in use.
        unsafe fn describe(&self, region: NonNull<sys::ib_mr>) -> Result;
    }

    /// A region with what it was told.
    pub(crate) trait Registered {
        fn described(&self) -> &Described;

        /// Its REG_MR is known to have completed, and none can be posted any more but on the QP
        /// with that key.
        fn is_registered(&self, qp: u32) -> bool;
    }
}

use sealed::{Describe, Registered};

/// Mapped memory that a region can cover: [`Mapped`] and [`super::MappedPages`].
pub(crate) trait Cover: Describe + Send + 'static {}

impl<C: Describe + Send + 'static> Cover for C {}

/// A registration that a LOCAL_INV can name: [`Registration`] and [`RegisteredMr`].
pub(crate) trait Region: Registered {}

impl<C: Registered> Region for C {}

/// A region with what it was told last. The C object has address, length and keys of what it covers.
///
/// # Invariants
///
/// * `raw` is a region of `pd`, until the [`Mr`] has ended.
/// * `number` and those up to the end of its block are numbers that no other registration has or had.
pub(crate) struct Described {
    raw: NonNull<sys::ib_mr>,
    pd: Arc<Pd>,
    max_len: usize,
    /// By which work requests name it.
    pub(super) key: u32,
    pub(super) access: Access,
    /// That of the registration; before the first the one before it.
    pub(super) number: u64,
    /// The QP on which it is registered, and whether its REG_MR was seen to be done.
    bond: Bond,
    /// When it became a [`RegisteredMr`]; 0 before that.
    id: u64,
}

impl Described {
    pub(super) fn as_raw(&self) -> *mut sys::ib_mr {
        self.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Makes it one of the QP with that key, if it is of none yet. Whether it is of that QP.
    pub(super) fn bind(&self, qp: u32) -> bool {
        self.bond.bind(qp)
    }

    /// Start, as the HCA sees it, and length.
    fn place(&self) -> (u64, usize) {
        // SAFETY: The region is valid; the fields change only in `ib_map_mr_sg`.
        unsafe { ((*self.as_raw()).iova, (*self.as_raw()).length as usize) }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: The region is valid; the field changes only in `Mr::try_register`.
        unsafe { (*self.as_raw()).rkey }
    }

    fn remote(&self, offset: usize) -> Result<RemoteAddr> {
        let (start, len) = self.place();
        if offset >= len {
            return Err(EINVAL);
        }
        Ok(RemoteAddr {
            addr: start + offset as u64,
            rkey: self.rkey(),
        })
    }

    fn sge(&self, range: Range<usize>) -> Result<Sge<'_>> {
        let (start, len) = self.place();
        // SAFETY: As for `rkey`.
        let lkey = unsafe { (*self.as_raw()).lkey };
        sge_of(&self.pd, start, len, lkey, range)
    }
}

/// A region on its way to be registered: the token of a REG_MR work request, or a part of it.
///
/// Its names can be used in work requests behind that one. Elsewhere, or before, the HCA refuses
/// them, which costs the connection.
pub(crate) struct Registration<C: Cover = Mapped>(RegisteredMr<C>);

impl<C: Cover> Registration<C> {
    /// The region, once the REG_MR has completed. Taken earlier, its keys are just not valid yet.
    pub(crate) fn done(self) -> RegisteredMr<C> {
        let mut region = self.0;
        region.mr.0.id = new_id();
        region
    }

    /// The memory that it covers.
    pub(crate) fn memory(&self) -> &C {
        &self.0.memory
    }

    /// The key that its work requests name it by: the rkey of one that peers have rights in, else
    /// the lkey.
    pub(crate) fn key(&self) -> u32 {
        self.0.key()
    }

    /// See [`RegisteredMr::remote`].
    pub(crate) fn remote(&self, offset: usize) -> Result<RemoteAddr> {
        self.0.remote(offset)
    }

    /// See [`RegisteredMr::sge`].
    pub(crate) fn sge(&self, range: Range<usize>) -> Result<Sge<'_>> {
        self.0.sge(range)
    }

    /// Notes that its REG_MR is done, for who shares it and cannot have it [done](Self::done):
    /// LOCAL_INVs of other chains may name it from now on. Returns whether that is the proof.
    pub(crate) fn confirm(&self, proof: &Revocation<'_>) -> bool {
        let described = self.described();
        let done = matches!(&proof.what, Revoked::By(chain)
            if chain.have(send_queue::Effect::Registers, described.number));
        if done {
            described.bond.confirm();
        }
        done
    }

    /// Takes region and memory back, with the proof that a LOCAL_INV of it was done; see
    /// [`RegisteredMr::reclaim`]. A peer's invalidation is no proof here.
    pub(crate) fn reclaim(self, proof: &Revocation<'_>) -> core::result::Result<(Mr, C), Self> {
        if self.0.is_ended_by(proof) {
            Ok(self.0.into_parts())
        } else {
            Err(self)
        }
    }
}

impl<C: Cover> Registered for Registration<C> {
    fn described(&self) -> &Described {
        self.0.described()
    }

    fn is_registered(&self, qp: u32) -> bool {
        self.described().bond.is_confirmed_on(qp)
    }
}

/// A region with valid keys: peers may reach `memory` with the rights that were given. Its end
/// deregisters it before its memory is unmapped.
pub(crate) struct RegisteredMr<C: Cover = Mapped> {
    mr: ManuallyDrop<Mr>,
    memory: ManuallyDrop<C>,
}

impl<C: Cover> Drop for RegisteredMr<C> {
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
            // A key may still be valid: what it reaches must stay.
            core::mem::forget(memory);
        }
        // SAFETY: Not used after this; the region itself has ended above.
        drop(unsafe { core::ptr::read(&mr.0) });
    }
}

impl<C: Cover> RegisteredMr<C> {
    /// The memory that it covers.
    pub(crate) fn memory(&self) -> &C {
        &self.memory
    }

    /// See [`Registration::key`].
    pub(crate) fn key(&self) -> u32 {
        self.described().key
    }

    /// The name by which a peer reaches the byte at `offset`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is none.
    pub(crate) fn remote(&self, offset: usize) -> Result<RemoteAddr> {
        self.described().remote(offset)
    }

    /// An SGE over `range` by the region's lkey, for a local work request: one however many pieces
    /// the memory has. Where data shall land in it, the region needs [`Access::LOCAL_WRITE`], and
    /// for READs [`super::caps::Caps::read_sink`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range does not lie within the region.
    pub(crate) fn sge(&self, range: Range<usize>) -> Result<Sge<'_>> {
        self.described().sge(range)
    }

    /// Whether that is the proof of a LOCAL_INV of it.
    fn is_ended_by(&self, proof: &Revocation<'_>) -> bool {
        match proof.what {
            Revoked::By(chain) => chain.have(send_queue::Effect::Revokes, self.described().number),
            Revoked::Key { .. } => false,
        }
    }

    /// Takes region and memory back, with the proof that this registration was invalidated;
    /// without it, they stay registered and come back as the error.
    pub(crate) fn reclaim(self, proof: &Revocation<'_>) -> core::result::Result<(Mr, C), Self> {
        let proven = match proof.what {
            Revoked::By(_) => self.is_ended_by(proof),
            Revoked::Key { key, seen } => {
                key == self.described().rkey()
                    && self.described().id <= seen
                    && core::ptr::eq(proof.pd, self.described().pd())
            }
        };
        if proven {
            Ok(self.into_parts())
        } else {
            Err(self)
        }
    }

    /// To be called with the proof that no key is valid any more.
    fn into_parts(self) -> (Mr, C) {
        let mut this = ManuallyDrop::new(self);
        // INVARIANT: The only keys of the region were invalidated.
        // SAFETY: `this` is not used, nor dropped, after this.
        unsafe {
            (
                ManuallyDrop::take(&mut this.mr),
                ManuallyDrop::take(&mut this.memory),
            )
        }
    }
}

impl<C: Cover> Registered for RegisteredMr<C> {
    fn described(&self) -> &Described {
        &self.mr.0
    }

    fn is_registered(&self, _qp: u32) -> bool {
        true
    }
}

/// Proof of what became of registrations, from [`super::Qp::take_send`] (that REG_MRs and LOCAL_INVs
/// are done) or [`super::Qp::take_recv`] (of the peer's SEND with invalidate).
pub(crate) struct Revocation<'c> {
    pub(super) what: Revoked<'c>,
    pub(super) pd: &'c Pd,
}

/// What was invalidated.
pub(super) enum Revoked<'c> {
    /// By LOCAL_INVs of our own: what those in this chain say.
    By(send_queue::Neighbours<'c>),
    /// By the peer's SEND with invalidate: the registration of that key, if it is one of those that
    /// were made up to then. Keys come again, registrations' numbers do not.
    Key { key: u32, seen: u64 },
}

impl Revoked<'_> {
    /// By a message that has just been seen.
    pub(super) fn of_key(key: u32) -> Self {
        Revoked::Key {
            key,
            seen: LAST_ID.load(Relaxed),
        }
    }
}
