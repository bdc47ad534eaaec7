// SPDX-License-Identifier: GPL-2.0

//! What perf keeps for a queue of a controller: a lane whose capsules are sent, and answered.
//!
//! Completions of SENDs and answers go the way that the NVMe host has for them
//! (`rust/nvme/commands.rs` says why it is right): those of SENDs to a quiet CQ, where they are waited for
//! only if the send queue has no place. A place in the queue of READs is free with the answer.

use super::{reading::Reading, Signals};
use crate::{
    engine::{
        lane::{Fault, Queue, Service},
        poller::Dues,
        stats::LaneStats,
    },
    kapi::{time::now_ns, trace},
    nvme::{
        fabrics::Status,
        wire::{self, Completion, COMMAND, COMPLETION},
    },
    perf::stats::Stats,
    verbs::{Buffer, Direction, Mapped, Pd, RegisteredMr, Registration, Wc, WcStatus},
};
use core::fmt;
use kernel::{prelude::*, sync::Arc};

/// Bytes from one completion queue entry to the next: a cache line.
const STRIDE: usize = 64;
/// The first id of commands that are no READs. Those of READs are below.
const FIRST_ID: u16 = 0x8000;

/// Why a queue is of no more use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// A work request of the send queue ended so.
    Sending(WcStatus),
    /// A receive ended so.
    Receiving(WcStatus),
    /// Nothing can be posted any more.
    Posting,
    /// Its CQ failed.
    Cq,
    /// The device reported an error of its QP.
    Qp,
    /// An answer of so many bytes.
    Length(u32),
    /// An answer by something else than a plain SEND.
    Immediate,
    /// An answer to a command that is not under way, or has one.
    Id(u16),
    /// An invalidation, which nothing asks for.
    Key(u32),
    /// A READ has failed.
    Status(u16),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Sending(status) => write!(f, "a send failed: {status}"),
            Broken::Receiving(status) => write!(f, "a receive failed: {status}"),
            Broken::Posting => f.write_str("the device takes no work requests"),
            Broken::Cq => f.write_str("a completion queue failed"),
            Broken::Qp => f.write_str("the device reported an error of the queue pair"),
            Broken::Length(len) => write!(f, "an answer of {len} bytes"),
            Broken::Immediate => f.write_str("an answer with immediate data"),
            Broken::Id(id) => write!(f, "an answer to command {id:#x}, which is not under way"),
            Broken::Key(key) => write!(
                f,
                "an invalidation of key {key:#x}, which was not asked for"
            ),
            Broken::Status(status) => write!(f, "a READ failed: {}", Status(*status)),
        }
    }
}

impl Broken {
    /// Whether it is what follows from something else.
    pub(super) fn is_flushed(&self) -> bool {
        matches!(
            self,
            Broken::Sending(WcStatus::Flushed) | Broken::Receiving(WcStatus::Flushed)
        )
    }

    /// The errno.
    pub(super) fn code(&self) -> Error {
        match self {
            Broken::Sending(status) | Broken::Receiving(status) => match status {
                WcStatus::RetryExceeded
                | WcStatus::RnrRetryExceeded
                | WcStatus::ResponseTimeout => ETIMEDOUT,
                _ => ECONNRESET,
            },
            Broken::Posting | Broken::Cq | Broken::Qp | Broken::Status(_) => EIO,
            Broken::Length(_) | Broken::Immediate | Broken::Id(_) | Broken::Key(_) => EPROTO,
        }
    }
}

/// Token of a work request.
pub(super) enum Token {
    /// A capsule.
    Capsule(Arc<Mapped>),
    /// The REG_MR of memory.
    Register(Registration),
}

/// Where an answer lands.
pub(super) struct Landing {
    memory: Arc<Mapped>,
    at: usize,
}

/// A command that is no READ: there is one at a time.
enum Asked {
    Nothing,
    Waiting(u16),
    Answered(Completion),
}

/// See the file's head. To be changed with the lane's lock held.
pub(super) struct Capsules {
    /// Those of READs, by id, and behind them that of a command which is none.
    capsules: Arc<Mapped>,
    /// Where that is.
    own: usize,
    answers: Arc<Mapped>,
    receives: u32,
    reading: Option<Reading>,
    asked: Asked,
    last_id: u16,
    registered: Option<RegisteredMr>,
    /// One that an error has stopped: where nobody may sleep it cannot end.
    stuck: Option<Token>,
    every: u32,
    /// SENDs since the last that asked for a completion.
    since: u32,
    dues: Option<Dues>,
    /// READs wait for a place in the send queue.
    starved: bool,
    broken: Option<Broken>,
}

/// What is to be done when the lane's lock was given back.
#[derive(Default)]
pub(super) struct After {
    /// The run's thread is to look.
    news: bool,
}

impl Capsules {
    /// Without a READ, and places for the capsules of `places`; `receives` answers can come at a
    /// time. One of `every` SENDs asks for a completion. Sleeps.
    pub(super) fn new(
        pd: &Arc<Pd>,
        places: u32,
        receives: u32,
        every: u32,
        node: i32,
        dues: Option<Dues>,
    ) -> Result<Self> {
        let map = |len: usize, direction| -> Result<Arc<Mapped>> {
            let buffer = Buffer::new(len, Some(node))?;
            Ok(Arc::new(Mapped::new(pd, buffer, direction)?, GFP_KERNEL)?)
        };
        Ok(Self {
            capsules: map((places as usize + 1) * COMMAND, Direction::ToDevice)?,
            own: places as usize * COMMAND,
            answers: map(receives as usize * STRIDE, Direction::FromDevice)?,
            receives,
            reading: None,
            asked: Asked::Nothing,
            last_id: FIRST_ID,
            registered: None,
            stuck: None,
            every: every.max(1),
            since: 0,
            dues,
            starved: false,
            broken: None,
        })
    }

    /// Posts receives for all answers that can come.
    ///
    /// # Errors
    ///
    /// What posting says.
    pub(super) fn prime(&mut self, queue: &mut Queue<Self>) -> Result {
        for i in 0..self.receives as usize {
            let landing = Landing {
                memory: self.answers.clone(),
                at: i * STRIDE,
            };
            receive(queue, landing)?;
        }
        Ok(())
    }

    /// Writes the capsule of READ `id`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is none.
    pub(super) fn write(&self, id: u16, command: &[u8; COMMAND]) -> Result {
        self.capsules.write(usize::from(id) * COMMAND, command)
    }

    /// READs can begin, whose capsules are all written.
    pub(super) fn set_reading(&mut self, reading: Reading) {
        self.reading = Some(reading);
    }

    /// What READs count.
    pub(super) fn stats(&self) -> Result<Arc<Stats>> {
        let reading = self.reading.as_ref().ok_or(ENOTCONN)?;
        Ok(reading.stats.clone())
    }

    /// See [`Reading::begin`].
    pub(super) fn begin(&mut self, queue: &mut Queue<Self>, quota: u64) {
        if let Some(reading) = &mut self.reading {
            reading.begin(quota);
        }
        self.fill(queue, now_ns());
    }

    /// See [`Reading::finish`].
    pub(super) fn finish(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.finish();
        }
    }

    /// See [`Reading::progress`].
    pub(super) fn progress(&self) -> (u64, bool) {
        self.reading.as_ref().map_or((0, false), Reading::progress)
    }

    /// Why it is of no more use, if it is.
    pub(super) fn broken(&self, queue: &Queue<Self>) -> Option<Broken> {
        self.broken.or(queue.failed.map(|fault| match fault {
            Fault::Posting(_) => Broken::Posting,
            Fault::Cq => Broken::Cq,
        }))
    }

    // ---- one command at a time -----------------------------------------------------

    /// Sends a command that is no READ.
    pub(super) fn ask(&mut self, queue: &mut Queue<Self>, mut command: [u8; COMMAND]) -> Result {
        self.last_id = self.last_id.wrapping_add(1) | FIRST_ID;
        let id = self.last_id;
        wire::set_command_id(&mut command, id);
        self.capsules.write(self.own, &command)?;
        self.asked = Asked::Waiting(id);
        self.send(queue, self.own);
        Ok(())
    }

    /// Its answer, if it is there.
    pub(super) fn take_answer(&mut self) -> Option<Completion> {
        let Asked::Answered(answer) = self.asked else {
            return None;
        };
        self.asked = Asked::Nothing;
        Some(answer)
    }

    /// Has memory registered. Its completion is waited for: one at a time, and none after an error.
    pub(super) fn register(&mut self, queue: &mut Queue<Self>, registration: Registration) {
        let pushed = queue.qp.push(Token::Register(registration), |token, wr| {
            let Token::Register(registration) = token else {
                return Err(EINVAL);
            };
            wr.signaled();
            wr.reg_mr(registration)
        });
        match pushed {
            Ok(()) => {
                self.since = 0;
                if let Some(dues) = &mut self.dues {
                    dues.add_and_kick();
                }
            }
            Err((e, token)) => {
                self.stuck = Some(token);
                queue.failed.get_or_insert(Fault::Posting(e));
            }
        }
    }

    /// What it has become, if it is done.
    pub(super) fn take_registered(&mut self) -> Option<RegisteredMr> {
        self.registered.take()
    }

    // ---- READs ---------------------------------------------------------------------

    /// Sends the capsule that is at `at`. If that cannot be, the queue has failed.
    #[inline]
    fn send(&mut self, queue: &mut Queue<Self>, at: usize) {
        let signaled = self.since + 1 >= self.every;
        let token = Token::Capsule(self.capsules.clone());
        let pushed = queue.qp.push(token, |token, wr| {
            let Token::Capsule(memory) = token else {
                return Err(EINVAL);
            };
            wr.sge(memory.sge(at..at + COMMAND)?)?;
            if signaled {
                wr.signaled();
            }
            wr.send()
        });
        self.since = if signaled { 0 } else { self.since + 1 };
        if let Err((e, _)) = pushed {
            queue.failed.get_or_insert(Fault::Posting(e));
        }
    }

    /// Sends all READs that there are places for.
    fn fill(&mut self, queue: &mut Queue<Self>, now: u64) {
        while self.broken.is_none() && queue.failed.is_none() {
            let Some(id) = self.reading.as_ref().and_then(Reading::next) else {
                return;
            };
            if queue.qp.send_room() == 0 {
                return self.starve();
            }
            self.send(queue, usize::from(id) * COMMAND);
            if let Some(reading) = &mut self.reading {
                trace::submit(queue.qp.key(), now, reading.size());
                reading.sent(now);
            }
        }
    }

    /// There is no place in the send queue: completions of SENDs are waited for from here on, as no
    /// answer may be left to come.
    #[cold]
    fn starve(&mut self) {
        if !core::mem::replace(&mut self.starved, true) {
            if let Some(dues) = &mut self.dues {
                dues.add_and_kick();
            }
        }
    }

    /// A place of the send queue may have come back.
    #[cold]
    fn feed(&mut self, queue: &mut Queue<Self>) {
        if queue.qp.send_room() > 0 {
            self.starved = false;
            if let Some(dues) = &mut self.dues {
                dues.sub();
            }
            let now = queue.now;
            self.fill(queue, now);
        }
    }

    /// A work request of the send queue is done.
    fn sent(&mut self, token: Token, status: WcStatus, after: &mut After) {
        if status != WcStatus::Success {
            if let Token::Register(_) = token {
                self.stuck = Some(token);
            }
            return self.fail(Broken::Sending(status), after);
        }
        if let Token::Register(registration) = token {
            self.registered = Some(registration.done());
            if let Some(dues) = &mut self.dues {
                dues.sub();
            }
            after.news = true;
        }
    }

    /// A receive is done.
    #[inline]
    fn received(
        &mut self,
        queue: &mut Queue<Self>,
        wc: &mut Wc,
        stats: &LaneStats,
        after: &mut After,
    ) -> core::result::Result<(), Broken> {
        let (len, immediate, key) = (wc.byte_len(), wc.imm().is_some(), wc.invalidated());
        let Some(done) = queue.qp.take_recv(wc) else {
            return Ok(());
        };
        if done.status != WcStatus::Success {
            return Err(Broken::Receiving(done.status));
        }
        let landing = done.token;
        let mut bytes = [0; COMPLETION];
        if len != bytes.len() as u32 || landing.memory.read(landing.at, &mut bytes).is_err() {
            return Err(Broken::Length(len));
        }
        if immediate {
            return Err(Broken::Immediate);
        }
        if let Some(key) = key {
            return Err(Broken::Key(key));
        }
        self.answered(queue, Completion::parse(&bytes), stats, after)?;
        receive(queue, landing).map_err(|_| Broken::Posting)
    }

    #[inline]
    fn answered(
        &mut self,
        queue: &mut Queue<Self>,
        answer: Completion,
        stats: &LaneStats,
        after: &mut After,
    ) -> core::result::Result<(), Broken> {
        let id = answer.command_id;
        let reading = self.reading.as_mut();
        let Some((reading, ended)) = reading.and_then(|r| r.take(id).map(|ended| (r, ended)))
        else {
            if !matches!(self.asked, Asked::Waiting(asked) if asked == id) {
                return Err(Broken::Id(id));
            }
            self.asked = Asked::Answered(answer);
            after.news = true;
            return Ok(());
        };
        if !wire::is_success(answer.status) {
            return Err(Broken::Status(answer.status));
        }
        let (size, now) = (reading.size(), queue.now);
        stats.bytes.add(size);
        reading
            .stats
            .operation(queue.qp.key(), ended.begin, now, 1, size);
        reading.end(&ended);
        if reading.is_due() {
            // The lane posts what a turn has sent with one doorbell.
            self.fill(queue, now);
            after.news |= !self.progress().1;
        }
        Ok(())
    }

    /// Nothing more is to be done with the queue but to end it.
    #[cold]
    fn fail(&mut self, broken: Broken, after: &mut After) {
        // The first reason is the one that says something.
        self.broken.get_or_insert(broken);
        after.news = true;
    }
}

/// Posts a receive.
#[inline]
fn receive(queue: &mut Queue<Capsules>, landing: Landing) -> Result {
    let posted = queue.qp.post_recv(landing, |landing, wr| {
        let end = landing.at + COMPLETION;
        wr.sge(landing.memory.sge(landing.at..end)?)
    });
    posted.map_err(|(e, _)| e)
}

impl Service for Capsules {
    type Send = Token;
    type Recv = Landing;
    type Shared = Arc<Signals>;
    type After = After;

    const BROKEN: After = After { news: true };

    fn completed(
        &mut self,
        queue: &mut Queue<Self>,
        wc: &mut Wc,
        stats: &LaneStats,
        after: &mut After,
    ) {
        if wc.route().recv {
            if let Err(broken) = self.received(queue, wc, stats, after) {
                stats.errors.add(1);
                self.fail(broken, after);
            }
            return;
        }
        while let Some(done) = queue.qp.take_send(wc) {
            let (token, status) = (done.token, done.status);
            self.sent(token, status, after);
        }
        if self.starved {
            self.feed(queue);
        }
    }

    fn after(signals: &Arc<Signals>, after: After) {
        if after.news {
            signals.nudge();
        }
    }
}
