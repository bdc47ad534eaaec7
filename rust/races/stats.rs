// SPDX-License-Identifier: GPL-2.0

//! Counters: they never go back for who reads them, and nothing is lost.

use super::{
    check::{bite, Model as Races},
    spinlock::SpinLock,
};
use crate::engine::stats::{Counter, Shared};
use loom::thread;
use std::sync::Arc;

struct Model {
    counter: Counter,
    shared: Shared,
    lock: SpinLock<()>,
}

fn model(add: fn(&Model)) -> (Arc<Model>, [thread::JoinHandle<()>; 2]) {
    let model = Arc::new(Model {
        counter: Counter::new(),
        shared: Shared::new(),
        lock: SpinLock::new(()),
    });
    let threads = [(); 2].map(|()| {
        let model = model.clone();
        thread::spawn(move || {
            add(&model);
            add(&model);
        })
    });
    (model, threads)
}

/// Two writers in turn, and a reader.
fn counted(add: fn(&Model)) {
    let (model, threads) = model(add);
    let first = model.counter.get();
    let second = model.counter.get();
    assert!(first <= second && second <= 4, "a counter went back");
    threads.map(|thread| thread.join().unwrap());
    assert_eq!(model.counter.get(), 4, "something was not counted");
}

const TURNS: Races = Races {
    preemptions: 3,
    run: || {
        counted(|model| {
            let _held = model.lock.lock();
            model.counter.add(1);
        })
    },
};

const NO_TURNS: Races = Races {
    preemptions: 3,
    run: || counted(|model| model.counter.add(1)),
};

const SHARED: Races = Races {
    preemptions: 2,
    run: || {
        let (model, threads) = model(|model| model.shared.add(1));
        let taken = model.shared.take() + model.shared.take();
        threads.map(|thread| thread.join().unwrap());
        assert_eq!(taken + model.shared.take(), 4);
    },
};

#[test]
fn writers_in_turn_lose_nothing() {
    TURNS.holds();
}

#[test]
fn writers_that_take_no_turns_are_found_out() {
    NO_TURNS.fails("something was not counted");
}

#[test]
fn what_is_shared_is_counted_and_taken_once() {
    SHARED.holds();
}

#[test]
fn each_step_is_needed() {
    bite(&[TURNS, SHARED], &[]);
}
