// SPDX-License-Identifier: GPL-2.0

//! What an end shows: its state, why it failed, and what its sessions have counted. Written by the
//! end's threads, read through configfs at any time.

use super::{
    failure::Failure,
    stats::{Stats, Totals},
};
use crate::kapi::time::{now_ns, MS};
use core::fmt::{self, Write};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Where an end is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Not started.
    Idle,
    /// Started: connecting, making load, or listening.
    Running,
    /// A client that did all, or an end that was stopped.
    Done,
    /// See the error.
    Failed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Idle => "idle",
            State::Running => "running",
            State::Done => "done",
            State::Failed => "failed",
        })
    }
}

/// Lines that peers can cause: so many in [`LOG_WINDOW`] are printed, the others counted.
const LOG_BURST: u32 = 10;
/// Ns.
const LOG_WINDOW: u64 = 5_000 * MS;

/// What an end shows.
#[pin_data]
pub(crate) struct Board {
    #[pin]
    inner: Mutex<Inner>,
    refused: Atomic<u64>,
}

struct Inner {
    state: State,
    error: Option<CString>,
    live: KVec<Arc<Stats>>,
    past: Totals,
    sessions: u64,
    sessions_failed: u64,
    log_since: u64,
    log_lines: u32,
    log_suppressed: u64,
}

impl Board {
    /// Of an end that has not been started.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let inner = Inner {
            state: State::Idle,
            error: None,
            live: KVec::new(),
            past: Totals::default(),
            sessions: 0,
            sessions_failed: 0,
            log_since: 0,
            log_lines: 0,
            log_suppressed: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                inner <- new_mutex!(inner),
                refused: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// The state.
    pub(crate) fn state(&self) -> State {
        self.inner.lock().state
    }

    /// Sets the state.
    pub(crate) fn set_state(&self, state: State) {
        self.inner.lock().state = state;
    }

    /// Notes why something failed.
    pub(crate) fn set_error(&self, failure: &Failure) {
        let text = CString::try_from_fmt(fmt!("{failure}")).ok();
        self.inner.lock().error = text;
    }

    /// Counts a refused connect request.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Whether a line that a peer caused may be printed now; counts it if not.
    pub(crate) fn may_log(&self) -> bool {
        let now = now_ns();
        let mut inner = self.inner.lock();
        if now.saturating_sub(inner.log_since) > LOG_WINDOW {
            inner.log_since = now;
            inner.log_lines = 0;
        }
        inner.log_lines = inner.log_lines.saturating_add(1);
        let may = inner.log_lines <= LOG_BURST;
        if !may {
            inner.log_suppressed += 1;
        }
        may
    }

    /// A session began.
    pub(crate) fn begin(&self, stats: Arc<Stats>) -> Result {
        let mut inner = self.inner.lock();
        inner.live.push(stats, GFP_KERNEL)?;
        inner.sessions += 1;
        Ok(())
    }

    /// A session ended: what it counted stays.
    pub(crate) fn end(&self, stats: &Arc<Stats>, failed: bool) {
        let mut inner = self.inner.lock();
        let at = inner.live.iter().position(|live| Arc::ptr_eq(live, stats));
        let ended = at.and_then(|at| inner.live.remove(at).ok());
        if let Some(stats) = ended {
            if inner.past.add(&stats).is_err() {
                pr_warn!("perf: out of memory for a session's counters\n");
            }
        }
        inner.sessions_failed += u64::from(failed);
    }

    /// The counters of all sessions.
    fn totals(&self) -> Result<Totals> {
        let mut totals = Totals::default();
        let inner = self.inner.lock();
        totals.merge(&inner.past)?;
        for stats in inner.live.iter() {
            totals.add(stats)?;
        }
        Ok(totals)
    }

    /// Writes `result`.
    pub(crate) fn write_result(&self, out: &mut impl Write) -> Result {
        self.totals()?.write(out)?;
        let inner = self.inner.lock();
        writeln!(out, "sessions {}", inner.sessions)?;
        writeln!(out, "sessions_failed {}", inner.sessions_failed)?;
        writeln!(out, "refused {}", self.refused.load(Relaxed))?;
        writeln!(out, "log_suppressed {}", inner.log_suppressed)?;
        Ok(())
    }

    /// Writes `histogram`.
    pub(crate) fn write_histogram(&self, out: &mut impl Write) -> Result {
        Ok(self.totals()?.write_histogram(out)?)
    }

    /// Writes `stats`.
    pub(crate) fn write_stats(&self, out: &mut impl Write) -> Result {
        Ok(self.totals()?.write_stats(out)?)
    }

    /// Writes `error`: nothing if nothing failed.
    pub(crate) fn write_error(&self, out: &mut impl Write) -> Result {
        let inner = self.inner.lock();
        if let Some(text) = inner.error.as_ref().and_then(|text| text.to_str().ok()) {
            writeln!(out, "{text}")?;
        }
        Ok(())
    }
}
