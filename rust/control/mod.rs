// SPDX-License-Identifier: GPL-2.0

//! What user space sees of Rivet in configfs: `/sys/kernel/config/rivet`.

mod attribute;
#[cfg(rivet_nvme)]
mod nvme;
mod perf;
mod policies;

use crate::kapi::configfs::DefaultGroup;
use kernel::{
    configfs::{configfs_attrs, Subsystem},
    debugfs::Dir,
    prelude::*,
    sync::Arc,
};

/// Data of the subsystem: none.
pub(crate) struct Root;

/// The registered tree. Each part keeps the subsystem; those who use policies go before these.
pub(crate) struct Control {
    #[cfg(rivet_nvme)]
    _nvme: nvme::Nvme,
    _perf: DefaultGroup<Root, perf::PerfDir>,
    _policies: policies::Policies,
}

/// Registers the tree. Sleeps.
pub(crate) fn register() -> Result<Control> {
    let root_type = configfs_attrs! {
        container: Subsystem<Root>,
        data: Root,
        attributes: [],
    };
    let root = Arc::pin_init(Subsystem::new(c"rivet", root_type, Ok(Root)), GFP_KERNEL)?;
    let policies = policies::Policies::register(root.clone())?;
    let debug = Dir::new(c"rivet");
    #[cfg(rivet_nvme)]
    let nvme = nvme::Nvme::register(root.clone(), policies.clone(), &debug)?;
    let group = perf::group(policies.clone(), &debug)?;
    let perf = DefaultGroup::register(root, group, KVec::new())?;
    Ok(Control {
        #[cfg(rivet_nvme)]
        _nvme: nvme,
        _perf: perf,
        _policies: policies,
    })
}
