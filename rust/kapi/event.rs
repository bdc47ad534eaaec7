// SPDX-License-Identifier: GPL-2.0

//! Events that are raised from any context and waited for in process context.

use crate::sys;
use kernel::{prelude::*, time::msecs_to_jiffies, types::Opaque};

/// An event. Raising it while it is raised changes nothing; a wait takes it.
///
/// # Invariants
///
/// The C object is initialised and pinned.
#[pin_data]
pub(crate) struct Event {
    #[pin]
    raw: Opaque<sys::rivet_event>,
}

// SAFETY: Its parts are an atomic and a wait queue, which locks for itself.
unsafe impl Send for Event {}
// SAFETY: As above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that is not raised.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: The helper initialises the whole object, which is pinned.
            raw <- Opaque::ffi_init(|slot: *mut sys::rivet_event| unsafe {
                sys::rivet_event_init(slot)
            }),
        })
    }

    /// Raises the event and wakes who waits. Any context.
    pub(crate) fn raise(&self) {
        // SAFETY: Initialised (type invariant).
        unsafe { sys::rivet_event_raise(self.raw.get()) };
    }

    /// Waits up to `ms` milliseconds for the event and takes it; `false` if it did not come.
    /// Sleeps. At least one tick of the clock passes before it gives up.
    pub(crate) fn wait(&self, ms: u32) -> bool {
        let jiffies = msecs_to_jiffies(ms).max(1);
        // SAFETY: Initialised (type invariant).
        unsafe { sys::rivet_event_wait(self.raw.get(), jiffies as isize) != 0 }
    }

    /// Waits up to `ns` nanoseconds for the event and takes it; `false` if it did not come. Sleeps.
    pub(crate) fn wait_ns(&self, ns: u64) -> bool {
        // SAFETY: Initialised (type invariant).
        unsafe { sys::rivet_event_wait_ns(self.raw.get(), ns) }
    }

    /// Takes the event if it is raised. Any context.
    pub(crate) fn take(&self) -> bool {
        // SAFETY: Initialised (type invariant).
        unsafe { sys::rivet_event_take(self.raw.get()) }
    }

    /// As [`Event::wait`], but ends with `EINTR` when the task gets a signal.
    pub(crate) fn wait_interruptible(&self, ms: u32) -> Result<bool> {
        let jiffies = msecs_to_jiffies(ms).max(1);
        // SAFETY: Initialised (type invariant).
        match unsafe { sys::rivet_event_wait_interruptible(self.raw.get(), jiffies as isize) } {
            n if n < 0 => Err(EINTR),
            n => Ok(n != 0),
        }
    }
}
