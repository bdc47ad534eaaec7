// SPDX-License-Identifier: GPL-2.0

//! The kernel's dynamic interrupt moderation (DIM), as RDMA uses it: it is told what each event
//! brought, and changes its mind about how long events should be held back. Whatever then has to be
//! done is done by a work item in process context.
//!
//! C header: `include/linux/dim.h`

use crate::sys;
use kernel::{prelude::*, types::Opaque};

/// What a change of mind leads to.
pub(crate) trait Applies: Send + Sync + 'static {
    /// DIM, or whoever called [`Dim::kick`], wants `profile` to take effect. Process context, may
    /// sleep; never twice at a time, and at least once after the last change.
    fn apply(&self, profile: u32);
}

/// An instance of DIM and what applies its decisions. Derefs to that; dropping it waits for an
/// application that is under way (sleeps), and takes back those to come.
///
/// # Invariants
///
/// `raw` is initialised with [`apply`] for `T`, and at the start of the object, which is pinned.
#[pin_data(PinnedDrop)]
#[repr(C)]
pub(crate) struct Dim<T: Applies> {
    #[pin]
    raw: Opaque<sys::rivet_dim>,
    #[pin]
    target: T,
}

// SAFETY: The helpers see to it that one at a time uses the C object; targets are `Send`.
unsafe impl<T: Applies> Send for Dim<T> {}
// SAFETY: As above; targets are `Sync`.
unsafe impl<T: Applies> Sync for Dim<T> {}

impl<T: Applies> Dim<T> {
    /// An instance that has measured nothing, with the first profile.
    pub(crate) fn new(target: impl PinInit<T, Error>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // INVARIANT: The helper initialises the whole object, which is pinned.
            // SAFETY: As the invariant says; the function matches the object.
            raw <- Opaque::ffi_init(|slot: *mut sys::rivet_dim| unsafe {
                sys::rivet_dim_init(slot, Some(apply::<T>))
            }),
            target <- target,
        })
    }

    /// Tells of an event that brought `completions`. `anew`: what was measured before has nothing to
    /// do with it. If another CPU is at this, the event is not counted. Any context but that of a
    /// hard interrupt.
    pub(crate) fn sample(&self, completions: u32, anew: bool) {
        // SAFETY: Initialised (type invariant); the helper locks.
        unsafe { sys::rivet_dim_sample(self.raw.get(), u64::from(completions), anew) };
    }

    /// Has the target apply soon what holds now. Any context.
    pub(crate) fn kick(&self) {
        // SAFETY: Initialised (type invariant).
        unsafe { sys::rivet_dim_kick(self.raw.get()) };
    }

    /// The profile that DIM has chosen, from 0. Any context.
    pub(crate) fn profile(&self) -> u32 {
        // SAFETY: Initialised (type invariant).
        unsafe { sys::rivet_dim_profile(self.raw.get()) }
    }
}

impl<T: Applies> core::ops::Deref for Dim<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.target
    }
}

#[pinned_drop]
impl<T: Applies> PinnedDrop for Dim<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Initialised (type invariant). When it returns nothing runs, nor will.
        unsafe { sys::rivet_dim_end(self.raw.get()) };
    }
}

/// # Safety
///
/// For the workqueue: `work` is that of a `Dim<T>` that lives.
unsafe extern "C" fn apply<T: Applies>(work: *mut sys::work_struct) {
    // SAFETY: By the contract of this function.
    let raw = unsafe { sys::rivet_dim_of(work) };
    // SAFETY: It is the first in a `Dim<T>` (type invariant), which waits for this function before
    // it goes.
    let dim = unsafe { &*raw.cast::<Dim<T>>() };
    dim.target.apply(dim.profile());
    // SAFETY: Initialised (type invariant).
    unsafe { sys::rivet_dim_applied(raw) };
}
