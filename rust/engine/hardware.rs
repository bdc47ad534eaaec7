// SPDX-License-Identifier: GPL-2.0

//! Completion moderation by the device, for the CQs of one poller: what [`super::setting`] decides
//! is done here.
//!
//! Softirq reports its turns ([`Hardware::turn`]), of which DIM learns. When DIM changes its mind, a
//! CQ is added, or a knob is turned, the CQs are told in process context: that may sleep, so no lock
//! of the turn is held, but a mutex of this object. A device that refuses once is left alone after
//! that, its CQs put back as far as it lets them, and the poller itself holds back instead.
//!
//! # Lifetime
//!
//! The CQs belong to this object as much as to the turn, until the poller's last seat takes them
//! away ([`Hardware::clear`]), which waits for one who tells them. So no CQ goes while it is told,
//! and none ends on DIM's work, which the end of the poller waits for.

use super::{
    knobs::Moderation as Rules,
    moderation::Moderator,
    policy::Policy,
    setting::{Plan, Rounds, Setting, Totals},
    stats::PollerStats,
};
use crate::{
    kapi::{
        dim::{Applies, Dim},
        time::now_ns,
    },
    verbs::{Cq, Device},
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

struct State {
    plan: Plan,
    cqs: KVec<Arc<Cq>>,
}

#[pin_data]
struct Inner {
    policy: Arc<Policy>,
    stats: Arc<PollerStats>,
    /// The device refused.
    failed: Atomic<bool>,
    #[pin]
    state: Mutex<State>,
}

/// A poller's share in what its device does.
#[pin_data]
pub(super) struct Hardware {
    /// The device can moderate.
    supported: bool,
    #[pin]
    dim: Dim<Inner>,
}

impl Hardware {
    /// For CQs of `device`, none of which is there yet.
    pub(super) fn new(
        device: &Device,
        policy: Arc<Policy>,
        stats: Arc<PollerStats>,
    ) -> impl PinInit<Self, Error> {
        let limits = device.caps().cq_moderation;
        let most = limits.map_or(Setting::NONE, |limits| Setting {
            count: limits.count,
            usecs: limits.usecs,
        });
        let inner = try_pin_init!(Inner {
            policy,
            stats,
            failed: Atomic::new(false),
            state <- new_mutex!(State {
                plan: Plan::new(most),
                cqs: KVec::new(),
            }),
        });
        try_pin_init!(Self {
            supported: limits.is_some(),
            dim <- Dim::new(inner),
        })
    }

    /// What the turn keeps, if the device can moderate.
    pub(super) fn rounds(&self) -> Option<Rounds> {
        self.supported.then(|| Rounds::new(now_ns()))
    }

    /// Adds a CQ, which was just made, and sets it as the others are. Sleeps.
    pub(super) fn add(&self, cq: &Arc<Cq>) -> Result {
        if !self.supported {
            return Ok(());
        }
        let mut state = self.dim.state.lock();
        let at = state.cqs.len();
        state.cqs.push(cq.clone(), GFP_KERNEL)?;
        let rules = self.dim.policy.moderation();
        // Either all have to be told something new, or this one what the others know.
        match state.plan.next(&rules, self.dim.profile()) {
            Some(setting) => self.dim.set(&mut state, 0, setting),
            None if state.plan.now() != Setting::NONE => {
                let setting = state.plan.now();
                self.dim.set(&mut state, at, setting);
            }
            None => {}
        }
        Ok(())
    }

    /// Gives the CQs up; none is told anything after this. Sleeps.
    pub(super) fn clear(&self) -> KVec<Arc<Cq>> {
        core::mem::take(&mut self.dim.state.lock().cqs)
    }

    /// A knob was turned. Any context.
    pub(super) fn rules_changed(&self) {
        if self.supported {
            self.dim.kick();
        }
    }

    /// Softirq, which has the turn, has found what there was for now, on a device that can moderate.
    pub(super) fn turn(
        &self,
        rounds: &mut Option<Rounds>,
        moderator: &mut Moderator,
        rules: &Rules,
    ) {
        if self.dim.failed.load(Relaxed) {
            moderator.set_by_device(false);
            *rounds = None;
            return;
        }
        let totals = Totals {
            events: self.dim.stats.cq_events.get(),
            completions: moderator.completions(),
            spins: moderator.spins(),
        };
        let sample = rounds
            .as_mut()
            .and_then(|r| r.turn(rules, totals, now_ns()));
        if let Some(sample) = sample {
            self.dim.sample(sample.completions, sample.anew);
        }
    }
}

impl Inner {
    /// Tells the CQs from the `from`th on.
    fn set(&self, state: &mut State, from: usize, setting: Setting) {
        let cqs = state.cqs.get(from..).unwrap_or(&[]);
        for cq in cqs {
            // Its CQs soon go.
            if cq.device().is_gone() {
                return;
            }
            match cq.set_moderation(setting.count, setting.usecs) {
                Ok(()) => self.stats.moderations.add(1),
                Err(e) => {
                    self.stats.moderation_failures.add(1);
                    kernel::pr_warn_once!(
                        "{}: holding back events for {} completions or {} us failed with error {}: \
                         that is not asked of it any more\n",
                        cq.device().name().as_str(),
                        setting.count,
                        setting.usecs,
                        e.to_errno()
                    );
                    self.give_up(state);
                    return;
                }
            }
        }
    }

    fn give_up(&self, state: &mut State) {
        for cq in &state.cqs {
            // Whatever it says: nothing is left to be done.
            let _ = cq.set_moderation(Setting::NONE.count, Setting::NONE.usecs);
        }
        state.plan.give_up();
        self.failed.store(true, Relaxed);
    }
}

impl Applies for Inner {
    fn apply(&self, profile: u32) {
        let mut state = self.state.lock();
        if let Some(setting) = state.plan.next(&self.policy.moderation(), profile) {
            self.set(&mut state, 0, setting);
        }
    }
}
