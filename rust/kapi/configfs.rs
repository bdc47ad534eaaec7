// SPDX-License-Identifier: GPL-2.0

//! What `kernel::configfs` lacks: groups that are there without a `mkdir`, and directories that
//! `rmdir` leaves alone while they are in use.
//!
//! C header: `include/linux/configfs.h`

use crate::sys;
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    configfs::{Group, GroupOperations, HasGroup, Subsystem},
    error::to_result,
    prelude::*,
    sync::{Arc, UniqueArc},
};

/// A group below a subsystem that this module made, and that user space can neither make nor
/// remove. It may have such groups itself, beside those that user space makes in it. Dropping it
/// takes it away, and leaves it for good if there is something in it that user space made (a
/// `mkdir` in it pins the module, so at module exit there is not).
///
/// # Invariants
///
/// `group` is registered below `parent`, and is in a `Group<D>` of which configfs has a reference.
/// Its default groups are each in a `Group<D::Child>` of which the list of them has a reference.
pub(crate) struct DefaultGroup<P, D> {
    group: NonNull<sys::config_group>,
    // Goes after the group.
    parent: ManuallyDrop<Arc<Subsystem<P>>>,
    _data: core::marker::PhantomData<D>,
}

// SAFETY: What is done to the group, configfs locks; parent and data are `Send` and `Sync`.
unsafe impl<P: Send + Sync, D: Send + Sync> Send for DefaultGroup<P, D> {}
// SAFETY: As above.
unsafe impl<P: Send + Sync, D: Send + Sync> Sync for DefaultGroup<P, D> {}

impl<P, D> DefaultGroup<P, D>
where
    P: Send + Sync + 'static,
    D: GroupOperations + Send + Sync + 'static,
    D::Child: Send + Sync,
{
    /// Puts a group below `parent`, with `children` in it; all of them appear at once. Sleeps.
    pub(crate) fn register(
        parent: Arc<Subsystem<P>>,
        group: impl PinInit<Group<D>, Error>,
        children: KVec<Pin<UniqueArc<Group<D::Child>>>>,
    ) -> Result<Self> {
        // The group's `release` takes this reference back when configfs drops its last one.
        let raw = Arc::into_raw(Arc::pin_init(group, GFP_KERNEL)?);
        // SAFETY: `raw` is a valid group.
        let group = unsafe { <Group<D> as HasGroup<D>>::group(raw) }.cast_mut();
        for child in children {
            // As above.
            let raw = Arc::into_raw(Arc::from(child));
            // SAFETY: `raw` is a valid group.
            let child = unsafe { <Group<D::Child> as HasGroup<D::Child>>::group(raw) }.cast_mut();
            // SAFETY: Both are initialised and registered nowhere, and nobody else has them.
            unsafe { sys::rivet_configfs_add_default_group(child, group) };
        }
        // SAFETY: The subsystem is valid; its group is registered as long as it lives.
        let above = unsafe { <Subsystem<P> as HasGroup<P>>::group(&*parent) }.cast_mut();
        // SAFETY: Both are initialised, and the child is registered nowhere yet.
        let ret = to_result(unsafe { sys::configfs_register_group(above, group) });
        if let Err(e) = ret {
            // SAFETY: The items still have the reference that they began with; dropping it frees
            // their groups by their `release`.
            unsafe { release(group) };
            return Err(e);
        }
        // INVARIANT: Registered just now, with the references from `into_raw`.
        Ok(Self {
            group: NonNull::new(group).ok_or(EINVAL)?,
            parent: ManuallyDrop::new(parent),
            _data: core::marker::PhantomData,
        })
    }

    /// Calls `f` with the name of each directory in it, until it returns `false`. Sleeps. `f` runs
    /// under a lock of the subsystem: it must not come back to configfs.
    pub(crate) fn each_name(&self, mut f: impl FnMut(&CStr) -> bool) {
        let _lock = self.lock();
        // SAFETY: Registered (type invariant), so the list is valid; under the lock it does not
        // change.
        for item in unsafe { list(&raw const (*self.group.as_ptr()).cg_children) } {
            // SAFETY: What is in the list is the `ci_entry` of an item.
            let item = unsafe { kernel::container_of!(item, sys::config_item, ci_entry) };
            // SAFETY: An item that is linked has a name, and keeps it.
            let name = unsafe { CStr::from_char_ptr((*item).ci_name) };
            if !f(name) {
                break;
            }
        }
    }

    /// Keeps the directory of that name from being removed: `rmdir` says `EBUSY`. `ENOENT` if there
    /// is none. Sleeps. May be called from an attribute's `show` and `store`, not from where
    /// directories are made or dropped.
    ///
    /// A directory that is in the middle of a `mkdir` or `rmdir` is not there; configfs decides
    /// under one lock which of a `rmdir` and this came first.
    pub(crate) fn depend(self: &Arc<Self>, name: &CStr) -> Result<Dependency> {
        let _lock = self.lock();
        // SAFETY: Registered (type invariant), and the lock that this asks for is held.
        let item = unsafe { sys::config_group_find_item(self.group.as_ptr(), name.as_char_ptr()) };
        let item = NonNull::new(item).ok_or(ENOENT)?;
        // SAFETY: The item is linked below our subsystem, and stays so while the lock is held, so
        // it has a `ci_group`. Giving its own subsystem as the caller's makes configfs skip the
        // lock of its root, which may not be taken from a `store`: what that would keep away is
        // the end of the subsystem, and that lives as long as we do.
        let ret = to_result(unsafe {
            sys::configfs_depend_item_unlocked(self.subsystem(), item.as_ptr())
        });
        // SAFETY: The reference that `config_group_find_item` took. It is not the last one, as the
        // list has one too.
        unsafe { sys::config_item_put(item.as_ptr()) };
        ret?;
        // INVARIANT: Depended on just now; `above` keeps the subsystem.
        Ok(Dependency {
            item,
            _above: self.clone(),
        })
    }

    fn subsystem(&self) -> *mut sys::configfs_subsystem {
        // SAFETY: A registered group has a subsystem (type invariant), and it does not change.
        unsafe { (*self.group.as_ptr()).cg_subsys }
    }

    /// Keeps directories from being linked and unlinked.
    fn lock(&self) -> Lock<'_> {
        // SAFETY: The subsystem is valid as long as `parent`, and initialised its mutex.
        let mutex = unsafe { &raw mut (*self.subsystem()).su_mutex };
        // SAFETY: As above. INVARIANT: Locked by us.
        unsafe { sys::mutex_lock(mutex) };
        Lock(mutex, core::marker::PhantomData)
    }
}

/// A subsystem's `su_mutex`, held.
///
/// # Invariants
///
/// The mutex is valid for the lifetime, and locked by this task.
struct Lock<'a>(*mut sys::mutex, core::marker::PhantomData<&'a ()>);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // SAFETY: Locked by this task (type invariant).
        unsafe { sys::mutex_unlock(self.0) };
    }
}

/// The entries of a list.
///
/// # Safety
///
/// `head` is a valid list that does not change until the iterator was used for the last time.
unsafe fn list(head: *const sys::list_head) -> impl Iterator<Item = *mut sys::list_head> {
    // SAFETY: The list is valid.
    let first = unsafe { (*head).next };
    core::iter::successors(Some(first), |entry| {
        // SAFETY: Only entries and the head are linked to, and they are valid.
        Some(unsafe { (**entry).next })
    })
    .take_while(move |entry| !core::ptr::eq(entry.cast_const(), head))
}

/// Drops the default groups of a group, then the group.
///
/// # Safety
///
/// The group is registered nowhere, and is given up, as are its default groups; the references are
/// those from [`DefaultGroup::register`].
unsafe fn release(group: *mut sys::config_group) {
    // SAFETY: By the contract of this function; each item is freed by its `release`.
    unsafe {
        sys::configfs_remove_default_groups(group);
        sys::config_item_put(&raw mut (*group).cg_item);
    }
}

impl<P, D> Drop for DefaultGroup<P, D> {
    fn drop(&mut self) {
        let group = self.group.as_ptr();
        // SAFETY: Registered (type invariant). Looking without a lock is enough for the use at
        // module exit, when nobody can make anything any more.
        let (children, made_here) = unsafe {
            let children = list(&raw const (*group).cg_children).count();
            (children, list(&raw const (*group).default_groups).count())
        };
        if children != made_here {
            pr_err!("a configfs group that is not empty stays\n");
            return;
        }
        // SAFETY: Registered (type invariant), with the references that configfs and the list of
        // default groups have had since `register`.
        unsafe {
            sys::configfs_unregister_group(group);
            release(group);
        }
        // SAFETY: Not used after this.
        unsafe { ManuallyDrop::drop(&mut self.parent) };
    }
}

/// A directory that cannot be removed as long as this lives. Dropping it may sleep, as it may be the
/// last that keeps the group above.
///
/// # Invariants
///
/// `item` has a dependent for this, so it stays linked; its subsystem is registered as long as
/// `_above` lives.
pub(crate) struct Dependency {
    item: NonNull<sys::config_item>,
    _above: Arc<dyn Send + Sync>,
}

// SAFETY: configfs locks what dropping it does, and whatever thread may do that.
unsafe impl Send for Dependency {}
// SAFETY: `&Dependency` offers nothing.
unsafe impl Sync for Dependency {}

impl Drop for Dependency {
    fn drop(&mut self) {
        // SAFETY: Depended on (type invariant), and not touched after this.
        unsafe { sys::configfs_undepend_item(self.item.as_ptr()) };
    }
}
