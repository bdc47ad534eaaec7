// SPDX-License-Identifier: GPL-2.0

//! Engine: what makes the data path fast. It stands on `verbs`; services stand on it.
//!
//! ```text
//! engine = policy · lane · poller · moderation · mr_cache · memory · buffers · stats
//! ```
//!
//! A [`policy`] is a named set of knobs ([`knobs`]) that a service takes by its name. Those that
//! say how completions are waited for can be turned while connections run: hot paths read them out
//! of the policy, without a lock. All others are read once, when a connection is made.

// A knob is here when it can be set, and used by what of the engine a service takes.
#![allow(dead_code)]

pub(crate) mod accounting;
pub(crate) mod cpulist;
pub(crate) mod knobs;
pub(crate) mod lane;
pub(crate) mod memory;
pub(crate) mod moderation;
pub(crate) mod mr_cache;
pub(crate) mod naive;
pub(crate) mod placement;
pub(crate) mod policy;
pub(crate) mod poller;
pub(crate) mod stats;

crate::kapi::fmt::kernel_display!(
    cpulist::CpuList,
    knobs::Completion,
    knobs::Lock,
    knobs::Memory,
    knobs::Numa,
);
