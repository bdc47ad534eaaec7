// SPDX-License-Identifier: GPL-2.0

//! Memory in pieces: references, copies, mappings, and regions over it.

#![forbid(unsafe_code)]

use crate::{
    harness::{check, check_eq, check_err, Case, Outcome},
    rig::{fill, is_filled, memory, pair, plain, End, Pair, Rig, Token},
    verbs::{
        dma::live_mappings, Access, Buffer, Buffers, Direction, Mapped, MappedPages, Mr, PageList,
        PageRefs, Pd, SgTable, WcStatus,
    },
};
use core::ops::Range;
use kernel::{prelude::*, sync::Arc};

/// In the order in which they run.
pub(crate) const CASES: &[Case] = &[
    ("pages_references", pages_references),
    ("pages_outlive_their_buffer", pages_outlive_their_buffer),
    ("pages_of_a_list", pages_of_a_list),
    ("pages_frames", pages_frames),
    ("pages_copy", pages_copy),
    ("pages_copy_limits", pages_copy_limits),
    ("pages_copy_to_themselves", pages_copy_to_themselves),
    ("sg_limits", sg_limits),
    ("sg_neighbours", sg_neighbours),
    ("sg_ranges", sg_ranges),
    ("sg_again", sg_again),
    ("sg_of_shared_buffers", sg_of_shared_buffers),
    ("sg_send", sg_send),
    ("sg_foreign_pd", sg_foreign_pd),
    ("mr_over_pages", mr_over_pages),
    ("mr_over_pages_with_gaps", mr_over_pages_with_gaps),
    ("mr_over_pages_cycles", mr_over_pages_cycles),
];

const ALL: usize = 4096;

/// References to those ranges of pages that are not neighbours, each of a buffer of its own.
fn scattered(ranges: &[Range<usize>]) -> Result<PageRefs> {
    let mut refs = PageRefs::new(ranges.len())?;
    for range in ranges {
        // Of the second half of two blocks: the page before it is not the end of another.
        let buffer = Buffer::new(4 * ALL, None)?;
        refs.add(&buffer, 2 * ALL + range.start..2 * ALL + range.end)?;
    }
    Ok(refs)
}

/// What a request of three pages that begins and ends within a page looks like.
fn request() -> Result<PageRefs> {
    scattered(&[1096..ALL, 0..ALL, 0..1000])
}

/// Its bytes.
const REQUEST: usize = 3000 + ALL + 1000;

/// Writes the pattern of `seed` to all of `pages`, by way of `pool`.
fn fill_pages<P: PageList>(pages: &P, pool: &Mapped, seed: u8) -> Result {
    fill(pool, 0, pages.total(), seed)?;
    pool.copy_to_pages(0, pages, 0..pages.total())
}

/// Whether it is there.
fn pages_are_filled<P: PageList>(pages: &P, pool: &Mapped, seed: u8) -> Result<bool> {
    // Nothing of what was there before.
    fill(pool, 0, pages.total(), seed ^ 0x80)?;
    pool.copy_from_pages(0, pages, 0..pages.total())?;
    is_filled(pool, 0, pages.total(), seed)
}

/// The error of an attempt to map; table and pages must come back.
macro_rules! check_no_map {
    ($result:expr, $code:expr) => {
        match $result {
            Err((e, table, pages)) => {
                check_eq!(e, $code);
                (table, pages)
            }
            Ok(_) => {
                check!(false);
                return Ok(());
            }
        }
    };
}

/// What an attempt to map gave, or its error.
fn mapped<P: PageList>(
    result: core::result::Result<MappedPages<P>, (Error, SgTable, P)>,
) -> Result<MappedPages<P>> {
    result.map_err(|(e, ..)| e)
}

fn pages_references(_rig: &Rig) -> Outcome {
    let buffer = Buffer::new(2 * ALL, None)?;
    check_eq!(buffer.len(), 2 * ALL);
    let mut refs = PageRefs::new(3)?;
    check_err!(refs.add(&buffer, 0..0), EINVAL);
    check_err!(refs.add(&buffer, 0..2 * ALL + 1), EINVAL);
    check_err!(refs.add(&buffer, usize::MAX - 1..usize::MAX), EINVAL);
    let (start, stop) = (5, 4);
    check_err!(refs.add(&buffer, start..stop), EINVAL);
    check_eq!(refs.total(), 0);
    for n in 1..=3 {
        refs.add(&buffer, 10..110)?;
        check_eq!(refs.total(), n * 100);
    }
    // As much as was asked for, or a bit more.
    let mut room = 3;
    while room < 4096 && refs.add(&buffer, 0..1).is_ok() {
        room += 1;
    }
    check!(room < 4096);
    check_err!(refs.add(&buffer, 0..1), ENOSPC);
    // Of another list: all or nothing.
    let mut few = PageRefs::new(1)?;
    let mut room = 0;
    while few.add(&buffer, 0..1).is_ok() {
        room += 1;
    }
    few.clear();
    check_eq!(few.total(), 0);
    refs.clear();
    for at in 0..3 {
        refs.add(&buffer, at * 1000..at * 1000 + 10)?;
    }
    check_err!(few.add_refs(&refs, 0..31), EINVAL);
    check_eq!(few.total(), 0);
    if room < 3 {
        check_err!(few.add_refs(&refs, 5..25), ENOSPC);
        check_eq!(few.total(), 0);
    }
    few.add_refs(&refs, 12..17)?;
    check_eq!(few.total(), 5);
    let piece = few.pieces().next().ok_or(EIO)?;
    let second = refs.pieces().nth(1).ok_or(EIO)?;
    check!(piece != second);
    drop(refs);
    drop(buffer);
    few.clear();
    Ok(())
}

/// The pages of a buffer that is gone stay for who has references to them, and for nobody else.
fn pages_outlive_their_buffer(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let pool = plain(&pd, 4 * ALL)?;
    for order in 0..5 {
        let len = ALL << order;
        let mut refs = PageRefs::new(2)?;
        let buffer = Buffer::new(len, None)?;
        refs.add(&buffer, len - ALL..len)?;
        refs.add(&buffer, 100..200)?;
        let mapped = Mapped::new(&pd, buffer, Direction::Bidirectional)?;
        fill(&mapped, len - ALL, ALL, 9)?;
        drop(mapped);
        // Somebody else's, if they were free.
        let mut others = KVec::new();
        for _ in 0..32 {
            let other = plain(&pd, len)?;
            fill(&other, len - 64, 64, 200)?;
            others.push(other, GFP_KERNEL)?;
        }
        pool.copy_from_pages(0, &refs, 0..ALL)?;
        check!(is_filled(&pool, 0, ALL, 9)?);
    }
    Ok(())
}

/// References to the pages of another list, a page for each, stay as the others do.
fn pages_of_a_list(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let (pool, back) = (plain(&pd, 4 * ALL)?, plain(&pd, 4 * ALL)?);
    let buffer = Arc::new(Buffer::new(4 * ALL, None)?, GFP_KERNEL)?;
    let mut refs = PageRefs::new(3)?;
    check_err!(refs.add_pages(&buffer, 0..4 * ALL + 1), EINVAL);
    check_eq!(refs.total(), 0);
    refs.add_pages(&buffer, 100..2 * ALL + 50)?;
    check_eq!(refs.total(), 2 * ALL - 50);
    check_eq!(refs.pieces().count(), 3);
    let mut few = PageRefs::new(1)?;
    let mut room = 0;
    while few.add_pages(&refs, 0..1).is_ok() {
        room += 1;
    }
    few.clear();
    if room < 3 {
        check_err!(few.add_pages(&refs, 0..refs.total()), ENOSPC);
        check_eq!(few.total(), 0);
    }
    fill_pages(&refs, &pool, 77)?;
    drop(buffer);
    let mut others = KVec::new();
    for _ in 0..32 {
        let other = plain(&pd, 4 * ALL)?;
        fill(&other, 0, 4 * ALL, 200)?;
        others.push(other, GFP_KERNEL)?;
    }
    check!(pages_are_filled(&refs, &back, 77)?);
    Ok(())
}

/// Two lists have the same numbers, and begin at the same byte, if and only if they have the same
/// bytes in the same order.
fn pages_frames(_rig: &Rig) -> Outcome {
    let (mut a, mut b) = ([0; 4], [0; 4]);
    let pages = request()?;
    check_eq!(pages.frames(0..REQUEST, &mut a)?, (3, 1096));
    check!(a[0] != a[1] && a[1] != a[2] && a[0] != a[2]);
    check_eq!(pages.frames(3000..REQUEST, &mut b)?, (2, 0));
    check!(b[..2] == a[1..3]);
    check_eq!(pages.frames(2999..3001, &mut b)?, (2, ALL - 1));
    check_err!(pages.frames(0..REQUEST + 1, &mut a), EINVAL);
    check_err!(pages.frames(0..REQUEST, &mut a[..2]), ENOSPC);

    let (p, q) = (Buffer::new(ALL, None)?, Buffer::new(ALL, None)?);
    let list = |ranges: &[(&Buffer, Range<usize>)]| -> Result<PageRefs> {
        let mut refs = PageRefs::new(ranges.len())?;
        for (buffer, range) in ranges {
            refs.add(buffer, range.clone())?;
        }
        Ok(refs)
    };
    // In one piece or in two.
    let (one, two) = (
        list(&[(&p, 8..1000)])?,
        list(&[(&p, 8..500), (&p, 500..1000)])?,
    );
    check_eq!(one.frames(0..992, &mut a)?, (1, 8));
    check_eq!(two.frames(0..992, &mut b)?, (1, 8));
    check_eq!(a[0], b[0]);
    // A page twice, which is not the same as once in two pieces.
    let first = list(&[(&p, 0..ALL), (&p, 0..ALL), (&q, 0..64), (&q, 64..ALL)])?;
    let second = list(&[(&p, 0..64), (&p, 64..ALL), (&q, 0..ALL), (&q, 0..ALL)])?;
    check_eq!(first.frames(0..3 * ALL, &mut a)?, (3, 0));
    check_eq!(second.frames(0..3 * ALL, &mut b)?, (3, 0));
    check!(a[0] == a[1] && b[1] == b[2] && a[..3] != b[..3]);
    // With a gap it would be another list's.
    for gap in [
        list(&[(&p, 0..512), (&q, 0..ALL)])?,
        list(&[(&p, 0..ALL), (&q, 8..ALL)])?,
        list(&[(&p, 0..512), (&p, 1024..2048)])?,
        list(&[(&p, 0..512), (&p, 0..512)])?,
    ] {
        check_err!(gap.frames(0..gap.total(), &mut a), EINVAL);
        check_eq!(gap.frames(0..512, &mut a)?.0, 1);
    }
    Ok(())
}

/// Numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.checked_rem(n as u64).unwrap_or(0) as usize
    }
}

fn pages_copy(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let mut random = Random(0x5eed);
    for _ in 0..20 {
        let mut ranges = KVec::new();
        for _ in 0..1 + random.below(6) {
            let start = random.below(ALL);
            let end = start + 1 + random.below(ALL - start);
            ranges.push(start..end, GFP_KERNEL)?;
        }
        let refs = scattered(&ranges)?;
        let all = refs.total();
        let (pool, back) = (plain(&pd, 8 * ALL)?, plain(&pd, 8 * ALL)?);
        for _ in 0..10 {
            let start = random.below(all);
            let len = random.below(all - start + 1);
            let offset = random.below(8 * ALL - len + 1);
            let seed = random.below(256) as u8;
            fill_pages(&refs, &back, 0)?;
            fill(&pool, offset, len, seed)?;
            pool.copy_to_pages(offset, &refs, start..start + len)?;
            back.copy_from_pages(0, &refs, 0..all)?;
            check!(is_filled(&back, start, len, seed)?);
            // The bytes beside it are as they were.
            check!(is_filled(&back, 0, start, 0)?);
            if start + len < all {
                let next = ((start + len) % 251) as u8;
                check_eq!(back.peek(start + len)?, next);
            }
            let to = 8 * ALL - len;
            back.copy_from_pages(to, &refs, start..start + len)?;
            check!(is_filled(&back, to, len, seed)?);
        }
    }
    Ok(())
}

fn pages_copy_limits(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let refs = request()?;
    let pool = plain(&pd, 2 * ALL)?;
    fill_pages(&refs, &pool, 1)?;
    fill(&pool, 0, 2 * ALL, 99)?;
    let (start, stop) = (5, 4);
    for (offset, range) in [
        (0, 0..REQUEST + 1),
        (0, REQUEST..REQUEST + 1),
        (0, start..stop),
        (0, usize::MAX - 1..usize::MAX),
        (2 * ALL - REQUEST + 1, 0..REQUEST),
        (2 * ALL, 0..1),
        (usize::MAX, 0..1),
    ] {
        check_err!(pool.copy_from_pages(offset, &refs, range.clone()), EINVAL);
        check_err!(pool.copy_to_pages(offset, &refs, range), EINVAL);
    }
    check!(is_filled(&pool, 0, 2 * ALL, 99)?);
    check!(pages_are_filled(&refs, &pool, 1)?);
    pool.copy_from_pages(2 * ALL, &refs, REQUEST..REQUEST)?;
    Ok(())
}

/// The pool may be what the references are to.
fn pages_copy_to_themselves(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let buffer = Buffer::new(ALL, None)?;
    let mut refs = PageRefs::new(1)?;
    refs.add(&buffer, 0..ALL)?;
    let pool = Mapped::new(&pd, buffer, Direction::Bidirectional)?;
    fill(&pool, 0, 1000, 3)?;
    pool.copy_from_pages(100, &refs, 0..1000)?;
    check!(is_filled(&pool, 100, 1000, 3)?);
    pool.copy_to_pages(100, &refs, 0..1000)?;
    check!(is_filled(&pool, 0, 1000, 3)?);
    Ok(())
}

fn sg_limits(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    check_err!(SgTable::new(&pd, 0), EINVAL);
    check!(SgTable::new(&pd, usize::MAX).is_err());
    let before = live_mappings();
    let table = SgTable::new(&pd, 2)?;
    check_eq!(table.capacity(), 2);
    let both = Direction::Bidirectional;
    let (start, stop) = (5, 4);
    let (table, refs) = check_no_map!(table.map(request()?, 0..REQUEST, both), E2BIG);
    let (table, refs) = check_no_map!(table.map(refs, 0..REQUEST + 1, both), EINVAL);
    let (table, refs) = check_no_map!(table.map(refs, 7..7, both), EINVAL);
    let (table, refs) = check_no_map!(table.map(refs, start..stop, both), EINVAL);
    let (table, refs) = check_no_map!(table.map(refs, 0..3000 + ALL + 1, both), E2BIG);
    check_eq!(live_mappings(), before);
    // What fits.
    let mapping = mapped(table.map(refs, 10..3000 + ALL, both))?;
    check_eq!((mapping.pieces(), mapping.len()), (2, 2990 + ALL));
    check_eq!(live_mappings(), before + 1);
    let (table, refs) = mapping.unmap();
    check_eq!(live_mappings(), before);
    check_eq!((table.capacity(), refs.total()), (2, REQUEST));
    drop(mapped(table.map(refs, 5000..REQUEST, both))?);
    check_eq!(live_mappings(), before);
    Ok(())
}

/// Pieces that touch are one to the device.
fn sg_neighbours(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let buffer = Buffer::new(4 * ALL, None)?;
    let mut refs = PageRefs::new(4)?;
    for range in [
        100..ALL,
        ALL..2 * ALL,
        2 * ALL..2 * ALL + 1,
        3 * ALL..4 * ALL,
    ] {
        refs.add(&buffer, range)?;
    }
    let all = refs.total();
    let mapping = mapped(SgTable::new(&pd, 2)?.map(refs, 0..all, Direction::ToDevice))?;
    check_eq!(mapping.pieces(), 2);
    let mut sges = mapping.sges(0..all)?;
    check_eq!(
        sges.next().map(|sge| sge.len() as usize),
        Some(2 * ALL + 1 - 100)
    );
    check_eq!(sges.next().map(|sge| sge.len() as usize), Some(ALL));
    check!(sges.next().is_none());
    Ok(())
}

fn sg_ranges(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let table = SgTable::new(&pd, 3)?;
    let mapping = mapped(table.map(request()?, 0..REQUEST, Direction::FromDevice))?;
    for (range, lens) in [
        (0..REQUEST, &[3000, ALL, 1000][..]),
        (0..1, &[1][..]),
        (2999..3001, &[1, 1][..]),
        (3000..3000 + ALL, &[ALL][..]),
        (3001..REQUEST - 1, &[ALL - 1, 999][..]),
        (REQUEST - 1..REQUEST, &[1][..]),
        (REQUEST..REQUEST, &[][..]),
        (5..5, &[][..]),
    ] {
        let mut n = 0;
        for (at, sge) in mapping.sges(range)?.enumerate() {
            check_eq!(Some(sge.len() as usize), lens.get(at).copied());
            n += 1;
        }
        check_eq!(n, lens.len());
    }
    let (start, stop) = (5, 4);
    check_err!(mapping.sges(0..REQUEST + 1), EINVAL);
    check_err!(mapping.sges(start..stop), EINVAL);
    Ok(())
}

/// The same table for mappings of different lengths.
fn sg_again(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let mut table = SgTable::new(&pd, 5)?;
    let mut random = Random(0xa9a1);
    let mut refs = scattered(&[0..ALL, 5..ALL, 0..100, 100..ALL, 0..ALL])?;
    let all = refs.total();
    for _ in 0..100 {
        let start = random.below(all);
        let end = start + 1 + random.below(all - start);
        let mapping = mapped(table.map(refs, start..end, Direction::Bidirectional))?;
        mapping.sync_for_cpu();
        mapping.sync_for_device();
        check_eq!(mapping.len(), end - start);
        let sum: usize = mapping
            .sges(0..end - start)?
            .map(|sge| sge.len() as usize)
            .sum();
        check_eq!(sum, end - start);
        (table, refs) = mapping.unmap();
    }
    Ok(())
}

/// What a caller may have his memory in.
struct Shared {
    buffers: KVec<Buffer>,
    _soul: crate::rig::Soul,
}

impl Buffers for Shared {
    fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }
}

fn sg_of_shared_buffers(rig: &Rig) -> Outcome {
    let census = crate::rig::Census::new()?;
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let mut buffers = KVec::new();
    for _ in 0..3 {
        buffers.push(Buffer::new(2 * ALL, None)?, GFP_KERNEL)?;
    }
    let shared = Shared {
        buffers,
        _soul: census.birth(),
    };
    let shared = Arc::new(shared, GFP_KERNEL)?;
    check_eq!(shared.total(), 6 * ALL);
    let pool = plain(&a.pd, 8 * ALL)?;
    fill_pages(&shared, &pool, 77)?;
    // The mapping alone keeps it.
    let table = SgTable::new(&a.pd, 3)?;
    let len = 3 * ALL;
    let mapping = mapped(table.map(shared, 100..100 + len, Direction::ToDevice))?;
    check_eq!(census.alive(), 1);
    let registration = Mr::new(&a.pd, len)?.try_register(mapping, Access::REMOTE_READ);
    // It spans one page more than it has bytes for.
    let Err((e, _, mapping)) = registration else {
        check!(false);
        return Ok(());
    };
    check_eq!(e, EINVAL);
    let registration = Mr::new(&a.pd, len + ALL)?.register(mapping, Access::REMOTE_READ)?;
    check_eq!(census.alive(), 1);
    drop(registration);
    check_eq!(census.alive(), 0);
    let _ = b.pump()?;
    Ok(())
}

/// One SEND of all pieces, into all pieces.
fn sg_send(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let pool = memory(&a.pd, 2 * ALL)?;
    let refs = request()?;
    fill_pages(&refs, &pool, 31)?;
    let from = mapped(SgTable::new(&a.pd, 3)?.map(refs, 0..REQUEST, Direction::ToDevice))?;
    let to = scattered(&[0..500, 7..ALL, 0..ALL])?;
    let room = to.total();
    let to = mapped(SgTable::new(&b.pd, 3)?.map(to, 0..room, Direction::FromDevice))?;
    let token = Token {
        pages: Some(KBox::new(to, GFP_KERNEL)?),
        ..Default::default()
    };
    b.qp.post_recv(token, |token, wr| {
        for sge in token.pages.as_ref().ok_or(EINVAL)?.sges(0..room)? {
            wr.sge(sge)?;
        }
        Ok(())
    })?;
    b.qp.flush_recv()?;
    let token = Token {
        pages: Some(KBox::new(from, GFP_KERNEL)?),
        ..Default::default()
    };
    a.post(token, |token, wr| {
        wr.signaled();
        for sge in token.pages.as_ref().ok_or(EINVAL)?.sges(0..REQUEST)? {
            wr.sge(sge)?;
        }
        wr.send()
    })?;
    let _ = a.success()?;
    let seen = b.success()?;
    check_eq!(seen.len as usize, REQUEST);
    let (_, refs) = KBox::into_inner(seen.token.pages.ok_or(EIO)?).unmap();
    pool.copy_from_pages(0, &refs, 0..REQUEST)?;
    check!(is_filled(&pool, 0, REQUEST, 31)?);
    Ok(())
}

fn sg_foreign_pd(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let table = SgTable::new(&b.pd, 3)?;
    let foreign = mapped(table.map(request()?, 0..REQUEST, Direction::ToDevice))?;
    let mr = Mr::new(&a.pd, 3 * ALL)?;
    let Err((e, mr, foreign)) = mr.try_register(foreign, Access::REMOTE_READ) else {
        check!(false);
        return Ok(());
    };
    check_eq!(e, EINVAL);
    let token = Token {
        pages: Some(KBox::new(foreign, GFP_KERNEL)?),
        ..Default::default()
    };
    let refused = a.qp.push(token, |token, wr| {
        for sge in token.pages.as_ref().ok_or(EINVAL)?.sges(0..8)? {
            wr.sge(sge)?;
        }
        wr.send()
    });
    check_err!(refused, EINVAL);
    // The region is as good as before.
    let memory = plain(&a.pd, ALL)?;
    let _ = a.register(mr, memory, Access::REMOTE_READ)?;
    Ok(())
}

/// Registers `mapping`, reads `len` bytes from the peer's `remote` into it, and ends that.
fn read_through(
    end: &mut End,
    mr: Mr,
    mapping: MappedPages,
    remote: crate::verbs::RemoteAddr,
) -> Outcome<(Mr, MappedPages)> {
    let len = mapping.len();
    let token = Token {
        paged: Some(KBox::new(
            mr.register(mapping, Access::LOCAL_WRITE)?,
            GFP_KERNEL,
        )?),
        ..Default::default()
    };
    end.post_chain(token, |token, chain| {
        let region = token.paged()?;
        chain.wr(|wr| wr.reg_mr(region))?;
        chain.wr(|wr| {
            wr.sge(region.sge(0..len)?)?;
            wr.read(remote)
        })?;
        chain.wr(|wr| {
            wr.fence();
            wr.signaled();
            wr.local_inv(region)
        })
    })?;
    let mut seen = end.success()?;
    check!(seen.proof);
    Ok(KBox::into_inner(seen.back_paged.take().ok_or(EIO)?))
}

/// Our pages as one region for the peer, and as one SGE for us.
fn mr_over_pages(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let pool = memory(&a.pd, 2 * ALL)?;
    let refs = request()?;
    fill_pages(&refs, &pool, 5)?;
    let table = SgTable::new(&a.pd, 3)?;
    let mapping = mapped(table.map(refs, 0..REQUEST, Direction::Bidirectional))?;
    let registration =
        Mr::new(&a.pd, 3 * ALL)?.register(mapping, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    check_err!(registration.sge(0..REQUEST + 1), EINVAL);
    let (remote, last) = (registration.remote(0)?, registration.remote(REQUEST - 1)?);
    check_eq!(last.addr - remote.addr, REQUEST as u64 - 1);
    let token = Token {
        paged: Some(KBox::new(registration, GFP_KERNEL)?),
        ..Default::default()
    };
    a.post(token, |token, wr| {
        wr.signaled();
        wr.reg_mr(token.paged()?)
    })?;
    let region = KBox::into_inner(a.success()?.token.paged.ok_or(EIO)?).done();
    check_eq!(region.memory().len(), REQUEST);
    // The peer reads and writes it.
    let there = memory(&b.pd, 2 * ALL)?;
    for write in [false, true] {
        if write {
            fill(&there, 0, REQUEST, 6)?;
        }
        b.post(Token::memory(&there), |token, wr| {
            wr.signaled();
            wr.sge(token.mem()?.sge(0..REQUEST)?)?;
            match write {
                true => wr.write(remote),
                false => wr.read(remote),
            }
        })?;
        let _ = b.success()?;
        check!(is_filled(&there, 0, REQUEST, if write { 6 } else { 5 })?);
    }
    // Not a byte beyond.
    b.post(Token::memory(&there), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..2)?)?;
        wr.read(last)
    })?;
    check!(b.one()?.status == WcStatus::RemoteAccess);
    drop(region);
    Ok(())
}

/// What cannot be one region is refused, and region and pages can be used again.
fn mr_over_pages_with_gaps(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let mut mr = Mr::new(&pd, 8 * ALL)?;
    let mut table = SgTable::new(&pd, 4)?;
    for (ranges, good) in [
        (&[0..ALL, 0..ALL][..], true),
        (&[4095..ALL, 0..ALL, 0..1][..], true),
        (&[4000..ALL, 0..20][..], true),
        (&[0..4095, 0..ALL][..], false),
        (&[0..ALL, 1..ALL][..], false),
        (&[0..ALL, 0..10, 0..ALL][..], false),
        (&[0..100, 100..200][..], false),
    ] {
        let refs = scattered(ranges)?;
        let all = refs.total();
        let mapping = mapped(table.map(refs, 0..all, Direction::ToDevice))?;
        match mr.try_register(mapping, Access::REMOTE_READ) {
            Ok(registration) => {
                check!(good);
                drop(registration);
                mr = Mr::new(&pd, 8 * ALL)?;
                table = SgTable::new(&pd, 4)?;
            }
            Err((e, back, mapping)) => {
                check!(!good);
                check_eq!(e, EINVAL);
                mr = back;
                (table, _) = mapping.unmap();
            }
        }
    }
    Ok(())
}

/// A table, a list and a region that go round together.
fn mr_over_pages_cycles(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let source = b.region(2 * ALL, Access::REMOTE_READ)?;
    let pool = memory(&a.pd, 2 * ALL)?;
    let mut table = SgTable::new(&a.pd, 3)?;
    let mut refs = request()?;
    let mut mr = Mr::new(&a.pd, 3 * ALL)?;
    let mut random = Random(7);
    for cycle in 0..300u32 {
        let start = random.below(REQUEST);
        let len = 1 + random.below(REQUEST - start);
        let seed = cycle as u8;
        let looks = cycle % 20 == 0;
        if looks {
            fill(source.memory(), 0, len, seed)?;
        }
        let mapping = mapped(table.map(refs, start..start + len, Direction::FromDevice))?;
        let back = read_through(a, mr, mapping, source.remote(0)?)?;
        mr = back.0;
        (table, refs) = back.1.unmap();
        if looks {
            pool.copy_from_pages(0, &refs, start..start + len)?;
            check!(is_filled(&pool, 0, len, seed)?);
        }
    }
    Ok(())
}
