// SPDX-License-Identifier: GPL-2.0

//! The client's side of a session: connects, makes the load, takes the latencies.

use super::{
    cause::{look_at, EndedWith, LongPackets, Stage},
    conn::{self, Conn},
    exchange::requester::Requester,
    failure::{Because, Failure, Outcome},
    params::{Load, Op, Transport},
    pattern::Pattern,
    session::{CmMail, CmNews, Mail, Session},
    slots::Slot,
    submit::{AnyLane, Workforce},
    wire::{Hello, Message, Region, Verdict, Welcome},
};
use crate::{
    kapi::{
        event::Event,
        time::{now_ns, MS},
    },
    verbs::{CmId, ConnParam, NetNs, SocketAddr, Wc, WcStatus},
};
use kernel::{
    prelude::*,
    sync::{Arc, SetOnce},
};

/// Checks of WRITE payloads that the server is asked for at a time: its answers must find room.
const CHECKS: u32 = 32;
/// After so long without credit and without anything on its way, a client of an unreliable
/// transport asks what arrived; and a ping is taken for lost.
const LOST_AFTER: u64 = 200 * MS;
/// A connection that is alive, but completes nothing for so many timeouts, is given up. More than
/// one, as a transport that retries may need some time.
const STUCK_AFTER: u64 = 4;

/// When the load ends.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// After so many operations, of all connections together.
    Count(u64),
    /// After so many ms.
    Duration(u64),
}

/// What a client is to do.
pub(crate) struct Plan {
    pub(crate) net: Arc<NetNs>,
    pub(crate) address: SocketAddr,
    /// Name of the device that it must be; empty for any.
    pub(crate) device: KVec<u8>,
    pub(crate) goal: Goal,
    /// Threads that make the load; 0 for the session's own.
    pub(crate) submitters: u32,
}

/// Tells the task that started the client how connecting went.
#[pin_data]
pub(crate) struct Started {
    #[pin]
    event: Event,
    result: SetOnce<i32>,
}

impl Started {
    /// Nothing told yet.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                event <- Event::new(),
                result: SetOnce::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Tells; the first time counts.
    pub(crate) fn tell(&self, result: Result) {
        self.result
            .populate(result.map_or_else(|e| e.to_errno(), |()| 0));
        self.event.raise();
    }

    /// Whether it was told that all went well.
    pub(crate) fn was_connected(&self) -> bool {
        self.result.copy() == Some(0)
    }

    /// Waits until told. `EINTR` if a signal comes first.
    pub(crate) fn wait(&self) -> Result {
        loop {
            if let Some(errno) = self.result.copy() {
                return if errno == 0 {
                    Ok(())
                } else {
                    Err(Error::from_errno(errno))
                };
            }
            self.event.wait_interruptible(1000)?;
        }
    }
}

/// Where a client is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The control connection is being made.
    Connecting,
    /// Data connection `.0` is being made.
    Opening(u32),
    /// Load.
    Running,
    /// Everything is sent; the server tells what it saw.
    Finishing,
    Done,
}

/// What the client counts of a connection.
pub(crate) struct Lane {
    /// Operations that were begun.
    pub(super) begun: u64,
    /// Operations that ended.
    pub(super) ended: u64,
    /// Operations to do; `u64::MAX` when time decides.
    pub(super) quota: u64,
    /// Messages that the server has taken, as far as known.
    credited: u64,
    /// Checks that the server was asked for.
    checking: KVec<KBox<Slot>>,
    /// Payloads that wait to be checked.
    to_check: KVec<KBox<Slot>>,
    /// The operation that was begun last asks for a completion.
    last_signaled: bool,
    /// When the ping that is on its way was sent; 0 if none is.
    pinged: u64,
    /// Number of the ping that is on its way.
    ping: u64,
    /// When credit was asked for, or something moved.
    asked: u64,
    /// Operations that had ended when it was looked at, and when that changed, ns.
    progress: (u64, u64),
    /// All of its work is done and the server was told.
    finish_sent: bool,
    finished: bool,
}

/// The client of a session.
pub(crate) struct Client {
    plan: Plan,
    started: Arc<Started>,
    phase: Phase,
    /// What the connection that is being made waits for.
    stage: Stage,
    /// A CM id that is not part of a connection yet.
    id: Option<CmId>,
    token: u64,
    lanes: KVec<Lane>,
    /// One for each of them, if exchanges are the load.
    requesters: KVec<Requester>,
    /// When making connections has to be over, ns.
    setup_deadline: u64,
    /// When a load by time ends, ns.
    end: u64,
    checks: u32,
}

impl Client {
    /// A client that begins to connect. Sleeps.
    pub(crate) fn new(session: &Session, plan: Plan, started: Arc<Started>) -> Outcome<Self> {
        let mut client = Self {
            plan,
            started,
            phase: Phase::Connecting,
            stage: Stage::Address,
            id: None,
            token: 0,
            lanes: KVec::new(),
            requesters: KVec::new(),
            setup_deadline: session.now + setup_time(session),
            end: u64::MAX,
            checks: 0,
        };
        client.resolve(session, None)?;
        Ok(client)
    }

    /// Begins to resolve the server's address for another connection.
    fn resolve(&mut self, session: &Session, connection: Option<u32>) -> Outcome {
        let mail = CmMail {
            mailbox: session.mailbox.clone(),
            connection,
        };
        let mut id = CmId::new(&self.plan.net, mail).because("connection id")?;
        let timeout = session.settings.timeout_ms;
        self.stage = Stage::Address;
        let address = &self.plan.address;
        id.resolve_addr(None, address, timeout).map_err(|e| {
            Failure::new(
                e,
                fmt!(
                    "{address} cannot be reached: {}",
                    EndedWith(Stage::Address, e.to_errno())
                ),
            )
        })?;
        self.id = Some(id);
        Ok(())
    }

    pub(crate) fn mail(&mut self, session: &mut Session, mail: Mail) -> Outcome {
        let Mail::Cm(connection, news) = mail else {
            return Ok(());
        };
        match news {
            CmNews::AddrResolved => {
                let id = self.id.as_mut().ok_or(ENOTCONN)?;
                let device = id.device().because("the device")?;
                let name = device.name();
                let name = name.as_str();
                if !self.plan.device.is_empty() && self.plan.device.as_slice() != name.as_bytes() {
                    let address = &self.plan.address;
                    return Err(Failure::new(
                        ENODEV,
                        fmt!("{address} is reached by device {name}, not by the one that is set"),
                    ));
                }
                self.stage = Stage::Route;
                id.resolve_route(session.settings.timeout_ms)
                    .because("resolving the route")
            }
            CmNews::RouteResolved => self.connect(session, connection),
            CmNews::Established(data) => self.established(session, connection, &data),
            CmNews::Failed(failure) => Err(failure),
            CmNews::Disconnected if matches!(self.phase, Phase::Done) => Ok(()),
            CmNews::Disconnected => Err(Failure::new(
                ECONNRESET,
                fmt!("the peer ended the connection"),
            )),
        }
    }

    /// The route is there: make the QP and connect it.
    fn connect(&mut self, session: &mut Session, connection: Option<u32>) -> Outcome {
        self.stage = Stage::Request;
        let id = self.id.take().ok_or(ENOTCONN)?;
        let (hello, (answers, makes)) = match connection {
            None => {
                session.make_control(id).map_err(|(failure, _)| failure)?;
                let hello = Hello::Control {
                    load: session.load,
                    timeout_ms: session.settings.timeout_ms,
                };
                (hello, (0, 0))
            }
            Some(connection) => {
                if session.workforce.is_some() {
                    let goal = self.plan.goal;
                    let all = u64::from(self.plan.submitters);
                    session.make_lane(id, &|submitter| share(goal, all, submitter.into()))?;
                } else {
                    session.make_conn(Some(id))?;
                }
                let hello = Hello::Data {
                    token: self.token,
                    connection,
                };
                (hello, reads(session, connection)?)
            }
        };
        let id = match (connection, &mut session.workforce) {
            (None, _) => &mut session.control()?.id,
            (Some(_), Some(workforce)) => {
                let lane = workforce.lanes().last_mut().ok_or(ENOTCONN)?;
                &mut lane.id
            }
            (Some(_), None) => {
                let conn = session.conns.last_mut().ok_or(ENOTCONN)?;
                conn.id.as_mut().ok_or(ENOTCONN)?
            }
        };
        let param = ConnParam {
            private_data: &hello.encode(),
            responder_resources: answers,
            initiator_depth: makes,
        };
        id.connect(&param).because("connecting")
    }

    fn established(
        &mut self,
        session: &mut Session,
        connection: Option<u32>,
        data: &[u8],
    ) -> Outcome {
        self.stage = Stage::Setup;
        let now = session.now;
        match connection {
            None => {
                let welcome = Welcome::decode(data).map_err(|bad| {
                    Failure::new(EPROTO, fmt!("bad answer of the server: {}", bad.as_str()))
                })?;
                self.token = welcome.token;
                let load = session.load;
                let control = session.control()?;
                control.set_peer_timeout(welcome.timeout_ms);
                control.heard(now);
                if load.transport == Transport::Ud {
                    let mtu = control.id.path().because("the path")?.mtu();
                    let size = load.size;
                    if size > mtu {
                        return Err(Failure::new(
                            EMSGSIZE,
                            fmt!("size {size}: a UD message holds at most the path MTU, {mtu}"),
                        ));
                    }
                }
                self.open(session, 0)
            }
            Some(index) => self.begin_exposing(session, index),
        }
    }

    /// Begins to make data connection `index`.
    fn open(&mut self, session: &mut Session, index: u32) -> Outcome {
        self.phase = Phase::Opening(index);
        if session.load.transport == Transport::Rc {
            return self.resolve(session, Some(index));
        }
        let address = session.make_conn(None)?.address();
        session.send(index, Message::Open(address))
    }

    fn begin_exposing(&mut self, session: &mut Session, index: u32) -> Outcome {
        // What submitters do needs no memory of the client that the server knows of.
        if session.workforce.is_none() {
            session.expose(index)?;
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
        session.expose(connection)?;
        Ok(())
    }

    pub(crate) fn message(
        &mut self,
        session: &mut Session,
        connection: u32,
        message: Message,
    ) -> Outcome {
        let load = session.load;
        let opening = self.phase == Phase::Opening(connection);
        match message {
            Message::Opened(peer) if opening && load.transport != Transport::Rc => {
                let path = session.control()?.id.path().because("the path")?;
                let conn = session.conns.get_mut(connection as usize).ok_or(EPROTO)?;
                conn.connect(&load, true, &path, peer)?;
                self.begin_exposing(session, connection)
            }
            Message::Region(region) if opening => {
                let remote = session.remote(connection).ok_or(EPROTO)?;
                let added = remote.add(region, &load);
                added.map_err(|_| session.lie(connection, "a region that does not fit"))
            }
            Message::Ready if opening => {
                if !session.remote(connection).ok_or(EPROTO)?.complete() {
                    return Err(session.lie(connection, "ready without its memory"));
                }
                if connection + 1 < load.connections {
                    self.open(session, connection + 1)
                } else {
                    self.begin(session)
                }
            }
            Message::Credit { received } => {
                let lane = self.lane(session, connection)?;
                if let Some(lane) = worker(session, connection) {
                    return match lane.credit(received) {
                        true => Ok(()),
                        false => Err(session.lie(connection, "credit for what was not sent")),
                    };
                }
                let reliable = load.transport == Transport::Rc;
                if reliable && (received > lane.begun || received < lane.credited) {
                    return Err(session.lie(connection, "credit for what was not sent"));
                }
                // Where messages get lost, one that was taken for lost may come late, and so be
                // counted twice for a while.
                lane.credited = received.clamp(lane.credited, lane.begun);
                lane.asked = session.now;
                Ok(())
            }
            Message::Checked { seq, verdict } => self.checked(session, connection, seq, verdict),
            Message::Finished {
                received,
                miscompares,
                lost,
                value,
            } => self.server_finished(session, connection, received, miscompares, lost, value),
            _ => Err(session.lie(connection, "a message that does not belong here")),
        }
    }

    fn lane(&mut self, session: &Session, connection: u32) -> Outcome<&mut Lane> {
        let lane = self.lanes.get_mut(connection as usize);
        lane.ok_or_else(|| session.lie(connection, "a message before the load began"))
    }

    /// Everything is connected: the load begins.
    fn begin(&mut self, session: &mut Session) -> Outcome {
        let connections = u64::from(session.load.connections);
        for i in 0..connections {
            let quota = share(self.plan.goal, connections, i);
            let lane = Lane {
                begun: 0,
                ended: 0,
                quota,
                credited: 0,
                checking: KVec::with_capacity(CHECKS as usize, GFP_KERNEL)?,
                to_check: KVec::with_capacity(session.load.slots() as usize, GFP_KERNEL)?,
                last_signaled: true,
                pinged: 0,
                ping: 0,
                asked: session.now,
                progress: (0, session.now),
                finish_sent: false,
                finished: false,
            };
            self.lanes.push(lane, GFP_KERNEL)?;
            if session.load.op.is_exchange() {
                let requester = Requester::new(&session.load)?;
                self.requesters.push(requester, GFP_KERNEL)?;
            }
        }
        self.phase = Phase::Running;
        session.now = now_ns();
        if let Goal::Duration(ms) = self.plan.goal {
            self.end = session.now + ms * MS;
        }
        if let Some(workforce) = &mut session.workforce {
            let parts = workforce.parts()?;
            session.stats.parts.populate(parts);
            workforce.start()?;
        }
        self.started.tell(Ok(()));
        Ok(())
    }

    /// Makes new work where there is room for it.
    pub(crate) fn work(&mut self, session: &mut Session) -> Outcome {
        if self.phase != Phase::Running {
            return Ok(());
        }
        if let Some(workforce) = &mut session.workforce {
            if session.now >= self.end {
                self.end = u64::MAX;
                workforce.finish();
            }
            if session.load.server_checks() {
                let control = session.control.as_mut().ok_or(ENOTCONN)?;
                for (index, lane) in workforce.lanes().iter().enumerate() {
                    while self.checks < CHECKS && control.has_room() {
                        let Some((seq, slot)) = lane.lane.take_check() else {
                            break;
                        };
                        let check = Message::Check { seq, slot };
                        control.send(index as u32, check, session.now)?;
                        self.checks += 1;
                    }
                }
            }
            // Submitters of a lane that broke end as well: that is for the tick to tell.
            if workforce.is_done() && workforce.broken().is_none() {
                for (lane, conn) in self.lanes.iter_mut().zip(workforce.lanes()) {
                    (lane.begun, lane.ended) = conn.lane.progress();
                }
                self.phase = Phase::Finishing;
                return self.finish(session);
            }
            return Ok(());
        }
        let load = session.load;
        if session.now >= self.end {
            // Nothing new; the connections finish what they have.
            for lane in self.lanes.iter_mut() {
                // One more, if the last one does not say when it ends.
                lane.quota = lane.begun + u64::from(!lane.last_signaled);
            }
        }
        for index in 0..self.lanes.len() {
            if let Some(requester) = self.requesters.get_mut(index) {
                requester.work(session, index, &mut self.lanes[index])?;
                continue;
            }
            match load.op {
                Op::SendPing => self.send_ping(session, index)?,
                Op::WritePing => self.write_ping(session, index)?,
                _ => self.fill_queue(session, index)?,
            }
        }
        Ok(())
    }

    /// Keeps `depth` operations of a connection outstanding.
    fn fill_queue(&mut self, session: &mut Session, index: usize) -> Outcome {
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
    fn ask_for_checks(&mut self, session: &mut Session, index: usize) -> Outcome {
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

    fn checked(
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
                .operation(slot.begin, now, 1, u64::from(load.size));
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

    /// Sends the next ping, if none is on its way.
    fn send_ping(&mut self, session: &mut Session, index: usize) -> Outcome {
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
        send_numbered(conn, slot, &load)?;
        conn.qp.flush().because("posting")
    }

    /// An answer to a ping came.
    fn pong(&mut self, session: &mut Session, index: usize, wc: &mut Wc) -> Outcome {
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
            session.stats.operation(begin, now, 2, u64::from(load.size));
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
    fn write_ping(&mut self, session: &mut Session, index: usize) -> Outcome {
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
            session
                .stats
                .operation(lane.pinged, session.now, 2, u64::from(size as u32));
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
        post_write_ping(conn, slot, &load, false)
    }

    fn server_finished(
        &mut self,
        session: &mut Session,
        connection: u32,
        received: u64,
        miscompares: u64,
        lost: u64,
        value: u64,
    ) -> Outcome {
        let load = session.load;
        let lane = self.lane(session, connection)?;
        if !lane.finish_sent || lane.finished {
            return Err(session.lie(connection, "finished without being asked"));
        }
        lane.finished = true;
        let (begun, ended) = (lane.begun, lane.ended);
        if load.op.takes_receive() && load.transport == Transport::Rc && received != begun {
            return Err(session.lie(connection, "a count of messages that cannot be"));
        }
        if load.op.is_atomic() && load.verify && value != ended {
            session.stats.miscompares.add(1);
        }
        // What the server checked; what was checked here is counted already.
        if matches!(load.op, Op::Send | Op::SendImm) || load.op.has_answer() {
            session.stats.miscompares.add(miscompares);
            session.stats.lost.add(lost);
        }
        if self.lanes.iter().all(|lane| lane.finished) {
            self.phase = Phase::Done;
        }
        Ok(())
    }

    pub(crate) fn tick(&mut self, session: &mut Session) -> Outcome {
        let now = session.now;
        match self.phase {
            Phase::Connecting | Phase::Opening(_) => {
                if now > self.setup_deadline {
                    return Err(Failure::new(
                        ETIMEDOUT,
                        fmt!(
                            "{} took longer than {} ms; {}",
                            self.stage.as_str(),
                            setup_time(session) / MS,
                            look_at(self.stage, ETIMEDOUT.to_errno())
                        ),
                    ));
                }
                Ok(())
            }
            Phase::Running => {
                if let Some(workforce) = &mut session.workforce {
                    for (lane, conn) in self.lanes.iter_mut().zip(workforce.lanes()) {
                        // Without the lane's lock: others are using it.
                        lane.ended = conn.stats.ops.get();
                        lane.begun = lane.ended + u64::from(lane.ended < conn.share);
                    }
                } else {
                    for index in 0..self.lanes.len() {
                        self.look_for_losses(session, index)?;
                    }
                }
                for index in 0..self.lanes.len() {
                    self.look_for_progress(session, index)?;
                }
                if session.workforce.is_none()
                    && self.lanes.iter().all(|lane| lane.ended >= lane.quota)
                {
                    self.phase = Phase::Finishing;
                    return self.finish(session);
                }
                Ok(())
            }
            Phase::Finishing => self.finish(session),
            Phase::Done => Ok(()),
        }
    }

    /// Fails if a connection has work outstanding and nothing of it ends: a peer that answers on the
    /// control connection, but not on this one.
    fn look_for_progress(&mut self, session: &mut Session, index: usize) -> Outcome {
        let now = session.now;
        let timeout = u64::from(session.settings.timeout_ms) * STUCK_AFTER * MS;
        let lane = &mut self.lanes[index];
        if lane.ended != lane.progress.0 || lane.ended == lane.begun {
            lane.progress = (lane.ended, now);
        }
        if now.saturating_sub(lane.progress.1) > timeout {
            let place = session.place(index);
            return Err(Failure::new(
                ETIMEDOUT,
                fmt!(
                    "{place}: nothing was completed for {} ms, but the control connection works; {}",
                    timeout / MS,
                    LongPackets(session.mtu())
                ),
            ));
        }
        Ok(())
    }

    /// On unreliable transports: asks for credit that may never come, gives pings up.
    fn look_for_losses(&mut self, session: &mut Session, index: usize) -> Outcome {
        let load = session.load;
        let now = session.now;
        if load.transport == Transport::Rc {
            return Ok(());
        }
        let lane = &mut self.lanes[index];
        let conn = &mut session.conns[index];
        if lane.pinged != 0 && now.saturating_sub(lane.pinged.max(lane.asked)) > LOST_AFTER {
            session.stats.lost.add(1);
            lane.asked = now;
            if load.op == Op::WritePing {
                // The same again: the answer, or this, was lost.
                if let Some(mut slot) = conn.free.pop() {
                    slot.seq = lane.ping;
                    post_write_ping(conn, slot, &load, false)?;
                }
            } else {
                lane.pinged = 0;
                lane.ended += 1;
            }
        }
        let starved = load.op.takes_receive()
            && lane.begun < lane.quota
            && lane.begun - lane.credited >= u64::from(load.receives());
        if starved && now.saturating_sub(lane.asked) > LOST_AFTER {
            let control = session.control.as_mut().ok_or(ENOTCONN)?;
            if control.has_room() {
                lane.asked = now;
                control.send(index as u32, Message::Sync { sent: lane.begun }, now)?;
            }
        }
        Ok(())
    }

    /// Tells the server of connections that have done all.
    fn finish(&mut self, session: &mut Session) -> Outcome {
        let now = session.now;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if lane.finish_sent {
                continue;
            }
            let control = session.control.as_mut().ok_or(ENOTCONN)?;
            if !control.has_room() {
                break;
            }
            let finish = Message::Finish {
                ops: lane.ended,
                sent: lane.begun,
            };
            control.send(index as u32, finish, now)?;
            lane.finish_sent = true;
        }
        Ok(())
    }

    pub(crate) fn next_tick(&self, session: &Session) -> u64 {
        match self.phase {
            Phase::Running if session.workforce.as_ref().is_some_and(Workforce::is_done) => MS,
            Phase::Running | Phase::Finishing => {
                let end = self.end.saturating_sub(session.now);
                if session.load.transport == Transport::Rc {
                    end
                } else {
                    end.min(LOST_AFTER / 4)
                }
            }
            _ => 100 * MS,
        }
    }

    pub(crate) fn polls_memory(&self, session: &Session) -> bool {
        self.phase == Phase::Running && session.load.op == Op::WritePing
    }

    pub(crate) fn awaits_completions(&self, session: &Session) -> bool {
        self.phase == Phase::Running && session.workforce.is_none()
    }

    pub(crate) fn is_done(&self, _session: &Session) -> bool {
        self.phase == Phase::Done
    }
}

/// How long making all connections may take, ns. Twice the timeout, as the resolution of the
/// address ends after one, and should tell what it was.
fn setup_time(session: &Session) -> u64 {
    let timeout = u64::from(session.settings.timeout_ms) * MS;
    timeout * 2 + u64::from(session.load.connections) * 200 * MS
}

/// The operations of number `i` of `all` that share a goal.
fn share(goal: Goal, all: u64, i: u64) -> u64 {
    match goal {
        Goal::Count(n) => n / all.max(1) + u64::from(i < n % all.max(1)),
        Goal::Duration(_) => u64::MAX,
    }
}

/// See [`conn::reads`].
fn reads(session: &Session, connection: u32) -> Outcome<(u8, u8)> {
    let fabric = session.fabric.as_ref().ok_or(ENOTCONN)?;
    let caps = fabric.pd.device().caps();
    let depth = match &session.workforce {
        Some(workforce) => workforce.depth(connection).max(1),
        None => session.load.depth,
    };
    Ok(conn::reads(&session.load, true, depth, caps))
}

/// The lane that a data connection is, if it is one.
fn worker(session: &mut Session, connection: u32) -> Option<&dyn AnyLane> {
    let workforce = session.workforce.as_mut()?;
    let lane = workforce.lanes().get(connection as usize)?;
    Some(&*lane.lane)
}

/// Counts what a check found.
fn count(session: &Session, verdict: Verdict) {
    match verdict {
        Verdict::Good => {}
        Verdict::Wrong => session.stats.miscompares.add(1),
        Verdict::Lost => session.stats.lost.add(1),
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
        Op::SendPing | Op::WritePing | Op::ExchangeOut | Op::ExchangeIn => Err(EINVAL.into()),
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

/// Stages a ping or its answer: `slot.seq` says which. Unreliable transports carry the number
/// along, so that a late one is known.
pub(super) fn send_numbered(conn: &mut Conn, slot: KBox<Slot>, load: &Load) -> Outcome {
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
pub(super) fn ping_flag(seq: u64) -> u8 {
    (seq as u8).wrapping_add(1)
}

/// Posts a WRITE ping, or the answer to one.
pub(super) fn post_write_ping(
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
pub(super) fn ping_is_right(conn: &Conn, load: &Load, seq: u64, answer: bool) -> Result<bool> {
    use super::slots::Found;
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
