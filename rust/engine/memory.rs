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
//! fast     a region, mapped       [REG_MR | operation | LOCAL_INV]        unmap
//! cached   hit: an entry          [operation]                             put
//!          miss: a region, mapped [(LOCAL_INV old) | REG_MR | operation]  put, supply old
//! ```
//!
//! `auto` is `copy` up to `copy_threshold`, else `fast`. What a peer can reach in each mode is told
//! in [`super::mr_cache`]. `register` and `fast_waited` are not here but in [`super::naive`].
//!
//! All memory is allocated when the lane is made. Nothing here sleeps afterwards.

use super::{
    knobs::{self, Knobs},
    mr_cache::{Id, Key, Lookup, MrCache, Platform, Shape},
    stats::LaneStats,
};
use crate::{
    kapi::{random, trace},
    verbs::{
        mr::Revocation, qp, wc::Done, Access, Buffer, Direction, Mapped, MappedPages, Members, Mr,
        PageList, PageRefs, Pd, Qp, RegisteredMr, Registration, RemoteAddr, SendWr, SgTable, Sge,
        WcStatus,
    },
};
use core::pin::Pin;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{Arc, UniqueArc},
};

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

/// Allocations of the MR cache.
pub(crate) enum Kernel {}

impl Platform for Kernel {
    type Vec<T> = KVVec<T>;
    type Error = Error;

    fn filled<T>(len: usize, make: impl FnMut() -> T) -> Result<KVVec<T>> {
        qp::filled(len, make)
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

/// A registration that operations share.
pub(crate) struct Shared(Option<Registration<MappedPages<PageRefs>>>);

impl Shared {
    fn get(&self) -> Result<&Registration<MappedPages<PageRefs>>> {
        self.0.as_ref().ok_or(EINVAL)
    }
}

/// What a registration of the cache is made of.
pub(crate) struct Parts {
    shell: Pin<UniqueArc<Shared>>,
    mr: Mr,
    table: SgTable,
    refs: PageRefs,
}

impl Parts {
    /// For up to `pages` pages. Sleeps.
    fn new(pd: &Arc<Pd>, pages: usize) -> Result<Self> {
        Ok(Self {
            shell: UniqueArc::new(Shared(None), GFP_KERNEL)?.into(),
            mr: Mr::new(pd, pages * PAGE_SIZE)?,
            table: SgTable::new(pd, pages)?,
            refs: PageRefs::new(pages)?,
        })
    }
}

/// What an operation has of memory while it is under way.
pub(crate) enum Held<P: Source> {
    /// A place in the pool, and the pages that it is copied to.
    Copy(Place, P),
    /// A region for this operation alone.
    Fast(Registration<MappedPages<P>>),
    /// An entry of the cache.
    Cached {
        /// Which one.
        id: Id,
        /// What it is.
        shared: Arc<Shared>,
        /// It is not registered yet.
        miss: bool,
        /// Another that is invalidated by the way.
        evicted: Option<(Id, Arc<Shared>)>,
        /// The caller's.
        pages: P,
    },
}

impl<P: Source> Held<P> {
    /// Adds what has to come before the operation.
    pub(crate) fn begin<'t>(&'t self, chain: &mut Members<'_, 't>) -> Result {
        match self {
            Held::Copy(..) => Ok(()),
            Held::Fast(registration) => chain.wr(|wr| wr.reg_mr(registration)),
            Held::Cached {
                shared,
                miss,
                evicted,
                ..
            } => {
                if let Some((_, old)) = evicted {
                    let old = old.get()?;
                    chain.wr(|wr| wr.local_inv(old))?;
                }
                if *miss {
                    let new = shared.get()?;
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
            Held::Fast(registration) => registration.sge(0..len),
            Held::Cached { shared, .. } => shared.get()?.sge(0..len),
        }
    }

    /// Whether [`Held::end`] adds a work request.
    pub(crate) fn ends_in_chain(&self) -> bool {
        matches!(self, Held::Fast(_))
    }

    /// Adds what has to come behind a READ into the memory. `last` makes it the end of the chain.
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
pub(crate) enum Remains<P: Source> {
    /// A region of `fast`.
    Fast(Registration<MappedPages<P>>),
    /// A registration of the cache.
    Shared(Arc<Shared>),
    /// The same, which nobody shares.
    Cached(Registration<MappedPages<PageRefs>>),
    /// A region of `register`.
    Registered(RegisteredMr<MappedPages<P>>),
    /// The same, invalidated, and what mapped it.
    Region(Mr, SgTable),
}

/// A lane's memory.
pub(crate) struct Memory<P: Source> {
    /// Payloads up to this are copied, bytes.
    copy_up_to: usize,
    pool: KVec<Place>,
    regions: KVec<(Mr, SgTable)>,
    cache: Option<MrCache<Kernel, Parts, Arc<Shared>>>,
    /// For the page numbers of a key.
    frames: KVec<u64>,
    /// What an error has left. Has room for all regions that there are.
    remains: KVec<Remains<P>>,
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

impl<P: Source> Memory<P> {
    /// Memory for a lane of a connection in `pd`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the device cannot register; `EINVAL` for more than it registers at once;
    /// `ENOSPC` if the lane's share of the cache has not two entries for each operation at a time;
    /// `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, knobs: &Knobs, need: &Need) -> Result<Self> {
        let copy_up_to = copy_up_to(knobs);
        let mut memory = Self {
            copy_up_to,
            pool: KVec::new(),
            regions: KVec::new(),
            cache: None,
            frames: KVec::new(),
            remains: KVec::new(),
        };
        let pages = need.len.div_ceil(PAGE_SIZE);
        if need.len <= copy_up_to {
            memory.pool = Place::allocate(pd, need.depth, need.len, need.node)?;
        } else if knobs.memory == knobs::Memory::Cached {
            let regions = pd.device().caps().max_mr / 2;
            let shape = Shape::new(knobs.mr_cache_entries, regions, need.lanes, need.depth);
            // With fewer, operations would have to wait for evictions.
            let shape = shape.filter(|shape| shape.entries() >= need.depth * 2);
            let shape = shape.ok_or(ENOSPC)?;
            let mut cache = MrCache::new(shape, pages as u32, random::secret())?;
            for _ in 0..shape.entries() {
                let _ = cache.supply(Parts::new(pd, pages)?);
            }
            memory.cache = Some(cache);
            memory.remains = KVec::with_capacity(shape.entries() as usize, GFP_KERNEL)?;
            memory.frames.extend_with(pages, 0, GFP_KERNEL)?;
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

    /// Takes what an operation needs that lets data land in the first `len` bytes of `pages`.
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
            return match self.pool.pop() {
                Some(place) => Ok(Held::Copy(place, pages)),
                None => Err((EAGAIN, pages)),
            };
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
        let mapped = match table.map(pages, 0..len, Direction::FromDevice) {
            Ok(mapped) => mapped,
            Err((e, table, pages)) => {
                let _ = self.regions.push_within_capacity((mr, table));
                return Err((e, pages));
            }
        };
        match mr.try_register(mapped, Access::LOCAL_WRITE) {
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
        let n = match pages.frames(0..len, &mut self.frames) {
            Ok(n) => n,
            Err(e) => return Err((e, pages)),
        };
        let key = Key {
            pages: &self.frames[..n],
            offset: 0,
            len: len as u32,
            access: 0,
        };
        match cache.lookup(&key) {
            Lookup::Hit(id) => {
                stats.mr_hits.add(1);
                let Some(shared) = cache.value(id).cloned() else {
                    return Err((EINVAL, pages));
                };
                if let Ok(registration) = shared.get() {
                    registration.memory().sync_for_device();
                    trace::mr_hit(registration.key(), len as u64);
                }
                Ok(Held::Cached {
                    id,
                    shared,
                    miss: false,
                    evicted: None,
                    pages,
                })
            }
            Lookup::Miss => {
                stats.mr_misses.add(1);
                let Some(parts) = cache.claim() else {
                    return Err((EINVAL, pages));
                };
                let shared = match register(parts, &pages, len) {
                    Ok(shared) => shared,
                    Err((e, parts)) => {
                        let _ = cache.supply(parts);
                        return Err((e, pages));
                    }
                };
                stats.registrations.add(1);
                if let Ok(registration) = shared.get() {
                    trace::mr_miss(registration.key(), len as u64);
                    trace::mr_register(registration.key(), len as u64);
                }
                let Ok(id) = cache.insert(&key, shared.clone()) else {
                    return Err((EINVAL, pages));
                };
                let mut evicted = None;
                if cache.should_evict() {
                    if let Some((old, value)) = cache.evict_one() {
                        stats.evictions.add(1);
                        if let Ok(registration) = value.get() {
                            let bytes = registration.memory().len();
                            trace::mr_evict(registration.key(), bytes as u64);
                        }
                        evicted = Some((old, value.clone()));
                    }
                }
                Ok(Held::Cached {
                    id,
                    shared,
                    miss: true,
                    evicted,
                    pages,
                })
            }
            Lookup::Full => Err((EAGAIN, pages)),
            Lookup::Unfit => Err((EINVAL, pages)),
        }
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
                if landed {
                    stats.copies.add(1);
                    // Both have the bytes, as the operation was built.
                    let _ = place.memory.copy_to_pages(place.base, &pages, 0..len);
                }
                let _ = self.pool.push_within_capacity(place);
                Some(pages)
            }
            Held::Fast(registration) => {
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
                id,
                shared,
                miss,
                evicted,
                pages,
            } => {
                let cache = self.cache.as_mut()?;
                if landed {
                    if let Ok(registration) = shared.get() {
                        registration.memory().sync_for_cpu();
                    }
                }
                if miss {
                    let confirmed = proof.is_some_and(|proof| {
                        shared.get().is_ok_and(|shared| shared.confirm(proof))
                    });
                    cache.registered(id, confirmed);
                }
                cache.put(id);
                drop(shared);
                if let Some((old, shared)) = evicted {
                    let key = shared.get().map_or(0, Registration::key);
                    drop(shared);
                    if let Some(proof) = proof {
                        stats.invalidations.add(1);
                        trace::mr_invalidate(key, len as u64);
                        if let Some(remains) = reclaim(cache, old, proof) {
                            self.leave(Remains::Cached(remains));
                        }
                    }
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
            Held::Fast(registration) => {
                self.leave(Remains::Fast(registration));
                None
            }
            Held::Cached {
                id,
                shared,
                miss,
                evicted,
                pages,
            } => {
                let cache = self.cache.as_mut()?;
                drop(shared);
                if let Some((old, _)) = evicted {
                    cache.restore(old);
                }
                let withdrawn = match miss {
                    true => cache.withdraw(id),
                    false => {
                        cache.put(id);
                        None
                    }
                };
                if let Some(shared) = withdrawn {
                    self.leave(Remains::Shared(shared));
                }
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
        self.remains.pop()
    }
}

/// Registers the first `len` bytes of `pages`, with references of the cache's own.
fn register<P: Source>(
    mut parts: Parts,
    pages: &P,
    len: usize,
) -> core::result::Result<Arc<Shared>, (Error, Parts)> {
    parts.refs.clear();
    if let Err(e) = pages.add_to(&mut parts.refs, len) {
        return Err((e, parts));
    }
    let Parts {
        mut shell,
        mr,
        table,
        refs,
    } = parts;
    let mapped = match table.map(refs, 0..len, Direction::FromDevice) {
        Ok(mapped) => mapped,
        Err((e, table, refs)) => {
            let parts = Parts {
                shell,
                mr,
                table,
                refs,
            };
            return Err((e, parts));
        }
    };
    match mr.try_register(mapped, Access::LOCAL_WRITE) {
        Ok(registration) => {
            shell.as_mut().get_mut().0 = Some(registration);
            Ok(shell.into())
        }
        Err((e, mr, mapped)) => {
            let (table, refs) = mapped.unmap();
            let parts = Parts {
                shell,
                mr,
                table,
                refs,
            };
            Err((e, parts))
        }
    }
}

/// Makes the registration that was invalidated a free one. What cannot become one is given.
fn reclaim(
    cache: &mut MrCache<Kernel, Parts, Arc<Shared>>,
    id: Id,
    proof: &Revocation<'_>,
) -> Option<Registration<MappedPages<PageRefs>>> {
    // What is evicted was idle, so nobody else shares it.
    let mut shell = Arc::into_unique_or_drop(cache.invalidated(id)?)?;
    let registration = shell.as_mut().get_mut().0.take()?;
    let (mr, mapped) = match registration.reclaim(proof) {
        Ok(parts) => parts,
        Err(registration) => return Some(registration),
    };
    let (table, mut refs) = mapped.unmap();
    refs.clear();
    let parts = Parts {
        shell,
        mr,
        table,
        refs,
    };
    // There is a place for it: that which it had.
    let _ = cache.supply(parts);
    None
}

/// A READ into a caller's pages.
pub(crate) struct Read<U> {
    /// The caller's own.
    pub(crate) user: U,
    /// Where from.
    pub(crate) from: RemoteAddr,
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

/// How READs get at the pages that they fill: what differs between [`Memory`] and
/// [`super::naive::Waited`].
pub(crate) trait Reader<P: Source, U: Send + 'static>:
    Sized + Send + Unpin + 'static
{
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

    /// Stages a READ. On error all comes back but what is left in [`Reader::remains`].
    fn read<R>(
        &mut self,
        qp: &mut Qp<Self::Token, R>,
        fresh: Self::Fresh,
        read: Read<U>,
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

/// Token of the chain of a READ.
pub(crate) struct Chained<P: Source, U> {
    read: Read<U>,
    held: Held<P>,
}

impl<P: Source, U: Send + 'static> Reader<P, U> for Memory<P> {
    type Token = Chained<P, U>;
    type Fresh = ();

    /// LOCAL_INV of another, REG_MR, and READ; or REG_MR, READ and LOCAL_INV.
    const LONGEST: u32 = 3;

    fn longest(knobs: &Knobs, len: usize) -> u32 {
        match len <= copy_up_to(knobs) {
            true => 1,
            false => <Self as Reader<P, U>>::LONGEST,
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

    fn read<R>(
        &mut self,
        qp: &mut Qp<Self::Token, R>,
        (): (),
        read: Read<U>,
        pages: P,
        stats: &LaneStats,
    ) -> core::result::Result<(), (Error, U, Option<P>)> {
        let held = match self.take(pages, read.len, stats) {
            Ok(held) => held,
            Err((e, pages)) => return Err((e, read.user, Some(pages))),
        };
        let token = Chained { read, held };
        let pushed = qp.push_chain(token, |token, chain| {
            let Chained { read, held } = token;
            held.begin(chain)?;
            let last = !held.ends_in_chain();
            chain.wr(|wr| {
                wr.sge(held.sge(read.len)?)?;
                if last && read.signaled {
                    wr.signaled();
                }
                wr.read(read.from)
            })?;
            held.end(chain, |wr| {
                if read.signaled {
                    wr.signaled();
                }
            })
        });
        pushed.map_err(|(e, token)| {
            let pages = self.cancel(token.held);
            (e, token.read.user, pages)
        })
    }

    fn completed(
        &mut self,
        done: Done<'_, Self::Token>,
        stats: &LaneStats,
    ) -> Step<Self::Token, U, P> {
        let Chained { read, held } = done.token;
        let landed = done.status == WcStatus::Success;
        let proof = done.revocation.as_ref();
        let pages = self.give_back(held, read.len, proof, landed, stats);
        Step::Over(read.user, done.status, pages)
    }

    fn next<R>(&mut self, _qp: &mut Qp<Self::Token, R>, _token: Self::Token) -> Result {
        Err(EINVAL)
    }

    fn remains(&mut self) -> Option<Remains<P>> {
        Memory::remains(self)
    }
}
