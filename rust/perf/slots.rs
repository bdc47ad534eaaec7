// SPDX-License-Identifier: GPL-2.0

//! Payload memory, cut into slots of one stride: our own for local work requests ([`Slot`]), and
//! registered for the peer ([`Exposed`]).

use super::{
    params::{slots_per_piece, Load},
    pattern::Pattern,
    wire::Region,
};
use crate::verbs::{
    wr::RecvWr, Ah, Buffer, Direction, Mapped, Mr, Pd, RegisteredMr, Registration, RemoteAddr,
    SendWr,
};
use core::{
    num::{NonZeroU32, NonZeroUsize},
    ops::Range,
};
use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};

/// Bytes that are compared or filled at a time.
const STEP: usize = 256;

/// Payload memory of one operation; the token of its work request.
pub(crate) struct Slot {
    memory: Arc<Mapped>,
    base: usize,
    /// Its number within its connection.
    pub(crate) index: u32,
    /// The operation that uses it.
    pub(crate) seq: u64,
    /// When that began, ns.
    pub(crate) begin: u64,
    /// Where UD messages out of it go.
    pub(crate) destination: Option<(Arc<Ah>, u32, u32)>,
}

/// Makes `count` slots of `stride` bytes. Sleeps.
pub(crate) fn allocate(pd: &Arc<Pd>, count: u32, stride: usize) -> Result<KVec<KBox<Slot>>> {
    let mut slots = KVec::with_capacity(count as usize, GFP_KERNEL)?;
    let per_piece = slots_per_piece(stride);
    let mut left = count as usize;
    while left > 0 {
        let n = left.min(per_piece.get());
        let buffer = Buffer::new(n * stride, None)?;
        let memory = Arc::new(
            Mapped::new(pd, buffer, Direction::Bidirectional)?,
            GFP_KERNEL,
        )?;
        for i in 0..n {
            let slot = Slot {
                memory: memory.clone(),
                base: i * stride,
                index: slots.len() as u32,
                seq: 0,
                begin: 0,
                destination: None,
            };
            slots.push(KBox::new(slot, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        left -= n;
    }
    Ok(slots)
}

/// Cuts `size` bytes into up to `n` pieces. The last one is longer, as even ones would hide mistakes.
pub(crate) fn pieces(size: usize, n: usize) -> impl Iterator<Item = Range<usize>> {
    let n = n.clamp(1, size.max(1));
    let each = size.checked_div(n).unwrap_or(size);
    (0..n).map(move |i| {
        let end = if i + 1 == n { size } else { (i + 1) * each };
        i * each..end
    })
}

impl Slot {
    /// Names `range` of the slot in `wr`.
    pub(crate) fn sge<'t>(&'t self, wr: &mut SendWr<'_, 't>, range: Range<usize>) -> Result {
        let range = self.base + range.start..self.base + range.end;
        wr.sge(self.memory.sge(range)?)
    }

    /// Names `size` bytes at `offset` of the slot in `wr`, in `n` SGEs.
    pub(crate) fn sges<'t>(
        &'t self,
        wr: &mut SendWr<'_, 't>,
        offset: usize,
        size: usize,
        n: usize,
    ) -> Result {
        if n <= 1 {
            return self.sge(wr, offset..offset + size);
        }
        for piece in pieces(size, n) {
            self.sge(wr, offset + piece.start..offset + piece.end)?;
        }
        Ok(())
    }

    /// Names the first `len` bytes of the slot as the place of a receive.
    pub(crate) fn receive<'t>(&'t self, wr: &mut RecvWr<'_, 't>, len: usize) -> Result {
        wr.sge(self.memory.sge(self.base..self.base + len)?)
    }

    /// Copies to the slot.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result {
        self.memory.write(self.base + offset, bytes)
    }

    /// Copies from the slot.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result {
        self.memory.read(self.base + offset, bytes)
    }

    /// Fills `len` bytes at `offset` with a payload.
    pub(crate) fn fill(&self, offset: usize, len: usize, pattern: Pattern) -> Result {
        fill(&self.memory, self.base + offset, len, pattern)
    }

    /// Whether the `len` bytes at `offset` are that payload.
    pub(crate) fn holds(&self, offset: usize, len: usize, pattern: Pattern) -> Result<bool> {
        matches(&self.memory, self.base + offset, len, pattern)
    }
}

fn fill(memory: &Mapped, begin: usize, len: usize, pattern: Pattern) -> Result {
    let mut bytes = [0; STEP];
    let mut at = 0;
    while at < len {
        let n = STEP.min(len - at);
        pattern.fill(at, &mut bytes[..n]);
        memory.write(begin + at, &bytes[..n])?;
        at += n;
    }
    Ok(())
}

/// Whether each eight bytes are what `word` says of their offset, low byte first. `len` is a multiple
/// of eight.
fn words_match(
    memory: &Mapped,
    begin: usize,
    len: usize,
    word: impl Fn(usize) -> u64,
) -> Result<bool> {
    let mut bytes = [0; STEP];
    let mut at = 0;
    while at < len {
        let n = STEP.min(len - at);
        memory.read(begin + at, &mut bytes[..n])?;
        let mut words = bytes[..n].chunks_exact(8).enumerate();
        if !words.all(|(i, bytes)| *bytes == word(at + i * 8).to_le_bytes()) {
            return Ok(false);
        }
        at += n;
    }
    Ok(true)
}

/// Makes each byte `byte`.
fn wipe(memory: &Mapped, begin: usize, len: usize, byte: u8) -> Result {
    let mut at = 0;
    while at < len {
        let n = STEP.min(len - at);
        memory.write(begin + at, &[byte; STEP][..n])?;
        at += n;
    }
    Ok(())
}

/// Whether memory holds a payload; looks no further than to the first difference.
fn matches(memory: &Mapped, begin: usize, len: usize, pattern: Pattern) -> Result<bool> {
    let mut bytes = [0; STEP];
    let mut at = 0;
    while at < len {
        let n = STEP.min(len - at);
        memory.read(begin + at, &mut bytes[..n])?;
        if !pattern.matches(at, &bytes[..n]) {
            return Ok(false);
        }
        at += n;
    }
    Ok(true)
}

/// How much of a payload is in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Every byte.
    All,
    /// From some byte on, only zeros: the end did not arrive.
    Start,
    /// Something else.
    Other,
}

fn compare(memory: &Mapped, begin: usize, len: usize, pattern: Pattern) -> Result<Found> {
    let mut bytes = [0; STEP];
    let mut at = 0;
    let mut ended = false;
    while at < len {
        let n = STEP.min(len - at);
        memory.read(begin + at, &mut bytes[..n])?;
        if ended || !pattern.matches(at, &bytes[..n]) {
            let mut right = [0; STEP];
            pattern.fill(at, &mut right[..n]);
            let good = match ended {
                true => 0,
                false => bytes.iter().zip(&right).take_while(|(a, b)| a == b).count(),
            };
            if bytes[good.min(n)..n].iter().any(|b| *b != 0) {
                return Ok(Found::Other);
            }
            ended = true;
        }
        at += n;
    }
    Ok(if ended { Found::Start } else { Found::All })
}

/// Memory of one connection that the peer may reach.
pub(crate) struct Exposed {
    stride: usize,
    per_piece: NonZeroUsize,
    pieces: KVec<RegisteredMr>,
}

/// How many slots of `stride` bytes are registered as one region: those of a piece, if the device
/// can.
fn slots_per_region(pd: &Pd, stride: usize) -> NonZeroUsize {
    let longest = pd.device().caps().max_fast_reg_pages as usize * PAGE_SIZE;
    let fit = longest.checked_div(stride).and_then(NonZeroUsize::new);
    slots_per_piece(stride).min(fit.unwrap_or(NonZeroUsize::MIN))
}

/// A piece on its way to be registered.
pub(crate) fn piece(
    pd: &Arc<Pd>,
    slots: u32,
    stride: usize,
    at: u32,
    access: crate::verbs::Access,
) -> Result<Option<Registration>> {
    let per_piece = slots_per_region(pd, stride);
    let before = at as usize * per_piece.get();
    let Some(n) = (slots as usize).checked_sub(before).filter(|n| *n > 0) else {
        return Ok(None);
    };
    let buffer = Buffer::new(n.min(per_piece.get()) * stride, None)?;
    let memory = Mapped::new(pd, buffer, Direction::Bidirectional)?;
    let region = Mr::new(pd, memory.len())?;
    Ok(Some(region.register(memory, access)?))
}

impl Exposed {
    /// Nothing yet, of slots of `stride` bytes.
    pub(crate) fn new(pd: &Pd, stride: usize) -> Self {
        Self {
            stride,
            per_piece: slots_per_region(pd, stride),
            pieces: KVec::new(),
        }
    }

    /// Adds the next piece, of `slots` slots in all, and says how the peer reaches it.
    pub(crate) fn add(&mut self, region: RegisteredMr, slots: u32) -> Result<Region> {
        let first = self.pieces.len() * self.per_piece.get();
        let remote = region.remote(0)?;
        self.pieces.push(region, GFP_KERNEL)?;
        Ok(Region {
            first: first as u32,
            slots: (slots as usize - first).min(self.per_piece.get()) as u32,
            addr: remote.addr,
            rkey: remote.rkey,
            stride: self.stride as u32,
        })
    }

    /// Pieces so far.
    pub(crate) fn pieces(&self) -> u32 {
        self.pieces.len() as u32
    }

    /// Slots so far, of `all` in the end.
    pub(crate) fn slots(&self, all: u32) -> u32 {
        ((self.pieces.len() * self.per_piece.get()) as u32).min(all)
    }

    fn at(&self, slot: u32) -> Result<(&Mapped, usize)> {
        let slot = slot as usize;
        let piece = self.pieces.get(slot / self.per_piece).ok_or(EINVAL)?;
        Ok((piece.memory(), slot % self.per_piece * self.stride))
    }

    /// The name of `offset` of a slot, for the peer.
    pub(crate) fn remote(&self, slot: u32, offset: usize) -> Result<RemoteAddr> {
        let slot = slot as usize;
        let piece = self.pieces.get(slot / self.per_piece).ok_or(EINVAL)?;
        piece.remote(slot % self.per_piece * self.stride + offset)
    }

    /// One byte of a slot, for who polls memory.
    pub(crate) fn peek(&self, slot: u32, offset: usize) -> Result<u8> {
        let (memory, base) = self.at(slot)?;
        memory.peek(base + offset)
    }

    /// Fills `len` bytes at `offset` of a slot with a payload.
    pub(crate) fn fill(&self, slot: u32, offset: usize, len: usize, pattern: Pattern) -> Result {
        let (memory, base) = self.at(slot)?;
        fill(memory, base + offset, len, pattern)
    }

    /// What is at `offset` of a slot.
    pub(crate) fn compare(
        &self,
        slot: u32,
        offset: usize,
        len: usize,
        pattern: Pattern,
    ) -> Result<Found> {
        let (memory, base) = self.at(slot)?;
        compare(memory, base + offset, len, pattern)
    }

    /// Sets `len` bytes at `offset` of a slot to 0.
    pub(crate) fn clear(&self, slot: u32, offset: usize, len: usize) -> Result {
        let (memory, base) = self.at(slot)?;
        wipe(memory, base + offset, len, 0)
    }

    /// Makes the first `len` bytes of a slot what no payload of words is.
    pub(crate) fn spoil(&self, slot: u32, len: usize) -> Result {
        let (memory, base) = self.at(slot)?;
        wipe(memory, base, len, 0xff)
    }

    /// Whether each eight bytes of the first `len` of a slot are what `word` says of their offset, low
    /// byte first. `len` is a multiple of eight.
    pub(crate) fn holds_words(
        &self,
        slot: u32,
        len: usize,
        word: impl Fn(usize) -> u64,
    ) -> Result<bool> {
        let (memory, base) = self.at(slot)?;
        words_match(memory, base, len, word)
    }

    /// The word that atomics work on: the first 8 bytes, in the host's order.
    pub(crate) fn word(&self) -> Result<u64> {
        let (memory, base) = self.at(0)?;
        let mut bytes = [0; 8];
        memory.read(base, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// The peer's slots, as it told of them.
pub(crate) struct Remote {
    slots: u32,
    known: u32,
    regions: KVec<Region>,
}

impl Remote {
    /// Nothing known of `slots` slots.
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            slots,
            known: 0,
            regions: KVec::new(),
        }
    }

    /// Takes what the peer says. It must go on where it stopped and fit the load; the addresses
    /// and keys are its own business.
    pub(crate) fn add(&mut self, region: Region, load: &Load) -> Result {
        let end = region.first.checked_add(region.slots).ok_or(EPROTO)?;
        if region.slots == 0
            || region.first != self.known
            || end > self.slots
            || region.stride as usize != load.stride()
        {
            return Err(EPROTO);
        }
        let bytes = u64::from(region.slots) * u64::from(region.stride);
        region.addr.checked_add(bytes).ok_or(EPROTO)?;
        self.regions.push(region, GFP_KERNEL)?;
        self.known = end;
        Ok(())
    }

    /// Whether every slot is known.
    pub(crate) fn complete(&self) -> bool {
        self.known == self.slots
    }

    /// The name of `offset` of a slot.
    pub(crate) fn at(&self, slot: u32, offset: usize) -> Result<RemoteAddr> {
        // All regions but the last are of one size, so the first tells where to look.
        let per_region = self.regions.first().ok_or(EINVAL)?.slots;
        let per_region = NonZeroU32::new(per_region).ok_or(EINVAL)?;
        let region = self
            .regions
            .get((slot / per_region) as usize)
            .ok_or(EINVAL)?;
        let within = slot.checked_sub(region.first).filter(|n| *n < region.slots);
        let within = within.ok_or(EINVAL)?;
        Ok(RemoteAddr {
            addr: region.addr + u64::from(within) * u64::from(region.stride) + offset as u64,
            rkey: region.rkey,
        })
    }
}
