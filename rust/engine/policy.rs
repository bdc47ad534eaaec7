// SPDX-License-Identifier: GPL-2.0

//! A policy: a named set of knobs, and who uses it.
//!
//! Whoever runs by a policy holds an [`InUse`] of it until the last of its connections is gone;
//! as long as there is one, the policy's directory cannot be removed.

use super::{
    knobs::{Completion, Knobs, Moderation},
    poller::Poller,
};
use crate::kapi::{configfs::Dependency, cpu};
use core::ops::Deref;
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// What hot paths read: [`Moderation`], a word each. Written seldom, so that each CPU has a copy of
/// the line. One word may be new while another is still old, which every combination allows.
#[repr(align(64))]
struct Live {
    completion: Atomic<u32>,
    coalesce_usecs: Atomic<u32>,
    coalesce_count: Atomic<u32>,
    busy_usecs: Atomic<u32>,
    poll_budget: Atomic<u32>,
}

impl Live {
    fn new(m: &Moderation) -> Self {
        Self {
            completion: Atomic::new(u32::from(m.completion.to_wire())),
            coalesce_usecs: Atomic::new(m.coalesce_usecs),
            coalesce_count: Atomic::new(m.coalesce_count),
            busy_usecs: Atomic::new(m.busy_usecs),
            poll_budget: Atomic::new(m.poll_budget),
        }
    }

    fn set(&self, m: &Moderation) {
        self.completion
            .store(u32::from(m.completion.to_wire()), Relaxed);
        self.coalesce_usecs.store(m.coalesce_usecs, Relaxed);
        self.coalesce_count.store(m.coalesce_count, Relaxed);
        self.busy_usecs.store(m.busy_usecs, Relaxed);
        self.poll_budget.store(m.poll_budget, Relaxed);
    }

    fn completion(&self) -> Completion {
        // Always the number of one: only `set` stores it.
        let number = self.completion.load(Relaxed) as u8;
        Completion::from_wire(number).unwrap_or(Completion::Interrupt)
    }
}

/// A policy.
#[pin_data]
pub(crate) struct Policy {
    live: Live,
    /// Its name in configfs.
    pub(crate) name: CString,
    #[pin]
    knobs: Mutex<Knobs>,
    users: Atomic<u32>,
    /// Those of its connections. See [`super::poller`].
    #[pin]
    pub(super) pollers: Mutex<KVec<Arc<Poller>>>,
}

impl Policy {
    /// A policy that nobody uses. Sleeps.
    pub(crate) fn new(name: CString, knobs: Knobs) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                live: Live::new(&knobs.moderation),
                name,
                knobs <- new_mutex!(knobs),
                users: Atomic::new(0),
                pollers <- new_mutex!(KVec::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// All knobs as they are now: for a connection to take when it is made. Sleeps.
    pub(crate) fn knobs(&self) -> Knobs {
        *self.knobs.lock()
    }

    /// Turns knobs. Sleeps.
    pub(crate) fn change(&self, f: impl FnOnce(&mut Knobs)) {
        let mut knobs = self.knobs.lock();
        f(&mut knobs);
        self.live.set(&knobs.moderation);
        drop(knobs);
        for poller in self.pollers.lock().iter() {
            poller.rules_changed();
        }
    }

    /// How completions are waited for, as of now. Any context.
    pub(crate) fn completion(&self) -> Completion {
        self.live.completion()
    }

    /// The knobs that take effect at once, as of now. Any context.
    pub(crate) fn moderation(&self) -> Moderation {
        Moderation {
            completion: self.live.completion(),
            coalesce_usecs: self.live.coalesce_usecs.load(Relaxed),
            coalesce_count: self.live.coalesce_count.load(Relaxed),
            busy_usecs: self.live.busy_usecs.load(Relaxed),
            poll_budget: self.live.poll_budget.load(Relaxed),
        }
    }

    /// How many [`InUse`] there are.
    pub(crate) fn users(&self) -> u32 {
        self.users.load(Relaxed)
    }
}

/// A policy that somebody runs by: it can be changed, but not removed. Dropping it may sleep.
pub(crate) struct InUse {
    policy: Arc<Policy>,
    // Keeps the directory.
    _dependency: Dependency,
}

impl InUse {
    /// Uses `policy`, whose directory is what `dependency` keeps.
    pub(crate) fn new(policy: Arc<Policy>, dependency: Dependency) -> Self {
        policy.users.add(1, Relaxed);
        Self {
            policy,
            _dependency: dependency,
        }
    }

    /// The policy, for those who end before this does.
    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }
}

impl Deref for InUse {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.policy
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.policy.users.fetch_sub(1, Relaxed);
    }
}

/// The CPUs of a policy with these knobs that are online now. Sleeps.
pub(crate) fn online_cpus(knobs: &Knobs) -> Result<KVec<u32>> {
    let mut cpus = KVec::new();
    for cpu in 0..cpu::possible() {
        let wanted = knobs.cpus.is_empty() || knobs.cpus.contains(cpu);
        if wanted && cpu::is_online(cpu) {
            cpus.push(cpu, GFP_KERNEL)?;
        }
    }
    Ok(cpus)
}

/// The policies that there are.
#[pin_data]
pub(crate) struct Registry {
    #[pin]
    policies: Mutex<KVec<Arc<Policy>>>,
}

impl Registry {
    /// Without any policy.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { policies <- new_mutex!(KVec::new()) }),
            GFP_KERNEL,
        )
    }

    /// Adds a policy. Sleeps.
    pub(crate) fn add(&self, policy: Arc<Policy>) -> Result {
        Ok(self.policies.lock().push(policy, GFP_KERNEL)?)
    }

    /// Takes a policy out. Sleeps.
    pub(crate) fn remove(&self, policy: &Arc<Policy>) {
        let mut policies = self.policies.lock();
        let at = policies.iter().position(|p| Arc::ptr_eq(p, policy));
        let removed = at.and_then(|at| policies.remove(at).ok());
        drop(policies);
        drop(removed);
    }

    /// The policy of that name. Where one is just going and another has come, it is the one that
    /// came. Sleeps.
    pub(crate) fn find(&self, name: &CStr) -> Option<Arc<Policy>> {
        let policies = self.policies.lock();
        let found = policies.iter().rev().find(|policy| &*policy.name == name);
        found.cloned()
    }
}
