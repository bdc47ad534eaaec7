// SPDX-License-Identifier: GPL-2.0

//! Kernel threads that are joined.
//!
//! C header: `include/linux/kthread.h`

use crate::sys;
use core::{cell::UnsafeCell, ptr::NonNull};
use kernel::{
    error::from_err_ptr,
    ffi::{c_int, c_void},
    prelude::*,
    types::NotThreadSafe,
};

/// What the thread and its owner share.
struct Body<F> {
    /// Completed by the thread as the last that it does.
    done: UnsafeCell<sys::completion>,
    closure: Option<F>,
}

/// A running or ended kernel thread. Dropping it waits for its end, so the thread's closure must
/// end by something that its owner does before; and the closure itself must not own it.
///
/// # Invariants
///
/// `body` is a `Body` from `KBox::into_raw` for the type that `join` joins; a thread runs with it.
pub(crate) struct Thread {
    body: NonNull<c_void>,
    join: unsafe fn(NonNull<c_void>),
}

// SAFETY: Closures are `Send`, and the end may be waited for from any thread.
unsafe impl Send for Thread {}
// SAFETY: `&Thread` offers nothing.
unsafe impl Sync for Thread {}

/// Starts a thread named `name` that runs `f` once. Sleeps.
pub(crate) fn spawn<F>(name: &CStr, f: F) -> Result<Thread>
where
    F: FnOnce() + Send + 'static,
{
    let body = KBox::new(
        Body {
            done: UnsafeCell::new(sys::completion::default()),
            closure: Some(f),
        },
        GFP_KERNEL,
    )?;
    // SAFETY: At its final place, as the box is not moved out of any more.
    unsafe { sys::init_completion(body.done.get()) };
    let body = KBox::into_raw(body);
    // SAFETY: The function matches its argument; the format takes one string.
    let task = from_err_ptr(unsafe {
        sys::kthread_create_on_node(
            Some(run::<F>),
            body.cast(),
            sys::NUMA_NO_NODE,
            c"%s".as_char_ptr(),
            name.as_char_ptr(),
        )
    });
    let started = task.and_then(|task| {
        let body = NonNull::new(body.cast()).ok_or(ENOMEM)?;
        // SAFETY: The thread was made and waits to be woken, so it is there.
        unsafe { sys::wake_up_process(task) };
        // INVARIANT: As just made.
        Ok(Thread {
            body,
            join: join::<F>,
        })
    });
    if started.is_err() {
        // SAFETY: From `into_raw` above, and no thread has it.
        drop(unsafe { KBox::from_raw(body) });
    }
    started
}

/// Has the calling thread, one from [`spawn`], run on `cpu` alone, if that is online and it does not
/// already. A CPU that goes offline sends its threads elsewhere and does not call them back, so a
/// thread that wants to be there says so now and then. May sleep.
pub(crate) fn stay_on(cpu: u32) {
    // SAFETY: The helper checks the number, and whether the thread may be moved.
    unsafe { sys::rivet_stay_on(cpu) };
}

/// As long as it lives, the thread that made it runs on the CPUs of a memory node, so that what is
/// allocated by others in its name lies there. A thread from [`spawn`].
///
/// # Invariants
///
/// The thread may run anywhere without it.
pub(crate) struct Near {
    /// It is of one thread.
    _thread: NotThreadSafe,
}

/// Has the calling thread, one from [`spawn`] that has not been told to [`stay_on`] a CPU, run near
/// the memory of `node`; `None`, and it runs where it did, if that has no CPU that is online. May
/// sleep.
pub(crate) fn near(node: i32) -> Option<Near> {
    // SAFETY: The helper checks the number.
    unsafe { sys::rivet_stay_near(node) }.then_some(Near {
        // INVARIANT: By what is asked of the caller.
        _thread: NotThreadSafe,
    })
}

impl Drop for Near {
    fn drop(&mut self) {
        // SAFETY: Of the current thread, which is the one that made it and may run anywhere (type
        // invariant).
        unsafe { sys::rivet_stay_anywhere() };
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, and given up here.
        unsafe { (self.join)(self.body) };
    }
}

/// # Safety
///
/// `body` is that of a thread started by [`spawn`] for `F`, and is given up.
unsafe fn join<F>(body: NonNull<c_void>) {
    let body = body.as_ptr().cast::<Body<F>>();
    // SAFETY: The body lives until it is freed below. The thread completes it when it no longer
    // uses it, and is in no code of this module any more.
    unsafe { sys::wait_for_completion((*body).done.get()) };
    // SAFETY: From `into_raw`, and the thread no longer uses it.
    drop(unsafe { KBox::from_raw(body) });
}

/// # Safety
///
/// For the kernel: `data` is the `Body<F>` that [`spawn`] gave.
unsafe extern "C" fn run<F: FnOnce()>(data: *mut c_void) -> c_int {
    let body = data.cast::<Body<F>>();
    // SAFETY: The body lives until the owner has seen the completion below; nobody else touches
    // the closure meanwhile.
    if let Some(f) = unsafe { (*body).closure.take() } {
        f();
    }
    // SAFETY: The completion was initialised by `spawn`. The function is the kernel's: this module
    // may go once it has completed.
    unsafe { sys::kthread_complete_and_exit((*body).done.get(), 0) }
}
