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
//! * `fast_waited`: as `fast`, below.
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
//! With fewer entries a lookup may say [`Lookup::Full`]: nothing is free. [`super::memory`] does not
//! let it come to that: it refuses a share of less than two entries for each operation at a time. The
//! NVMe host ([`crate::nvme`]) registers with a region of the command's own then, of which it has one
//! for each tag, and evicts by the way. Another owner could have the operation wait until something
//! completes on the lane or is put. It would not wait for ever: what is not free is in use (and will be put), on
//! its way (and will complete, signalled or covered by a signal behind it), or idle, and then it is
//! evicted with a chain of its own. An operation that needs several registrations takes all of them
//! under one hold of the lane's lock, and puts back what it took when one is missing: two
//! operations never wait for each other. Registering with a region of no shard would also be right,
//! but then `mr_cache_entries` and the device's `max_mr` would bound nothing.
//!
//! # Cost
//!
//! Everything is allocated by [`MrCache::new`]. Each call takes a fixed number of steps, but for
//! the walk along one bucket (there are at least as many buckets as entries) and for comparing the
//! pages of a key; [`MrCache::flush`] visits each entry once.

use core::ops::DerefMut;

mod index;
mod list;
#[cfg(test)]
mod tests;

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

    /// For one of `lanes` lanes that share `wanted` entries (`mr_cache_entries`) and as many
    /// `regions`. `in_flight` is how many registrations the lane's operations have at a time: depth
    /// times those of an operation, where an operation counts until it was put *and* the chain
    /// that began it was seen to complete.
    ///
    /// `None` if there is not one entry for each lane.
    pub(crate) fn new(wanted: u32, regions: u32, lanes: u32, in_flight: u32) -> Option<Self> {
        let entries = wanted.min(regions).checked_div(lanes)?.min(Self::MAX);
        (entries > 0).then(|| Self {
            entries,
            low_water: in_flight.min(entries / 2).max(1),
        })
    }

    /// The same, with regions that all caches of a device share: `total` in all, of which `left`
    /// says how many nobody has, and `reserve` sets so many aside, if they are still there. Never
    /// less than two entries for each of `in_flight`: with fewer, operations would have to wait
    /// for evictions.
    pub(crate) fn reserve(
        wanted: u32,
        total: u32,
        lanes: u32,
        in_flight: u32,
        left: impl Fn() -> u32,
        reserve: impl Fn(u32) -> bool,
    ) -> Result<Self, Lack> {
        let least = in_flight.saturating_mul(2);
        let share = |of: u32| of.checked_div(lanes).filter(|share| *share >= least);
        let wanted = share(wanted).ok_or(Lack::Share)?;
        let most = share(total).ok_or(Lack::Device)?.min(wanted);
        loop {
            let shape = Self::new(most, left(), 1, in_flight);
            let shape = shape.filter(|shape| shape.entries >= least);
            let shape = shape.ok_or(Lack::Device)?;
            if reserve(shape.entries) {
                return Ok(shape);
            }
        }
    }

    /// The same with no more entries than `left`; `None` for none.
    pub(crate) fn within(&self, left: u32) -> Option<Self> {
        let entries = self.entries.min(left);
        (entries > 0).then(|| Self {
            entries,
            low_water: self.low_water.min(entries / 2).max(1),
        })
    }

    /// Regions that the shard takes.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }
}

/// Why there is no shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// The lane's share of the entries that are wanted is too small.
    Share,
    /// Other caches have the device's regions.
    Device,
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
    #[allow(dead_code)] // Its owners supply it once.
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
    #[allow(dead_code)] // Its owners drop it with the connection.
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
    #[allow(dead_code)] // Its owners count for themselves.
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
