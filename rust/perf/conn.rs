// SPDX-License-Identifier: GPL-2.0

//! A data connection: the QP that is measured, its payload slots, and what either end knows of the
//! other's memory. What the two roles have in common; who does what is in `client` and `server`.

use super::{
    failure::{Because, Outcome},
    params::{Load, Op, Transport},
    slots::{self, Exposed, Remote, Slot},
    wire::QpAddress,
};
use crate::{
    kapi::random,
    verbs::{
        caps::{self, Caps, UD_GRH_LEN},
        Access, Ah, CmId, Cq, Path, Pd, Qp, QpConfig, QpType, RemoteAddr, Wc,
    },
};
use core::ops::Range;
use kernel::{prelude::*, sync::Arc};

/// A QP whose tokens are slots.
pub(crate) type DataQp = Qp<KBox<Slot>, KBox<Slot>>;

/// How work goes through a connection's queues.
#[derive(Clone, Copy)]
pub(crate) struct Queueing {
    /// SGEs per operation.
    pub(crate) sges: u32,
    /// Work requests per operation: see [`parts`].
    pub(crate) parts: u32,
    /// Work requests of one doorbell.
    pub(crate) batch: u32,
    /// One work request of so many asks for a completion.
    pub(crate) signal_every: u64,
}

/// One end of a data connection.
pub(crate) struct Conn {
    /// Its number within the session.
    pub(crate) index: u32,
    // Before the id, so that the QP goes first.
    /// The QP.
    pub(crate) qp: DataQp,
    /// The CM's connection, of RC.
    pub(crate) id: Option<CmId>,
    /// Slots that no work request uses.
    pub(crate) free: KVec<KBox<Slot>>,
    /// Our memory for the peer.
    pub(crate) exposed: Exposed,
    /// The peer's memory for us.
    pub(crate) remote: Remote,
    /// First packet sequence number that our QP sends (UC and UD).
    psn: u32,
    qkey: u32,
    /// Receives of the queue.
    receives: u32,
    /// Bytes that one has to hold.
    receive_len: usize,
    queueing: Queueing,
}

impl Transport {
    /// The type of its QPs.
    pub(crate) fn qp_type(self) -> QpType {
        match self {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
        }
    }
}

/// Rights that the peer needs on our memory.
pub(crate) fn exposed_access(op: Op) -> Access {
    match op {
        Op::Read | Op::ExchangeIn => Access::REMOTE_READ,
        Op::FetchAdd | Op::CmpSwap => Access::REMOTE_ATOMIC,
        _ => Access::REMOTE_WRITE,
    }
}

/// Work requests that an operation of `sges` SGEs takes: a READ into more than the device puts into
/// one is several.
pub(crate) fn parts(load: &Load, client: bool, sges: u32, caps: &Caps) -> u32 {
    match load.op {
        Op::Read if client => sges.div_ceil(caps.max_sges(caps::Op::Read).max(1)),
        _ => 1,
    }
}

/// Completions that a connection may have at a time: with the marker of the QP's end.
pub(crate) fn completions(load: &Load, client: bool, parts: u32) -> u32 {
    load.send_queue(client) * parts + 1 + load.posted_receives(client)
}

/// READs and atomics at a time that an end's data connection of `depth` operations answers, and
/// that it makes.
pub(crate) fn reads(load: &Load, client: bool, depth: u32, caps: &Caps) -> (u8, u8) {
    let within = |max: u32| depth.min(max).min(128) as u8;
    if client == load.op.server_reads() {
        (within(caps.max_qp_rd_atom), 0)
    } else {
        (0, within(caps.max_qp_init_rd_atom))
    }
}

impl Conn {
    /// Makes QP and slots. With `id`, the QP is connected by the CM. Sleeps.
    #[allow(clippy::too_many_arguments)] // Each is one thing that a connection is made of.
    pub(crate) fn new(
        index: u32,
        load: &Load,
        client: bool,
        queueing: Queueing,
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        id: Option<CmId>,
        port: u32,
    ) -> Outcome<Self> {
        let recvs = load.posted_receives(client);
        let config = QpConfig {
            qp_type: load.transport.qp_type(),
            max_send_wr: load.send_queue(client) * queueing.parts,
            max_recv_wr: recvs,
            max_send_sge: queueing.sges.div_ceil(queueing.parts),
            max_recv_sge: 1,
            batch: queueing.batch.max(load.chain(client)).max(queueing.parts),
        };
        let qp = match &id {
            Some(id) => Qp::new_cm(id, pd, cq, cq, None, config),
            None => Qp::new(pd, cq, cq, None, port, config),
        };
        let mut conn = Self {
            index,
            qp: qp.because("data QP")?,
            id,
            free: slots::allocate(pd, load.send_slots(client), load.send_stride(client))
                .because("payload memory")?,
            exposed: Exposed::new(pd, load.stride()),
            remote: Remote::new(load.exposed_slots(!client)),
            psn: random::secret() as u32 & 0xff_ffff,
            qkey: random::secret() as u32 & 0x7fff_ffff,
            receives: recvs,
            receive_len: load.receive_len(client),
            queueing,
        };
        if conn.id.is_some() {
            conn.post_receives(load, client)?;
        }
        Ok(conn)
    }

    /// Posts all receives; the QP must be in a state that takes them.
    fn post_receives(&mut self, load: &Load, client: bool) -> Outcome {
        let stride = self.receive_len.next_multiple_of(64);
        let count = load.posted_receives(client);
        let pd = self.qp.pd().clone();
        for slot in slots::allocate(&pd, count, stride).because("receive memory")? {
            self.post_receive(slot)?;
        }
        self.qp.flush_recv().because("receives")
    }

    /// Stages a receive again.
    pub(crate) fn post_receive(&mut self, slot: KBox<Slot>) -> Outcome {
        let len = self.receive_len;
        let posted = self.qp.post_recv(slot, |slot, wr| slot.receive(wr, len));
        posted.map_err(|(e, _)| e).because("receive")
    }

    /// Posts the receives that are staged, once they are half of all.
    pub(crate) fn replenish(&mut self) -> Outcome {
        if self.qp.recv_staged() >= self.receives / 2 {
            self.qp.flush_recv().because("receives")?;
        }
        Ok(())
    }

    /// How the peer reaches a QP that the CM does not know.
    pub(crate) fn address(&self) -> QpAddress {
        QpAddress {
            qpn: self.qp.number(),
            psn: self.psn,
            qkey: self.qkey,
        }
    }

    /// Connects a UC or UD QP to the peer's. Sleeps.
    pub(crate) fn connect(
        &mut self,
        load: &Load,
        client: bool,
        path: &Path,
        peer: QpAddress,
    ) -> Outcome {
        match load.transport {
            Transport::Rc => return Err(EINVAL.into()),
            Transport::Uc => {
                let access = Access::REMOTE_WRITE;
                self.qp
                    .connect_uc(path, peer.qpn, peer.psn, self.psn, access)
                    .because("connecting the UC QP")?;
            }
            Transport::Ud => {
                self.qp
                    .ready_ud(path, self.qkey, self.psn)
                    .because("readying the UD QP")?;
                let pd = self.qp.pd();
                let ah = Ah::new(pd, path).because("address handle")?;
                let ah = Arc::new(ah, GFP_KERNEL)?;
                for slot in self.free.iter_mut() {
                    slot.destination = Some((ah.clone(), peer.qpn, peer.qkey));
                }
            }
        }
        self.post_receives(load, client)
    }

    /// Whether operation `seq`, whose slot was taken already, is one that asks for a completion.
    /// Without a slot left it has to.
    pub(crate) fn signals(&self, seq: u64) -> bool {
        (seq + 1) % self.queueing.signal_every == 0 || self.free.is_empty()
    }

    /// Stages a work request of `size` bytes out of (or into) `slot`; `build` names the operation.
    /// On error the slot is free again.
    pub(crate) fn push(
        &mut self,
        slot: KBox<Slot>,
        offset: usize,
        size: usize,
        signaled: bool,
        build: impl FnOnce(&mut crate::verbs::SendWr<'_, '_>) -> Result,
    ) -> Outcome {
        let pieces = self.queueing.sges as usize;
        let pushed = self.qp.push(slot, |slot, wr| {
            slot.sges(wr, offset, size, pieces)?;
            if let Some((ah, qpn, qkey)) = &slot.destination {
                wr.to(ah, *qpn, *qkey)?;
            }
            if signaled {
                wr.signaled();
            }
            build(wr)
        });
        self.keep_on_error(pushed)
    }

    /// Stages a READ of `size` bytes into `slot`, as one work request or as [`parts`] of them.
    /// On error the slot is free again.
    pub(crate) fn push_read(
        &mut self,
        slot: KBox<Slot>,
        offset: usize,
        size: usize,
        signaled: bool,
        from: RemoteAddr,
    ) -> Outcome {
        let (parts, sges) = (self.queueing.parts as usize, self.queueing.sges as usize);
        if parts <= 1 {
            return self.push(slot, offset, size, signaled, |wr| wr.read(from));
        }
        let width = sges.div_ceil(parts);
        let pushed = self.qp.push_chain(slot, |slot, chain| {
            let mut pieces = slots::pieces(size, sges).peekable();
            while let Some(first) = pieces.next() {
                let others = width - 1;
                chain.wr(|wr| {
                    let at = |piece: &Range<usize>| offset + piece.start..offset + piece.end;
                    slot.sge(wr, at(&first))?;
                    for piece in pieces.by_ref().take(others) {
                        slot.sge(wr, at(&piece))?;
                    }
                    if signaled && pieces.peek().is_none() {
                        wr.signaled();
                    }
                    wr.read(RemoteAddr {
                        addr: from.addr + first.start as u64,
                        rkey: from.rkey,
                    })
                })?;
            }
            Ok(())
        });
        self.keep_on_error(pushed)
    }

    /// The slot of what could not be staged is free again.
    pub(crate) fn keep_on_error(
        &mut self,
        pushed: core::result::Result<(), (Error, KBox<Slot>)>,
    ) -> Outcome {
        match pushed {
            Ok(()) => Ok(()),
            Err((e, slot)) => {
                self.free.push(slot, GFP_KERNEL)?;
                Err(e).because("work request")
            }
        }
    }

    /// Bytes of a received message that are payload.
    pub(crate) fn payload_len(&self, load: &Load, wc: &Wc) -> usize {
        let len = wc.byte_len() as usize;
        match load.transport {
            Transport::Ud => len.saturating_sub(UD_GRH_LEN),
            _ => len,
        }
    }

    /// Where the payload begins in a receive.
    pub(crate) fn payload_at(load: &Load) -> usize {
        match load.transport {
            Transport::Ud => UD_GRH_LEN,
            _ => 0,
        }
    }
}
