// SPDX-License-Identifier: GPL-2.0

//! Memory that is not in one piece: lists of pages.
//!
//! A [`PageList`] says where the pieces are and keeps them there; [`super::SgTable`] maps them for
//! a device, and [`super::Mapped::copy_from_pages`] and its opposite copy them. There are two kinds
//! of owners: [`PageRefs`] has a reference count on each piece, and whoever shares [`Buffers`] in
//! an `Arc` has them whole.
//!
//! C header: `include/linux/mm.h` (`get_page`, `put_page`)

use super::Buffer;
use crate::sys;
use core::{ops::Range, ptr::NonNull};
use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};

/// Bytes that are in one piece, in physical memory as well as in the kernel's map of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The first byte.
    pub(super) start: NonNull<u8>,
    /// How many.
    pub(super) len: usize,
}

impl Piece {
    /// `len` bytes from `start` on. Only an owner ([`PageList`]) makes memory of these numbers.
    pub(crate) fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }
}

/// Memory in pieces.
///
/// # Safety
///
/// Each piece that `pieces` gives is in the kernel's linear map and stays allocated, and nobody
/// makes references to its bytes, until the value is dropped or changed by a `&mut` to it; moving
/// the value moves no piece.
pub(crate) unsafe trait PageList: Send + 'static {
    /// The pieces, in order.
    fn pieces(&self) -> impl Iterator<Item = Piece>;

    /// Numbers the pages that `range` of the bytes goes through, in order, so that a page has one
    /// number as long as it is allocated; returns how many, and where in the first the bytes begin.
    /// With their number that says which bytes it are, in which order.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such range, or pieces have a gap between them within a page; `ENOSPC`
    /// if `out` is too short.
    fn frames(&self, range: Range<usize>, out: &mut [u64]) -> Result<(usize, usize)>
    where
        Self: Sized,
    {
        let (mut n, mut offset, mut end) = (0, 0, 0);
        for_each_in(self, range, |piece| {
            // The linear map has a page at one address.
            let start = piece.start.as_ptr().addr();
            let (mut first, within) = (start / PAGE_SIZE, start % PAGE_SIZE);
            if n == 0 {
                offset = within;
            } else if start == end && within != 0 {
                // The page was numbered with what is before it there.
                first += 1;
            } else if within != 0 || end % PAGE_SIZE != 0 {
                return Err(EINVAL);
            }
            end = start + piece.len;
            for frame in first..end.div_ceil(PAGE_SIZE) {
                *out.get_mut(n).ok_or(ENOSPC)? = frame as u64;
                n += 1;
            }
            Ok(())
        })?;
        Ok((n, offset))
    }

    /// Copies the bytes from `at` on to `out`, as they are now.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are not so many.
    fn read(&self, at: usize, out: &mut [u8]) -> Result
    where
        Self: Sized,
    {
        let end = at.checked_add(out.len()).ok_or(EINVAL)?;
        let mut to = out;
        for_each_in(self, at..end, |piece| {
            let (here, rest) = core::mem::take(&mut to).split_at_mut(piece.len);
            // SAFETY: The piece is memory to which nobody has references (safety requirement of the
            // trait), so not that of `out`, either; `here` is as long. Whoever else writes to it leaves
            // some bytes or others.
            unsafe {
                core::ptr::copy_nonoverlapping(piece.start.as_ptr(), here.as_mut_ptr(), here.len())
            };
            to = rest;
            Ok(())
        })
    }

    /// Bytes in all.
    fn total(&self) -> usize {
        self.pieces()
            .fold(0, |sum, piece| sum.saturating_add(piece.len))
    }
}

/// Calls `f` for what of the pieces lies in `range`, in order.
///
/// # Errors
///
/// `EINVAL` if the list has no such range, before any call; what `f` says.
pub(super) fn for_each_in<P: PageList>(
    pages: &P,
    range: Range<usize>,
    mut f: impl FnMut(Piece) -> Result,
) -> Result {
    let mut left = range.end.checked_sub(range.start).ok_or(EINVAL)?;
    if range.end > pages.total() {
        return Err(EINVAL);
    }
    let mut skip = range.start;
    for piece in pages.pieces() {
        if left == 0 {
            break;
        }
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        let len = left.min(piece.len - skip);
        f(Piece {
            // SAFETY: Within the piece, as just checked.
            start: unsafe { piece.start.add(skip) },
            len,
        })?;
        skip = 0;
        left -= len;
    }
    // A list that changed between the two looks.
    if left != 0 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Copies bytes of `pages` from `offset` on. Does not sleep.
///
/// # Errors
///
/// `EINVAL` if there are not so many.
pub(crate) fn read<P: PageList>(pages: &P, offset: usize, to: &mut [u8]) -> Result {
    let end = offset.checked_add(to.len()).ok_or(EINVAL)?;
    let mut at = 0;
    for_each_in(pages, offset..end, |piece| {
        let to = to.get_mut(at..at + piece.len).ok_or(EINVAL)?;
        at += piece.len;
        // SAFETY: The piece stays as long as `pages` (`PageList`), and `to` is as long and another
        // allocation, as nobody has a reference to the bytes of the piece.
        unsafe {
            sys::rivet_copy(
                to.as_mut_ptr().cast(),
                piece.start.as_ptr().cast(),
                to.len(),
            )
        };
        Ok(())
    })
}

/// Copies bytes to `pages` from `offset` on. Does not sleep.
///
/// # Errors
///
/// `EINVAL` if there is no room for them.
pub(crate) fn write<P: PageList>(pages: &P, offset: usize, from: &[u8]) -> Result {
    let end = offset.checked_add(from.len()).ok_or(EINVAL)?;
    let mut at = 0;
    for_each_in(pages, offset..end, |piece| {
        let from = from.get(at..at + piece.len).ok_or(EINVAL)?;
        at += piece.len;
        // SAFETY: As in `read`, the other way round.
        unsafe {
            sys::rivet_copy(
                piece.start.as_ptr().cast(),
                from.as_ptr().cast(),
                from.len(),
            )
        };
        Ok(())
    })
}

/// Pieces of buffers, or of other page lists, with a reference to the pages of each: they stay,
/// whatever becomes of who else has them. Has room for a fixed number, so that taking references allocates nothing.
///
/// # Invariants
///
/// Each piece lies within one allocation of pages, of which this object has one reference for it.
pub(crate) struct PageRefs {
    pieces: KVVec<Piece>,
}

// SAFETY: Page references may be used and put from any thread.
unsafe impl Send for PageRefs {}
// SAFETY: `&PageRefs` offers reading of numbers.
unsafe impl Sync for PageRefs {}

impl PageRefs {
    /// Makes room for `pieces` pieces. Sleeps.
    pub(crate) fn new(pieces: usize) -> Result<Self> {
        Ok(Self {
            pieces: KVVec::with_capacity(pieces, GFP_KERNEL)?,
        })
    }

    /// Adds `range` of a buffer, behind what is there. Does not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is empty or does not lie within the buffer, `ENOSPC` if there is no
    /// room.
    pub(crate) fn add(&mut self, buffer: &Buffer, range: Range<usize>) -> Result {
        let whole = buffer.piece();
        if range.start >= range.end || range.end > whole.len {
            return Err(EINVAL);
        }
        // SAFETY: Within the buffer, as just checked.
        let start = unsafe { whole.start.add(range.start) };
        // SAFETY: The buffer is one allocation, and alive.
        unsafe { self.push(Piece::new(start, range.end - range.start)) }
    }

    /// Adds `range` of the bytes of `other`, behind what is there. Does not sleep.
    ///
    /// # Errors
    ///
    /// Nothing is added then: `EINVAL` if the other has no such range, `ENOSPC` if there is no room.
    pub(crate) fn add_refs(&mut self, other: &PageRefs, range: Range<usize>) -> Result {
        let before = self.pieces.len();
        let added = for_each_in(other, range, |piece| {
            // SAFETY: A part of a piece of `other`, which has a reference (type invariant).
            unsafe { self.push(piece) }
        });
        if added.is_err() {
            self.truncate(before);
        }
        added
    }

    /// Adds `range` of the bytes of `pages`, behind what is there, as far as these are pages that
    /// references keep: a page for each, in pieces no longer than that. Does not sleep.
    ///
    /// # Errors
    ///
    /// Nothing is added then: `EINVAL` if there is no such range, `ENOSPC` if there is no room,
    /// `EOPNOTSUPP` if one of the pages belongs to slab, a device, or whoever else does not count.
    pub(crate) fn add_pages<P: PageList>(&mut self, pages: &P, range: Range<usize>) -> Result {
        let before = self.pieces.len();
        let added = for_each_in(pages, range, |piece| self.try_push(piece));
        if added.is_err() {
            self.truncate(before);
        }
        added
    }

    /// Adds a piece of a list, page by page.
    fn try_push(&mut self, piece: Piece) -> Result {
        let (mut start, mut left) = (piece.start, piece.len);
        while left > 0 {
            let len = left.min(PAGE_SIZE - start.as_ptr().addr() % PAGE_SIZE);
            if self.pieces.len() == self.pieces.capacity() {
                return Err(ENOSPC);
            }
            // SAFETY: In the linear map, and allocated, as long as the list is borrowed (`PageList`).
            if !unsafe { sys::rivet_try_get_page(start.as_ptr().cast()) } {
                return Err(EOPNOTSUPP);
            }
            // INVARIANT: Within a page; the reference for it is that of the call above.
            // There is room, as just checked.
            let _ = self.pieces.push_within_capacity(Piece::new(start, len));
            left -= len;
            // SAFETY: Within the piece, or its end.
            start = unsafe { start.add(len) };
        }
        Ok(())
    }

    /// Adds a piece with a reference of its own.
    ///
    /// # Safety
    ///
    /// It lies within one allocation of pages, of which somebody has a reference.
    unsafe fn push(&mut self, piece: Piece) -> Result {
        self.pieces
            .push_within_capacity(piece)
            .map_err(|_| ENOSPC)?;
        // INVARIANT: The reference for the piece.
        // SAFETY: By the function's safety requirement.
        unsafe { sys::rivet_get_page(piece.start.as_ptr().cast()) };
        Ok(())
    }

    /// Puts the references behind the first `n`.
    fn truncate(&mut self, n: usize) {
        while self.pieces.len() > n {
            let Some(piece) = self.pieces.pop() else {
                break;
            };
            // SAFETY: The reference is ours (type invariant), and the piece is forgotten.
            unsafe { sys::rivet_put_page(piece.start.as_ptr().cast()) };
        }
    }

    /// Puts all references. Does not sleep.
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }
}

impl Drop for PageRefs {
    fn drop(&mut self) {
        self.clear();
    }
}

// SAFETY: The references keep the pieces until the drop, or until `clear`, which nobody can call
// who does not own the value; buffers make no references to their bytes, and nobody else does.
unsafe impl PageList for PageRefs {
    fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.pieces.iter().copied()
    }
}

/// Something that has buffers: while it is shared, it gives none of them up.
pub(crate) trait Buffers: Send + Sync + 'static {
    /// All of them, in order.
    fn buffers(&self) -> &[Buffer];
}

impl Buffers for Buffer {
    fn buffers(&self) -> &[Buffer] {
        core::slice::from_ref(self)
    }
}

impl Buffers for KVec<Buffer> {
    fn buffers(&self) -> &[Buffer] {
        self
    }
}

// SAFETY: A `&[Buffer]` that comes from a `&T` may be used as long as that may: and the `Arc` keeps
// the `T` shared until it is dropped. So the buffers stay for as long. They are in the linear map,
// and make no references to their bytes.
unsafe impl<T: Buffers> PageList for Arc<T> {
    fn pieces(&self) -> impl Iterator<Item = Piece> {
        (**self).buffers().iter().map(Buffer::piece)
    }
}
