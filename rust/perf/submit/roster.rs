// SPDX-License-Identifier: GPL-2.0

//! How a client's submitters and lanes lie on the CPUs.

use super::Crew;
use crate::{
    engine::{knobs::Knobs, placement},
    kapi::cpu,
    perf::{
        failure::{Failure, Outcome},
        params::Load,
    },
};
use kernel::prelude::*;

/// Which submitter has which lane and CPU.
pub(crate) struct Roster {
    /// CPUs of the policy that are online.
    cpus: KVec<u32>,
    /// Lanes of the connection.
    pub(crate) lanes: u32,
    crew: Crew,
}

impl Roster {
    /// By the policy, as the CPUs are now. Sleeps.
    pub(crate) fn new(knobs: &Knobs, crew: Crew) -> Outcome<Self> {
        let mut cpus = KVec::new();
        for cpu in 0..cpu::possible() {
            let wanted = knobs.cpus.is_empty() || knobs.cpus.contains(cpu);
            if wanted && cpu::is_online(cpu) {
                cpus.push(cpu, GFP_KERNEL)?;
            }
        }
        if cpus.is_empty() {
            return Err(Failure::new(
                ENODEV,
                fmt!("none of the policy's cpus is online"),
            ));
        }
        Ok(Self {
            lanes: placement::lanes(knobs.lanes, cpus.len() as u32),
            cpus,
            crew,
        })
    }

    pub(super) fn cpu(&self, number: u32) -> u32 {
        let at = placement::cpu_of(number, self.cpus.len() as u32);
        self.cpus.get(at as usize).copied().unwrap_or(0)
    }

    /// The submitters of a lane.
    pub(super) fn of_lane(&self, lane: u32) -> impl Iterator<Item = u32> + '_ {
        let cpus = self.cpus.len() as u32;
        (0..self.crew.submitters).filter(move |n| placement::lane_of(*n, self.lanes, cpus) == lane)
    }

    /// Operations at a time on a lane.
    pub(crate) fn lane_depth(&self, load: &Load, lane: u32) -> u32 {
        load.depth * self.of_lane(lane).count() as u32
    }

    /// The most operations at a time that a lane has.
    pub(super) fn most(&self, load: &Load) -> u32 {
        let depths = (0..self.lanes).map(|lane| self.lane_depth(load, lane));
        depths.max().unwrap_or(0)
    }

    /// Buffers of a lane.
    pub(crate) fn buffers(&self, load: &Load, lane: u32) -> u32 {
        match self.crew.buffers {
            0 => self.lane_depth(load, lane),
            n => n,
        }
    }

    /// Bytes that the lanes take.
    pub(crate) fn memory(&self, load: &Load) -> u64 {
        let size = (load.size as usize).next_power_of_two().max(4096) as u64;
        (0..self.lanes)
            .map(|lane| {
                let each = self.buffers(load, lane) + self.lane_depth(load, lane);
                size.saturating_mul(each.into())
            })
            .fold(0, u64::saturating_add)
    }
}
