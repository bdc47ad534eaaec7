// SPDX-License-Identifier: GPL-2.0

//! A CPU's share of completion handling: the CQs of its lanes, and who looks at them when.
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
//! The [`Moderator`] says: look again (threads only), hold (a timer kicks softirq), or arm. Arming
//! asks whether something slipped in before it took effect; if so, the turn goes on. While threads
//! are at it, softirq leaves all that to them; the last of them that leaves has softirq take a
//! turn, which then arms or holds.
//!
//! Where the device can hold events back it does so in their place; see [`super::hardware`].
//!
//! # The CQ's handler
//!
//! It runs with the CQ's lock held, so it only kicks softirq, on the poller's CPU, or, when that is
//! offline, on the CPU that it is on itself. Kicks of another CPU than the one that runs are
//! counted: there are many where a device ignores completion vectors.
//!
//! # A CQ that fails
//!
//! It may have lost completions, so nothing on it can be waited for. The next turn tells all lanes
//! of the poller ([`Takes::cq_failed`]), which end; lanes that are made later get another poller.
//!
//! # Lifetime
//!
//! There is one poller for each CPU, device and policy, as long as lanes sit on it ([`Seat`]) and
//! its CQs work; the policy has the list. A CQ's handler keeps the poller alive and the poller its CQs; the last seat
//! that is given up breaks that circle.

use super::{
    hardware::Hardware,
    knobs::Moderation,
    moderation::{Moderator, Next},
    policy::Policy,
    rota::Rota,
    setting::Rounds,
    stats::PollerStats,
};
use crate::{
    kapi::{
        bottom::{Bottom, Softirq},
        time::{now_ns, MS},
        trace,
    },
    verbs::{cq, qp::filled, Cq, Device, Wc},
};
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc, Mutex, SpinLock,
    },
};

/// Completions that are taken out of a CQ at a time.
const CHUNK: u32 = 32;

/// Who gets completions: a lane.
pub(crate) trait Takes: Send + Sync + 'static {
    /// Takes completions of one QP, seen at `now` (ns). Softirq or a thread; must not sleep.
    fn completed(&self, wcs: &mut [Wc], now: u64);

    /// Completions may be lost: what waits for one is to end. Softirq or a thread; must not sleep.
    fn cq_failed(&self);
}

/// What the holder of the turn works with.
struct Turn {
    cqs: KVec<Arc<Cq>>,
    rota: Rota,
    /// The lanes know that a CQ failed.
    told: bool,
    /// Key of a QP and its lane; ascending, as keys are given so.
    lanes: KVec<(u32, Arc<dyn Takes>)>,
    wcs: KVVec<Wc>,
    moderator: Moderator,
    /// If the device can hold events back.
    rounds: Option<Rounds>,
}

/// What a turn came to.
enum Took {
    /// Completions were found.
    Found,
    /// None were, and this follows.
    Empty(Next),
    /// It is left to somebody else, who has the turn or waits, and will look.
    Left,
}

/// What softirq runs.
#[pin_data]
struct Core {
    cpu: u32,
    policy: Arc<Policy>,
    #[pin]
    turn: SpinLock<Turn>,
    /// Somebody wanted the turn and did not get it.
    note: Atomic<bool>,
    /// A CQ failed, and nothing on this poller works from there on.
    failed: Atomic<bool>,
    /// Threads that take turns.
    waiters: Atomic<u32>,
    stats: Arc<PollerStats>,
    #[pin]
    hardware: Hardware,
}

/// A CPU's share of completion handling for one device and policy.
#[pin_data]
pub(crate) struct Poller {
    #[pin]
    bottom: Bottom<Core>,
    device: Arc<Device>,
    /// Taken for whatever changes the set of CQs and lanes, which sleeps.
    #[pin]
    seats: Mutex<u32>,
}

impl Poller {
    fn new(device: &Arc<Device>, policy: &Arc<Policy>, cpu: u32) -> Result<Arc<Self>> {
        let turn = Turn {
            cqs: KVec::new(),
            rota: Rota::new(),
            told: false,
            lanes: KVec::new(),
            wcs: filled(CHUNK as usize, || Wc::EMPTY)?,
            moderator: Moderator::new(now_ns()),
            rounds: None,
        };
        let stats = Arc::new(PollerStats::new(), GFP_KERNEL)?;
        let core = try_pin_init!(Core {
            cpu,
            policy: policy.clone(),
            turn <- new_spinlock!(turn),
            note: Atomic::new(false),
            failed: Atomic::new(false),
            waiters: Atomic::new(0),
            hardware <- Hardware::new(device, policy.clone(), stats.clone()),
            stats,
        });
        let poller = Arc::pin_init(
            try_pin_init!(Self {
                bottom <- Bottom::new(core),
                device: device.clone(),
                seats <- new_mutex!(0),
            }),
            GFP_KERNEL,
        )?;
        poller.change(|turn| {
            turn.rounds = poller.bottom.hardware.rounds();
            turn.moderator.set_by_device(turn.rounds.is_some());
        });
        Ok(poller)
    }

    /// The CPU that its softirq runs on, as long as that is online.
    pub(crate) fn cpu(&self) -> u32 {
        self.bottom.cpu
    }

    /// What it counts.
    pub(crate) fn stats(&self) -> &Arc<PollerStats> {
        &self.bottom.stats
    }

    /// A knob of the policy was turned. Any context.
    pub(super) fn rules_changed(&self) {
        self.bottom.hardware.rules_changed();
    }

    /// Takes a seat for a lane to be on the poller of that CPU, device and policy; makes the poller
    /// if there is none that works. Sleeps.
    pub(crate) fn sit(policy: &Arc<Policy>, device: &Arc<Device>, cpu: u32) -> Result<Seat> {
        let mut pollers = policy.pollers.lock();
        let found = pollers.iter().find(|poller| {
            poller.cpu() == cpu
                && Arc::ptr_eq(&poller.device, device)
                && !poller.bottom.failed.load(Relaxed)
        });
        let poller = match found {
            Some(poller) => poller.clone(),
            None => {
                let poller = Self::new(device, policy, cpu)?;
                pollers.push(poller.clone(), GFP_KERNEL)?;
                poller
            }
        };
        *poller.seats.lock() += 1;
        drop(pollers);
        Ok(Seat { poller, key: None })
    }

    /// Changes what the turn works with, in process context.
    fn change<R>(&self, f: impl FnOnce(&mut Turn) -> R) -> R {
        let result = f(&mut self.bottom.turn.lock());
        if self.bottom.note.xchg(false, Full) {
            self.kick();
        }
        result
    }

    /// Has softirq take a turn.
    fn kick(&self) {
        let stats = &self.bottom.stats;
        stats.kicks.add(1);
        let remote = self.bottom.kick(self.bottom.cpu);
        if remote {
            stats.remote_kicks.add(1);
        }
        trace::kick(self.bottom.cpu, remote);
    }
}

impl cq::Handler for Poller {
    fn kick(&self) {
        self.bottom.stats.cq_events.add(1);
        trace::cq_event(self.bottom.cpu);
        Poller::kick(self);
    }

    fn failed(&self) {
        self.bottom.cq_failed();
        Poller::kick(self);
    }
}

impl Core {
    /// Takes the turn, if nobody else has it, as often as somebody leaves a note meanwhile.
    fn turn(&self, mut f: impl FnMut(&mut Turn) -> Took) -> Took {
        let mut took = Took::Left;
        loop {
            self.note.xchg(true, Full);
            let Some(mut turn) = self.turn.try_lock() else {
                return took;
            };
            // Before the poll, which so sees what the writer of the note saw.
            self.note.xchg(false, Full);
            took = f(&mut turn);
            drop(turn);
            if !self.note.xchg(false, Full) {
                return took;
            }
        }
    }

    /// A CQ failed: the next turn tells the lanes. Any context.
    fn cq_failed(&self) {
        self.stats.cq_failures.add(1);
        self.failed.store(true, Relaxed);
    }

    /// Takes up to `budget` completions out of the CQs and hands them on. Fewer mean that the CQs
    /// were empty.
    fn sweep(&self, turn: &mut Turn, budget: u32) -> u32 {
        let Turn {
            cqs,
            rota,
            told,
            lanes,
            wcs,
            ..
        } = turn;
        let found = rota.sweep(cqs, budget, CHUNK, |cq, room| {
            let Ok(wcs) = cq.poll(&mut wcs[..room as usize]) else {
                self.cq_failed();
                return 0;
            };
            self.stats.polls.add(1);
            let n = wcs.len();
            if n == 0 {
                self.stats.empty_polls.add(1);
            } else {
                hand_on(lanes, wcs);
            }
            n as u32
        });
        if self.failed.load(Relaxed) && !core::mem::replace(told, true) {
            for (_, lane) in lanes.iter() {
                lane.cq_failed();
            }
        }
        trace::poll(self.cpu, found);
        found
    }

    /// Arms all CQs; `true` if completions may have come before that took effect.
    fn arm(&self, turn: &Turn) -> bool {
        let mut missed = false;
        for cq in turn.cqs.iter() {
            self.stats.arms.add(1);
            let slipped_in = cq.arm();
            trace::arm(self.cpu, slipped_in);
            missed |= slipped_in;
        }
        missed
    }

    /// What follows an empty poll.
    fn next(&self, turn: &mut Turn, knobs: &Moderation, may_spin: bool, now: u64) -> Next {
        let before = turn.moderator.changes();
        let next = turn.moderator.empty(knobs, may_spin, now);
        let changes = turn.moderator.changes();
        if changes != before {
            self.stats.mode_changes.set(changes);
            trace::mode(self.cpu, may_spin, turn.moderator.mode(may_spin) as u32);
        }
        next
    }

    /// A turn of softirq.
    fn softirq_turn(&self) -> Took {
        let knobs = self.policy.moderation();
        self.turn(|turn| {
            let took = self.poll_and_go_on(turn, &knobs);
            let Turn {
                rounds, moderator, ..
            } = turn;
            if rounds.is_some() {
                self.hardware.turn(rounds, moderator, &knobs);
            }
            took
        })
    }

    /// What softirq does in its turn: polls, and when the CQs are empty and no thread looks at them,
    /// arms or asks for a hold.
    fn poll_and_go_on(&self, turn: &mut Turn, knobs: &Moderation) -> Took {
        let mut left = knobs.poll_budget;
        loop {
            let n = self.sweep(turn, left);
            left -= n;
            let now = now_ns();
            if n > 0 {
                turn.moderator.found(n, now);
            }
            if left == 0 {
                return Took::Found;
            }
            if self.waiters.load(Relaxed) > 0 {
                return Took::Left;
            }
            if turn.told {
                // It may tell of nothing any more, or for ever of something. Its lanes go soon.
                return Took::Empty(Next::Hold(MS));
            }
            let next = self.next(turn, knobs, false, now);
            if next == Next::Arm && self.arm(turn) {
                // A device that fails may say so for ever, and have nothing.
                left -= 1;
                continue;
            }
            return Took::Empty(next);
        }
    }

    /// A turn of a thread that waits.
    fn waiter_turn(&self) -> Took {
        let knobs = self.policy.moderation();
        self.turn(|turn| {
            let n = self.sweep(turn, knobs.poll_budget);
            let now = now_ns();
            if n > 0 {
                turn.moderator.found(n, now);
                return Took::Found;
            }
            let next = self.next(turn, &knobs, true, now);
            Took::Empty(next)
        })
    }

    /// The last turn of a thread that is no longer among the waiters: looks once more, and arms if
    /// that is what follows.
    fn last_turn(&self, next: Next) -> Took {
        let budget = self.policy.moderation().poll_budget;
        self.turn(|turn| {
            let n = self.sweep(turn, budget);
            if n > 0 {
                turn.moderator.found(n, now_ns());
                return Took::Found;
            }
            if next == Next::Arm && self.arm(turn) {
                return Took::Found;
            }
            Took::Empty(next)
        })
    }
}

/// Gives completions to their lanes, those of one lane in a row at once.
fn hand_on(lanes: &[(u32, Arc<dyn Takes>)], wcs: &mut [Wc]) {
    let now = now_ns();
    let mut rest = wcs;
    while let Some(first) = rest.first() {
        let key = first.route().key;
        let n = rest.iter().take_while(|wc| wc.route().key == key).count();
        let (of_one, others) = rest.split_at_mut(n);
        rest = others;
        // Else it is of a QP that is gone.
        if let Ok(at) = lanes.binary_search_by_key(&key, |(key, _)| *key) {
            lanes[at].1.completed(of_one, now);
        }
    }
}

impl Softirq for Core {
    fn run(&self, bottom: &Bottom<Self>) {
        match self.softirq_turn() {
            Took::Found | Took::Empty(Next::Spin) => {
                bottom.kick(self.cpu);
            }
            Took::Empty(Next::Hold(ns)) => bottom.kick_after(self.cpu, ns),
            Took::Empty(Next::Arm) | Took::Left => {}
        }
    }
}

/// What a thread that waits for operations does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// Completions were handed on: see whether one's own are among them.
    Found,
    /// Nothing yet: look again, after others had the CPU.
    Again,
    /// Sleep until the lane says that something completed; the CQs are looked at by others.
    Sleep,
}

/// A thread that waits for its operations by looking for completions itself.
pub(crate) struct Waiter<'a> {
    poller: &'a Poller,
    /// It is among those whom softirq leaves the CQs to.
    counted: bool,
}

impl<'a> Waiter<'a> {
    /// A thread that does not wait yet.
    pub(crate) fn new(poller: &'a Poller) -> Self {
        Self {
            poller,
            counted: false,
        }
    }

    /// Looks once, if the policy lets it poll. Process context, without locks of lanes.
    pub(crate) fn look(&mut self) -> Look {
        let core = &*self.poller.bottom;
        if !core.policy.completion().may_poll() {
            self.leave();
            return Look::Sleep;
        }
        if !self.counted {
            self.counted = true;
            core.waiters.fetch_add(1, Relaxed);
        }
        let next = match core.waiter_turn() {
            Took::Found => return Look::Found,
            Took::Left | Took::Empty(Next::Spin) => return Look::Again,
            Took::Empty(next) => next,
        };
        // First this: softirq must not leave to a thread what that no longer does.
        self.counted = false;
        core.waiters.fetch_sub(1, Full);
        match core.last_turn(next) {
            Took::Found => {
                // Nothing may be armed: whoever ends now has to leave first.
                self.counted = true;
                core.waiters.fetch_add(1, Relaxed);
                Look::Found
            }
            Took::Empty(Next::Hold(ns)) => {
                self.poller.bottom.kick_after(core.cpu, ns);
                Look::Sleep
            }
            // Whoever has the turn has seen the note, and that one waiter less is there.
            Took::Empty(_) | Took::Left => Look::Sleep,
        }
    }
}

impl Waiter<'_> {
    /// Leaves the CQs to softirq, if this was the last that looked at them.
    fn leave(&mut self) {
        if core::mem::take(&mut self.counted) && self.poller.bottom.waiters.fetch_sub(1, Full) == 1
        {
            self.poller.kick();
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A lane's place on a poller. Giving it up sleeps.
pub(crate) struct Seat {
    poller: Arc<Poller>,
    /// Of the lane that gets completions.
    key: Option<u32>,
}

impl Seat {
    /// The poller.
    pub(crate) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// A CQ with room for `completions` more; makes one, if need be with room for `expected`.
    /// Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device has no CQ that large.
    pub(crate) fn cq(&self, completions: u32, expected: u32) -> Result<Arc<Cq>> {
        let poller = &self.poller;
        let _seats = poller.seats.lock();
        let found = poller.change(|turn| {
            let cq = turn.cqs.iter().find(|cq| cq.room() >= completions);
            (cq.cloned(), turn.cqs.len())
        });
        let len = match found {
            (Some(cq), _) => return Ok(cq),
            (None, len) => len,
        };
        let entries = expected.min(poller.device.caps().max_cqe).max(completions);
        let cq = Cq::new(&poller.device, entries, poller.cpu(), poller.clone())?;
        let mut cqs = KVec::with_capacity(len + 1, GFP_KERNEL)?;
        poller.bottom.hardware.add(&cq)?;
        poller.change(|turn| {
            // Room for all was made above; nobody else changes them, as this has `seats`.
            for old in turn.cqs.drain_all() {
                let _ = cqs.push_within_capacity(old);
            }
            let _ = cqs.push_within_capacity(cq.clone());
            core::mem::swap(&mut turn.cqs, &mut cqs);
        });
        // It was not armed yet.
        poller.kick();
        Ok(cq)
    }

    /// From here on `lane` gets the completions of the QP with that key, of which nothing may have
    /// been posted before. Sleeps.
    ///
    /// # Errors
    ///
    /// `EIO` if a CQ failed meanwhile.
    pub(crate) fn take(&mut self, key: u32, lane: Arc<dyn Takes>) -> Result {
        let poller = self.poller.clone();
        let _seats = poller.seats.lock();
        let len = poller.change(|turn| turn.lanes.len());
        let mut lanes = KVec::with_capacity(len + 1, GFP_KERNEL)?;
        let mut lane = Some((key, lane));
        let told = poller.change(|turn| {
            for old in turn.lanes.drain_all() {
                if let Some(new) = lane.take_if(|(new, _)| *new < old.0) {
                    let _ = lanes.push_within_capacity(new);
                }
                let _ = lanes.push_within_capacity(old);
            }
            if let Some(new) = lane.take() {
                let _ = lanes.push_within_capacity(new);
            }
            core::mem::swap(&mut turn.lanes, &mut lanes);
            turn.told
        });
        self.key = Some(key);
        match told {
            true => Err(EIO),
            false => Ok(()),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let poller = &self.poller;
        let mut pollers = poller.bottom.policy.pollers.lock();
        let mut seats = poller.seats.lock();
        *seats -= 1;
        let last = *seats == 0;
        let key = self.key;
        let gone = poller.change(|turn| {
            let lane = key.and_then(|key| {
                let at = turn
                    .lanes
                    .binary_search_by_key(&key, |(key, _)| *key)
                    .ok()?;
                turn.lanes.remove(at).ok()
            });
            let cqs = last.then(|| core::mem::take(&mut turn.cqs));
            (lane, cqs)
        });
        let told = last.then(|| poller.bottom.hardware.clear());
        drop(seats);
        let at = pollers.iter().position(|other| Arc::ptr_eq(other, poller));
        let unlisted = at.filter(|_| last).and_then(|at| pollers.remove(at).ok());
        drop(pollers);
        // What goes, goes outside of the locks.
        drop((gone, told, unlisted));
    }
}
