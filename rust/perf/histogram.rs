// SPDX-License-Identifier: GPL-2.0

//! Latencies in buckets whose width grows with the value: 128 per power of two, so a value is
//! known to better than 0.8 %. Pure: the arithmetic is tested on the host too; who counts and
//! where the counters live is the caller's business.

use core::fmt;

/// Buckets per power of two, as a power of two.
const SUB_BITS: u32 = 7;
const SUB: u64 = 1 << SUB_BITS;

/// Values from here on fall into the last bucket: 2^36 ns, 68 s.
const TOP_BITS: u32 = 36;

/// Number of buckets.
pub(crate) const BUCKETS: usize = ((TOP_BITS - SUB_BITS + 1) as usize) << SUB_BITS;

/// The bucket of a value in ns.
pub(crate) fn bucket(ns: u64) -> usize {
    if ns < SUB {
        return ns as usize;
    }
    let magnitude = 63 - ns.leading_zeros();
    if magnitude >= TOP_BITS {
        return BUCKETS - 1;
    }
    let shift = magnitude - SUB_BITS;
    // The leading bit counts the powers of two, the bits after it the place within.
    (u64::from(shift + 1) * SUB + ((ns >> shift) - SUB)) as usize
}

/// The least value of a bucket, ns.
pub(crate) fn lower(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    (SUB + bucket % SUB) << shift
}

/// The value that stands for a bucket: its middle, ns.
fn middle(bucket: usize) -> u64 {
    (lower(bucket) + lower(bucket + 1).saturating_sub(1)) / 2
}

/// `n` per second, when it took `ns`; 0 when it took no time. Without numbers of 128 bits, whose
/// division the kernel does not have.
pub(crate) fn per_second(n: u64, ns: u64) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    let (mut n, mut ns) = (n, ns);
    // The rest of the division times a second has to fit.
    while ns >= 1 << 34 {
        n >>= 1;
        ns >>= 1;
    }
    match ns {
        0 => 0,
        ns => (n / ns)
            .saturating_mul(SECOND)
            .saturating_add(n % ns * SECOND / ns),
    }
}

/// Percentiles of a set of counters, in one walk.
///
/// `per_mille` are ascending; the answers are in ns, all 0 when nothing was counted.
pub(crate) fn percentiles<const N: usize>(
    counts: impl Iterator<Item = u64> + Clone,
    per_mille: [u64; N],
) -> [u64; N] {
    let mut out = [0; N];
    let total: u64 = counts.clone().sum();
    if total == 0 {
        return out;
    }
    let mut sum = 0;
    let mut at = 0;
    for (i, count) in counts.enumerate() {
        sum += count;
        // The value at rank ceil(p * total).
        while at < N && sum >= (total * per_mille[at]).div_ceil(1000).max(1) {
            out[at] = middle(i);
            at += 1;
        }
    }
    out
}

/// Writes `from_ns to_ns count` lines of the buckets that are not empty, joined as far as needed
/// to stay within `max_lines`.
pub(crate) fn write_lines(
    out: &mut impl fmt::Write,
    counts: impl Iterator<Item = u64> + Clone,
    max_lines: usize,
) -> fmt::Result {
    // Buckets in a line, as a power of two.
    let mut join = 0;
    while lines(counts.clone(), join) > max_lines {
        join += 1;
    }
    let mut group = 0;
    let mut sum = 0;
    let mut flush = |group: usize, sum: u64| -> fmt::Result {
        if sum == 0 {
            return Ok(());
        }
        writeln!(
            out,
            "{} {} {}",
            lower(group << join),
            lower((group + 1) << join),
            sum
        )
    };
    for (i, count) in counts.enumerate() {
        if i >> join != group {
            flush(group, sum)?;
            group = i >> join;
            sum = 0;
        }
        sum += count;
    }
    flush(group, sum)
}

/// Groups of `1 << join` buckets that are not empty.
fn lines(counts: impl Iterator<Item = u64>, join: u32) -> usize {
    let mut n = 0;
    let mut last = usize::MAX;
    for (i, count) in counts.enumerate() {
        if count != 0 && i >> join != last {
            last = i >> join;
            n += 1;
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_without_gaps() {
        for b in 0..BUCKETS {
            assert_eq!(bucket(lower(b)), b);
            if b + 1 < BUCKETS {
                assert_eq!(bucket(lower(b + 1) - 1), b);
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn middle_is_close() {
        let mut ns = 1u64;
        while ns < 1 << 35 {
            let m = middle(bucket(ns));
            assert!(m.abs_diff(ns) * 1000 <= ns * 8, "{ns} {m}");
            ns = ns * 17 / 16 + 1;
        }
    }

    #[test]
    fn percentiles_against_sorting() {
        let mut counts = vec![0u64; BUCKETS];
        let mut values = vec![];
        let mut x = 12345u64;
        for _ in 0..10_000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let ns = 1000 + (x >> 33) % 100_000;
            values.push(ns);
            counts[bucket(ns)] += 1;
        }
        values.sort_unstable();
        let [p50, p99, p999] = percentiles(counts.iter().copied(), [500, 990, 999]);
        for (got, rank) in [(p50, 5000), (p99, 9900), (p999, 9990)] {
            let want = values[rank - 1];
            assert!(got.abs_diff(want) * 100 <= want, "{got} {want}");
        }
        assert_eq!(percentiles([].into_iter(), [500]), [0]);
    }

    #[test]
    fn rates() {
        assert_eq!(per_second(5, 0), 0);
        assert_eq!(per_second(1000, 1_000_000_000), 1000);
        assert_eq!(per_second(1, 3), 333_333_333);
        assert_eq!(per_second(u64::MAX, 1), u64::MAX);
        for (n, ns) in [
            (1u64 << 40, 1u64 << 40),
            (123_456_789_012, 77_000_000_000_000),
        ] {
            let exact = (n as u128 * 1_000_000_000 / ns as u128) as u64;
            assert!(per_second(n, ns).abs_diff(exact) <= exact / 1_000_000 + 1);
        }
    }

    #[test]
    fn lines_fit_and_lose_nothing() {
        let mut counts = vec![0u64; BUCKETS];
        for ns in (0..5_000_000).step_by(97) {
            counts[bucket(ns)] += 1;
        }
        let mut text = String::new();
        write_lines(&mut text, counts.iter().copied(), 64).unwrap();
        assert!(text.lines().count() <= 64);
        let mut sum = 0;
        let mut last = 0;
        for line in text.lines() {
            let f: Vec<u64> = line.split(' ').map(|f| f.parse().unwrap()).collect();
            assert!(f[0] >= last && f[1] > f[0] && f[2] > 0);
            last = f[1];
            sum += f[2];
        }
        assert_eq!(sum, counts.iter().sum::<u64>());
    }
}
