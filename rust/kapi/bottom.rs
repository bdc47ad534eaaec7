// SPDX-License-Identifier: GPL-2.0

//! Work in softirq context on a CPU of one's choice, at once or after a time.
//!
//! `kernel::workqueue` has the BH workqueues, but queues on the CPU that happens to run, and takes
//! a reference for each time; and its timers end with a handle that somebody must hold. A poller is
//! kicked from CQ callbacks, some 10^5 times a second, always for its own CPU.
//!
//! C headers: `include/linux/workqueue.h` (`system_bh_highpri_wq`), `include/linux/hrtimer.h`

use crate::sys;
use kernel::{prelude::*, types::Opaque};

/// What runs in softirq context.
pub(crate) trait Softirq: Send + Sync + 'static {
    /// Runs after a kick, at least once after the last one, and never twice at a time. Must not
    /// sleep.
    fn run(&self, bottom: &Bottom<Self>)
    where
        Self: Sized;
}

/// A target together with what runs it. Derefs to the target; dropping it waits for a run that is
/// under way (sleeps) and takes back those to come.
///
/// # Invariants
///
/// `raw` is initialised with [`run`] for `T`, and at the start of the object, which is pinned.
#[pin_data(PinnedDrop)]
#[repr(C)]
pub(crate) struct Bottom<T: Softirq> {
    #[pin]
    raw: Opaque<sys::rivet_bottom>,
    #[pin]
    target: T,
}

// SAFETY: The C object locks for itself; targets are `Send`.
unsafe impl<T: Softirq> Send for Bottom<T> {}
// SAFETY: As above; targets are `Sync`.
unsafe impl<T: Softirq> Sync for Bottom<T> {}

impl<T: Softirq> Bottom<T> {
    /// A target that nothing runs yet.
    pub(crate) fn new(target: impl PinInit<T, Error>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // INVARIANT: The helper initialises the whole object, which is pinned.
            // SAFETY: As the invariant says; the function matches the object.
            raw <- Opaque::ffi_init(|slot: *mut sys::rivet_bottom| unsafe {
                sys::rivet_bottom_init(slot, Some(run::<T>))
            }),
            target <- target,
        })
    }

    /// Has the target run soon on `cpu`, or on this CPU if that one is not online. Any context.
    /// Returns whether the CPU is another than this.
    pub(crate) fn kick(&self, cpu: u32) -> bool {
        // SAFETY: Initialised (type invariant); the helper checks the number.
        unsafe { sys::rivet_bottom_kick(self.raw.get(), cpu) }
    }

    /// Has the target run on `cpu` in `ns` nanoseconds, unless it has been told so already: the
    /// last time given counts. Any context.
    pub(crate) fn kick_after(&self, cpu: u32, ns: u64) {
        // SAFETY: Initialised (type invariant); the helper checks the number when the time has come.
        unsafe { sys::rivet_bottom_kick_after(self.raw.get(), cpu, ns) };
    }
}

impl<T: Softirq> core::ops::Deref for Bottom<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.target
    }
}

#[pinned_drop]
impl<T: Softirq> PinnedDrop for Bottom<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Initialised (type invariant). When it returns nothing runs, nor will.
        unsafe { sys::rivet_bottom_end(self.raw.get()) };
    }
}

/// # Safety
///
/// For the workqueue: `work` is that of a `Bottom<T>` that lives.
unsafe extern "C" fn run<T: Softirq>(work: *mut sys::work_struct) {
    // SAFETY: The work is the first in `rivet_bottom`, and that in `Bottom` (type invariant), which
    // waits for this function before it goes.
    let bottom = unsafe { &*work.cast::<Bottom<T>>() };
    bottom.target.run(bottom);
}
