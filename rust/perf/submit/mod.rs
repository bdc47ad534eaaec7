// SPDX-License-Identifier: GPL-2.0

//! Load by submitters: kernel threads, each on a CPU of its own, that share lanes as the tasks of a
//! machine share those of a storage transport.
//!
//! A data connection of such a load is a lane ([`lane::LaneConn`]), and [`submission::Submission`]
//! what perf keeps for it; the [`Roster`] says which submitter has which lane and CPU. Each
//! submitter keeps `depth` operations of its own on its lane, and waits for them by looking for
//! completions itself, or asleep until somebody else has found them. The session's thread makes the
//! connections, looks after the peer, and waits for the end ([`Workforce`]).
//!
//! `connections` are as many storage controllers: each has lanes of its own, one for each CPU, and
//! submitters of its own. The wire knows lanes only: connection 1, lane 0 of two lanes is data
//! connection 2 there.
//!
//! Each lane has `buffers` buffers, which its operations use in turn; so an operation has another
//! buffer each time, like a page cache, and comes back to the same one after a while, like an
//! application.

mod lane;
mod roster;
mod submission;
mod work;

pub(crate) use submission::{AnyLane, Broken};

use super::{
    failure::{Failure, Outcome},
    params::{Load, Op, CONNECTIONS, DEPTH},
    post,
    session::Mailbox,
    stats::Part,
};
use crate::{
    engine::{knobs::Knobs, naive::GlobalLock, policy::Policy},
    kapi::{kthread, memory, time::now_ns},
    value::Bounds,
    verbs::{CmId, Pd, WcStatus},
};
use kernel::{debugfs::Dir, prelude::*, sync::Arc};
use lane::{LaneConn, Making};
use roster::Roster;

/// Submitters of a connection at most: a lane tells them apart by a bit each.
pub(crate) const SUBMITTERS: Bounds = Bounds { min: 0, max: 64 };
/// Submitters of all connections at most.
const ALL_SUBMITTERS: u32 = 1024;
/// Buffers of a lane; 0 = as many as operations at a time.
pub(crate) const BUFFERS: Bounds = Bounds { min: 0, max: 4096 };

/// What is to be submitted.
#[derive(Clone, Copy)]
pub(crate) struct Crew {
    /// Threads of a connection.
    pub(crate) submitters: u32,
    /// Buffers of a lane.
    pub(crate) buffers: u32,
}

/// How a client's submitters are doing.
struct Left {
    /// Submitters that are not done.
    left: post::Left,
    mailbox: Arc<Mailbox>,
}

/// The lanes and submitters of a client.
pub(crate) struct Workforce {
    /// Joined when they are dropped, which must be before the lanes go.
    threads: KVec<kthread::Thread>,
    lanes: KVec<LaneConn>,
    roster: Roster,
    /// Of the connection that is being made.
    global: Arc<GlobalLock>,
    left: Arc<Left>,
    debug: Option<Dir>,
}

impl Workforce {
    /// By the policy, as the CPUs are now; without lanes yet. `load` becomes what the server is
    /// told of it: a data connection is a lane there. Sleeps.
    pub(crate) fn new(
        knobs: &Knobs,
        crew: Crew,
        load: &mut Load,
        mailbox: &Arc<Mailbox>,
        debug: Option<Dir>,
    ) -> Outcome<Self> {
        let roster = Roster::new(knobs, crew, load)?;
        let (connections, all) = (load.connections, roster.all_lanes());
        if u64::from(all) > CONNECTIONS.max {
            let (lanes, max) = (all / connections.max(1), CONNECTIONS.max);
            return Err(Failure::new(
                E2BIG,
                fmt!("connections: {connections} of {lanes} lanes each are {all} QPs; allowed: up to {max}"),
            ));
        }
        let threads = roster.all_submitters();
        if threads > ALL_SUBMITTERS {
            let each = crew.submitters;
            return Err(Failure::new(
                E2BIG,
                fmt!("submitters: {each} for each of {connections} connections are {threads}; allowed: up to {ALL_SUBMITTERS}"),
            ));
        }
        let most = roster.most();
        if crew.buffers != 0 && crew.buffers < most {
            return Err(Failure::new(
                EINVAL,
                fmt!("buffers: a lane has up to {most} operations under way; allowed: 0, or that many"),
            ));
        }
        let (need, most) = (roster.memory(load.size) >> 20, memory::total_bytes() >> 21);
        if need > most {
            return Err(Failure::new(
                ENOMEM,
                fmt!("buffers: the lanes need {need} MiB; a client may have {most}"),
            ));
        }
        load.connections = all;
        if load.op != Op::Read {
            let most = roster.most();
            let max = DEPTH.max;
            if u64::from(most) > max {
                return Err(Failure::new(
                    E2BIG,
                    fmt!("depth: a lane's submitters have {most} operations under way; allowed: up to {max}"),
                ));
            }
            load.depth = most;
            load.check().map_err(|wrong| {
                Failure::new(EINVAL, fmt!("with all submitters of a lane, {wrong}"))
            })?;
        }
        let left = Left {
            left: post::Left::new(threads),
            mailbox: mailbox.clone(),
        };
        Ok(Self {
            threads: KVec::new(),
            lanes: KVec::new(),
            roster,
            global: GlobalLock::new()?,
            left: Arc::new(left, GFP_KERNEL)?,
            debug,
        })
    }

    /// Lanes so far.
    pub(crate) fn lanes(&mut self) -> &mut [LaneConn] {
        &mut self.lanes
    }

    /// Operations that a lane may have outstanding.
    pub(crate) fn depth(&self, lane: u32) -> u32 {
        self.roster.lane_depth(lane)
    }

    /// The connection that a lane is of, and which it is there.
    pub(crate) fn place(&self, lane: u32) -> (u32, u32) {
        self.roster.place(lane)
    }

    /// Makes the next lane on a CM id. `quota` tells a submitter's operations. Sleeps.
    pub(crate) fn add(
        &mut self,
        id: CmId,
        load: &Load,
        knobs: &Knobs,
        policy: &Arc<Policy>,
        pd: &Arc<Pd>,
        quota: &dyn Fn(u32) -> u64,
    ) -> Outcome<&mut LaneConn> {
        let index = self.lanes.len() as u32;
        if self.roster.place(index).1 == 0 {
            self.global = GlobalLock::new()?;
        }
        let making = Making {
            index,
            load,
            knobs,
            policy,
            roster: &self.roster,
            global: &self.global,
            mailbox: &self.left.mailbox,
            pd,
            debug: self.debug.as_ref(),
            quota,
        };
        let lane = LaneConn::new(&making, id)?;
        self.lanes.push(lane, GFP_KERNEL)?;
        self.lanes.last_mut().ok_or_else(|| EINVAL.into())
    }

    /// Starts the submitters. Sleeps.
    pub(crate) fn start(&mut self) -> Outcome {
        for lane in self.lanes.iter_mut() {
            lane.start(&mut self.threads, &self.left)?;
        }
        Ok(())
    }

    /// Whether all submitters have ended.
    pub(crate) fn is_done(&self) -> bool {
        self.left.left.is_none()
    }

    /// Ends a load by time: what is under way is waited for.
    pub(crate) fn finish(&self) {
        for lane in self.lanes.iter() {
            lane.lane.finish();
        }
    }

    /// Why a lane is of no more use, and which: of several, one whose status is a reason.
    pub(crate) fn broken(&self) -> Option<(usize, Broken)> {
        let mut flushed = None;
        for (index, lane) in self.lanes.iter().enumerate() {
            match lane.lane.broken() {
                None => {}
                Some(Broken::Status(WcStatus::Flushed)) => {
                    flushed.get_or_insert((index, Broken::Status(WcStatus::Flushed)));
                }
                Some(reason) => return Some((index, reason)),
            }
        }
        flushed
    }

    /// The orderly end: nothing new, all completions seen. Returns what is left outstanding after
    /// `deadline` (ns). Sleeps.
    pub(crate) fn end(&mut self, deadline: u64) -> u32 {
        for lane in self.lanes.iter_mut() {
            lane.lane.close();
            // One that was never connected has nothing under way.
            let _ = lane.id.disconnect();
            lane.lane.stop();
        }
        self.threads.clear();
        let outstanding = |lanes: &[LaneConn]| lanes.iter().map(|l| l.lane.outstanding()).sum();
        let mut left: u32 = outstanding(&self.lanes);
        while left > 0 && now_ns() < deadline {
            self.left.mailbox.doze();
            left = outstanding(&self.lanes);
        }
        for lane in self.lanes.iter() {
            lane.lane.bury();
        }
        self.lanes.clear();
        left
    }

    /// What the lanes count, for who shows it.
    pub(crate) fn parts(&self) -> Result<KVec<Part>> {
        let mut parts: KVec<Part> = KVec::new();
        for lane in self.lanes.iter() {
            let poller = lane.poller().stats();
            // Lanes of one poller share its counters.
            let known = parts.iter().any(|part| {
                let known = part.poller.as_ref();
                known.is_some_and(|(known, _)| Arc::ptr_eq(known, poller))
            });
            let part = Part {
                stats: lane.stats.clone(),
                lane: lane.counts.clone(),
                poller: (!known).then(|| (poller.clone(), poller.read())),
            };
            parts.push(part, GFP_KERNEL)?;
        }
        Ok(parts)
    }
}
