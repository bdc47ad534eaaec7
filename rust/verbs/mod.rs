// SPDX-License-Identifier: GPL-2.0

//! Verbs: safe Rust over `ib_core` and `rdma_cm`.
//!
//! # Who owns what
//!
//! ```text
//! Device <- Pd <- Qp -> Cq -> Device        "<-" and "->" point at what is kept alive
//!             <- Mr <- RegisteredMr          (all are reference counts or values)
//!             <- Mapped (a buffer under a DMA mapping), MappedPages (a list of pages)
//! CmId   <- Qp (made on it)
//! ```
//!
//! * A [`Device`] is an RDMA device that this module may use. [`device::register`] makes one for
//!   each device of the machine; when the device goes, the core's `remove` callback tells the
//!   [`device::Watch`]ers and then waits until the last reference is dropped. As every object
//!   below holds one, nothing survives `remove`.
//! * A posted work request owns its buffers: [`Qp::push`] takes a token and gives it to a closure
//!   that can only name memory which the token holds; the token rests in the QP's ring until
//!   [`Qp::take_send`] has seen the completion, and only then comes back.
//! * A [`Qp`] that is dropped is destroyed first and gives its tokens up after that, so the HCA
//!   never writes to freed memory, drained or not. Draining ([`Qp::enter_error`], then polling until
//!   [`Qp::outstanding`] is zero) is what an orderly owner does so that no completion is lost.
//! * CQs cannot overflow: a QP reserves one entry per work request that it can hold.
//! * An rkey exists only as long as its [`RegisteredMr`]; that owns the mapping and the mapping
//!   owns the memory.
//!
//! # Who may run where
//!
//! Constructors, destructors and state changes sleep. [`Qp::push`], [`Qp::flush`],
//! [`Qp::post_recv`], [`Cq::poll`] and [`Cq::arm`] do not. The CQ handler runs in whatever context
//! the driver chose, possibly with the CQ's lock held and interrupts off; all that it may do is
//! tell somebody else ([`cq::Handler`]).
//!
//! The rules are those of the InfiniBand Architecture Specification, volume 1 (chapters 10 and
//! 11), as the kernel states them in `include/rdma/ib_verbs.h` and `include/rdma/rdma_cm.h`.

// What the abstractions offer is what verbs has, not just what the services of today take of it;
// `selftests/verbs` takes the rest.
#![allow(dead_code)]

pub(crate) mod addr;
pub(crate) mod ah;
mod bond;
pub(crate) mod caps;
mod census;
mod chain;
pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dma;
mod gone;
pub(crate) mod mr;
pub(crate) mod pages;
pub(crate) mod pd;
mod place;
pub(crate) mod qp;
mod reaper;
mod recv_queue;
mod room;
mod running;
mod send_queue;
pub(crate) mod sg;
pub(crate) mod srq;
pub(crate) mod status;
pub(crate) mod wc;
pub(crate) mod wr;

pub(crate) use addr::{NetNs, SocketAddr};
pub(crate) use ah::{Ah, Path};
pub(crate) use caps::{Access, QpType};
pub(crate) use cm::{CmId, ConnParam};
pub(crate) use cq::Cq;
pub(crate) use device::Device;
pub(crate) use dma::{Buffer, Direction, Mapped, Sge};
pub(crate) use mr::{Mr, RegisteredMr, Registration};
#[allow(unused_imports)]
pub(crate) use pages::{Buffers, PageList, PageRefs};
pub(crate) use pd::Pd;
pub(crate) use qp::{Qp, QpConfig};
#[allow(unused_imports)]
pub(crate) use send_queue::Members;
#[allow(unused_imports)]
pub(crate) use sg::{MappedPages, SgTable};
pub(crate) use srq::Srq;
pub(crate) use status::{RejectReason, WcStatus};
pub(crate) use wc::{Route, Wc};
pub(crate) use wr::{RemoteAddr, SendWr};

crate::kapi::fmt::kernel_display!(RejectReason, SocketAddr, WcStatus);
