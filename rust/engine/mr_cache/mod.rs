// SPDX-License-Identifier: GPL-2.0

//! The MR cache: registrations that stay valid and are found again by what they cover. Pure: it
//! knows no kernel type, and is tested against a model on the host.
//!
//! # What a peer can reach, and for how long
//!
//! An rkey is checked against the PD of the QP that it arrives on, and against nothing else; so
//! what one peer of a trust domain (a PD) may reach, every peer of that domain may, and nobody
//! else. Within it, by memory mode:
//!
//! * `register`: the bytes of one operation, from the registration of its region until the region
//!   is deregistered, before the operation ends for the caller.
//! * `fast`: the bytes of one operation, from its REG_MR until its invalidation has completed,
//!   before the operation ends for the caller.
//! * `cached`: the bytes of each entry, from its first use until the invalidation of its eviction
//!   has completed, or the connection has ended and its regions with it: long after the operation.
//! * `copy`: the pool of the domain, from when it is made until it is freed; never a caller's page.
//! * `auto`: as `copy` up to `copy_threshold`, as `fast` above.
//!
//! Rights are those that the operation needs, no more: what is only read by the peer cannot be
//! written by it. Keys are short and come again (the eight bits that change with each registration
//! go round), so a peer that guesses or remembers one reaches what its region covers at that
//! moment: still only memory of its own domain, and in `fast` only what an operation in flight has
//! named.
//!
//! `default` uses `auto`, because under it a peer reaches a caller's page only while the operation
//! that named it is in flight, and then it could have done the same harm with the operation itself.
//! The pool that `copy` adds holds data of that domain only; what a peer does to it after an
//! operation has ended changes no caller's memory, as the caller's data is copied out before.
//!
//! `cached` is for peers that are trusted with the caller's buffers: one that keeps an rkey can
//! read or write a page long after the operation that named it, whatever the caller uses it for by
//! then. What it can not do is reach memory that has come to belong to somebody else: an entry's
//! value holds a reference on each of its pages, so a page that the caller frees stays allocated,
//! and out of use, until the entry has gone. (That needs pages that are held by references; memory
//! from slab is none, and has no place here.) The pages that are held in this way are bounded by
//! the entries times the pages of an entry.
//!
//! A peer may end a registration by itself (SEND with invalidate). If it does so without having
//! been asked to, the entry is found all the same, what uses it fails, and the peer has lost its
//! own connection.
//!
//! # One shard for each lane
//!
//! A trust domain has one cache; each of its lanes has a shard ([`MrCache`]), under the lane's
//! lock. So no lane waits for another, and no counter is shared. Two lanes that want the same
//! buffer have a registration each.
//!
//! ```text
//!            supply            claim, map, insert              registered(ok)
//!  (vacant) --------> Free ----------------------> Registering ----------------> Valid
//!      ^               ^                               |  ^                       |  ^
//!      |               |                               |  | lookup: hit           |  | lookup: hit
//!      |               | supply                        v  | put                   v  | put
//!      |               |                              in use                     in use
//!      |               |                               |
//!      |               |              registered(!ok)  |         evict_one (not in use)
//!      |               |                               v                |
//!      |               +---- invalidated -------- (Failed)        Invalidating
//!      |                      (the value goes out)     |                |
//!      +------------------- flush: all values go out --+----------------+
//! ```
//!
//! * *Free*: a region that describes nothing.
//! * *Registering*: its REG_MR is posted. Whoever posts behind it on the same QP may use it
//!   already, so it is found; other lanes do not see it. Insert, and stage the REG_MR, before the
//!   lane's lock is given up.
//! * *Valid*: nothing has to be posted. A hit also maps nothing, so the owner of the memory makes
//!   it visible to the device, and after the operation to the CPU (`ib_dma_sync_*`).
//! * *Failed*: the REG_MR had an error. It is found no more; as the QP is in error then, the flush
//!   that comes takes it.
//! * *Invalidating*: its LOCAL_INV is posted. It is found no more, and its region is mapped again
//!   only after [`MrCache::invalidated`] has given it back, which the owner calls when the
//!   LOCAL_INV has completed.
//!
//! An entry counts the operations that use it ([`Lookup::Hit`] and [`MrCache::insert`] add one,
//! [`MrCache::put`] takes one away). Only an entry that is valid and not in use can be evicted; the
//! order is that in which their last uses ended.
//!
//! # When to evict
//!
//! A miss should cost one chain. So its region must be there already: regions are kept free ahead
//! of need. After each miss the owner looks at [`MrCache::should_evict`]: if the free regions,
//! together with those that will be when an invalidation completes, are fewer than the low
//! watermark, it evicts one and puts the LOCAL_INV in front of the chain that it posts anyway:
//!
//! ```text
//! hit:                          [operation]
//! miss, above the watermark:    [REG_MR new | operation]
//! miss, below:                  [LOCAL_INV old | REG_MR new | operation]
//! ```
//!
//! `old` and `new` are different regions: `old` comes back with the completion of the chain, and
//! serves a later miss. Each operation that misses begins one invalidation at most; so with `n`
//! registrations in use or coming back at a time, a low watermark of `n` and at least `2 * n`
//! entries, no miss ever finds all regions taken: that is what [`Shape::new`] makes, if the entries
//! suffice. The price is that of the entries only those above the watermark keep something.
//!
//! # When all are taken
//!
//! With fewer entries a lookup may say [`Lookup::Full`]: nothing is free. The operation then waits
//! in the owner's queue and is tried again when something completes on the lane or is put. It does
//! not wait for ever: what is not free is in use (and will be put), on its way (and will complete,
//! signalled or covered by a signal behind it), or idle, and then the owner evicts it at once, with
//! a chain of its own: `should_evict` says so. An operation that needs several registrations takes
//! all of them under one hold of the lane's lock, and puts back what it took when one is missing:
//! two operations never wait for each other. Registering with a region of no shard would also be
//! right, but then `mr_cache_entries` and the device's `max_mr` would bound nothing.
//!
//! # Cost
//!
//! Everything is allocated by [`MrCache::new`]. Each call takes a fixed number of steps, but for
//! the walk along one bucket (there are at least as many buckets as entries) and for comparing the
//! pages of a key; [`MrCache::flush`] visits each entry once.

use core::ops::DerefMut;

mod index;
mod list;

use index::Index;
pub(crate) use index::Key;
use list::{Links, List};

/// What the kernel and a test on the host do differently.
pub(crate) trait Platform: Sized {
    /// Memory for the tables.
    type Vec<T>: DerefMut<Target = [T]>;
    /// Why there is none.
    type Error;

    /// `len` values that `make` makes. May sleep.
    fn filled<T>(len: usize, make: impl FnMut() -> T) -> Result<Self::Vec<T>, Self::Error>;

    /// The hash of a key. Any function is right; a bad one is slow.
    fn hash(key: &Key<'_>, seed: u64) -> u32 {
        key.hash(seed)
    }
}

/// How large a shard is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    entries: u32,
    low_water: u32,
}

impl Shape {
    /// Entries of a shard, at most.
    pub(crate) const MAX: u32 = 1 << 20;

    /// For one of `lanes` lanes that share `wanted` entries (`mr_cache_entries`) and the `regions`
    /// that the device still gives. `in_flight` is how many registrations the lane's operations
    /// have at a time: depth times those of an operation, where an operation counts until it was
    /// put *and* the chain that began it was seen to complete.
    ///
    /// `None` if there is not one entry for each lane.
    pub(crate) fn new(wanted: u32, regions: u32, lanes: u32, in_flight: u32) -> Option<Self> {
        let entries = wanted.min(regions).checked_div(lanes)?.min(Self::MAX);
        (entries > 0).then(|| Self {
            entries,
            low_water: in_flight.min(entries / 2).max(1),
        })
    }

    /// Regions that the shard takes.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }
}

/// Names an entry. One that has left the cache since then is not mistaken for its successor: the
/// slot counts its registrations, to 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Id {
    slot: u32,
    generation: u32,
}

/// What a lookup finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Lookup {
    /// A registration of just that, which is now in use by one more operation.
    Hit(Id),
    /// None, but there is a free region for it ([`MrCache::claim`]).
    Miss,
    /// None, and no region is free now: see "When all are taken".
    Full,
    /// The key has no page, or more than an entry holds: nothing was counted.
    Unfit,
}

/// What a shard has counted since it was made. Every lookup of a key that fits is one of `hits`,
/// `misses` and `full`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Stats {
    /// Lookups that found a registration.
    pub(crate) hits: u64,
    /// Lookups that did not, with a region at hand.
    pub(crate) misses: u64,
    /// Lookups that did not, with no region free.
    pub(crate) full: u64,
    /// Registrations that completed.
    pub(crate) registrations: u64,
    /// Evictions that began.
    pub(crate) evictions: u64,
    /// Invalidations that completed.
    pub(crate) invalidations: u64,
}

/// Where a registration is in its life; see the picture above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Registering,
    Valid,
    Failed,
    Invalidating,
}

/// What a slot holds.
enum Content<F, V> {
    Nothing,
    Region(F),
    Registration { phase: Phase, uses: u32, value: V },
}

struct Slot<F, V> {
    /// Registrations that have left it.
    generation: u32,
    content: Content<F, V>,
}

impl<F, V> Slot<F, V> {
    /// Takes a registration out of the slot, which its id names no more.
    fn leave(&mut self) -> Option<V> {
        match core::mem::replace(&mut self.content, Content::Nothing) {
            Content::Registration { value, .. } => {
                self.generation = self.generation.wrapping_add(1);
                Some(value)
            }
            other => {
                self.content = other;
                None
            }
        }
    }
}

/// A lane's shard of a cache. `F` is a region that describes nothing, `V` one that is registered,
/// with the memory that it covers and a reference on each page of it. Nothing here sleeps but
/// [`MrCache::new`], and nothing but that allocates; the owner locks.
///
/// # Invariants
///
/// * A slot with nothing is in `vacant`, one with a region in `free`, one with a registration that
///   is valid and not in use in `idle`, the least recently used first; any other is in no list.
/// * The index finds the registrations that are registering or valid, and no others.
/// * `invalidating` counts those in that phase.
pub(crate) struct MrCache<P: Platform, F, V> {
    index: Index<P>,
    slots: P::Vec<Slot<F, V>>,
    links: P::Vec<Links>,
    vacant: List,
    free: List,
    idle: List,
    invalidating: u32,
    low_water: u32,
    stats: Stats,
}

impl<P: Platform, F, V> MrCache<P, F, V> {
    /// A shard without regions, whose entries cover up to `max_pages` pages each. `seed` is a
    /// random number. Allocates: 8 bytes for each page of each entry, and about 100 for an entry.
    pub(crate) fn new(shape: Shape, max_pages: u32, seed: u64) -> Result<Self, P::Error> {
        let entries = shape.entries as usize;
        let mut links = P::filled(entries, Links::new)?;
        let mut vacant = List::new();
        for slot in 0..shape.entries {
            vacant.push_back(&mut links, slot);
        }
        // INVARIANT: Nothing in any slot.
        Ok(Self {
            index: Index::new(shape.entries, max_pages, seed)?,
            slots: P::filled(entries, || Slot {
                generation: 0,
                content: Content::Nothing,
            })?,
            links,
            vacant,
            free: List::new(),
            idle: List::new(),
            invalidating: 0,
            low_water: shape.low_water,
            stats: Stats::default(),
        })
    }

    /// Regions that it would still take.
    pub(crate) fn room(&self) -> u32 {
        self.vacant.len()
    }

    /// Adds a region that describes nothing: a new one, or one that was invalidated.
    ///
    /// # Errors
    ///
    /// The region comes back if the shard has all that it may have.
    pub(crate) fn supply(&mut self, region: F) -> Result<(), F> {
        let Some(slot) = self.vacant.pop_front(&mut self.links) else {
            return Err(region);
        };
        self.slots[slot as usize].content = Content::Region(region);
        self.free.push_front(&mut self.links, slot);
        Ok(())
    }

    /// Looks for a registration of exactly `key`. A hit is in use until it is [put](Self::put).
    pub(crate) fn lookup(&mut self, key: &Key<'_>) -> Lookup {
        if !self.index.fits(key) {
            return Lookup::Unfit;
        }
        if let Some(slot) = self.index.find(key) {
            let entry = &mut self.slots[slot as usize];
            // What the index finds is a registration (type invariant).
            if let Content::Registration { phase, uses, .. } = &mut entry.content {
                if *uses == 0 && *phase == Phase::Valid {
                    self.idle.remove(&mut self.links, slot);
                }
                *uses += 1;
                self.stats.hits += 1;
                return Lookup::Hit(Id {
                    slot,
                    generation: entry.generation,
                });
            }
        }
        if self.free.len() > 0 {
            self.stats.misses += 1;
            Lookup::Miss
        } else {
            self.stats.full += 1;
            Lookup::Full
        }
    }

    /// Takes a free region, to be registered and [inserted](Self::insert); or to be given back with
    /// [`supply`](Self::supply) if that does not work. The one that came last goes first, as it is
    /// the likeliest to be in the CPU's caches.
    pub(crate) fn claim(&mut self) -> Option<F> {
        let slot = self.free.pop_front(&mut self.links)?;
        let entry = &mut self.slots[slot as usize];
        let content = core::mem::replace(&mut entry.content, Content::Nothing);
        self.vacant.push_front(&mut self.links, slot);
        match content {
            Content::Region(region) => Some(region),
            // Not in `free` (type invariant).
            _ => None,
        }
    }

    /// Keeps a registration, whose REG_MR is posted now, under `key`, for which a lookup has found
    /// nothing. It is in use by the operation that it was made for.
    ///
    /// # Errors
    ///
    /// The value comes back if the key does not fit, or if there is no place, as nothing was
    /// claimed.
    pub(crate) fn insert(&mut self, key: &Key<'_>, value: V) -> Result<Id, V> {
        if !self.index.fits(key) {
            return Err(value);
        }
        let Some(slot) = self.vacant.pop_front(&mut self.links) else {
            return Err(value);
        };
        self.index.add(slot, key);
        let entry = &mut self.slots[slot as usize];
        entry.content = Content::Registration {
            phase: Phase::Registering,
            uses: 1,
            value,
        };
        Ok(Id {
            slot,
            generation: entry.generation,
        })
    }

    /// Undoes an insert whose REG_MR was refused by the QP, before anybody else has found it.
    /// `None` if it is too late for that.
    pub(crate) fn withdraw(&mut self, id: Id) -> Option<V> {
        let (phase, uses) = registration(&mut self.slots, id)?;
        if *phase != Phase::Registering || *uses > 1 {
            return None;
        }
        self.index.unlink(id.slot);
        self.leave(id.slot)
    }

    /// The REG_MR of an entry has completed, well or not. What comes for another entry, or a second
    /// time, does nothing.
    pub(crate) fn registered(&mut self, id: Id, ok: bool) {
        let Some((phase, uses)) = registration(&mut self.slots, id) else {
            return;
        };
        if *phase != Phase::Registering {
            return;
        }
        if !ok {
            *phase = Phase::Failed;
            self.index.unlink(id.slot);
            return;
        }
        *phase = Phase::Valid;
        if *uses == 0 {
            self.idle.push_back(&mut self.links, id.slot);
        }
        self.stats.registrations += 1;
    }

    /// The registration of an entry, for the work requests that name it. `None` if it has left.
    pub(crate) fn value(&self, id: Id) -> Option<&V> {
        let entry = self.slots.get(id.slot as usize)?;
        match &entry.content {
            Content::Registration { value, .. } if entry.generation == id.generation => Some(value),
            _ => None,
        }
    }

    /// An operation that used the entry has ended. Does nothing when the entry has left, as after a
    /// [`flush`](Self::flush).
    pub(crate) fn put(&mut self, id: Id) {
        let Some((phase, uses)) = registration(&mut self.slots, id) else {
            return;
        };
        if *uses == 0 {
            return;
        }
        *uses -= 1;
        if *uses == 0 && *phase == Phase::Valid {
            self.idle.push_back(&mut self.links, id.slot);
        }
    }

    /// Whether fewer regions are free, or will be, than the low watermark, and one can be evicted.
    pub(crate) fn should_evict(&self) -> bool {
        self.idle.len() > 0 && self.free.len() + self.invalidating < self.low_water
    }

    /// Begins the eviction of the entry that was used least recently: it is found no more, and its
    /// LOCAL_INV is to be posted now. `None` if each entry is in use or on its way.
    pub(crate) fn evict_one(&mut self) -> Option<(Id, &V)> {
        let slot = self.idle.pop_front(&mut self.links)?;
        self.index.unlink(slot);
        let entry = &mut self.slots[slot as usize];
        let Content::Registration { phase, value, .. } = &mut entry.content else {
            // Not in `idle` (type invariant).
            return None;
        };
        *phase = Phase::Invalidating;
        self.invalidating += 1;
        self.stats.evictions += 1;
        let id = Id {
            slot,
            generation: entry.generation,
        };
        Some((id, value))
    }

    /// Undoes an eviction whose LOCAL_INV was refused by the QP, before anything else is inserted:
    /// the entry is again the one that was used least recently.
    pub(crate) fn restore(&mut self, id: Id) {
        let Some((phase, _)) = registration(&mut self.slots, id) else {
            return;
        };
        if *phase != Phase::Invalidating {
            return;
        }
        *phase = Phase::Valid;
        self.idle.push_front(&mut self.links, id.slot);
        self.index.link(id.slot);
        self.invalidating -= 1;
        self.stats.evictions -= 1;
    }

    /// The LOCAL_INV of an entry has completed well: gives the registration back, for its memory to
    /// be let go and its region to be [supplied](Self::supply). `None` for an entry that has left,
    /// or that nobody evicted.
    ///
    /// After an error of the LOCAL_INV this is not to be called: the rkey may be valid still. The
    /// QP is in error then, and the flush that comes takes the entry.
    pub(crate) fn invalidated(&mut self, id: Id) -> Option<V> {
        let (phase, _) = registration(&mut self.slots, id)?;
        if *phase != Phase::Invalidating {
            return None;
        }
        self.invalidating -= 1;
        self.stats.invalidations += 1;
        self.leave(id.slot)
    }

    /// The connection is lost and its QP completes nothing any more: hands each registration to
    /// `out`, in use or not, to be destroyed. Their rkeys may be valid until then. Free regions
    /// stay, and ids that are held say nothing from now on. `out` may sleep if the owner's lock
    /// allows it.
    pub(crate) fn flush(&mut self, mut out: impl FnMut(V)) {
        self.index.clear();
        self.idle = List::new();
        self.invalidating = 0;
        for slot in 0..self.slots.len() as u32 {
            if let Some(value) = self.leave(slot) {
                out(value);
            }
        }
    }

    /// What it has counted.
    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// Takes a registration that is in no list, and that the index does not find, out of its slot.
    fn leave(&mut self, slot: u32) -> Option<V> {
        let value = self.slots[slot as usize].leave()?;
        self.vacant.push_front(&mut self.links, slot);
        Some(value)
    }
}

/// Phase and uses of the registration that `id` names; `None` if it has left.
fn registration<F, V>(slots: &mut [Slot<F, V>], id: Id) -> Option<(&mut Phase, &mut u32)> {
    let entry = slots.get_mut(id.slot as usize)?;
    match &mut entry.content {
        Content::Registration { phase, uses, .. } if entry.generation == id.generation => {
            Some((phase, uses))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, convert::Infallible};

    /// The host. Of hashes only the lower `BITS` count, so that with few they collide.
    pub(super) struct Host<const BITS: u32>;

    impl<const BITS: u32> Platform for Host<BITS> {
        type Vec<T> = Vec<T>;
        type Error = Infallible;

        fn filled<T>(len: usize, mut make: impl FnMut() -> T) -> Result<Vec<T>, Infallible> {
            Ok((0..len).map(|_| make()).collect())
        }

        fn hash(key: &Key<'_>, seed: u64) -> u32 {
            (u64::from(key.hash(seed)) & ((1 << BITS) - 1)) as u32
        }
    }

    /// A registration: a region, and a number that no other has.
    #[derive(Debug, PartialEq, Eq)]
    struct Value {
        region: u32,
        serial: u64,
    }

    type Cache<const BITS: u32> = MrCache<Host<BITS>, u32, Value>;

    fn cache<const BITS: u32>(entries: u32, low_water: u32) -> Cache<BITS> {
        let shape = Shape { entries, low_water };
        MrCache::new(shape, 3, 0x5eed).unwrap_or_else(|e| match e {})
    }

    fn key(pages: &[u64]) -> Key<'_> {
        Key {
            pages,
            offset: 0,
            len: 4096,
            access: 1,
        }
    }

    /// Looks a page up that is not there, and inserts it.
    fn miss<const BITS: u32>(cache: &mut Cache<BITS>, page: u64) -> Id {
        assert_eq!(cache.lookup(&key(&[page])), Lookup::Miss);
        let region = cache.claim().unwrap();
        let value = Value {
            region,
            serial: page,
        };
        cache.insert(&key(&[page]), value).unwrap()
    }

    fn hit<const BITS: u32>(cache: &mut Cache<BITS>, page: u64) -> Id {
        match cache.lookup(&key(&[page])) {
            Lookup::Hit(id) => {
                assert_eq!(cache.value(id).unwrap().serial, page);
                id
            }
            other => panic!("page {page}: {other:?}"),
        }
    }

    /// `n` entries, pages 1 to `n`, valid and not in use, used in this order.
    fn filled<const BITS: u32>(n: u32) -> Cache<BITS> {
        let mut cache = cache::<BITS>(n, 1);
        for region in 0..n {
            cache.supply(region).unwrap();
        }
        for page in 1..=u64::from(n) {
            let id = miss(&mut cache, page);
            cache.registered(id, true);
            cache.put(id);
        }
        cache
    }

    #[test]
    fn shapes() {
        let shape = |wanted, regions, lanes, in_flight| {
            Shape::new(wanted, regions, lanes, in_flight).map(|s| (s.entries(), s.low_water))
        };
        assert_eq!(shape(1024, 4096, 4, 32), Some((256, 32)));
        assert_eq!(shape(1024, 100, 4, 32), Some((25, 12)));
        assert_eq!(shape(1024, u32::MAX, 1, 0), Some((1024, 1)));
        assert_eq!(shape(1, 1, 1, 8), Some((1, 1)));
        assert_eq!(shape(3, 4096, 4, 8), None);
        assert_eq!(shape(0, 4096, 4, 8), None);
        assert_eq!(shape(8, 0, 4, 8), None);
        assert_eq!(shape(8, 8, 0, 8), None);
        assert_eq!(shape(u32::MAX, u32::MAX, 1, 8), Some((Shape::MAX, 8)));
    }

    #[test]
    fn the_life_of_an_entry() {
        let mut c = cache::<32>(2, 1);
        assert_eq!(c.room(), 2);
        // No region at all yet.
        assert_eq!(c.lookup(&key(&[1])), Lookup::Full);
        assert_eq!(c.claim(), None);
        c.supply(7).unwrap();
        assert_eq!(c.room(), 1);

        let id = miss(&mut c, 1);
        assert_eq!(c.value(id).unwrap().region, 7);
        // Found by those behind it, while its REG_MR is on its way.
        let second = hit(&mut c, 1);
        assert_eq!(second, id);
        c.put(id);
        assert_eq!(c.evict_one(), None, "registering");
        c.registered(id, true);
        assert_eq!(c.evict_one(), None, "in use");
        c.put(second);

        let (old, value) = c.evict_one().unwrap();
        assert_eq!((old, value.region), (id, 7));
        assert_eq!(c.evict_one(), None, "on its way");
        // Neither found, nor is its region there for another.
        assert_eq!(c.lookup(&key(&[1])), Lookup::Full);
        assert_eq!(c.value(id).unwrap().region, 7);

        let value = c.invalidated(old).unwrap();
        assert_eq!((value.region, value.serial), (7, 1));
        assert_eq!(c.invalidated(old), None);
        assert_eq!(c.value(id), None);
        assert_eq!(c.room(), 2);
        c.supply(value.region).unwrap();
        let next = miss(&mut c, 2);
        assert_ne!(next, id);
        let stats = Stats {
            hits: 1,
            misses: 2,
            full: 2,
            registrations: 1,
            evictions: 1,
            invalidations: 1,
        };
        assert_eq!(c.stats(), stats);
    }

    #[test]
    fn an_operation_may_end_before_its_registration_is_seen() {
        let mut c = cache::<32>(1, 1);
        c.supply(0).unwrap();
        let id = miss(&mut c, 1);
        c.put(id);
        assert_eq!(c.evict_one(), None);
        c.registered(id, true);
        assert_eq!(c.evict_one().map(|(id, _)| id), Some(id));
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut c = filled::<32>(4);
        let one = hit(&mut c, 1);
        let three = hit(&mut c, 3);
        c.put(three);
        c.put(one);
        let mut order = vec![];
        while let Some((_, value)) = c.evict_one() {
            order.push(value.serial);
        }
        assert_eq!(order, [2, 4, 3, 1]);
    }

    #[test]
    fn a_use_more_or_less() {
        let mut c = filled::<32>(1);
        let id = hit(&mut c, 1);
        assert_eq!(hit(&mut c, 1), id);
        c.put(id);
        assert_eq!(c.evict_one(), None);
        c.put(id);
        // One too many is not counted.
        c.put(id);
        let (old, _) = c.evict_one().unwrap();
        c.put(old);
        assert!(c.invalidated(old).is_some());
        c.put(old);
        c.registered(old, true);
        c.registered(old, false);
        c.restore(old);
        assert_eq!(c.withdraw(old), None);
        assert_eq!(c.room(), 1);
        assert_eq!(c.evict_one(), None);
    }

    #[test]
    fn what_was_refused_by_the_queue_is_undone() {
        let mut c = filled::<0>(3);
        let before = c.stats();
        let (old, _) = c.evict_one().unwrap();
        c.restore(old);
        c.restore(old);
        assert_eq!(c.stats(), before);
        let id = hit(&mut c, 1);
        assert_eq!(id, old);
        c.put(id);
        // Used again, so it is now the last.
        let order = [2, 3, 1];
        for serial in order {
            let (id, value) = c.evict_one().unwrap();
            assert_eq!(value.serial, serial);
            let region = c.invalidated(id).unwrap().region;
            c.supply(region).unwrap();
        }
        let id = miss(&mut c, 9);
        let value = c.withdraw(id).unwrap();
        assert_eq!(value.serial, 9);
        assert_eq!(c.withdraw(id), None);
        c.supply(value.region).unwrap();
        let id = miss(&mut c, 9);
        assert_eq!(hit(&mut c, 9), id);
        assert_eq!(c.withdraw(id), None, "another one counts on it");
        c.put(id);
        c.registered(id, true);
        assert_eq!(c.withdraw(id), None, "it is there");
    }

    #[test]
    fn a_failed_registration_is_not_found() {
        let mut c = cache::<32>(1, 1);
        c.supply(0).unwrap();
        let id = miss(&mut c, 1);
        c.registered(id, false);
        c.registered(id, true);
        assert_eq!(c.lookup(&key(&[1])), Lookup::Full);
        c.put(id);
        assert_eq!(c.evict_one(), None);
        assert_eq!(c.invalidated(id), None);
        let mut out = vec![];
        c.flush(|value| out.push(value.serial));
        assert_eq!(out, [1]);
        assert_eq!((c.room(), c.stats().registrations), (1, 0));
    }

    #[test]
    fn a_flush_takes_all_registrations_and_leaves_free_regions() {
        let mut c = filled::<32>(5);
        let used = hit(&mut c, 4);
        let (coming_back, _) = c.evict_one().unwrap();
        let (gone, _) = c.evict_one().unwrap();
        let region = c.invalidated(gone).unwrap().region;
        c.supply(region).unwrap();
        let registering = miss(&mut c, 9);
        let (gone, _) = c.evict_one().unwrap();
        let region = c.invalidated(gone).unwrap().region;
        c.supply(region).unwrap();

        let mut out = vec![];
        c.flush(|value| out.push(value.serial));
        out.sort_unstable();
        assert_eq!(out, [1, 4, 5, 9]);
        c.flush(|_| panic!("a second time"));
        for id in [used, coming_back, registering] {
            assert_eq!(c.value(id), None);
            c.put(id);
            c.registered(id, true);
            assert_eq!(c.invalidated(id), None);
        }
        assert!(!c.should_evict());
        // One region is left, and four can come.
        assert_eq!(c.room(), 4);
        let _ = miss(&mut c, 4);
        assert_eq!(c.lookup(&key(&[5])), Lookup::Full);
    }

    #[test]
    fn bounds() {
        let mut c = cache::<32>(2, 1);
        c.supply(0).unwrap();
        c.supply(1).unwrap();
        assert_eq!(c.supply(2), Err(2));
        assert_eq!(c.lookup(&key(&[])), Lookup::Unfit);
        assert_eq!(c.lookup(&key(&[1, 2, 3, 4])), Lookup::Unfit);
        assert_eq!(c.stats(), Stats::default());
        let value = |serial| Value { region: 0, serial };
        assert_eq!(c.insert(&key(&[1]), value(1)), Err(value(1)));
        assert_eq!(c.claim(), Some(1));
        assert_eq!(c.insert(&key(&[]), value(1)), Err(value(1)));
        assert!(c.insert(&key(&[1, 2, 3]), value(1)).is_ok());
        let far = Id {
            slot: 2,
            generation: 0,
        };
        c.put(far);
        assert_eq!(c.value(far), None);
    }

    #[test]
    fn regions_are_kept_free_ahead_of_need() {
        let mut c = cache::<32>(6, 2);
        for region in 0..6 {
            c.supply(region).unwrap();
        }
        for page in 1..=4 {
            assert!(!c.should_evict());
            let id = miss(&mut c, page);
            c.registered(id, true);
            c.put(id);
        }
        // Two are free.
        assert!(!c.should_evict());
        let id = miss(&mut c, 5);
        assert!(c.should_evict());
        let (old, _) = c.evict_one().unwrap();
        // One is free, one will be.
        assert!(!c.should_evict());
        let region = c.invalidated(old).unwrap().region;
        c.supply(region).unwrap();
        assert!(!c.should_evict());
        c.registered(id, true);
    }

    /// Small, seeded, and good enough.
    struct Rng(u64);

    impl Rng {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % n
        }

        fn one_in(&mut self, n: usize) -> bool {
            self.below(n) == 0
        }
    }

    #[derive(Clone)]
    struct OwnedKey {
        pages: Vec<u64>,
        offset: u32,
        len: u32,
        access: u32,
    }

    impl OwnedKey {
        fn borrow(&self) -> Key<'_> {
            Key {
                pages: &self.pages,
                offset: self.offset,
                len: self.len,
                access: self.access,
            }
        }
    }

    /// `n` keys, each of which differs from an earlier one in one part only.
    fn keys(n: usize, rng: &mut Rng) -> Vec<OwnedKey> {
        let mut keys = vec![OwnedKey {
            pages: vec![1],
            offset: 0,
            len: 4096,
            access: 1,
        }];
        while keys.len() < n {
            let mut new = keys[rng.below(keys.len())].clone();
            match rng.below(6) {
                0 => new.offset = 512 * rng.below(3) as u32,
                1 => new.len = 512 * (1 + rng.below(3)) as u32,
                2 => new.access = 1 + rng.below(3) as u32,
                3 if new.pages.len() < 3 => new.pages.push(rng.below(4) as u64),
                4 if new.pages.len() > 1 => drop(new.pages.pop()),
                _ => {
                    let at = rng.below(new.pages.len());
                    new.pages[at] = rng.below(4) as u64;
                }
            }
            if keys.iter().all(|k| k.borrow() != new.borrow()) {
                keys.push(new);
            }
        }
        keys
    }

    /// A registration as the model has it.
    struct Known {
        id: Id,
        key: usize,
        phase: Phase,
        uses: u32,
        region: u32,
        serial: u64,
    }

    /// What the cache should be, in plain lists.
    #[derive(Default)]
    struct Model {
        known: Vec<Known>,
        /// Not in use, the least recently used first.
        idle: Vec<Id>,
        free: Vec<u32>,
        /// Serial numbers of values that are in the cache.
        inside: BTreeSet<u64>,
        stats: Stats,
    }

    impl Model {
        fn find(&mut self, key: usize) -> Option<&mut Known> {
            self.known
                .iter_mut()
                .find(|k| k.key == key && matches!(k.phase, Phase::Registering | Phase::Valid))
        }

        fn get(&mut self, id: Id) -> Option<&mut Known> {
            self.known.iter_mut().find(|k| k.id == id)
        }

        /// One of those in a phase.
        fn any(&self, phase: Phase, rng: &mut Rng) -> Option<Id> {
            let of: Vec<_> = self.known.iter().filter(|k| k.phase == phase).collect();
            (!of.is_empty()).then(|| of[rng.below(of.len())].id)
        }

        /// An entry leaves with `value`, for the first and last time.
        fn leaves(&mut self, id: Id, value: &Value) {
            let at = self.known.iter().position(|k| k.id == id).unwrap();
            let known = self.known.remove(at);
            assert_eq!((known.region, known.serial), (value.region, value.serial));
            assert!(self.inside.remove(&value.serial), "handed out twice");
        }
    }

    /// Random operations on a cache and on the model, which must agree after each.
    fn against_the_model<const BITS: u32>(entries: u32, low_water: u32, n_keys: usize, seed: u64) {
        let mut rng = Rng(seed);
        let keys = keys(n_keys, &mut rng);
        let mut c = cache::<BITS>(entries, low_water);
        let mut m = Model::default();
        // Operations that use an entry; and entries that have left.
        let mut using: Vec<Id> = vec![];
        let mut left: Vec<Id> = vec![];
        // Regions outside of the cache.
        let mut outside: Vec<u32> = (0..entries).collect();
        let mut serial = 0;

        for _ in 0..20_000 {
            match rng.below(100) {
                // An operation begins.
                0..=39 => {
                    let which = rng.below(keys.len());
                    let key = keys[which].borrow();
                    match c.lookup(&key) {
                        Lookup::Hit(id) => {
                            let known = m.find(which).expect("a hit that the model does not have");
                            assert_eq!(known.id, id);
                            known.uses += 1;
                            let want = (known.region, known.serial);
                            let value = c.value(id).unwrap();
                            assert_eq!((value.region, value.serial), want);
                            m.idle.retain(|idle| *idle != id);
                            m.stats.hits += 1;
                            using.push(id);
                        }
                        Lookup::Miss => {
                            assert!(m.find(which).is_none());
                            m.stats.misses += 1;
                            let region = c.claim().unwrap();
                            assert_eq!(m.free.pop(), Some(region));
                            if rng.one_in(10) {
                                // It could not be mapped.
                                c.supply(region).unwrap();
                                m.free.push(region);
                                continue;
                            }
                            serial += 1;
                            let id = c.insert(&key, Value { region, serial }).unwrap();
                            assert!(!left.contains(&id));
                            m.inside.insert(serial);
                            m.known.push(Known {
                                id,
                                key: which,
                                phase: Phase::Registering,
                                uses: 1,
                                region,
                                serial,
                            });
                            if rng.one_in(10) {
                                // The queue refused it.
                                m.leaves(id, &c.withdraw(id).unwrap());
                                left.push(id);
                                c.supply(region).unwrap();
                                m.free.push(region);
                            } else {
                                using.push(id);
                            }
                        }
                        Lookup::Full => {
                            assert!(m.find(which).is_none() && m.free.is_empty());
                            m.stats.full += 1;
                        }
                        Lookup::Unfit => panic!("it fits"),
                    }
                }
                // One ends.
                40..=64 => {
                    if using.is_empty() {
                        continue;
                    }
                    let id = using.swap_remove(rng.below(using.len()));
                    c.put(id);
                    if let Some(known) = m.get(id) {
                        known.uses -= 1;
                        if known.uses == 0 && known.phase == Phase::Valid {
                            m.idle.push(id);
                        }
                    }
                }
                // A REG_MR completes.
                65..=79 => {
                    if let Some(id) = m.any(Phase::Registering, &mut rng) {
                        let ok = !rng.one_in(50);
                        c.registered(id, ok);
                        let known = m.get(id).unwrap();
                        known.phase = if ok { Phase::Valid } else { Phase::Failed };
                        if ok && known.uses == 0 {
                            m.idle.push(id);
                        }
                        m.stats.registrations += u64::from(ok);
                    }
                }
                // Room is made, as the owner does it or without need.
                80..=87 => {
                    let coming = m.known.iter().filter(|k| k.phase == Phase::Invalidating);
                    let ahead = m.free.len() + coming.count();
                    let wanted = !m.idle.is_empty() && ahead < low_water as usize;
                    assert_eq!(c.should_evict(), wanted);
                    if !wanted && !rng.one_in(3) {
                        continue;
                    }
                    let evicted = c.evict_one().map(|(id, value)| (id, value.serial));
                    let id = (!m.idle.is_empty()).then(|| m.idle.remove(0));
                    assert_eq!(evicted.map(|e| e.0), id, "another order");
                    let Some((id, serial)) = evicted else {
                        continue;
                    };
                    let known = m.get(id).unwrap();
                    assert_eq!(
                        (known.uses, known.phase, known.serial),
                        (0, Phase::Valid, serial)
                    );
                    if rng.one_in(8) {
                        // The queue refused it.
                        c.restore(id);
                        m.idle.insert(0, id);
                    } else {
                        known.phase = Phase::Invalidating;
                        m.stats.evictions += 1;
                    }
                }
                // A LOCAL_INV completes.
                88..=95 => {
                    if let Some(id) = m.any(Phase::Invalidating, &mut rng) {
                        let value = c.invalidated(id).unwrap();
                        m.leaves(id, &value);
                        left.push(id);
                        m.stats.invalidations += 1;
                        if rng.one_in(20) {
                            outside.push(value.region);
                        } else {
                            c.supply(value.region).unwrap();
                            m.free.push(value.region);
                        }
                    }
                }
                // The owner brings a region.
                96 | 97 => {
                    if let Some(region) = outside.pop() {
                        c.supply(region).unwrap();
                        m.free.push(region);
                    }
                }
                // What comes for an entry in another phase, or for one that has left.
                98 => {
                    let valid = m.any(Phase::Valid, &mut rng);
                    for id in valid.into_iter().chain(m.any(Phase::Failed, &mut rng)) {
                        assert_eq!(c.invalidated(id), None);
                        assert_eq!(c.withdraw(id), None);
                        c.registered(id, true);
                        c.restore(id);
                    }
                    if !left.is_empty() {
                        let id = left[rng.below(left.len())];
                        assert_eq!(c.value(id), None);
                        assert_eq!(c.invalidated(id), None);
                        assert_eq!(c.withdraw(id), None);
                        c.put(id);
                        c.registered(id, false);
                        c.restore(id);
                    }
                }
                // The connection is lost.
                _ if rng.one_in(5) => {
                    let mut n = 0;
                    c.flush(|value| {
                        assert!(m.inside.remove(&value.serial), "handed out twice");
                        outside.push(value.region);
                        n += 1;
                    });
                    assert_eq!(n, m.known.len());
                    assert!(m.inside.is_empty(), "not handed out");
                    left.extend(m.known.drain(..).map(|k| k.id));
                    m.idle.clear();
                }
                _ => {}
            }

            assert_eq!(c.stats(), m.stats);
            assert_eq!(c.free.len() as usize, m.free.len());
            assert_eq!(c.idle.len() as usize, m.idle.len());
            assert_eq!(c.room() as usize, outside.len());
            assert!(m.known.len() + m.free.len() <= entries as usize);
            assert_eq!(
                m.known.len() + m.free.len() + outside.len(),
                entries as usize
            );
        }
        let stats = c.stats();
        assert!(stats.hits > 0 && stats.evictions > 0 && stats.invalidations > 0);
        // With a region for each key, none is missing for long.
        assert!(stats.full > 0 || n_keys <= entries as usize);
    }

    #[test]
    fn against_a_model() {
        for seed in 0..4 {
            against_the_model::<32>(1, 1, 3, seed);
            against_the_model::<32>(4, 2, 6, seed);
            against_the_model::<32>(16, 4, 12, seed);
            against_the_model::<32>(16, 8, 200, seed);
        }
    }

    #[test]
    fn against_a_model_when_hashes_collide() {
        for seed in 10..14 {
            against_the_model::<0>(8, 2, 12, seed);
            against_the_model::<0>(16, 4, 40, seed);
            against_the_model::<1>(16, 4, 40, seed);
            against_the_model::<3>(33, 8, 100, seed);
        }
    }

    /// An operation of a lane: what it uses, what it registers and evicts.
    struct Op {
        uses: Id,
        registers: Option<Id>,
        evicts: Option<Id>,
        put: bool,
    }

    /// A lane that keeps `depth` operations in flight, posted in order; completions are seen late
    /// and together, and operations end out of order. Gives how often it found nothing free.
    fn drive(entries: u32, depth: usize, n_pages: usize, seed: u64) -> u64 {
        let mut rng = Rng(seed);
        let shape = Shape::new(entries, u32::MAX, 1, depth as u32).unwrap();
        let mut c: Cache<32> = MrCache::new(shape, 1, seed).unwrap_or_else(|e| match e {});
        for region in 0..entries {
            c.supply(region).unwrap();
        }
        let mut queue: Vec<Op> = vec![];
        let mut evictions_alone: Vec<Id> = vec![];
        let mut begun = 0;
        let mut idle_rounds = 0;
        while begun < 5_000 {
            let mut full = false;
            while queue.len() < depth && !rng.one_in(6) {
                let page = rng.below(n_pages) as u64;
                let (uses, registers) = match c.lookup(&key(&[page])) {
                    Lookup::Hit(id) => (id, None),
                    Lookup::Miss => {
                        let region = c.claim().unwrap();
                        let value = Value {
                            region,
                            serial: page,
                        };
                        let id = c.insert(&key(&[page]), value).unwrap();
                        (id, Some(id))
                    }
                    _ => {
                        full = true;
                        if c.should_evict() {
                            evictions_alone.extend(c.evict_one().map(|(id, _)| id));
                        }
                        break;
                    }
                };
                let evict = registers.is_some() && c.should_evict();
                let evicts = evict.then(|| c.evict_one().unwrap().0);
                queue.push(Op {
                    uses,
                    registers,
                    evicts,
                    put: false,
                });
                begun += 1;
                idle_rounds = 0;
            }
            // The peer has answered some.
            for op in &mut queue {
                if !op.put && (full || rng.one_in(3)) {
                    op.put = true;
                    c.put(op.uses);
                }
            }
            // The first so many have completed.
            let done = rng.below(queue.len() + 1);
            let done = if full { queue.len() } else { done };
            for op in &mut queue[..done] {
                if let Some(id) = op.registers.take() {
                    c.registered(id, true);
                }
                if let Some(id) = op.evicts.take() {
                    let region = c.invalidated(id).unwrap().region;
                    c.supply(region).unwrap();
                }
            }
            let mut at = 0;
            queue.retain(|op| {
                at += 1;
                at > done || !op.put
            });
            if full {
                for id in evictions_alone.drain(..) {
                    let region = c.invalidated(id).unwrap().region;
                    c.supply(region).unwrap();
                }
            }
            idle_rounds += 1;
            assert!(idle_rounds < 1_000, "stuck");
        }
        c.stats().full
    }

    #[test]
    fn twice_what_is_in_flight_is_always_enough() {
        for depth in [1, 2, 3, 8, 32] {
            for entries in [2 * depth, 2 * depth + 1, 4 * depth] {
                for n_pages in [1, depth, 3 * depth, 100 * depth] {
                    let full = drive(entries as u32, depth, n_pages, 77 + n_pages as u64);
                    assert_eq!(full, 0, "depth {depth} entries {entries} pages {n_pages}");
                }
            }
        }
    }

    #[test]
    fn with_fewer_it_waits_but_not_for_ever() {
        let mut full = 0;
        for depth in [2, 8, 32] {
            for entries in [1, depth / 2, depth, depth + 1] {
                full += drive(entries as u32, depth, 10 * depth, 5);
            }
        }
        assert!(full > 0);
    }
}
