// SPDX-License-Identifier: GPL-2.0

//! Pings: one message at a time, there and back.

use super::{
    super::{
        conn::Conn,
        failure::{Because, Outcome},
        params::{Load, Transport},
        pattern::Pattern,
        session::Session,
        slots::Slot,
    },
    Client,
};
use crate::{
    kapi::{
        time::{now_ns, MS},
        trace,
    },
    verbs::{Wc, WcStatus},
};
use kernel::prelude::*;

impl Client {
    /// Sends the next ping, if none is on its way.
    pub(super) fn send_ping(&mut self, session: &mut Session, index: usize) -> Outcome {
        let load = session.load;
        let lane = &mut self.lanes[index];
        if lane.pinged != 0 || lane.begun >= lane.quota {
            return Ok(());
        }
        let conn = &mut session.conns[index];
        let Some(mut slot) = conn.free.pop() else {
            return Ok(());
        };
        let seq = lane.begun;
        slot.seq = seq;
        if load.verify {
            slot.fill(
                load.offset(seq),
                load.size as usize,
                Pattern::new(index as u32, seq, false),
            )?;
        }
        session.now = now_ns();
        lane.pinged = session.now;
        lane.ping = seq;
        lane.begun += 1;
        session.moved = true;
        trace::submit(conn.qp.key(), session.now, load.size.into());
        send_numbered(conn, slot, &load)?;
        conn.qp.flush().because("posting")
    }

    /// An answer to a ping came.
    pub(super) fn pong(&mut self, session: &mut Session, index: usize, wc: &mut Wc) -> Outcome {
        let load = session.load;
        let now = session.now;
        let imm = wc.imm();
        let conn = &mut session.conns[index];
        let len = conn.payload_len(&load, wc);
        let Some(done) = conn.qp.take_recv(wc) else {
            return Ok(());
        };
        let status = done.status;
        let slot = done.token;
        if status != WcStatus::Success {
            return session.failed(index, status);
        }
        let Some(lane) = self.lanes.get_mut(index) else {
            return Err(session.lie(index as u32, "an answer before the load began"));
        };
        let seq = lane.ping;
        // On an unreliable transport, an answer to a ping that was given up is late.
        let late = imm.is_some_and(|imm| imm != seq as u32) || lane.pinged == 0;
        if late && load.transport == Transport::Rc {
            return Err(session.lie(index as u32, "an answer to no ping"));
        }
        if !late {
            if len != load.size as usize {
                return Err(session.lie(index as u32, "an answer of another length"));
            }
            let begin = lane.pinged;
            lane.pinged = 0;
            lane.ended += 1;
            session
                .stats
                .operation(conn.qp.key(), begin, now, 2, u64::from(load.size));
            if load.verify {
                let pattern = Pattern::new(index as u32, seq, true);
                if !slot.holds(Conn::payload_at(&load), len, pattern)? {
                    session.stats.miscompares.add(1);
                }
            }
        }
        conn.post_receive(slot)?;
        conn.qp.flush_recv().because("receive")
    }

    /// Looks whether the answer to a WRITE ping is there; sends the next if none is on its way.
    pub(super) fn write_ping(&mut self, session: &mut Session, index: usize) -> Outcome {
        let load = session.load;
        let size = load.size as usize;
        let offset = load.offset(0);
        let lane = &mut self.lanes[index];
        let conn = &mut session.conns[index];
        if lane.pinged != 0 {
            let flag = ping_flag(lane.ping);
            if conn.exposed.peek(0, offset + size - 1)? != flag {
                return Ok(());
            }
            session.now = now_ns();
            session.moved = true;
            session.stats.operation(
                conn.qp.key(),
                lane.pinged,
                session.now,
                2,
                u64::from(load.size),
            );
            lane.pinged = 0;
            lane.ended += 1;
            if load.verify && !ping_is_right(conn, &load, lane.ping, true)? {
                session.stats.miscompares.add(1);
            }
        }
        if lane.begun >= lane.quota {
            return Ok(());
        }
        let Some(mut slot) = conn.free.pop() else {
            return Ok(());
        };
        let seq = lane.begun;
        slot.seq = seq;
        lane.ping = seq;
        lane.begun += 1;
        session.now = now_ns();
        lane.pinged = session.now;
        session.moved = true;
        trace::submit(conn.qp.key(), session.now, load.size.into());
        post_write_ping(conn, slot, &load, false)
    }
}

/// Stages a ping or its answer: `slot.seq` says which. Unreliable transports carry the number
/// along, so that a late one is known.
pub(crate) fn send_numbered(conn: &mut Conn, slot: KBox<Slot>, load: &Load) -> Outcome {
    let seq = slot.seq;
    let signaled = conn.signals(seq);
    let numbered = load.transport != Transport::Rc;
    conn.push(slot, load.offset(seq), load.size as usize, signaled, |wr| {
        if numbered {
            wr.send_imm(seq as u32)
        } else {
            wr.send()
        }
    })
}

/// The last byte of a WRITE ping: it differs from that of the ping before.
pub(crate) fn ping_flag(seq: u64) -> u8 {
    (seq as u8).wrapping_add(1)
}

/// Posts a WRITE ping, or the answer to one.
pub(crate) fn post_write_ping(
    conn: &mut Conn,
    slot: KBox<Slot>,
    load: &Load,
    answer: bool,
) -> Outcome {
    let seq = slot.seq;
    let size = load.size as usize;
    let offset = load.offset(0);
    if load.verify {
        slot.fill(offset, size, Pattern::new(conn.index, seq, answer))?;
    }
    slot.write(offset + size - 1, &[ping_flag(seq)])?;
    let to = conn.remote.at(0, offset)?;
    let signaled = conn.signals(seq);
    conn.push(slot, offset, size, signaled, |wr| wr.write(to))?;
    conn.qp.flush().because("posting")
}

/// Whether the payload of a WRITE ping, whose last byte has come, is right. The bytes before it
/// may still be on their way through the copy of a soft device, so a mismatch is looked at again.
pub(crate) fn ping_is_right(conn: &Conn, load: &Load, seq: u64, answer: bool) -> Result<bool> {
    use super::super::slots::Found;
    let len = load.size as usize - 1;
    let pattern = Pattern::new(conn.index, seq, answer);
    let deadline = now_ns() + MS;
    loop {
        if len == 0 || conn.exposed.compare(0, load.offset(0), len, pattern)? == Found::All {
            return Ok(true);
        }
        if now_ns() > deadline {
            return Ok(false);
        }
        kernel::processor::cpu_relax();
    }
}
