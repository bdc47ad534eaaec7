// SPDX-License-Identifier: GPL-2.0

//! The bond of a registration: it is of one QP, for whoever asks.

use super::check::{bite, Model as Races};
use crate::verbs::bond::Bond;
use loom::thread;
use std::sync::Arc;

fn three_qps() {
    let bond = Arc::new(Bond::new());
    let threads = [1, 2].map(|qp| {
        let bond = bond.clone();
        thread::spawn(move || {
            let is_of = bond.bind(qp);
            if is_of {
                bond.confirm();
            }
            assert_eq!(bond.is_confirmed_on(qp), is_of);
            is_of
        })
    });
    let third = bond.is_confirmed_on(3);
    let of = threads.map(|thread| thread.join().unwrap());
    assert!(!third, "nothing was posted on that one");
    assert!(of[0] != of[1], "one of the two");
}

const THREE_QPS: Races = Races {
    preemptions: 3,
    run: three_qps,
};

#[test]
fn a_registration_is_of_one_qp() {
    THREE_QPS.holds();
}

#[test]
fn each_step_is_needed() {
    bite(&[THREE_QPS], &[]);
}
