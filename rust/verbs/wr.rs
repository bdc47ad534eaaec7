// SPDX-License-Identifier: GPL-2.0

//! Work requests under construction.
//!
//! [`super::Qp::push`] hands a [`SendWr`] to a closure, which names the operation and its memory.
//! What the transport, the device or the QP does not allow is refused here, before it is posted.

use super::{
    caps::{Caps, Op},
    mr::{sealed::Registered, Cover, Described, Region, Registration},
    send_queue::{Effect, Neighbours},
    Ah, Pd, QpType, Route, Sge,
};
use crate::sys;
use core::marker::PhantomData;
use kernel::{page::PAGE_SIZE, prelude::*};

/// Memory of a peer: where, and the key that the peer gave for it.
///
/// It is only a name: the peer's HCA checks it, and a wrong one costs the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteAddr {
    /// Address, in the peer's terms.
    pub(crate) addr: u64,
    /// Key, from the peer.
    pub(crate) rkey: u32,
}

/// A C work request of any kind. Each starts with a `struct ib_send_wr`.
#[repr(C)]
pub(super) union RawWr {
    send: sys::ib_send_wr,
    rdma: sys::ib_rdma_wr,
    atomic: sys::ib_atomic_wr,
    ud: sys::ib_ud_wr,
    reg: sys::ib_reg_wr,
}

impl RawWr {
    pub(super) fn empty() -> Self {
        Self {
            ud: sys::ib_ud_wr::default(),
        }
    }

    pub(super) fn header(&mut self) -> &mut sys::ib_send_wr {
        // SAFETY: Every member starts with the header, and any bytes are a valid one.
        unsafe { &mut self.send }
    }
}

/// What a QP allows.
#[derive(Clone)]
pub(super) struct Limits {
    pub(super) qp_type: QpType,
    pub(super) caps: Caps,
    pub(super) max_sge: u32,
    /// Longest message, bytes.
    pub(super) max_message: u32,
}

/// A work request for the send queue that may use memory living as long as `'t`: that of the
/// token which the QP keeps until the completion.
pub(crate) struct SendWr<'q, 't> {
    raw: &'q mut RawWr,
    sges: &'q mut [sys::ib_sge],
    limits: &'q Limits,
    pd: *const Pd,
    n: usize,
    bytes: u64,
    op: Option<Op>,
    signaled: bool,
    /// The key of the QP.
    qp: u32,
    /// The members of its chain before it.
    before: Neighbours<'q>,
    effect: Effect,
    registration: u64,
    _token: PhantomData<&'t ()>,
}

/// What the send queue has to know of the finished work request.
pub(super) struct Finished {
    pub(super) signaled: bool,
    pub(super) effect: Effect,
    pub(super) registration: u64,
    /// As in `enum ib_wr_opcode`.
    pub(super) opcode: u32,
    /// What its SGEs name.
    pub(super) bytes: u32,
}

impl<'q, 't> SendWr<'q, 't> {
    #[inline(always)]
    pub(super) fn new(
        raw: &'q mut RawWr,
        sges: &'q mut [sys::ib_sge],
        limits: &'q Limits,
        pd: *const Pd,
        qp: u32,
        before: Neighbours<'q>,
    ) -> Self {
        *raw = RawWr::empty();
        Self {
            raw,
            sges,
            limits,
            pd,
            n: 0,
            bytes: 0,
            op: None,
            signaled: false,
            qp,
            before,
            effect: Effect::None,
            registration: 0,
            _token: PhantomData,
        }
    }

    /// Adds local memory: the source of a SEND or WRITE, the destination of a READ or atomic.
    ///
    /// # Errors
    ///
    /// `EINVAL` for memory of another PD, `E2BIG` for more SGEs than the QP was made for. An SGE
    /// without length is left out: some devices take 0 for 2^31.
    pub(crate) fn sge(&mut self, sge: Sge<'t>) -> Result {
        if !core::ptr::eq(sge.pd, self.pd) {
            return Err(EINVAL);
        }
        if sge.len() == 0 {
            return Ok(());
        }
        *self.sges.get_mut(self.n).ok_or(E2BIG)? = sge.raw;
        self.n += 1;
        self.bytes += u64::from(sge.len());
        Ok(())
    }

    /// Asks for a completion. Without it, the token comes back with the next completion of a work
    /// request that was posted later.
    pub(crate) fn signaled(&mut self) {
        self.signaled = true;
    }

    /// Waits for the READs and atomics before it (IBA vol. 1, 10.8.3.3).
    pub(crate) fn fence(&mut self) {
        self.header().send_flags |= sys::ib_send_flags_IB_SEND_FENCE;
    }

    /// Raises a solicited event at the receiver.
    pub(crate) fn solicited(&mut self) {
        self.header().send_flags |= sys::ib_send_flags_IB_SEND_SOLICITED;
    }

    fn header(&mut self) -> &mut sys::ib_send_wr {
        self.raw.header()
    }

    fn set(&mut self, op: Op, opcode: sys::ib_wr_opcode) -> Result {
        if self.op.is_some() {
            return Err(EINVAL);
        }
        if !self.limits.qp_type.allows(op) {
            return Err(EOPNOTSUPP);
        }
        self.limits.caps.check(op)?;
        self.op = Some(op);
        self.header().opcode = opcode;
        Ok(())
    }

    /// SEND. On UD, name the destination with [`SendWr::to`] as well.
    pub(crate) fn send(&mut self) -> Result {
        self.set(Op::Send, sys::ib_wr_opcode_IB_WR_SEND)
    }

    /// SEND with 32 bits of immediate data.
    pub(crate) fn send_imm(&mut self, imm: u32) -> Result {
        self.set(Op::SendImm, sys::ib_wr_opcode_IB_WR_SEND_WITH_IMM)?;
        self.header().ex.imm_data = imm.to_be();
        Ok(())
    }

    /// SEND that ends the receiver's registration under `rkey`.
    pub(crate) fn send_inv(&mut self, rkey: u32) -> Result {
        self.set(Op::SendInv, sys::ib_wr_opcode_IB_WR_SEND_WITH_INV)?;
        self.header().ex.invalidate_rkey = rkey;
        Ok(())
    }

    fn set_remote(&mut self, to: RemoteAddr) {
        // SAFETY: Plain numbers; the header at the front stays as it is.
        let rdma = unsafe { &mut self.raw.rdma };
        rdma.remote_addr = to.addr;
        rdma.rkey = to.rkey;
    }

    /// RDMA WRITE to `to`.
    pub(crate) fn write(&mut self, to: RemoteAddr) -> Result {
        self.set(Op::Write, sys::ib_wr_opcode_IB_WR_RDMA_WRITE)?;
        self.set_remote(to);
        Ok(())
    }

    /// RDMA WRITE to `to` that also takes a receive of the peer, with immediate data.
    pub(crate) fn write_imm(&mut self, to: RemoteAddr, imm: u32) -> Result {
        self.set(Op::WriteImm, sys::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM)?;
        self.header().ex.imm_data = imm.to_be();
        self.set_remote(to);
        Ok(())
    }

    /// RDMA READ from `from`.
    pub(crate) fn read(&mut self, from: RemoteAddr) -> Result {
        self.set(Op::Read, sys::ib_wr_opcode_IB_WR_RDMA_READ)?;
        self.set_remote(from);
        Ok(())
    }

    /// Withdraws the operation for an address that is not aligned (IBA vol. 1, 9.4.5): the driver
    /// would refuse it, and with it all that is posted after it.
    fn set_atomic(&mut self, at: RemoteAddr, compare_add: u64, swap: u64) -> Result {
        if at.addr % 8 != 0 {
            self.op = None;
            return Err(EINVAL);
        }
        // SAFETY: Plain numbers; the header at the front stays as it is.
        let atomic = unsafe { &mut self.raw.atomic };
        atomic.remote_addr = at.addr;
        atomic.rkey = at.rkey;
        atomic.compare_add = compare_add;
        atomic.swap = swap;
        Ok(())
    }

    /// Atomic: if the 8 bytes at `at` are `compare`, they become `swap`. The old value goes to the
    /// one SGE, in the host's byte order. `EINVAL` if `at` is not aligned to 8 bytes.
    pub(crate) fn cmp_swap(&mut self, at: RemoteAddr, compare: u64, swap: u64) -> Result {
        self.set(Op::Atomic, sys::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP)?;
        self.set_atomic(at, compare, swap)
    }

    /// Atomic: adds to the 8 bytes at `at`. The old value goes to the one SGE.
    /// `EINVAL` as for [`SendWr::cmp_swap`].
    pub(crate) fn fetch_add(&mut self, at: RemoteAddr, add: u64) -> Result {
        self.set(Op::Atomic, sys::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD)?;
        self.set_atomic(at, add, 0)
    }

    /// Registers a region: its keys are valid for the work requests that follow on this QP, and for
    /// others when this has completed.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a region of another PD, or a registration for which a work request was already
    /// made on another QP, or which was ended before in the same chain.
    pub(crate) fn reg_mr<C: Cover>(&mut self, registration: &'t Registration<C>) -> Result {
        self.set(Op::RegMr, sys::ib_wr_opcode_IB_WR_REG_MR)?;
        let region = registration.described();
        self.check_pd(region)?;
        // The proof that a chain ended a registration has to be the last word about it.
        if self.before.have(Effect::Revokes, region.number) || !region.bind(self.qp) {
            self.op = None;
            return Err(EINVAL);
        }
        if self.limits.caps.registers_twice {
            self.fence();
        }
        self.effect = Effect::Registers;
        self.registration = region.number;
        // SAFETY: Plain numbers and a pointer; the header at the front stays as it is.
        let reg = unsafe { &mut self.raw.reg };
        reg.mr = region.as_raw();
        reg.key = region.key;
        reg.access = region.access.as_raw();
        Ok(())
    }

    /// A LOCAL_INV of a region that was never registered, which changes nothing: for
    /// [`super::Members::settle`].
    pub(super) fn settle(&mut self, spare: u32) -> Result {
        self.set(Op::LocalInv, sys::ib_wr_opcode_IB_WR_LOCAL_INV)?;
        self.header().ex.invalidate_rkey = spare;
        Ok(())
    }

    /// Ends a registration of our own: a [`super::RegisteredMr`], or a [`Registration`] that is made
    /// before it in the same chain. Behind a READ into the region it needs a [`SendWr::fence`], as
    /// the data may come later.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a region of another PD, or a registration that is neither made in this chain nor
    /// [confirmed](Registration::confirm) on this QP.
    pub(crate) fn local_inv(&mut self, region: &'t impl Region) -> Result {
        self.set(Op::LocalInv, sys::ib_wr_opcode_IB_WR_LOCAL_INV)?;
        let described = region.described();
        self.check_pd(described)?;
        let known =
            region.is_registered(self.qp) || self.before.have(Effect::Registers, described.number);
        if !known {
            self.op = None;
            return Err(EINVAL);
        }
        self.header().ex.invalidate_rkey = described.key;
        self.effect = Effect::Revokes;
        self.registration = described.number;
        Ok(())
    }

    /// Withdraws the operation if the region is of another PD.
    fn check_pd(&mut self, region: &Described) -> Result {
        if !core::ptr::eq(region.pd(), self.pd) {
            self.op = None;
            return Err(EINVAL);
        }
        Ok(())
    }

    /// The destination of a SEND on UD.
    pub(crate) fn to(&mut self, ah: &'t Ah, qpn: u32, qkey: u32) -> Result {
        if self.limits.qp_type != QpType::Ud || !core::ptr::eq(&**ah.pd(), self.pd) {
            return Err(EINVAL);
        }
        // SAFETY: Plain numbers and a pointer; the header at the front stays as it is.
        let ud = unsafe { &mut self.raw.ud };
        ud.ah = ah.as_raw();
        ud.remote_qpn = qpn;
        ud.remote_qkey = qkey;
        Ok(())
    }

    /// For [`Caps::overtakes`]: nothing passes a READ, and the pages of a long payload are copied,
    /// which it does if a completion is asked for.
    #[cold]
    fn keep_order(&mut self, op: Op) {
        if op != Op::Read {
            self.fence();
        }
        self.signaled |= self.bytes >= PAGE_SIZE as u64;
    }

    /// Checks the whole and closes the C object, but for the links to the next and to the SGEs.
    #[inline(always)]
    pub(super) fn finish(mut self, wr_id: u64) -> Result<Finished> {
        let op = self.op.ok_or(EINVAL)?;
        let limits = self.limits;
        if self.n > limits.caps.max_sges(op).min(limits.max_sge) as usize {
            return Err(E2BIG);
        }
        if self.bytes > u64::from(limits.max_message) {
            return Err(EMSGSIZE);
        }
        if op == Op::Atomic && self.bytes != 8 {
            return Err(EINVAL);
        }
        // SAFETY: A UD work request has been filled as one by `to`, or is still zeroed.
        if limits.qp_type == QpType::Ud && unsafe { self.raw.ud.ah.is_null() } {
            return Err(EDESTADDRREQ);
        }
        if limits.caps.overtakes {
            self.keep_order(op);
        }
        let signaled = self.signaled;
        let n = self.n;
        let bytes = self.bytes as u32;
        let header = self.header();
        let opcode = header.opcode;
        header.__bindgen_anon_1.wr_id = wr_id;
        header.num_sge = i32::try_from(n)?;
        if signaled {
            header.send_flags |= sys::ib_send_flags_IB_SEND_SIGNALED;
        }
        Ok(Finished {
            signaled,
            effect: self.effect,
            registration: self.registration,
            opcode,
            bytes,
        })
    }
}

/// A receive under construction; see [`SendWr`] for `'t`.
pub(crate) struct RecvWr<'q, 't> {
    sges: &'q mut [sys::ib_sge],
    pd: *const Pd,
    n: usize,
    _token: PhantomData<&'t ()>,
}

impl<'q, 't> RecvWr<'q, 't> {
    pub(super) fn new(sges: &'q mut [sys::ib_sge], pd: *const Pd) -> Self {
        Self {
            sges,
            pd,
            n: 0,
            _token: PhantomData,
        }
    }

    /// Adds memory for the message to land in. On UD the first
    /// [`super::caps::UD_GRH_LEN`] bytes are taken by the header.
    ///
    /// # Errors
    ///
    /// As for [`SendWr::sge`].
    pub(crate) fn sge(&mut self, sge: Sge<'t>) -> Result {
        if !core::ptr::eq(sge.pd, self.pd) {
            return Err(EINVAL);
        }
        if sge.len() == 0 {
            return Ok(());
        }
        *self.sges.get_mut(self.n).ok_or(E2BIG)? = sge.raw;
        self.n += 1;
        Ok(())
    }

    /// Copies its SGEs to `to`, which has as many places.
    pub(super) fn copy_sges(&self, to: &mut [sys::ib_sge]) {
        for (to, from) in to.iter_mut().zip(&self.sges[..self.n]) {
            *to = *from;
        }
    }

    /// Closes the C object, but for the links to the next and to the SGEs: the receive in `slot` of
    /// the QP or SRQ with that key.
    pub(super) fn finish(self, raw: &mut sys::ib_recv_wr, key: u32, slot: u32) {
        *raw = sys::ib_recv_wr {
            // Not more than the places that a device allows.
            num_sge: self.n as i32,
            ..Default::default()
        };
        raw.__bindgen_anon_1.wr_id = Route {
            key,
            recv: true,
            index: slot,
        }
        .to_wr_id();
    }
}
