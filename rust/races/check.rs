// SPDX-License-Identifier: GPL-2.0

//! How models are explored, and whether they bite.
//!
//! A model is run through all interleavings of its threads and all values that their loads may see,
//! with up to so many preemptions: [`Model::holds`].
//!
//! [`bite`] mutates the code under test, one step at a time: an ordering becomes `Relaxed`, or what
//! reads and writes at once is torn in two. One of the models has to fail by each mutation; else
//! either the step need not be what it is, or the models are of no use for it. Those of which this
//! is so are listed by the caller.
//!
//! [`Model::fails`] is for faults of other kinds: a model in which something is wrong has to fail.

use super::atomic::Kind;
use core::{cell::RefCell, panic::Location};
use loom::model::Builder;
use std::{
    collections::BTreeSet,
    panic::{catch_unwind, AssertUnwindSafe},
};

/// What is done to a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mutation {
    Weaken,
    Tear,
}

/// Where a step stands (file, line, column), and what is done to it.
type Mutant = (&'static str, u32, u32, Mutation);

#[derive(Default)]
struct Notes {
    /// What can be done.
    possible: BTreeSet<Mutant>,
    /// What is done now.
    now: Option<Mutant>,
}

thread_local! {
    // A model's threads are coroutines of the thread that explores it.
    static NOTES: RefCell<Notes> = RefCell::default();
}

/// How a step is done now.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) torn: bool,
}

/// A step there, which may read and write at once.
pub(crate) fn step(kind: Kind, both: bool, at: &'static Location<'static>) -> Step {
    let mutant = |mutation| (at.file(), at.line(), at.column(), mutation);
    NOTES.with(|notes| {
        let mut notes = notes.borrow_mut();
        let mut is_done = |possible: bool, mutation| {
            possible && {
                notes.possible.insert(mutant(mutation));
                notes.now == Some(mutant(mutation))
            }
        };
        let weak = is_done(kind != Kind::Relaxed, Mutation::Weaken);
        let torn = is_done(both, Mutation::Tear);
        Step {
            kind: if weak { Kind::Relaxed } else { kind },
            torn,
        }
    })
}

/// Threads that run the code under test, and what has to be so at their end.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    pub(crate) preemptions: usize,
    pub(crate) run: fn(),
}

impl Model {
    /// What some way through it fails by.
    fn refutation(&self) -> Option<String> {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(self.preemptions);
        let failed = catch_unwind(AssertUnwindSafe(|| builder.check(self.run))).err()?;
        let text = failed.downcast_ref::<String>().map(String::as_str);
        let text = text.or(failed.downcast_ref::<&str>().copied());
        Some(text.unwrap_or("a panic").to_string())
    }

    /// All ways through it hold.
    pub(crate) fn holds(&self) {
        expect(&self.refutation(), &None);
    }

    /// What is wrong in it is found: it fails with a message that has `text` in it.
    pub(crate) fn fails(&self, text: &str) {
        let refutation = self.refutation();
        if !refutation
            .as_ref()
            .is_some_and(|found| found.contains(text))
        {
            expect(&refutation, &Some(text.to_string()));
        }
    }
}

/// As `assert_eq`, but for its message, which loom's coroutines swallow.
fn expect<T: core::fmt::Debug + PartialEq>(found: &T, expected: &T) {
    if found != expected {
        println!("found    {found:#?}\nexpected {expected:#?}");
        panic!("see above");
    }
}

/// Every mutation of the code under test is found by one of `models`, but those in `spare`: "weaken"
/// or "tear", and the line of the source.
pub(crate) fn bite(models: &[Model], spare: &[&str]) {
    NOTES.with(|notes| *notes.borrow_mut() = Notes::default());
    for model in models {
        model.holds();
    }
    let possible = NOTES.with(|notes| notes.borrow().possible.clone());
    let mut unnoticed = BTreeSet::new();
    for mutant in possible {
        NOTES.with(|notes| notes.borrow_mut().now = Some(mutant));
        if models.iter().all(|model| model.refutation().is_none()) {
            unnoticed.insert(name(mutant));
        }
    }
    let spare: BTreeSet<String> = spare.iter().map(|name| name.to_string()).collect();
    expect(&unnoticed, &spare);
}

/// A mutation by the text of its line, which moves less than its number.
fn name((file, line, _, mutation): Mutant) -> String {
    let text = std::fs::read_to_string(file).expect("sources are where they were");
    let line = text.lines().nth(line as usize - 1).unwrap_or_default();
    let what = match mutation {
        Mutation::Weaken => "weaken",
        Mutation::Tear => "tear",
    };
    format!("{what} {}", line.trim())
}
