// SPDX-License-Identifier: GPL-2.0

//! What a device can do, and what a transport allows.

use crate::sys;
use kernel::prelude::*;

/// The transport of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    pub(super) fn as_raw(self) -> sys::ib_qp_type {
        match self {
            QpType::Rc => sys::ib_qp_type_IB_QPT_RC,
            QpType::Uc => sys::ib_qp_type_IB_QPT_UC,
            QpType::Ud => sys::ib_qp_type_IB_QPT_UD,
        }
    }

    /// Whether the transport carries this operation (IBA vol. 1, 9.2.1, table 37; memory
    /// registration by work request exists on RC only).
    pub(crate) fn allows(self, op: Op) -> bool {
        match op {
            Op::Send | Op::SendImm => true,
            Op::Write | Op::WriteImm => self != QpType::Ud,
            Op::SendInv | Op::Read | Op::Atomic | Op::RegMr | Op::LocalInv => self == QpType::Rc,
        }
    }
}

/// Bytes in front of a UD receive's payload: the global routing header (IBA vol. 1, 11.4.1.2).
pub(crate) const UD_GRH_LEN: usize = 40;

/// Kinds of work requests, as transports and devices allow or refuse them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND that invalidates an rkey of the receiver.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare-and-swap or fetch-and-add.
    Atomic,
    /// Fast registration of a memory region.
    RegMr,
    /// Invalidation of a region of our own.
    LocalInv,
}

/// Rights of a memory region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access(i32);

impl Access {
    /// The device may read on behalf of local work requests, and nobody else anything.
    pub(crate) const LOCAL_READ: Access = Access(0);
    /// The device may write on behalf of local work requests.
    pub(crate) const LOCAL_WRITE: Access =
        Access(sys::ib_access_flags_IB_ACCESS_LOCAL_WRITE as i32);
    /// Peers may write. Implies [`Access::LOCAL_WRITE`] (IBA vol. 1, 10.6.3.1).
    pub(crate) const REMOTE_WRITE: Access = Access(
        (sys::ib_access_flags_IB_ACCESS_REMOTE_WRITE | sys::ib_access_flags_IB_ACCESS_LOCAL_WRITE)
            as i32,
    );
    /// Peers may read.
    pub(crate) const REMOTE_READ: Access =
        Access(sys::ib_access_flags_IB_ACCESS_REMOTE_READ as i32);
    /// Peers may do atomic operations. Implies [`Access::LOCAL_WRITE`].
    pub(crate) const REMOTE_ATOMIC: Access = Access(
        (sys::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC | sys::ib_access_flags_IB_ACCESS_LOCAL_WRITE)
            as i32,
    );

    pub(super) fn as_raw(self) -> i32 {
        self.0
    }

    /// A number for it, which no other has; below 2^8.
    pub(crate) fn bits(self) -> u32 {
        self.0.unsigned_abs()
    }

    /// Whether peers get a right.
    pub(super) fn is_remote(self) -> bool {
        let remote = sys::ib_access_flags_IB_ACCESS_REMOTE_READ
            | sys::ib_access_flags_IB_ACCESS_REMOTE_WRITE
            | sys::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC;
        self.0 & remote as i32 != 0
    }
}

impl core::ops::BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// What [`super::Cq::set_moderation`] can ask of a device at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CqModeration {
    /// Completions that an event can wait for.
    pub(crate) count: u16,
    /// How long it can wait, us.
    pub(crate) usecs: u16,
}

impl CqModeration {
    fn new(caps: &sys::ib_cq_caps) -> Self {
        // A device that says nothing has no limit of its own.
        let limit = |said: u16| if said == 0 { u16::MAX } else { said };
        Self {
            count: limit(caps.max_cq_moderation_count),
            usecs: limit(caps.max_cq_moderation_period),
        }
    }
}

/// Limits and abilities of a device (`struct ib_device_attr`).
#[derive(Clone)]
pub(crate) struct Caps {
    /// Work requests per queue.
    pub(crate) max_qp_wr: u32,
    /// SGEs of a work request on the send queue.
    pub(crate) max_send_sge: u32,
    /// SGEs of a receive.
    pub(crate) max_recv_sge: u32,
    /// SGEs of an RDMA READ.
    pub(crate) max_sge_rd: u32,
    /// Entries of a CQ.
    pub(crate) max_cqe: u32,
    /// Outstanding READs and atomics that a QP accepts as their target.
    pub(crate) max_qp_rd_atom: u32,
    /// Outstanding READs and atomics that a QP may have as their initiator.
    pub(crate) max_qp_init_rd_atom: u32,
    /// Memory regions.
    pub(crate) max_mr: u32,
    /// Pages of a fast registration.
    pub(crate) max_fast_reg_pages: u32,
    /// Work requests of an SRQ.
    pub(crate) max_srq_wr: u32,
    /// SGEs of an SRQ's receive.
    pub(crate) max_srq_sge: u32,
    /// Atomic operations are there.
    pub(crate) atomics: bool,
    /// Fast registration, local invalidate and SEND with invalidate are there
    /// (`IB_DEVICE_MEM_MGT_EXTENSIONS`).
    pub(crate) mem_mgt: bool,
    /// How far CQs can hold events back ([`super::Cq::set_moderation`]), if they can.
    pub(crate) cq_moderation: Option<CqModeration>,
    /// A defect of rxe: when it sends again from the first work request that was not acknowledged,
    /// it executes the local ones behind that a second time, and a REG_MR of a region that is
    /// registered already breaks the QP. So a REG_MR must not pass what can be sent again: READs,
    /// for which [`super::SendWr::reg_mr`] sees to it, and SENDs and WRITEs, for which its user
    /// does ([`super::Members::settle`]).
    pub(crate) registers_twice: bool,
    /// LOCAL_INV waits until all that is before it is done, as the fence of IBA vol. 1, 10.6.5.1
    /// has it, which a work request cannot ask for here. rxe always does.
    pub(crate) local_inv_waits: bool,
    /// The device speaks iWARP: RC only, connected by the CM, without immediate data (RFC 5040, 4)
    /// and without atomics.
    pub(crate) iwarp: bool,
    /// What READs land in needs, beyond the right to write locally: on iWARP the answer is a write
    /// of the peer (RFC 5040, 5.2), so the region has to allow that.
    pub(crate) read_sink: Access,
    /// Defects of siw: it completes what comes behind a READ before the READ is done, where nothing
    /// waits, and what breaks the connection before the READs that it breaks; and it takes the pages
    /// of long payloads that ask for no completion into TCP's queues, where they are read after the
    /// work requests behind them have completed. See [`super::send_queue`].
    pub(crate) overtakes: bool,
}

/// Drivers of which something is known that no attribute tells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    /// Soft-RoCE.
    Rxe,
    /// Soft-iWARP.
    Siw,
    /// Any other.
    Other,
}

impl Caps {
    pub(super) fn new(
        attr: &sys::ib_device_attr,
        cq_moderation: bool,
        driver: Driver,
        iwarp: bool,
    ) -> Self {
        let mem_mgt = sys::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64;
        Self {
            max_qp_wr: attr.max_qp_wr,
            max_send_sge: attr.max_send_sge,
            max_recv_sge: attr.max_recv_sge,
            max_sge_rd: attr.max_sge_rd.max(1),
            max_cqe: attr.max_cqe,
            max_qp_rd_atom: attr.max_qp_rd_atom,
            max_qp_init_rd_atom: attr.max_qp_init_rd_atom,
            max_mr: attr.max_mr,
            max_fast_reg_pages: attr.max_fast_reg_page_list_len,
            max_srq_wr: attr.max_srq_wr,
            max_srq_sge: attr.max_srq_sge,
            atomics: attr.atomic_cap != sys::ib_atomic_cap_IB_ATOMIC_NONE,
            mem_mgt: attr.device_cap_flags & mem_mgt != 0,
            cq_moderation: cq_moderation.then(|| CqModeration::new(&attr.cq_caps)),
            registers_twice: driver == Driver::Rxe,
            local_inv_waits: driver == Driver::Rxe,
            iwarp,
            read_sink: match iwarp {
                true => Access::REMOTE_WRITE,
                false => Access::LOCAL_WRITE,
            },
            overtakes: driver == Driver::Siw,
        }
    }

    /// Refuses a transport that the device does not have.
    pub(crate) fn check_transport(&self, qp_type: QpType) -> Result {
        if self.iwarp && qp_type != QpType::Rc {
            return Err(EOPNOTSUPP);
        }
        Ok(())
    }

    /// Refuses an operation that the device does not have, whatever the transport.
    pub(crate) fn check(&self, op: Op) -> Result {
        let has = match op {
            Op::Atomic => self.atomics,
            Op::SendImm | Op::WriteImm => !self.iwarp,
            Op::SendInv | Op::RegMr | Op::LocalInv => self.mem_mgt,
            _ => true,
        };
        if has {
            Ok(())
        } else {
            Err(EOPNOTSUPP)
        }
    }

    /// The most SGEs that a work request of this kind may have.
    pub(crate) fn max_sges(&self, op: Op) -> u32 {
        match op {
            Op::Read => self.max_sge_rd.min(self.max_send_sge),
            Op::Atomic => 1,
            Op::RegMr | Op::LocalInv => 0,
            _ => self.max_send_sge,
        }
    }
}
