// SPDX-License-Identifier: GPL-2.0

//! Whether one is inside of a handler, of which one runs at a time. `make unit` explores it
//! (`rust/races/running.rs`).
//!
//! `Relaxed` is enough: a task asks about itself alone, and what it wrote itself it sees.

use kernel::sync::atomic::{Atomic, Relaxed};

/// The task that runs the handler now, as a number; 0 for none.
pub(crate) struct Running(Atomic<usize>);

impl Running {
    /// `task` runs it, or nobody.
    pub(crate) fn new(task: usize) -> Self {
        Self(Atomic::new(task))
    }

    /// `task`, which calls this, begins to run the handler.
    pub(crate) fn begin(&self, task: usize) {
        self.0.store(task, Relaxed);
    }

    /// The handler has returned, in the task that calls this.
    pub(crate) fn end(&self) {
        self.0.store(0, Relaxed);
    }

    /// Whether `task`, which calls this, is inside of the handler.
    pub(crate) fn is_in(&self, task: usize) -> bool {
        self.0.load(Relaxed) == task
    }
}
