// SPDX-License-Identifier: GPL-2.0

//! The pool of a queue: memory of our own, through which short reads go.
//!
//! There is a place for each tag, in regions that are registered once and stay so. A controller can
//! write to it at any time, but that is nobody's memory: what a command has brought is copied to its
//! pages once it was answered, and the place is cleared before each command, so that one whose data
//! never came brings zeros and nothing that others have read.

use super::commands::{Commands, Token};
use crate::{
    engine::lane::Queue,
    kapi::nvme::Request,
    verbs::{Access, Buffer, Direction, Mapped, Mr, Pd, RegisteredMr, Registration, RemoteAddr},
};
use kernel::{prelude::*, sync::Arc};

/// Bytes to a multiple of which places are rounded: a cache line.
const ROUND: usize = 64;

/// A part of the pool.
enum Part {
    /// It is to be registered. A pointer, so that no token is larger for the sake of this.
    New(KBox<Registration<Mapped>>),
    /// It is being registered, or something has taken it.
    Gone,
    /// The controller reaches it.
    Ready(RegisteredMr<Mapped>),
}

/// A part whose REG_MR is under way.
pub(crate) struct Opening {
    part: usize,
    registration: KBox<Registration<Mapped>>,
}

/// See the file's head.
pub(super) struct Pool {
    parts: KVec<Part>,
    /// Places of a part.
    each: usize,
    /// Bytes from a place to the next.
    stride: usize,
}

impl Pool {
    /// Bytes of a part, if places are not longer.
    const PART: usize = 1 << 18;

    /// Memory for `places` of `len` bytes. Sleeps.
    pub(super) fn new(pd: &Arc<Pd>, places: usize, len: usize, node: Option<i32>) -> Result<Self> {
        let mut pool = Self {
            parts: KVec::new(),
            each: 1,
            stride: len.next_multiple_of(ROUND),
        };
        if len == 0 {
            return Ok(pool);
        }
        let each = Self::PART.checked_div(pool.stride).unwrap_or(1);
        pool.each = each.clamp(1, places.max(1));
        for _ in 0..places.div_ceil(pool.each.max(1)) {
            let buffer = Buffer::new(pool.each * pool.stride, node)?;
            // Cleared by us, written by the controller.
            let mapped = Mapped::new(pd, buffer, Direction::Bidirectional)?;
            let region = Mr::new(pd, mapped.len())?;
            let registration = region.register(mapped, Access::REMOTE_WRITE)?;
            let part = Part::New(KBox::new(registration, GFP_KERNEL)?);
            pool.parts.push(part, GFP_KERNEL)?;
        }
        Ok(pool)
    }

    /// Has it registered, on a QP that is connected. Until that is done, and where it fails, it has
    /// no places.
    pub(super) fn open(&mut self, queue: &mut Queue<Commands>) {
        for (i, part) in self.parts.iter_mut().enumerate() {
            let Part::New(registration) = core::mem::replace(part, Part::Gone) else {
                continue;
            };
            let token = Token::Pool(Opening {
                part: i,
                registration,
            });
            let pushed = queue.qp.push_chain(token, |token, chain| {
                let Token::Pool(opening) = token else {
                    return Err(EINVAL);
                };
                chain.settle()?;
                chain.wr(|wr| {
                    wr.signaled();
                    wr.reg_mr(&*opening.registration)
                })
            });
            if let Err((_, Token::Pool(opening))) = pushed {
                *part = Part::New(opening.registration);
                return;
            }
        }
    }

    /// A part's REG_MR is done, well or not.
    pub(super) fn opened(&mut self, opening: Opening, ok: bool) {
        let Opening { part, registration } = opening;
        if let Some(part) = self.parts.get_mut(part) {
            *part = match ok {
                true => Part::Ready(KBox::into_inner(registration).done()),
                false => Part::New(registration),
            };
        }
    }

    /// Where the place of a tag is, if the controller reaches it.
    fn place(&self, tag: u16) -> Option<(&RegisteredMr<Mapped>, usize)> {
        let tag = usize::from(tag);
        match self.parts.get(tag / self.each) {
            Some(Part::Ready(region)) => Some((region, tag % self.each * self.stride)),
            _ => None,
        }
    }

    /// Clears the first `len` bytes of a tag's place; says where the controller finds it, if it can
    /// reach it.
    pub(super) fn clear(&self, tag: u16, len: usize) -> Option<RemoteAddr> {
        let (region, at) = self.place(tag)?;
        region.memory().clear(at, len).ok()?;
        region.remote(at).ok()
    }

    /// Copies what has come to a tag's place to the pages of its request.
    pub(super) fn deliver(&self, tag: u16, request: &Request) {
        if let Some((region, at)) = self.place(tag) {
            // Both have the bytes, as the command was made.
            let _ = region.memory().copy_to_pages(at, request, 0..request.len());
        }
    }
}
