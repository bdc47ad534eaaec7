// SPDX-License-Identifier: GPL-2.0

//! What `kernel::configfs` lacks: groups that are there without a `mkdir`.
//!
//! C header: `include/linux/configfs.h`

use crate::sys;
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    configfs::{Group, HasGroup, Subsystem},
    error::to_result,
    prelude::*,
    sync::Arc,
};

/// A group below a subsystem that this module made, and that user space can neither make nor
/// remove. Dropping it takes it away, and leaves it for good if there is something in it (a
/// `mkdir` in it pins the module, so at module exit there is not).
///
/// # Invariants
///
/// `group` is registered below `parent`, and is in a `Group<Data>` of which configfs has a
/// reference.
pub(crate) struct DefaultGroup<P> {
    group: NonNull<sys::config_group>,
    // Goes after the group.
    parent: ManuallyDrop<Arc<Subsystem<P>>>,
}

// SAFETY: Used only to unregister, which configfs locks; the parent is `Send`.
unsafe impl<P: Send + Sync> Send for DefaultGroup<P> {}
// SAFETY: `&DefaultGroup` offers nothing.
unsafe impl<P: Send + Sync> Sync for DefaultGroup<P> {}

impl<P> DefaultGroup<P> {
    /// Puts a group that no one else has put anywhere below `parent`. Sleeps.
    pub(crate) fn register<D: Send + Sync + 'static>(
        parent: Arc<Subsystem<P>>,
        group: impl PinInit<Group<D>, Error>,
    ) -> Result<Self> {
        // The group's `release` takes this reference back when configfs drops its last one.
        let raw = Arc::into_raw(Arc::pin_init(group, GFP_KERNEL)?);
        // SAFETY: `raw` is a valid group.
        let group = unsafe { <Group<D> as HasGroup<D>>::group(raw) }.cast_mut();
        // SAFETY: The subsystem is valid; its group is registered as long as it lives.
        let above = unsafe { <Subsystem<P> as HasGroup<P>>::group(&*parent) }.cast_mut();
        // SAFETY: Both are initialised, and the child is registered nowhere yet.
        let ret = to_result(unsafe { sys::configfs_register_group(above, group) });
        if let Err(e) = ret {
            // SAFETY: The item still has the reference that it began with; dropping it frees the
            // group by its `release`.
            unsafe { sys::config_item_put(&raw mut (*group).cg_item) };
            return Err(e);
        }
        // INVARIANT: Registered just now, with the reference from `into_raw`.
        Ok(Self {
            group: NonNull::new(group).ok_or(EINVAL)?,
            parent: ManuallyDrop::new(parent),
        })
    }
}

impl<P> Drop for DefaultGroup<P> {
    fn drop(&mut self) {
        // SAFETY: Registered (type invariant). Looking without a lock is enough for the use at
        // module exit, when nobody can make anything any more.
        let empty = unsafe {
            let children = &raw const (*self.group.as_ptr()).cg_children;
            core::ptr::eq((*children).next, children)
        };
        if !empty {
            pr_err!("a configfs group that is not empty stays\n");
            return;
        }
        // SAFETY: Registered (type invariant). The put drops the reference that configfs has had
        // since `register`, which frees the group by its `release`.
        unsafe {
            sys::configfs_unregister_group(self.group.as_ptr());
            sys::config_item_put(&raw mut (*self.group.as_ptr()).cg_item);
        }
        // SAFETY: Not used after this.
        unsafe { ManuallyDrop::drop(&mut self.parent) };
    }
}
