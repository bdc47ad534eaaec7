// SPDX-License-Identifier: GPL-2.0

//! The send queue of a QP: what is posted, in order, with the tokens that own its memory.
//!
//! # Chains
//!
//! What is pushed with one token is one chain, mostly of one work request. The token stands in the
//! ring at the last of its chain, and comes back when that has completed: by a completion of its
//! own, or by one of a later work request, before which all must be done. A completion of an
//! earlier member frees the place in the ring and nothing more; if it is an error, it is kept for
//! the token, as the members behind it are flushed after it.
//!
//! # What the driver does not take
//!
//! Work requests that the driver refuses stay in the ring, marked. Their tokens come back as
//! flushed with the next completion of a work request behind them, at the latest with that of the
//! marker that [`super::Qp::enter_error`] posts, or go with the QP. So tokens are never dropped
//! where posting happens, which may be in a context that may not sleep; and a chain of which only a
//! part was taken keeps the memory of that part.
//!
//! # Devices that overtake
//!
//! That a completion speaks for all before it is what the specifications ask for. A device that does
//! not keep to it ([`super::caps::Caps::overtakes`]) is made to: whatever is not a READ waits for
//! the READs before it. What is left are errors, which such a device may report before READs that
//! are still under way. They say nothing about those: the work request is marked like one that was
//! refused, and the others come with completions of their own. (What is flushed, it flushes in
//! order.) siw has one error for all that it could not send, which mostly is that the connection is
//! gone: here that is flushed. And it takes nothing more when a connection ends, until the QP is in
//! error: that comes back as flushed as well, and is no error of posting.

use super::{
    chain::{refusal, Chain},
    mr::{Revocation, Revoked},
    qp::filled,
    wc::Done,
    wr::{Limits, RawWr},
    Pd, Route, SendWr, Wc, WcStatus,
};
use crate::{kapi::trace, sys};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{prelude::*, sync::Arc};

/// What a work request does with a registration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// It begins it.
    Registers,
    /// It ends it.
    Revokes,
}

/// A work request in the ring.
#[derive(Clone, Copy)]
pub(super) struct Member {
    /// The registration that it has an effect on.
    pub(super) registration: u64,
    /// Of the last in a chain: how many the chain has. 0 for the others.
    chain: u32,
    pub(super) effect: Effect,
    /// Of the last in a chain: whether a member begins or ends a registration.
    proving: bool,
    /// The driver did not take it, or has told of its failure too early.
    refused: bool,
}

impl Member {
    const NONE: Self = Self {
        registration: 0,
        chain: 0,
        effect: Effect::None,
        proving: false,
        refused: false,
    };
}

/// Some neighbours in the ring.
#[derive(Clone, Copy)]
pub(super) struct Neighbours<'r> {
    ring: &'r [Member],
    first: u32,
    len: u32,
}

impl Neighbours<'_> {
    /// Whether one of them has that effect on that registration.
    pub(super) fn have(&self, effect: Effect, registration: u64) -> bool {
        let mask = self.ring.len() - 1;
        (0..self.len).any(|i| {
            let at = self.first.wrapping_add(i) as usize & mask;
            let member = &self.ring[at];
            member.effect == effect && member.registration == registration
        })
    }
}

/// The part of the queue that does not know the tokens.
///
/// # Invariants
///
/// * `qp` is valid until the QP that this belongs to is destroyed.
/// * `ring` has a power of two of places, more than `size`.
struct Posting {
    qp: NonNull<sys::ib_qp>,
    key: u32,
    pd: Arc<Pd>,
    limits: Limits,
    /// Work requests that the owner may have in the ring.
    size: u32,
    /// Work requests that a chain may have: what fits even behind all that can be in the ring
    /// without a signal.
    longest: u32,
    chain: Chain<RawWr>,
    ring: KVVec<Member>,
    head: u32,
    tail: u32,
    /// How many, the last ones, are without a signal.
    unsignaled: u32,
    /// The first error of the chain whose first members have completed.
    failed: WcStatus,
    /// The marker is in the ring.
    marker: bool,
    /// Work requests that asked for a completion.
    signaled: u64,
}

/// Numbers of work requests.
const MASK: u32 = Route::MAX_INDEX - 1;

impl Posting {
    /// Work requests in the ring.
    fn used(&self) -> u32 {
        self.head.wrapping_sub(self.tail) & MASK
    }

    /// Those that are not just staged.
    fn posted(&self) -> u32 {
        self.used() - self.chain.len() as u32
    }

    fn room(&self) -> u32 {
        // The marker comes on top.
        self.size.saturating_sub(self.used())
    }

    /// The place in the ring of work request `index`.
    fn at(&self, index: u32) -> usize {
        index as usize & (self.ring.len() - 1)
    }

    fn wr_id(&self, index: u32) -> u64 {
        Route {
            key: self.key,
            recv: false,
            index,
        }
        .to_wr_id()
    }

    fn flush(&mut self, building: bool) -> Result {
        let qp = self.qp;
        let (key, staged) = (self.key, self.chain.len() as u32);
        let posted = self.chain.post(building, |first, bad| {
            trace::doorbell(key, false, staged);
            let bad: *mut *mut RawWr = bad;
            // SAFETY: The QP is valid. The chain is linked and finished; the driver copies it and
            // its SGEs; the memory that they name is kept alive by the tokens in the ring until
            // their completion was seen.
            unsafe { sys::rivet_ib_post_send(qp.as_ptr(), first.cast(), bad.cast()) }
        });
        posted.or_else(|refused| {
            self.refuse(refused.left as u32);
            refused.outcome(self.limits.caps.overtakes)
        })
    }

    /// Whether the failure `wc` of the work request `ahead` of the oldest has come before its turn,
    /// of a device that does so. It is marked then.
    fn overtakes(&mut self, wc: &Wc, ahead: u32) -> bool {
        let early = self.limits.caps.overtakes
            && ahead > 0
            && !matches!(wc.status(), WcStatus::Success | WcStatus::Flushed);
        if early {
            let at = self.at(self.tail.wrapping_add(ahead));
            self.ring[at].refused = true;
            // Its own completion is gone: another has to come behind it.
            self.unsignaled = self.used();
        }
        early
    }

    /// Marks the last `n` in the ring, of which none is staged.
    #[cold]
    fn refuse(&mut self, n: u32) {
        for back in 1..=n {
            let at = self.at(self.head.wrapping_sub(back));
            self.ring[at].refused = true;
        }
        // The next one has to be signalled.
        self.unsignaled = self.used();
    }
}

/// Work requests under construction that get one token together; see [`super::Qp::push_chain`].
pub(crate) struct Members<'q, 't> {
    queue: &'q mut Posting,
    n: u32,
    unsignaled: u32,
    proving: bool,
    error: Option<Error>,
    _token: PhantomData<&'t ()>,
}

impl<'t> Members<'_, 't> {
    /// Adds a work request behind the others. After an error, nothing of the chain is posted.
    ///
    /// # Errors
    ///
    /// What `build` says; `E2BIG` for more than a batch or half of the queue; as for
    /// [`super::Qp::push`].
    #[inline(always)]
    pub(crate) fn wr<F>(&mut self, build: F) -> Result
    where
        F: FnOnce(&mut SendWr<'_, 't>) -> Result,
    {
        let added = self.add(build);
        if let Err(e) = added {
            self.error = Some(e);
        }
        added
    }

    /// On a device that [registers twice](super::caps::Caps::registers_twice), adds a work request that
    /// waits until all that is before it is done, so that none of that is sent again when what follows
    /// it has been executed. To stand in front of a REG_MR that can come behind SENDs or WRITEs. Adds
    /// nothing on other devices, and where all before is known to be done.
    ///
    /// # Errors
    ///
    /// As for [`Members::wr`].
    #[inline]
    pub(crate) fn settle(&mut self) -> Result {
        match self.queue.pd.spare_key() {
            Some(spare) if self.queue.used() + self.n > 0 => self.wr(|wr| wr.settle(spare)),
            _ => Ok(()),
        }
    }

    #[inline(always)]
    fn add<F>(&mut self, build: F) -> Result
    where
        F: FnOnce(&mut SendWr<'_, 't>) -> Result,
    {
        let queue = &mut *self.queue;
        let n = self.n;
        if n > 0 && n >= queue.longest {
            return Err(E2BIG);
        }
        if queue.room() <= n {
            return Err(EAGAIN);
        }
        if queue.chain.len() + n as usize >= queue.chain.places() {
            queue.flush(n > 0)?;
        }
        let index = queue.head.wrapping_add(n) & MASK;
        let wr_id = queue.wr_id(index);
        let (raw, sges) = queue.chain.place(n as usize).ok_or(EINVAL)?;
        let before = Neighbours {
            ring: &queue.ring,
            first: queue.head,
            len: n,
        };
        let pd = Arc::as_ptr(&queue.pd);
        let mut wr = SendWr::new(raw, sges, &queue.limits, pd, queue.key, before);
        build(&mut wr)?;
        let finished = wr.finish(wr_id)?;
        trace::post(
            queue.key,
            index,
            finished.opcode,
            finished.bytes,
            finished.signaled,
        );
        let at = queue.at(index);
        queue.ring[at] = Member {
            registration: finished.registration,
            effect: finished.effect,
            ..Member::NONE
        };
        self.proving |= finished.effect != Effect::None;
        queue.signaled += u64::from(finished.signaled);
        self.unsignaled = if finished.signaled {
            0
        } else {
            self.unsignaled + 1
        };
        self.n = n + 1;
        Ok(())
    }

    /// Stages the whole; returns the place of the last in the ring, where the token has to go.
    #[inline(always)]
    fn commit(self, built: Result) -> Result<usize> {
        built?;
        if let Some(e) = self.error {
            return Err(e);
        }
        let queue = self.queue;
        let last = self.n.checked_sub(1).ok_or(EINVAL)?;
        queue.unsignaled = self.unsignaled;
        if self.unsignaled >= queue.size / 2 {
            if let Some((wr, _)) = queue.chain.place(last as usize) {
                wr.header().send_flags |= sys::ib_send_flags_IB_SEND_SIGNALED;
            }
            queue.signaled += 1;
            queue.unsignaled = 0;
        }
        let at = queue.at(queue.head.wrapping_add(last));
        let member = &mut queue.ring[at];
        member.chain = self.n;
        member.proving = self.proving;
        queue.head = queue.head.wrapping_add(self.n) & MASK;
        // SAFETY: `add` finished each of them since the last staging. They name memory of the
        // token, which the caller puts into the ring.
        unsafe { queue.chain.stage(self.n as usize) };
        Ok(at)
    }
}

/// A send queue with tokens of type `S`.
///
/// # Invariants
///
/// For each chain that was posted and whose last completion was not seen, and for the staged ones
/// after them, `tokens` has the token, at the place of the last member.
pub(super) struct SendQueue<S> {
    posting: Posting,
    tokens: KVVec<Option<S>>,
}

/// The memory of a send queue, before there is a QP.
pub(super) struct SendMemory<S> {
    chain: Chain<RawWr>,
    ring: KVVec<Member>,
    tokens: KVVec<Option<S>>,
}

impl<S> SendMemory<S> {
    /// Allocates for `size` work requests of `sges` SGEs, and a marker; `batch` of them are posted
    /// at a time.
    pub(super) fn new(size: u32, batch: u32, sges: u32) -> Result<Self> {
        let places = (size + 1).next_power_of_two() as usize;
        Ok(Self {
            chain: Chain::new(batch.min(size) as usize, sges as usize)?,
            ring: filled(places, || Member::NONE)?,
            tokens: filled(places, || None)?,
        })
    }
}

impl<S> SendQueue<S> {
    /// The send queue of `qp`, which must be valid until it is destroyed with the object that this
    /// becomes a part of.
    pub(super) fn new(
        qp: NonNull<sys::ib_qp>,
        key: u32,
        pd: Arc<Pd>,
        limits: Limits,
        size: u32,
        memory: SendMemory<S>,
    ) -> Self {
        let batch = memory.chain.places() as u32;
        // INVARIANT: `SendMemory` made a ring of that kind; nothing is posted or staged.
        Self {
            posting: Posting {
                qp,
                key,
                pd,
                limits,
                size,
                longest: batch.min(size - size / 2 + 1),
                chain: memory.chain,
                ring: memory.ring,
                head: 0,
                tail: 0,
                unsignaled: 0,
                failed: WcStatus::Success,
                marker: false,
                signaled: 0,
            },
            tokens: memory.tokens,
        }
    }

    /// Messages are no longer than `max` bytes from now on.
    pub(super) fn limit_message(&mut self, max: u32) {
        let limits = &mut self.posting.limits;
        limits.max_message = limits.max_message.min(max);
    }

    /// See [`super::Qp::send_room`].
    pub(super) fn room(&self) -> u32 {
        self.posting.room()
    }

    /// Work requests that are posted and not completed.
    pub(super) fn outstanding(&self) -> u32 {
        self.posting.posted()
    }

    /// See [`super::Qp::push_chain`].
    #[inline(always)]
    pub(super) fn push_chain<F>(
        &mut self,
        token: S,
        build: F,
    ) -> core::result::Result<(), (Error, S)>
    where
        F: for<'t> FnOnce(&'t S, &mut Members<'_, 't>) -> Result,
    {
        let unsignaled = self.posting.unsignaled;
        let mut members = Members {
            queue: &mut self.posting,
            n: 0,
            unsignaled,
            proving: false,
            error: None,
            _token: PhantomData,
        };
        let built = build(&token, &mut members);
        match members.commit(built) {
            Ok(at) => {
                self.tokens[at] = Some(token);
                Ok(())
            }
            Err(e) => Err((e, token)),
        }
    }

    /// What was posted, how often the doorbell rang, and what asked for a completion.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let chain = &self.posting.chain;
        (chain.posts, chain.doorbells, self.posting.signaled)
    }

    /// See [`super::Qp::flush`].
    pub(super) fn flush(&mut self) -> Result {
        self.posting.flush(false)
    }

    /// See [`super::Qp::take_send`].
    pub(super) fn take(&mut self, wc: &mut Wc) -> Option<Done<'_, S>> {
        let queue = &mut self.posting;
        let route = wc.route();
        if route.recv || route.key != queue.key || !wc.is_of(queue.qp.as_ptr()) {
            return None;
        }
        loop {
            let ahead = route.index.wrapping_sub(queue.tail) & MASK;
            if ahead >= queue.posted() || queue.overtakes(wc, ahead) {
                // A later one has covered it: it must not be mistaken for one of the next round.
                wc.consume();
                return None;
            }
            let at = queue.at(queue.tail);
            let member = queue.ring[at];
            queue.tail = queue.tail.wrapping_add(1) & MASK;
            let mut status = WcStatus::Success;
            if ahead == 0 {
                status = match wc.status() {
                    WcStatus::LocalQpOperation if queue.limits.caps.overtakes => WcStatus::Flushed,
                    status => status,
                };
                trace::complete(queue.key, route.index, false, wc.raw_status());
                wc.consume();
            }
            if member.chain == 0 {
                // The others of its chain, and the token, come behind it.
                if queue.failed == WcStatus::Success {
                    queue.failed = status;
                }
                continue;
            }
            if member.chain > 1 && queue.failed != WcStatus::Success {
                status = core::mem::replace(&mut queue.failed, WcStatus::Success);
            } else if member.refused && status == WcStatus::Success {
                status = WcStatus::Flushed;
            }
            let Some(token) = self.tokens[at].take() else {
                // The marker: of no interest.
                queue.marker = false;
                continue;
            };
            // An error proves nothing about what was posted before it: that may have had an error
            // of its own, which the owner did not look at.
            let proven =
                member.proving && status == WcStatus::Success && wc.status() == WcStatus::Success;
            let chain = Neighbours {
                ring: &queue.ring,
                first: queue.tail.wrapping_sub(member.chain),
                len: member.chain,
            };
            return Some(Done {
                token,
                status,
                revocation: proven.then_some(Revocation {
                    what: Revoked::By(chain),
                    pd: &queue.pd,
                }),
            });
        }
    }

    /// Drops what is staged. Drops tokens.
    pub(super) fn drop_staged(&mut self) {
        let queue = &mut self.posting;
        if queue.chain.len() == 0 {
            return;
        }
        for _ in 0..queue.chain.len() {
            queue.head = queue.head.wrapping_sub(1) & MASK;
            let at = queue.at(queue.head);
            self.tokens[at] = None;
        }
        queue.chain.clear();
        // Those that are left may be without a signal.
        queue.unsignaled = queue.used();
    }

    /// Posts an empty SEND, to `ah` on UD, behind work requests that have no signal of their own.
    /// The QP must be in error, so that it flushes it. It has a place of its own in the queue and
    /// on the CQ.
    pub(super) fn post_marker(&mut self, ah: Option<*mut sys::ib_ah>) -> Result {
        let queue = &mut self.posting;
        if queue.unsignaled == 0 || queue.used() == 0 || queue.marker {
            return Ok(());
        }
        let mut raw = sys::ib_ud_wr::default();
        raw.wr.opcode = sys::ib_wr_opcode_IB_WR_SEND;
        raw.wr.send_flags = sys::ib_send_flags_IB_SEND_SIGNALED;
        raw.wr.__bindgen_anon_1.wr_id = queue.wr_id(queue.head);
        raw.ah = ah.unwrap_or(core::ptr::null_mut());
        let mut bad = core::ptr::null();
        // SAFETY: A complete work request without memory; the driver copies it. An address handle
        // lives as long as the QP.
        let ret = unsafe { sys::rivet_ib_post_send(queue.qp.as_ptr(), &raw.wr, &mut bad) };
        if ret != 0 {
            return Err(refusal(ret));
        }
        let at = queue.at(queue.head);
        queue.ring[at] = Member {
            chain: 1,
            ..Member::NONE
        };
        queue.head = queue.head.wrapping_add(1) & MASK;
        queue.unsignaled = 0;
        queue.marker = true;
        Ok(())
    }

    /// Gives all tokens up without dropping them.
    pub(super) fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.tokens));
    }
}
