// SPDX-License-Identifier: GPL-2.0

//! What the operations of a lane are: READs ([`Reads`]), or SENDs and WRITEs ([`Sends`]).
//!
//! READs only look at the peer's slots, so those of a lane's submitters share them. A SEND or WRITE
//! has a number among all of its lane, by which its payload is told, in the order of posting. A
//! WRITE has a slot of the peer for itself until it is over, which with `verify` is when the server
//! has looked at it: the session's thread takes what is to be checked ([`Work::take_check`]), asks,
//! and brings the answer ([`Work::checked`]). What takes a receive of the server begins only while
//! there is credit for it.
//!
//! All memory is allocated when the lane is made. Nothing here sleeps afterwards.

use crate::{
    engine::{
        accounting::Next,
        memory::{Flow, In, Out, Outgoing},
    },
    perf::{
        params::{Load, Op},
        pattern::Pattern,
        slots::Remote,
    },
    verbs::{pages, Buffer, RemoteAddr},
};
use kernel::{prelude::*, sync::Arc};

/// Bytes that are filled or compared at a time.
const STEP: usize = 256;

/// What is left to do for an operation that has completed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing.
    Good,
    /// Nothing, but the payload was not what it should be.
    Wrong,
    /// The server has to look at it.
    Check,
}

/// A check that the server is asked for.
#[derive(Clone, Copy)]
struct Check {
    seq: u64,
    slot: u32,
    submitter: u32,
}

/// What the operations of a lane are. The lane's lock is held in all but the first.
pub(super) trait Work: Sized + Send + Unpin + 'static {
    /// Which way payloads go.
    type Flow: Flow;
    /// What is kept of an operation that is under way.
    type Mark: Copy + Send + 'static;

    /// Of data connection `connection`; at most `depth` at a time for each submitter, and
    /// `lane_depth` for all of them. Sleeps.
    fn new(connection: u32, load: &Load, depth: u32, lane_depth: u32) -> Result<Self>;

    /// The peer's memory is known.
    fn set_remote(&mut self, remote: Remote);

    /// Whether another one may begin, and if so, whether one may behind it. `None`: not before the
    /// peer has given credit.
    fn may_begin(&self) -> Option<Next>;

    /// Makes the payload of an operation, which is number `count` of its submitter, and says what
    /// it is. `EAGAIN`: not before another is over.
    fn prepare(
        &mut self,
        count: u64,
        payload: &Arc<Buffer>,
    ) -> Result<(Self::Mark, <Self::Flow as Flow>::Verb)>;

    /// What was prepared last is on its way.
    fn begun(&mut self) {}

    /// What was prepared is not.
    fn cancel(&mut self, _mark: Self::Mark) {}

    /// An operation has completed. Without its payload, which a broken lane keeps, it is good.
    fn completed(&mut self, submitter: u32, mark: Self::Mark, payload: Option<&Arc<Buffer>>)
        -> End;

    /// The peer has taken so many messages since the beginning. `false` if that cannot be.
    fn credit(&mut self, _received: u64) -> bool {
        false
    }

    /// Takes out the number and the slot of an operation that the server has to look at.
    fn take_check(&mut self) -> Option<(u64, u32)> {
        None
    }

    /// The server has looked at operation `seq`: whose it was, if it was asked for.
    fn checked(&mut self, _seq: u64) -> Option<u32> {
        None
    }
}

/// READs.
pub(super) struct Reads {
    connection: u32,
    load: Load,
    depth: u32,
    remote: Remote,
}

impl Work for Reads {
    type Flow = In;
    /// The slot that is read.
    type Mark = u32;

    fn new(connection: u32, load: &Load, depth: u32, _lane_depth: u32) -> Result<Self> {
        Ok(Self {
            connection,
            load: *load,
            depth,
            remote: Remote::new(0),
        })
    }

    fn set_remote(&mut self, remote: Remote) {
        self.remote = remote;
    }

    fn may_begin(&self) -> Option<Next> {
        Some(Next::More)
    }

    fn prepare(&mut self, count: u64, payload: &Arc<Buffer>) -> Result<(u32, RemoteAddr)> {
        let slot = (count % u64::from(self.depth)) as u32;
        let from = self.remote.at(slot, self.load.offset(slot.into()))?;
        if self.load.verify {
            // Poison: what is not overwritten will not match.
            let pattern = Pattern::new(self.connection, count, true);
            fill(payload, self.load.size as usize, pattern)?;
        }
        Ok((slot, from))
    }

    fn completed(&mut self, _submitter: u32, slot: u32, payload: Option<&Arc<Buffer>>) -> End {
        let Some(payload) = payload.filter(|_| self.load.verify) else {
            return End::Good;
        };
        let pattern = Pattern::new(self.connection, slot.into(), false);
        match holds(payload, self.load.size as usize, pattern) {
            true => End::Good,
            false => End::Wrong,
        }
    }
}

/// A SEND or WRITE under way.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    seq: u64,
    /// Of a WRITE: where it goes.
    slot: u32,
}

/// SENDs and WRITEs.
pub(super) struct Sends {
    connection: u32,
    load: Load,
    remote: Remote,
    begun: u64,
    /// Messages that the server has taken, as far as known.
    credited: u64,
    /// Messages that may be on their way beyond those; 0 for any number.
    receives: u64,
    /// The peer's slots that no WRITE has.
    slots: KVec<u32>,
    /// What the server is to be asked for, and what it was asked for.
    to_check: KVec<Check>,
    checking: KVec<Check>,
}

impl Work for Sends {
    type Flow = Out;
    type Mark = Sent;

    fn new(connection: u32, load: &Load, _depth: u32, lane_depth: u32) -> Result<Self> {
        let mut slots = KVec::new();
        for slot in (0..load.exposed_slots(false).min(lane_depth)).rev() {
            slots.push(slot, GFP_KERNEL)?;
        }
        let checks = match load.server_checks() {
            true => lane_depth as usize,
            false => 0,
        };
        Ok(Self {
            connection,
            load: *load,
            remote: Remote::new(0),
            begun: 0,
            credited: 0,
            receives: load.receives().into(),
            slots,
            to_check: KVec::with_capacity(checks, GFP_KERNEL)?,
            checking: KVec::with_capacity(checks, GFP_KERNEL)?,
        })
    }

    fn set_remote(&mut self, remote: Remote) {
        self.remote = remote;
    }

    fn may_begin(&self) -> Option<Next> {
        if self.receives == 0 {
            return Some(Next::More);
        }
        match self.receives.saturating_sub(self.begun - self.credited) {
            0 => None,
            1 => Some(Next::Nothing),
            _ => Some(Next::More),
        }
    }

    fn prepare(&mut self, _count: u64, payload: &Arc<Buffer>) -> Result<(Sent, Outgoing)> {
        let seq = self.begun;
        let imm = seq as u32;
        if self.load.verify {
            let pattern = Pattern::new(self.connection, seq, false);
            fill(payload, self.load.size as usize, pattern)?;
        }
        if !self.load.op.is_write() {
            let verb = match self.load.op {
                Op::SendImm => Outgoing::SendImm(imm),
                _ => Outgoing::Send,
            };
            return Ok((Sent { seq, slot: 0 }, verb));
        }
        let slot = *self.slots.last().ok_or(EAGAIN)?;
        let to = self.remote.at(slot, self.load.offset(seq))?;
        let _ = self.slots.pop();
        let verb = match self.load.op {
            Op::WriteImm => Outgoing::WriteImm(to, imm),
            _ => Outgoing::Write(to),
        };
        Ok((Sent { seq, slot }, verb))
    }

    fn begun(&mut self) {
        self.begun += 1;
    }

    fn cancel(&mut self, mark: Sent) {
        if self.load.op.is_write() {
            // There is room for each that there was at first.
            let _ = self.slots.push_within_capacity(mark.slot);
        }
    }

    fn completed(&mut self, submitter: u32, mark: Sent, _payload: Option<&Arc<Buffer>>) -> End {
        if !self.load.server_checks() {
            self.cancel(mark);
            return End::Good;
        }
        let Sent { seq, slot } = mark;
        let check = Check {
            seq,
            slot,
            submitter,
        };
        // Each has a slot, so there is room.
        let _ = self.to_check.push_within_capacity(check);
        End::Check
    }

    fn credit(&mut self, received: u64) -> bool {
        let can_be = self.receives != 0 && (self.credited..=self.begun).contains(&received);
        if can_be {
            self.credited = received;
        }
        can_be
    }

    fn take_check(&mut self) -> Option<(u64, u32)> {
        let check = self.to_check.remove(0).ok()?;
        // As many as slots at most, too.
        let _ = self.checking.push_within_capacity(check);
        Some((check.seq, check.slot))
    }

    fn checked(&mut self, seq: u64) -> Option<u32> {
        let at = self.checking.iter().position(|check| check.seq == seq)?;
        let check = self.checking.remove(at).ok()?;
        let slot = check.slot;
        self.cancel(Sent { seq, slot });
        Some(check.submitter)
    }
}

/// Fills the first `len` bytes of a buffer with a payload.
fn fill(buffer: &Arc<Buffer>, len: usize, pattern: Pattern) -> Result {
    let mut bytes = [0; STEP];
    let mut at = 0;
    while at < len {
        let n = STEP.min(len - at);
        pattern.fill(at, &mut bytes[..n]);
        pages::write(buffer, at, &bytes[..n])?;
        at += n;
    }
    Ok(())
}

/// Whether a buffer begins with `len` bytes of that payload.
fn holds(buffer: &Arc<Buffer>, len: usize, pattern: Pattern) -> bool {
    let mut bytes = [0; STEP];
    let mut at = 0;
    while at < len {
        let n = STEP.min(len - at);
        let read = pages::read(buffer, at, &mut bytes[..n]);
        if read.is_err() || !pattern.matches(at, &bytes[..n]) {
            return false;
        }
        at += n;
    }
    true
}
