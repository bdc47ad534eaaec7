// SPDX-License-Identifier: GPL-2.0

//! A census: whoever closes it comes after all who were counted, and they come after who opened it.

use super::check::{bite, Model as Races};
use crate::{
    sync::atomic::Atomic,
    verbs::census::{Census, CLOSED},
};
use loom::{cell::UnsafeCell, thread};
use std::sync::Arc;

struct Model {
    census: Census,
    /// What is there for those who are counted, as the reaper's workqueue.
    there: UnsafeCell<bool>,
    /// What one of them alone uses.
    own: [UnsafeCell<()>; 2],
}

fn life(close: fn(&Census)) {
    let model = Arc::new(Model {
        census: Census(Atomic::new(CLOSED)),
        there: UnsafeCell::new(false),
        own: [UnsafeCell::new(()), UnsafeCell::new(())],
    });
    let threads = [0, 1].map(|who| {
        let model = model.clone();
        thread::spawn(move || {
            if model.census.enter() {
                model.there.with(|_| ());
                model.own[who].with_mut(|_| ());
                model.census.leave();
            }
        })
    });
    model.there.with_mut(|_| ());
    model.census.open();
    close(&model.census);
    model.there.with_mut(|_| ());
    for own in &model.own {
        own.with_mut(|_| ());
    }
    threads.map(|thread| thread.join().unwrap());
    assert!(!model.census.enter(), "it was closed");
}

const WAIT: Races = Races {
    preemptions: 3,
    run: || {
        life(|census| {
            while census.close().is_err() {
                thread::yield_now();
            }
        })
    },
};

const DO_NOT_WAIT: Races = Races {
    preemptions: 3,
    run: || {
        life(|census| {
            let _ = census.close();
        })
    },
};

#[test]
fn what_is_there_for_the_counted_outlives_them() {
    WAIT.holds();
}

#[test]
fn who_does_not_wait_for_the_last_is_found_out() {
    DO_NOT_WAIT.fails("Causality violation");
}

#[test]
fn each_step_is_needed() {
    bite(&[WAIT], &[]);
}
