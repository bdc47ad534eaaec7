// SPDX-License-Identifier: GPL-2.0

//! Models of what rests on memory orderings rather than on locks, for `make unit`: each takes the
//! very file that the module is built from, with `kernel::sync::atomic` over loom's atomics, and
//! explores all interleavings of a few threads, and all values that their loads may see.

#![cfg(test)]
#![allow(dead_code)]

extern crate self as kernel;

/// In the place of the kernel's.
mod sync {
    pub(crate) use crate::races::atomic;
}

mod value;

mod engine {
    pub(crate) mod cpulist;
    pub(crate) mod knobs;
    pub(crate) mod moderation;
    pub(crate) mod stats;
    pub(crate) mod turns;
    pub(crate) mod wait;
}

mod verbs {
    pub(crate) mod bond;
    pub(crate) mod census;
    pub(crate) mod gone;
    pub(crate) mod place;
    pub(crate) mod room;
    pub(crate) mod running;
}

mod perf {
    pub(crate) mod post;
}

mod races {
    pub(crate) mod atomic;
    mod bond;
    mod census;
    pub(crate) mod check;
    mod event;
    mod gone;
    mod place;
    mod post;
    mod room;
    mod running;
    mod spinlock;
    mod stats;
    mod turns;
}
