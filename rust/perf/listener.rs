// SPDX-License-Identifier: GPL-2.0

//! A server's thread: listens, lets clients in, and ends with all of its sessions.
//!
//! The CM's callback ([`Door`]) decodes a connect request and refuses what makes no sense; a
//! request for a session goes to the listener's thread, which starts a thread for it; a request
//! for a data connection goes to the session whose secret it names.
//!
//! A listener that is bound to an address dies with that address's device. The thread drops it
//! then, and tries to listen again until the device is back.

use super::{
    board::Board,
    client::Started,
    failure::{Because, Failure, Outcome},
    params::{Load, Op, Transport},
    server::Server,
    session::{CmMail, Mail, Mailbox, Role, Session, Settings},
    stats::Stats,
    wire::{Hello, Refused},
};
use crate::{
    engine::policy::Policy,
    kapi::{event::Event, kthread, memory, random},
    verbs::{cm, device, CmId, Device, NetNs, SocketAddr},
};
use core::fmt;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Sessions that a server has at a time.
const MAX_SESSIONS: usize = 256;
/// Connect requests that wait for their session's thread at a time; the CM's backlog too.
const BACKLOG: i32 = 64;
/// A server's clients may use this part of the machine's memory together.
const MEMORY_PART: u64 = 4;
/// Between attempts to listen again, ms.
const RETRY_MS: u32 = 200;

/// What clients may ask for.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) transport: Option<Transport>,
    pub(crate) op: Option<Op>,
    pub(crate) max_size: Option<u32>,
    pub(crate) max_depth: Option<u32>,
    pub(crate) max_connections: Option<u32>,
}

impl Limits {
    /// Why a load is refused, if it is.
    fn refuse(&self, load: &Load) -> Option<Refused> {
        let beyond = |max: Option<u32>, value: u32| max.filter(|max| value > *max);
        let transport = self.transport.filter(|only| *only != load.transport);
        let op = self.op.filter(|only| *only != load.op);
        transport
            .map(Refused::Transport)
            .or(op.map(Refused::Op))
            .or(beyond(self.max_size, load.size).map(Refused::Size))
            .or(beyond(self.max_depth, load.depth).map(Refused::Depth))
            .or(beyond(self.max_connections, load.connections).map(Refused::Connections))
    }
}

/// What a server is to do.
pub(crate) struct Plan {
    pub(crate) net: Arc<NetNs>,
    pub(crate) address: SocketAddr,
    /// Name of the device that clients must come by; empty for any.
    pub(crate) device: KVec<u8>,
    pub(crate) limits: Limits,
    pub(crate) settings: Settings,
}

/// A client that was let in and waits for its thread.
struct Guest {
    id: CmId,
    mailbox: Arc<Mailbox>,
    token: u64,
    load: Load,
    timeout_ms: u32,
    share: Share,
}

/// A session's share of the memory that a server's clients may use, given back by its drop.
struct Share {
    porch: Arc<Porch>,
    bytes: u64,
}

impl Share {
    /// Takes a share, if so much is left.
    fn take(porch: &Arc<Porch>, bytes: u64) -> Option<Self> {
        let mut used = porch.memory.lock();
        let sum = used
            .checked_add(bytes)
            .filter(|sum| *sum <= porch.memory_max)?;
        *used = sum;
        Some(Self {
            porch: porch.clone(),
            bytes,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        *self.porch.memory.lock() -= self.bytes;
    }
}

/// What the listener's thread shares with the CM's callbacks.
#[pin_data]
pub(crate) struct Porch {
    #[pin]
    event: Event,
    #[pin]
    guests: Mutex<KVec<Guest>>,
    /// The secret of each session and how to reach it.
    #[pin]
    sessions: Mutex<KVec<(u64, Arc<Mailbox>)>>,
    stop: Atomic<bool>,
    /// The listening id is of no more use.
    dead: Atomic<bool>,
    limits: Limits,
    policy: Arc<Policy>,
    device: KVec<u8>,
    board: Arc<Board>,
    /// Payload memory that sessions have, bytes.
    #[pin]
    memory: Mutex<u64>,
    /// The most that they may have together.
    memory_max: u64,
}

impl Porch {
    /// Of a server that does not listen yet.
    pub(crate) fn new(plan: &Plan, board: &Arc<Board>) -> Result<Arc<Self>> {
        let mut device = KVec::new();
        device.extend_from_slice(&plan.device, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                event <- Event::new(),
                guests <- new_mutex!(KVec::new()),
                sessions <- new_mutex!(KVec::new()),
                stop: Atomic::new(false),
                dead: Atomic::new(false),
                limits: plan.limits,
                policy: plan.settings.policy.clone(),
                device,
                board: board.clone(),
                memory <- new_mutex!(0),
                memory_max: memory::total_bytes() / MEMORY_PART,
            }),
            GFP_KERNEL,
        )
    }

    /// Asks the server to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.event.raise();
    }

    /// Refuses a connect request, and says so in the log.
    fn refuse(&self, request: cm::Request<'_>, refused: Refused, why: fmt::Arguments<'_>) {
        self.board.refuse();
        if self.board.may_log() {
            pr_warn!("perf: connect request refused: {why}\n");
        }
        request.reject(&refused.encode());
    }

    fn control_request(self: &Arc<Self>, request: cm::Request<'_>, load: Load, timeout_ms: u32) {
        if let Some(refused) = self.limits.refuse(&load) {
            return self.refuse(request, refused, fmt!("{refused}"));
        }
        if load.op == Op::WritePing && !self.policy.completion().may_poll() {
            let why = "write_ping polls memory, and this server's policy does not poll";
            return self.refuse(request, Refused::Sleeps, fmt!("{why}"));
        }
        if self.sessions.lock().len() >= MAX_SESSIONS {
            let why = fmt!("there are too many sessions");
            return self.refuse(request, Refused::Full, why);
        }
        let Some(share) = Share::take(self, load.memory(false)) else {
            let why = "it asks for more memory than this server has left";
            return self.refuse(request, Refused::Resources, fmt!("{why}"));
        };
        let let_in = (|| -> Result {
            let mailbox = Mailbox::new()?;
            let token = random::secret();
            let mail = CmMail {
                mailbox: mailbox.clone(),
                connection: None,
            };
            let mut id = request.take(mail)?;
            if !self.device.is_empty() {
                let device = id.device()?;
                if device.name().as_str().as_bytes() != self.device.as_slice() {
                    let _ = id.reject(&Refused::NotAllowed.encode());
                    return Err(ENODEV);
                }
            }
            self.sessions
                .lock()
                .push((token, mailbox.clone()), GFP_KERNEL)?;
            let guest = Guest {
                id,
                mailbox,
                token,
                load,
                timeout_ms,
                share,
            };
            let pushed = self.guests.lock().push(guest, GFP_KERNEL);
            Ok(pushed.inspect_err(|_| forget(self, token))?)
        })();
        match let_in {
            Ok(()) => self.event.raise(),
            Err(e) => {
                self.board.refuse();
                if self.board.may_log() {
                    pr_warn!(
                        "perf: a client could not be let in: error {}\n",
                        e.to_errno()
                    );
                }
            }
        }
    }

    fn data_request(&self, request: cm::Request<'_>, token: u64, connection: u32) {
        let mailbox = {
            let sessions = self.sessions.lock();
            let session = sessions.iter().find(|(secret, _)| *secret == token);
            session.map(|(_, mailbox)| mailbox.clone())
        };
        let Some(mailbox) = mailbox else {
            return self.refuse(request, Refused::NoSession, fmt!("it names no session"));
        };
        let mail = CmMail {
            mailbox: mailbox.clone(),
            connection: Some(connection),
        };
        // Without memory for it the request is refused by its end.
        if let Ok(id) = request.take(mail) {
            mailbox.put(Mail::Data(connection, id));
        }
    }
}

impl device::Watch for Porch {
    fn added(&self, _device: &Arc<Device>) {
        self.event.raise();
    }

    fn removing(&self, _device: &Device) {}
}

/// The CM's handler of the listening id.
struct Door(Arc<Porch>);

impl cm::Handler for Door {
    fn event(&self, event: cm::Event<'_>) {
        if matches!(event, cm::Event::DeviceRemoval | cm::Event::AddrChange) {
            self.0.dead.store(true, Relaxed);
            self.0.event.raise();
        }
    }

    fn request(&self, request: cm::Request<'_>) {
        match Hello::decode(request.private_data()) {
            Ok(Hello::Control { load, timeout_ms }) => {
                self.0.control_request(request, load, timeout_ms)
            }
            Ok(Hello::Data { token, connection }) => {
                self.0.data_request(request, token, connection)
            }
            Err(bad) => self.0.refuse(request, bad.into(), fmt!("{}", bad.as_str())),
        }
    }
}

/// A session and its thread.
struct Running {
    token: u64,
    mailbox: Arc<Mailbox>,
    over: Arc<Atomic<bool>>,
    // Joined by its drop.
    #[allow(dead_code)]
    thread: kthread::Thread,
    #[allow(dead_code)]
    share: Share,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its thread is joined next.
        self.mailbox.stop();
    }
}

/// Runs a server: the body of its thread.
pub(crate) fn serve(plan: Plan, porch: Arc<Porch>, started: Arc<Started>) -> Outcome {
    let _watching = device::watch(porch.clone())?;
    let mut listening = match listen(&plan, &porch) {
        Ok(id) => Some(id),
        Err(failure) => {
            started.tell(Err(failure.code));
            return Err(failure);
        }
    };
    started.tell(Ok(()));
    let mut running: KVec<Running> = KVec::new();
    while !porch.stop.load(Relaxed) {
        if porch.dead.xchg(false, Relaxed) {
            listening = None;
            let address = &plan.address;
            let failure = Failure::new(
                ENODEV,
                fmt!("the device of {address} went away; waiting until it is back"),
            );
            pr_warn!("perf: {failure}\n");
            porch.board.set_error(&failure);
        }
        if listening.is_none() {
            listening = listen(&plan, &porch).ok();
            if listening.is_some() {
                pr_info!("perf: listening on {} again\n", plan.address);
            }
        }
        let guests = core::mem::take(&mut *porch.guests.lock());
        for guest in guests {
            let token = guest.token;
            let begun = begin(&plan, &porch, guest);
            match begun.and_then(|session| Ok(running.push(session, GFP_KERNEL)?)) {
                Ok(()) => {}
                Err(e) => {
                    forget(&porch, token);
                    pr_warn!("perf: no thread for a session: error {}\n", e.to_errno());
                }
            }
        }
        reap(&mut running, &porch);
        let wait = if listening.is_none() { RETRY_MS } else { 1000 };
        porch.event.wait(wait);
    }
    // Nobody new; then the sessions, all at once.
    drop(listening);
    for session in running.iter() {
        session.mailbox.stop();
    }
    drop(running);
    // The ends of their connections wait for handlers, which may want the locks.
    let guests = core::mem::take(&mut *porch.guests.lock());
    drop(guests);
    let sessions = core::mem::take(&mut *porch.sessions.lock());
    drop(sessions);
    Ok(())
}

fn listen(plan: &Plan, porch: &Arc<Porch>) -> Outcome<CmId> {
    let mut id = CmId::new(&plan.net, Door(porch.clone())).because("connection id")?;
    let address = &plan.address;
    id.listen(plan.address, BACKLOG).map_err(|e| {
        let why = match e {
            e if e == EADDRINUSE => "somebody else listens there",
            e if e == EADDRNOTAVAIL => "it is no address of this network namespace",
            e if e == ENODEV => "no RDMA device has that address",
            _ => "error",
        };
        Failure::new(
            e,
            fmt!("cannot listen on {address}: {why} ({})", e.to_errno()),
        )
    })?;
    Ok(id)
}

/// Starts a session's thread.
fn begin(plan: &Plan, porch: &Arc<Porch>, guest: Guest) -> Result<Running> {
    let Guest {
        id,
        mailbox,
        token,
        load,
        timeout_ms,
        share,
    } = guest;
    let stats = Arc::new(Stats::new()?, GFP_KERNEL)?;
    let over = Arc::new(Atomic::new(false), GFP_KERNEL)?;
    porch.board.begin(stats.clone())?;
    let settings = plan.settings.clone();
    let thread = {
        let (porch, mailbox) = (porch.clone(), mailbox.clone());
        let (over, stats) = (over.clone(), stats.clone());
        kthread::spawn(c"rivet-perf-srv", move || {
            let outcome = (|| {
                let mut session = Session::new(&mailbox, &stats, load, settings, false)?;
                let server = Server::new(&mut session, id, timeout_ms, token)?;
                session.run(&mut Role::Server(server))
            })();
            mailbox.close();
            if let Err(failure) = &outcome {
                if failure.code != ECANCELED {
                    porch.board.set_error(failure);
                    if porch.board.may_log() {
                        pr_warn!("perf: a session failed: {failure}\n");
                    }
                }
            }
            porch.board.end(&stats, outcome.is_err());
            over.store(true, Relaxed);
            porch.event.raise();
        })
    };
    let thread = thread.inspect_err(|_| porch.board.end(&stats, true))?;
    Ok(Running {
        token,
        mailbox,
        over,
        thread,
        share,
    })
}

/// Joins the threads of sessions that are over.
fn reap(running: &mut KVec<Running>, porch: &Porch) {
    let mut at = 0;
    while at < running.len() {
        if !running[at].over.load(Relaxed) {
            at += 1;
            continue;
        }
        if let Ok(session) = running.remove(at) {
            forget(porch, session.token);
        }
    }
}

/// Takes a session's secret out, so that it lets nobody in any more.
fn forget(porch: &Porch, token: u64) {
    let mut sessions = porch.sessions.lock();
    if let Some(at) = sessions.iter().position(|(secret, _)| *secret == token) {
        let _ = sessions.remove(at);
    }
}
