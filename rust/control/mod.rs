// SPDX-License-Identifier: GPL-2.0

//! What user space sees of Rivet in configfs: `/sys/kernel/config/rivet`.

mod perf;

use crate::kapi::configfs::DefaultGroup;
use kernel::{
    configfs::{configfs_attrs, Subsystem},
    prelude::*,
};

/// Data of the subsystem: none.
pub(crate) struct Root;

/// The registered tree.
#[pin_data]
pub(crate) struct Control {
    // Dropped in order: what is below goes first.
    perf: DefaultGroup,
    #[pin]
    root: Pin<KBox<Subsystem<Root>>>,
}

/// Registers the tree. Sleeps.
pub(crate) fn register() -> Result<Control> {
    let root_type = configfs_attrs! {
        container: Subsystem<Root>,
        data: Root,
        attributes: [],
    };
    let root = KBox::pin_init(Subsystem::new(c"rivet", root_type, Ok(Root)), GFP_KERNEL)?;
    let perf = DefaultGroup::register(&root, perf::group()?)?;
    Ok(Control { perf, root })
}
