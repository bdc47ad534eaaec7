// SPDX-License-Identifier: GPL-2.0

//! What a session counts.
//!
//! One thread writes, anyone reads at any time ([`Counter`]). A reader may see an operation in one
//! counter and not yet in another.

use super::histogram::{self, BUCKETS};
use crate::{
    engine::stats::{Counter, LaneCounts, LaneStats, PollerCounts, PollerStats},
    kapi::trace,
};
use core::fmt::{self, Write};
use kernel::{
    prelude::*,
    sync::{Arc, SetOnce},
};

/// What a lane counts, as a part of its session.
pub(crate) struct Part {
    /// Its operations.
    pub(crate) stats: Arc<Stats>,
    /// What the engine counts of it.
    pub(crate) lane: Arc<LaneStats>,
    /// Of its poller, and what that was when the lane came; of one lane of each poller.
    pub(crate) poller: Option<(Arc<PollerStats>, PollerCounts)>,
}

/// Counters of one session.
pub(crate) struct Stats {
    /// Operations that completed.
    pub(crate) ops: Counter,
    /// Their payload.
    pub(crate) bytes: Counter,
    /// Operations that failed, and failures of the session.
    pub(crate) errors: Counter,
    /// Payloads that were not what was sent.
    pub(crate) miscompares: Counter,
    /// Messages that an unreliable transport lost.
    pub(crate) lost: Counter,
    /// Begin of the first operation, ns.
    pub(crate) first: Counter,
    /// End of the last operation so far, ns.
    pub(crate) last: Counter,
    sum: Counter,
    min: Counter,
    max: Counter,
    buckets: KVVec<Counter>,
    /// What the engine counts of its data connections.
    pub(crate) lane: LaneStats,
    /// What it counts of looking for completions.
    pub(crate) poller: PollerStats,
    /// Its lanes, if it has submitters.
    pub(crate) parts: SetOnce<KVec<Part>>,
}

impl Stats {
    /// All zero.
    pub(crate) fn new() -> Result<Self> {
        let mut buckets = KVVec::with_capacity(BUCKETS, GFP_KERNEL)?;
        for _ in 0..BUCKETS {
            buckets.push(Counter::new(), GFP_KERNEL)?;
        }
        let min = Counter::new();
        min.set(u64::MAX);
        Ok(Self {
            ops: Counter::new(),
            bytes: Counter::new(),
            errors: Counter::new(),
            miscompares: Counter::new(),
            lost: Counter::new(),
            first: Counter::new(),
            last: Counter::new(),
            sum: Counter::new(),
            min,
            max: Counter::new(),
            buckets,
            lane: LaneStats::new(),
            poller: PollerStats::new(),
            parts: SetOnce::new(),
        })
    }

    /// Counts one operation, on the QP with key `qp`, that took from `begin` to `end`, of which
    /// `share` halves or wholes count (ping-pong: 2, as it reports half of the round trip).
    pub(crate) fn operation(&self, qp: u32, begin: u64, end: u64, share: u64, bytes: u64) {
        trace::done(qp, begin, end, bytes);
        let ns = end.saturating_sub(begin).checked_div(share).unwrap_or(0);
        self.ops.add(1);
        self.bytes.add(bytes);
        self.sum.add(ns);
        if ns < self.min.get() {
            self.min.set(ns);
        }
        if ns > self.max.get() {
            self.max.set(ns);
        }
        if let Some(bucket) = self.buckets.get(histogram::bucket(ns)) {
            bucket.add(1);
        }
        if self.first.get() == 0 {
            self.first.set(begin);
        }
        self.last.set(end);
    }

    /// Counts `ops` operations whose latency is not known here.
    pub(crate) fn seen(&self, ops: u64, bytes: u64, now: u64) {
        self.ops.add(ops);
        self.bytes.add(bytes);
        if self.first.get() == 0 {
            self.first.set(now);
        }
        self.last.set(now);
    }
}

/// The sum of several sessions' counters.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) miscompares: u64,
    pub(crate) lost: u64,
    first: u64,
    last: u64,
    sum: u64,
    min: u64,
    max: u64,
    buckets: KVVec<u64>,
    lane: LaneCounts,
    poller: PollerCounts,
}

impl Totals {
    /// Adds a session's counters.
    pub(crate) fn add(&mut self, stats: &Stats) -> Result {
        for part in stats.parts.as_ref().into_iter().flatten() {
            self.lane.add(&part.lane.read());
            if let Some((poller, before)) = &part.poller {
                self.poller.add(&poller.read().since(before));
            }
            self.add(&part.stats)?;
        }
        self.lane.add(&stats.lane.read());
        self.poller.add(&stats.poller.read());
        self.sum_up(
            [
                &stats.ops,
                &stats.bytes,
                &stats.errors,
                &stats.miscompares,
                &stats.lost,
            ]
            .map(Counter::get),
            stats.first.get(),
            stats.last.get(),
            stats.sum.get(),
            stats.min.get(),
            stats.max.get(),
            stats.buckets.iter().map(Counter::get),
        )
    }

    /// Adds other totals, of sessions that are over.
    pub(crate) fn merge(&mut self, other: &Totals) -> Result {
        if other.buckets.is_empty() {
            return Ok(());
        }
        self.lane.add(&other.lane);
        self.poller.add(&other.poller);
        self.sum_up(
            [
                other.ops,
                other.bytes,
                other.errors,
                other.miscompares,
                other.lost,
            ],
            other.first,
            other.last,
            other.sum,
            other.min,
            other.max,
            other.buckets.iter().copied(),
        )
    }

    #[allow(clippy::too_many_arguments)]
    fn sum_up(
        &mut self,
        counters: [u64; 5],
        first: u64,
        last: u64,
        sum: u64,
        min: u64,
        max: u64,
        buckets: impl Iterator<Item = u64>,
    ) -> Result {
        if self.buckets.is_empty() {
            self.buckets.extend_with(BUCKETS, 0, GFP_KERNEL)?;
            self.min = u64::MAX;
        }
        // Saturating, as a server's counters take what clients say.
        let [ops, bytes, errors, miscompares, lost] = counters;
        self.ops = self.ops.saturating_add(ops);
        self.bytes = self.bytes.saturating_add(bytes);
        self.errors = self.errors.saturating_add(errors);
        self.miscompares = self.miscompares.saturating_add(miscompares);
        self.lost = self.lost.saturating_add(lost);
        if first != 0 && (self.first == 0 || first < self.first) {
            self.first = first;
        }
        self.last = self.last.max(last);
        self.sum = self.sum.saturating_add(sum);
        self.min = self.min.min(min);
        self.max = self.max.max(max);
        for (to, from) in self.buckets.iter_mut().zip(buckets) {
            *to += from;
        }
        Ok(())
    }

    /// The `key value` lines of `result`.
    pub(crate) fn write(&self, out: &mut impl Write) -> fmt::Result {
        let elapsed = self.last.saturating_sub(self.first);
        let per_second = |n: u64| histogram::per_second(n, elapsed);
        let counted: u64 = self.buckets.iter().sum();
        let [p50, p99, p99_9] =
            histogram::percentiles(self.buckets.iter().copied(), [500, 990, 999]);
        let (min, avg) = match counted {
            0 => (0, 0),
            n => (self.min, self.sum / n),
        };
        // A bucket's middle may lie beyond the values in it.
        let within = |ns: u64| ns.clamp(min, self.max.max(min));
        let mib_100 = per_second(self.bytes.saturating_mul(100)) >> 20;
        writeln!(out, "ops {}", self.ops)?;
        writeln!(out, "bytes {}", self.bytes)?;
        writeln!(out, "errors {}", self.errors)?;
        writeln!(out, "miscompares {}", self.miscompares)?;
        writeln!(out, "lost {}", self.lost)?;
        writeln!(out, "elapsed_ns {elapsed}")?;
        writeln!(out, "iops {}", per_second(self.ops))?;
        writeln!(out, "mib_per_s {}.{:02}", mib_100 / 100, mib_100 % 100)?;
        writeln!(out, "lat_ns_min {min}")?;
        writeln!(out, "lat_ns_avg {avg}")?;
        writeln!(out, "lat_ns_p50 {}", within(p50))?;
        writeln!(out, "lat_ns_p99 {}", within(p99))?;
        writeln!(out, "lat_ns_p99_9 {}", within(p99_9))?;
        writeln!(out, "lat_ns_max {}", self.max)
    }

    /// The lines of `stats`.
    pub(crate) fn write_stats(&self, out: &mut impl Write) -> fmt::Result {
        self.lane.write(out)?;
        self.poller.write(out)
    }

    /// The lines of `histogram`.
    pub(crate) fn write_histogram(&self, out: &mut impl Write) -> fmt::Result {
        // 100 lines of three numbers of at most 12 digits stay below a page.
        histogram::write_lines(out, self.buckets.iter().copied(), 96)
    }
}
