// SPDX-License-Identifier: GPL-2.0

//! Engine: what makes the data path fast. It stands on `verbs`; services stand on it.
//!
//! ```text
//! policy       a named set of knobs               lane      one CPU's share of a connection
//! poller       a CPU's completions                memory    how operations get at pages
//! mr_cache     which registrations are kept       shard     and what they are made of
//! moderation   when a poller looks                naive     the slow choices, to compare with
//! accounting   who asks for a completion          stats     counters
//! placement    which lane is on which CPU         hardware  how a device is told
//! setting      what a device holds back           turns     who looks, and nothing overlooked
//! rota         which CQ a poller begins with      polled    a CQ that only who waits looks at
//! wait         how threads wait, and their manners
//! ```
//!
//! A service makes a [`lane::Lane`] for each CPU that its connection is used from, with what it
//! keeps for it as a [`lane::Service`]; takes a seat on the CPU's [`poller::Poller`], which calls it
//! with completions; and has its operations made by a [`memory::Carrier`]. Threads that wait for their own
//! operations look for completions themselves ([`poller::Waiter`]).
//!
//! A [`policy`] is a named set of knobs ([`knobs`]) that a service takes by its name. Those that
//! say how completions are waited for can be turned while connections run: hot paths read them out
//! of the policy, without a lock. All others are read once, when a connection is made.

pub(crate) mod accounting;
pub(crate) mod cpulist;
pub(crate) mod hardware;
pub(crate) mod knobs;
pub(crate) mod lane;
pub(crate) mod memory;
pub(crate) mod moderation;
pub(crate) mod mr_cache;
pub(crate) mod naive;
pub(crate) mod placement;
pub(crate) mod policy;
pub(crate) mod polled;
pub(crate) mod poller;
pub(crate) mod rota;
pub(crate) mod setting;
pub(crate) mod shard;
pub(crate) mod stats;
pub(crate) mod turns;
pub(crate) mod wait;

crate::kapi::fmt::kernel_display!(
    cpulist::CpuList,
    knobs::Completion,
    knobs::Lock,
    knobs::Memory,
    knobs::Numa,
);
