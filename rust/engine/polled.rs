// SPDX-License-Identifier: GPL-2.0

//! A CQ without a poller: nobody looks at it but who waits for what is on it.
//!
//! It is never armed, so there are no events. It belongs to one lane; both come and go in a place
//! that stays, so that who looks needs no reference to what may end meanwhile.

use super::{
    poller::{Takes, CHUNK},
    turns::Failure,
};
use crate::{
    kapi::time::now_ns,
    verbs::{cq, qp::filled, Cq, Device, Wc},
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{Arc, SpinLock},
};

/// What is in the place.
struct Turn {
    cq: Arc<Cq>,
    lane: Arc<dyn Takes>,
    failure: Arc<Told>,
    /// The lane knows of the failure.
    told: bool,
    wcs: KVVec<Wc>,
}

/// Has the CQ's failure noted.
struct Told(Failure);

impl cq::Handler for Told {
    /// It is not armed.
    fn kick(&self) {}

    fn failed(&self) {
        self.0.note();
    }
}

/// A CQ that is not in its place yet.
pub(crate) struct PolledCq {
    cq: Arc<Cq>,
    failure: Arc<Told>,
}

impl PolledCq {
    /// Makes one with room for `completions`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device has no CQ that large.
    pub(crate) fn new(device: &Arc<Device>, completions: u32) -> Result<Self> {
        let failure = Arc::new(Told(Failure::new()), GFP_KERNEL)?;
        let cq = Cq::new(device, completions, 0, failure.clone())?;
        Ok(Self { cq, failure })
    }

    /// The CQ.
    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }
}

/// The place.
#[pin_data]
pub(crate) struct Polled {
    #[pin]
    turn: SpinLock<Option<Turn>>,
}

impl Polled {
    /// An empty one.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            turn <- new_spinlock!(None),
        })
    }

    /// Puts a CQ and its lane into it. Sleeps.
    pub(crate) fn put(&self, cq: PolledCq, lane: Arc<dyn Takes>) -> Result {
        let turn = Turn {
            cq: cq.cq,
            lane,
            failure: cq.failure,
            told: false,
            wcs: filled(CHUNK as usize, || Wc::EMPTY)?,
        };
        let old = self.turn.lock().replace(turn);
        drop(old);
        Ok(())
    }

    /// Empties it: no completion is handed on any more when this returns. Sleeps.
    pub(crate) fn clear(&self) {
        let old = self.turn.lock().take();
        drop(old);
    }

    /// Looks once; returns how many completions there were. Process context; does not sleep.
    pub(crate) fn look(&self) -> u32 {
        // Somebody else looks already, and hands on whatever there is.
        let Some(mut turn) = self.turn.try_lock() else {
            return 0;
        };
        let Some(Turn {
            cq,
            lane,
            failure,
            told,
            wcs,
        }) = &mut *turn
        else {
            return 0;
        };
        let found = match cq.poll(wcs) {
            Ok(wcs) => wcs,
            Err(_) => {
                failure.0.note();
                &mut []
            }
        };
        if !found.is_empty() {
            lane.completed(found, now_ns());
        }
        let n = found.len() as u32;
        failure.0.tell(told, || lane.cq_failed());
        n
    }
}
