// SPDX-License-Identifier: GPL-2.0

//! A spinlock made of atomics, so that who fails to get it may have seen an old state of it, as on a
//! machine. loom's own mutex is always seen as it is.

use core::ops::{Deref, DerefMut};
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, Ordering::*},
    thread,
};
use std::sync::{Mutex, MutexGuard};

/// A spinlock with what it guards.
pub(super) struct SpinLock<T> {
    held: AtomicBool,
    /// For loom to see who comes upon the data without having been told that the last one is done.
    touched: UnsafeCell<()>,
    data: Mutex<T>,
}

/// The lock is held.
pub(super) struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
    data: Option<MutexGuard<'a, T>>,
}

impl<T> SpinLock<T> {
    pub(super) fn new(data: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            touched: UnsafeCell::new(()),
            data: Mutex::new(data),
        }
    }

    /// As the kernel's: looks first.
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.held.load(Relaxed) {
            return None;
        }
        let taken = self.held.compare_exchange(false, true, Acquire, Relaxed);
        taken.ok().map(|_| self.guard())
    }

    pub(super) fn lock(&self) -> Guard<'_, T> {
        while self
            .held
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_err()
        {
            thread::yield_now();
        }
        self.guard()
    }

    fn guard(&self) -> Guard<'_, T> {
        self.touched.with_mut(|_| ());
        Guard {
            lock: self,
            data: Some(self.data.try_lock().expect("two have the lock")),
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.data.as_ref().expect("held")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_mut().expect("held")
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.data = None;
        self.lock.touched.with_mut(|_| ());
        self.lock.held.store(false, Release);
    }
}
