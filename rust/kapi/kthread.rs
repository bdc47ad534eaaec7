// SPDX-License-Identifier: GPL-2.0

//! Kernel threads that are joined.
//!
//! C header: `include/linux/kthread.h`

use crate::sys;
use core::ptr::NonNull;
use kernel::{
    error::from_err_ptr,
    ffi::{c_int, c_void},
    prelude::*,
};

/// A running or ended kernel thread. Dropping it waits for its end, so the thread's closure must
/// end by something that its owner does before.
///
/// # Invariants
///
/// * `task` is a thread made by `spawn` with a reference that belongs to this object.
/// * `closure` came from `KBox::into_raw` for the type that `release` releases, and is taken by
///   the thread alone while that runs.
pub(crate) struct Thread {
    task: NonNull<sys::task_struct>,
    closure: *mut c_void,
    release: unsafe fn(*mut c_void),
}

// SAFETY: Closures are `Send`; the task may be waited for from any thread.
unsafe impl Send for Thread {}
// SAFETY: `&Thread` offers nothing.
unsafe impl Sync for Thread {}

/// Starts a thread named `name` that runs `f` once. Sleeps.
pub(crate) fn spawn<F>(name: &CStr, f: F) -> Result<Thread>
where
    F: FnOnce() + Send + 'static,
{
    let closure: *mut c_void = KBox::into_raw(KBox::new(Some(f), GFP_KERNEL)?).cast();
    // SAFETY: The function matches its argument; the format takes one string.
    let task = from_err_ptr(unsafe {
        sys::kthread_create_on_node(
            Some(run::<F>),
            closure,
            sys::NUMA_NO_NODE,
            c"%s".as_char_ptr(),
            name.as_char_ptr(),
        )
    });
    let task = match task.and_then(|task| NonNull::new(task).ok_or(ENOMEM)) {
        Ok(task) => task,
        Err(e) => {
            // SAFETY: From `into_raw` above, and no thread has it.
            unsafe { release::<F>(closure) };
            return Err(e);
        }
    };
    // SAFETY: The thread was made, and has not run yet, so it is there. The reference keeps the
    // task after the thread's end.
    unsafe {
        sys::get_task_struct(task.as_ptr());
        sys::wake_up_process(task.as_ptr());
    }
    // INVARIANT: As just made.
    Ok(Thread {
        task,
        closure,
        release: release::<F>,
    })
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: The reference is ours, and it is given up here. The call returns when the thread
        // has ended (or will never run).
        unsafe { sys::kthread_stop_put(self.task.as_ptr()) };
        // SAFETY: By the type invariant, and the thread no longer uses it.
        unsafe { (self.release)(self.closure) };
    }
}

/// # Safety
///
/// `closure` comes from `KBox::<Option<F>>::into_raw`, and nobody uses it any more.
unsafe fn release<F>(closure: *mut c_void) {
    // SAFETY: By the function's safety requirement.
    drop(unsafe { KBox::from_raw(closure.cast::<Option<F>>()) });
}

unsafe extern "C" fn run<F: FnOnce()>(data: *mut c_void) -> c_int {
    // SAFETY: `spawn` gave the closure, which stays until the owner has joined this thread; nobody
    // else touches it meanwhile.
    if let Some(f) = unsafe { (*data.cast::<Option<F>>()).take() } {
        f();
    }
    0
}
