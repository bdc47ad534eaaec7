// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of page lists, by scatterlists that are made once and used again and again.
//!
//! ```text
//! SgTable --map(page list)--> MappedPages --unmap--> SgTable and page list
//! ```
//!
//! Neither step allocates or sleeps. A [`MappedPages`] can be used in three ways: registered as one
//! region ([`super::Mr::register`]), in local work requests piece by piece
//! ([`MappedPages::sges`]), or both.
//!
//! C headers: `include/linux/scatterlist.h`, `include/rdma/ib_verbs.h` (`ib_dma_map_sg`)

use super::{
    dma::{count_mapping, uncount_mapping},
    mr::sealed::Describe,
    pages::for_each_in,
    qp::filled,
    Direction, PageList, PageRefs, Pd, Sge,
};
use crate::sys;
use core::{mem::ManuallyDrop, ops::Range, ptr::NonNull};
use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};

/// A scatterlist with a fixed number of entries, for mappings of one PD.
///
/// A pointer, as is what it becomes, because each operation moves it several times.
pub(crate) struct SgTable(KBox<Table>);

/// The scatterlist, with what is mapped by it.
///
/// # Invariants
///
/// The entries are an initialised scatterlist, of which only the last is marked as the end.
struct Table {
    pd: Arc<Pd>,
    entries: KVVec<sys::scatterlist>,
    /// The longest piece that the device takes, bytes.
    longest: usize,
    /// Entries that were mapped, and pieces that the device sees.
    filled: i32,
    mapped: i32,
    /// Bytes that are mapped.
    len: usize,
    direction: Direction,
}

// SAFETY: Entries are numbers, and pointers that belong to whoever is mapped.
unsafe impl Send for SgTable {}
// SAFETY: `&SgTable` offers nothing that changes it.
unsafe impl Sync for SgTable {}

impl SgTable {
    /// Makes a table with room for `entries` pieces (neighbours count as one). Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for none, `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, entries: usize) -> Result<Self> {
        let n = u32::try_from(entries)?;
        if n == 0 || n > i32::MAX as u32 {
            return Err(EINVAL);
        }
        let mut list = filled(entries, sys::scatterlist::default)?;
        // SAFETY: There are so many entries.
        unsafe { sys::sg_init_table(list.as_mut_ptr(), n) };
        // SAFETY: The device is registered (invariant of `Device`).
        let longest = unsafe { sys::rivet_ib_dma_max_seg_size(pd.device().as_raw()) };
        let table = Table {
            pd: pd.clone(),
            entries: list,
            longest: (longest as usize & !(PAGE_SIZE - 1)).max(PAGE_SIZE),
            filled: 0,
            mapped: 0,
            len: 0,
            direction: Direction::ToDevice,
        };
        Ok(Self(KBox::new(table, GFP_KERNEL)?))
    }

    /// Pieces that it has room for.
    pub(crate) fn capacity(&self) -> usize {
        self.0.entries.len()
    }

    /// The PD whose mappings it makes.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.0.pd
    }

    /// Maps `range` of the bytes of `pages`. Does not sleep or allocate.
    ///
    /// # Errors
    ///
    /// Table and pages come back: `EINVAL` if the range is empty or the pages have no such, `E2BIG`
    /// if it has more pieces than the table, `EIO` if the device cannot reach it.
    #[allow(clippy::type_complexity)]
    pub(crate) fn map<P: PageList>(
        mut self,
        pages: P,
        range: Range<usize>,
        direction: Direction,
    ) -> core::result::Result<MappedPages<P>, (Error, Self, P)> {
        let len = range.end.saturating_sub(range.start);
        let table = &mut *self.0;
        let filled = match table.fill(&pages, range) {
            Ok(n) => n,
            Err(e) => return Err((e, self, pages)),
        };
        // SAFETY: The device is registered, and `fill` has set so many entries, to memory that
        // stays until `pages` is dropped (`PageList`).
        let mapped = unsafe {
            sys::rivet_ib_dma_map_sg(
                table.pd.device().as_raw(),
                table.entries.as_mut_ptr(),
                filled,
                direction.as_raw(),
            )
        };
        if mapped <= 0 {
            return Err((EIO, self, pages));
        }
        count_mapping();
        table.filled = filled;
        table.mapped = mapped;
        table.len = len;
        table.direction = direction;
        // INVARIANT: Mapped just now.
        Ok(MappedPages {
            table: ManuallyDrop::new(self),
            pages: ManuallyDrop::new(pages),
        })
    }
}

impl Table {
    /// Sets entries to `range` of `pages`; returns how many.
    fn fill<P: PageList>(&mut self, pages: &P, range: Range<usize>) -> Result<i32> {
        let entries = &mut self.entries;
        let longest = self.longest;
        // The entries before `next`, of which the last is `start` to `end`.
        let mut next = 0;
        let (mut start, mut end) = (core::ptr::null_mut::<u8>(), core::ptr::null_mut::<u8>());
        for_each_in(pages, range, |piece| {
            let (mut at, mut left) = (piece.start.as_ptr(), piece.len);
            while left > 0 {
                let before = end.addr() - start.addr();
                let joins = next > 0 && at == end && before < longest;
                if !joins {
                    next += 1;
                    start = at;
                }
                let before = if joins { before } else { 0 };
                let n = left.min(longest - before);
                let entry = entries.get_mut(next - 1).ok_or(E2BIG)?;
                // SAFETY: The entry is one of the table; the bytes are in the linear map
                // (`PageList`), one behind the other. No longer than a 32-bit number, as `longest`.
                unsafe { sys::rivet_sg_set_buf(entry, start.cast(), (before + n) as u32) };
                at = at.wrapping_add(n);
                end = at;
                left -= n;
            }
            Ok(())
        })?;
        if next == 0 {
            return Err(EINVAL);
        }
        Ok(i32::try_from(next)?)
    }
}

/// A page list under a DMA mapping, for use in work requests of one PD.
///
/// # Invariants
///
/// The first `filled` entries of `table` are a mapping of memory of `pages` for the PD's device
/// with `direction`, which has `mapped` pieces of `len` bytes in all; [`MappedPages::end`] ends it.
pub(crate) struct MappedPages<P: PageList = PageRefs> {
    table: ManuallyDrop<SgTable>,
    pages: ManuallyDrop<P>,
}

// SAFETY: `&MappedPages` offers reading of numbers, and copies; it gives no reference to `pages`.
unsafe impl<P: PageList> Sync for MappedPages<P> {}

impl<P: PageList> MappedPages<P> {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.table.0.len
    }

    /// The PD that it can be used with.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.table.0.pd
    }

    /// Pieces that the device sees: as many SGEs cover all of it.
    pub(crate) fn pieces(&self) -> u32 {
        self.table.0.mapped.unsigned_abs()
    }

    /// SGEs over `range`, for a local work request: one for each piece.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range does not lie within.
    pub(crate) fn sges(&self, range: Range<usize>) -> Result<Sges<'_>> {
        if range.start > range.end || range.end > self.table.0.len {
            return Err(EINVAL);
        }
        let mapped = self.table.0.mapped.unsigned_abs() as usize;
        Ok(Sges {
            pd: &self.table.0.pd,
            entries: self.table.0.entries.get(..mapped).ok_or(EINVAL)?,
            skip: range.start,
            left: range.end - range.start,
        })
    }

    /// Begins the CPU's turn: what the device wrote is visible to it. Not needed before
    /// [`MappedPages::unmap`], which does it as well.
    pub(crate) fn sync_for_cpu(&self) {
        // SAFETY: The mapping is alive (type invariant); only the memory is synchronised, the
        // entries are read.
        unsafe {
            sys::rivet_ib_dma_sync_sg_for_cpu(
                self.table.0.pd.device().as_raw(),
                self.table.0.entries.as_ptr().cast_mut(),
                self.table.0.filled,
                self.table.0.direction.as_raw(),
            )
        };
    }

    /// Ends the CPU's turn: what it wrote is visible to the device. Not needed behind
    /// [`SgTable::map`], which does it as well.
    pub(crate) fn sync_for_device(&self) {
        // SAFETY: As for `sync_for_cpu`.
        unsafe {
            sys::rivet_ib_dma_sync_sg_for_device(
                self.table.0.pd.device().as_raw(),
                self.table.0.entries.as_ptr().cast_mut(),
                self.table.0.filled,
                self.table.0.direction.as_raw(),
            )
        };
    }

    /// Ends the mapping; table and pages can be used again. Does not sleep.
    pub(crate) fn unmap(self) -> (SgTable, P) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used after this function, nor dropped.
        unsafe {
            this.end();
            (
                ManuallyDrop::take(&mut this.table),
                ManuallyDrop::take(&mut this.pages),
            )
        }
    }

    /// # Safety
    ///
    /// To be called once, at the object's end.
    unsafe fn end(&mut self) {
        // SAFETY: The mapping is alive and ours (type invariant).
        unsafe {
            sys::rivet_ib_dma_unmap_sg(
                self.table.0.pd.device().as_raw(),
                self.table.0.entries.as_mut_ptr(),
                self.table.0.filled,
                self.table.0.direction.as_raw(),
            )
        };
        uncount_mapping();
    }
}

impl<P: PageList> Drop for MappedPages<P> {
    fn drop(&mut self) {
        // SAFETY: This is the object's end; neither is used after it.
        unsafe {
            self.end();
            ManuallyDrop::drop(&mut self.table);
            ManuallyDrop::drop(&mut self.pages);
        }
    }
}

impl<P: PageList> Describe for MappedPages<P> {
    fn domain(&self) -> &Arc<Pd> {
        &self.table.0.pd
    }

    fn length(&self) -> usize {
        self.table.0.len
    }

    /// `EINVAL` for pieces that have a gap between them, in pages: only the first may begin, and
    /// only the last end, within a page.
    unsafe fn describe(&self, region: NonNull<sys::ib_mr>) -> Result {
        // SAFETY: By the function's safety requirement; the entries are mapped (type invariant) and
        // only read.
        let (n, len) = unsafe {
            let n = sys::ib_map_mr_sg(
                region.as_ptr(),
                self.table.0.entries.as_ptr().cast_mut(),
                self.table.0.mapped,
                core::ptr::null_mut(),
                PAGE_SIZE as u32,
            );
            (n, (*region.as_ptr()).length)
        };
        if n < 0 {
            return Err(Error::from_errno(n));
        }
        if n != self.table.0.mapped || len != self.table.0.len as u64 {
            return Err(EINVAL);
        }
        Ok(())
    }
}

/// SGEs over a [`MappedPages`], in order.
pub(crate) struct Sges<'m> {
    pd: &'m Arc<Pd>,
    entries: &'m [sys::scatterlist],
    skip: usize,
    left: usize,
}

impl<'m> Iterator for Sges<'m> {
    type Item = Sge<'m>;

    fn next(&mut self) -> Option<Sge<'m>> {
        while self.left > 0 {
            let (entry, rest) = self.entries.split_first()?;
            self.entries = rest;
            let entry = core::ptr::from_ref(entry).cast_mut();
            // SAFETY: The entry is mapped, as long as it is borrowed; it is only read.
            let (start, len) = unsafe {
                (
                    sys::rivet_sg_dma_address(entry),
                    sys::rivet_sg_dma_len(entry),
                )
            };
            let all = len as usize;
            if self.skip >= all {
                self.skip -= all;
                continue;
            }
            let n = self.left.min(all - self.skip);
            let begin = core::mem::take(&mut self.skip);
            self.left -= n;
            let lkey = self.pd.local_dma_lkey();
            return super::dma::sge_of(self.pd, start, all, lkey, begin..begin + n).ok();
        }
        None
    }
}
