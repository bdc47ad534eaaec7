// SPDX-License-Identifier: GPL-2.0

//! When to look for completions: the decisions of a poller, apart from how it polls, sleeps and
//! arms.
//!
//! # The modes
//!
//! A poller that finds its CQs empty has four ways to go on: look again at once (*busy*), come back
//! after a while without an event (*coalesce*: it holds the CQ unarmed, so that what arrives
//! meanwhile is found together), or arm the CQ and wait for an event (*interrupt*). *Adaptive*
//! moves between these three by what arrives:
//!
//! * Two times are measured, as moving averages that give a new sample an eighth of the weight: how
//!   long a poller waits until it finds something, and, as it may find several, the time from one
//!   completion to the next.
//! * Where the wait is expected to be within half of the spin budget (`busy_usecs`), and the poller
//!   may spin, it spins. It goes on to until the average wait is beyond the whole budget: the
//!   distance between the two limits keeps it from moving back and forth. A deep queue whose
//!   completions are asked for seldom is so left to events, which are then few.
//! * Who may not spin (softirq, where nothing else would run) holds instead, where at least two
//!   completions are expected within `coalesce_usecs`, until less than one is.
//! * Else each completion has its event.
//!
//! However it came to spin, a poller that has found nothing for `busy_usecs` arms the CQ: an idle
//! connection takes no CPU time.
//!
//! Where the device itself holds events back ([`super::setting`]), softirq never does: it arms.
//!
//! A hold ends when `coalesce_usecs` have passed, or earlier when by the average `coalesce_count`
//! completions are there.

use super::knobs::{Completion, Moderation as Rules};

/// Nanoseconds of a microsecond.
const US: u64 = 1000;
/// Samples count at most this much, ns: how long a pause was does not matter.
const LONGEST: u64 = 1 << 30;
/// The weight of what was: (2^SHIFT - 1) / 2^SHIFT.
const SHIFT: u32 = 3;

/// How completions are waited for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// By an event.
    Interrupt,
    /// By time.
    Coalesce,
    /// By looking.
    Busy,
}

/// What a poller does that has found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Looks again, after others had the CPU.
    Spin,
    /// Looks again after so long, ns, without having armed.
    Hold(u64),
    /// Arms, looks once more, and waits for the event.
    Arm,
}

/// The state of one poller's decisions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moderator {
    /// Of those who may not spin, and of those who may: both may look in turn.
    modes: [Mode; 2],
    /// From one find to the next, ns, on the average.
    wait: u64,
    /// From one completion to the next, ns, on the average.
    gap: u64,
    /// When something was last found, or the poller began, ns.
    last: u64,
    /// Something was found since the last hold began.
    fresh: bool,
    /// The device holds events back, where the rules want that.
    by_device: bool,
    changes: u64,
    completions: u64,
    spins: u64,
}

impl Moderator {
    /// A poller that begins at `now`, in ns of any clock that does not go back.
    pub(crate) const fn new(now: u64) -> Self {
        Self {
            modes: [Mode::Interrupt; 2],
            wait: LONGEST,
            gap: LONGEST,
            last: now,
            fresh: false,
            by_device: false,
            changes: 0,
            completions: 0,
            spins: 0,
        }
    }

    /// Whether the device holds events back by itself; at the beginning it does not.
    pub(crate) fn set_by_device(&mut self, by_device: bool) {
        self.by_device = by_device;
    }

    /// A poll found `n` completions, at least one.
    pub(crate) fn found(&mut self, n: u32, now: u64) {
        self.completions = self.completions.wrapping_add(u64::from(n));
        let wait = now.saturating_sub(self.last).min(LONGEST);
        self.wait = average(self.wait, wait);
        // Each of the n is a sample.
        for _ in 0..n.clamp(1, 1 << SHIFT) {
            self.gap = average(self.gap, wait / u64::from(n.max(1)));
        }
        self.last = now;
        self.fresh = true;
    }

    /// A poll found nothing: what next. `may_spin` says whether the context allows it.
    pub(crate) fn empty(&mut self, rules: &Rules, may_spin: bool, now: u64) -> Next {
        let mode = self.choose(rules, may_spin);
        let before = &mut self.modes[usize::from(may_spin)];
        if mode != *before {
            *before = mode;
            self.changes = self.changes.wrapping_add(1);
        }
        match mode {
            Mode::Interrupt => Next::Arm,
            Mode::Busy if now.saturating_sub(self.last) < u64::from(rules.busy_usecs) * US => {
                self.spins = self.spins.wrapping_add(1);
                Next::Spin
            }
            Mode::Busy => Next::Arm,
            // A hold in which nothing came is the end of it.
            Mode::Coalesce if !core::mem::take(&mut self.fresh) => Next::Arm,
            Mode::Coalesce => {
                let enough = self.gap.saturating_mul(u64::from(rules.coalesce_count));
                Next::Hold((u64::from(rules.coalesce_usecs) * US).min(enough).max(1))
            }
        }
    }

    fn choose(&self, rules: &Rules, may_spin: bool) -> Mode {
        // Entered at half of the limit.
        let within = |mode: Mode, average: u64, usecs: u32| {
            let limit = u64::from(usecs) * US;
            let now = self.modes[usize::from(may_spin)];
            average <= if now == mode { limit } else { limit / 2 }
        };
        match rules.completion {
            Completion::Interrupt => Mode::Interrupt,
            Completion::Coalesce => self.hold(),
            Completion::Busy if may_spin => Mode::Busy,
            // Who may not spin looks as seldom as the rules allow.
            Completion::Busy => Mode::Coalesce,
            Completion::Adaptive if may_spin && within(Mode::Busy, self.wait, rules.busy_usecs) => {
                Mode::Busy
            }
            Completion::Adaptive
                if !may_spin && within(Mode::Coalesce, self.gap, rules.coalesce_usecs) =>
            {
                self.hold()
            }
            Completion::Adaptive => Mode::Interrupt,
        }
    }

    /// Who holds events back.
    fn hold(&self) -> Mode {
        match self.by_device {
            true => Mode::Interrupt,
            false => Mode::Coalesce,
        }
    }

    /// How those who may spin, or those who may not, wait for completions now.
    pub(crate) fn mode(&self, may_spin: bool) -> Mode {
        self.modes[usize::from(may_spin)]
    }

    /// How often that has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Completions that were found.
    pub(crate) fn completions(&self) -> u64 {
        self.completions
    }

    /// How often somebody was to spin.
    pub(crate) fn spins(&self) -> u64 {
        self.spins
    }
}

fn average(so_far: u64, sample: u64) -> u64 {
    so_far - (so_far >> SHIFT) + (sample >> SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(completion: Completion) -> Rules {
        Rules {
            completion,
            coalesce_usecs: 50,
            coalesce_count: 16,
            busy_usecs: 100,
            poll_budget: 64,
        }
    }

    /// Completions every `gap` ns, one at a time; gives what comes next after the last.
    fn stream(
        m: &mut Moderator,
        r: &Rules,
        may_spin: bool,
        now: &mut u64,
        gap: u64,
        n: u32,
    ) -> Next {
        let mut next = Next::Arm;
        for _ in 0..n {
            *now += gap;
            m.found(1, *now);
            next = m.empty(r, may_spin, *now);
        }
        next
    }

    #[test]
    fn interrupt_arms_always() {
        let mut now = 0;
        let mut m = Moderator::new(now);
        assert_eq!(
            stream(
                &mut m,
                &rules(Completion::Interrupt),
                true,
                &mut now,
                1,
                100
            ),
            Next::Arm
        );
        assert_eq!(m.changes(), 0);
    }

    #[test]
    fn busy_spins_and_gives_up_when_idle() {
        let mut now = 0;
        let r = rules(Completion::Busy);
        let mut m = Moderator::new(now);
        assert_eq!(stream(&mut m, &r, true, &mut now, 10 * US, 1), Next::Spin);
        assert_eq!(
            m.empty(&r, true, now + u64::from(r.busy_usecs) * US - 1),
            Next::Spin
        );
        assert_eq!(
            m.empty(&r, true, now + u64::from(r.busy_usecs) * US),
            Next::Arm
        );
        // Without a budget it never spins.
        let none = Rules { busy_usecs: 0, ..r };
        assert_eq!(m.empty(&none, true, now), Next::Arm);
    }

    #[test]
    fn coalesce_holds_while_something_comes() {
        let mut now = 0;
        let r = rules(Completion::Coalesce);
        let mut m = Moderator::new(now);
        now += 10 * US;
        m.found(1, now);
        assert_eq!(
            m.empty(&r, true, now),
            Next::Hold(u64::from(r.coalesce_usecs) * US)
        );
        now += u64::from(r.coalesce_usecs) * US;
        m.found(3, now);
        assert!(matches!(m.empty(&r, true, now), Next::Hold(_)));
        assert_eq!(
            m.empty(&r, true, now + u64::from(r.coalesce_usecs) * US),
            Next::Arm
        );
        assert_eq!(
            m.empty(&r, true, now + 2 * u64::from(r.coalesce_usecs) * US),
            Next::Arm
        );
    }

    #[test]
    fn a_hold_is_shorter_where_the_count_comes_sooner() {
        let mut now = 0;
        let r = rules(Completion::Coalesce);
        let mut m = Moderator::new(now);
        let Next::Hold(ns) = stream(&mut m, &r, false, &mut now, US, 200) else {
            panic!("no hold");
        };
        assert!((12 * US..=20 * US).contains(&ns), "{ns}");
        let few = Rules {
            coalesce_count: 1,
            ..r
        };
        let Next::Hold(ns) = stream(&mut m, &few, false, &mut now, US, 1) else {
            panic!("no hold");
        };
        assert!(ns <= 2 * US, "{ns}");
    }

    #[test]
    fn what_the_device_holds_back_nobody_else_does() {
        for (completion, may_spin, next) in [
            (Completion::Coalesce, false, Next::Arm),
            (Completion::Coalesce, true, Next::Arm),
            (Completion::Adaptive, false, Next::Arm),
            (Completion::Adaptive, true, Next::Spin),
        ] {
            let mut now = 0;
            let r = rules(completion);
            let mut m = Moderator::new(now);
            m.set_by_device(true);
            assert_eq!(stream(&mut m, &r, may_spin, &mut now, US, 200), next);
        }
        // It does not for `busy`, and no more once it failed.
        for (completion, by_device) in [(Completion::Busy, true), (Completion::Adaptive, false)] {
            let mut now = 0;
            let r = rules(completion);
            let mut m = Moderator::new(now);
            m.set_by_device(true);
            stream(&mut m, &r, false, &mut now, US, 100);
            m.set_by_device(by_device);
            let next = stream(&mut m, &r, false, &mut now, US, 100);
            assert!(matches!(next, Next::Hold(_)), "{completion:?}");
        }
    }

    #[test]
    fn adaptive_follows_the_rate() {
        let mut now = 0;
        let r = rules(Completion::Adaptive);
        let mut m = Moderator::new(now);
        // Seldom: events.
        assert_eq!(stream(&mut m, &r, true, &mut now, 1000 * US, 50), Next::Arm);
        assert_eq!(m.changes(), 0);
        // Often: spins, after some that show it.
        assert_eq!(stream(&mut m, &r, true, &mut now, 10 * US, 50), Next::Spin);
        assert_eq!((m.mode(true), m.changes()), (Mode::Busy, 1));
        // A pause: arms, and takes up spinning again after it.
        assert_eq!(
            m.empty(&r, true, now + u64::from(r.busy_usecs) * US),
            Next::Arm
        );
        assert_eq!(stream(&mut m, &r, true, &mut now, 10 * US, 1), Next::Spin);
        assert_eq!(m.changes(), 1);
        // Seldom again.
        assert_eq!(stream(&mut m, &r, true, &mut now, 1000 * US, 50), Next::Arm);
        assert_eq!((m.mode(true), m.changes()), (Mode::Interrupt, 2));
    }

    #[test]
    fn adaptive_has_hysteresis() {
        let mut now = 0;
        let r = rules(Completion::Adaptive);
        let mut m = Moderator::new(now);
        stream(&mut m, &r, true, &mut now, 10 * US, 100);
        let before = m.changes();
        // Between the two limits, with jitter: nothing changes.
        for i in 0..1000u64 {
            let gap = if i % 2 == 0 { 60 * US } else { 90 * US };
            stream(&mut m, &r, true, &mut now, gap, 1);
        }
        assert_eq!((m.mode(true), m.changes()), (Mode::Busy, before));
        let mut m = Moderator::new(now);
        for i in 0..1000u64 {
            let gap = if i % 2 == 0 { 60 * US } else { 90 * US };
            stream(&mut m, &r, true, &mut now, gap, 1);
        }
        assert_eq!((m.mode(true), m.changes()), (Mode::Interrupt, 0));
    }

    #[test]
    fn softirq_never_spins() {
        for completion in [
            Completion::Interrupt,
            Completion::Coalesce,
            Completion::Busy,
            Completion::Adaptive,
        ] {
            let mut now = 0;
            let r = rules(completion);
            let mut m = Moderator::new(now);
            let mut random = 1u64;
            for _ in 0..20_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                now += (random >> 33) % (200 * US);
                if random >> 63 == 0 {
                    m.found((random >> 40) as u32 % 32 + 1, now);
                }
                assert_ne!(m.empty(&r, false, now), Next::Spin, "{completion:?}");
            }
        }
    }

    #[test]
    fn whatever_comes_an_idle_poller_arms() {
        for completion in [
            Completion::Interrupt,
            Completion::Coalesce,
            Completion::Busy,
            Completion::Adaptive,
        ] {
            for may_spin in [false, true] {
                let r = rules(completion);
                let mut now = 0;
                let mut m = Moderator::new(now);
                let mut random = 7u64;
                for _ in 0..2000 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    now += (random >> 33) % (20 * US) + 1;
                    m.found((random >> 40) as u32 % 32 + 1, now);
                    // From here nothing comes: it arms within the budget and one hold.
                    let mut idle = m;
                    let mut at = now;
                    loop {
                        match idle.empty(&r, may_spin, at) {
                            Next::Spin => at += US,
                            Next::Hold(ns) => at += ns,
                            Next::Arm => break,
                        }
                        assert!(
                            at <= now
                                + u64::from(r.busy_usecs) * US
                                + u64::from(r.coalesce_usecs) * US
                                + US,
                            "{completion:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_clock_may_stand_still_or_numbers_be_large() {
        let r = rules(Completion::Adaptive);
        let mut m = Moderator::new(u64::MAX - 1);
        m.found(u32::MAX, u64::MAX);
        m.found(1, u64::MAX);
        m.found(1, 0);
        m.empty(&r, true, 0);
        m.empty(
            &Rules {
                coalesce_count: u32::MAX,
                coalesce_usecs: u32::MAX,
                ..r
            },
            false,
            0,
        );
    }
}
