// SPDX-License-Identifier: GPL-2.0

//! What `kernel::configfs` lacks: groups that are there without a `mkdir`.
//!
//! C header: `include/linux/configfs.h`

use crate::sys;
use core::ptr::NonNull;
use kernel::{
    configfs::{Group, HasGroup, Subsystem},
    error::to_result,
    prelude::*,
    sync::Arc,
};

/// A group below a subsystem that this module made, and that user space can neither make nor
/// remove. Dropping it takes it away; that needs to be before the subsystem goes, and there must
/// be nothing in it (a `mkdir` in it pins the module, so module exit comes later).
///
/// # Invariants
///
/// `group` is registered, and is in a `Group<Data>` of which configfs has a reference.
pub(crate) struct DefaultGroup {
    group: NonNull<sys::config_group>,
}

// SAFETY: Used only to unregister, which configfs locks.
unsafe impl Send for DefaultGroup {}
// SAFETY: `&DefaultGroup` offers nothing.
unsafe impl Sync for DefaultGroup {}

impl DefaultGroup {
    /// Puts a group that no one else has put anywhere below `parent`. Sleeps.
    pub(crate) fn register<P, D>(
        parent: &Subsystem<P>,
        group: impl PinInit<Group<D>, Error>,
    ) -> Result<Self> {
        // The group's `release` takes this reference back when configfs drops its last one.
        let raw = Arc::into_raw(Arc::pin_init(group, GFP_KERNEL)?);
        // SAFETY: `raw` is a valid group.
        let group = unsafe { <Group<D> as HasGroup<D>>::group(raw) }.cast_mut();
        // SAFETY: The subsystem is valid; its group is registered as long as it lives.
        let parent = unsafe { <Subsystem<P> as HasGroup<P>>::group(parent) }.cast_mut();
        // SAFETY: Both are initialised, and the child is registered nowhere yet.
        let ret = to_result(unsafe { sys::configfs_register_group(parent, group) });
        if let Err(e) = ret {
            // SAFETY: The item still has the reference that it began with; dropping it frees the
            // group by its `release`.
            unsafe { sys::config_item_put(&raw mut (*group).cg_item) };
            return Err(e);
        }
        // INVARIANT: Registered just now, with the reference from `into_raw`.
        Ok(Self {
            group: NonNull::new(group).ok_or(EINVAL)?,
        })
    }
}

impl Drop for DefaultGroup {
    fn drop(&mut self) {
        // SAFETY: Registered (type invariant). The put drops the reference that configfs has had
        // since `register`, which frees the group by its `release`.
        unsafe {
            sys::configfs_unregister_group(self.group.as_ptr());
            sys::config_item_put(&raw mut (*self.group.as_ptr()).cg_item);
        }
    }
}
