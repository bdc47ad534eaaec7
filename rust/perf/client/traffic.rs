// SPDX-License-Identifier: GPL-2.0

//! Operations that keep a queue full, and the checks of what they carried.

use super::{
    super::{
        conn::Conn,
        failure::{Because, Outcome},
        params::{Load, Op},
        pattern::Pattern,
        session::Session,
        slots::Slot,
        wire::{Message, Verdict},
    },
    count, worker, Client, CHECKS,
};
use crate::{
    kapi::{time::now_ns, trace},
    verbs::{Wc, WcStatus},
};
use kernel::prelude::*;

impl Client {
    /// Keeps `depth` operations of a connection outstanding.
    pub(super) fn fill_queue(&mut self, session: &mut Session, index: usize) -> Outcome {
        let load = session.load;
        let receives = u64::from(load.receives());
        let lane = &mut self.lanes[index];
        let conn = &mut session.conns[index];
        let mut began = false;
        while lane.begun < lane.quota && (receives == 0 || lane.begun - lane.credited < receives) {
            let Some(mut slot) = conn.free.pop() else {
                break;
            };
            if !began {
                began = true;
                session.now = now_ns();
            }
            let seq = lane.begun;
            slot.seq = seq;
            slot.begin = session.now;
            lane.begun += 1;
            // The last that can be begun before something ends must itself say when it does.
            lane.last_signaled = conn.signals(seq)
                || lane.begun == lane.quota
                || (receives != 0 && lane.begun - lane.credited == receives);
            trace::submit(conn.qp.key(), session.now, load.size.into());
            begin(conn, slot, &load, lane.last_signaled)?;
        }
        if began {
            session.moved = true;
            lane.asked = session.now;
            conn.qp.flush().because("posting")?;
        }
        self.ask_for_checks(session, index)
    }

    /// Asks the server to check WRITE payloads that have been acknowledged.
    pub(super) fn ask_for_checks(&mut self, session: &mut Session, index: usize) -> Outcome {
        let now = session.now;
        let lane = &mut self.lanes[index];
        while self.checks < CHECKS && !lane.to_check.is_empty() {
            let control = session.control.as_mut().ok_or(ENOTCONN)?;
            if !control.has_room() {
                break;
            }
            let slot = lane.to_check.remove(0).map_err(|_| EINVAL)?;
            let check = Message::Check {
                seq: slot.seq,
                slot: slot.index,
            };
            control.send(index as u32, check, now)?;
            lane.checking.push(slot, GFP_KERNEL)?;
            self.checks += 1;
        }
        Ok(())
    }

    pub(super) fn checked(
        &mut self,
        session: &mut Session,
        connection: u32,
        seq: u64,
        verdict: Verdict,
    ) -> Outcome {
        let lane = self.lane(session, connection)?;
        if let Some(worker) = worker(session, connection) {
            if !worker.checked(seq) {
                return Err(session.lie(connection, "a check that was not asked for"));
            }
            self.checks -= 1;
            count(session, verdict);
            return Ok(());
        }
        let at = lane.checking.iter().position(|slot| slot.seq == seq);
        let slot = at.and_then(|at| lane.checking.remove(at).ok());
        let slot = slot.ok_or_else(|| session.lie(connection, "a check that was not asked for"))?;
        lane.ended += 1;
        self.checks -= 1;
        count(session, verdict);
        session.conns[connection as usize]
            .free
            .push(slot, GFP_KERNEL)?;
        Ok(())
    }

    /// A work request of a connection completed.
    pub(crate) fn completed(
        &mut self,
        session: &mut Session,
        index: usize,
        wc: &mut Wc,
    ) -> Outcome {
        if wc.route().recv {
            return match self.requesters.get_mut(index) {
                Some(requester) => requester.answered(session, index, &mut self.lanes[index], wc),
                None => self.pong(session, index, wc),
            };
        }
        let load = session.load;
        let now = session.now;
        loop {
            let conn = &mut session.conns[index];
            let Some(done) = conn.qp.take_send(wc) else {
                return Ok(());
            };
            let status = done.status;
            let slot = done.token;
            if status != WcStatus::Success {
                session.failed(index, status)?;
                continue;
            }
            if load.op.has_answer() {
                conn.free.push(slot, GFP_KERNEL)?;
                continue;
            }
            session
                .stats
                .operation(conn.qp.key(), slot.begin, now, 1, u64::from(load.size));
            let lane = self.lanes.get_mut(index).ok_or(EINVAL)?;
            if load.verify {
                match load.op {
                    Op::Write | Op::WriteImm => {
                        lane.to_check.push(slot, GFP_KERNEL)?;
                        continue;
                    }
                    Op::Read | Op::FetchAdd | Op::CmpSwap => {
                        if !answer_is_right(&slot, &load, index as u32)? {
                            session.stats.miscompares.add(1);
                        }
                    }
                    _ => {}
                }
            }
            lane.ended += 1;
            conn.free.push(slot, GFP_KERNEL)?;
        }
    }
}

/// Stages the operation `slot.seq`.
fn begin(conn: &mut Conn, slot: KBox<Slot>, load: &Load, signaled: bool) -> Outcome {
    let seq = slot.seq;
    let size = load.size as usize;
    let offset = load.offset(seq);
    let index = conn.index;
    if load.verify {
        match load.op {
            // Poison: what is not overwritten will not match.
            Op::Read => slot.fill(offset, size, Pattern::new(index, seq, true))?,
            Op::FetchAdd | Op::CmpSwap => slot.write(0, &u64::MAX.to_ne_bytes())?,
            _ => slot.fill(offset, size, Pattern::new(index, seq, false))?,
        }
    }
    match load.op {
        Op::Send => conn.push(slot, offset, size, signaled, |wr| wr.send()),
        Op::SendImm => conn.push(slot, offset, size, signaled, |wr| wr.send_imm(seq as u32)),
        Op::Write => {
            let to = conn.remote.at(slot.index, offset)?;
            conn.push(slot, offset, size, signaled, |wr| wr.write(to))
        }
        Op::WriteImm => {
            let to = conn.remote.at(slot.index, offset)?;
            conn.push(slot, offset, size, signaled, |wr| {
                wr.write_imm(to, seq as u32)
            })
        }
        Op::Read => {
            let from = (seq % u64::from(load.depth)) as u32;
            let from = conn.remote.at(from, load.offset(from.into()))?;
            conn.push_read(slot, offset, size, signaled, from)
        }
        Op::FetchAdd => {
            let at = conn.remote.at(0, 0)?;
            conn.push(slot, offset, size, signaled, |wr| wr.fetch_add(at, 1))
        }
        Op::CmpSwap => {
            let at = conn.remote.at(0, 0)?;
            conn.push(slot, offset, size, signaled, |wr| {
                wr.cmp_swap(at, seq, seq + 1)
            })
        }
        // Those that an answer ends have their own ways to begin.
        Op::SendPing | Op::WritePing | Op::ExchangeOut | Op::ExchangeIn | Op::CapsuleRead => {
            Err(EINVAL.into())
        }
    }
}

/// Whether the answer to a READ or atomic is what it must be.
fn answer_is_right(slot: &Slot, load: &Load, connection: u32) -> Result<bool> {
    if load.op.is_atomic() {
        // One connection's operations on its own word run in order: each finds the count of those
        // before it.
        let mut bytes = [0; 8];
        slot.read(0, &mut bytes)?;
        return Ok(u64::from_ne_bytes(bytes) == slot.seq);
    }
    let from = slot.seq % u64::from(load.depth);
    let pattern = Pattern::new(connection, from, false);
    slot.holds(load.offset(slot.seq), load.size as usize, pattern)
}
