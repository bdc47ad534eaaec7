// SPDX-License-Identifier: GPL-2.0

//! What goes is told to everybody: who watches is told, who comes too late for that sees it.

use super::check::Model as Races;
use crate::verbs::gone::{behind, walk, Gone};
use loom::{
    sync::{
        atomic::{AtomicUsize, Ordering::*},
        Mutex,
    },
    thread,
};
use std::sync::Arc;

struct Model {
    gone: Gone,
    list: Mutex<Vec<(u64, usize)>>,
    told: [AtomicUsize; 2],
}

impl Model {
    fn next(&self, seen: u64) -> Option<(u64, usize)> {
        behind(&self.list.lock().unwrap(), seen)
    }

    fn tell(&self, who: usize) {
        self.told[who].fetch_add(1, Relaxed);
    }
}

fn going(go: fn(&Model)) {
    let model = Arc::new(Model {
        gone: Gone::new(),
        list: Mutex::new(Vec::new()),
        told: [AtomicUsize::new(0), AtomicUsize::new(0)],
    });
    let threads = [0, 1].map(|who| {
        let model = model.clone();
        thread::spawn(move || {
            let mut list = model.list.lock().unwrap();
            let number = list.len() as u64 + 1;
            list.push((number, who));
            drop(list);
            model.gone.is()
        })
    });
    go(&model);
    let saw = threads.map(|thread| thread.join().unwrap());
    for who in [0, 1] {
        let told = model.told[who].load(Relaxed);
        assert!(told <= 1, "told twice");
        assert!(told == 1 || saw[who], "neither told nor seen");
    }
}

const ANNOUNCED: Races = Races {
    preemptions: 3,
    run: || {
        going(|model| {
            let next = |seen| model.next(seen);
            model.gone.announce(next, |who| model.tell(who));
        })
    },
};

const MARKED_LATE: Races = Races {
    preemptions: 3,
    run: || {
        going(|model| {
            walk(|seen| model.next(seen), |who| model.tell(who));
            model.gone.announce(|_| None, |who| model.tell(who));
        })
    },
};

#[test]
fn everybody_learns_that_it_goes() {
    ANNOUNCED.holds();
}

#[test]
fn a_mark_that_comes_after_the_walk_is_found_out() {
    MARKED_LATE.fails("neither told nor seen");
}
