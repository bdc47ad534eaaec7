// SPDX-License-Identifier: GPL-2.0

//! Who is inside of a handler: a task finds itself there when it is, and never else.

use super::check::Model as Races;
use crate::verbs::running::Running;
use loom::{sync::Mutex, thread};
use std::sync::Arc;

/// Two tasks that run a handler now and then, one at a time, and one that never does.
fn tasks(end: fn(&Running)) {
    let model = Arc::new((Running::new(0), Mutex::new(())));
    let threads = [1, 2].map(|task| {
        let model = model.clone();
        thread::spawn(move || {
            let (running, mutex) = &*model;
            assert!(!running.is_in(task), "before it");
            let held = mutex.lock().unwrap();
            running.begin(task);
            assert!(running.is_in(task), "inside");
            end(running);
            drop(held);
            assert!(!running.is_in(task), "after it");
        })
    });
    assert!(!model.0.is_in(3));
    threads.map(|thread| thread.join().unwrap());
}

const END: Races = Races {
    preemptions: 3,
    run: || tasks(Running::end),
};

const NO_END: Races = Races {
    preemptions: 3,
    run: || tasks(|_| ()),
};

#[test]
fn a_task_knows_whether_it_is_inside() {
    END.holds();
}

#[test]
fn a_handler_that_does_not_end_is_found_out() {
    NO_END.fails("after it");
}
