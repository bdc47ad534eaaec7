// SPDX-License-Identifier: GPL-2.0

//! A CPU's share of completion handling: the CQs of its lanes, and who looks at them when.
//!
//! # Looking
//!
//! Softirq and threads that wait for their own operations take turns; see [`super::turns`]. What
//! follows a turn that has found nothing, the [`Moderator`] says.
//!
//! Where the device can hold events back it does so in their place; see [`super::hardware`].
//!
//! # The CQ's handler
//!
//! It runs with the CQ's lock held, so it only kicks softirq, on the poller's CPU, or, when that is
//! offline, on the CPU that it is on itself. Kicks of another CPU than the one that runs are
//! counted: there are many where a device ignores completion vectors.
//!
//! # Quiet CQs
//!
//! A service may have completions that are of no use by themselves, as those of SENDs whose answers
//! it waits for. They go to a quiet CQ, which each turn looks at before the others. While somebody
//! waits for something on one ([`Dues`]) they are armed like the others; else for completions with an
//! error only, as there are devices that flush a QP's receives only once such a one was polled.
//!
//! Two CQs have no order: a turn may take a SEND's completion that is later than an answer before
//! that answer.
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
    turns::{self, Cqs, Desk, Failure, Turns},
    wait::Look,
};
use crate::{
    kapi::{
        bottom::{Bottom, Softirq},
        time::now_ns,
        trace,
    },
    verbs::{cq, qp::filled, Cq, Device, Wc},
};
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex, SpinLock, SpinLockGuard,
    },
};

/// Completions that are taken out of a CQ at a time.
pub(super) const CHUNK: u32 = 32;

/// Who gets completions: a lane.
pub(crate) trait Takes: Send + Sync + 'static {
    /// Takes completions of one QP, seen at `now` (ns). Softirq or a thread; must not sleep.
    fn completed(&self, wcs: &mut [Wc], now: u64);

    /// Completions may be lost: what waits for one is to end. Softirq or a thread; must not sleep.
    fn cq_failed(&self);
}

/// The completions on quiet CQs that a lane waits for. When it goes nobody does any more.
pub(crate) struct Dues {
    poller: Arc<Poller>,
    count: u32,
}

impl Dues {
    /// One more. By whoever is called with completions: that turn's end arms the CQs.
    pub(crate) fn add(&mut self) {
        self.count += 1;
        self.poller.bottom.owed.fetch_add(1, Relaxed);
    }

    /// The same elsewhere. Any context.
    pub(crate) fn add_and_kick(&mut self) {
        self.add();
        self.poller.kick();
    }

    /// One has come, or is not waited for any more. Any context.
    pub(crate) fn sub(&mut self) {
        if self.count > 0 {
            self.count -= 1;
            self.poller.bottom.owed.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Dues {
    fn drop(&mut self) {
        self.poller.bottom.owed.fetch_sub(self.count, Relaxed);
    }
}

/// Of which CQs.
#[derive(Clone, Copy)]
enum Kind {
    Armed,
    Quiet,
}

/// A CQ that is looked at.
#[derive(Clone)]
struct Watched {
    cq: Arc<Cq>,
    ear: Arc<Ear>,
}

/// A CQ's handler.
struct Ear {
    poller: Arc<Poller>,
    /// An event is to come, at least for an error: it was armed, and there was none since.
    armed: Atomic<bool>,
}

/// What the holder of the turn works with.
struct Turn {
    cqs: KVec<Watched>,
    quiet: KVec<Watched>,
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

impl Turn {
    fn cqs(&mut self, kind: Kind) -> &mut KVec<Watched> {
        match kind {
            Kind::Armed => &mut self.cqs,
            Kind::Quiet => &mut self.quiet,
        }
    }
}

/// What softirq runs.
#[pin_data]
struct Core {
    cpu: u32,
    policy: Arc<Policy>,
    #[pin]
    turn: SpinLock<Turn>,
    turns: Turns,
    /// A CQ failed, and nothing on this poller works from there on.
    failure: Failure,
    /// Completions on quiet CQs that are waited for.
    owed: Atomic<u32>,
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
            quiet: KVec::new(),
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
            turns: Turns::new(),
            failure: Failure::new(),
            owed: Atomic::new(0),
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
                && !poller.bottom.failure.is_noted()
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
        turns::change(&self.bottom, || f(&mut self.bottom.turn.lock()))
    }

    /// Has softirq take a turn.
    fn kick(&self) {
        self.bottom.wake();
    }
}

impl cq::Handler for Ear {
    fn kick(&self) {
        let poller = &self.poller;
        self.armed.store(false, Relaxed);
        poller.bottom.stats.cq_events.add(1);
        trace::cq_event(poller.bottom.cpu);
        poller.kick();
    }

    fn failed(&self) {
        self.poller.bottom.cq_failed();
        self.poller.kick();
    }
}

impl Core {
    /// A CQ failed: the next turn tells the lanes. Any context.
    fn cq_failed(&self) {
        self.stats.cq_failures.add(1);
        self.failure.note();
    }

    /// Takes up to `budget` completions out of the CQs and hands them on. Fewer mean that the CQs
    /// were empty. What is on quiet ones comes besides, and does not count: there is no more of that
    /// than what was posted, and it is no sign of more to come.
    fn sweep(&self, turn: &mut Turn, budget: u32) -> u32 {
        let Turn {
            cqs,
            quiet,
            rota,
            told,
            lanes,
            wcs,
            ..
        } = turn;
        for watched in quiet.iter() {
            loop {
                let Ok(found) = watched.cq.poll(wcs) else {
                    self.cq_failed();
                    break;
                };
                let n = found.len();
                hand_on(lanes, found);
                if n < wcs.len() {
                    break;
                }
            }
        }
        let found = rota.sweep(cqs, budget, CHUNK, |watched, room| {
            let Ok(wcs) = watched.cq.poll(&mut wcs[..room as usize]) else {
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
        self.failure.tell(told, || {
            for (_, lane) in lanes.iter() {
                lane.cq_failed();
            }
        });
        trace::poll(self.cpu, found);
        found
    }

    /// Arms all CQs, quiet ones for errors only if nothing on them is waited for; `true` if completions
    /// may have come before that took effect.
    #[inline(always)]
    fn arm(&self, turn: &Turn) -> bool {
        let owed = self.owed.load(Relaxed) > 0;
        let mut missed = false;
        let mut arm = |watched: &Watched, only_errors: bool| {
            // Before it is: an event may come at once.
            watched.ear.armed.store(true, Relaxed);
            self.stats.arms.add(1);
            let slipped_in = match only_errors {
                true => watched.cq.arm_for_errors(),
                false => watched.cq.arm(),
            };
            trace::arm(self.cpu, slipped_in);
            if slipped_in {
                // A device may not have armed it then.
                watched.ear.armed.store(false, Relaxed);
            }
            missed |= slipped_in;
        };
        for watched in turn.cqs.iter() {
            arm(watched, false);
        }
        for watched in turn.quiet.iter() {
            if owed || !watched.ear.armed.load(Relaxed) {
                arm(watched, !owed);
            }
        }
        missed
    }

    /// What follows an empty poll.
    #[inline(always)]
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
}

/// The turn, taken.
struct Taken<'a> {
    core: &'a Core,
    turn: SpinLockGuard<'a, Turn>,
}

impl Cqs for Taken<'_> {
    #[inline]
    fn sweep(&mut self, budget: u32) -> u32 {
        self.core.sweep(&mut self.turn, budget)
    }

    #[inline]
    fn now(&self) -> u64 {
        now_ns()
    }

    #[inline]
    fn found(&mut self, n: u32, now: u64) {
        self.turn.moderator.found(n, now);
    }

    #[inline]
    fn failed(&self) -> bool {
        self.turn.told
    }

    #[inline]
    fn next(&mut self, rules: &Moderation, may_spin: bool, now: u64) -> Next {
        self.core.next(&mut self.turn, rules, may_spin, now)
    }

    #[inline]
    fn arm(&mut self) -> bool {
        self.core.arm(&self.turn)
    }

    #[inline]
    fn over(&mut self, rules: &Moderation) {
        let Turn {
            rounds, moderator, ..
        } = &mut *self.turn;
        if rounds.is_some() {
            self.core.hardware.turn(rounds, moderator, rules);
        }
    }
}

impl Desk for Bottom<Core> {
    type Cqs<'a> = Taken<'a>;

    #[inline]
    fn turns(&self) -> &Turns {
        &self.turns
    }

    #[inline]
    fn try_take(&self) -> Option<Taken<'_>> {
        let turn = self.turn.try_lock()?;
        Some(Taken { core: self, turn })
    }

    #[inline]
    fn rules(&self) -> Moderation {
        self.policy.moderation()
    }

    #[inline]
    fn may_poll(&self) -> bool {
        self.policy.completion().may_poll()
    }

    #[inline]
    fn wake(&self) {
        self.stats.kicks.add(1);
        let remote = self.kick(self.cpu);
        if remote {
            self.stats.remote_kicks.add(1);
        }
        trace::kick(self.cpu, remote);
    }

    #[inline]
    fn go_on(&self) {
        self.kick(self.cpu);
    }

    #[inline]
    fn wake_after(&self, ns: u64) {
        self.kick_after(self.cpu, ns);
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
        turns::softirq(bottom);
    }
}

/// A thread that waits for its operations by looking for completions itself.
pub(crate) struct Waiter<'a>(turns::Waiter<'a, Bottom<Core>>);

impl<'a> Waiter<'a> {
    /// A thread that does not wait yet.
    pub(crate) fn new(poller: &'a Poller) -> Self {
        Self(turns::Waiter::new(&poller.bottom))
    }

    /// Looks once, if the policy lets it poll. Process context, without locks of lanes.
    #[inline]
    pub(crate) fn look(&mut self) -> Look {
        self.0.look()
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
        self.cq_of(Kind::Armed, completions, expected)
    }

    /// The same of quiet ones, for a lane that waits for some of what comes there. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device has no CQ that large.
    pub(crate) fn quiet_cq(&self, completions: u32, expected: u32) -> Result<(Arc<Cq>, Dues)> {
        let cq = self.cq_of(Kind::Quiet, completions, expected)?;
        let poller = self.poller.clone();
        Ok((cq, Dues { poller, count: 0 }))
    }

    fn cq_of(&self, kind: Kind, completions: u32, expected: u32) -> Result<Arc<Cq>> {
        let poller = &self.poller;
        let _seats = poller.seats.lock();
        let found = poller.change(|turn| {
            let cqs = turn.cqs(kind);
            let found = cqs.iter().find(|watched| watched.cq.room() >= completions);
            (found.map(|watched| watched.cq.clone()), cqs.len())
        });
        let len = match found {
            (Some(cq), _) => return Ok(cq),
            (None, len) => len,
        };
        let entries = expected.min(poller.device.caps().max_cqe).max(completions);
        let ear = Ear {
            poller: poller.clone(),
            armed: Atomic::new(false),
        };
        let ear = Arc::new(ear, GFP_KERNEL)?;
        let cq = Cq::new(&poller.device, entries, poller.cpu(), ear.clone())?;
        let watched = Watched {
            cq: cq.clone(),
            ear,
        };
        let mut cqs = KVec::with_capacity(len + 1, GFP_KERNEL)?;
        if let Kind::Armed = kind {
            poller.bottom.hardware.add(&cq)?;
        }
        poller.change(|turn| {
            // Room for all was made above; nobody else changes them, as this has `seats`.
            let old = turn.cqs(kind);
            for other in old.drain_all() {
                let _ = cqs.push_within_capacity(other);
            }
            let _ = cqs.push_within_capacity(watched);
            core::mem::swap(old, &mut cqs);
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
            let cqs =
                last.then(|| [Kind::Armed, Kind::Quiet].map(|k| core::mem::take(turn.cqs(k))));
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
