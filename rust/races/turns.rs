// SPDX-License-Identifier: GPL-2.0

//! The poller's turns: nothing that comes is overlooked.
//!
//! Beside the code under test there is a device with one CQ, as `rdma_rxe` has it (its lock is held
//! while the handler kicks), and a work item of the kernel's: kicked while it is pending it stays
//! pending, and it is no longer when it begins to run; both with full barriers.
//!
//! A model ends with threads gone and what they left behind brought to rest: softirq runs as long
//! as it is pending, and timers go off. Then no completion may be left in the CQ, and the CQ has to be
//! armed, as nobody would look again.

use super::{
    check::{bite, Model as Races},
    spinlock::{Guard, SpinLock},
};
use crate::engine::{
    knobs::{Completion, Moderation},
    moderation::Next,
    turns::{self, Cqs, Desk, Failure, Turns, Waiter},
    wait::Look,
};
use loom::{
    cell::UnsafeCell,
    sync::{
        atomic::{fence, AtomicBool, AtomicUsize, Ordering::*},
        Mutex,
    },
    thread::{self, JoinHandle},
};
use std::sync::Arc;

/// What a full barrier on both sides makes of an exchange.
fn exchange(word: &AtomicBool, value: bool) -> bool {
    fence(SeqCst);
    let was = word.swap(value, AcqRel);
    fence(SeqCst);
    was
}

/// The driver's CQ.
#[derive(Default)]
struct Cq {
    waiting: u32,
    armed: bool,
}

/// A lane, which is told of things in turns only.
struct Lane {
    /// For loom to see who comes upon another.
    touched: UnsafeCell<()>,
    failures: AtomicUsize,
}

impl Lane {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            touched: UnsafeCell::new(()),
            failures: AtomicUsize::new(0),
        })
    }
}

/// What the holder of the turn works with.
struct Turn {
    handed_on: u32,
    lane: Option<Arc<Lane>>,
    told: bool,
}

/// How a desk behaves.
#[derive(Clone, Copy)]
struct Ways {
    /// What follows an empty poll of softirq, and of a thread.
    softirq: Next,
    thread: Next,
    /// The device says when completions slipped in before a CQ was armed.
    reports: bool,
}

const ARM: Ways = Ways {
    softirq: Next::Arm,
    thread: Next::Arm,
    reports: true,
};

struct Model {
    turns: Turns,
    turn: SpinLock<Turn>,
    failure: Failure,
    cq: Mutex<Cq>,
    pending: AtomicBool,
    timer: AtomicBool,
    ways: Ways,
    /// Nobody holds back any more.
    resting: std::sync::atomic::AtomicBool,
}

impl Model {
    fn new(ways: Ways) -> Arc<Self> {
        Arc::new(Self {
            turns: Turns::new(),
            turn: SpinLock::new(Turn {
                handed_on: 0,
                lane: None,
                told: false,
            }),
            failure: Failure::new(),
            cq: Mutex::new(Cq::default()),
            pending: AtomicBool::new(false),
            timer: AtomicBool::new(false),
            ways,
            resting: false.into(),
        })
    }

    /// The device completes something.
    fn complete(&self) {
        let mut cq = self.cq.lock().unwrap();
        cq.waiting += 1;
        if core::mem::take(&mut cq.armed) {
            self.wake();
        }
    }

    /// Softirq runs, if it is pending.
    fn run(&self) -> bool {
        let pending = exchange(&self.pending, false);
        if pending {
            turns::softirq(self);
        }
        pending
    }

    /// Brings all to rest, when no thread is left, and looks; then once more, after another
    /// completion, which softirq is for.
    fn rest(&self, completed: u32) {
        self.resting.store(true, Relaxed);
        for more in [0, 1] {
            if more == 1 {
                self.complete();
            }
            loop {
                if exchange(&self.timer, false) {
                    self.wake();
                }
                if !self.run() {
                    break;
                }
            }
            {
                let cq = self.cq.lock().unwrap();
                assert_eq!(cq.waiting, 0, "completions were overlooked");
                assert!(cq.armed, "nobody looks, and the CQ is not armed");
            }
            assert_eq!(self.turn.lock().handed_on, completed + more);
        }
    }
}

struct Taken<'a> {
    model: &'a Model,
    turn: Guard<'a, Turn>,
}

impl Cqs for Taken<'_> {
    fn sweep(&mut self, budget: u32) -> u32 {
        let n = {
            let mut cq = self.model.cq.lock().unwrap();
            let n = cq.waiting.min(budget);
            cq.waiting -= n;
            n
        };
        let Turn {
            handed_on,
            lane,
            told,
        } = &mut *self.turn;
        *handed_on += n;
        if let Some(lane) = lane.as_ref() {
            lane.touched.with_mut(|_| ());
        }
        self.model.failure.tell(told, || {
            if let Some(lane) = lane.as_ref() {
                lane.failures.fetch_add(1, Relaxed);
            }
        });
        n
    }

    fn now(&self) -> u64 {
        0
    }

    fn found(&mut self, _n: u32, _now: u64) {}

    fn failed(&self) -> bool {
        self.turn.told
    }

    fn next(&mut self, _rules: &Moderation, may_spin: bool, _now: u64) -> Next {
        match may_spin {
            true => self.model.ways.thread,
            false if self.model.resting.load(Relaxed) => Next::Arm,
            false => self.model.ways.softirq,
        }
    }

    fn arm(&mut self) -> bool {
        let mut cq = self.model.cq.lock().unwrap();
        cq.armed = true;
        self.model.ways.reports && cq.waiting > 0
    }

    fn over(&mut self, _rules: &Moderation) {}
}

impl Desk for Model {
    type Cqs<'a> = Taken<'a>;

    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn try_take(&self) -> Option<Taken<'_>> {
        let turn = self.turn.try_lock()?;
        Some(Taken { model: self, turn })
    }

    fn rules(&self) -> Moderation {
        Moderation {
            completion: Completion::Adaptive,
            coalesce_usecs: 0,
            coalesce_count: 0,
            busy_usecs: 0,
            poll_budget: 4,
        }
    }

    fn may_poll(&self) -> bool {
        true
    }

    fn wake(&self) {
        exchange(&self.pending, true);
    }

    fn go_on(&self) {
        self.wake();
    }

    fn wake_after(&self, _ns: u64) {
        exchange(&self.timer, true);
    }
}

fn spawn(model: &Arc<Model>, f: impl FnOnce(&Model) + 'static) -> JoinHandle<()> {
    let model = model.clone();
    thread::spawn(move || f(&model))
}

/// A thread that looks up to `looks` times, then leaves.
fn wait(model: &Model, looks: u32) {
    let mut waiter = Waiter::new(model);
    for _ in 0..looks {
        match waiter.look() {
            Look::Found | Look::Again => {}
            Look::Sleep => return,
        }
    }
}

/// A CQ is armed while completions come.
fn rearm(ways: Ways) {
    let model = Model::new(ways);
    // It was not armed yet.
    model.wake();
    let device = spawn(&model, |model| {
        model.complete();
        model.complete();
    });
    model.run();
    model.run();
    device.join().unwrap();
    model.rest(2);
}

/// Softirq and a thread look, in turn.
fn two_look(ways: Ways) {
    let model = Model::new(ways);
    model.complete();
    model.wake();
    let softirq = spawn(&model, |model| {
        model.run();
    });
    let device = spawn(&model, Model::complete);
    wait(&model, 2);
    softirq.join().unwrap();
    device.join().unwrap();
    model.rest(2);
}

/// Two threads look, in turn.
fn two_threads() {
    let model = Model::new(ARM);
    model.complete();
    let other = spawn(&model, |model| wait(model, 2));
    let device = spawn(&model, Model::complete);
    wait(&model, 2);
    other.join().unwrap();
    device.join().unwrap();
    model.rest(2);
}

/// A thread, and softirq for what has just come, want the turn, and so does the third.
fn three(third: fn(&Model)) {
    let model = Model::new(ARM);
    let other = spawn(&model, |model| wait(model, 1));
    let device = spawn(&model, |model| {
        model.complete();
        model.wake();
        model.run();
    });
    third(&model);
    other.join().unwrap();
    device.join().unwrap();
    model.rest(1);
}

/// The third is another thread.
fn three_want_it() {
    three(|model| wait(model, 1));
}

/// The third gives the turn back after it has changed something.
fn three_with_change() {
    three(|model| turns::change(model, || drop(model.turn.lock())));
}

/// Softirq is refused the turn by who changes what belongs to it.
fn changed(change: fn(&Model)) {
    let model = Model::new(ARM);
    model.wake();
    model.run();
    let device = spawn(&model, |model| {
        model.complete();
        model.run();
    });
    change(&model);
    device.join().unwrap();
    model.rest(1);
}

/// A lane leaves, and is freed, while softirq looks.
fn lane_leaves(leave: fn(&Model) -> Option<Arc<Lane>>) {
    let model = Model::new(ARM);
    let lane = Lane::new();
    model.turn.lock().lane = Some(lane.clone());
    model.wake();
    let softirq = spawn(&model, |model| {
        model.complete();
        model.run();
    });
    leave(&model);
    lane.touched.with_mut(|_| ());
    softirq.join().unwrap();
    model.rest(1);
}

/// A CQ fails while a lane comes.
fn failure(fail: fn(&Model)) {
    let model = Model::new(ARM);
    let device = spawn(&model, move |model| {
        fail(model);
        model.run();
    });
    let lane = Lane::new();
    let told = turns::change(&*model, || {
        let mut turn = model.turn.lock();
        turn.lane = Some(lane.clone());
        turn.told
    });
    device.join().unwrap();
    model.run();
    let failures = lane.failures.load(Relaxed) + usize::from(told);
    assert_eq!(failures, 1, "so often was the lane told of the failure");
}

const REARM: Races = Races {
    preemptions: 3,
    run: || rearm(ARM),
};

const HOLD: Races = Races {
    preemptions: 3,
    run: || {
        rearm(Ways {
            softirq: Next::Hold(1),
            ..ARM
        })
    },
};

const UNREPORTED: Races = Races {
    preemptions: 3,
    run: || {
        rearm(Ways {
            reports: false,
            ..ARM
        })
    },
};

const TWO_LOOK: Races = Races {
    preemptions: 2,
    run: || two_look(ARM),
};

const THREAD_HOLDS: Races = Races {
    preemptions: 2,
    run: || {
        two_look(Ways {
            thread: Next::Hold(1),
            ..ARM
        })
    },
};

const THREAD_SPINS: Races = Races {
    preemptions: 2,
    run: || {
        two_look(Ways {
            thread: Next::Spin,
            ..ARM
        })
    },
};

const TWO_THREADS: Races = Races {
    preemptions: 2,
    run: two_threads,
};

const THREE: Races = Races {
    preemptions: 3,
    run: three_want_it,
};

const THREE_WITH_CHANGE: Races = Races {
    preemptions: 3,
    run: three_with_change,
};

const CHANGE: Races = Races {
    preemptions: 3,
    run: || changed(|model| turns::change(model, || drop(model.turn.lock()))),
};

const CHANGE_WITHOUT_NOTE: Races = Races {
    preemptions: 3,
    run: || changed(|model| drop(model.turn.lock())),
};

const LEAVE: Races = Races {
    preemptions: 3,
    run: || lane_leaves(|model| turns::change(model, || model.turn.lock().lane.take())),
};

const STAY: Races = Races {
    preemptions: 3,
    run: || lane_leaves(|_| None),
};

const FAILURE: Races = Races {
    preemptions: 3,
    run: || {
        failure(|model| {
            model.failure.note();
            model.wake();
        })
    },
};

const SILENT_FAILURE: Races = Races {
    preemptions: 3,
    run: || failure(|model| model.failure.note()),
};

#[test]
fn what_comes_while_it_is_armed_is_found() {
    REARM.holds();
}

#[test]
fn what_comes_while_it_is_held_is_found() {
    HOLD.holds();
}

#[test]
fn a_device_that_reports_nothing_missed_is_found_out() {
    UNREPORTED.fails("completions were overlooked");
}

#[test]
fn softirq_and_a_thread_overlook_nothing() {
    TWO_LOOK.holds();
}

#[test]
fn a_thread_that_holds_overlooks_nothing() {
    THREAD_HOLDS.holds();
}

#[test]
fn a_thread_that_spins_overlooks_nothing() {
    THREAD_SPINS.holds();
}

#[test]
fn two_threads_overlook_nothing() {
    TWO_THREADS.holds();
}

#[test]
fn three_overlook_nothing() {
    THREE.holds();
}

#[test]
fn a_change_hides_nothing() {
    CHANGE.holds();
    THREE_WITH_CHANGE.holds();
}

#[test]
fn a_change_that_takes_no_note_is_found_out() {
    CHANGE_WITHOUT_NOTE.fails("completions were overlooked");
}

#[test]
fn nobody_uses_a_lane_that_has_left() {
    LEAVE.holds();
}

#[test]
fn a_lane_that_does_not_leave_is_found_out() {
    STAY.fails("Causality violation");
}

#[test]
fn a_lane_is_told_once_that_a_cq_failed() {
    FAILURE.holds();
}

#[test]
fn a_failure_that_wakes_nobody_is_found_out() {
    SILENT_FAILURE.fails("so often was the lane told");
}

#[test]
fn each_step_is_needed() {
    bite(
        &[
            REARM,
            CHANGE,
            TWO_LOOK,
            TWO_THREADS,
            THREE,
            THREE_WITH_CHANGE,
        ],
        &[
            // What they read is not used.
            "tear note.xchg(true, Full);",
            "tear note.xchg(false, Full);",
            // A full barrier follows in either case: that of the next note, or of the kick.
            "weaken waiters.fetch_sub(1, Full);",
            "weaken if core::mem::take(&mut self.counted) && self.desk.turns().waiters.fetch_sub(1, Full) == 1 {",
        ],
    );
}
