// SPDX-License-Identifier: GPL-2.0

//! The slow choices, which exist to be compared with: `lock=global`, `memory=register` and
//! `memory=fast_waited`. They take the places of [`super::lane::Percpu`] and
//! [`super::memory::Memory`] as types, so that the fast path has no branch for them. Nothing in here
//! is slower than the textbook.

use super::{
    knobs::Knobs,
    lane::Guard,
    memory::{Carrier, Flow, In, Need, Remains, Source, Step, Transfer},
    stats::{LaneStats, Shared},
};
use crate::{
    kapi::trace,
    verbs::{
        wc::Done, Access, MappedPages, Members, Mr, Pd, Qp, RegisteredMr, Registration, SgTable,
        WcStatus,
    },
};
use core::marker::PhantomData;
use kernel::{
    new_spinlock_irq,
    page::PAGE_SIZE,
    prelude::*,
    sync::{Arc, SpinLockIrq, SpinLockIrqGuard},
};

/// One lock for all lanes that share it.
#[pin_data]
pub(crate) struct GlobalLock {
    #[pin]
    lock: SpinLockIrq<()>,
}

impl GlobalLock {
    /// Sleeps.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { lock <- new_spinlock_irq!(()) }),
            GFP_KERNEL,
        )
    }
}

/// `lock=global`: a lane's guard that other lanes have as well.
pub(crate) struct Global(pub(crate) Arc<GlobalLock>);

impl Guard for Global {
    type Held<'a> = SpinLockIrqGuard<'a, ()>;

    fn hold(&self, waits: &Shared) -> Self::Held<'_> {
        self.0.lock.try_lock().unwrap_or_else(|| {
            waits.add(1);
            trace::waiting(|| self.0.lock.lock())
        })
    }
}

/// Registration in steps: each operation registers a region, and waits for that; does what it is
/// for, and waits; invalidates the region, and waits.
pub(crate) struct Waited<P: Source, F: Flow, const KEEPS: bool> {
    /// Regions that no operation has, if they are kept.
    regions: KVec<(Mr, SgTable)>,
    /// What operations are done with. Has room for all that there can be.
    remains: KVec<Remains<P>>,
    /// Rights on regions.
    access: Access,
    _flow: PhantomData<F>,
}

/// `memory=register`: each operation allocates a region of its own, and frees it.
pub(crate) type Register<P, F = In> = Waited<P, F, false>;
/// `memory=fast_waited`: the regions are there from the start.
pub(crate) type FastWaited<P, F = In> = Waited<P, F, true>;

impl<P: Source, F: Flow, const KEEPS: bool> Waited<P, F, KEEPS> {
    /// For a lane of a connection in `pd`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the device cannot register; `EINVAL` for more than it registers at once;
    /// `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, _knobs: &Knobs, need: &Need) -> Result<Self> {
        let mut regions = KVec::new();
        if KEEPS {
            regions = KVec::with_capacity(need.depth as usize, GFP_KERNEL)?;
            for _ in 0..need.depth {
                regions.push(region(pd, need.len)?, GFP_KERNEL)?;
            }
        }
        Ok(Self {
            regions,
            remains: KVec::with_capacity(need.depth as usize * 2, GFP_KERNEL)?,
            access: F::access(pd.device().caps()),
            _flow: PhantomData,
        })
    }

    fn leave(&mut self, remains: Remains<P>) {
        let _ = self.remains.push_within_capacity(remains);
    }

    /// A region is free again.
    fn free(&mut self, mr: Mr, table: SgTable) {
        match KEEPS {
            // There is room for each that there was at first.
            true => drop(self.regions.push_within_capacity((mr, table))),
            false => self.leave(Remains::Region(mr, table)),
        }
    }
}

/// A region for `len` bytes. Sleeps.
fn region(pd: &Arc<Pd>, len: usize) -> Result<(Mr, SgTable)> {
    let table = SgTable::new(pd, len.div_ceil(PAGE_SIZE))?;
    Ok((Mr::new(pd, len)?, table))
}

/// Token of one of the steps of an operation.
pub(crate) enum Stage<P: Source, U, F: Flow> {
    /// REG_MR.
    Register(Transfer<U, F>, Registration<MappedPages<P>>),
    /// What it is for.
    Transfer(Transfer<U, F>, RegisteredMr<MappedPages<P>>),
    /// LOCAL_INV.
    Invalidate(Transfer<U, F>, RegisteredMr<MappedPages<P>>),
}

impl<P, U, F, const KEEPS: bool> Carrier<P, U> for Waited<P, F, KEEPS>
where
    P: Source,
    U: Send + 'static,
    F: Flow,
{
    type Flow = F;
    type Token = Stage<P, U, F>;
    /// A region, unless they are kept.
    type Fresh = Option<(Mr, SgTable)>;

    /// What writes lets its REG_MR wait for what is before it.
    const LONGEST: u32 = if F::IN { 1 } else { 2 };

    fn longest(_knobs: &Knobs, _len: usize) -> u32 {
        <Self as Carrier<P, U>>::LONGEST
    }

    fn each_piece(&self, _f: &mut dyn FnMut(i32, usize) -> Result) -> Result {
        Ok(())
    }

    fn at_once() -> Option<Self::Fresh> {
        KEEPS.then_some(None)
    }

    fn fresh(pd: &Arc<Pd>, len: usize) -> Result<Self::Fresh> {
        Ok(Some(region(pd, len)?))
    }

    fn stage<R>(
        &mut self,
        qp: &mut Qp<Self::Token, R>,
        fresh: Self::Fresh,
        transfer: Transfer<U, F>,
        pages: P,
        stats: &LaneStats,
    ) -> core::result::Result<(), (Error, U, Option<P>)> {
        let Some((mr, table)) = fresh.or_else(|| self.regions.pop()) else {
            return Err((EAGAIN, transfer.user, Some(pages)));
        };
        let mapped = match table.map(pages, 0..transfer.len, F::DIRECTION) {
            Ok(mapped) => mapped,
            Err((e, table, pages)) => {
                self.free(mr, table);
                return Err((e, transfer.user, Some(pages)));
            }
        };
        let registration = match mr.try_register(mapped, self.access) {
            Ok(registration) => registration,
            Err((e, mr, mapped)) => {
                let (table, pages) = mapped.unmap();
                self.free(mr, table);
                return Err((e, transfer.user, Some(pages)));
            }
        };
        stats.registrations.add(1);
        trace::mr_register(registration.key(), transfer.len as u64);
        match qp.push_chain(Stage::Register(transfer, registration), build) {
            Ok(()) => Ok(()),
            Err((e, Stage::Register(transfer, registration))) => {
                self.leave(Remains::Fast(registration));
                Err((e, transfer.user, None))
            }
            // The token that was given comes back.
            Err((e, Stage::Transfer(transfer, _) | Stage::Invalidate(transfer, _))) => {
                Err((e, transfer.user, None))
            }
        }
    }

    fn completed(
        &mut self,
        done: Done<'_, Self::Token>,
        stats: &LaneStats,
    ) -> Step<Self::Token, U, P> {
        let status = done.status;
        let good = status == WcStatus::Success;
        match done.token {
            Stage::Register(transfer, region) if good => {
                Step::Next(Stage::Transfer(transfer, region.done()))
            }
            Stage::Transfer(transfer, region) if good => {
                Step::Next(Stage::Invalidate(transfer, region))
            }
            Stage::Invalidate(transfer, region) if good => {
                let key = region.key();
                let ended = match &done.revocation {
                    Some(proof) => region.reclaim(proof),
                    None => Err(region),
                };
                match ended {
                    Ok((mr, mapped)) => {
                        stats.invalidations.add(1);
                        trace::mr_invalidate(key, transfer.len as u64);
                        let (table, pages) = mapped.unmap();
                        self.free(mr, table);
                        Step::Over(transfer.user, status, Some(pages))
                    }
                    Err(region) => {
                        self.leave(Remains::Registered(region));
                        Step::Over(transfer.user, status, None)
                    }
                }
            }
            Stage::Register(transfer, region) => {
                self.leave(Remains::Fast(region));
                Step::Over(transfer.user, status, None)
            }
            Stage::Transfer(transfer, region) | Stage::Invalidate(transfer, region) => {
                self.leave(Remains::Registered(region));
                Step::Over(transfer.user, status, None)
            }
        }
    }

    fn next<R>(&mut self, qp: &mut Qp<Self::Token, R>, token: Self::Token) -> Result {
        qp.push_chain(token, build).map_err(|(e, token)| {
            match token {
                Stage::Register(_, region) => self.leave(Remains::Fast(region)),
                Stage::Transfer(_, region) | Stage::Invalidate(_, region) => {
                    self.leave(Remains::Registered(region));
                }
            }
            e
        })
    }

    fn remains(&mut self) -> Option<Remains<P>> {
        self.remains.pop()
    }
}

/// Builds what a stage posts; each asks for a completion.
fn build<'t, P: Source, U, F: Flow>(
    token: &'t Stage<P, U, F>,
    chain: &mut Members<'_, 't>,
) -> Result {
    // It waits for READs by itself.
    if matches!(token, Stage::Register(..)) && !F::IN {
        chain.settle()?;
    }
    chain.wr(|wr| {
        wr.signaled();
        match token {
            Stage::Register(_, region) => wr.reg_mr(region),
            Stage::Transfer(transfer, region) => {
                wr.sge(region.sge(0..transfer.len)?)?;
                F::build(transfer.verb, wr)
            }
            Stage::Invalidate(_, region) => wr.local_inv(region),
        }
    })
}
