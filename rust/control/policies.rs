// SPDX-License-Identifier: GPL-2.0

//! `/sys/kernel/config/rivet/policies`: a directory for each policy, a file for each knob.
//!
//! The presets are there from the start and stay; others are made by `mkdir`, beginning as copies
//! of what `default` is after load. All can be changed at any time.

use super::{
    attribute::{not_allowed_as, parse, parse_number, parse_word, refuse, show},
    Root,
};
use crate::{
    engine::{
        cpulist::CpuList,
        knobs::{self, Completion, Knobs, Lock, Memory, Numa},
        policy::{InUse, Policy, Registry},
    },
    kapi::{configfs::DefaultGroup, cpu},
    perf::failure::{Failure, Outcome},
};
use core::fmt::Write;
use kernel::{
    configfs::{configfs_attrs, AttributeOperations, Group, GroupOperations, ItemType, Subsystem},
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
    sync::{Arc, UniqueArc},
};

/// The directory of policies, for whoever takes one by its name.
#[derive(Clone)]
pub(crate) struct Policies {
    directory: Arc<DefaultGroup<Root, PoliciesDir>>,
    registry: Arc<Registry>,
}

impl Policies {
    /// Puts the directory with the presets below `root`. Sleeps.
    pub(super) fn register(root: Arc<Subsystem<Root>>) -> Result<Self> {
        let registry = Registry::new()?;
        let mut presets = KVec::new();
        for (name, knobs) in Knobs::PRESETS {
            let name = CString::try_from_fmt(fmt!("{name}"))?;
            let preset = group(&registry, name, knobs)?;
            presets.push(UniqueArc::pin_init(preset, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let item_type = configfs_attrs! {
            container: Group<PoliciesDir>,
            data: PoliciesDir,
            child: Directory,
            attributes: [],
        };
        let dir = PoliciesDir {
            registry: registry.clone(),
        };
        let dir = Group::new(CString::try_from_fmt(fmt!("policies"))?, item_type, Ok(dir));
        let directory = Arc::new(DefaultGroup::register(root, dir, presets)?, GFP_KERNEL)?;
        Ok(Self {
            directory,
            registry,
        })
    }

    /// Takes the policy of that name into use. `ENOENT` with the names that there are. Sleeps; not
    /// from where directories are made or dropped.
    pub(super) fn take(&self, name: &CStr) -> Outcome<InUse> {
        let taken = self.directory.depend(name).and_then(|dependency| {
            // What is in the directory is in the registry, and the directory cannot go now.
            let policy = self.registry.find(name).ok_or(ENOENT)?;
            Ok(InUse::new(policy, dependency))
        });
        taken.map_err(|e| match e {
            e if e == ENOENT => self.unknown(name.to_bytes()),
            e => e.into(),
        })
    }

    /// Whether there is a policy of that name, as a value that somebody wrote. Sleeps; not from
    /// where directories are made or dropped.
    pub(super) fn check(&self, value: &[u8]) -> Outcome<CString> {
        let name = parse(
            value,
            fmt!("a name of {}", knobs::NAMES),
            |text| match knobs::is_name(text.as_bytes()) {
                true => Ok(text),
                false => Err(crate::value::Refusal::Malformed),
            },
        )?;
        let mut found = false;
        self.directory.each_name(|each| {
            found = each.to_bytes() == name.as_bytes();
            !found
        });
        if !found {
            return Err(self.unknown(name.as_bytes()));
        }
        Ok(CString::try_from_fmt(fmt!("{name}"))?)
    }

    /// The failure that a name is which no policy has.
    fn unknown(&self, name: &[u8]) -> Failure {
        let mut names = Names::new();
        self.directory.each_name(|each| {
            names.add(each.to_str().unwrap_or("?"));
            !names.full
        });
        let names = names.as_str();
        not_allowed_as(ENOENT, name, fmt!("the policies that there are:{names}"))
    }
}

/// A list of names for a line in the log, cut off where it gets long.
struct Names {
    text: [u8; 160],
    len: usize,
    full: bool,
}

impl Names {
    fn new() -> Self {
        Self {
            text: [0; 160],
            len: 0,
            full: false,
        }
    }

    fn add(&mut self, name: &str) {
        const MORE: &str = " ...";
        let fits = self.len + 1 + name.len() + MORE.len() <= self.text.len();
        self.full |= !fits;
        match fits {
            true => self.put(" ").put(name),
            false => self.put(MORE),
        };
    }

    fn put(&mut self, text: &str) -> &mut Self {
        let end = self.len + text.len();
        if let Some(room) = self.text.get_mut(self.len..end) {
            room.copy_from_slice(text.as_bytes());
            self.len = end;
        }
        self
    }

    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.text[..self.len]).unwrap_or("")
    }
}

/// Data of the directory that policies are made in.
pub(crate) struct PoliciesDir {
    registry: Arc<Registry>,
}

/// A policy as a directory.
pub(crate) struct Directory {
    policy: Arc<Policy>,
    registry: Arc<Registry>,
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.registry.remove(&self.policy);
    }
}

/// A directory that is not there yet.
fn group(
    registry: &Arc<Registry>,
    name: CString,
    knobs: Knobs,
) -> Result<impl PinInit<Group<Directory>, Error>> {
    let item_type: &'static ItemType<Group<Directory>, Directory> = configfs_attrs! {
        container: Group<Directory>,
        data: Directory,
        attributes: [
            lanes: 0,
            cpus: 1,
            numa: 2,
            lock: 3,
            completion: 4,
            coalesce_usecs: 5,
            coalesce_count: 6,
            busy_usecs: 7,
            poll_budget: 8,
            memory: 9,
            copy_threshold: 10,
            mr_cache_entries: 11,
            batch: 12,
            signal_every: 13,
            users: 14,
        ],
    };
    let policy = Policy::new(CString::try_from(&*name)?, knobs)?;
    registry.add(policy.clone())?;
    let directory = Directory {
        policy,
        registry: registry.clone(),
    };
    Ok(Group::new(name, item_type, Ok(directory)))
}

#[vtable]
impl GroupOperations for PoliciesDir {
    type Child = Directory;

    fn make_group(&self, name: &CStr) -> Result<impl PinInit<Group<Directory>, Error>> {
        if !knobs::is_name(name.to_bytes()) {
            pr_err!("policies: no name of a policy; allowed: {}\n", knobs::NAMES);
            return Err(EINVAL);
        }
        group(&self.registry, CString::try_from(name)?, Knobs::DEFAULT)
    }
}

/// An attribute that sets a knob.
macro_rules! knob {
    ($id:literal, $name:literal, show: |$knobs:ident, $out:ident| $show:expr, store: |$value:ident| $parse:expr, |$changed:ident, $parsed:ident| $change:expr) => {
        #[vtable]
        impl AttributeOperations<$id> for Directory {
            type Data = Directory;

            fn show(data: &Directory, page: &mut [u8; PAGE_SIZE]) -> Result<usize> {
                let $knobs = data.policy.knobs();
                show(page, |$out| Ok($show?))
            }

            fn store(data: &Directory, $value: &[u8]) -> Result {
                let $parsed = $parse
                    .map_err(|failure| refuse("policies", &data.policy.name, $name, failure))?;
                data.policy.change(|$changed| $change);
                Ok(())
            }
        }
    };
}

/// A knob that is one of some words.
macro_rules! choice {
    ($id:literal, $name:literal, $type:ty, $($field:ident).+) => {
        knob!($id, $name,
            show: |knobs, out| writeln!(out, "{}", knobs.$($field).+),
            store: |value| parse_word(value, <$type>::ALLOWED, <$type>::parse),
            |knobs, parsed| knobs.$($field).+ = parsed
        );
    };
}

/// A knob that is a number.
macro_rules! number {
    ($id:literal, $name:literal, $bounds:expr, $($field:ident).+) => {
        knob!($id, $name,
            show: |knobs, out| writeln!(out, "{}", knobs.$($field).+),
            store: |value| parse_number(value, $bounds),
            // Within bounds, so it fits.
            |knobs, parsed| knobs.$($field).+ = parsed as u32
        );
    };
}

choice!(3, "lock", Lock, lock);
choice!(4, "completion", Completion, moderation.completion);
choice!(9, "memory", Memory, memory);
number!(0, "lanes", knobs::LANES, lanes);
number!(
    5,
    "coalesce_usecs",
    knobs::COALESCE_USECS,
    moderation.coalesce_usecs
);
number!(
    6,
    "coalesce_count",
    knobs::COALESCE_COUNT,
    moderation.coalesce_count
);
number!(7, "busy_usecs", knobs::BUSY_USECS, moderation.busy_usecs);
number!(8, "poll_budget", knobs::POLL_BUDGET, moderation.poll_budget);
number!(10, "copy_threshold", knobs::COPY_THRESHOLD, copy_threshold);
number!(
    11,
    "mr_cache_entries",
    knobs::MR_CACHE_ENTRIES,
    mr_cache_entries
);
number!(12, "batch", knobs::BATCH, batch);
number!(13, "signal_every", knobs::SIGNAL_EVERY, signal_every);

knob!(1, "cpus",
    show: |knobs, out| match knobs.cpus.is_empty() {
        true => writeln!(out, "all"),
        false => writeln!(out, "{}", knobs.cpus),
    },
    store: |value| parse_cpus(value),
    |knobs, parsed| knobs.cpus = parsed
);

/// A list of CPUs that are online, or the word for all.
fn parse_cpus(value: &[u8]) -> Outcome<CpuList> {
    let cpus = parse(value, fmt!("{}", knobs::CPUS), |text| match text {
        "all" => Ok(CpuList::EMPTY),
        text => CpuList::parse(text),
    })?;
    match cpus.iter().find(|cpu| !cpu::is_online(*cpu)) {
        None => Ok(cpus),
        Some(cpu) => Err(Failure::new(
            ENODEV,
            fmt!("CPU {cpu} is not online; allowed: {}", knobs::CPUS),
        )),
    }
}

knob!(2, "numa",
    show: |knobs, out| writeln!(out, "{}", knobs.numa),
    store: |value| parse_numa(value),
    |knobs, parsed| knobs.numa = parsed
);

/// A node that is online, or the word for none in particular.
fn parse_numa(value: &[u8]) -> Outcome<Numa> {
    let numa = parse(value, fmt!("{}", Numa::ALLOWED), Numa::parse)?;
    match numa {
        Numa::Node(node) if !cpu::is_node_online(node) => Err(Failure::new(
            ENODEV,
            fmt!("node {node} is not online; allowed: {}", Numa::ALLOWED),
        )),
        numa => Ok(numa),
    }
}

#[vtable]
impl AttributeOperations<14> for Directory {
    type Data = Directory;

    fn show(data: &Directory, page: &mut [u8; PAGE_SIZE]) -> Result<usize> {
        show(page, |out| Ok(writeln!(out, "{}", data.policy.users())?))
    }
}
