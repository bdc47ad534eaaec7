// SPDX-License-Identifier: GPL-2.0

//! Memory for the HCA: buffers, DMA mappings, and the SGEs that name them.
//!
//! Memory that an HCA may read or write is shared with a party that no Rust rule binds. It is
//! therefore never seen as a slice or reference: all access copies bytes through raw pointers, by
//! the kernel's `memcpy` and `memmove`, which to the compiler are a black box that accesses each
//! byte by itself. Two that copy to the same bytes at once, be it an HCA or another task, leave
//! each byte as one of them wrote it, and who reads meanwhile gets such bytes: arbitrary data, as
//! in memory that user space maps, but nothing worse.
//!
//! C header: `include/rdma/ib_verbs.h` (`ib_dma_*`)

use super::{
    mr::sealed::Describe,
    pages::{for_each_in, Piece},
    PageList, Pd,
};
use crate::sys;
use core::{marker::PhantomData, ops::Range, ptr::NonNull};
use kernel::{
    alloc::{Allocator, Vec},
    cpu::CpuId,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// A part of the count of DMA mappings, on a cache line of its own.
#[repr(align(64))]
struct Count(Atomic<isize>);

/// DMA mappings of this module that exist now, as a sum: each CPU counts at a place that it shares
/// with few others, and mappings may end on another than they were made on.
static LIVE_MAPPINGS: [Count; 32] = [const { Count(Atomic::new(0)) }; 32];

/// The place of this CPU.
fn counter() -> &'static Atomic<isize> {
    &LIVE_MAPPINGS[CpuId::current().as_u32() as usize % LIVE_MAPPINGS.len()].0
}

/// One more mapping exists.
pub(super) fn count_mapping() {
    counter().fetch_add(1, Relaxed);
}

/// One less does.
pub(super) fn uncount_mapping() {
    counter().fetch_sub(1, Relaxed);
}

/// How many DMA mappings exist now; exact while none is made or ended. Not zero after everything is
/// closed: a leak.
pub(crate) fn live_mappings() -> usize {
    let sum: isize = LIVE_MAPPINGS
        .iter()
        .map(|count| count.0.load(Relaxed))
        .sum();
    usize::try_from(sum).unwrap_or(0)
}

/// Which way a mapping lets data flow (`enum dma_data_direction`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Both ways.
    Bidirectional,
    /// The device reads.
    ToDevice,
    /// The device writes.
    FromDevice,
}

impl Direction {
    pub(super) fn as_raw(self) -> sys::dma_data_direction {
        match self {
            Direction::Bidirectional => sys::dma_data_direction::DMA_BIDIRECTIONAL,
            Direction::ToDevice => sys::dma_data_direction::DMA_TO_DEVICE,
            Direction::FromDevice => sys::dma_data_direction::DMA_FROM_DEVICE,
        }
    }
}

/// Memory that can be put under a mapping.
///
/// # Safety
///
/// `raw` gives a range that stays allocated, at that place, and that nobody makes references to,
/// until the value is dropped; moving the value does not move the range.
pub(crate) unsafe trait Memory: Send + 'static {
    /// Start and length in bytes.
    fn raw(&mut self) -> (NonNull<u8>, usize);
}

/// Zeroed, physically contiguous pages of one node.
///
/// # Invariants
///
/// `page` is the first of `1 << order` pages that belong to this object; `start` is their address.
pub(crate) struct Buffer {
    page: NonNull<sys::page>,
    start: NonNull<u8>,
    order: u32,
}

// SAFETY: Pages may be used and freed from any thread.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` offers nothing.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The longest buffer, bytes: what the page allocator gives in one piece (`MAX_PAGE_ORDER`).
    pub(crate) const MAX: usize = PAGE_SIZE << 10;

    /// Allocates at least `len` bytes (rounded up to a power of two of pages) on `node`, or
    /// anywhere near the caller for `None`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for zero or more than [`Buffer::MAX`] bytes, `ENOMEM`.
    pub(crate) fn new(len: usize, node: Option<i32>) -> Result<Self> {
        if len == 0 || len > Self::MAX {
            return Err(EINVAL);
        }
        let order = len.div_ceil(PAGE_SIZE).next_power_of_two().trailing_zeros();
        let gfp =
            sys::GFP_KERNEL | sys::__GFP_ZERO | sys::__GFP_NOWARN | (1 << sys::___GFP_COMP_BIT);
        // SAFETY: Allocates; the helper looks whether the node exists.
        let page =
            unsafe { sys::rivet_alloc_pages_node(node.unwrap_or(sys::NUMA_NO_NODE), gfp, order) };
        let page = NonNull::new(page).ok_or(ENOMEM)?;
        // SAFETY: The page was just allocated, and not from high memory.
        let start = unsafe { sys::rivet_page_address(page.as_ptr()) };
        // INVARIANT: Allocated with this order.
        Ok(Self {
            page,
            start: NonNull::new(start.cast()).ok_or(ENOMEM)?,
            order,
        })
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        PAGE_SIZE << self.order
    }

    /// The memory node that its pages are really on: where there was no room on the node that it was
    /// asked for, another.
    pub(crate) fn node(&self) -> i32 {
        // SAFETY: The pages are ours and in the linear map (type invariant).
        unsafe { sys::rivet_node_of(self.start.as_ptr().cast()) }
    }

    /// All of it.
    pub(super) fn piece(&self) -> Piece {
        Piece::new(self.start, self.len())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: The pages are ours, of this order (type invariant). They stay for who has taken
        // references to them.
        unsafe { sys::rivet_free_pages(self.page.as_ptr(), self.order) };
    }
}

// SAFETY: The pages stay until `Drop`, and `Buffer` makes no references to them.
unsafe impl Memory for Buffer {
    fn raw(&mut self) -> (NonNull<u8>, usize) {
        (self.start, self.len())
    }
}

// SAFETY: The elements stay at their place until the vector is dropped, as the mapping that it is
// moved into does not give it out.
unsafe impl<A: Allocator + Send + 'static> Memory for Vec<u8, A> {
    fn raw(&mut self) -> (NonNull<u8>, usize) {
        let len = self.len();
        // A vector's pointer is never null.
        (
            NonNull::new(self.as_mut_ptr()).unwrap_or(NonNull::dangling()),
            len,
        )
    }
}

/// Memory under a DMA mapping, for use in work requests of one PD.
///
/// # Invariants
///
/// * `start` and `len` are what `memory` gave.
/// * `dma` is a mapping of that range for the PD's device with `direction`, which `Drop` ends.
pub(crate) struct Mapped<M: Memory = Buffer> {
    pd: Arc<Pd>,
    dma: u64,
    start: NonNull<u8>,
    len: usize,
    direction: Direction,
    /// Freed after `Drop` has ended the mapping.
    memory: M,
}

// SAFETY: `Memory` is `Send`; a mapping may be used and ended from any thread.
unsafe impl<M: Memory> Send for Mapped<M> {}
// SAFETY: `&Mapped` offers copies through raw pointers only, to memory that is shared with the
// device anyway; it gives no reference to `memory`, and only asks a `Buffer`, which is `Sync`, where
// it is.
unsafe impl<M: Memory> Sync for Mapped<M> {}

impl Mapped<Buffer> {
    /// See [`Buffer::node`].
    pub(crate) fn node(&self) -> i32 {
        self.memory.node()
    }
}

impl<M: Memory> Mapped<M> {
    /// Maps `memory` for the device of `pd`. Does not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for memory that has no fixed physical place in one piece (from vmalloc, say) or no
    /// length; `EIO` if the device cannot reach it.
    pub(crate) fn new(pd: &Arc<Pd>, mut memory: M, direction: Direction) -> Result<Self> {
        let (start, len) = memory.raw();
        let device = pd.device().as_raw();
        // SAFETY: Looks at the address only.
        if !unsafe { sys::rivet_can_dma_map(start.as_ptr().cast(), len) } {
            return Err(EINVAL);
        }
        // SAFETY: The range is allocated (`Memory`) and in the linear map (checked above); the
        // device is registered (invariant of `Device`).
        let dma = unsafe {
            sys::rivet_ib_dma_map_single(device, start.as_ptr().cast(), len, direction.as_raw())
        };
        // SAFETY: The address comes from the call above.
        if unsafe { sys::rivet_ib_dma_mapping_error(device, dma) } != 0 {
            return Err(EIO);
        }
        count_mapping();
        // INVARIANT: Mapped just now.
        Ok(Self {
            pd: pd.clone(),
            dma,
            start,
            len,
            direction,
            memory,
        })
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The PD that it can be used with.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// An SGE over `range`, for a local work request.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range does not lie within the buffer.
    pub(crate) fn sge(&self, range: Range<usize>) -> Result<Sge<'_>> {
        sge_of(
            &self.pd,
            self.dma,
            self.len,
            self.pd.local_dma_lkey(),
            range,
        )
    }

    /// The address of `offset`, if `len` bytes fit there.
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len {
            return Err(EINVAL);
        }
        // SAFETY: Within the range, as just checked.
        Ok(unsafe { self.start.as_ptr().add(offset) })
    }

    /// Copies `from` into the memory at `offset`, for the device to see. Does not sleep.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result {
        let to = self.at(offset, from.len())?;
        // SAFETY: `to` is valid for that many bytes, and `from` is another allocation, as nobody
        // has a reference to mapped memory (`Memory`).
        unsafe { sys::rivet_copy(to.cast(), from.as_ptr().cast(), from.len()) };
        self.sync_for_device(offset, from.len());
        Ok(())
    }

    /// Zeroes `len` bytes at `offset`, for the device to see. Does not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are none such.
    pub(crate) fn clear(&self, offset: usize, len: usize) -> Result {
        let to = self.at(offset, len)?;
        // SAFETY: `to` is valid for that many bytes, to which nobody has a reference (`Memory`).
        unsafe { sys::rivet_clear(to.cast(), len) };
        self.sync_for_device(offset, len);
        Ok(())
    }

    /// Copies memory at `offset`, as the device left it, to `to`. Does not sleep.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        let from = self.at(offset, to.len())?;
        self.sync_for_cpu(offset, to.len());
        // SAFETY: `from` is valid for that many bytes, and `to` is another allocation, as nobody
        // has a reference to mapped memory (`Memory`).
        unsafe { sys::rivet_copy(to.as_mut_ptr().cast(), from.cast(), to.len()) };
        Ok(())
    }

    /// Copies `range` of the bytes of `pages` into the memory at `offset`, for the device to see.
    /// Does not sleep or allocate.
    ///
    /// # Errors
    ///
    /// `EINVAL` if one of the two has no such bytes; nothing is copied then.
    pub(crate) fn copy_from_pages<P: PageList>(
        &self,
        offset: usize,
        pages: &P,
        range: Range<usize>,
    ) -> Result {
        let len = range.end.checked_sub(range.start).ok_or(EINVAL)?;
        let mut to = self.at(offset, len)?;
        for_each_in(pages, range, |piece| {
            // SAFETY: The pieces are `len` bytes in all, for which there is room at `to`, and stay
            // as long as `pages` (`PageList`).
            unsafe {
                copy(to, piece.start.as_ptr(), piece.len);
                to = to.add(piece.len);
            }
            Ok(())
        })?;
        self.sync_for_device(offset, len);
        Ok(())
    }

    /// Copies the memory at `offset`, as the device left it, to `range` of the bytes of `pages`.
    /// Does not sleep or allocate.
    ///
    /// # Errors
    ///
    /// `EINVAL` if one of the two has no such bytes; nothing is copied then.
    pub(crate) fn copy_to_pages<P: PageList>(
        &self,
        offset: usize,
        pages: &P,
        range: Range<usize>,
    ) -> Result {
        let len = range.end.checked_sub(range.start).ok_or(EINVAL)?;
        let mut from = self.at(offset, len)?;
        self.sync_for_cpu(offset, len);
        for_each_in(pages, range, |piece| {
            // SAFETY: As in `copy_from_pages`, the other way round; nobody has a reference to the
            // bytes of the pieces.
            unsafe {
                copy(piece.start.as_ptr(), from, piece.len);
                from = from.add(piece.len);
            }
            Ok(())
        })
    }

    /// One byte as the device left it, for who polls memory. Does not sleep.
    pub(crate) fn peek(&self, offset: usize) -> Result<u8> {
        let from = self.at(offset, 1)?;
        self.sync_for_cpu(offset, 1);
        // SAFETY: `from` is valid for one byte; volatile, as the device changes it.
        Ok(unsafe { from.read_volatile() })
    }

    /// Ends the CPU's turn: what it wrote is visible to the device.
    fn sync_for_device(&self, offset: usize, len: usize) {
        // SAFETY: A part of a mapping that is alive (type invariant); the callers checked bounds.
        unsafe {
            sys::rivet_ib_dma_sync_single_for_device(
                self.pd.device().as_raw(),
                self.dma + offset as u64,
                len,
                self.direction.as_raw(),
            )
        };
    }

    /// Begins the CPU's turn: what the device wrote is visible to it.
    fn sync_for_cpu(&self, offset: usize, len: usize) {
        // SAFETY: A part of a mapping that is alive (type invariant); the callers checked bounds.
        unsafe {
            sys::rivet_ib_dma_sync_single_for_cpu(
                self.pd.device().as_raw(),
                self.dma + offset as u64,
                len,
                self.direction.as_raw(),
            )
        };
    }
}

impl<M: Memory> Describe for Mapped<M> {
    fn domain(&self) -> &Arc<Pd> {
        &self.pd
    }

    fn length(&self) -> usize {
        self.len
    }

    unsafe fn describe(&self, region: NonNull<sys::ib_mr>) -> Result {
        if self.start.as_ptr().align_offset(PAGE_SIZE) != 0 {
            return Err(EINVAL);
        }
        let start = self.start.as_ptr().cast();
        // SAFETY: By the function's safety requirement; the range is mapped (type invariant).
        let n = unsafe { sys::rivet_ib_map_mr_single(region.as_ptr(), start, self.dma, self.len) };
        match n {
            1 => Ok(()),
            ..=-1 => Err(Error::from_errno(n)),
            _ => Err(EINVAL),
        }
    }
}

impl<M: Memory> Drop for Mapped<M> {
    fn drop(&mut self) {
        // SAFETY: The mapping is alive and ours (type invariant).
        unsafe {
            sys::rivet_ib_dma_unmap_single(
                self.pd.device().as_raw(),
                self.dma,
                self.len,
                self.direction.as_raw(),
            )
        };
        uncount_mapping();
    }
}

/// A scatter/gather element: a piece of mapped memory of one PD, which outlives `'m`.
#[derive(Clone, Copy)]
pub(crate) struct Sge<'m> {
    pub(super) raw: sys::ib_sge,
    /// Compared, never followed.
    pub(super) pd: *const Pd,
    _memory: PhantomData<&'m ()>,
}

/// An SGE over `range` of `len` bytes of `pd` that `lkey` names from address `start` on.
///
/// # Errors
///
/// `EINVAL` if the range does not lie within.
pub(super) fn sge_of(
    pd: &Arc<Pd>,
    start: u64,
    len: usize,
    lkey: u32,
    range: Range<usize>,
) -> Result<Sge<'_>> {
    if range.start > range.end || range.end > len {
        return Err(EINVAL);
    }
    Ok(Sge {
        raw: sys::ib_sge {
            addr: start + range.start as u64,
            length: u32::try_from(range.end - range.start)?,
            lkey,
        },
        pd: Arc::as_ptr(pd),
        _memory: PhantomData,
    })
}

impl Sge<'_> {
    /// Length in bytes.
    pub(crate) fn len(&self) -> u32 {
        self.raw.length
    }
}

/// Copies bytes of which both ends may be the same memory. They hardly ever are, and for those that
/// are not the kernel has the quicker way on processors that copy few bytes at a time.
///
/// # Safety
///
/// Both are valid for `len` bytes, and nobody has a reference to them.
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    let apart = to.addr().abs_diff(from.addr()) >= len;
    // SAFETY: As the caller promises; only `rivet_copy` wants them apart.
    unsafe {
        if apart {
            sys::rivet_copy(to.cast(), from.cast(), len);
        } else {
            sys::rivet_move(to.cast(), from.cast(), len);
        }
    }
}
