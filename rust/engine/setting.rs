// SPDX-License-Identifier: GPL-2.0

//! What the completion moderation of a device is set to, and what DIM learns it from. Pure: tested
//! on the host.
//!
//! # The setting
//!
//! A device that moderates holds the event of a CQ back until so many completions have come, or so
//! much time went by. What it is told follows from the policy's `completion`:
//!
//! * `coalesce`: `coalesce_count` and `coalesce_usecs`.
//! * `adaptive`: a profile of the kernel's DIM (`lib/dim`), cut to what `coalesce` would get.
//! * `interrupt`, `busy`: nothing is held back.
//!
//! All of it is cut to what the device can. It is told again when the knobs or DIM's mind change,
//! and only then.
//!
//! # What DIM learns from
//!
//! DIM compares rates of completions, and completions per event, over 64 events ([`Rounds`]). A
//! round is what came from one event to the next, whoever found it. While a thread spins, no event
//! is used: rounds in which one did not count. Where these take more than a quarter of the time, the
//! rate would be wrong, and what was measured so far is forgotten.

use super::knobs::{Completion, Moderation as Rules};

/// What a CQ's moderation is set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    /// Completions that end the holding back of an event.
    pub(crate) count: u16,
    /// The longest time from the first of them to the event, us.
    pub(crate) usecs: u16,
}

impl Setting {
    /// Nothing is held back: as a CQ is when it is made.
    pub(crate) const NONE: Self = Self { count: 0, usecs: 0 };

    /// The lesser of both in each.
    fn cut(self, limit: Self) -> Self {
        Self {
            count: self.count.min(limit.count),
            usecs: self.usecs.min(limit.usecs),
        }
    }
}

const fn profile(usecs: u16, count: u16) -> Setting {
    Setting { count, usecs }
}

/// What DIM chooses from, for RDMA (`RDMA_DIM_PARAMS_NUM_PROFILES`). It expects half a completion
/// per event more at each step, so they are those of the core's own CQs, which DIM was made with.
const PROFILES: [Setting; 9] = [
    profile(1, 1),
    profile(1, 4),
    profile(2, 4),
    profile(2, 8),
    profile(4, 8),
    profile(16, 8),
    profile(16, 16),
    profile(32, 16),
    profile(32, 32),
];

/// What the CQs of a device are to be set to that can do `most`, when DIM has chosen `profile`.
fn wanted(rules: &Rules, profile: u32, most: Setting) -> Setting {
    let limit = Setting {
        count: u16::try_from(rules.coalesce_count).unwrap_or(u16::MAX),
        usecs: u16::try_from(rules.coalesce_usecs).unwrap_or(u16::MAX),
    };
    let setting = match rules.completion {
        Completion::Interrupt | Completion::Busy => return Setting::NONE,
        Completion::Coalesce => limit,
        Completion::Adaptive => {
            let at = (profile as usize).min(PROFILES.len() - 1);
            PROFILES[at].cut(limit)
        }
    };
    match setting.cut(most) {
        // To hold back until the first one has come is not to hold back, and for 0 us neither. A
        // device reads a zero as "as long as the other says".
        Setting { count: 0 | 1, .. } | Setting { usecs: 0, .. } => Setting::NONE,
        setting => setting,
    }
}

/// What the CQs are set to, and when that changes.
pub(crate) struct Plan {
    most: Setting,
    now: Setting,
    given_up: bool,
}

impl Plan {
    /// For CQs that are new, of a device that can do `most`.
    pub(crate) const fn new(most: Setting) -> Self {
        Self {
            most,
            now: Setting::NONE,
            given_up: false,
        }
    }

    /// What the CQs are set to, and a new one has to be.
    pub(crate) fn now(&self) -> Setting {
        self.now
    }

    /// What the CQs have to be set to, if that is something else than they are.
    pub(crate) fn next(&mut self, rules: &Rules, profile: u32) -> Option<Setting> {
        if self.given_up {
            return None;
        }
        let next = wanted(rules, profile, self.most);
        (next != core::mem::replace(&mut self.now, next)).then_some(next)
    }

    /// The device refused. From now on CQs are left as they were made.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
        self.now = Setting::NONE;
    }
}

/// What there was so far, each wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Totals {
    /// Events of the CQs.
    pub(crate) events: u64,
    /// Completions that were found.
    pub(crate) completions: u64,
    /// Times that a thread looked again at once.
    pub(crate) spins: u64,
}

impl Totals {
    const NONE: Self = Self {
        events: 0,
        completions: 0,
        spins: 0,
    };

    fn since(self, before: Self) -> Self {
        Self {
            events: self.events.wrapping_sub(before.events),
            completions: self.completions.wrapping_sub(before.completions),
            spins: self.spins.wrapping_sub(before.spins),
        }
    }
}

/// What a round tells DIM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sample {
    /// Completions that one event brought.
    pub(crate) completions: u32,
    /// What was measured before has nothing to do with it.
    pub(crate) anew: bool,
}

/// Events that DIM measures at a time (`DIM_NEVENTS`).
const EVENTS: u32 = 64;

/// The rounds of one poller.
pub(crate) struct Rounds {
    /// What there was when this one began, and the time, ns.
    before: Totals,
    begin: u64,
    /// When DIM's measurement began, if it did.
    window: Option<u64>,
    /// Samples of it.
    samples: u32,
    /// Time of rounds in it that did not count, ns.
    lost: u64,
}

impl Rounds {
    /// The first begins at `now`, in ns of any clock that does not go back.
    pub(crate) const fn new(now: u64) -> Self {
        Self {
            before: Totals::NONE,
            begin: now,
            window: None,
            samples: 0,
            lost: 0,
        }
    }

    /// Softirq has found what there was for now; it is `now`.
    pub(crate) fn turn(&mut self, rules: &Rules, totals: Totals, now: u64) -> Option<Sample> {
        let new = totals.since(self.before);
        let counts = new.spins == 0 && rules.completion == Completion::Adaptive;
        // It was kicked by somebody else.
        if new.events == 0 && counts {
            return None;
        }
        self.before = totals;
        let begin = core::mem::replace(&mut self.begin, now);
        if !counts {
            self.lost = self.lost.saturating_add(now.saturating_sub(begin));
            return None;
        }
        let whole = self.window.map(|window| now.saturating_sub(window));
        let anew = whole.is_none_or(|whole| self.lost > whole / 4);
        if anew || self.samples == EVENTS {
            self.window = Some(begin);
            self.samples = 0;
            self.lost = 0;
        }
        self.samples += 1;
        Some(Sample {
            completions: u32::try_from(new.completions).unwrap_or(u32::MAX),
            anew,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Setting = Setting {
        count: u16::MAX,
        usecs: u16::MAX,
    };

    fn rules(completion: Completion) -> Rules {
        Rules {
            completion,
            coalesce_usecs: 50,
            coalesce_count: 32,
            busy_usecs: 100,
            poll_budget: 64,
        }
    }

    fn with(completion: Completion, coalesce_usecs: u32, coalesce_count: u32) -> Rules {
        Rules {
            coalesce_usecs,
            coalesce_count,
            ..rules(completion)
        }
    }

    #[test]
    fn coalesce_is_what_the_knobs_say() {
        let r = with(Completion::Coalesce, 50, 32);
        for p in 0..9 {
            assert_eq!(wanted(&r, p, ALL), profile(50, 32));
        }
        let r = with(Completion::Coalesce, 10_000, 1024);
        assert_eq!(wanted(&r, 0, ALL), profile(10_000, 1024));
        // Twelve bits of time, as some devices have.
        assert_eq!(wanted(&r, 0, profile(4095, 512)), profile(4095, 512));
    }

    #[test]
    fn interrupt_and_busy_hold_nothing_back() {
        for completion in [Completion::Interrupt, Completion::Busy] {
            for p in 0..9 {
                assert_eq!(wanted(&rules(completion), p, ALL), Setting::NONE);
            }
        }
    }

    #[test]
    fn adaptive_is_dims_profile_cut_to_the_knobs() {
        let r = with(Completion::Adaptive, 50, 32);
        assert_eq!(wanted(&r, 0, ALL), Setting::NONE);
        assert_eq!(wanted(&r, 1, ALL), profile(1, 4));
        assert_eq!(wanted(&r, 8, ALL), profile(32, 32));
        assert_eq!(wanted(&r, 9, ALL), profile(32, 32));
        assert_eq!(wanted(&r, u32::MAX, ALL), profile(32, 32));
        let r = with(Completion::Adaptive, 10, 6);
        assert_eq!(wanted(&r, 1, ALL), profile(1, 4));
        assert_eq!(wanted(&r, 4, ALL), profile(4, 6));
        assert_eq!(wanted(&r, 8, ALL), profile(10, 6));
        assert_eq!(wanted(&r, 8, profile(5, 100)), profile(5, 6));
    }

    #[test]
    fn one_completion_is_not_held_back() {
        for completion in [Completion::Coalesce, Completion::Adaptive] {
            assert_eq!(wanted(&with(completion, 50, 1), 8, ALL), Setting::NONE);
            assert_eq!(
                wanted(&rules(completion), 8, profile(0, 100)),
                Setting::NONE
            );
        }
    }

    #[test]
    fn profiles_rise() {
        for pair in PROFILES.windows(2) {
            assert!(pair[0].usecs <= pair[1].usecs && pair[0].count <= pair[1].count);
            assert_ne!(pair[0], pair[1]);
        }
    }

    #[test]
    fn nothing_is_said_twice() {
        let mut plan = Plan::new(ALL);
        assert_eq!(plan.next(&rules(Completion::Interrupt), 0), None);
        assert_eq!(plan.next(&rules(Completion::Adaptive), 0), None);
        let coalesce = rules(Completion::Coalesce);
        assert_eq!(plan.next(&coalesce, 0), Some(profile(50, 32)));
        assert_eq!(plan.now(), profile(50, 32));
        // DIM's mind does not matter there, nor knobs of others.
        assert_eq!(plan.next(&coalesce, 8), None);
        let other = Rules {
            busy_usecs: 7,
            poll_budget: 7,
            ..coalesce
        };
        assert_eq!(plan.next(&other, 8), None);
        assert_eq!(
            plan.next(&with(Completion::Coalesce, 51, 32), 0),
            Some(profile(51, 32))
        );
        assert_eq!(
            plan.next(&rules(Completion::Adaptive), 3),
            Some(profile(2, 8))
        );
        assert_eq!(plan.next(&rules(Completion::Busy), 3), Some(Setting::NONE));
        assert_eq!(plan.next(&rules(Completion::Interrupt), 4), None);
    }

    #[test]
    fn a_device_that_refused_is_left_alone() {
        let mut plan = Plan::new(ALL);
        assert!(plan.next(&rules(Completion::Coalesce), 0).is_some());
        plan.give_up();
        assert_eq!(plan.now(), Setting::NONE);
        for completion in Completion::ALL {
            assert_eq!(plan.next(&rules(*completion), 8), None);
        }
    }

    #[test]
    fn whatever_happens_the_knobs_bound_it() {
        let mut random = 3u64;
        let mut draw = |n: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % n
        };
        for _ in 0..200 {
            let most = profile(draw(65_536) as u16, draw(65_536) as u16);
            let mut plan = Plan::new(most);
            for _ in 0..200 {
                let completion = Completion::ALL[draw(4) as usize];
                let r = with(completion, draw(10_000) as u32 + 1, draw(1024) as u32 + 1);
                let before = plan.now();
                let next = plan.next(&r, draw(12) as u32);
                let now = plan.now();
                assert_eq!(next, (now != before).then_some(now));
                assert!(u32::from(now.count) <= r.coalesce_count && now.count <= most.count);
                assert!(u32::from(now.usecs) <= r.coalesce_usecs && now.usecs <= most.usecs);
                let none = matches!(completion, Completion::Interrupt | Completion::Busy);
                assert!(!none || now == Setting::NONE);
                // Never an event that waits for one of the two alone.
                assert_eq!(now.count == 0, now.usecs == 0);
            }
        }
    }

    fn sample(completions: u32, anew: bool) -> Option<Sample> {
        Some(Sample { completions, anew })
    }

    /// Rounds, and what there was.
    struct Life(Rounds, Totals, u64);

    impl Life {
        fn new() -> Self {
            Self(Rounds::new(0), Totals::NONE, 0)
        }

        fn turn(&mut self, mode: Completion, new: [u64; 3], ns: u64) -> Option<Sample> {
            let Self(rounds, totals, now) = self;
            totals.events = totals.events.wrapping_add(new[0]);
            totals.completions = totals.completions.wrapping_add(new[1]);
            totals.spins = totals.spins.wrapping_add(new[2]);
            *now += ns;
            rounds.turn(&rules(mode), *totals, *now)
        }
    }

    const ADAPTIVE: Completion = Completion::Adaptive;

    #[test]
    fn a_round_is_from_event_to_event() {
        let mut life = Life::new();
        assert_eq!(life.turn(ADAPTIVE, [1, 3, 0], 10), sample(3, true));
        assert_eq!(life.turn(ADAPTIVE, [1, 69, 0], 10), sample(69, false));
        // It found something, but no event told of it.
        assert_eq!(life.turn(ADAPTIVE, [0, 2, 0], 10), None);
        assert_eq!(life.turn(ADAPTIVE, [1, 1, 0], 10), sample(3, false));
        // What an event told of was found by others later.
        assert_eq!(life.turn(ADAPTIVE, [1, 0, 0], 10), sample(0, false));
        assert_eq!(life.turn(ADAPTIVE, [2, 7, 0], 10), sample(7, false));
    }

    #[test]
    fn what_came_without_events_does_not_count() {
        let mut life = Life::new();
        assert_eq!(life.turn(ADAPTIVE, [1, 3, 0], 100), sample(3, true));
        assert_eq!(life.turn(ADAPTIVE, [1, 3, 0], 100), sample(3, false));
        // That was short.
        assert_eq!(life.turn(ADAPTIVE, [1, 4, 1], 2), None);
        assert_eq!(life.turn(ADAPTIVE, [1, 2, 0], 98), sample(2, false));
        // This is not.
        assert_eq!(life.turn(ADAPTIVE, [1, 500, 900], 700), None);
        assert_eq!(life.turn(ADAPTIVE, [1, 2, 0], 100), sample(2, true));
        assert_eq!(life.turn(ADAPTIVE, [1, 2, 0], 100), sample(2, false));
    }

    #[test]
    fn each_measurement_is_looked_at_by_itself() {
        let mut life = Life::new();
        for n in 0..EVENTS * 100 {
            assert_eq!(life.turn(ADAPTIVE, [1, 1, 0], 10), sample(1, n == 0));
        }
        // Short beside all that was before, not beside this measurement.
        assert_eq!(life.turn(ADAPTIVE, [1, 1, 1], 400), None);
        assert_eq!(life.turn(ADAPTIVE, [1, 1, 0], 10), sample(1, true));
    }

    #[test]
    fn to_spin_now_and_then_is_no_pause() {
        let mut life = Life::new();
        for n in 0..10_000 {
            let spins = u64::from(n % 5 == 4);
            let expected = sample(1, n == 0).filter(|_| spins == 0);
            assert_eq!(life.turn(ADAPTIVE, [1, 1, spins], 10), expected, "{n}");
        }
    }

    #[test]
    fn other_modes_teach_nothing() {
        let mut life = Life::new();
        assert_eq!(life.turn(ADAPTIVE, [1, 3, 0], 10), sample(3, true));
        for mode in [
            Completion::Interrupt,
            Completion::Coalesce,
            Completion::Busy,
        ] {
            assert_eq!(life.turn(mode, [1, 9, 0], 1000), None);
        }
        assert_eq!(life.turn(ADAPTIVE, [1, 3, 0], 10), sample(3, true));
    }

    #[test]
    fn numbers_may_be_large() {
        let mut life = Life::new();
        life.1.events = u64::MAX;
        life.1.completions = u64::MAX;
        assert_eq!(life.turn(ADAPTIVE, [0, 0, 0], 0), sample(u32::MAX, true));
        assert_eq!(life.turn(ADAPTIVE, [1, 5, 0], 0), sample(5, false));
        for _ in 0..3 {
            assert_eq!(life.turn(ADAPTIVE, [1, 5, 1], u64::MAX / 4), None);
        }
        // A clock that does go back does no harm.
        life.2 = 0;
        assert_eq!(life.turn(ADAPTIVE, [1, 5, 1], 0), None);
        assert_eq!(life.turn(ADAPTIVE, [1, 5, 0], 0), sample(5, true));
    }
}
