// SPDX-License-Identifier: GPL-2.0

//! The memory of operations: how a lane gets at the pages of a caller, by the policy's `memory`.
//!
//! Each operation takes what it needs ([`Memory::take`]), names it in its chain of work requests
//! ([`Held::begin`], [`Held::sge`], [`Held::remote`], [`Held::end`]), and gives it back when the
//! chain is done ([`Memory::give_back`]):
//!
//! ```text
//!          take                   the chain                               give back
//! copy     a place in the pool    [operation]                             copy to the pages
//! fast     a region, mapped       [REG_MR | READ | LOCAL_INV]             unmap
//! cached   hit: an entry          [operation]                             put
//!          miss: a region, mapped [(LOCAL_INV old) | REG_MR | operation]  put, supply old
//! ```
//!
//! Payloads go into the pages ([`In`]: READ) or out of them ([`Out`]: SEND and WRITE), which is
//! chosen by type. On the way out `copy` copies before the operation, and regions need no right but
//! that our own HCA reads. And `fast` has its LOCAL_INV not in the chain but in one of its own, when
//! the operation is known to be done: an HCA that has to send a packet again reads the memory again,
//! and a work request can only be told to wait for READs and atomics before it ([`SendWr::fence`]).
//! A device whose LOCAL_INV waits for all before it has it in the chain.
//!
//! `auto` is `copy` up to `copy_threshold`, else `fast`. What a peer can reach in each mode is told
//! in [`super::mr_cache`]. `register` and `fast_waited` are not here but in [`super::naive`].
//!
//! All memory is allocated when the lane is made. Nothing here sleeps afterwards.

use super::{
    knobs::{self, Knobs},
    shard::{Entry, Evicted, Reserved, Rights, Shard, Shared},
    stats::LaneStats,
};
use crate::{
    kapi::trace,
    verbs::{
        caps::Caps, mr::Revocation, wc::Done, Access, Buffer, Direction, Mapped, MappedPages,
        Members, Mr, PageList, PageRefs, Pd, Qp, RegisteredMr, Registration, RemoteAddr, SendWr,
        SgTable, Sge, WcStatus,
    },
};
use core::marker::PhantomData;
use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};

/// The longest payload that is copied, bytes: copying happens with the lane's lock held.
pub(crate) const LONGEST_COPY: usize = knobs::COPY_THRESHOLD.max as usize;

/// Pages of a caller, of which the engine can take references of its own.
pub(crate) trait Source: PageList {
    /// Adds references to the pages of the first `len` bytes.
    fn add_to(&self, refs: &mut PageRefs, len: usize) -> Result;
}

impl Source for Arc<Buffer> {
    fn add_to(&self, refs: &mut PageRefs, len: usize) -> Result {
        refs.add(self, 0..len)
    }
}

/// Which way payloads go between a caller's pages and the network. A type, so that neither way
/// costs the other a branch.
pub(crate) trait Flow: Send + Unpin + 'static {
    /// What is done with a payload.
    type Verb: Copy + Send + 'static;

    /// They go into the pages.
    const IN: bool;
    /// The mapping of the pages.
    const DIRECTION: Direction;

    /// Rights on regions: what the operation needs itself, and nothing for peers but what READs on
    /// such a device cannot do without.
    fn access(caps: &Caps) -> Access;

    /// Makes the operation of a work request.
    fn build(verb: Self::Verb, wr: &mut SendWr<'_, '_>) -> Result;
}

/// Into the pages: READ from there.
pub(crate) enum In {}

impl Flow for In {
    type Verb = RemoteAddr;

    const IN: bool = true;
    const DIRECTION: Direction = Direction::FromDevice;

    fn access(caps: &Caps) -> Access {
        caps.read_sink
    }

    fn build(from: RemoteAddr, wr: &mut SendWr<'_, '_>) -> Result {
        wr.read(from)
    }
}

/// Out of the pages.
pub(crate) enum Out {}

/// What goes [`Out`].
#[derive(Clone, Copy)]
pub(crate) enum Outgoing {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm(u32),
    /// RDMA WRITE to there.
    Write(RemoteAddr),
    /// The same with immediate data.
    WriteImm(RemoteAddr, u32),
}

impl Flow for Out {
    type Verb = Outgoing;

    const IN: bool = false;
    const DIRECTION: Direction = Direction::ToDevice;

    fn access(_caps: &Caps) -> Access {
        Access::LOCAL_READ
    }

    fn build(verb: Outgoing, wr: &mut SendWr<'_, '_>) -> Result {
        match verb {
            Outgoing::Send => wr.send(),
            Outgoing::SendImm(imm) => wr.send_imm(imm),
            Outgoing::Write(to) => wr.write(to),
            Outgoing::WriteImm(to, imm) => wr.write_imm(to, imm),
        }
    }
}

/// A place for one payload in memory that stays mapped.
pub(crate) struct Place {
    memory: Arc<Mapped>,
    base: usize,
}

impl Place {
    /// Makes `count` places of `len` bytes. Sleeps.
    fn allocate(pd: &Arc<Pd>, count: u32, len: usize, node: Option<i32>) -> Result<KVec<Place>> {
        let stride = len.next_multiple_of(64);
        let each = (Buffer::MAX / 4 / stride).max(1);
        let mut places = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        while places.len() < count as usize {
            let n = each.min(count as usize - places.len());
            let buffer = Buffer::new(n * stride, node)?;
            let memory = Mapped::new(pd, buffer, Direction::Bidirectional)?;
            let memory = Arc::new(memory, GFP_KERNEL)?;
            for i in 0..n {
                let memory = memory.clone();
                let base = i * stride;
                places.push(Place { memory, base }, GFP_KERNEL)?;
            }
        }
        Ok(places)
    }
}

/// What an operation has of memory while it is under way.
pub(crate) enum Held<P: Source> {
    /// A place in the pool, and the pages that it is copied to or from.
    Copy(Place, P),
    /// A region for this operation alone.
    Fast(Registration<MappedPages<P>>),
    /// The same, when the operation is done and the region is to be invalidated.
    Ending(Registration<MappedPages<P>>),
    /// An entry of the cache.
    Cached {
        /// Which one.
        entry: Entry,
        /// Another that is invalidated by the way.
        evicted: Option<Evicted>,
        /// The caller's.
        pages: P,
    },
}

impl<P: Source> Held<P> {
    /// Adds what has to come before the operation. `behind_writes`: there are others before it that
    /// were not READs, and that no LOCAL_INV stands behind.
    pub(crate) fn begin<'t>(&'t self, behind_writes: bool, chain: &mut Members<'_, 't>) -> Result {
        match self {
            Held::Copy(..) | Held::Ending(_) => Ok(()),
            Held::Fast(registration) => chain.wr(|wr| wr.reg_mr(registration)),
            Held::Cached { entry, evicted, .. } => {
                if let Some(old) = evicted {
                    let old = old.registration()?;
                    chain.wr(|wr| wr.local_inv(old))?;
                }
                if entry.is_miss() {
                    if behind_writes && evicted.is_none() {
                        chain.settle()?;
                    }
                    let new = entry.registration()?;
                    chain.wr(|wr| wr.reg_mr(new))?;
                }
                Ok(())
            }
        }
    }

    /// The first `len` bytes as the local memory of a work request.
    pub(crate) fn sge(&self, len: usize) -> Result<Sge<'_>> {
        match self {
            Held::Copy(place, _) => place.memory.sge(place.base..place.base + len),
            Held::Fast(registration) | Held::Ending(registration) => registration.sge(0..len),
            Held::Cached { entry, .. } => entry.registration()?.sge(0..len),
        }
    }

    /// Whether it has a region of its own, which is to be invalidated.
    pub(crate) fn is_fast(&self) -> bool {
        matches!(self, Held::Fast(_))
    }

    /// Adds the invalidation behind the operation. `last` makes it the end of the chain.
    pub(crate) fn end<'t>(
        &'t self,
        chain: &mut Members<'_, 't>,
        last: impl FnOnce(&mut SendWr<'_, 't>),
    ) -> Result {
        match self {
            Held::Fast(registration) => chain.wr(|wr| {
                last(wr);
                wr.fence();
                wr.local_inv(registration)
            }),
            _ => Ok(()),
        }
    }
}

/// What cannot be taken apart where a lane's lock is held: its end sleeps.
#[allow(dead_code)] // They are only dropped.
pub(crate) enum Remains<P: Source> {
    /// A region of `fast`.
    Fast(Registration<MappedPages<P>>),
    /// A registration of the cache.
    Cached(Arc<Shared>),
    /// A region of `register`.
    Registered(RegisteredMr<MappedPages<P>>),
    /// The same, invalidated, and what mapped it.
    Region(Mr, SgTable),
}

/// A lane's memory.
pub(crate) struct Memory<P: Source, F: Flow = In> {
    /// Payloads up to this are copied, bytes.
    copy_up_to: usize,
    pool: KVec<Place>,
    regions: KVec<(Mr, SgTable)>,
    cache: Option<Shard>,
    /// What an error has left. Has room for all regions that there are but those of the cache.
    remains: KVec<Remains<P>>,
    /// Of [`Out`]: the device's LOCAL_INV waits for all that is before it.
    inv_waits: bool,
    /// Rights on regions.
    access: Access,
    _flow: PhantomData<F>,
}

/// Payloads up to how many bytes are copied.
fn copy_up_to(knobs: &Knobs) -> usize {
    match knobs.memory {
        knobs::Memory::Copy => LONGEST_COPY,
        knobs::Memory::Auto => (knobs.copy_threshold as usize).min(LONGEST_COPY),
        _ => 0,
    }
}

/// What a lane's memory is for.
pub(crate) struct Need {
    /// Operations at a time.
    pub(crate) depth: u32,
    /// Longest payload, bytes; it starts at a page.
    pub(crate) len: usize,
    /// Lanes that share what `mr_cache_entries` allows.
    pub(crate) lanes: u32,
    /// Where memory is to be.
    pub(crate) node: Option<i32>,
}

impl<P: Source, F: Flow> Memory<P, F> {
    /// Memory for a lane of a connection in `pd`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the device cannot register; `EINVAL` for more than it registers at once;
    /// `ENOSPC` if the lane's share of the cache has not two entries for each operation at a time;
    /// `ENFILE` if other caches have so much of the device that not so many regions are left;
    /// `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, knobs: &Knobs, need: &Need) -> Result<Self> {
        let copy_up_to = copy_up_to(knobs);
        let mut memory = Self {
            copy_up_to,
            pool: KVec::new(),
            regions: KVec::new(),
            cache: None,
            remains: KVec::new(),
            inv_waits: pd.device().caps().local_inv_waits,
            access: F::access(pd.device().caps()),
            _flow: PhantomData,
        };
        let pages = need.len.div_ceil(PAGE_SIZE);
        if need.len <= copy_up_to {
            memory.pool = Place::allocate(pd, need.depth, need.len, need.node)?;
        } else if knobs.memory == knobs::Memory::Cached {
            let wanted = knobs.mr_cache_entries;
            let reserved = Reserved::share(pd.device(), wanted, need.lanes, need.depth)?;
            memory.cache = Some(Shard::new(pd, reserved, pages)?);
        } else {
            memory.regions = KVec::with_capacity(need.depth as usize, GFP_KERNEL)?;
            memory.remains = KVec::with_capacity(need.depth as usize, GFP_KERNEL)?;
            for _ in 0..need.depth {
                let region = (Mr::new(pd, need.len)?, SgTable::new(pd, pages)?);
                memory.regions.push(region, GFP_KERNEL)?;
            }
        }
        Ok(memory)
    }

    /// Whether the LOCAL_INV of `fast` stands in the chain.
    fn ends_in_chain(&self) -> bool {
        F::IN || self.inv_waits
    }

    /// Takes what an operation needs to get at the first `len` bytes of `pages`.
    ///
    /// # Errors
    ///
    /// The pages come back. `EAGAIN`: not before another operation has given something back.
    pub(crate) fn take(
        &mut self,
        pages: P,
        len: usize,
        stats: &LaneStats,
    ) -> core::result::Result<Held<P>, (Error, P)> {
        if len <= self.copy_up_to {
            let Some(place) = self.pool.pop() else {
                return Err((EAGAIN, pages));
            };
            if !F::IN {
                stats.copies.add(1);
                let copied = place.memory.copy_from_pages(place.base, &pages, 0..len);
                if let Err(e) = copied {
                    let _ = self.pool.push_within_capacity(place);
                    return Err((e, pages));
                }
            }
            return Ok(Held::Copy(place, pages));
        }
        match self.cache.is_some() {
            true => self.take_cached(pages, len, stats),
            false => self.take_fast(pages, len, stats),
        }
    }

    fn take_fast(
        &mut self,
        pages: P,
        len: usize,
        stats: &LaneStats,
    ) -> core::result::Result<Held<P>, (Error, P)> {
        let Some((mr, table)) = self.regions.pop() else {
            return Err((EAGAIN, pages));
        };
        let mapped = match table.map(pages, 0..len, F::DIRECTION) {
            Ok(mapped) => mapped,
            Err((e, table, pages)) => {
                let _ = self.regions.push_within_capacity((mr, table));
                return Err((e, pages));
            }
        };
        match mr.try_register(mapped, self.access) {
            Ok(registration) => {
                stats.registrations.add(1);
                trace::mr_register(registration.key(), len as u64);
                Ok(Held::Fast(registration))
            }
            Err((e, mr, mapped)) => {
                let (table, pages) = mapped.unmap();
                let _ = self.regions.push_within_capacity((mr, table));
                Err((e, pages))
            }
        }
    }

    fn take_cached(
        &mut self,
        pages: P,
        len: usize,
        stats: &LaneStats,
    ) -> core::result::Result<Held<P>, (Error, P)> {
        let Some(cache) = self.cache.as_mut() else {
            return Err((EINVAL, pages));
        };
        let rights = Rights {
            direction: F::DIRECTION,
            access: self.access,
        };
        let entry = match cache.take(&pages, len, rights, stats) {
            Ok(entry) => entry,
            Err(e) => return Err((e, pages)),
        };
        let evicted = match entry.is_miss() {
            true => cache.evict(stats),
            false => None,
        };
        Ok(Held::Cached {
            entry,
            evicted,
            pages,
        })
    }

    /// Takes back what [`Memory::take`] gave, after an operation of `len` bytes. `proof` is what the
    /// completion of its chain says of registrations; `None` after an error. Gives the caller's
    /// pages, if nothing uses them any more.
    pub(crate) fn give_back(
        &mut self,
        held: Held<P>,
        len: usize,
        proof: Option<&Revocation<'_>>,
        landed: bool,
        stats: &LaneStats,
    ) -> Option<P> {
        match held {
            Held::Copy(place, pages) => {
                if F::IN && landed {
                    stats.copies.add(1);
                    // Both have the bytes, as the operation was built.
                    let _ = place.memory.copy_to_pages(place.base, &pages, 0..len);
                }
                let _ = self.pool.push_within_capacity(place);
                Some(pages)
            }
            Held::Fast(registration) | Held::Ending(registration) => {
                let key = registration.key();
                let ended = match proof {
                    Some(proof) => registration.reclaim(proof),
                    None => Err(registration),
                };
                match ended {
                    Ok((mr, mapped)) => {
                        stats.invalidations.add(1);
                        trace::mr_invalidate(key, len as u64);
                        let (table, pages) = mapped.unmap();
                        let _ = self.regions.push_within_capacity((mr, table));
                        Some(pages)
                    }
                    Err(registration) => {
                        self.leave(Remains::Fast(registration));
                        None
                    }
                }
            }
            Held::Cached {
                entry,
                evicted,
                pages,
            } => {
                let cache = self.cache.as_mut()?;
                if landed {
                    entry.sync_for_cpu();
                }
                if entry.is_miss() {
                    cache.registered(&entry, proof);
                }
                cache.put(entry.id());
                if let Some(evicted) = evicted {
                    cache.evicted(evicted, proof, stats);
                }
                Some(pages)
            }
        }
    }

    /// Takes back what an operation had that was not posted.
    pub(crate) fn cancel(&mut self, held: Held<P>) -> Option<P> {
        match held {
            Held::Copy(place, pages) => {
                let _ = self.pool.push_within_capacity(place);
                Some(pages)
            }
            Held::Fast(registration) | Held::Ending(registration) => {
                self.leave(Remains::Fast(registration));
                None
            }
            Held::Cached {
                entry,
                evicted,
                pages,
            } => {
                let cache = self.cache.as_mut()?;
                if let Some(evicted) = evicted {
                    cache.restore(evicted);
                }
                cache.withdraw(entry);
                Some(pages)
            }
        }
    }

    fn leave(&mut self, remains: Remains<P>) {
        // There is room for each region, so this always finds some.
        let _ = self.remains.push_within_capacity(remains);
    }

    /// Takes out what has to end where that may sleep.
    pub(crate) fn remains(&mut self) -> Option<Remains<P>> {
        let cached = self.cache.as_mut().and_then(Shard::remains);
        cached.map(Remains::Cached).or_else(|| self.remains.pop())
    }
}

/// An operation on a caller's pages.
pub(crate) struct Transfer<U, F: Flow> {
    /// The caller's own.
    pub(crate) user: U,
    /// What is done.
    pub(crate) verb: F::Verb,
    /// Bytes.
    pub(crate) len: usize,
    /// Its chain asks for a completion.
    pub(crate) signaled: bool,
}

/// What a completion comes to.
pub(crate) enum Step<T, U, P> {
    /// The operation is over; with the pages, unless an error has kept them.
    Over(U, WcStatus, Option<P>),
    /// There is another work request to be pushed.
    Next(T),
}

/// How operations get at the pages of their callers: what differs between [`Memory`] and
/// [`super::naive::Waited`].
pub(crate) trait Carrier<P: Source, U: Send + 'static>:
    Sized + Send + Unpin + 'static
{
    /// Which way payloads go.
    type Flow: Flow;
    /// Token of its work requests.
    type Token: Send + 'static;
    /// What an operation needs that can only be made where that may sleep.
    type Fresh: Send;

    /// Most work requests of an operation that are posted together.
    const LONGEST: u32;

    /// Those of an operation of `len` bytes by a policy with these knobs, at most.
    fn longest(knobs: &Knobs, len: usize) -> u32;

    /// Calls `f` with the memory node and the length of each piece of memory that payloads pass
    /// through on their way to their pages, until it fails.
    fn each_piece(&self, f: &mut dyn FnMut(i32, usize) -> Result) -> Result;

    /// What an operation needs, if it can be made at once. Does not sleep.
    fn at_once() -> Option<Self::Fresh>;

    /// What an operation needs, else. Sleeps.
    fn fresh(pd: &Arc<Pd>, len: usize) -> Result<Self::Fresh>;

    /// Stages an operation. On error all comes back but what is left in [`Carrier::remains`].
    fn stage<R>(
        &mut self,
        qp: &mut Qp<Self::Token, R>,
        fresh: Self::Fresh,
        transfer: Transfer<U, Self::Flow>,
        pages: P,
        stats: &LaneStats,
    ) -> core::result::Result<(), (Error, U, Option<P>)>;

    /// A completed work request.
    fn completed(
        &mut self,
        done: Done<'_, Self::Token>,
        stats: &LaneStats,
    ) -> Step<Self::Token, U, P>;

    /// Stages what [`Step::Next`] says. An error is the end of the QP.
    fn next<R>(&mut self, qp: &mut Qp<Self::Token, R>, token: Self::Token) -> Result;

    /// Takes out what has to end where that may sleep.
    fn remains(&mut self) -> Option<Remains<P>>;
}

/// Token of the chain of an operation.
pub(crate) struct Chained<P: Source, U, F: Flow> {
    transfer: Transfer<U, F>,
    held: Held<P>,
}

impl<P: Source, U: Send + 'static, F: Flow> Carrier<P, U> for Memory<P, F> {
    type Flow = F;
    type Token = Chained<P, U, F>;
    type Fresh = ();

    /// LOCAL_INV of another, or what REG_MR waits by, that and the operation; or REG_MR, the operation
    /// and LOCAL_INV.
    const LONGEST: u32 = 3;

    fn longest(knobs: &Knobs, len: usize) -> u32 {
        match len <= copy_up_to(knobs) {
            true => 1,
            false => <Self as Carrier<P, U>>::LONGEST,
        }
    }

    fn each_piece(&self, f: &mut dyn FnMut(i32, usize) -> Result) -> Result {
        // The first of its memory speaks for all in that.
        let mut firsts = self.pool.iter().filter(|place| place.base == 0);
        firsts.try_for_each(|place| f(place.memory.node(), place.memory.len()))
    }

    fn at_once() -> Option<()> {
        Some(())
    }

    fn fresh(_pd: &Arc<Pd>, _len: usize) -> Result {
        Ok(())
    }

    fn stage<R>(
        &mut self,
        qp: &mut Qp<Self::Token, R>,
        (): (),
        transfer: Transfer<U, F>,
        pages: P,
        stats: &LaneStats,
    ) -> core::result::Result<(), (Error, U, Option<P>)> {
        let held = match self.take(pages, transfer.len, stats) {
            Ok(held) => held,
            Err((e, pages)) => return Err((e, transfer.user, Some(pages))),
        };
        let ends = held.is_fast() && self.ends_in_chain();
        let token = Chained { transfer, held };
        let pushed = qp.push_chain(token, |token, chain| {
            let Chained { transfer, held } = token;
            held.begin(!F::IN, chain)?;
            chain.wr(|wr| {
                wr.sge(held.sge(transfer.len)?)?;
                if !ends && transfer.signaled {
                    wr.signaled();
                }
                F::build(transfer.verb, wr)
            })?;
            match ends {
                true => held.end(chain, |wr| {
                    if transfer.signaled {
                        wr.signaled();
                    }
                }),
                false => Ok(()),
            }
        });
        pushed.map_err(|(e, token)| {
            let pages = self.cancel(token.held);
            (e, token.transfer.user, pages)
        })
    }

    fn completed(
        &mut self,
        done: Done<'_, Self::Token>,
        stats: &LaneStats,
    ) -> Step<Self::Token, U, P> {
        let Chained { transfer, held } = done.token;
        let landed = done.status == WcStatus::Success;
        let proof = done.revocation.as_ref();
        let held = match held {
            // Known to be made, so that another chain may end it. Without the proof the QP has failed.
            Held::Fast(registration)
                if !self.ends_in_chain()
                    && landed
                    && proof.is_some_and(|proof| registration.confirm(proof)) =>
            {
                let held = Held::Ending(registration);
                return Step::Next(Chained { transfer, held });
            }
            held => held,
        };
        let pages = self.give_back(held, transfer.len, proof, landed, stats);
        Step::Over(transfer.user, done.status, pages)
    }

    fn next<R>(&mut self, qp: &mut Qp<Self::Token, R>, token: Self::Token) -> Result {
        // As its operation was: so the last of those that a completion has ended asks for one.
        let pushed = qp.push(token, |token, wr| {
            let Held::Ending(registration) = &token.held else {
                return Err(EINVAL);
            };
            if token.transfer.signaled {
                wr.signaled();
            }
            wr.local_inv(registration)
        });
        pushed.map_err(|(e, token)| {
            let _ = self.cancel(token.held);
            e
        })
    }

    fn remains(&mut self) -> Option<Remains<P>> {
        Memory::remains(self)
    }
}
