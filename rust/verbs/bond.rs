// SPDX-License-Identifier: GPL-2.0

//! Which QP a registration is of: one at most, whoever comes first. `make unit` explores it
//! (`rust/races/bond.rs`).

use kernel::sync::atomic::{Atomic, Relaxed};

/// Which QP a registration is of.
pub(crate) struct Bond {
    /// The QP's key, with a bit more; 0 for none.
    qp: Atomic<u64>,
    /// The registration was seen to be done.
    confirmed: Atomic<bool>,
}

impl Bond {
    /// Of none yet.
    pub(crate) fn new() -> Self {
        Self {
            qp: Atomic::new(0),
            confirmed: Atomic::new(false),
        }
    }

    /// Makes it one of the QP with that key, if it is of none yet. Whether it is of that QP.
    pub(crate) fn bind(&self, qp: u32) -> bool {
        let qp = 1 << 32 | u64::from(qp);
        match self.qp.load(Relaxed) {
            0 => self.qp.cmpxchg(0, qp, Relaxed).is_ok(),
            bound => bound == qp,
        }
    }

    /// It is done, on the QP that it is of.
    pub(crate) fn confirm(&self) {
        self.confirmed.store(true, Relaxed);
    }

    /// Whether it is known to be done, on that QP.
    pub(crate) fn is_confirmed_on(&self, qp: u32) -> bool {
        self.confirmed.load(Relaxed) && self.bind(qp)
    }
}
