// SPDX-License-Identifier: GPL-2.0

//! Finds the slot of a registration by what it covers: hashing with chains, in memory that is there
//! from the start.
//!
//! The hash only leads to a bucket. Two keys are the same when all of them is the same, page by
//! page, so whoever can make hashes collide gains longer chains and nothing else; and a chain is
//! never longer than the cache has entries.

use super::{list::NONE, Platform};

/// What a registration covers, and with which rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key<'k> {
    /// Frame numbers of its pages, in order.
    pub(crate) pages: &'k [u64],
    /// Where it begins in the first page, bytes.
    pub(crate) offset: u32,
    /// Its length, bytes.
    pub(crate) len: u32,
    /// The rights of the peer and the direction of the mapping, as the owner numbers them.
    pub(crate) access: u32,
}

impl Key<'_> {
    /// A hash over all of it. `seed` is the shard's own, so that buckets cannot be foretold.
    pub(crate) fn hash(&self, seed: u64) -> u32 {
        let place = (u64::from(self.offset) << 32) | u64::from(self.len);
        let mut h = mix(seed ^ u64::from(self.access), place);
        for page in self.pages {
            h = mix(h, *page);
        }
        // A product's upper half depends on all of the bits that went in.
        (h.wrapping_mul(FACTOR) >> 32) as u32
    }
}

impl Key<'_> {
    /// Whether it is the same as another: as `==`, without a call for what is mostly one page.
    #[inline]
    fn is(&self, other: &Key<'_>) -> bool {
        (self.offset, self.len, self.access) == (other.offset, other.len, other.access)
            && self.pages.len() == other.pages.len()
            && self.pages.iter().zip(other.pages).all(|(a, b)| a == b)
    }
}

/// 2^64 divided by the golden ratio, made odd.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(h: u64, word: u64) -> u64 {
    let product = (h ^ word).wrapping_mul(FACTOR);
    product ^ (product >> 32)
}

/// A key, but for its pages, and its place in a chain.
#[derive(Clone, Copy)]
pub(super) struct Node {
    hash: u32,
    /// The next in the bucket.
    next: u32,
    /// Number of pages.
    count: u32,
    offset: u32,
    len: u32,
    access: u32,
}

impl Node {
    const fn new() -> Self {
        Self {
            hash: 0,
            next: NONE,
            count: 0,
            offset: 0,
            len: 0,
            access: 0,
        }
    }
}

/// The table. Slots that are not linked are not found, but keep their key.
pub(super) struct Index<P: Platform> {
    buckets: P::Vec<u32>,
    nodes: P::Vec<Node>,
    /// `max_pages` for each slot.
    pages: P::Vec<u64>,
    max_pages: usize,
    seed: u64,
}

impl<P: Platform> Index<P> {
    /// An empty table for `slots` keys of at most `max_pages` pages. Allocates.
    pub(super) fn new(slots: u32, max_pages: u32, seed: u64) -> Result<Self, P::Error> {
        let (slots, max_pages) = (slots as usize, max_pages as usize);
        Ok(Self {
            buckets: P::filled(slots.next_power_of_two(), || NONE)?,
            nodes: P::filled(slots, Node::new)?,
            pages: P::filled(slots * max_pages, || 0)?,
            max_pages,
            seed,
        })
    }

    /// Whether `key` is one that a slot can hold.
    pub(super) fn fits(&self, key: &Key<'_>) -> bool {
        (1..=self.max_pages).contains(&key.pages.len())
    }

    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The linked slot of `key`.
    pub(super) fn find(&self, key: &Key<'_>) -> Option<u32> {
        let hash = P::hash(key, self.seed);
        let mut slot = self.buckets[self.bucket(hash)];
        while slot != NONE {
            let node = &self.nodes[slot as usize];
            if node.hash == hash && self.key(slot).is(key) {
                return Some(slot);
            }
            slot = node.next;
        }
        None
    }

    /// The key of a slot.
    pub(super) fn key(&self, slot: u32) -> Key<'_> {
        let node = &self.nodes[slot as usize];
        let first = slot as usize * self.max_pages;
        Key {
            pages: &self.pages[first..first + node.count as usize],
            offset: node.offset,
            len: node.len,
            access: node.access,
        }
    }

    /// Gives `slot`, which is not linked, a key that fits, and links it.
    pub(super) fn add(&mut self, slot: u32, key: &Key<'_>) {
        let first = slot as usize * self.max_pages;
        self.pages[first..first + key.pages.len()].copy_from_slice(key.pages);
        self.nodes[slot as usize] = Node {
            hash: P::hash(key, self.seed),
            next: NONE,
            count: key.pages.len() as u32,
            offset: key.offset,
            len: key.len,
            access: key.access,
        };
        self.link(slot);
    }

    /// Makes `slot`, which is not linked, be found by the key that it has.
    pub(super) fn link(&mut self, slot: u32) {
        let bucket = self.bucket(self.nodes[slot as usize].hash);
        self.nodes[slot as usize].next = self.buckets[bucket];
        self.buckets[bucket] = slot;
    }

    /// Makes `slot` be found no more. Walks along one bucket.
    pub(super) fn unlink(&mut self, slot: u32) {
        let Node { hash, next, .. } = self.nodes[slot as usize];
        let bucket = self.bucket(hash);
        let mut at = self.buckets[bucket];
        if at == slot {
            self.buckets[bucket] = next;
            return;
        }
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            if node.next == slot {
                node.next = next;
                return;
            }
            at = node.next;
        }
    }

    /// Makes no slot be found.
    #[allow(dead_code)] // As `flush`.
    pub(super) fn clear(&mut self) {
        self.buckets.fill(NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{key, Host},
        *,
    };

    /// Pages in a row, and the same page at many places, spread over the buckets.
    #[test]
    fn neighbours_do_not_share_a_bucket() {
        const SLOTS: u32 = 1024;
        for seed in [0, 1, 0xdead_beef_0123_4567] {
            let mut load = [[0u32; SLOTS as usize]; 4];
            for n in 0..SLOTS {
                let page = [0x12_3456 + u64::from(n)];
                let far = [u64::from(n) << 18];
                let at = |k: Key<'_>| (k.hash(seed) % SLOTS) as usize;
                load[0][at(key(&page))] += 1;
                load[1][at(key(&far))] += 1;
                let offset = n * 4;
                load[2][at(Key {
                    offset,
                    ..key(&[77])
                })] += 1;
                load[3][at(Key {
                    len: n,
                    ..key(&[77])
                })] += 1;
            }
            for load in load {
                assert!(load.iter().max() < Some(&12));
            }
        }
    }

    /// Each part of the key counts, also when the hash does not tell: here all collide.
    #[test]
    fn every_part_of_the_key_is_compared() {
        let a = [1, 2, 3];
        let base = key(&a);
        let others = [
            key(&[1, 2, 4]),
            key(&[2, 2, 3]),
            key(&[1, 3, 2]),
            key(&[1, 2]),
            key(&[1, 2, 3, 4]),
            Key { offset: 8, ..base },
            Key { len: 4095, ..base },
            Key { access: 3, ..base },
        ];
        let mut index = Index::<Host<0>>::new(16, 4, 5).unwrap_or_else(|e| match e {});
        index.add(3, &base);
        for other in &others {
            assert_eq!(index.find(other), None);
            assert_ne!(other.hash(5), base.hash(5));
        }
        for (i, other) in others.iter().enumerate() {
            index.add(4 + i as u32, other);
        }
        assert_eq!(index.find(&base), Some(3));
        for (i, other) in others.iter().enumerate() {
            assert_eq!(index.find(other), Some(4 + i as u32));
            index.unlink(4 + i as u32);
            assert_eq!(index.find(other), None);
            assert_eq!(index.find(&base), Some(3));
        }
        index.unlink(3);
        assert_eq!(index.find(&base), None);
        index.link(3);
        assert_eq!(index.find(&base), Some(3));
        index.clear();
        assert_eq!(index.find(&base), None);
    }

    #[test]
    fn keys_that_do_not_fit() {
        let index = Index::<Host<32>>::new(2, 3, 0).unwrap_or_else(|e| match e {});
        assert!(!index.fits(&key(&[])));
        assert!(index.fits(&key(&[1])));
        assert!(index.fits(&key(&[1, 2, 3])));
        assert!(!index.fits(&key(&[1, 2, 3, 4])));
    }
}
