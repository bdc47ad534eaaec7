// SPDX-License-Identifier: GPL-2.0

//! Which operations ask for a completion, and how much a send queue still takes. Pure: it knows
//! numbers only, and is tested on the host for each depth and chain.
//!
//! An operation is a chain of work requests; if it asks for a completion, the last of the chain is
//! signalled. A completion ends all that was posted before it as well, so most operations need none
//! of their own. Two things must never happen: that more is posted than the queue holds, and that
//! the owner waits for a completion that nobody asked for.
//!
//! # Why no one waits in vain
//!
//! An operation is signalled if one of three holds:
//!
//! 1. The owner says that it is the last for now ([`Next::Nothing`]): of a quota, of what was
//!    queued, of what the peer's credit allows.
//! 2. It is the `every`th since the last one that was. `every` is at most the depth.
//! 3. With one more chain behind it, half of the queue would be without a signal.
//!
//! So what is behind the last signal is, by 2, less than the depth, and by 3, less than half of the
//! queue. When all signals that were asked for have come, the rest leaves a slot and half of the
//! queue to begin another operation with; and there is another one, or else 1 would have held. If
//! it has gone in the meantime (cancelled, say), [`Accounting::owes`] is true, and the owner posts
//! a signalled work request [aside](Accounting::aside).
//!
//! Rule 3 is the one by which `Qp::push` signals on its own, with a chain's length to spare: so
//! that never happens in the middle of a chain.

/// What the owner will do after an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Begin another one as soon as there is room.
    More,
    /// Wait for this one, or for new work.
    Nothing,
}

/// The owner's count of one send queue.
///
/// # Invariants
///
/// `ops <= depth`, `unsignaled <= wrs <= queue`, `since < every`, `2 * longest <= queue`.
pub(crate) struct Accounting {
    depth: u32,
    every: u32,
    queue: u32,
    longest: u32,
    /// Operations that have begun and not ended.
    ops: u32,
    /// Work requests that were posted and not seen to be done.
    wrs: u32,
    /// Operations since the last signalled work request.
    since: u32,
    /// Work requests since then.
    unsignaled: u32,
}

/// One operation of so many is signalled: `signal_every`, or for 0 half of the depth, at least
/// each one and at most one of 16.
pub(crate) fn every(depth: u32, signal_every: u32) -> u32 {
    match signal_every {
        0 => (depth / 2).clamp(1, 16),
        n => n.min(depth).max(1),
    }
}

/// Work requests that a send queue needs for chains of up to `longest`, so that only `depth` and
/// `signal_every` decide; those that are posted aside come on top.
pub(crate) fn queue_for(depth: u32, signal_every: u32, longest: u32) -> u32 {
    every(depth, signal_every)
        .saturating_mul(2)
        .max(depth)
        .saturating_mul(longest)
}

impl Accounting {
    /// For a queue of `queue` work requests on which nothing is posted, `depth` operations at a
    /// time, each a chain of up to `longest` work requests.
    ///
    /// `None` if the depth or the chain is 0, or the queue does not hold two chains.
    pub(crate) fn new(depth: u32, signal_every: u32, queue: u32, longest: u32) -> Option<Self> {
        if depth == 0 || longest == 0 || queue / 2 < longest {
            return None;
        }
        Some(Self {
            depth,
            every: every(depth, signal_every),
            queue,
            longest,
            ops: 0,
            wrs: 0,
            since: 0,
            unsignaled: 0,
        })
    }

    /// Work requests that the queue still takes.
    pub(crate) fn room(&self) -> u32 {
        self.queue - self.wrs
    }

    /// Operations that have begun and not ended.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u32 {
        self.ops
    }

    /// Whether an operation that is a chain of `wrs` work requests (1 to the longest) may begin,
    /// and if so, whether it is to be signalled. `None`: not before something ends, which it will.
    /// Changes nothing, so that the chain may still be refused.
    pub(crate) fn plan(&self, wrs: u32, next: Next) -> Option<bool> {
        if self.ops >= self.depth || wrs > self.longest || wrs > self.room() {
            return None;
        }
        let behind = self.unsignaled + wrs + self.longest;
        Some(next == Next::Nothing || self.since + 1 >= self.every || behind > self.queue / 2)
    }

    /// The operation was staged as planned. Stage all that can be, then ring the doorbell, then
    /// wait: what was not posted completes nothing.
    pub(crate) fn begun(&mut self, wrs: u32, signaled: bool) {
        self.ops += 1;
        self.wrs += wrs;
        if signaled {
            self.since = 0;
            self.unsignaled = 0;
        } else {
            self.since += 1;
            self.unsignaled += wrs;
        }
    }

    /// Makes room in the count for a chain that is no operation, and that is signalled; such as an
    /// invalidation that somebody waits for. Gives whether it may be posted.
    #[must_use]
    #[allow(dead_code)] // Nothing is posted beside operations now.
    pub(crate) fn aside(&mut self, wrs: u32) -> bool {
        if wrs > self.room() {
            return false;
        }
        self.wrs += wrs;
        self.since = 0;
        self.unsignaled = 0;
        true
    }

    /// Whether the last operation has not asked for a completion. An owner that has changed its
    /// mind and begins no other posts a work request aside, or else does not wait for it.
    pub(crate) fn owes(&self) -> bool {
        self.unsignaled > 0
    }

    /// A work request was seen to be done: one for each token that the queue gives back.
    pub(crate) fn done(&mut self) {
        self.wrs = self.wrs.saturating_sub(1);
        self.unsignaled = self.unsignaled.min(self.wrs);
    }

    /// An operation has ended: its slot is free. If it ends with something else than its own
    /// completion, such as the peer's answer, then not before all of its work requests are done.
    pub(crate) fn ended(&mut self) {
        self.ops = self.ops.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, VecDeque};

    #[test]
    fn automatic_and_chosen() {
        for (depth, want) in [(1, 1), (3, 1), (4, 2), (32, 16), (1024, 16)] {
            assert_eq!(every(depth, 0), want);
        }
        assert_eq!(every(32, 1), 1);
        assert_eq!(every(32, 32), 32);
        assert_eq!(every(32, 33), 32);
        assert_eq!(every(1, 1000), 1);
    }

    #[test]
    fn what_makes_no_queue_is_refused() {
        assert!(Accounting::new(0, 1, 8, 1).is_none());
        assert!(Accounting::new(4, 1, 8, 0).is_none());
        assert!(Accounting::new(4, 1, 5, 3).is_none());
        assert!(Accounting::new(4, 1, 6, 3).is_some());
        let a = Accounting::new(4, 1, 6, 3).unwrap();
        assert_eq!(a.plan(4, Next::More), None);
        assert_eq!(a.room(), 6);
    }

    #[test]
    fn each_rule() {
        // The queue is no limit here: one of 4, and the last.
        let mut a = Accounting::new(32, 4, 1000, 2).unwrap();
        let plans: Vec<_> = (0..9)
            .map(|_| {
                let signaled = a.plan(2, Next::More).unwrap();
                a.begun(2, signaled);
                signaled
            })
            .collect();
        let (n, y) = (false, true);
        assert_eq!(plans, [n, n, n, y, n, n, n, y, n]);
        assert!(a.owes());
        assert_eq!(a.plan(1, Next::Nothing), Some(true));
        // The queue is: ten hold five without a signal, less one chain.
        let mut a = Accounting::new(32, 32, 10, 2).unwrap();
        assert_eq!(a.plan(2, Next::More), Some(false));
        a.begun(2, false);
        assert_eq!(a.plan(1, Next::More), Some(false));
        assert_eq!(a.plan(2, Next::More), Some(true));
        a.begun(2, true);
        assert!(!a.owes());
        // The depth is.
        let mut a = Accounting::new(2, 2, 100, 1).unwrap();
        a.begun(1, false);
        assert_eq!(a.plan(1, Next::More), Some(true));
        a.begun(1, true);
        assert_eq!((a.plan(1, Next::More), a.in_flight()), (None, 2));
        // A chain aside, up to the last place.
        assert!(!a.aside(99));
        assert!(a.aside(98));
        assert_eq!(a.room(), 0);
        a.done();
        a.ended();
        assert_eq!(a.room(), 1);
        assert_eq!(a.plan(1, Next::Nothing), Some(true));
    }

    struct Rng(u64);

    impl Rng {
        fn below(&mut self, n: u32) -> u32 {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 33) as u32 % n
        }
    }

    /// A work request in the queue.
    struct Wr {
        /// The operation, if it is its last one.
        ends: Option<u64>,
        signaled: bool,
    }

    /// A queue, an HCA that executes it in order, and a peer.
    struct Sim {
        a: Accounting,
        queue: VecDeque<Wr>,
        /// What `Qp` counts.
        qp_unsignaled: u32,
        begun: u64,
        ended: u64,
        signals: u64,
        /// With answers, an operation ends when both its completion and the answer have come:
        /// those of which one has not.
        answers: Option<HashMap<u64, (bool, bool)>>,
    }

    impl Sim {
        fn new(a: Accounting, answers: bool) -> Self {
            Self {
                a,
                queue: VecDeque::new(),
                qp_unsignaled: 0,
                begun: 0,
                ended: 0,
                signals: 0,
                answers: answers.then(HashMap::new),
            }
        }

        fn push(&mut self, ends: Option<u64>, signaled: bool) {
            assert!((self.queue.len() as u32) < self.a.queue, "overflow");
            let force = self.qp_unsignaled + 1 >= self.a.queue / 2;
            assert!(signaled || !force, "the QP signals by itself");
            self.qp_unsignaled = if signaled { 0 } else { self.qp_unsignaled + 1 };
            self.queue.push_back(Wr { ends, signaled });
        }

        /// Begins an operation, if there is room.
        fn begin(&mut self, wrs: u32, next: Next) -> bool {
            let Some(signaled) = self.a.plan(wrs, next) else {
                return false;
            };
            for _ in 1..wrs {
                self.push(None, false);
            }
            self.push(Some(self.begun), signaled);
            self.a.begun(wrs, signaled);
            if let Some(answers) = &mut self.answers {
                answers.insert(self.begun, (false, false));
            }
            self.begun += 1;
            self.signals += u64::from(signaled);
            assert!(self.a.in_flight() <= self.a.depth);
            assert_eq!(self.a.wrs as usize, self.queue.len());
            true
        }

        /// Something that somebody asked for happens; gives whether there was anything.
        fn event(&mut self, rng: &mut Rng) -> bool {
            let open = self.answers.as_mut().and_then(|answers| {
                let open: Vec<_> = answers.iter_mut().filter(|(_, v)| !v.1).collect();
                open.into_iter().min_by_key(|(op, _)| **op)
            });
            let signal = self.queue.iter().position(|wr| wr.signaled);
            match (open, signal) {
                (Some((op, state)), signal) if signal.is_none() || rng.below(2) == 0 => {
                    state.1 = true;
                    let op = *op;
                    self.end(op);
                }
                (_, Some(at)) => {
                    for _ in 0..=at {
                        let wr = self.queue.pop_front().unwrap();
                        self.a.done();
                        let Some(op) = wr.ends else { continue };
                        match &mut self.answers {
                            Some(answers) => answers.get_mut(&op).unwrap().0 = true,
                            None => {
                                self.ended += 1;
                                self.a.ended();
                            }
                        }
                        self.end(op);
                    }
                }
                _ => return false,
            }
            assert_eq!(self.a.wrs as usize, self.queue.len());
            true
        }

        /// Ends an operation if both have come.
        fn end(&mut self, op: u64) {
            if let Some(answers) = &mut self.answers {
                if answers.get(&op) == Some(&(true, true)) {
                    answers.remove(&op);
                    self.ended += 1;
                    self.a.ended();
                }
            }
        }
    }

    /// Work in bursts, with everything random; at the end of each burst all must end.
    fn simulate(depth: u32, signal_every: u32, queue: u32, longest: u32, seed: u64) {
        let mut rng = Rng(seed);
        let a = Accounting::new(depth, signal_every, queue, longest).unwrap();
        let mut sim = Sim::new(a, rng.below(2) == 0);
        for _ in 0..6 {
            let mut burst = 1 + rng.below(3 * depth);
            while burst > 0 {
                let next = if burst == 1 {
                    Next::Nothing
                } else {
                    Next::More
                };
                let wrs = 1 + rng.below(longest);
                if rng.below(8) != 0 && sim.begin(wrs, next) {
                    burst -= 1;
                } else if rng.below(16) == 0 && sim.a.aside(1) {
                    sim.push(None, true);
                } else if rng.below(64) == 0 && sim.begun > 0 {
                    // The rest was cancelled.
                    while sim.a.owes() && !sim.a.aside(1) {
                        assert!(sim.event(&mut rng), "no room, and nothing comes");
                    }
                    if sim.queue.back().is_some_and(|wr| !wr.signaled) {
                        sim.push(None, true);
                    }
                    burst = 0;
                } else {
                    let blocked = sim.a.plan(longest, Next::More).is_none();
                    let moved = sim.event(&mut rng);
                    assert!(moved || !blocked, "waits for what nobody asked for");
                }
            }
            // An owner that waits for what it has begun.
            while sim.ended < sim.begun {
                assert!(sim.event(&mut rng), "waits for what nobody asked for");
            }
            while sim.event(&mut rng) {}
            assert_eq!((sim.a.in_flight(), sim.queue.len()), (0, 0));
        }
    }

    #[test]
    fn never_overflows_and_never_waits_in_vain() {
        for depth in (1..=40).chain([64, 100]) {
            for signal_every in 0..=depth + 1 {
                for longest in 1..=3 {
                    let seed = u64::from(depth << 16 | signal_every << 4 | longest);
                    let fits = queue_for(depth, signal_every, longest);
                    // As it should be, the least, and between.
                    for queue in [fits, 2 * longest, (depth + 5).max(2 * longest)] {
                        simulate(depth, signal_every, queue, longest, seed);
                    }
                }
            }
        }
    }

    #[test]
    fn no_more_signals_than_needed() {
        for depth in [1, 2, 7, 16, 32, 128, 1024] {
            for signal_every in [0, 1, 2, depth / 2, depth] {
                for longest in 1..=3 {
                    let queue = queue_for(depth, signal_every, longest);
                    let a = Accounting::new(depth, signal_every, queue, longest).unwrap();
                    let mut sim = Sim::new(a, false);
                    let mut rng = Rng(1);
                    let total = 10 * u64::from(depth);
                    while sim.begun < total {
                        let last = sim.begun + 1 == total;
                        let next = if last { Next::Nothing } else { Next::More };
                        if !sim.begin(longest, next) {
                            assert!(sim.event(&mut rng));
                        }
                    }
                    let every = u64::from(every(depth, signal_every));
                    assert_eq!(sim.signals, total.div_ceil(every));
                }
            }
        }
    }
}
