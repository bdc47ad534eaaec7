// SPDX-License-Identifier: GPL-2.0

//! The server: lets clients in, and serves each in a session of its own.

use super::{
    client::{ping_flag, ping_is_right, post_write_ping, send_numbered},
    conn::{self, Conn},
    exchange::responder::Responder,
    failure::{Because, Failure, Outcome},
    params::{Op, Transport},
    pattern::Pattern,
    session::{CmNews, Mail, Session},
    slots::{Found, Slot},
    wire::{Message, QpAddress, Refused, Region, Verdict, Welcome},
};
use crate::{
    kapi::time::MS,
    verbs::{CmId, ConnParam, Wc, WcStatus},
};
use kernel::prelude::*;

/// How long what an unreliable transport may have lost is waited for, ns.
const GRACE: u64 = 200 * MS;
/// How far from the expected message an unreliable transport's next one is looked for.
const MAX_GAP: u64 = 1024;

/// What the server counts of a connection.
struct Lane {
    ready: bool,
    /// Messages that arrived.
    received: u64,
    /// Messages that did not, as far as known.
    lost: u64,
    miscompares: u64,
    /// What the client was told of [`Lane::received`] and [`Lane::lost`].
    credited: u64,
    /// Number of the message that is expected next.
    expected: u64,
    /// When the last message or ping came, ns.
    last: u64,
    /// Checks of payloads that are not there yet, and may still come: operation, slot, and since
    /// when, ns. Only on unreliable transports, whose data the control connection may overtake.
    checks: KVec<(u64, u32, u64)>,
    /// The client's last word, and since when, ns.
    finish: Option<(u64, u64, u64)>,
    finished: bool,
    /// The QP of UC and UD is connected.
    connected: bool,
    /// What exchanges need.
    responder: Option<Responder>,
}

/// The server of one session.
pub(crate) struct Server {
    lanes: KVec<Lane>,
    gone: bool,
}

impl Server {
    /// Serves the client whose connect request `id` came from. Makes the control connection and
    /// accepts, or refuses. Sleeps.
    pub(crate) fn new(
        session: &mut Session,
        id: CmId,
        peer_timeout_ms: u32,
        token: u64,
    ) -> Outcome<Self> {
        if let Err((failure, id)) = session.make_control(id) {
            let refused = Refused::Resources.encode();
            // Without the id the CM refuses when it is destroyed.
            let _ = id.map(|mut id| id.reject(&refused));
            return Err(failure);
        }
        let welcome = Welcome {
            token,
            timeout_ms: session.settings.timeout_ms,
        };
        let control = session.control()?;
        control.set_peer_timeout(peer_timeout_ms);
        let param = ConnParam {
            private_data: &welcome.encode(),
            responder_resources: 0,
            initiator_depth: 0,
        };
        control.id.accept(&param).because("accepting")?;
        Ok(Self {
            lanes: KVec::new(),
            gone: false,
        })
    }

    pub(crate) fn mail(&mut self, session: &mut Session, mail: Mail) -> Outcome {
        match mail {
            Mail::Data(connection, id) => self.data_request(session, connection, id),
            Mail::Cm(None, CmNews::Established(_)) => {
                let now = session.now;
                session.control()?.heard(now);
                Ok(())
            }
            Mail::Cm(Some(connection), CmNews::Established(_)) => self.begin(session, connection),
            Mail::Cm(_, CmNews::Failed(failure)) => Err(failure),
            Mail::Cm(_, CmNews::Disconnected) => {
                self.gone = true;
                if self.is_over(session) {
                    return Ok(());
                }
                Err(Failure::new(
                    ECONNRESET,
                    fmt!("the client ended the connection before it was finished"),
                ))
            }
            Mail::Cm(_, CmNews::AddrResolved | CmNews::RouteResolved) => Ok(()),
        }
    }

    /// A client wants an RC data connection.
    fn data_request(&mut self, session: &mut Session, connection: u32, id: CmId) -> Outcome {
        let mut id = id;
        if !self.may_open(session, connection) || session.load.transport != Transport::Rc {
            let _ = id.reject(&Refused::NoSession.encode());
            return Ok(());
        }
        self.add_lane(session)?;
        let caps = session.fabric.as_ref().ok_or(ENOTCONN)?.pd.device().caps();
        let (answers, makes) = conn::reads(&session.load, false, session.load.depth, caps);
        let conn = session.make_conn(Some(id))?;
        let param = ConnParam {
            private_data: &[],
            responder_resources: answers,
            initiator_depth: makes,
        };
        let id = conn.id.as_mut().ok_or(ENOTCONN)?;
        id.accept(&param).because("accepting a data connection")
    }

    /// Whether the client may open that connection now: the next one, and the one before is ready.
    fn may_open(&self, session: &Session, connection: u32) -> bool {
        connection as usize == self.lanes.len()
            && connection < session.load.connections
            && self.lanes.last().is_none_or(|lane| lane.ready)
    }

    fn add_lane(&mut self, session: &Session) -> Outcome {
        let lane = Lane {
            ready: false,
            received: 0,
            lost: 0,
            miscompares: 0,
            credited: 0,
            expected: 0,
            last: session.now,
            checks: KVec::new(),
            finish: None,
            finished: false,
            connected: false,
            responder: Responder::for_load(&session.load)?,
        };
        Ok(self.lanes.push(lane, GFP_KERNEL)?)
    }

    /// A data connection is up: register memory, then say that it can be used.
    fn begin(&mut self, session: &mut Session, connection: u32) -> Outcome {
        let lane = self.lanes.get_mut(connection as usize).ok_or(EINVAL)?;
        lane.connected = true;
        if !session.expose(connection)? {
            self.ready(session, connection)?;
        }
        Ok(())
    }

    pub(crate) fn registered(
        &mut self,
        session: &mut Session,
        connection: u32,
        region: Region,
    ) -> Outcome {
        session.send(connection, Message::Region(region))?;
        if !session.expose(connection)? {
            self.ready(session, connection)?;
        }
        Ok(())
    }

    /// Says that a connection can be used, when both know the memory that they need.
    fn ready(&mut self, session: &mut Session, connection: u32) -> Outcome {
        let exposed = session.load.exposed_slots(false);
        let conn = session.conns.get(connection as usize).ok_or(EINVAL)?;
        let lane = self.lanes.get_mut(connection as usize).ok_or(EINVAL)?;
        let told = conn.exposed.slots(exposed) == exposed;
        if lane.ready || !lane.connected || !told || !conn.remote.complete() {
            return Ok(());
        }
        lane.ready = true;
        session.send(connection, Message::Ready)
    }

    pub(crate) fn message(
        &mut self,
        session: &mut Session,
        connection: u32,
        message: Message,
    ) -> Outcome {
        let load = session.load;
        if let Message::Open(peer) = message {
            return self.open(session, connection, peer);
        }
        let now = session.now;
        let Some(lane) = self.lanes.get_mut(connection as usize) else {
            return Err(session.lie(connection, "there is no such connection"));
        };
        match message {
            Message::Region(region) if !lane.ready => {
                let conn = &mut session.conns[connection as usize];
                let added = conn.remote.add(region, &load);
                added.map_err(|_| session.lie(connection, "a region that does not fit"))?;
                self.ready(session, connection)
            }
            Message::Sync { sent } if lane.ready && load.op.needs_credit() => {
                if load.transport != Transport::Rc {
                    // What was taken for lost before may have come since. And so may messages that
                    // were sent after this, with credit that crossed it.
                    lane.lost = sent.saturating_sub(lane.received);
                } else if sent < lane.received {
                    return Err(session.lie(connection, "fewer messages sent than came"));
                }
                lane.credited = lane.received + lane.lost;
                let received = lane.credited;
                session.send(connection, Message::Credit { received })
            }
            Message::Check { seq, slot } if lane.ready && load.verify => {
                if !load.op.is_write() || slot >= load.depth {
                    return Err(session.lie(connection, "a check of no slot"));
                }
                if lane.checks.len() >= load.depth as usize {
                    return Err(session.lie(connection, "more checks than slots"));
                }
                lane.checks.push((seq, slot, now), GFP_KERNEL)?;
                self.answer_checks(session, connection as usize)
            }
            Message::Finish { ops, sent } if lane.ready && lane.finish.is_none() => {
                lane.finish = Some((ops, sent, now));
                self.answer_finish(session, connection as usize)
            }
            _ => Err(session.lie(connection, "a message that does not belong here")),
        }
    }

    /// Answers the checks that can be answered.
    fn answer_checks(&mut self, session: &mut Session, index: usize) -> Outcome {
        let now = session.now;
        let mut at = 0;
        while let Some((seq, slot, since)) = self.lanes[index].checks.get(at).copied() {
            let wait = now.saturating_sub(since) < GRACE;
            let Some(verdict) = check(&session.conns[index], session, seq, slot, wait)? else {
                at += 1;
                continue;
            };
            let stats = &session.stats;
            match verdict {
                Verdict::Good => {}
                Verdict::Wrong => stats.miscompares.add(1),
                Verdict::Lost => stats.lost.add(1),
            }
            let _ = self.lanes[index].checks.remove(at);
            session.send(index as u32, Message::Checked { seq, verdict })?;
        }
        Ok(())
    }

    /// A client's UC or UD QP.
    fn open(&mut self, session: &mut Session, connection: u32, peer: QpAddress) -> Outcome {
        if !self.may_open(session, connection) || session.load.transport == Transport::Rc {
            return Err(session.lie(connection, "it cannot be opened now"));
        }
        let load = session.load;
        self.add_lane(session)?;
        let path = session.control()?.id.path().because("the path")?;
        if load.transport == Transport::Ud && load.size > path.mtu() {
            return Err(session.lie(connection, "UD messages beyond the path MTU"));
        }
        let conn = session.make_conn(None)?;
        conn.connect(&load, false, &path, peer)?;
        let address = conn.address();
        session.send(connection, Message::Opened(address))?;
        self.begin(session, connection)
    }

    /// A work request of a connection completed.
    pub(crate) fn completed(
        &mut self,
        session: &mut Session,
        index: usize,
        wc: &mut Wc,
    ) -> Outcome {
        if !wc.route().recv {
            while let Some(done) = session.conns[index].qp.take_send(wc) {
                let status = done.status;
                let slot = done.token;
                if status != WcStatus::Success {
                    session.conns[index].free.push(slot, GFP_KERNEL)?;
                    self.broke(session, index, status)?;
                    continue;
                }
                let lane = self.lanes.get_mut(index).ok_or(EINVAL)?;
                let Some(responder) = &mut lane.responder else {
                    session.conns[index].free.push(slot, GFP_KERNEL)?;
                    continue;
                };
                if !responder.done(session, index, slot)? {
                    lane.miscompares += 1;
                    session.stats.miscompares.add(1);
                }
            }
            return Ok(());
        }
        let load = session.load;
        let imm = wc.imm();
        let conn = &mut session.conns[index];
        let len = conn.payload_len(&load, wc);
        let Some(done) = conn.qp.take_recv(wc) else {
            return Ok(());
        };
        let status = done.status;
        let slot = done.token;
        if status != WcStatus::Success {
            return self.broke(session, index, status);
        }
        self.arrived(session, index, slot, len, imm)
    }

    /// A client that is done closes its QPs while receives are still posted here.
    fn broke(&mut self, session: &mut Session, index: usize, status: WcStatus) -> Outcome {
        if status == WcStatus::Flushed && self.lanes.get(index).is_some_and(|lane| lane.finished) {
            return Ok(());
        }
        session.failed(index, status)
    }

    /// A message arrived in `slot`.
    fn arrived(
        &mut self,
        session: &mut Session,
        index: usize,
        slot: KBox<Slot>,
        len: usize,
        imm: Option<u32>,
    ) -> Outcome {
        let load = session.load;
        let now = session.now;
        let lane = &mut self.lanes[index];
        let with_imm = match load.op {
            Op::SendImm | Op::WriteImm => true,
            Op::SendPing => load.transport != Transport::Rc,
            _ => false,
        };
        let expected_len = match load.op {
            Op::WriteImm => len,
            _ => load.message_len(false) as usize,
        };
        if len != expected_len || imm.is_some() != with_imm {
            return Err(session.lie(index as u32, "a data message of another kind or length"));
        }
        lane.received += 1;
        lane.last = now;
        session.control()?.heard(now);
        if let Some(responder) = &mut lane.responder {
            if !lane.ready || lane.finish.is_some() {
                return Err(session.lie(index as u32, "a request that does not belong here"));
            }
            responder.arrived(session, index, &slot)?;
            return session.conns[index].post_receive(slot);
        }
        // What came with it tells which one it is, as far as 32 bits go. Unreliable transports lose
        // messages, and the network may change their order.
        let ahead = match imm {
            Some(imm) if load.transport != Transport::Rc => {
                i64::from(imm.wrapping_sub(lane.expected as u32) as i32)
            }
            _ => 0,
        };
        let Some(mut seq) = lane.expected.checked_add_signed(ahead) else {
            return Err(session.lie(index as u32, "a data message with an impossible number"));
        };
        let mut good = imm.is_none_or(|imm| imm == seq as u32);
        if load.verify && load.op != Op::WriteImm {
            match find(&slot, &load, index as u32, seq, len, imm.is_none())? {
                Some(found) => seq = found,
                None => good = false,
            }
        }
        let next = seq + 1;
        if (lane.expected..=lane.expected + MAX_GAP).contains(&next) {
            lane.expected = next;
        }
        if !good {
            lane.miscompares += 1;
            session.stats.miscompares.add(1);
        }
        session.stats.seen(1, u64::from(load.size), now);

        let conn = &mut session.conns[index];
        conn.post_receive(slot)?;
        if load.op == Op::SendPing {
            let mut answer = conn.free.pop().ok_or(EAGAIN).because("answer to a ping")?;
            answer.seq = seq;
            if load.verify {
                let offset = load.offset(answer.seq);
                let pattern = Pattern::new(index as u32, answer.seq, true);
                answer.fill(offset, load.size as usize, pattern)?;
            }
            send_numbered(conn, answer, &load)?;
            conn.qp.flush().because("answer to a ping")?;
            // The answer is credit enough; but the client is told at times what was lost.
        }
        Ok(())
    }

    /// Posts receives again, tells of credit, looks for WRITE pings, answers requests.
    pub(crate) fn work(&mut self, session: &mut Session) -> Outcome {
        let load = session.load;
        let now = session.now;
        if load.op == Op::WritePing {
            for index in 0..self.lanes.len() {
                self.write_ping(session, index)?;
            }
            return Ok(());
        }
        if !session.moved || !load.op.takes_receive() {
            return Ok(());
        }
        let quarter = u64::from(load.receives() / 4).max(1);
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if let Some(responder) = &mut lane.responder {
                responder.work(session, index)?;
                continue;
            }
            let conn = &mut session.conns[index];
            conn.qp.flush_recv().because("receives")?;
            let seen = lane.received + lane.lost;
            // What was taken for lost may have come since, and been counted twice for a while.
            if lane.finish.is_none() && seen.saturating_sub(lane.credited) >= quarter {
                let control = session.control.as_mut().ok_or(ENOTCONN)?;
                if control.has_room() {
                    lane.credited = seen;
                    control.send(index as u32, Message::Credit { received: seen }, now)?;
                }
            }
        }
        Ok(())
    }

    /// Answers a WRITE ping that has come.
    fn write_ping(&mut self, session: &mut Session, index: usize) -> Outcome {
        let load = session.load;
        let lane = &mut self.lanes[index];
        if !lane.ready || lane.finish.is_some() {
            return Ok(());
        }
        let conn = &mut session.conns[index];
        let flag_at = load.offset(0) + load.size as usize - 1;
        if conn.exposed.peek(0, flag_at)? != ping_flag(lane.expected) {
            return Ok(());
        }
        let seq = lane.expected;
        let Some(mut slot) = conn.free.pop() else {
            return Ok(());
        };
        lane.expected += 1;
        lane.received += 1;
        session.moved = true;
        if load.verify && !ping_is_right(conn, &load, seq, false)? {
            lane.miscompares += 1;
            session.stats.miscompares.add(1);
        }
        slot.seq = seq;
        post_write_ping(conn, slot, &load, true)?;
        session.now = crate::kapi::time::now_ns();
        lane.last = session.now;
        session.stats.seen(1, u64::from(load.size), session.now);
        Ok(())
    }

    pub(crate) fn tick(&mut self, session: &mut Session) -> Outcome {
        let load = session.load;
        let now = session.now;
        for index in 0..self.lanes.len() {
            self.answer_checks(session, index)?;
            self.answer_finish(session, index)?;
            let lane = &mut self.lanes[index];
            // The answer to a WRITE ping on UC may be lost: give it again now and then.
            if load.op == Op::WritePing
                && load.transport != Transport::Rc
                && lane.finish.is_none()
                && lane.received > 0
                && now.saturating_sub(lane.last) > GRACE
            {
                let conn = &mut session.conns[index];
                if let Some(mut slot) = conn.free.pop() {
                    slot.seq = lane.expected - 1;
                    lane.last = now;
                    post_write_ping(conn, slot, &load, true)?;
                }
            }
        }
        Ok(())
    }

    /// Answers the client's last word when nothing more is to come.
    fn answer_finish(&mut self, session: &mut Session, index: usize) -> Outcome {
        let load = session.load;
        let now = session.now;
        let lane = &mut self.lanes[index];
        let Some((ops, sent, since)) = lane.finish.filter(|_| !lane.finished) else {
            return Ok(());
        };
        let control = session.control.as_mut().ok_or(ENOTCONN)?;
        if !control.has_room() {
            return Ok(());
        }
        if load.op.takes_receive() {
            let reliable = load.transport == Transport::Rc;
            if lane.received < sent && (reliable || now.saturating_sub(since) < GRACE) {
                return Ok(());
            }
            lane.lost = sent.saturating_sub(lane.received);
            session.stats.lost.add(lane.lost);
        } else if load.op != Op::WritePing {
            session
                .stats
                .seen(ops, ops.saturating_mul(u64::from(load.size)), now);
        }
        let value = match load.op.is_atomic() {
            true => session.conns[index].exposed.word()?,
            false => 0,
        };
        let finished = Message::Finished {
            received: lane.received,
            miscompares: lane.miscompares,
            lost: match load.op.is_ping() {
                // The client has counted the pings that it gave up.
                true => 0,
                false => lane.lost,
            },
            value,
        };
        lane.finished = true;
        control.send(index as u32, finished, now)
    }

    pub(crate) fn next_tick(&self, session: &Session) -> u64 {
        let waiting = self
            .lanes
            .iter()
            .any(|lane| (lane.finish.is_some() && !lane.finished) || !lane.checks.is_empty());
        if waiting || (session.load.op == Op::WritePing && !self.lanes.is_empty()) {
            GRACE / 8
        } else {
            1000 * MS
        }
    }

    /// One-sided operations make no completion here: there is nothing to poll for.
    fn is_serving(&self) -> bool {
        self.lanes.iter().any(|lane| lane.ready && !lane.finished)
    }

    pub(crate) fn polls_memory(&self, session: &Session) -> bool {
        session.load.op == Op::WritePing && self.is_serving()
    }

    pub(crate) fn awaits_completions(&self, session: &Session) -> bool {
        session.load.op.takes_receive() && self.is_serving()
    }

    pub(crate) fn is_done(&self, session: &Session) -> bool {
        self.gone && self.is_over(session)
    }

    /// Whether every connection has been finished.
    fn is_over(&self, session: &Session) -> bool {
        self.lanes.len() == session.load.connections as usize
            && self.lanes.iter().all(|lane| lane.finished)
    }
}

/// Looks at the payload that a WRITE put into a slot. `None` if it is not there on an unreliable
/// transport, and `wait` says that it may still come.
fn check(
    conn: &Conn,
    session: &Session,
    seq: u64,
    slot: u32,
    wait: bool,
) -> Outcome<Option<Verdict>> {
    let load = session.load;
    let offset = load.offset(seq);
    let size = load.size as usize;
    let pattern = Pattern::new(conn.index, seq, false);
    let found = conn.exposed.compare(slot, offset, size, pattern)?;
    if load.transport == Transport::Rc {
        return Ok(Some(match found {
            Found::All => Verdict::Good,
            _ => Verdict::Wrong,
        }));
    }
    if wait && found != Found::All {
        return Ok(None);
    }
    // So that the next payload's absence shows.
    conn.exposed.clear(slot, 0, load.stride())?;
    Ok(Some(match found {
        Found::All => Verdict::Good,
        Found::Start => Verdict::Lost,
        Found::Other => Verdict::Wrong,
    }))
}

/// Which message is in `slot`: the one that is expected, or, where some may have been lost or have
/// overtaken others, one of those around it.
fn find(
    slot: &Slot,
    load: &super::params::Load,
    connection: u32,
    expected: u64,
    len: usize,
    search: bool,
) -> Outcome<Option<u64>> {
    let gap = match load.transport {
        Transport::Rc => 0,
        _ if !search => 0,
        _ => MAX_GAP,
    };
    let at = Conn::payload_at(load);
    // The first bytes tell most candidates apart, so that a peer cannot buy much time with them.
    let mut head = [0; 8];
    let head = &mut head[..len.min(8)];
    slot.read(at, head)?;
    let after = expected..=expected + gap;
    let before = expected.saturating_sub(gap)..expected;
    for seq in Iterator::chain(after, before.rev()) {
        let pattern = Pattern::new(connection, seq, false);
        if pattern.matches(0, head) && slot.holds(at, len, pattern)? {
            return Ok(Some(seq));
        }
    }
    Ok(None)
}
