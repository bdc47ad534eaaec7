// SPDX-License-Identifier: GPL-2.0

//! The client's side of a session: connects, makes the load, takes the latencies.

mod connect;
mod ping;
mod traffic;

use connect::setup_time;
pub(super) use ping::{ping_flag, ping_is_right, post_write_ping, send_numbered};

use super::{
    cause::{look_at, LongPackets, Stage},
    exchange::requester::Requester,
    failure::{Because, Failure, Outcome},
    params::{Op, Transport},
    session::{CmNews, Mail, Session},
    slots::Slot,
    submit::{AnyLane, Workforce},
    wire::{Message, Verdict},
};
use crate::{
    kapi::{event::Event, time::MS},
    verbs::{CmId, NetNs, SocketAddr},
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

/// The operations of number `i` of `all` that share a goal.
pub(super) fn share(goal: Goal, all: u64, i: u64) -> u64 {
    match goal {
        Goal::Count(n) => n / all.max(1) + u64::from(i < n % all.max(1)),
        Goal::Duration(_) => u64::MAX,
    }
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
