// SPDX-License-Identifier: GPL-2.0

//! The cache against what it should do, and against a model of it.

use super::*;
use std::{cell::Cell, collections::BTreeSet, convert::Infallible};

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

pub(super) fn key(pages: &[u64]) -> Key<'_> {
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

/// Less than was asked for is still a shape, as long as it is something.
#[test]
fn what_is_left() {
    let shape = Shape::new(64, 64, 1, 16).unwrap();
    let within = |left| shape.within(left).map(|s| (s.entries(), s.low_water));
    assert_eq!(within(u32::MAX), Some((64, 16)));
    assert_eq!(within(63), Some((63, 16)));
    assert_eq!(within(20), Some((20, 10)));
    assert_eq!(within(1), Some((1, 1)));
    assert_eq!(within(0), None);
}

/// Caches come and go on a device: together they never have more than it gives, none has less than
/// it needs or more than its share, and one that is refused would not have fitted.
#[test]
fn a_device_is_shared() {
    for seed in 0..20 {
        let mut rng = Rng(seed);
        let total = 1 + rng.below(2_000) as u32;
        let left = Cell::new(total);
        let mut there: Vec<u32> = vec![];
        let (mut made, mut refused) = (0, 0);
        for _ in 0..2_000 {
            if rng.one_in(3) && !there.is_empty() {
                left.set(left.get() + there.swap_remove(rng.below(there.len())));
                continue;
            }
            let wanted = rng.below(600) as u32;
            let lanes = 1 + rng.below(8) as u32;
            let in_flight = 1 + rng.below(64) as u32;
            let before = left.get();
            let shape = Shape::reserve(
                wanted,
                total,
                lanes,
                in_flight,
                || left.get(),
                |n| {
                    left.set(left.get().checked_sub(n).unwrap());
                    true
                },
            );
            let (share, of_all) = (wanted / lanes, total / lanes);
            match shape {
                Ok(shape) => {
                    assert!(shape.entries >= 2 * in_flight && shape.entries <= share);
                    assert_eq!(shape.entries, share.min(of_all).min(before));
                    assert_eq!(shape.low_water, in_flight);
                    there.push(shape.entries);
                    made += 1;
                }
                Err(Lack::Share) => assert!(share < 2 * in_flight),
                Err(Lack::Device) => {
                    assert!(share >= 2 * in_flight && before.min(of_all) < 2 * in_flight);
                    refused += 1;
                }
            }
            assert_eq!(left.get() + there.iter().sum::<u32>(), total);
        }
        assert!(made > 0 || total < 128, "{total}");
        assert!(refused > 0, "{total}");
    }
}

#[test]
fn another_may_be_first() {
    let left = Cell::new(100);
    let tries = Cell::new(0);
    let reserve = |n| {
        tries.set(tries.get() + 1);
        // Half of it is gone when this comes.
        if tries.get() == 1 {
            left.set(50);
        }
        let there = n <= left.get();
        left.set(left.get() - if there { n } else { 0 });
        there
    };
    let shape = Shape::reserve(80, 100, 1, 20, || left.get(), reserve).unwrap();
    assert_eq!((shape.entries, left.get(), tries.get()), (50, 0, 2));
    let refused = Shape::reserve(80, 100, 1, 20, || left.get(), |_| true);
    assert_eq!(refused, Err(Lack::Device));
    assert_eq!(
        Shape::reserve(79, 100, 2, 20, || left.get(), |_| true),
        Err(Lack::Share)
    );
    assert_eq!(
        Shape::reserve(80, 100, 0, 20, || 100, |_| true),
        Err(Lack::Share)
    );
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

/// The pages of a machine, and how many references there are on each.
struct Frames(Vec<u32>);

impl Frames {
    /// `n` pages that nobody has, from the lowest, as an allocator gives out again what came back
    /// last.
    fn allocate(&mut self, n: usize) -> Option<Vec<u64>> {
        let free = |(at, refs): (usize, &u32)| (*refs == 0).then_some(at as u64);
        let pages: Vec<_> = self.0.iter().enumerate().filter_map(free).take(n).collect();
        if pages.len() < n {
            return None;
        }
        self.get(&pages);
        Some(pages)
    }

    fn get(&mut self, pages: &[u64]) {
        for page in pages {
            self.0[*page as usize] += 1;
        }
    }

    fn put(&mut self, pages: &[u64]) {
        for page in pages {
            let refs = &mut self.0[*page as usize];
            *refs = refs.checked_sub(1).expect("a reference too many");
        }
    }
}

/// A caller's memory, which no other caller ever has.
#[derive(Clone)]
struct Memory {
    caller: u64,
    pages: Vec<u64>,
}

/// An operation on a lane, which has references of its own.
struct Use {
    id: Id,
    memory: Memory,
}

/// A lane: its shard, whose entries say for whom they were made; operations; and REG_MRs and
/// LOCAL_INVs that are on their way.
struct Shard {
    cache: MrCache<Host<32>, u32, Memory>,
    uses: Vec<Use>,
    registering: Vec<Id>,
    invalidating: Vec<Id>,
}

/// Lanes of one trust domain with the same buffers, which are freed and made again all the time;
/// entries have references on their pages, or not, which is wrong. Returns how often a lane found
/// what another evicted in the same moment.
fn lanes_with_the_same_buffers(holds: bool, n_lanes: usize, seed: u64) -> u64 {
    let mut rng = Rng(seed);
    let mut frames = Frames(vec![0; 24]);
    let mut buffers: Vec<Memory> = vec![];
    let mut callers = 0;
    let mut found_while_evicted = 0;
    let (mut hits, mut reused) = (0, 0);
    let mut had = BTreeSet::new();
    let new_lane = || {
        let shape = Shape::new(6, u32::MAX, 1, 2).unwrap();
        let mut cache = MrCache::new(shape, 3, seed).unwrap_or_else(|e| match e {});
        for region in 0..6 {
            cache.supply(region).unwrap();
        }
        Shard {
            cache,
            uses: vec![],
            registering: vec![],
            invalidating: vec![],
        }
    };
    let mut lanes: Vec<Shard> = (0..n_lanes).map(|_| new_lane()).collect();

    for _ in 0..20_000 {
        let at = rng.below(n_lanes);
        match rng.below(100) {
            0..=9 => {
                if let Some(pages) = frames.allocate(1 + rng.below(3)) {
                    callers += 1;
                    reused += u64::from(!had.insert(pages.clone()));
                    let caller = callers;
                    buffers.push(Memory { caller, pages });
                }
            }
            10..=18 if !buffers.is_empty() => {
                let gone = buffers.swap_remove(rng.below(buffers.len()));
                frames.put(&gone.pages);
            }
            19..=54 if !buffers.is_empty() => {
                let memory = buffers[rng.below(buffers.len())].clone();
                let elsewhere = lanes.iter().enumerate().any(|(other, lane)| {
                    let evicted = |id: &Id| lane.cache.value(*id).unwrap().caller == memory.caller;
                    other != at && lane.invalidating.iter().any(evicted)
                });
                let lane = &mut lanes[at];
                let id = match lane.cache.lookup(&key(&memory.pages)) {
                    Lookup::Hit(id) => {
                        let entry = lane.cache.value(id).unwrap();
                        assert_eq!(entry.pages, memory.pages);
                        assert_eq!(entry.caller, memory.caller, "somebody else's memory");
                        hits += 1;
                        found_while_evicted += u64::from(elsewhere);
                        id
                    }
                    Lookup::Miss => {
                        let _region = lane.cache.claim().unwrap();
                        let id = lane.cache.insert(&key(&memory.pages), memory.clone());
                        if holds {
                            frames.get(&memory.pages);
                        }
                        let id = id.unwrap_or_else(|_| panic!("it was claimed"));
                        lane.registering.push(id);
                        id
                    }
                    _ => continue,
                };
                frames.get(&memory.pages);
                lane.uses.push(Use { id, memory });
            }
            55..=74 => {
                let lane = &mut lanes[at];
                if !lane.uses.is_empty() {
                    let over = lane.uses.swap_remove(rng.below(lane.uses.len()));
                    let entry = lane.cache.value(over.id).expect("evicted while in use");
                    assert_eq!(entry.caller, over.memory.caller);
                    lane.cache.put(over.id);
                    frames.put(&over.memory.pages);
                }
            }
            75..=84 => {
                let lane = &mut lanes[at];
                for id in lane.registering.drain(..) {
                    lane.cache.registered(id, true);
                }
            }
            85..=91 => {
                let lane = &mut lanes[at];
                let evicted = lane.cache.evict_one().map(|(id, _)| id);
                lane.invalidating.extend(evicted);
            }
            92..=98 => {
                let lane = &mut lanes[at];
                if !lane.invalidating.is_empty() {
                    let id = lane
                        .invalidating
                        .swap_remove(rng.below(lane.invalidating.len()));
                    let entry = lane.cache.invalidated(id).unwrap();
                    if holds {
                        frames.put(&entry.pages);
                    }
                    lane.cache.supply(0).unwrap();
                }
            }
            // The lane's connection is lost, and another is made; the others keep what they have.
            99 if rng.one_in(10) => {
                let mut lost = core::mem::replace(&mut lanes[at], new_lane());
                lost.cache.flush(|entry| {
                    if holds {
                        frames.put(&entry.pages);
                    }
                });
                for over in lost.uses {
                    frames.put(&over.memory.pages);
                }
            }
            _ => {}
        }
        // Whoever has an entry has its pages, whatever other lanes and callers do.
        for use_ in lanes.iter().flat_map(|lane| lane.uses.iter()) {
            assert!(use_.memory.pages.iter().all(|p| frames.0[*p as usize] > 0));
        }
    }
    assert!(hits > 500 && callers > 500 && reused > 100);

    // All is given back at the end.
    for mut lane in lanes {
        lane.cache.flush(|entry| {
            if holds {
                frames.put(&entry.pages);
            }
        });
        for over in lane.uses {
            frames.put(&over.memory.pages);
        }
    }
    for buffer in buffers {
        frames.put(&buffer.pages);
    }
    assert!(frames.0.iter().all(|refs| *refs == 0), "pages were left");
    found_while_evicted
}

#[test]
fn lanes_share_buffers_and_freed_ones_are_not_found_again() {
    let mut found_while_evicted = 0;
    for seed in 0..6 {
        found_while_evicted += lanes_with_the_same_buffers(true, 2, seed);
        found_while_evicted += lanes_with_the_same_buffers(true, 4, seed);
    }
    assert!(found_while_evicted > 50);
}

#[test]
#[should_panic(expected = "somebody else's memory")]
fn without_references_they_would_be() {
    for seed in 0..6 {
        lanes_with_the_same_buffers(false, 2, seed);
    }
}
