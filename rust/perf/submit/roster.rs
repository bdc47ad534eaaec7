// SPDX-License-Identifier: GPL-2.0

//! How a client's submitters and lanes lie on the CPUs.

use super::Crew;
use crate::{
    engine::{knobs::Knobs, placement, policy},
    perf::{
        failure::{Failure, Outcome},
        params::Load,
    },
};
use kernel::prelude::*;

/// Which submitter has which lane and CPU.
pub(super) struct Roster {
    /// CPUs of the policy that are online.
    cpus: KVec<u32>,
    connections: u32,
    /// Lanes of a connection.
    lanes: u32,
    /// Submitters and buffers, of a connection and of a lane.
    crew: Crew,
    /// Operations at a time of a submitter.
    depth: u32,
}

impl Roster {
    /// By the policy, as the CPUs are now. Sleeps.
    pub(super) fn new(knobs: &Knobs, crew: Crew, load: &Load) -> Outcome<Self> {
        let cpus = policy::online_cpus(knobs)?;
        if cpus.is_empty() {
            return Err(Failure::new(
                ENODEV,
                fmt!("none of the policy's cpus is online"),
            ));
        }
        Ok(Self {
            connections: load.connections,
            lanes: placement::lanes(knobs.lanes, cpus.len() as u32),
            cpus,
            crew,
            depth: load.depth,
        })
    }

    /// Lanes of all connections: data connections.
    pub(super) fn all_lanes(&self) -> u32 {
        self.lanes * self.connections
    }

    /// Submitters of all connections.
    pub(super) fn all_submitters(&self) -> u32 {
        self.crew.submitters * self.connections
    }

    /// The connection that lane `lane` of all is of, and which it is there.
    pub(super) fn place(&self, lane: u32) -> (u32, u32) {
        (lane / self.lanes.max(1), lane % self.lanes.max(1))
    }

    fn cpu(&self, number: u32) -> u32 {
        let at = placement::cpu_of(number, self.cpus.len() as u32);
        self.cpus.get(at as usize).copied().unwrap_or(0)
    }

    /// The CPU of a lane.
    pub(super) fn cpu_of_lane(&self, lane: u32) -> u32 {
        self.cpu(self.place(lane).1)
    }

    /// The CPU of a submitter.
    pub(super) fn cpu_of_submitter(&self, submitter: u32) -> u32 {
        self.cpu(submitter)
    }

    /// The submitters of a lane. They are dealt out over the CPUs from one connection to the next,
    /// so that a few connections of one submitter are not all on one CPU.
    pub(super) fn of_lane(&self, lane: u32) -> impl Iterator<Item = u32> + '_ {
        let cpus = self.cpus.len() as u32;
        let (connection, lane) = self.place(lane);
        let first = connection * self.crew.submitters;
        (first..first + self.crew.submitters)
            .filter(move |n| placement::lane_of(*n, self.lanes, cpus) == lane)
    }

    /// Operations at a time of a submitter.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Operations at a time on a lane.
    pub(super) fn lane_depth(&self, lane: u32) -> u32 {
        self.depth * self.of_lane(lane).count() as u32
    }

    /// The most operations at a time that a lane has.
    pub(super) fn most(&self) -> u32 {
        let depths = (0..self.all_lanes()).map(|lane| self.lane_depth(lane));
        depths.max().unwrap_or(0)
    }

    /// Buffers of a lane.
    pub(super) fn buffers(&self, lane: u32) -> u32 {
        match self.crew.buffers {
            0 => self.lane_depth(lane),
            n => n,
        }
    }

    /// Bytes that the lanes take, for payloads of `size` bytes.
    pub(super) fn memory(&self, size: u32) -> u64 {
        let size = (size as usize).next_power_of_two().max(4096) as u64;
        (0..self.all_lanes())
            .map(|lane| {
                let each = self.buffers(lane) + self.lane_depth(lane);
                size.saturating_mul(each.into())
            })
            .fold(0, u64::saturating_add)
    }
}
