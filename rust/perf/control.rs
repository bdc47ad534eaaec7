// SPDX-License-Identifier: GPL-2.0

//! The control connection of a session: messages, heartbeats, and the registration of memory.
//!
//! It is an RC connection whatever transport is measured, as regions can be registered by work
//! request on RC only. Messages carry numbers: a peer that leaves one out, repeats one or speaks
//! out of turn is found out.

use super::{
    failure::{Because, Failure, Outcome},
    session::REASON,
    slots::{self, Slot},
    wire::{Message, MESSAGE_LEN},
};
use crate::{
    kapi::time::MS,
    verbs::{CmId, Cq, Pd, Qp, QpConfig, QpType, RegisteredMr, Registration, Wc, WcStatus},
};
use kernel::{prelude::*, sync::Arc};

/// Messages on their way at a time.
const SENDS: u32 = 128;
/// Messages of the peer that find a receive at a time; more wait by the transport's own means.
const RECEIVES: u32 = 256;
/// What the CQs must have room for.
pub(crate) const COMPLETIONS: u32 = SENDS + 1 + RECEIVES;

/// Token of a work request on the control QP.
enum Posted {
    Message(KBox<Slot>),
    /// Memory of a connection that is being registered.
    Register(Registration, u32),
}

/// What the control connection has for its session.
pub(crate) enum Arrival {
    /// A message about a connection.
    Message(u32, Message),
    /// Memory of a connection is registered.
    Registered(RegisteredMr, u32),
}

/// One end of a control connection.
pub(crate) struct Control {
    // Before the id, so that the QP goes first.
    qp: Qp<Posted, KBox<Slot>>,
    /// The CM's connection.
    pub(crate) id: CmId,
    free: KVec<KBox<Slot>>,
    /// Messages whose sends have not completed.
    sending: u32,
    /// Memory that is registered when there are none, and its connection.
    waiting: Option<(Registration, u32)>,
    /// Number of the next message that is sent.
    sent: u64,
    /// Number of the next message that must come.
    received: u64,
    last_sent: u64,
    last_heard: u64,
    /// When work requests were first flushed; 0 while they are not.
    flushed: u64,
    /// The peer is there: both may send now, and must not be silent.
    open: bool,
    /// Silence that ends the session, ns.
    timeout: u64,
    /// Time after which the peer must hear of us, ns.
    interval: u64,
}

impl Control {
    /// Makes the QP on `id`, with its receives posted. Sleeps.
    pub(crate) fn new(
        id: CmId,
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        timeout_ms: u32,
        now: u64,
    ) -> Outcome<Self> {
        let config = QpConfig {
            qp_type: QpType::Rc,
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            batch: 16,
        };
        let mut qp = Qp::new_cm(&id, pd, cq, cq, None, config).because("control QP")?;
        for slot in slots::allocate(pd, RECEIVES, MESSAGE_LEN)? {
            post(&mut qp, slot)?;
        }
        qp.flush_recv().because("control receives")?;
        let mut free = slots::allocate(pd, SENDS, MESSAGE_LEN)?;
        // Registrations take places in the ring too: leave them some.
        free.truncate(SENDS as usize - 16);
        Ok(Self {
            qp,
            id,
            free,
            sending: 0,
            waiting: None,
            sent: 0,
            received: 0,
            last_sent: now,
            last_heard: now,
            flushed: 0,
            open: false,
            timeout: u64::from(timeout_ms) * MS,
            interval: u64::from(timeout_ms) * MS / 4,
        })
    }

    /// The key of its completions.
    pub(crate) fn key(&self) -> u32 {
        self.qp.key()
    }

    /// The connection is up, or will be in the next moment; the peer puts up with so much silence.
    pub(crate) fn set_peer_timeout(&mut self, timeout_ms: u32) {
        self.open = true;
        self.interval = u64::from(timeout_ms) * MS / 4;
    }

    /// Whether a message can be sent now. If not, completions have to come first.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() && self.qp.send_room() > 0
    }

    /// Sends a message about a connection; `EAGAIN` without room.
    pub(crate) fn send(&mut self, connection: u32, message: Message, now: u64) -> Outcome {
        let slot = self.free.pop().ok_or(EAGAIN)?;
        slot.write(0, &message.encode(connection, self.sent))?;
        let pushed = self.qp.push(Posted::Message(slot), |token, wr| {
            let Posted::Message(slot) = token else {
                return Err(EINVAL);
            };
            slot.sges(wr, 0, MESSAGE_LEN, 1)?;
            wr.signaled();
            wr.send()
        });
        pushed.map_err(|(e, _)| e).because("control message")?;
        self.qp.flush().because("control message")?;
        self.sending += 1;
        self.sent += 1;
        self.last_sent = now;
        Ok(())
    }

    /// Registers memory of a connection; ends with [`Arrival::Registered`]. One at a time.
    ///
    /// The work request waits until no message is on its way: see
    /// [`crate::verbs::caps::Caps::registers_twice`].
    pub(crate) fn register(&mut self, registration: Registration, connection: u32) -> Outcome {
        if self.waiting.is_some() {
            return Err(EAGAIN).because("memory registration");
        }
        self.waiting = Some((registration, connection));
        self.register_waiting()
    }

    fn register_waiting(&mut self) -> Outcome {
        if self.sending > 0 {
            return Ok(());
        }
        let Some((registration, connection)) = self.waiting.take() else {
            return Ok(());
        };
        let token = Posted::Register(registration, connection);
        let pushed = self.qp.push(token, |token, wr| {
            let Posted::Register(registration, _) = token else {
                return Err(EINVAL);
            };
            wr.signaled();
            wr.reg_mr(registration)
        });
        pushed.map_err(|(e, _)| e).because("memory registration")?;
        self.qp.flush().because("memory registration")
    }

    /// Takes a completion of the control QP.
    pub(crate) fn completed(&mut self, wc: &mut Wc, now: u64) -> Outcome<Option<Arrival>> {
        if wc.route().recv {
            return self.received(wc, now);
        }
        let mut arrival = None;
        while let Some(done) = self.qp.take_send(wc) {
            if matches!(done.token, Posted::Message(_)) {
                self.sending = self.sending.saturating_sub(1);
            }
            if done.status != WcStatus::Success {
                check(done.status, &mut self.flushed, now)?;
                continue;
            }
            match done.token {
                Posted::Message(slot) => self.free.push(slot, GFP_KERNEL)?,
                Posted::Register(registration, connection) => {
                    arrival = Some(Arrival::Registered(registration.done(), connection));
                }
            }
        }
        self.register_waiting()?;
        Ok(arrival)
    }

    fn received(&mut self, wc: &mut Wc, now: u64) -> Outcome<Option<Arrival>> {
        let len = wc.byte_len() as usize;
        let Some(done) = self.qp.take_recv(wc) else {
            return Ok(None);
        };
        if done.status != WcStatus::Success {
            check(done.status, &mut self.flushed, now)?;
            return Ok(None);
        }
        let slot = done.token;
        let mut bytes = [0; MESSAGE_LEN];
        slot.read(0, &mut bytes)?;
        let decoded = bytes
            .get(..len)
            .map(|bytes| Message::decode(bytes, self.received));
        post(&mut self.qp, slot)?;
        self.qp.flush_recv().because("control receive")?;
        let decoded = decoded.unwrap_or(Err(super::wire::Bad::Length));
        let (connection, message) = decoded.map_err(|bad| {
            Failure::new(EPROTO, fmt!("bad message of the peer: {}", bad.as_str()))
        })?;
        self.received += 1;
        self.last_heard = now;
        Ok(Some(Arrival::Message(connection, message)))
    }

    /// Counts something else of the peer as a sign of life.
    pub(crate) fn heard(&mut self, now: u64) {
        self.last_heard = now;
    }

    /// Sends a heartbeat if it is time, and fails if the peer was silent for too long.
    pub(crate) fn tick(&mut self, now: u64) -> Outcome {
        if self.open && now.saturating_sub(self.last_heard) > self.timeout {
            return Err(Failure::new(
                ETIMEDOUT,
                fmt!("the peer was silent for {} ms", self.timeout / MS),
            ));
        }
        if self.flushed != 0 && now.saturating_sub(self.flushed) > REASON {
            return Err(broken(WcStatus::Flushed));
        }
        if self.qp.has_failed() {
            return Err(Failure::new(
                EIO,
                fmt!("the device reported an error of the control QP"),
            ));
        }
        let due = now.saturating_sub(self.last_sent) >= self.interval;
        if due && self.open && self.flushed == 0 && self.has_room() {
            self.send(0, Message::Heartbeat, now)?;
        }
        Ok(())
    }

    /// Ns until [`Control::tick`] has something to do.
    pub(crate) fn next_tick(&self, now: u64) -> u64 {
        if !self.open {
            // Whoever connects has its own deadline.
            return 100 * MS;
        }
        let send = (self.last_sent + self.interval).saturating_sub(now);
        let fail = (self.last_heard + self.timeout + MS).saturating_sub(now);
        match self.flushed {
            0 => send.min(fail),
            flushed => (flushed + REASON + MS).saturating_sub(now).min(fail),
        }
    }

    /// Begins the end: see [`Qp::enter_error`].
    pub(crate) fn begin_drain(&mut self) {
        // A QP that cannot be moved is destroyed soon anyway.
        let _ = self.qp.enter_error();
    }

    /// Takes a completion while draining; whatever it was is over.
    pub(crate) fn drain(&mut self, wc: &mut Wc) {
        while self.qp.take_send(wc).is_some() {}
        let _ = self.qp.take_recv(wc);
    }

    /// What is not completed yet.
    pub(crate) fn outstanding(&self) -> u32 {
        self.qp.outstanding()
    }
}

fn post(qp: &mut Qp<Posted, KBox<Slot>>, slot: KBox<Slot>) -> Outcome {
    let posted = qp.post_recv(slot, |slot, wr| slot.receive(wr, MESSAGE_LEN));
    posted.map_err(|(e, _)| e).because("control receive")
}

/// A work request failed. That it was flushed says nothing about the reason; who knows it may speak
/// within [`REASON`]: `flushed` notes when it began.
fn check(status: WcStatus, flushed: &mut u64, now: u64) -> Outcome {
    if status != WcStatus::Flushed {
        return Err(broken(status));
    }
    if *flushed == 0 {
        *flushed = now;
    }
    Ok(())
}

fn broken(status: WcStatus) -> Failure {
    Failure::new(ECONNRESET, fmt!("the control connection broke: {status}"))
}
