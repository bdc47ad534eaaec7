// SPDX-License-Identifier: GPL-2.0

//! The room of a CQ: it never overflows, whoever comes and goes, and none of it is lost.

use super::check::{bite, Model as Races};
use crate::verbs::room::Room;
use loom::{sync::Mutex, thread};
use std::sync::Arc;

const ENTRIES: u32 = 4;

struct Model {
    room: Room,
    /// Completions in the queue, under the driver's lock.
    queue: Mutex<u32>,
}

impl Model {
    fn complete(&self, n: u32) {
        let mut queue = self.queue.lock().unwrap();
        *queue += n;
        assert!(*queue <= ENTRIES, "the CQ overflows");
    }

    fn poll(&self, most: u32) {
        let polled = self.room.poll::<()>(most as usize, || {
            let mut queue = self.queue.lock().unwrap();
            let n = most.min(*queue);
            *queue -= n;
            Ok(n as usize)
        });
        assert!(polled.is_ok());
    }

    /// A QP comes, if there is room, and completes all that it may. Returns what it has set aside.
    fn come(&self, n: u32) -> u32 {
        match self.room.reserve(n) {
            true => {
                self.complete(n);
                n
            }
            false => 0,
        }
    }
}

fn model() -> Arc<Model> {
    Arc::new(Model {
        room: Room::new(ENTRIES),
        queue: Mutex::new(0),
    })
}

/// A QP goes, others come, and somebody polls.
fn come_and_go(go: fn(&Model)) {
    let model = model();
    assert!(model.room.reserve(3));
    let poller = {
        let model = model.clone();
        thread::spawn(move || {
            model.poll(4);
            model.poll(4);
        })
    };
    let others = {
        let model = model.clone();
        thread::spawn(move || model.come(2) + model.come(2))
    };
    go(&model);
    poller.join().unwrap();
    let theirs = others.join().unwrap();
    model.poll(8);
    assert_eq!(
        model.room.left(),
        ENTRIES - theirs,
        "room is lost, or found"
    );
}

const GO: Races = Races {
    preemptions: 2,
    run: || {
        come_and_go(|model| {
            model.complete(3);
            model.room.abandon(3);
        })
    },
};

const GO_TOO_EARLY: Races = Races {
    preemptions: 2,
    run: || {
        come_and_go(|model| {
            model.room.abandon(3);
            model.complete(3);
        })
    },
};

/// Two QPs go while somebody polls.
const BOTH_GO: Races = Races {
    preemptions: 3,
    run: || {
        let model = model();
        let threads = [(); 2].map(|()| {
            assert!(model.room.reserve(2));
            let model = model.clone();
            thread::spawn(move || model.room.abandon(2))
        });
        model.poll(4);
        threads.map(|thread| thread.join().unwrap());
        model.poll(4);
        assert_eq!(model.room.left(), ENTRIES);
    },
};

/// Three QPs come where two have room, and one of these goes again.
const ALL_COME: Races = Races {
    preemptions: 3,
    run: || {
        let model = model();
        let threads = [(); 2].map(|()| {
            let model = model.clone();
            thread::spawn(move || model.room.reserve(2))
        });
        let mine = model.room.reserve(2);
        if mine {
            model.room.release(2);
        }
        let theirs = threads.map(|thread| thread.join().unwrap());
        let taken = theirs.iter().map(|got| u32::from(*got)).sum::<u32>();
        assert!(taken + u32::from(mine) >= 2, "there was room");
        assert_eq!(model.room.left(), ENTRIES - 2 * taken);
    },
};

#[test]
fn a_cq_never_overflows() {
    GO.holds();
}

#[test]
fn a_qp_that_goes_too_early_is_found_out() {
    GO_TOO_EARLY.fails("the CQ overflows");
}

#[test]
fn qps_that_go_at_once_give_all_back() {
    BOTH_GO.holds();
}

#[test]
fn room_is_set_aside_once() {
    ALL_COME.holds();
}

#[test]
fn each_step_is_needed() {
    bite(&[GO, BOTH_GO, ALL_COME], &[]);
}
