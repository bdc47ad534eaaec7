// SPDX-License-Identifier: GPL-2.0

//! A place for one: one at a time has it, and comes after the last.

use super::check::{bite, Model as Races};
use crate::verbs::place::Place;
use loom::{cell::UnsafeCell, thread};
use std::sync::Arc;

fn three_want_it() {
    let model = Arc::new((Place::new(), UnsafeCell::new(())));
    let take = |model: &(Place, UnsafeCell<()>)| {
        if model.0.take() {
            model.1.with_mut(|_| ());
            model.0.free();
        }
    };
    let threads = [(); 2].map(|()| {
        let model = model.clone();
        thread::spawn(move || take(&model))
    });
    take(&model);
    threads.map(|thread| thread.join().unwrap());
    assert!(model.0.take(), "it is free at the end");
}

const WANTED: Races = Races {
    preemptions: 3,
    run: three_want_it,
};

#[test]
fn one_at_a_time_has_the_place() {
    WANTED.holds();
}

#[test]
fn each_step_is_needed() {
    bite(&[WANTED], &[]);
}
