// SPDX-License-Identifier: GPL-2.0

//! An event as `rust/sys/helpers.c` has it, step by step: `atomic_xchg` and `waitqueue_active` on
//! one side, `prepare_to_wait` and the condition on the other. Nobody gives up waiting here, so a
//! wake-up that is lost is a deadlock, which loom finds.

use super::check::Model as Races;
use loom::{
    sync::{
        atomic::{fence, AtomicBool, Ordering::*},
        Condvar, Mutex,
    },
    thread,
};
use std::sync::Arc;

/// An event.
pub(super) struct Event {
    raised: AtomicBool,
    /// The wait queue is not empty.
    active: AtomicBool,
    /// Times that it was woken.
    woken: Mutex<u32>,
    wake: Condvar,
    /// There is a barrier between joining the wait queue and the look at the event.
    barrier: bool,
}

impl Event {
    pub(super) fn new() -> Self {
        Self {
            raised: AtomicBool::new(false),
            active: AtomicBool::new(false),
            woken: Mutex::new(0),
            wake: Condvar::new(),
            barrier: true,
        }
    }

    fn exchange(&self, value: bool) -> bool {
        fence(SeqCst);
        let was = self.raised.swap(value, AcqRel);
        fence(SeqCst);
        was
    }

    /// As `rivet_event_raise`.
    pub(super) fn raise(&self) {
        if !self.exchange(true) && self.active.load(Relaxed) {
            *self.woken.lock().unwrap() += 1;
            self.wake.notify_one();
        }
    }

    /// As `rivet_event_wait`, by one at a time, without end.
    pub(super) fn wait(&self) {
        if self.exchange(false) {
            return;
        }
        loop {
            let before = *self.woken.lock().unwrap();
            self.active.store(true, Relaxed);
            let raised = match self.barrier {
                true => self.exchange(false),
                false => self.raised.load(Relaxed) && self.exchange(false),
            };
            if raised {
                self.active.store(false, Relaxed);
                return;
            }
            let mut woken = self.woken.lock().unwrap();
            while *woken == before {
                woken = self.wake.wait(woken).unwrap();
            }
        }
    }
}

fn raised(barrier: bool) {
    let event = Arc::new(Event {
        barrier,
        ..Event::new()
    });
    let thread = {
        let event = event.clone();
        thread::spawn(move || {
            event.raise();
            event.raise();
        })
    };
    event.wait();
    thread.join().unwrap();
}

const RAISED: Races = Races {
    preemptions: 3,
    run: || raised(true),
};

const NO_BARRIER: Races = Races {
    preemptions: 3,
    run: || raised(false),
};

#[test]
fn who_waits_is_woken() {
    RAISED.holds();
}

#[test]
fn a_wait_without_barrier_is_found_out() {
    NO_BARRIER.fails("deadlock");
}
