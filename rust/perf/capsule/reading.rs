// SPDX-License-Identifier: GPL-2.0

//! The READs of a queue: which are under way, which come next, and what they read.

use super::super::{params::Load, slots::Exposed, stats::Stats};
use crate::nvme::wire::Data;
use kernel::{prelude::*, sync::Arc};

/// What there is to read: `each` logical blocks at a time.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    /// Bytes of a block, as a power of two.
    pub(super) shift: u32,
    /// Of a READ: 1 to 65536.
    pub(super) each: u32,
    /// Of the namespace: as many at least.
    pub(super) all: u64,
    /// The number of the first READ, of all that find room in the namespace.
    pub(super) first: u64,
}

impl Blocks {
    /// The first block of READ `number`. They lie behind each other, and begin again at the end.
    fn of(&self, number: u64) -> u64 {
        let each = u64::from(self.each.max(1));
        let rooms = (self.all / each).max(1);
        self.first.wrapping_add(number) % rooms * each
    }
}

/// A place for a READ.
struct Place {
    /// Of the capsule that was sent last: twice the place's number, or one more.
    id: u16,
    busy: bool,
    /// When that was, ns.
    begin: u64,
}

/// See the file's head.
///
/// # Invariants
///
/// `idle` has the number of each place that is not busy, and room for all. `begun - ended` places
/// are busy.
pub(super) struct Reading {
    places: KVVec<Place>,
    idle: KVVec<u16>,
    begun: u64,
    ended: u64,
    quota: u64,
    lot: u32,
    load: Load,
    blocks: Blocks,
    memory: Exposed,
    pub(super) stats: Arc<Stats>,
}

/// What an answer was for that fits a READ under way.
pub(super) struct Ended {
    /// When that was sent, ns.
    pub(super) begin: u64,
    place: u16,
    id: u16,
}

impl Reading {
    /// `depth` READs at a time into `memory`, sent in lots of up to `batch`. Nothing is read before
    /// [`Reading::begin`]. Sleeps.
    pub(super) fn new(load: &Load, batch: u32, memory: Exposed, blocks: Blocks) -> Result<Self> {
        let depth = load.depth as usize;
        let mut places = KVVec::with_capacity(depth, GFP_KERNEL)?;
        let mut idle = KVVec::with_capacity(depth, GFP_KERNEL)?;
        for i in 0..load.depth as u16 {
            let place = Place {
                id: i * 2,
                busy: false,
                begin: 0,
            };
            places.push(place, GFP_KERNEL)?;
            idle.push(i, GFP_KERNEL)?;
        }
        let reading = Self {
            places,
            idle,
            begun: 0,
            ended: 0,
            quota: 0,
            lot: batch.clamp(1, load.depth),
            load: *load,
            blocks,
            memory,
            stats: Arc::new(Stats::new()?, GFP_KERNEL)?,
        };
        if load.verify {
            for slot in 0..load.depth {
                reading.memory.spoil(slot, load.size as usize)?;
            }
        }
        Ok(reading)
    }

    /// How many capsules there are: ids of commands are below this.
    pub(super) fn capsules(&self) -> u16 {
        self.places.len() as u16 * 2
    }

    /// The first logical block that capsule `id` reads.
    pub(super) fn first_block(&self, id: u16) -> u64 {
        self.blocks.of(id.into())
    }

    /// Where it reads to.
    pub(super) fn data(&self, id: u16) -> Result<Data> {
        let remote = self.memory.remote(u32::from(id / 2), 0)?;
        Ok(Data::Keyed {
            addr: remote.addr,
            len: self.load.size,
            rkey: remote.rkey,
            invalidate: false,
        })
    }

    /// Bytes of a READ.
    pub(super) fn size(&self) -> u64 {
        self.load.size.into()
    }

    /// So many READs are to be done.
    pub(super) fn begin(&mut self, quota: u64) {
        self.quota = quota;
    }

    /// None but those under way.
    pub(super) fn finish(&mut self) {
        self.quota = self.begun;
    }

    /// Those that have ended, and whether there are any left.
    pub(super) fn progress(&self) -> (u64, bool) {
        (self.ended, self.ended < self.quota)
    }

    /// Whether the next lot is to be sent: a whole one, or what there is when nothing is under way.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.idle.len() >= self.lot as usize || self.begun == self.ended
    }

    /// The capsule of the next READ, if there is one to be sent; [`Reading::sent`] follows.
    #[inline]
    pub(super) fn next(&self) -> Option<u16> {
        if self.begun >= self.quota {
            return None;
        }
        let place = self.places.get(usize::from(*self.idle.last()?))?;
        Some(place.id ^ 1)
    }

    /// That one is under way since `now` (ns).
    #[inline]
    pub(super) fn sent(&mut self, now: u64) {
        let place = self.idle.pop();
        if let Some(place) = place.and_then(|at| self.places.get_mut(usize::from(at))) {
            place.id ^= 1;
            place.busy = true;
            place.begin = now;
            self.begun += 1;
        }
    }

    /// The READ that an answer to command `id` is for, if it is under way. It is not any more.
    #[inline]
    pub(super) fn take(&mut self, id: u16) -> Option<Ended> {
        let place = self.places.get_mut(usize::from(id / 2))?;
        if !place.busy || place.id != id {
            return None;
        }
        place.busy = false;
        Some(Ended {
            begin: place.begin,
            place: id / 2,
            id,
        })
    }

    /// It has ended well. With `verify` its data is looked at.
    #[inline]
    pub(super) fn end(&mut self, ended: &Ended) {
        self.ended += 1;
        let _ = self.idle.push_within_capacity(ended.place);
        if self.load.verify {
            self.verify(ended);
        }
    }

    /// Each word of a block is the number of the byte at which that begins. What was there before is
    /// overwritten, so that what the next does not bring is missed.
    #[cold]
    fn verify(&self, ended: &Ended) {
        let (slot, size) = (u32::from(ended.place), self.load.size as usize);
        let shift = self.blocks.shift;
        let first = self.first_block(ended.id);
        let word = |offset: usize| (first + (offset as u64 >> shift)) << shift;
        if self.memory.holds_words(slot, size, word) != Ok(true) {
            self.stats.miscompares.add(1);
        }
        // There is such a slot.
        let _ = self.memory.spoil(slot, size);
    }
}
