// SPDX-License-Identifier: GPL-2.0

//! An end of a perf test: its settings, and starting and stopping it. What configfs shows of it is
//! in `control`.

use super::{
    board::{Board, State},
    capsule::{self, Signals},
    client::{self, Client, Goal, Started},
    failure::{Because, Failure, Outcome},
    listener::{self, Limits, Porch},
    params::{Load, Op, Role, Transport},
    session::{self, Mailbox, Session, Settings},
    stats::Stats,
    submit::Crew,
};
use crate::{
    engine::policy::InUse,
    kapi::{kthread, memory},
    verbs::{NetNs, SocketAddr},
};
use kernel::{debugfs::Dir, new_mutex, prelude::*, str::CString, sync::Arc, sync::Mutex};

/// Default TCP-like port.
pub(crate) const DEFAULT_PORT: u16 = 18515;
/// The same where an NVMe target listens.
const NVME_PORT: u16 = 4420;

/// What is set on an end; `None` is "not set".
#[derive(Default)]
pub(crate) struct Config {
    pub(crate) role: Option<Role>,
    pub(crate) address: Option<CString>,
    pub(crate) port: Option<u16>,
    pub(crate) device: KVec<u8>,
    pub(crate) transport: Option<Transport>,
    pub(crate) op: Option<Op>,
    pub(crate) size: Option<u32>,
    pub(crate) sges: Option<u32>,
    pub(crate) depth: Option<u32>,
    pub(crate) connections: Option<u32>,
    pub(crate) goal: Option<Goal>,
    pub(crate) timeout_ms: Option<u32>,
    pub(crate) verify: Option<bool>,
    pub(crate) policy: Option<CString>,
    pub(crate) submitters: Option<u32>,
    pub(crate) buffers: Option<u32>,
    pub(crate) nqn: Option<CString>,
    pub(crate) hostnqn: Option<CString>,
    pub(crate) nsid: Option<u32>,
}

impl Config {
    /// The goal, or its default: one second.
    pub(crate) fn goal(&self) -> Goal {
        self.goal.unwrap_or(Goal::Duration(1000))
    }

    /// The silence of the peer that ends a session, ms; by default 5 seconds.
    pub(crate) fn timeout_ms(&self) -> u32 {
        self.timeout_ms.unwrap_or(5000)
    }

    /// The policy's name.
    pub(crate) fn policy(&self) -> &CStr {
        self.policy.as_deref().unwrap_or(c"default")
    }

    /// The port, or its default: by who is to listen there.
    pub(crate) fn port(&self) -> u16 {
        let default = match self.load().op.is_capsule() {
            true => NVME_PORT,
            false => DEFAULT_PORT,
        };
        self.port.unwrap_or(default)
    }

    /// The namespace that is read.
    pub(crate) fn nsid(&self) -> u32 {
        self.nsid.unwrap_or(1)
    }

    /// A client's load.
    pub(crate) fn load(&self) -> Load {
        let op = self.op.unwrap_or(Op::Send);
        let size = match op {
            op if op.is_atomic() => 8,
            op if op.is_capsule() => 4096,
            _ => 64,
        };
        Load {
            transport: self.transport.unwrap_or(Transport::Rc),
            op,
            size: self.size.unwrap_or(size),
            depth: self.depth.unwrap_or(1),
            connections: self.connections.unwrap_or(1),
            verify: self.verify.unwrap_or(false),
        }
    }

    fn settings(&self, policy: &InUse) -> Settings {
        Settings {
            timeout_ms: self.timeout_ms(),
            policy: policy.policy().clone(),
            sges: self.sges.unwrap_or(1),
            crew: self.crew(),
            debug: None,
        }
    }

    /// Who makes a client's load, if it is not the session's own thread.
    fn crew(&self) -> Option<Crew> {
        let submitters = self.submitters.filter(|n| *n > 0)?;
        Some(Crew {
            submitters,
            buffers: self.buffers.unwrap_or(0),
        })
    }

    fn copy_device(&self) -> Result<KVec<u8>> {
        let mut device = KVec::new();
        device.extend_from_slice(&self.device, GFP_KERNEL)?;
        Ok(device)
    }

    fn socket_addr(&self, net: &NetNs) -> Outcome<SocketAddr> {
        let Some(address) = &self.address else {
            return Err(Failure::new(EDESTADDRREQ, fmt!("address is not set")));
        };
        SocketAddr::parse(net, address, self.port()).because("address")
    }

    /// What a server cannot be told, as its clients tell it.
    fn not_for_servers(&self) -> Option<&'static str> {
        if self.sges.is_some() {
            Some("sges")
        } else if self.goal.is_some() {
            Some("count or duration_ms")
        } else if self.verify.is_some() {
            Some("verify")
        } else if self.submitters.is_some() || self.buffers.is_some() {
            Some("submitters and buffers")
        } else {
            self.of_capsules()
        }
    }

    /// What is set that only `capsule_read` has.
    fn of_capsules(&self) -> Option<&'static str> {
        if self.nqn.is_some() {
            Some("nqn")
        } else if self.hostnqn.is_some() {
            Some("hostnqn")
        } else if self.nsid.is_some() {
            Some("nsid")
        } else {
            None
        }
    }
}

/// A started end.
struct Run {
    stopper: Stopper,
    // Joined by its drop.
    #[allow(dead_code)]
    thread: kthread::Thread,
}

/// How its thread is told to stop.
enum Stopper {
    Client(Arc<Mailbox>),
    Capsules(Arc<Signals>),
    Server(Arc<Porch>),
}

impl Stopper {
    fn stop(&self) {
        match self {
            Stopper::Client(mailbox) => mailbox.stop(),
            Stopper::Capsules(signals) => signals.stop(),
            Stopper::Server(porch) => porch.stop(),
        }
    }
}

/// An end.
#[pin_data(PinnedDrop)]
pub(crate) struct End {
    /// Its name in configfs, for the log.
    pub(crate) name: CString,
    /// Where the lanes of its runs are shown.
    debug: Dir,
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    config: Config,
    run: Option<Run>,
    board: Arc<Board>,
}

impl End {
    /// An end that is not started. Its lanes will be shown in a directory of its name in `debug`.
    pub(crate) fn new(name: CString, debug: Dir) -> Result<impl PinInit<Self, Error>> {
        let board = Board::new()?;
        Ok(try_pin_init!(Self {
            name,
            debug,
            inner <- new_mutex!(Inner {
                config: Config::default(),
                run: None,
                board,
            }),
        }))
    }

    /// What it shows. Starting again makes a new one.
    pub(crate) fn board(&self) -> Arc<Board> {
        self.inner.lock().board.clone()
    }

    /// Looks at the settings.
    pub(crate) fn with_config<T>(&self, f: impl FnOnce(&Config) -> T) -> T {
        f(&self.inner.lock().config)
    }

    /// Changes a setting; `EBUSY` while running.
    pub(crate) fn change(&self, f: impl FnOnce(&mut Config)) -> Outcome {
        let mut inner = self.inner.lock();
        if inner.board.state() == State::Running {
            return Err(Failure::new(
                EBUSY,
                fmt!("it cannot be changed while the end runs"),
            ));
        }
        f(&mut inner.config);
        Ok(())
    }

    /// Starts, and holds `policy` in use until the run is over. Returns when the end listens or is
    /// connected, or says why not: then its state is that it failed, and nothing of the run before
    /// is shown any more. But for `EBUSY`, which changes nothing. Sleeps.
    pub(crate) fn start(&self, policy: Outcome<InUse>) -> Outcome {
        let started = Started::new()?;
        let board = {
            let mut inner = self.inner.lock();
            if inner.board.state() == State::Running {
                return Err(Failure::new(EBUSY, fmt!("it is running already")));
            }
            let board = Board::new()?;
            let lanes = (&self.debug, &*self.name);
            let run = policy
                .and_then(|policy| launch(&inner.config, policy, lanes, &board, &started))
                .inspect_err(|failure| {
                    board.set_error(failure);
                    board.set_state(State::Failed);
                });
            inner.board = board.clone();
            // The thread of a run that is over ends at once.
            inner.run = None;
            inner.run = Some(run?);
            board
        };
        match started.wait() {
            Ok(()) => Ok(()),
            Err(code) => {
                self.stop_run(&board);
                // The thread has noted what it was.
                let mut text = KVVec::new();
                let noted = text_of(&board, &mut text);
                Err(match noted {
                    Some(noted) if code != EINTR => Failure::new(code, fmt!("{noted}")),
                    _ => Failure::new(code, fmt!("starting was interrupted")),
                })
            }
        }
    }

    /// Stops the run that writes to `board`, unless it is another's turn already.
    fn stop_run(&self, board: &Arc<Board>) {
        let run = {
            let mut inner = self.inner.lock();
            match Arc::ptr_eq(&inner.board, board) {
                true => inner.run.take(),
                false => None,
            }
        };
        if let Some(run) = &run {
            run.stopper.stop();
        }
        drop(run);
    }

    /// Stops, and returns when everything has ended. Sleeps.
    pub(crate) fn stop(&self) {
        let run = self.inner.lock().run.take();
        if let Some(run) = &run {
            run.stopper.stop();
        }
        drop(run);
    }
}

#[pinned_drop]
impl PinnedDrop for End {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
    }
}

fn text_of<'a>(board: &Board, text: &'a mut KVVec<u8>) -> Option<&'a str> {
    struct Sink<'a>(&'a mut KVVec<u8>);
    impl core::fmt::Write for Sink<'_> {
        fn write_str(&mut self, s: &str) -> core::fmt::Result {
            self.0
                .extend_from_slice(s.as_bytes(), GFP_KERNEL)
                .map_err(|_| core::fmt::Error)
        }
    }
    board.write_error(&mut Sink(text)).ok()?;
    core::str::from_utf8(text)
        .ok()
        .map(str::trim_end)
        .filter(|text| !text.is_empty())
}

/// Checks the settings and starts the thread.
fn launch(
    config: &Config,
    policy: InUse,
    (debug, name): (&Dir, &CStr),
    board: &Arc<Board>,
    started: &Arc<Started>,
) -> Outcome<Run> {
    let Some(role) = config.role else {
        return Err(Failure::new(
            EINVAL,
            fmt!("role is not set; allowed: {}", Role::ALLOWED),
        ));
    };
    let net = Arc::new(NetNs::current()?, GFP_KERNEL)?;
    let address = config.socket_addr(&net)?;
    let run = match role {
        Role::Client => {
            let load = config.load();
            load.check()
                .map_err(|wrong| Failure::new(EINVAL, fmt!("{wrong}")))?;
            if let Some(what) = config.of_capsules().filter(|_| !load.op.is_capsule()) {
                return Err(Failure::new(
                    EINVAL,
                    fmt!("{what}: only with op capsule_read"),
                ));
            }
            let one_sge = load.op.is_atomic() || load.op.has_answer() && !load.op.is_ping();
            if one_sge && config.sges.unwrap_or(1) > 1 {
                return Err(Failure::new(EINVAL, fmt!("{} has one SGE", load.op)));
            }
            if config.crew().is_some() {
                let rc = load.transport == Transport::Rc;
                if !load.op.can_be_submitted() || !rc || config.sges.unwrap_or(1) != 1 {
                    return Err(Failure::new(
                        EOPNOTSUPP,
                        fmt!(
                            "submitters: only for op send, send_imm, write, write_imm and read, \
                             transport rc and sges 1"
                        ),
                    ));
                }
            } else if config.buffers.unwrap_or(0) > 0 {
                return Err(Failure::new(EINVAL, fmt!("buffers: only with submitters")));
            }
            if load.op == Op::WritePing && !policy.completion().may_poll() {
                let (name, completion) = (config.policy(), policy.completion());
                return Err(Failure::new(
                    EOPNOTSUPP,
                    fmt!(
                        "write_ping polls memory, but the completion of policy {} is {completion}; \
                         allowed: policies with busy or adaptive",
                        name.to_str().unwrap_or("?")
                    ),
                ));
            }
            let (need, most) = (load.memory(true) >> 20, memory::total_bytes() >> 21);
            if need > most {
                return Err(Failure::new(
                    ENOMEM,
                    fmt!("the load needs {need} MiB of payload memory; allowed: {most} MiB, half of what there is"),
                ));
            }
            if load.op.is_capsule() {
                let plan = capsule::Plan::new(config, net, address, config.copy_device()?)?;
                let settings = config.settings(&policy);
                return launch_capsules(plan, load, settings, policy, board, started);
            }
            let plan = client::Plan {
                net,
                address,
                device: config.copy_device()?,
                goal: config.goal(),
                submitters: config
                    .crew()
                    .map_or(0, |crew| crew.submitters * load.connections),
            };
            let settings = Settings {
                debug: config.crew().map(|_| debug.subdir(name)),
                ..config.settings(&policy)
            };
            launch_client(plan, load, settings, policy, board, started)?
        }
        Role::Server => {
            if let Some(what) = config.not_for_servers() {
                return Err(Failure::new(
                    EINVAL,
                    fmt!("{what} is the client's choice: a server must not have it set"),
                ));
            }
            if config.op == Some(Op::CapsuleRead) {
                return Err(Failure::new(
                    EINVAL,
                    fmt!(
                        "op capsule_read has no server: a client of it connects to an NVMe target"
                    ),
                ));
            }
            let plan = listener::Plan {
                net,
                address,
                device: config.copy_device()?,
                limits: Limits {
                    transport: config.transport,
                    op: config.op,
                    max_size: config.size,
                    max_depth: config.depth,
                    max_connections: config.connections,
                },
                settings: config.settings(&policy),
            };
            launch_server(plan, policy, board, started)?
        }
    };
    Ok(run)
}

fn launch_client(
    plan: client::Plan,
    load: Load,
    settings: Settings,
    policy: InUse,
    board: &Arc<Board>,
    started: &Arc<Started>,
) -> Outcome<Run> {
    let mailbox = Mailbox::new()?;
    let stats = Arc::new(Stats::new()?, GFP_KERNEL)?;
    board.begin(stats.clone())?;
    board.set_state(State::Running);
    let thread = {
        let (board, started) = (board.clone(), started.clone());
        let (mailbox, stats) = (mailbox.clone(), stats);
        kthread::spawn(c"rivet-perf-cli", move || {
            let outcome = (|| {
                let mut session = Session::new(&mailbox, &stats, load, settings, true)?;
                let client = Client::new(&session, plan, started.clone())?;
                session.run(&mut session::Role::Client(client))
            })();
            mailbox.close();
            // Who sees that it is over may remove the policy.
            drop(policy);
            conclude(&board, &started, outcome, &stats);
        })
    };
    Ok(Run {
        stopper: Stopper::Client(mailbox),
        thread: thread.because("thread")?,
    })
}

fn launch_capsules(
    plan: capsule::Plan,
    load: Load,
    settings: Settings,
    policy: InUse,
    board: &Arc<Board>,
    started: &Arc<Started>,
) -> Outcome<Run> {
    let signals = Signals::new()?;
    let stats = Arc::new(Stats::new()?, GFP_KERNEL)?;
    board.begin(stats.clone())?;
    board.set_state(State::Running);
    let thread = {
        let (board, started, signals) = (board.clone(), started.clone(), signals.clone());
        kthread::spawn(c"rivet-perf-cap", move || {
            let outcome = capsule::run(&plan, &load, &settings, &stats, &signals, &started);
            // Who sees that it is over may remove the policy.
            drop((settings, policy));
            conclude(&board, &started, outcome, &stats);
        })
    };
    Ok(Run {
        stopper: Stopper::Capsules(signals),
        thread: thread.because("thread")?,
    })
}

/// Notes how a client ended, then tells whoever still waits for its start.
fn conclude(board: &Board, started: &Started, outcome: Outcome, stats: &Arc<Stats>) {
    match outcome {
        Ok(()) => {
            board.end(stats, false);
            board.set_state(State::Done);
        }
        Err(failure) if failure.code == ECANCELED => {
            board.end(stats, false);
            board.set_state(State::Done);
            started.tell(Err(EINTR));
        }
        Err(failure) => {
            stats.errors.add(1);
            board.end(stats, true);
            board.set_error(&failure);
            // A start that fails is told of by whoever waits for it.
            if started.was_connected() && failure.code != ECANCELED {
                pr_warn!("perf: a client failed: {failure}\n");
            }
            board.set_state(State::Failed);
            started.tell(Err(failure.code));
        }
    }
}

fn launch_server(
    plan: listener::Plan,
    policy: InUse,
    board: &Arc<Board>,
    started: &Arc<Started>,
) -> Outcome<Run> {
    let porch = Porch::new(&plan, board)?;
    board.set_state(State::Running);
    let thread = {
        let (board, started, porch) = (board.clone(), started.clone(), porch.clone());
        kthread::spawn(c"rivet-perf-lsn", move || {
            let outcome = listener::serve(plan, porch, started.clone());
            // Who sees that it is over may remove the policy.
            drop(policy);
            match outcome {
                Ok(()) => board.set_state(State::Done),
                Err(failure) => {
                    board.set_error(&failure);
                    board.set_state(State::Failed);
                    started.tell(Err(failure.code));
                }
            }
        })
    };
    Ok(Run {
        stopper: Stopper::Server(porch),
        thread: thread.because("thread")?,
    })
}
