// SPDX-License-Identifier: GPL-2.0

//! The modules that need no kernel, for `make unit`: each brings its own tests.

#![allow(dead_code)]

#[path = "verbs/status.rs"]
mod status;
mod value;

mod engine {
    pub(crate) mod accounting;
    pub(crate) mod cpulist;
    pub(crate) mod knobs;
    pub(crate) mod moderation;
    pub(crate) mod mr_cache;
    pub(crate) mod placement;
    pub(crate) mod rota;
    pub(crate) mod setting;
    pub(crate) mod wait;
}

mod perf {
    pub(crate) mod exchange {
        pub(crate) mod wire;
    }
    pub(crate) mod cause;
    pub(crate) mod histogram;
    pub(crate) mod params;
    pub(crate) mod pattern;
    pub(crate) mod wire;
}

mod nvme {
    pub(crate) mod fabrics;
    pub(crate) mod wire;
}
