// SPDX-License-Identifier: GPL-2.0

//! Mail and ends: whoever waits for them without a clock wakes up and finds them.

use super::{
    check::{bite, Model as Races},
    event::Event,
};
use crate::perf::post::{Flag, Left};
use loom::{sync::Mutex, thread};
use std::sync::Arc;

/// A mailbox.
struct Model {
    filled: Flag,
    letters: Mutex<u32>,
    event: Event,
}

impl Model {
    fn write(&self) -> bool {
        *self.letters.lock().unwrap() += 1;
        true
    }
}

/// Two write, and the reader waits for both letters.
fn mail(put: fn(&Model)) {
    let model = Arc::new(Model {
        filled: Flag::new(),
        letters: Mutex::new(0),
        event: Event::new(),
    });
    let threads = [(); 2].map(|()| {
        let model = model.clone();
        thread::spawn(move || put(&model))
    });
    let mut got = 0;
    while got < 2 {
        match model.filled.take() {
            true => got += core::mem::take(&mut *model.letters.lock().unwrap()),
            false => model.event.wait(),
        }
    }
    threads.map(|thread| thread.join().unwrap());
}

const MAIL: Races = Races {
    preemptions: 2,
    run: || {
        mail(|model| {
            model.filled.put(|| model.write(), || model.event.raise());
        })
    },
};

const WOKEN_EARLY: Races = Races {
    preemptions: 2,
    run: || {
        mail(|model| {
            model.event.raise();
            model.filled.put(|| model.write(), || ());
        })
    },
};

/// Two end, and somebody waits for the last.
const ENDS: Races = Races {
    preemptions: 2,
    run: || {
        let model = Arc::new((Left::new(2), Event::new()));
        let threads = [(); 2].map(|()| {
            let model = model.clone();
            thread::spawn(move || model.0.done(|| model.1.raise()))
        });
        while !model.0.is_none() {
            model.1.wait();
        }
        threads.map(|thread| thread.join().unwrap());
    },
};

#[test]
fn no_letter_is_left_lying() {
    MAIL.holds();
}

#[test]
fn who_wakes_before_it_has_written_is_found_out() {
    WOKEN_EARLY.fails("deadlock");
}

#[test]
fn who_waits_for_the_last_wakes_up() {
    ENDS.holds();
}

#[test]
fn each_step_is_needed() {
    bite(&[MAIL, ENDS], &[]);
}
