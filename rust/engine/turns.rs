// SPDX-License-Identifier: GPL-2.0

//! Whose turn it is to look at a poller's CQs, so that nothing that comes is overlooked: what of
//! the poller rests on memory orderings. `make unit` explores it (`rust/races/turns.rs`).
//!
//! # Turns
//!
//! Whoever takes a *turn* polls: takes completions out of the CQs, up to `poll_budget`, and hands
//! them to their lanes. There are two kinds of takers. Softirq takes one when a CQ's event or a
//! hold's timer kicked it, and goes on while it finds something. A thread that waits for its own
//! operations takes turns itself ([`Waiter`]): nobody has to be woken for it then. Only one at a
//! time has the turn; who comes second leaves a note, and the first looks at it after it has given
//! the turn back. So nothing that came is overlooked:
//!
//! ```text
//! second: leave the note; try the turn       first: give the turn back; take the note; be second
//! ```
//!
//! Either the second gets the turn, or the first sees the note, as both put a full barrier between
//! their two steps. The first that has taken a note leaves one itself before it tries again: a
//! third may have the turn by then, and has to know.
//!
//! # What follows an empty poll
//!
//! The desk's [`Next`]: look again (threads only), hold (a timer kicks softirq), or arm. Arming
//! asks whether something slipped in before it took effect; if so, the turn goes on. While threads
//! are at it, softirq leaves all that to them; the last of them that leaves has softirq take a
//! turn, which then arms or holds.

use super::{knobs::Moderation as Rules, moderation::Next, wait::Look};
use kernel::sync::atomic::{Atomic, Full, Relaxed};

/// When softirq looks again that told the lanes of a CQ's failure, ns.
const AFTER_FAILURE: u64 = 1_000_000;

/// What a turn came to.
pub(crate) enum Took {
    /// Completions were found.
    Found,
    /// None were, and this follows.
    Empty(Next),
    /// It is left to somebody else, who has the turn or waits, and will look.
    Left,
}

/// The CQs, in the hands of who has the turn. Dropping it gives the turn back.
pub(crate) trait Cqs {
    /// Takes up to `budget` completions out and hands them on. Fewer mean that the CQs were empty.
    fn sweep(&mut self, budget: u32) -> u32;

    /// The time, ns.
    fn now(&self) -> u64;

    /// Notes that `n` were found at `now`.
    fn found(&mut self, n: u32, now: u64);

    /// A CQ failed, and the lanes were told.
    fn failed(&self) -> bool;

    /// What follows an empty poll.
    fn next(&mut self, rules: &Rules, may_spin: bool, now: u64) -> Next;

    /// Arms all that completions are waited for on; `true` if some may have come before that took
    /// effect.
    fn arm(&mut self) -> bool;

    /// Softirq has found what there was for now.
    fn over(&mut self, rules: &Rules);
}

/// Where turns are taken: a poller.
pub(crate) trait Desk {
    /// What who has the turn works with.
    type Cqs<'a>: Cqs
    where
        Self: 'a;

    /// The state of the turns.
    fn turns(&self) -> &Turns;

    /// The lock that is the turn, if nobody has it.
    fn try_take(&self) -> Option<Self::Cqs<'_>>;

    /// The knobs as they are now.
    fn rules(&self) -> Rules;

    /// Whether threads may look.
    fn may_poll(&self) -> bool;

    /// Has softirq take a turn.
    fn wake(&self);

    /// Has softirq, which just took one, take another.
    fn go_on(&self);

    /// Has softirq take a turn in so many ns.
    fn wake_after(&self, ns: u64);
}

/// The state of the turns beside the lock.
pub(crate) struct Turns {
    /// Somebody wanted the turn and did not get it.
    note: Atomic<bool>,
    /// Threads that take turns.
    waiters: Atomic<u32>,
}

impl Turns {
    /// Nobody has one.
    pub(crate) fn new() -> Self {
        Self {
            note: Atomic::new(false),
            waiters: Atomic::new(0),
        }
    }
}

/// Whether a CQ failed.
pub(crate) struct Failure(Atomic<bool>);

impl Failure {
    /// None did.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(false))
    }

    /// One did. Who has noted that wakes the desk next. Any context.
    pub(crate) fn note(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether one did.
    pub(crate) fn is_noted(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// To be called in each turn: has the lanes told, once. `told` belongs to the turn, and so do the
    /// lanes; who brings one later looks at it.
    #[inline]
    pub(crate) fn tell(&self, told: &mut bool, tell: impl FnOnce()) {
        if self.0.load(Relaxed) && !core::mem::replace(told, true) {
            tell();
        }
    }
}

/// Takes the turn, if nobody else has it, as often as somebody leaves a note meanwhile.
#[inline]
fn take<D: Desk>(desk: &D, mut f: impl FnMut(&mut D::Cqs<'_>) -> Took) -> Took {
    let note = &desk.turns().note;
    let mut took = Took::Left;
    loop {
        note.xchg(true, Full);
        let Some(mut cqs) = desk.try_take() else {
            return took;
        };
        // Before the poll, which so sees what the writer of the note saw.
        note.xchg(false, Full);
        took = f(&mut cqs);
        drop(cqs);
        if !note.xchg(false, Full) {
            return took;
        }
    }
}

/// Does something with the lock that is the turn held, other than looking: `locked` takes it and
/// gives it back.
#[inline]
pub(crate) fn change<D: Desk, R>(desk: &D, locked: impl FnOnce() -> R) -> R {
    let result = locked();
    if desk.turns().note.xchg(false, Full) {
        desk.wake();
    }
    result
}

/// What softirq does when it was kicked.
#[inline]
pub(crate) fn softirq<D: Desk>(desk: &D) {
    let rules = desk.rules();
    let took = take(desk, |cqs| {
        let took = poll_and_go_on(desk.turns(), cqs, &rules);
        cqs.over(&rules);
        took
    });
    match took {
        Took::Found | Took::Empty(Next::Spin) => desk.go_on(),
        Took::Empty(Next::Hold(ns)) => desk.wake_after(ns),
        Took::Empty(Next::Arm) | Took::Left => {}
    }
}

/// What softirq does in its turn: polls, and when the CQs are empty and no thread looks at them,
/// arms or asks for a hold.
#[inline]
fn poll_and_go_on(turns: &Turns, cqs: &mut impl Cqs, rules: &Rules) -> Took {
    let mut left = rules.poll_budget;
    loop {
        let n = cqs.sweep(left);
        left -= n;
        let now = cqs.now();
        if n > 0 {
            cqs.found(n, now);
        }
        if left == 0 {
            return Took::Found;
        }
        if turns.waiters.load(Relaxed) > 0 {
            return Took::Left;
        }
        if cqs.failed() {
            // It may tell of nothing any more, or for ever of something. Its lanes go soon.
            return Took::Empty(Next::Hold(AFTER_FAILURE));
        }
        let next = cqs.next(rules, false, now);
        if next == Next::Arm && cqs.arm() {
            // A device that fails may say so for ever, and have nothing.
            left -= 1;
            continue;
        }
        return Took::Empty(next);
    }
}

/// A thread that waits for its operations by looking for completions itself.
pub(crate) struct Waiter<'a, D: Desk> {
    desk: &'a D,
    /// It is among those whom softirq leaves the CQs to.
    counted: bool,
}

impl<'a, D: Desk> Waiter<'a, D> {
    /// A thread that does not wait yet.
    pub(crate) fn new(desk: &'a D) -> Self {
        Self {
            desk,
            counted: false,
        }
    }

    /// Looks once, if the policy lets it poll. Process context, without locks of lanes.
    #[inline]
    pub(crate) fn look(&mut self) -> Look {
        let waiters = &self.desk.turns().waiters;
        if !self.desk.may_poll() {
            self.leave();
            return Look::Sleep;
        }
        if !self.counted {
            self.counted = true;
            waiters.fetch_add(1, Relaxed);
        }
        let next = match self.turn() {
            Took::Found => return Look::Found,
            Took::Left | Took::Empty(Next::Spin) => return Look::Again,
            Took::Empty(next) => next,
        };
        // First this: softirq must not leave to a thread what that no longer does.
        self.counted = false;
        waiters.fetch_sub(1, Full);
        match self.last_turn(next) {
            Took::Found => {
                // Nothing may be armed: whoever ends now has to leave first.
                self.counted = true;
                waiters.fetch_add(1, Relaxed);
                Look::Found
            }
            Took::Empty(Next::Hold(ns)) => {
                self.desk.wake_after(ns);
                Look::Sleep
            }
            // Whoever has the turn has seen the note, and that one waiter less is there.
            Took::Empty(_) | Took::Left => Look::Sleep,
        }
    }

    /// A turn of one that goes on waiting.
    #[inline]
    fn turn(&self) -> Took {
        let rules = self.desk.rules();
        take(self.desk, |cqs| {
            let n = cqs.sweep(rules.poll_budget);
            let now = cqs.now();
            if n > 0 {
                cqs.found(n, now);
                return Took::Found;
            }
            Took::Empty(cqs.next(&rules, true, now))
        })
    }

    /// The last turn of one that is no longer among the waiters: looks once more, and arms if that
    /// is what follows.
    #[inline]
    fn last_turn(&self, next: Next) -> Took {
        let budget = self.desk.rules().poll_budget;
        take(self.desk, |cqs| {
            let n = cqs.sweep(budget);
            if n > 0 {
                let now = cqs.now();
                cqs.found(n, now);
                return Took::Found;
            }
            if next == Next::Arm && cqs.arm() {
                return Took::Found;
            }
            Took::Empty(next)
        })
    }

    /// Leaves the CQs to softirq, if this was the last that looked at them.
    fn leave(&mut self) {
        if core::mem::take(&mut self.counted) && self.desk.turns().waiters.fetch_sub(1, Full) == 1 {
            self.desk.wake();
        }
    }
}

impl<D: Desk> Drop for Waiter<'_, D> {
    fn drop(&mut self) {
        self.leave();
    }
}
