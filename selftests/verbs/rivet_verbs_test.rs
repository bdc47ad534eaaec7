// SPDX-License-Identifier: GPL-2.0

//! Tests of the safe verbs abstractions (`rust/verbs`), from inside of the kernel.
//!
//! Loading the module runs every case between two ends in one network namespace: that of the task
//! that loads it, in which [`rig::ADDRESS`] must belong to an RDMA device. The results are lines of
//! KTAP in the kernel log behind `rivet_verbs_test: ktap: `. The last case is open when loading
//! ends: the module then holds objects of every kind, and passes if the device's removal makes it
//! let go. `selftests/verbs/run` does all that.
//!
//! What is above `verbs` is safe Rust here, too: that it suffices is one of the points.

use kernel::prelude::*;

#[allow(dead_code)]
#[path = "../../rust/kapi/mod.rs"]
mod kapi;
#[path = "../../rust/sys/mod.rs"]
mod sys;
#[path = "../../rust/verbs/mod.rs"]
mod verbs;

mod chains;
mod cm;
mod harness;
mod memory;
mod ops;
mod pages;
mod queues;
mod removal;
mod rig;
mod shared;

use harness::{Case, Tally};
use rig::Rig;

module! {
    type: VerbsTest,
    name: "rivet_verbs_test",
    authors: ["The Rivet developers"],
    description: "Tests of Rivet's verbs abstractions",
    license: "GPL",
}

/// The loaded module. Fields are dropped in order.
struct VerbsTest {
    removal: Option<removal::Hostage>,
    _client: Pin<KBox<verbs::device::Registration>>,
    late: Option<cm::Late>,
}

/// The suites in the order in which they run.
const SUITES: [&[Case]; 7] = [
    queues::CASES,
    ops::CASES,
    chains::CASES,
    memory::CASES,
    pages::CASES,
    shared::CASES,
    cm::CASES,
];

impl kernel::Module for VerbsTest {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let client = KBox::pin_init(verbs::device::register(), GFP_KERNEL)?;
        let rig = Rig::new()?;
        let cases: usize = SUITES.iter().map(|suite| suite.len()).sum();
        let mut tally = Tally::begin(cases + 1);
        for case in SUITES.iter().flat_map(|suite| suite.iter()) {
            tally.run(case, &rig);
        }
        let removal = removal::hold(&rig, tally.next());
        Ok(Self {
            removal,
            _client: client,
            late: None,
        })
    }
}

impl Drop for VerbsTest {
    fn drop(&mut self) {
        // The hostage, if it is still there, goes with the fields; it holds mappings.
        self.removal = None;
        // The client's end has to wait for this one's.
        match cm::Late::new() {
            Ok(late) => self.late = Some(late),
            Err(e) => pr_err!("a CM id could not be made: error {}\n", e.to_errno()),
        }
        let live = verbs::dma::live_mappings();
        if live != 0 {
            pr_err!("{live} DMA mappings were left\n");
        }
    }
}
