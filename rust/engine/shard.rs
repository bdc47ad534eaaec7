// SPDX-License-Identifier: GPL-2.0

//! A lane's shard of the MR cache ([`super::mr_cache`]), with its regions and with what they cover.
//!
//! An operation [takes](Shard::take) the entry of its pages. Found, it is there to be named in work
//! requests. Else it is registered by the REG_MR that the operation has in front ([`Entry::is_miss`]),
//! of whose end the shard is [told](Shard::registered). What is found does not map its memory anew, so
//! the owner has it synchronised: before the operation that is done here, after it by
//! [`Entry::sync_for_cpu`] or [`Shard::sync_for_cpu`].
//!
//! An entry has references of its own to its pages, and their mapping, from when it is made until its
//! LOCAL_INV is known to be done, or its region was deregistered with the shard.
//!
//! All memory is allocated when the shard is made. Nothing here sleeps afterwards, but the shard's
//! end and that of what an error has left ([`Shard::remains`]).

use super::{
    memory::Source,
    mr_cache::{Id, Key, Lack, Lookup, MrCache, Platform, Shape},
    stats::LaneStats,
};
use crate::{
    kapi::{random, trace},
    verbs::{
        mr::Revocation, qp, Access, Device, Direction, MappedPages, Mr, PageRefs, Pd, Registration,
        SgTable,
    },
};
use core::pin::Pin;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{Arc, UniqueArc},
};

/// Allocations of the MR cache.
pub(crate) enum Kernel {}

impl Platform for Kernel {
    type Vec<T> = KVVec<T>;
    type Error = Error;

    fn filled<T>(len: usize, make: impl FnMut() -> T) -> Result<KVVec<T>> {
        qp::filled(len, make)
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
struct Parts {
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

    /// Of a region that covers nothing any more, and the pages that it had: lets go of them.
    fn of(shell: Pin<UniqueArc<Shared>>, mr: Mr, mapped: MappedPages<PageRefs>) -> Self {
        let (table, mut refs) = mapped.unmap();
        refs.clear();
        Self {
            shell,
            mr,
            table,
            refs,
        }
    }

    /// Registers the first `len` bytes of `pages`, with references of its own.
    fn register<P: Source>(
        mut self,
        pages: &P,
        len: usize,
        rights: Rights,
    ) -> core::result::Result<Arc<Shared>, (Error, Self)> {
        self.refs.clear();
        if let Err(e) = pages.add_to(&mut self.refs, len) {
            return Err((e, self));
        }
        let Parts {
            mut shell,
            mr,
            table,
            refs,
        } = self;
        let mapped = match table.map(refs, 0..len, rights.direction) {
            Ok(mapped) => mapped,
            Err((e, table, mut refs)) => {
                refs.clear();
                let parts = Parts {
                    shell,
                    mr,
                    table,
                    refs,
                };
                return Err((e, parts));
            }
        };
        match mr.try_register(mapped, rights.access) {
            Ok(registration) => {
                shell.as_mut().get_mut().0 = Some(registration);
                Ok(shell.into())
            }
            Err((e, mr, mapped)) => Err((e, Self::of(shell, mr, mapped))),
        }
    }
}

/// Who may do what with an entry's pages. A part of what it is found by.
#[derive(Clone, Copy)]
pub(crate) struct Rights {
    /// The mapping.
    pub(crate) direction: Direction,
    /// The rights of HCA and peers.
    pub(crate) access: Access,
}

impl Rights {
    /// A number for it, which no other has.
    fn number(self) -> u32 {
        // There are three directions, and a few bits of rights.
        self.access.bits() << 2 | self.direction as u32
    }
}

/// An entry that an operation uses.
pub(crate) struct Entry {
    id: Id,
    shared: Arc<Shared>,
    miss: bool,
}

impl Entry {
    /// Its name in the shard.
    pub(crate) fn id(&self) -> Id {
        self.id
    }

    /// Whether it is not registered yet: the operation has its REG_MR in front.
    pub(crate) fn is_miss(&self) -> bool {
        self.miss
    }

    /// For work requests that name it.
    pub(crate) fn registration(&self) -> Result<&Registration<MappedPages<PageRefs>>> {
        self.shared.get()
    }

    /// What the operation has brought is visible to the CPU.
    pub(crate) fn sync_for_cpu(&self) {
        if let Ok(registration) = self.shared.get() {
            registration.memory().sync_for_cpu();
        }
    }
}

/// An entry whose LOCAL_INV is to be posted.
pub(crate) struct Evicted {
    id: Id,
    shared: Arc<Shared>,
}

impl Evicted {
    /// For its LOCAL_INV.
    pub(crate) fn registration(&self) -> Result<&Registration<MappedPages<PageRefs>>> {
        self.shared.get()
    }
}

/// See the file's head.
pub(crate) struct Shard {
    cache: MrCache<Kernel, Parts, Arc<Shared>>,
    /// For the page numbers of a key.
    frames: KVec<u64>,
    /// What an error has left. Has room for all regions that there are.
    remains: KVec<Arc<Shared>>,
    /// Behind the regions, which go first.
    _reserved: Reserved,
}

/// Regions of a device that are set aside for a shard, until this is dropped.
pub(crate) struct Reserved {
    device: Arc<Device>,
    shape: Shape,
}

impl Reserved {
    /// For one of `lanes` lanes that share `wanted` entries, and whose operations have up to
    /// `in_flight` registrations at a time ([`Shape::reserve`]).
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the lane's share has not two entries for each of these; `ENFILE` if not so many
    /// regions of the device are left.
    pub(crate) fn share(
        device: &Arc<Device>,
        wanted: u32,
        lanes: u32,
        in_flight: u32,
    ) -> Result<Self> {
        let room = device.regions();
        let shape = Shape::reserve(
            wanted,
            room.entries(),
            lanes,
            in_flight,
            || room.left(),
            |n| room.reserve(n),
        );
        let shape = shape.map_err(|lack| match lack {
            Lack::Share => ENOSPC,
            Lack::Device => ENFILE,
        })?;
        Ok(Self {
            device: device.clone(),
            shape,
        })
    }

    /// For a shard of up to that shape, by what others have left of the device by now; `None` if that
    /// is nothing.
    pub(crate) fn within(device: &Arc<Device>, shape: Shape) -> Option<Self> {
        let room = device.regions();
        loop {
            let shape = shape.within(room.left())?;
            if room.reserve(shape.entries()) {
                return Some(Self {
                    device: device.clone(),
                    shape,
                });
            }
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.device.regions().release(self.shape.entries());
    }
}

impl Shard {
    /// A shard whose entries cover up to `pages` pages each, in `pd`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the device cannot register; `EINVAL` for more than it registers at once;
    /// `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, reserved: Reserved, pages: usize) -> Result<Self> {
        let shape = reserved.shape;
        let mut cache = MrCache::new(shape, pages as u32, random::secret())?;
        for _ in 0..shape.entries() {
            let _ = cache.supply(Parts::new(pd, pages)?);
        }
        let mut frames = KVec::new();
        frames.extend_with(pages, 0, GFP_KERNEL)?;
        Ok(Self {
            cache,
            frames,
            remains: KVec::with_capacity(shape.entries() as usize, GFP_KERNEL)?,
            _reserved: reserved,
        })
    }

    /// The entry of the first `len` bytes of `pages` with these rights, for an operation, which
    /// [puts](Self::put) it at its end.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: there is none, and no region for it before another operation has given something
    /// back. `EINVAL` for pages that are no one region. What mapping says, and what says whether the
    /// pages can be referred to.
    pub(crate) fn take<P: Source>(
        &mut self,
        pages: &P,
        len: usize,
        rights: Rights,
        stats: &LaneStats,
    ) -> Result<Entry> {
        let cache = &mut self.cache;
        let (n, offset) = pages.frames(0..len, &mut self.frames)?;
        let key = Key {
            pages: &self.frames[..n],
            offset: offset as u32,
            len: u32::try_from(len)?,
            access: rights.number(),
        };
        match cache.lookup(&key) {
            Lookup::Hit(id) => {
                stats.mr_hits.add(1);
                let shared = cache.value(id).cloned().ok_or(EINVAL)?;
                let registration = shared.get()?;
                registration.memory().sync_for_device();
                trace::mr_hit(registration.key(), len as u64);
                Ok(Entry {
                    id,
                    shared,
                    miss: false,
                })
            }
            Lookup::Miss => {
                stats.mr_misses.add(1);
                let parts = cache.claim().ok_or(EINVAL)?;
                let shared = match parts.register(pages, len, rights) {
                    Ok(shared) => shared,
                    Err((e, parts)) => {
                        let _ = cache.supply(parts);
                        return Err(e);
                    }
                };
                stats.registrations.add(1);
                let registration = shared.get()?;
                trace::mr_miss(registration.key(), len as u64);
                trace::mr_register(registration.key(), len as u64);
                // It fits, and there is the place of what was claimed.
                let id = cache.insert(&key, shared.clone()).map_err(|_| EINVAL)?;
                Ok(Entry {
                    id,
                    shared,
                    miss: true,
                })
            }
            Lookup::Full => Err(EAGAIN),
            Lookup::Unfit => Err(EINVAL),
        }
    }

    /// The chain with the REG_MR of an entry is done: `proof` is what its completion says of
    /// registrations; `None` after an error.
    pub(crate) fn registered(&mut self, entry: &Entry, proof: Option<&Revocation<'_>>) {
        let confirmed =
            proof.is_some_and(|proof| entry.shared.get().is_ok_and(|shared| shared.confirm(proof)));
        self.cache.registered(entry.id, confirmed);
    }

    /// An operation that used an entry has ended.
    pub(crate) fn put(&mut self, id: Id) {
        self.cache.put(id);
    }

    /// What an operation has brought to an entry is visible to the CPU.
    pub(crate) fn sync_for_cpu(&self, id: Id) {
        if let Some(Ok(registration)) = self.cache.value(id).map(|shared| shared.get()) {
            registration.memory().sync_for_cpu();
        }
    }

    /// Gives up an entry whose operation was not posted.
    pub(crate) fn withdraw(&mut self, entry: Entry) {
        let Entry { id, shared, miss } = entry;
        drop(shared);
        match miss {
            true => {
                if let Some(shared) = self.cache.withdraw(id) {
                    self.leave(shared);
                }
            }
            false => self.cache.put(id),
        }
    }

    /// Begins an eviction, if there are few free regions: the LOCAL_INV is to be posted now.
    pub(crate) fn evict(&mut self, stats: &LaneStats) -> Option<Evicted> {
        if !self.cache.should_evict() {
            return None;
        }
        let (id, value) = self.cache.evict_one()?;
        stats.evictions.add(1);
        let shared = value.clone();
        if let Ok(registration) = shared.get() {
            let bytes = registration.memory().len();
            trace::mr_evict(registration.key(), bytes as u64);
        }
        Some(Evicted { id, shared })
    }

    /// Undoes an eviction whose LOCAL_INV was not posted.
    pub(crate) fn restore(&mut self, evicted: Evicted) {
        self.cache.restore(evicted.id);
    }

    /// The chain with the LOCAL_INV of an eviction is done: `proof` is what its completion says of
    /// registrations; `None` after an error, with which the shard goes. Lets go of the pages.
    pub(crate) fn evicted(
        &mut self,
        evicted: Evicted,
        proof: Option<&Revocation<'_>>,
        stats: &LaneStats,
    ) {
        let Evicted { id, shared } = evicted;
        let (key, len) = shared.get().map_or((0, 0), |registration| {
            (registration.key(), registration.memory().len())
        });
        drop(shared);
        let Some(proof) = proof else {
            return;
        };
        stats.invalidations.add(1);
        trace::mr_invalidate(key, len as u64);
        // It was idle, so nobody else shares it.
        let shell = self
            .cache
            .invalidated(id)
            .and_then(Arc::into_unique_or_drop);
        let Some(mut shell) = shell else {
            return;
        };
        let Some(registration) = shell.as_mut().get_mut().0.take() else {
            return;
        };
        match registration.reclaim(proof) {
            Ok((mr, mapped)) => {
                // There is a place for it: that which it had.
                let _ = self.cache.supply(Parts::of(shell, mr, mapped));
            }
            Err(registration) => {
                shell.as_mut().get_mut().0 = Some(registration);
                self.leave(shell.into());
            }
        }
    }

    fn leave(&mut self, shared: Arc<Shared>) {
        // There is room for each region, so this always finds some.
        let _ = self.remains.push_within_capacity(shared);
    }

    /// Takes out what an error has left, to be dropped where that may sleep.
    pub(crate) fn remains(&mut self) -> Option<Arc<Shared>> {
        self.remains.pop()
    }
}
