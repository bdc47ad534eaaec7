// SPDX-License-Identifier: GPL-2.0

//! Rivet: the RDMA data path for the Linux kernel, in Rust.
//!
//! # Floors
//!
//! ```text
//! perf      a service: the in-kernel performance test        control   configfs
//! nvme      a service: the NVMe/RDMA host
//! engine    what makes the data path fast: lanes, pollers, memory, by policies
//! verbs     safe Rust over ib_core and rdma_cm               kapi      other C interfaces
//! sys       what bindgen makes of the C headers
//! ```
//!
//! Each floor knows only those below it. `unsafe` stands in `sys`, `verbs` and `kapi`.

use kernel::prelude::*;

mod control;
mod engine;
mod kapi;
#[cfg(rivet_nvme)]
mod nvme;
// Without the host, what goes over the network, for perf. The host has the rest of it.
#[cfg(not(rivet_nvme))]
#[allow(dead_code)]
mod nvme {
    pub(crate) mod fabrics;
    pub(crate) mod wire;
}
mod perf;
mod sys;
mod value;
mod verbs;

kapi::fmt::kernel_display!(value::Bounds);

module! {
    type: Rivet,
    name: "rivet",
    authors: ["The Rivet developers"],
    description: "RDMA data path in Rust",
    license: "GPL",
}

/// The loaded module. Fields are dropped in order: first what user space can reach.
struct Rivet {
    _control: control::Control,
    _client: Pin<KBox<verbs::device::Registration>>,
    _leaks: LeakCheck,
}

/// Dropped last: looks whether something was left.
struct LeakCheck;

impl kernel::Module for Rivet {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let client = KBox::pin_init(verbs::device::register(), GFP_KERNEL)?;
        Ok(Self {
            _control: control::register()?,
            _client: client,
            _leaks: LeakCheck,
        })
    }
}

impl Drop for LeakCheck {
    fn drop(&mut self) {
        let live = verbs::dma::live_mappings();
        if live != 0 {
            pr_err!("{live} DMA mappings were left\n");
        }
    }
}
