// SPDX-License-Identifier: GPL-2.0

//! A client connects: control first, then each data connection, until the load begins.

use super::{
    super::{
        cause::{EndedWith, Stage},
        conn,
        exchange::requester::Requester,
        failure::{Because, Failure, Outcome},
        params::Transport,
        session::{CmMail, Session},
        wire::{Hello, Message, Region, Welcome},
    },
    share, Client, Goal, Lane, Phase, CHECKS,
};
use crate::{
    kapi::time::{now_ns, MS},
    verbs::{CmId, ConnParam},
};
use kernel::prelude::*;

impl Client {
    /// Begins to resolve the server's address for another connection.
    pub(super) fn resolve(&mut self, session: &Session, connection: Option<u32>) -> Outcome {
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

    /// The route is there: make the QP and connect it.
    pub(super) fn connect(&mut self, session: &mut Session, connection: Option<u32>) -> Outcome {
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

    pub(super) fn established(
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
    pub(super) fn open(&mut self, session: &mut Session, index: u32) -> Outcome {
        self.phase = Phase::Opening(index);
        if session.load.transport == Transport::Rc {
            return self.resolve(session, Some(index));
        }
        let address = session.make_conn(None)?.address();
        session.send(index, Message::Open(address))
    }

    pub(super) fn begin_exposing(&mut self, session: &mut Session, index: u32) -> Outcome {
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

    /// Everything is connected: the load begins.
    pub(super) fn begin(&mut self, session: &mut Session) -> Outcome {
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
}

/// How long making all connections may take, ns. Twice the timeout, as the resolution of the
/// address ends after one, and should tell what it was.
pub(super) fn setup_time(session: &Session) -> u64 {
    let timeout = u64::from(session.settings.timeout_ms) * MS;
    timeout * 2 + u64::from(session.load.connections) * 200 * MS
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
