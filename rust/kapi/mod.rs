// SPDX-License-Identifier: GPL-2.0

//! What Rivet needs of the kernel beside RDMA and the `kernel` crate does not have: one file a C
//! interface, each with its own `unsafe`, none of it above.

pub(crate) mod bottom;
pub(crate) mod configfs;
pub(crate) mod cpu;
pub(crate) mod dim;
pub(crate) mod event;
pub(crate) mod fmt;
pub(crate) mod kthread;
pub(crate) mod memory;
#[cfg(rivet_nvme)]
pub(crate) mod nvme;
pub(crate) mod random;
pub(crate) mod sched;
pub(crate) mod time;
pub(crate) mod trace;
