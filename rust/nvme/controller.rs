// SPDX-License-Identifier: GPL-2.0

//! A controller: how its queues are set up and end, by the core's state machine.
//!
//! # Who runs beside whom
//!
//! The task that connects, the recovery, the reset, the attempt to reconnect and the deletion each
//! set queues up or end them, one at a time: the core's states see to that, and a deletion waits for
//! the others first. Timeouts and [`Controller::give_up`] end single queues beside any of them,
//! which a place allows ([`super::queue`]).
//!
//! # What went wrong elsewhere
//!
//! * A teardown beside submission: the queues are quiesced first, and a submission that the core
//!   lets through all the same (a Connect, or on a path without quiescing) finds the place empty and
//!   fails as one that has lost its path.
//! * Setting up that waits for a command which nobody will answer: a queue that fails while the
//!   controller is connecting is ended at once, by [`Controller::give_up`], and the command with it,
//!   and not after the command's timeout.
//! * A reset that fails and leaves its queues quiesced, so that nothing is failed over: they are
//!   let go before the next attempt ([`Controller::retry`]).
//! * Freezing with another number of queues: new queues are connected before the freeze, and those
//!   that come on top after it, in between no command is under way; if the queues do not run dry,
//!   this attempt has failed.
//! * Events after the end: an event request for a queue that is not there is just not sent, and the
//!   work that sends it is waited for before queues end.

use super::{
    commands::{self, Broken, Metadata, Regions, Shape},
    connect::{self, Target, Watch},
    queue::Place,
    show, wire, Host,
};
use crate::{
    engine::{
        accounting,
        knobs::{self, Knobs},
        memory::LONGEST_COPY,
        mr_cache, placement,
        policy::{self, InUse},
    },
    kapi::memory::NoIo,
    kapi::nvme::{
        Batch, Ctrl, Expired, Request, State, Submitted, Timeout, Transport, Trouble, Unsent,
    },
    verbs::{Device, NetNs, Pd, SocketAddr},
};
use kernel::{
    debugfs::Dir,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Segments of a request, at most: 1 MiB.
const SEGMENTS: u32 = 256;
/// Lines about namespaces with metadata, for a controller.
const METADATA_WARNINGS: u32 = 32;
/// SGEs of data in a capsule, at most.
const IN_CAPSULE_SGES: u32 = 4;
/// Regions of a queue's cache that are kept free ahead of need: as many can be missed before an
/// invalidation has given one back. Those beyond have regions of their own.
const MISSES: u32 = 16;
/// Commands of an I/O queue at a time, at most.
const QUEUE_SIZE: u16 = 1024;

/// Bits of what a controller says of SGLs (NVMe base specification 2.0, figure 275).
const SGLS_OFFSET: u32 = 1 << 20;

/// Refuses a policy that says what is not for storage.
fn check_knobs(knobs: &Knobs) -> Result {
    // A queue has a lock of its own. One queue's is one for all CPUs.
    if knobs.lock == knobs::Lock::Global && knobs.lanes != 1 {
        pr_err!("nvme: the policy's lock=global is for one lane, and lanes is {}; allowed: lanes=1, lock=percpu\n", knobs.lanes);
        return Err(EOPNOTSUPP);
    }
    Ok(())
}

/// Reads of up to how many bytes are copied.
fn copy_up_to(knobs: &Knobs) -> usize {
    match knobs.memory {
        knobs::Memory::Copy => LONGEST_COPY,
        knobs::Memory::Auto | knobs::Memory::Cached => {
            (knobs.copy_threshold as usize).min(LONGEST_COPY)
        }
        _ => 0,
    }
}

/// Whether submission sleeps, as a region is allocated for each request.
pub(super) fn submitting_sleeps(knobs: &Knobs) -> bool {
    knobs.memory == knobs::Memory::Register
}

fn regions(knobs: &Knobs) -> Regions {
    match knobs.memory {
        knobs::Memory::Register => Regions::Fresh,
        knobs::Memory::FastWaited => Regions::Waited,
        _ => Regions::Chained,
    }
}

/// Where a controller is, and from where it is connected.
pub(super) struct Address {
    pub(super) net: NetNs,
    pub(super) src: Option<SocketAddr>,
    pub(super) dst: SocketAddr,
    pub(super) tos: Option<u8>,
}

/// The transport's part of a controller.
#[pin_data]
pub(crate) struct Controller {
    host: Arc<Host>,
    address: Address,
    policy: InUse,
    /// As they were when it was made.
    knobs: Knobs,
    /// The admin queue, and behind it the I/O queues.
    queues: KVec<Arc<Place>>,
    /// I/O queues for default, read and polled requests.
    kinds: [Atomic<u32>; 3],
    /// What its queues' memory is registered in, as long as there are queues.
    #[pin]
    domain: Mutex<Option<Arc<Pd>>>,
    /// It was said that a queue has no cache.
    uncached: Atomic<bool>,
    /// The namespace of which it was said last that it has metadata; 0 for none.
    metadata: Atomic<u32>,
    /// How often that was said.
    warnings: Atomic<u32>,
    /// Of debugfs, where its queues are shown.
    #[pin]
    debug: Mutex<Option<Dir>>,
}

impl Controller {
    /// One that is not connected, with room for so many I/O queues. Sleeps.
    pub(super) fn new(
        host: &Arc<Host>,
        address: Address,
        policy: InUse,
        io_queues: u32,
    ) -> Result<impl PinInit<Self, Error>> {
        let all = u16::try_from(io_queues)?.checked_add(1).ok_or(EINVAL)?;
        let mut queues = KVec::with_capacity(usize::from(all), GFP_KERNEL)?;
        for qid in 0..all {
            queues.push(Place::new(qid)?, GFP_KERNEL)?;
        }
        let host = host.clone();
        let knobs = policy.knobs();
        check_knobs(&knobs)?;
        Ok(try_pin_init!(Self {
            host,
            address,
            policy,
            knobs,
            queues,
            kinds: [const { Atomic::new(0) }; 3],
            domain <- new_mutex!(None),
            uncached: Atomic::new(false),
            metadata: Atomic::new(0),
            warnings: Atomic::new(0),
            debug <- new_mutex!(None),
        }? Error))
    }

    /// Where it is.
    pub(super) fn address(&self) -> &SocketAddr {
        &self.address.dst
    }

    /// Whether its queues are on that device.
    pub(super) fn is_on(&self, device: &Device) -> bool {
        let domain = self.domain.lock();
        let pd = domain.as_ref();
        pd.is_some_and(|pd| core::ptr::eq(&**pd.device(), device))
    }

    /// Whether they are on one that goes.
    pub(super) fn device_is_gone(&self) -> bool {
        let domain = self.domain.lock();
        domain.as_ref().is_some_and(|pd| pd.device().is_gone())
    }

    /// A queue is of no more use: has the controller connected anew, or what is just being set up
    /// fail. Any context.
    pub(crate) fn queue_failed(&self, ctrl: &Ctrl<Self>, qid: u16, why: &Broken) {
        let Some(place) = self.queues.get(usize::from(qid)) else {
            return;
        };
        place.set_failed();
        let n = ctrl.number();
        if ctrl.recover() {
            pr_warn!("nvme{n}: queue {qid}: {why}; the controller is connected anew\n");
        } else {
            // Whoever has the controller may be waiting for what the queue would not send any more.
            pr_warn!("nvme{n}: queue {qid}: {why}\n");
            ctrl.give_up();
        }
    }

    /// A namespace has metadata, which the core is not told that we could carry: so it gives its disk no
    /// capacity, and does not say why. Any context.
    pub(super) fn has_metadata(&self, ctrl: &Ctrl<Self>, what: Metadata) {
        let Metadata { nsid, bytes } = what;
        // Which may change as often as the controller likes.
        if self.metadata.xchg(nsid, Relaxed) != nsid
            && self.warnings.fetch_add(1, Relaxed) < METADATA_WARNINGS
        {
            let n = ctrl.number();
            pr_warn!("nvme{n}: namespace {nsid} has {bytes} bytes of metadata for each block (T10-PI, say), which is not supported: its disk has no capacity\n");
        }
    }

    /// Something could not be sent by a queue, or might not be: if that has ended while nobody could
    /// recover the controller, it is connected anew now. Any context.
    fn look_after(&self, ctrl: &Ctrl<Self>, place: &Place) {
        if place.is_dead() && ctrl.recover() {
            let (n, qid) = (ctrl.number(), place.qid());
            pr_warn!("nvme{n}: queue {qid}: it has ended; the controller is connected anew\n");
        }
    }

    // ---- setting up --------------------------------------------------------------

    /// Connects queues `first` to `last`; `made` goes on with each, beside the others. Sleeps.
    fn connect_queues(
        &self,
        ctrl: &Ctrl<Self>,
        first: u32,
        last: u32,
        shape: &Shape,
        made: &(dyn Fn(&Place) -> Result<(), Trouble> + Sync),
    ) -> Result<(), Trouble> {
        let (first, last) = (first as usize, last as usize);
        let places = self.queues.get(first..last + 1).ok_or(EINVAL)?;
        let cpus = policy::online_cpus(&self.knobs)?;
        let [default, read, _] = self.io_queues();
        let watch = |qid: u16| match u32::from(qid) > default + read {
            true if qid > 0 => Watch::Polled,
            _ => {
                let at = placement::cpu_of(u32::from(qid.saturating_sub(1)), cpus.len() as u32);
                Watch::Cpu(cpus.get(at as usize).copied().unwrap_or(0))
            }
        };
        let debug = self.debug(ctrl)?;
        let target = Target {
            ctrl,
            debug: &debug,
            net: &self.address.net,
            src: self.address.src,
            dst: &self.address.dst,
            tos: self.address.tos,
            policy: self.policy.policy(),
            batch: self.knobs.batch,
            node: match self.knobs.numa {
                knobs::Numa::Node(node) => Some(node as i32),
                knobs::Numa::Auto => None,
            },
            domain: &self.domain,
        };
        connect::connect(&target, places, shape, &watch, made)?;
        match places.iter().any(|place| place.has_failed()) {
            true => Err(ECONNRESET.into()),
            false => Ok(()),
        }
    }

    /// Sends a request with a region that is made for it. Sleeps.
    fn submit_fresh(&self, place: &Place, request: Request) -> Submitted {
        if !request.has_data() {
            return place.submit(request, true);
        }
        // Memory may have to be freed for it by writing to this very disk.
        let _noio = NoIo::new();
        let pd = self.domain.lock().clone();
        let Some(pd) = pd else {
            return Submitted::Lost(request);
        };
        // One more than there are full ones, as the first need not begin at a page.
        let pages = request.len().div_ceil(PAGE_SIZE) + 1;
        match commands::region(&pd, pages) {
            Ok(region) => place.submit_fresh(request, region),
            Err(_) => Submitted::Busy(request),
        }
    }

    /// Where its queues are shown.
    fn debug(&self, ctrl: &Ctrl<Self>) -> Result<Dir> {
        let mut debug = self.debug.lock();
        if let Some(dir) = debug.as_ref() {
            return Ok(dir.clone());
        }
        let dir = show::directory(&self.host.debug, ctrl.number())?;
        *debug = Some(dir.clone());
        Ok(dir)
    }

    /// Pages of a request, by what the device registers at once: one more page than segments where
    /// the first does not begin at a page.
    fn segments(&self) -> Result<u32> {
        let domain = self.domain.lock();
        let caps = domain.as_ref().ok_or(ENOTCONN)?.device().caps().clone();
        drop(domain);
        if !caps.mem_mgt || caps.max_fast_reg_pages < 2 {
            return Err(EOPNOTSUPP);
        }
        Ok(SEGMENTS.min(caps.max_fast_reg_pages - 1))
    }

    /// Sets all queues up. `new`: for the first time. Sleeps.
    pub(super) fn set_up(&self, ctrl: &Ctrl<Self>, new: bool) -> Result<(), Trouble> {
        let done = self.try_set_up(ctrl, new);
        if done.is_err() {
            self.end_io_queues(ctrl, new);
            ctrl.stop_keep_alive();
            self.end_admin_queue(ctrl, new);
        }
        done
    }

    fn try_set_up(&self, ctrl: &Ctrl<Self>, new: bool) -> Result<(), Trouble> {
        self.set_up_admin_queue(ctrl, new)?;
        self.check(ctrl)?;
        if ctrl.queue_count() > 1 {
            self.set_up_io_queues(ctrl, new)?;
        }
        if !ctrl.set_live() {
            // It is being deleted.
            return Err(ENODEV.into());
        }
        ctrl.start();
        // What ended before it was live has only been noted.
        for place in self.queues.iter().take(ctrl.queue_count() as usize) {
            self.look_after(ctrl, place);
        }
        Ok(())
    }

    fn set_up_admin_queue(&self, ctrl: &Ctrl<Self>, new: bool) -> Result<(), Trouble> {
        let shape = Shape {
            depth: wire::ADMIN_QUEUE_SIZE - 1,
            queue_size: wire::ADMIN_QUEUE_SIZE,
            in_capsule: 0,
            sges: 1,
            segments: SEGMENTS,
            copy_up_to: 0,
            regions: Regions::Chained,
            cache: None,
            every: 1,
            admin: true,
        };
        self.connect_queues(ctrl, 0, 0, &shape, &|_| Ok(()))?;
        let segments = self.segments()?;
        if new {
            ctrl.set_node(self.node());
            ctrl.alloc_admin_tags()?;
        }
        ctrl.connect_admin_queue()?;
        self.place(0)?.set_live()?;
        ctrl.enable()?;
        ctrl.set_limits(segments);
        ctrl.unquiesce_admin();
        ctrl.identify()
    }

    fn place(&self, qid: u32) -> Result<&Place> {
        let place = self.queues.get(qid as usize);
        place.map(|place| &**place).ok_or(EINVAL)
    }

    /// The memory node of the device.
    fn node(&self) -> Option<i32> {
        let domain = self.domain.lock();
        domain.as_ref().and_then(|pd| pd.device().node())
    }

    /// Looks at what the controller has said of itself.
    fn check(&self, ctrl: &Ctrl<Self>) -> Result<(), Trouble> {
        let n = ctrl.number();
        if ctrl.icdoff() != 0 {
            pr_err!("nvme{n}: in-capsule data at an offset is not supported\n");
            return Err(EOPNOTSUPP.into());
        }
        if ctrl.sgls() & wire::SGLS_KEYED == 0 {
            pr_err!(
                "nvme{n}: the controller takes no keyed SGLs, without which there is no data\n"
            );
            return Err(EOPNOTSUPP.into());
        }
        let (size, max) = (ctrl.sqsize().saturating_add(1), ctrl.maxcmd());
        let wanted = ctrl.options().queue_size();
        if wanted > usize::from(size) {
            pr_warn!("nvme{n}: queue_size {wanted}: the controller has {size}\n");
        }
        let most = match max {
            0 => QUEUE_SIZE,
            max => QUEUE_SIZE.min(max),
        };
        if size > most {
            pr_warn!("nvme{n}: queue_size {size}: {most} is the most\n");
            ctrl.set_sqsize(most.saturating_sub(1).max(1));
        }
        Ok(())
    }

    fn set_up_io_queues(&self, ctrl: &Ctrl<Self>, new: bool) -> Result<(), Trouble> {
        let most = match self.knobs.lanes {
            0 => self.queues.len() as u32 - 1,
            lanes => lanes.min(self.queues.len() as u32 - 1),
        };
        let n = ctrl.negotiate_queues(most)?;
        if n == 0 {
            pr_err!(
                "nvme{}: the controller has no I/O queues to give\n",
                ctrl.number()
            );
            return Err(ENOMEM.into());
        }
        let kinds = ctrl.set_io_queues(n.min(most));
        for (kind, n) in self.kinds.iter().zip(kinds) {
            kind.store(n, Relaxed);
        }
        if new {
            ctrl.alloc_io_tags()?;
        }
        let offset = ctrl.sgls() & SGLS_OFFSET != 0;
        let in_capsule = match offset {
            true => ctrl.capsule_len().saturating_sub(wire::COMMAND),
            false => 0,
        };
        let shape = Shape {
            // Tags stay as many as they were at first, also when the controller takes fewer now.
            depth: ctrl.io_depth().max(ctrl.sqsize()),
            queue_size: ctrl.sqsize().saturating_add(1),
            in_capsule,
            sges: 1 + self.in_capsule_sges(),
            segments: self.segments()?,
            copy_up_to: copy_up_to(&self.knobs),
            regions: regions(&self.knobs),
            cache: self.cache(ctrl, kinds.iter().sum(), new)?,
            every: accounting::every(u32::from(ctrl.sqsize()), self.knobs.signal_every),
            admin: false,
        };
        // There are tags for so many so far.
        let old = ctrl.hardware_queues();
        let wanted = ctrl.queue_count().saturating_sub(1);
        let first = old.min(wanted);
        self.set_up_io(ctrl, 1, first, &shape)?;
        if !new {
            if !ctrl.frozen(|| ctrl.update_hardware_queues()) {
                return Err(ENODEV.into());
            }
            let now = ctrl.hardware_queues().min(wanted);
            if now > first {
                self.set_up_io(ctrl, first + 1, now, &shape)?;
            }
        }
        Ok(())
    }

    /// Says, once, that there are queues without a cache.
    pub(super) fn goes_uncached(&self, ctrl: &Ctrl<Self>) {
        if !self.uncached.xchg(true, Relaxed) {
            let n = ctrl.number();
            pr_warn!("nvme{n}: other caches have the device's regions: queues go without theirs, and register for each command\n");
        }
    }

    /// What each of so many I/O queues has of the cache, if the policy has one. A controller that is
    /// connected again does without where no regions are left.
    fn cache(&self, ctrl: &Ctrl<Self>, queues: u32, new: bool) -> Result<Option<mr_cache::Shape>> {
        let entries = self.knobs.mr_cache_entries;
        if self.knobs.memory != knobs::Memory::Cached {
            return Ok(None);
        }
        let domain = self.domain.lock();
        let left = domain.as_ref().map_or(0, |pd| pd.device().regions().left());
        drop(domain);
        let shape = mr_cache::Shape::new(entries, left, queues, MISSES);
        if shape.is_none() && !new {
            self.goes_uncached(ctrl);
            return Ok(None);
        }
        if shape.is_none() {
            let n = ctrl.number();
            pr_err!("nvme{n}: mr_cache_entries {entries}, and the {left} regions that the device has left for caches, are too few for {queues} I/O queues; allowed: one for each queue and more\n");
        }
        shape.map(Some).ok_or(ENOSPC)
    }

    fn in_capsule_sges(&self) -> u32 {
        let domain = self.domain.lock();
        let sges = domain
            .as_ref()
            .map_or(1, |pd| pd.device().caps().max_send_sge);
        IN_CAPSULE_SGES.min(sges.saturating_sub(1))
    }

    fn set_up_io(
        &self,
        ctrl: &Ctrl<Self>,
        first: u32,
        last: u32,
        shape: &Shape,
    ) -> Result<(), Trouble> {
        self.connect_queues(ctrl, first, last, shape, &|place| {
            ctrl.connect_io_queue(place.qid())?;
            Ok(place.set_live()?)
        })
    }

    // ---- ending --------------------------------------------------------------------

    /// Ends the I/O queues, which stay quiesced. `remove`: for good. Sleeps.
    fn end_io_queues(&self, ctrl: &Ctrl<Self>, remove: bool) {
        ctrl.quiesce_io();
        for place in self.queues.iter().skip(1) {
            place.end();
        }
        ctrl.wait_ended(true);
        if remove {
            // What waits for them fails, as they are not live.
            ctrl.unquiesce_io();
            ctrl.remove_io_tags();
        }
    }

    /// Ends the admin queue, which stays quiesced. `remove`: for good. Sleeps.
    fn end_admin_queue(&self, ctrl: &Ctrl<Self>, remove: bool) {
        ctrl.quiesce_admin();
        if let Some(place) = self.queues.first() {
            place.end();
        }
        // Without a queue no event comes any more.
        ctrl.flush_events();
        ctrl.wait_ended(false);
        if remove {
            ctrl.unquiesce_admin();
            ctrl.remove_admin_tags();
        }
        // The last that was on the device.
        let domain = self.domain.lock().take();
        drop(domain);
    }

    /// Has it be tried again later, or be deleted if it was enough. Requests that come meanwhile
    /// wait or take another path, and are not held here.
    fn retry(&self, ctrl: &Ctrl<Self>, why: Option<Trouble>) {
        ctrl.unquiesce_io();
        ctrl.unquiesce_admin();
        if ctrl.reconnect_or_delete(why) {
            let (n, delay) = (ctrl.number(), ctrl.options().reconnect_delay());
            pr_info!("nvme{n}: the next attempt is in {delay} s\n");
        }
    }
}

impl Transport for Controller {
    fn is_live(&self, qid: u16) -> bool {
        let place = self.queues.get(usize::from(qid));
        place.is_some_and(|place| place.is_live())
    }

    fn submit(&self, ctrl: &Ctrl<Self>, qid: u16, request: Request, last: bool) -> Submitted {
        let Some(place) = self.queues.get(usize::from(qid)) else {
            return Submitted::Lost(request);
        };
        let submitted = match qid > 0 && submitting_sleeps(&self.knobs) {
            true => self.submit_fresh(place, request),
            false => place.submit(request, last),
        };
        if !matches!(submitted, Submitted::Taken) {
            self.look_after(ctrl, place);
        }
        submitted
    }

    fn submit_batch(&self, ctrl: &Ctrl<Self>, qid: u16, batch: Batch) -> Unsent {
        let Some(place) = self.queues.get(usize::from(qid)) else {
            return Unsent {
                lost: batch,
                ..Unsent::new()
            };
        };
        let unsent = place.submit_batch(batch);
        if !unsent.is_empty() {
            self.look_after(ctrl, place);
        }
        unsent
    }

    fn commit(&self, qid: u16) {
        if let Some(place) = self.queues.get(usize::from(qid)) {
            place.commit();
        }
    }

    fn poll(&self, qid: u16) -> u32 {
        let place = self.queues.get(usize::from(qid));
        place.map_or(0, |place| place.poll())
    }

    fn expired(&self, ctrl: &Ctrl<Self>, qid: u16, what: &Timeout) -> Expired {
        let n = ctrl.number();
        let Timeout { tag, opcode } = what;
        pr_warn!("nvme{n}: queue {qid}: command {tag} (opcode {opcode:#x}) is not answered\n");
        if ctrl.state() == State::Live {
            // What recovers ends the request.
            ctrl.recover();
            return Expired::Wait;
        }
        // Whoever sets up or ends queues may be waiting for this very request.
        if let Some(place) = self.queues.get(usize::from(qid)) {
            place.set_failed();
            place.end();
        }
        Expired::Over
    }

    fn send_event_request(&self, ctrl: &Ctrl<Self>) {
        if let Some(place) = self.queues.first() {
            place.with(|lane| {
                lane.with(|commands, queue, _| commands.send_event_request(queue));
            });
            self.look_after(ctrl, place);
        }
    }

    fn reset(&self, ctrl: &Ctrl<Self>) {
        ctrl.stop();
        self.end_io_queues(ctrl, false);
        ctrl.quiesce_admin();
        ctrl.disable(false);
        self.end_admin_queue(ctrl, false);
        if !ctrl.set_connecting() {
            // It is being deleted, and what waits for its queues is to fail.
            ctrl.unquiesce_io();
            ctrl.unquiesce_admin();
            return;
        }
        if let Err(why) = self.set_up(ctrl, false) {
            ctrl.count_attempt();
            pr_err!("nvme{}: the reset failed: {why}\n", ctrl.number());
            self.retry(ctrl, Some(why));
        }
    }

    fn recover(&self, ctrl: &Ctrl<Self>) {
        ctrl.stop_keep_alive();
        ctrl.flush_events();
        self.end_io_queues(ctrl, false);
        ctrl.unquiesce_io();
        self.end_admin_queue(ctrl, false);
        ctrl.unquiesce_admin();
        ctrl.stop_authentication();
        if ctrl.set_connecting() {
            self.retry(ctrl, None);
        }
    }

    fn reconnect(&self, ctrl: &Ctrl<Self>) {
        let attempt = ctrl.count_attempt();
        let n = ctrl.number();
        match self.set_up(ctrl, false) {
            Ok(()) => {
                pr_info!("nvme{n}: connected again, at attempt {attempt}\n");
                ctrl.reconnected();
            }
            Err(why) => {
                pr_warn!("nvme{n}: attempt {attempt} to connect failed: {why}\n");
                self.retry(ctrl, Some(why));
            }
        }
    }

    fn give_up(&self, _ctrl: &Ctrl<Self>) {
        for place in &self.queues {
            place.end_failed();
        }
    }

    fn delete(&self, ctrl: &Ctrl<Self>) {
        self.host.forget(ctrl);
        self.end_io_queues(ctrl, true);
        ctrl.quiesce_admin();
        ctrl.disable(true);
        self.end_admin_queue(ctrl, true);
    }

    fn io_queues(&self) -> [u32; 3] {
        [0, 1, 2].map(|kind: usize| self.kinds[kind].load(Relaxed))
    }
}
