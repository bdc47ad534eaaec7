// SPDX-License-Identifier: GPL-2.0

//! Counters that cost no shared cache line.
//!
//! A [`Counter`] has one writer at a time (whoever holds the lane or the turn): it is loaded and
//! stored, which costs what a plain variable costs. A [`Shared`] has many, and costs a locked
//! instruction; it counts what is rare or comes from anywhere. Anyone may read both at any time.
//! Those of a lane, and those of a poller, begin and end with cache lines: what another lane or
//! CPU writes is in others.
//! `make unit` explores both (`rust/races/stats.rs`).

use core::fmt::{self, Write};
use kernel::sync::atomic::{Atomic, Relaxed};

/// A counter with one writer at a time.
pub(crate) struct Counter(Atomic<u64>);

impl Counter {
    /// Zero.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// By the writer only.
    pub(crate) fn add(&self, n: u64) {
        self.0
            .store(self.0.load(Relaxed).saturating_add(n), Relaxed);
    }

    /// By the writer only.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// By anyone.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A counter that anyone writes.
pub(crate) struct Shared(Atomic<u64>);

impl Shared {
    /// Zero.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// By anyone.
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Sets it to zero and gives what it was. By anyone.
    pub(crate) fn take(&self) -> u64 {
        self.0.xchg(0, Relaxed)
    }

    /// By anyone.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Defines counters of the engine, a plain copy of them that adds up, and their names.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident as $copy:ident { $($(#[$fdoc:meta])* $field:ident: $kind:ident,)* }) => {
        $(#[$doc])*
        #[repr(align(64))]
        pub(crate) struct $name { $($(#[$fdoc])* pub(crate) $field: $kind,)* }

        // Whole cache lines of an x86-64.
        const _: () = assert!(align_of::<$name>() % 64 == 0 && size_of::<$name>() % 64 == 0);

        impl $name {
            /// All zero.
            pub(crate) fn new() -> Self {
                Self { $($field: $kind::new(),)* }
            }

            /// What they are now. Not all of the same moment.
            pub(crate) fn read(&self) -> $copy {
                $copy { $($field: self.$field.get(),)* }
            }
        }

        /// What the counters were.
        #[derive(Clone, Copy, Default)]
        pub(crate) struct $copy { $($(#[$fdoc])* pub(crate) $field: u64,)* }

        impl $copy {
            /// Adds those of another.
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.saturating_add(other.$field);)*
            }

            /// What was counted since they were `before`.
            #[allow(dead_code)] // Not of each.
            pub(crate) fn since(&self, before: &Self) -> Self {
                $copy { $($field: self.$field.saturating_sub(before.$field),)* }
            }

            /// Writes them as `key value` lines.
            pub(crate) fn write(&self, out: &mut impl Write) -> fmt::Result {
                $(writeln!(out, concat!(stringify!($field), " {}"), self.$field)?;)*
                Ok(())
            }
        }
    };
}

counters! {
    /// Counters of a lane, written by whoever has its lock.
    LaneStats as LaneCounts {
        /// Work requests posted on the send queue.
        posts: Counter,
        /// Doorbells: calls of the driver to post, of sends and receives.
        doorbells: Counter,
        /// Of these, those of receives.
        recv_doorbells: Counter,
        /// Work requests that asked for a completion.
        signalled: Counter,
        /// Completions taken.
        completions: Counter,
        /// Completions with an error.
        errors: Counter,
        /// Payload of operations that completed, bytes.
        bytes: Counter,
        /// Operations that found their memory registered.
        mr_hits: Counter,
        /// Operations of `cached` memory that did not.
        mr_misses: Counter,
        /// Registrations that made way for others.
        evictions: Counter,
        /// Regions registered.
        registrations: Counter,
        /// Regions invalidated.
        invalidations: Counter,
        /// Payloads copied.
        copies: Counter,
        /// Times that the lane's lock was held by somebody else.
        lock_waits: Shared,
    }
}

counters! {
    /// Counters of a poller. Those of the turn have one writer at a time.
    PollerStats as PollerCounts {
        /// CQ events.
        cq_events: Shared,
        /// Kicks of softirq.
        kicks: Shared,
        /// Of these, of another CPU than the one that kicked.
        remote_kicks: Shared,
        /// Polls of a CQ.
        polls: Counter,
        /// Of these, those that found nothing.
        empty_polls: Counter,
        /// Changes of the completion mode.
        mode_changes: Counter,
        /// Times that a CQ was armed.
        arms: Counter,
        /// Times that a CQ's moderation by the device was set.
        moderations: Shared,
        /// Times that the device did not do that.
        moderation_failures: Shared,
        /// Failures of a CQ: completions may be lost.
        cq_failures: Shared,
    }
}
