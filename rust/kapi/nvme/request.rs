// SPDX-License-Identifier: GPL-2.0

//! Requests of blk-mq that carry NVMe commands.
//!
//! C headers: `include/linux/blk-mq.h`, `drivers/nvme/host/nvme.h`

use crate::{
    sys,
    verbs::{
        pages::{PageList, Piece},
        Direction,
    },
};
use core::{mem::ManuallyDrop, ptr::NonNull};

/// What stands behind each `struct request` of our tag sets.
#[repr(C)]
pub(super) struct Pdu {
    /// The core's, which has to come first.
    pub(super) core: sys::nvme_request,
    /// What `core.cmd` leads to.
    pub(super) command: sys::nvme_command,
    /// Of an ended one, the answer.
    status: u16,
    result: u64,
}

/// The private data of a request.
pub(super) fn pdu(rq: NonNull<sys::request>) -> NonNull<Pdu> {
    // It comes right behind the request (`blk_mq_rq_to_pdu`), in the same allocation.
    // SAFETY: Each request that comes here is of a tag set with room for it.
    unsafe { rq.add(1) }.cast()
}

/// A request that has begun and has not ended.
///
/// # Invariants
///
/// `0` is a request of one of our tag sets that has begun, and nobody but this value ends it.
pub(crate) struct Request(NonNull<sys::request>);

// SAFETY: A request may be ended from any thread.
unsafe impl Send for Request {}
// SAFETY: `&Request` offers reading of what does not change before its end.
unsafe impl Sync for Request {}

impl Request {
    /// # Safety
    ///
    /// It has begun, and nobody else ends it.
    pub(super) unsafe fn from_raw(rq: NonNull<sys::request>) -> Self {
        // INVARIANT: By the function's safety requirement.
        Self(rq)
    }

    /// Gives it up without an end.
    pub(super) fn into_raw(self) -> NonNull<sys::request> {
        ManuallyDrop::new(self).0
    }

    /// Its number among those of its queue.
    pub(crate) fn tag(&self) -> u16 {
        // SAFETY: The request is ours (type invariant). Tags of a queue are fewer than 2^12.
        unsafe { self.0.as_ref().tag as u16 }
    }

    /// The command, as the core has made it.
    pub(crate) fn command(&self) -> [u8; 64] {
        const _: () = assert!(core::mem::size_of::<sys::nvme_command>() == 64);
        // SAFETY: As for `tag`; any bytes are a valid array, and the core changes none until the
        // request ends.
        unsafe {
            (&raw const (*pdu(self.0).as_ptr()).command)
                .cast::<[u8; 64]>()
                .read()
        }
    }

    /// Whether it has data.
    pub(crate) fn has_data(&self) -> bool {
        // SAFETY: As for `tag`.
        unsafe { sys::rivet_blk_rq_has_data(self.0.as_ptr()) }
    }

    /// Bytes of data.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: As for `tag`.
        unsafe { sys::rivet_blk_rq_payload_bytes(self.0.as_ptr()) as usize }
    }

    /// Which way the data goes.
    pub(crate) fn direction(&self) -> Direction {
        // SAFETY: As for `tag`.
        match unsafe { sys::rivet_blk_rq_is_write(self.0.as_ptr()) } {
            true => Direction::ToDevice,
            false => Direction::FromDevice,
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: It has begun, and this is its only end (type invariant).
        unsafe { sys::rivet_nvme_abort(self.0.as_ptr()) };
    }
}

/// The next of a list.
///
/// # Safety
///
/// The request is ours, and in no list of somebody else.
unsafe fn rq_next(rq: NonNull<sys::request>) -> *mut *mut sys::request {
    // SAFETY: By the function's safety requirement; the union's other field is for such lists.
    unsafe { &raw mut (*rq.as_ptr()).__bindgen_anon_1.rq_next }
}

/// Takes the first out of a list.
///
/// # Safety
///
/// The list is ours, of requests that are in no other.
pub(super) unsafe fn pop(list: &mut sys::rq_list) -> Option<NonNull<sys::request>> {
    let rq = NonNull::new(list.head)?;
    // SAFETY: By the function's safety requirement.
    unsafe { list.head = core::mem::replace(&mut *rq_next(rq), core::ptr::null_mut()) };
    if list.head.is_null() {
        list.tail = core::ptr::null_mut();
    }
    Some(rq)
}

/// Puts a request behind the last of a list.
///
/// # Safety
///
/// As for [`pop`]; the request is ours, and in no list.
pub(super) unsafe fn push(list: &mut sys::rq_list, rq: NonNull<sys::request>) {
    // SAFETY: By the function's safety requirement.
    unsafe { *rq_next(rq) = core::ptr::null_mut() };
    match NonNull::new(list.tail) {
        // SAFETY: As above; the last is in the list.
        Some(last) => unsafe { *rq_next(last) = rq.as_ptr() },
        None => list.head = rq.as_ptr(),
    }
    list.tail = rq.as_ptr();
}

/// Requests that go together. It gives them in the order in which they came.
///
/// # Invariants
///
/// The list has requests that have begun, are in no other list, and that nobody else ends.
pub(crate) struct Batch(sys::rq_list);

// SAFETY: As for `Request`.
unsafe impl Send for Batch {}

impl Batch {
    /// None.
    pub(crate) const fn new() -> Self {
        // INVARIANT: It is empty.
        Self(sys::rq_list {
            head: core::ptr::null_mut(),
            tail: core::ptr::null_mut(),
        })
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.head.is_null()
    }

    /// Adds one.
    pub(crate) fn push(&mut self, request: Request) {
        // INVARIANT: It has begun, and the list ends it (type invariant of `Request`).
        // SAFETY: The list is ours (type invariant); the request was, and is in no list.
        unsafe { push(&mut self.0, request.into_raw()) };
    }
}

impl Iterator for Batch {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        // INVARIANT: From the list (type invariant), of which it is taken out.
        // SAFETY: The list is ours (type invariant).
        unsafe { pop(&mut self.0) }.map(Request)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// A walk over the memory of a request.
struct Walk<'r> {
    rq: &'r Request,
    at: sys::rivet_rq_walk,
}

impl Iterator for Walk<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let (mut start, mut len) = (core::ptr::null_mut(), 0);
        // SAFETY: The request has not ended, so it has its bios; the walk was begun on it.
        let more = unsafe {
            sys::rivet_rq_walk_next(self.rq.0.as_ptr(), &mut self.at, &mut start, &mut len)
        };
        match more {
            true => Some(Piece::new(NonNull::new(start.cast())?, len as usize)),
            false => None,
        }
    }
}

// SAFETY: The block layer keeps the pages of a request until that has ended, which takes the value.
// They are in the linear map, as there is no high memory on 64 bits and P2P pages are refused
// (`supports_pci_p2pdma` is not there). Nobody in this module makes references to them.
unsafe impl PageList for Request {
    fn pieces(&self) -> impl Iterator<Item = Piece> {
        let mut at = sys::rivet_rq_walk::default();
        // SAFETY: The request has not ended.
        unsafe { sys::rivet_rq_walk_begin(self.0.as_ptr(), &mut at) };
        Walk { rq: self, at }
    }

    fn total(&self) -> usize {
        self.len()
    }
}

/// Requests that have their answers and are to end, which must not happen under a lock that
/// submitting takes. Dropping it ends them.
pub(crate) struct Ended(Batch);

impl Ended {
    /// None.
    pub(crate) const fn new() -> Self {
        Self(Batch::new())
    }

    /// Adds one with the answer that the controller gave: its status (with the phase bit) and
    /// result. Any context.
    pub(crate) fn push(&mut self, request: Request, status: u16, result: u64) {
        // SAFETY: The request is ours, and these fields are only used here.
        unsafe {
            let pdu = pdu(request.0).as_mut();
            pdu.status = status;
            pdu.result = result;
        }
        self.0.push(request);
    }
}

impl Default for Ended {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        for request in &mut self.0 {
            let rq = request.into_raw();
            // SAFETY: The request was the list's, with its answer; this is its only end, after which
            // it is not touched.
            unsafe {
                let pdu = pdu(rq).as_ref();
                sys::rivet_nvme_answer(rq.as_ptr(), pdu.status, pdu.result);
            }
        }
    }
}
