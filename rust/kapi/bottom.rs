// SPDX-License-Identifier: GPL-2.0

//! Work in softirq context on a CPU of one's choice, at once or after a time.
//!
//! A poller is kicked from CQ callbacks, some 10^5 times a second, always for its own CPU. So what
//! runs is a tasklet. The BH workqueues, which are meant to replace tasklets one day, cost several
//! times as much for each run; here they only carry kicks to another CPU, which tasklets cannot be
//! scheduled on. (`kernel::workqueue` queues on the CPU that happens to run, and takes a reference
//! for each time.) In the kernel's `irq_poll` a kick during a run is lost.
//!
//! When a CPU goes offline the kernel moves its tasklets, and what kicks them, to another.
//!
//! C headers: `include/linux/interrupt.h` (`tasklet_hi_schedule`), `include/linux/workqueue.h`
//! (`system_bh_highpri_wq`), `include/linux/irq_work.h`, `include/linux/hrtimer.h`

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
/// For the softirq: `tasklet` is that of a `Bottom<T>` that lives.
unsafe extern "C" fn run<T: Softirq>(tasklet: *mut sys::tasklet_struct) {
    // SAFETY: The tasklet is the first in `rivet_bottom`, and that in `Bottom` (type invariant), which
    // waits for this function before it goes.
    let bottom = unsafe { &*tasklet.cast::<Bottom<T>>() };
    bottom.target.run(bottom);
}
