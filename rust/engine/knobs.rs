// SPDX-License-Identifier: GPL-2.0

//! The knobs of a policy: what each can be, its range and default, and the presets. Pure: it is
//! tested on the host too.

use super::cpulist::CpuList;
use crate::value::{choice, number, Bounds, Refusal};
use core::fmt;

choice! {
    /// What guards submission and completion.
    Lock {
        /// Each lane has a lock of its own, which nobody else wants in normal use.
        Percpu = 1, "percpu";
        /// All lanes of a connection share one. It exists to be compared with.
        Global = 2, "global";
    }
}

choice! {
    /// How completions are waited for.
    Completion {
        /// One event per completion.
        Interrupt = 1, "interrupt";
        /// Several together, after at most `coalesce_usecs` or at about `coalesce_count`.
        Coalesce = 2, "coalesce";
        /// Polling, as long as something comes within `busy_usecs`.
        Busy = 3, "busy";
        /// Between the others, by how fast completions arrive.
        Adaptive = 4, "adaptive";
    }
}

choice! {
    /// How a peer gets at the memory of an operation.
    Memory {
        /// A region is allocated and freed for each operation. It exists to be compared with.
        Register = 1, "register";
        /// A region of a pool is registered and invalidated for each operation.
        Fast = 2, "fast";
        /// Registrations are kept valid, and found again by what they cover.
        Cached = 3, "cached";
        /// Payloads up to 64 KiB are copied, through memory that is mapped once; `fast` above.
        Copy = 4, "copy";
        /// `copy` up to `copy_threshold`, `fast` above.
        Auto = 5, "auto";
        /// As `fast`, but each step is waited for. It exists to be compared with.
        FastWaited = 6, "fast_waited";
    }
}

impl Completion {
    /// Whether the CPU may be used while nothing completes.
    pub(crate) fn may_poll(self) -> bool {
        matches!(self, Completion::Busy | Completion::Adaptive)
    }
}

/// Where lanes keep their memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Numa {
    /// Near the device, or the lane's CPU.
    Auto,
    /// On this node.
    Node(u32),
}

impl Numa {
    /// What it may be, for messages.
    pub(crate) const ALLOWED: &'static str = "auto, or the number of a node that is online";

    /// Parses it. Whether there is such a node is not looked at.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        match text {
            "auto" => Ok(Numa::Auto),
            text => Ok(Numa::Node(number(text, NODE)? as u32)),
        }
    }
}

impl fmt::Display for Numa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Numa::Auto => f.write_str("auto"),
            Numa::Node(node) => write!(f, "{node}"),
        }
    }
}

/// What the CPUs of lanes may be, for messages.
pub(crate) const CPUS: &str = "all, or a list as 0-3,8 of CPUs that are online, up to 1023";
/// Lanes of a connection; 0 = one per online CPU of `cpus`.
pub(crate) const LANES: Bounds = Bounds { min: 0, max: 256 };
/// Number of a NUMA node: as many as a kernel can have at most (`MAX_NUMNODES`).
pub(crate) const NODE: Bounds = Bounds { min: 0, max: 1023 };
/// How long an event may be held back, us.
pub(crate) const COALESCE_USECS: Bounds = Bounds {
    min: 1,
    max: 10_000,
};
/// Completions that end the holding back of an event.
pub(crate) const COALESCE_COUNT: Bounds = Bounds { min: 1, max: 1024 };
/// How long `adaptive` polls without finding anything, us.
pub(crate) const BUSY_USECS: Bounds = Bounds {
    min: 0,
    max: 100_000,
};
/// Completions that are taken at a time.
pub(crate) const POLL_BUDGET: Bounds = Bounds { min: 1, max: 256 };
/// Largest payload that `auto` copies, bytes.
pub(crate) const COPY_THRESHOLD: Bounds = Bounds {
    min: 0,
    max: 1 << 16,
};
/// Registrations that are kept.
pub(crate) const MR_CACHE_ENTRIES: Bounds = Bounds { min: 0, max: 65536 };
/// Work requests of one doorbell.
pub(crate) const BATCH: Bounds = Bounds { min: 1, max: 128 };
/// One work request of so many asks for a completion; 0 = chosen by the depth.
pub(crate) const SIGNAL_EVERY: Bounds = Bounds { min: 0, max: 256 };

/// The knobs that take effect on connections that are there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moderation {
    /// How completions are waited for.
    pub(crate) completion: Completion,
    /// See [`COALESCE_USECS`].
    pub(crate) coalesce_usecs: u32,
    /// See [`COALESCE_COUNT`].
    pub(crate) coalesce_count: u32,
    /// See [`BUSY_USECS`].
    pub(crate) busy_usecs: u32,
    /// See [`POLL_BUDGET`].
    pub(crate) poll_budget: u32,
}

/// All knobs of a policy. All but [`Knobs::moderation`] take effect on the next connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Knobs {
    /// See [`LANES`].
    pub(crate) lanes: u32,
    /// CPUs that lanes are on; empty = all that are online.
    pub(crate) cpus: CpuList,
    /// Where memory is.
    pub(crate) numa: Numa,
    /// What guards submission and completion.
    pub(crate) lock: Lock,
    /// What is looked at all the time.
    pub(crate) moderation: Moderation,
    /// How a peer gets at memory.
    pub(crate) memory: Memory,
    /// See [`COPY_THRESHOLD`].
    pub(crate) copy_threshold: u32,
    /// See [`MR_CACHE_ENTRIES`].
    pub(crate) mr_cache_entries: u32,
    /// See [`BATCH`].
    pub(crate) batch: u32,
    /// See [`SIGNAL_EVERY`].
    pub(crate) signal_every: u32,
}

impl Knobs {
    /// The policy `default`, which a new policy starts from as well: a lane for each CPU, so that
    /// nothing is shared; completions by whatever their rate makes cheapest; small payloads copied,
    /// which costs less than a registration, and no page of a caller within a peer's reach longer
    /// than its operation takes.
    pub(crate) const DEFAULT: Self = Self {
        lanes: 0,
        cpus: CpuList::EMPTY,
        numa: Numa::Auto,
        lock: Lock::Percpu,
        moderation: Moderation {
            completion: Completion::Adaptive,
            coalesce_usecs: 50,
            coalesce_count: 32,
            busy_usecs: 100,
            poll_budget: 64,
        },
        memory: Memory::Auto,
        copy_threshold: 4096,
        mr_cache_entries: 1024,
        batch: 32,
        signal_every: 0,
    };

    /// The policy `naive`: the textbook's slow path, with nothing that the engine does. All goes
    /// through one lane and one lock, each operation registers, rings the doorbell, is signaled, and
    /// is waited for by interrupt. Every gain can be shown against it.
    pub(crate) const NAIVE: Self = Self {
        lanes: 1,
        lock: Lock::Global,
        moderation: Moderation {
            completion: Completion::Interrupt,
            ..Self::DEFAULT.moderation
        },
        memory: Memory::Register,
        copy_threshold: 0,
        mr_cache_entries: 0,
        batch: 1,
        signal_every: 1,
        ..Self::DEFAULT
    };

    /// The policy `latency`: polls without sleep, as a wake-up costs more than the operation; takes
    /// few completions at a time and posts early, so that nothing waits for its neighbours; copies
    /// more, as a registration is a work request in front of the operation.
    pub(crate) const LATENCY: Self = Self {
        moderation: Moderation {
            completion: Completion::Busy,
            coalesce_usecs: 1,
            coalesce_count: 1,
            busy_usecs: 1000,
            poll_budget: 16,
        },
        copy_threshold: 8192,
        batch: 4,
        ..Self::DEFAULT
    };

    /// The policy `throughput`: events held back for longer and more work at a time, as only the
    /// rate counts. Memory stays `auto`: `cached` would save work, but keeps a peer's rights on
    /// pages beyond the operation, which is chosen and not given.
    pub(crate) const THROUGHPUT: Self = Self {
        moderation: Moderation {
            completion: Completion::Adaptive,
            coalesce_usecs: 200,
            coalesce_count: 128,
            busy_usecs: 50,
            poll_budget: 256,
        },
        batch: 128,
        ..Self::DEFAULT
    };

    /// The policies that are always there, by name.
    pub(crate) const PRESETS: [(&'static str, Self); 4] = [
        ("naive", Self::NAIVE),
        ("default", Self::DEFAULT),
        ("latency", Self::LATENCY),
        ("throughput", Self::THROUGHPUT),
    ];
}

/// Bytes of a policy's name at most.
pub(crate) const NAME_LEN: usize = 63;

/// What a policy may be named, for messages.
pub(crate) const NAMES: &str = "up to 63 letters, digits and _ - .";

/// Whether a policy may be named so: whatever carries the name, it needs no quoting.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
    (1..=NAME_LEN).contains(&name.len()) && name.iter().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_within_bounds() {
        for (name, k) in Knobs::PRESETS {
            let m = k.moderation;
            for (what, value, bounds) in [
                ("lanes", k.lanes, LANES),
                ("coalesce_usecs", m.coalesce_usecs, COALESCE_USECS),
                ("coalesce_count", m.coalesce_count, COALESCE_COUNT),
                ("busy_usecs", m.busy_usecs, BUSY_USECS),
                ("poll_budget", m.poll_budget, POLL_BUDGET),
                ("copy_threshold", k.copy_threshold, COPY_THRESHOLD),
                ("mr_cache_entries", k.mr_cache_entries, MR_CACHE_ENTRIES),
                ("batch", k.batch, BATCH),
                ("signal_every", k.signal_every, SIGNAL_EVERY),
            ] {
                let within = (bounds.min..=bounds.max).contains(&u64::from(value));
                assert!(within, "{name}: {what}");
            }
            assert!(is_name(name.as_bytes()));
            assert!(k.cpus.is_empty());
            assert!(CPUS.ends_with(&(super::super::cpulist::MAX_CPUS - 1).to_string()));
        }
    }

    #[test]
    fn no_preset_leaves_memory_open() {
        for (name, k) in Knobs::PRESETS {
            assert!(k.memory != Memory::Cached, "{name}");
        }
    }

    #[test]
    fn words() {
        for lock in Lock::ALL {
            assert_eq!(Lock::parse(&lock.to_string()), Some(*lock));
        }
        for completion in Completion::ALL {
            assert_eq!(
                Completion::parse(&completion.to_string()),
                Some(*completion)
            );
            assert_eq!(
                Completion::from_wire(completion.to_wire()),
                Some(*completion)
            );
        }
        for memory in Memory::ALL {
            assert_eq!(Memory::parse(&memory.to_string()), Some(*memory));
        }
        assert!(!Completion::Interrupt.may_poll() && !Completion::Coalesce.may_poll());
        assert!(Completion::Busy.may_poll() && Completion::Adaptive.may_poll());
    }

    #[test]
    fn numa() {
        assert_eq!(Numa::parse("auto"), Ok(Numa::Auto));
        for node in [0, 1, 1023] {
            let parsed = Numa::parse(&node.to_string());
            assert_eq!(parsed, Ok(Numa::Node(node)));
            assert_eq!(parsed.unwrap().to_string(), node.to_string());
        }
        assert_eq!(Numa::parse("1024"), Err(Refusal::OutOfRange));
        for bad in ["", "-1", "Auto", "0-1", "auto "] {
            assert_eq!(Numa::parse(bad), Err(Refusal::Malformed));
        }
    }

    #[test]
    fn names() {
        for name in ["a", "my-policy_2.0", "x".repeat(63).as_str()] {
            assert!(is_name(name.as_bytes()));
        }
        for name in ["", "a b", "a,b", "ü", "a\n", "a=b", "x".repeat(64).as_str()] {
            assert!(!is_name(name.as_bytes()), "{name:?}");
        }
    }
}
