// SPDX-License-Identifier: GPL-2.0

//! The client's side of exchanges on one connection.

use super::{
    super::{
        client::Lane,
        failure::{Because, Outcome},
        params::{Load, Op},
        pattern::Pattern,
        session::Session,
        slots::Found,
    },
    wire::{check_answer, Request, ANSWER_LEN, REQUEST_LEN},
};
use crate::{
    kapi::{time::now_ns, trace},
    verbs::{Wc, WcStatus},
};
use kernel::prelude::*;

/// When operations began. Which they are is in the [`Lane`].
pub(crate) struct Requester {
    /// Of each buffer, when the operation that uses it began, ns.
    begins: KVec<u64>,
}

impl Requester {
    /// Nothing under way. Sleeps.
    pub(crate) fn new(load: &Load) -> Result<Self> {
        Ok(Self {
            begins: KVec::from_elem(0, load.depth as usize, GFP_KERNEL)?,
        })
    }

    /// Keeps `depth` operations of connection `index` under way.
    pub(crate) fn work(&mut self, session: &mut Session, index: usize, lane: &mut Lane) -> Outcome {
        let load = session.load;
        let depth = u64::from(load.depth);
        let conn = &mut session.conns[index];
        let mut began = false;
        while lane.begun < lane.quota && lane.begun - lane.ended < depth {
            let Some(slot) = conn.free.pop() else {
                break;
            };
            if !began {
                began = true;
                session.now = now_ns();
            }
            let seq = lane.begun;
            let buffer = (seq % depth) as u32;
            let offset = load.offset(seq);
            if load.verify {
                // What is asked for, or poison, which the answer's pattern does not match.
                let pattern = Pattern::new(conn.index, seq, false);
                conn.exposed
                    .fill(buffer, offset, load.size as usize, pattern)?;
            }
            let at = conn.exposed.remote(buffer, offset)?;
            let request = Request {
                addr: at.addr,
                rkey: at.rkey,
            };
            slot.write(0, &request.encode(&load, seq))?;
            self.begins[buffer as usize] = session.now;
            lane.begun += 1;
            let signaled = conn.signals(seq);
            trace::submit(conn.qp.key(), session.now, load.size.into());
            conn.push(slot, 0, REQUEST_LEN, signaled, |wr| wr.send())?;
        }
        if began {
            session.moved = true;
            conn.replenish()?;
            conn.qp.flush().because("posting")?;
        }
        Ok(())
    }

    /// A receive completed: an answer.
    pub(crate) fn answered(
        &mut self,
        session: &mut Session,
        index: usize,
        lane: &mut Lane,
        wc: &mut Wc,
    ) -> Outcome {
        let load = session.load;
        let (len, imm) = (wc.byte_len() as usize, wc.imm());
        let conn = &mut session.conns[index];
        let Some(done) = conn.qp.take_recv(wc) else {
            return Ok(());
        };
        let status = done.status;
        let slot = done.token;
        if status != WcStatus::Success {
            return session.failed(index, status);
        }
        let mut bytes = [0; ANSWER_LEN];
        slot.read(0, &mut bytes)?;
        conn.post_receive(slot)?;
        if len != ANSWER_LEN || imm.is_some() {
            return Err(session.lie(index as u32, "an answer of another kind or length"));
        }
        let seq = lane.ended;
        if seq == lane.begun {
            return Err(session.lie(index as u32, "an answer to no request"));
        }
        check_answer(&bytes, seq).map_err(|bad| session.lie(index as u32, bad.as_str()))?;
        lane.ended += 1;
        let buffer = (seq % u64::from(load.depth)) as u32;
        let begin = self.begins[buffer as usize];
        let size = load.size;
        let key = session.conns[index].qp.key();
        session
            .stats
            .operation(key, begin, session.now, 1, u64::from(size));
        if load.verify && load.op == Op::ExchangeOut {
            let pattern = Pattern::new(index as u32, seq, true);
            let exposed = &session.conns[index].exposed;
            let found = exposed.compare(buffer, load.offset(seq), size as usize, pattern)?;
            if found != Found::All {
                session.stats.miscompares.add(1);
            }
        }
        Ok(())
    }
}
