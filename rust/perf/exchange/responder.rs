// SPDX-License-Identifier: GPL-2.0

//! The server's side of exchanges on one connection.
//!
//! Its slots hold the payload, and behind it the answer.

use super::{
    super::{
        conn::Conn,
        failure::{Because, Outcome},
        params::{Load, Op},
        pattern::Pattern,
        session::Session,
        slots::Slot,
    },
    wire::{answer, Request, ANSWER_LEN, REQUEST_LEN},
};
use crate::verbs::RemoteAddr;
use kernel::prelude::*;

/// Requests of a connection.
///
/// # Invariants
///
/// `answered <= begun <= taken <= answered + depth`, where `depth` is the length of `requests`,
/// not 0.
pub(crate) struct Responder {
    /// Those that are not answered, each at the place that its number has.
    requests: KVec<Request>,
    /// How many have come.
    taken: u64,
    /// For how many of them a WRITE or READ was posted.
    begun: u64,
    /// For how many the answer was posted.
    answered: u64,
}

impl Responder {
    /// What a connection of that load needs: nothing, if it does something else. Sleeps.
    pub(crate) fn for_load(load: &Load) -> Result<Option<Self>> {
        if !load.op.is_exchange() {
            return Ok(None);
        }
        // INVARIANT: A load has a depth of at least 1.
        Ok(Some(Self {
            requests: KVec::from_elem(Request::default(), load.depth as usize, GFP_KERNEL)?,
            taken: 0,
            begun: 0,
            answered: 0,
        }))
    }

    fn place(&self, seq: u64) -> usize {
        (seq % self.requests.len() as u64) as usize
    }

    /// Takes a request of the right length out of `slot`; [`Responder::work`] begins with it.
    pub(crate) fn arrived(&mut self, session: &Session, index: usize, slot: &Slot) -> Outcome {
        let mut bytes = [0; REQUEST_LEN];
        slot.read(0, &mut bytes)?;
        if self.taken - self.answered >= self.requests.len() as u64 {
            return Err(session.lie(index as u32, "more requests than its depth allows"));
        }
        let request = Request::decode(&bytes, &session.load, self.taken)
            .map_err(|bad| session.lie(index as u32, bad.as_str()))?;
        let at = self.place(self.taken);
        self.requests[at] = request;
        self.taken += 1;
        Ok(())
    }

    /// Begins with the requests that wait, as far as there are slots, and posts all that is staged.
    pub(crate) fn work(&mut self, session: &mut Session, index: usize) -> Outcome {
        let load = session.load;
        let conn = &mut session.conns[index];
        while self.begun < self.taken {
            let Some(slot) = conn.free.pop() else {
                break;
            };
            self.begin(conn, &load, slot)?;
            if load.op == Op::ExchangeOut {
                let size = u64::from(load.size);
                session.stats.seen(1, size, session.now);
            }
        }
        conn.replenish()?;
        conn.qp.flush().because("posting")
    }

    /// Stages what the next request wants, in `slot`.
    fn begin(&mut self, conn: &mut Conn, load: &Load, mut slot: KBox<Slot>) -> Outcome {
        let seq = self.begun;
        let (offset, size) = (load.offset(seq), load.size as usize);
        let request = self.requests[self.place(seq)];
        let remote = RemoteAddr {
            addr: request.addr,
            rkey: request.rkey,
        };
        slot.seq = seq;
        self.begun += 1;
        if load.verify {
            // The payload, or poison under one that is to come.
            slot.fill(offset, size, Pattern::new(conn.index, seq, true))?;
        }
        if load.op == Op::ExchangeIn {
            return conn.push(slot, offset, size, true, |wr| wr.read(remote));
        }
        self.answered += 1;
        let signaled = conn.signals(seq);
        let at = load.stride();
        slot.write(at, &answer(seq))?;
        let pushed = conn.qp.push_chain(slot, |slot, chain| {
            chain.wr(|wr| {
                slot.sges(wr, offset, size, 1)?;
                wr.write(remote)
            })?;
            chain.wr(|wr| {
                slot.sges(wr, at, ANSWER_LEN, 1)?;
                if signaled {
                    wr.signaled();
                }
                wr.send()
            })
        });
        conn.keep_on_error(pushed)
    }

    /// A slot came back: from a READ, if its number is the next to be answered, or else from an
    /// answer. Gives whether the payload is right, as far as it is looked at.
    pub(crate) fn done(
        &mut self,
        session: &mut Session,
        index: usize,
        slot: KBox<Slot>,
    ) -> Outcome<bool> {
        let load = session.load;
        let conn = &mut session.conns[index];
        let (seq, size) = (slot.seq, load.size);
        if seq != self.answered {
            conn.free.push(slot, GFP_KERNEL)?;
            return Ok(true);
        }
        let pattern = Pattern::new(conn.index, seq, false);
        let good = !load.verify || slot.holds(load.offset(seq), size as usize, pattern)?;
        session.stats.seen(1, u64::from(size), session.now);
        self.answered += 1;
        let signaled = conn.signals(seq);
        let at = load.stride();
        slot.write(at, &answer(seq))?;
        conn.push(slot, at, ANSWER_LEN, signaled, |wr| wr.send())?;
        Ok(good)
    }
}
