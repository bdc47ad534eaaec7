// SPDX-License-Identifier: GPL-2.0

//! What the steps of an operation cost by themselves, without the device.
//!
//! Loading the module runs each step in a loop, on real queues between two ends in the network
//! namespace of the task that loads it; what the device does, between a doorbell and the end of a
//! poll, is not counted, but for [`register`], which waits for it. The results are lines
//! `rivet_cost: STEP NS` in the kernel log: under a clock that counts instructions, instructions.
//! Each is the least of many batches, so that no interrupt is in it.

use kernel::prelude::*;

#[allow(dead_code)]
#[path = "../../rust/engine/mod.rs"]
mod engine;
#[allow(dead_code, unused_macros, unused_imports)]
#[path = "../../selftests/verbs/harness.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../../rust/kapi/mod.rs"]
mod kapi;
#[allow(dead_code)]
#[path = "../../selftests/verbs/rig.rs"]
mod rig;
#[path = "../../rust/sys/mod.rs"]
mod sys;
#[allow(dead_code, unused_macros)]
#[path = "../../rust/value.rs"]
mod value;
#[path = "../../rust/verbs/mod.rs"]
mod verbs;

kapi::fmt::kernel_display!(value::Bounds);

use engine::{
    knobs::{self, Knobs},
    memory::{Carrier, Memory, Need, Step, Transfer},
    stats::LaneStats,
};
use harness::{check, Outcome};
use kapi::{sched, time::now_ns};
use kernel::sync::Arc;
use rig::{config, end, hear, listener, memory, param, resolved, Bell, End, News, Policy, Rig};
use verbs::{
    Access, Buffer, CmId, Cq, Direction, Mapped, MappedPages, Mr, Pd, Qp, QpType, RegisteredMr,
    Registration, RemoteAddr, SgTable, Wc, WcStatus,
};

module! {
    type: Cost,
    name: "rivet_cost",
    authors: ["The Rivet developers"],
    description: "What Rivet's own steps cost",
    license: "GPL",
}

/// Payload of the operations, bytes.
const SIZE: usize = 4096;
/// Operations of a batch.
const BATCH: usize = 16;
/// Batches, of which the least counts.
const BATCHES: usize = 64;

type Pages = Arc<Buffer>;

/// A QP whose peer has memory to be read. Fields are dropped in order.
struct Reading<S: Send + 'static> {
    qp: Qp<S, ()>,
    _id: CmId,
    cq: Arc<Cq>,
    pd: Arc<Pd>,
    from: RemoteAddr,
    _source: RegisteredMr,
    _peer: KBox<End>,
}

impl<S: Send + 'static> Reading<S> {
    /// Connects it.
    fn new(rig: &Rig) -> Outcome<KBox<Self>> {
        let config = || config(QpType::Rc, 4 * BATCH as u32);
        let to = rig.address_of(rig::ADDRESS)?;
        let (_listener, door) = listener(rig, to, Policy::Take)?;
        let (mut id, inbox) = resolved(rig, &to)?;
        let pd = Pd::new(&rig.device)?;
        let cq = Cq::new(&rig.device, 8 * BATCH as u32 + 2, 0, Bell::new()?)?;
        let qp = Qp::new_cm(&id, &pd, &cq, &cq, None, config())?;
        id.connect(&param(rig::HELLO))?;
        let (peer, ear) = hear!(door, News::Request(_, id, inbox) => (id, inbox));
        let mut peer = end(peer, ear, Pd::new(&rig.device)?, None, config(), 0)?;
        peer.id()?.accept(&param(rig::ANSWER))?;
        hear!(inbox, News::Established(_));
        hear!(peer.inbox, News::Established(_));
        let source = peer.region(SIZE, Access::REMOTE_READ)?;
        let from = source.remote(0)?;
        let made = Self {
            qp,
            _id: id,
            cq,
            pd,
            from,
            _source: source,
            _peer: peer,
        };
        Ok(KBox::new(made, GFP_KERNEL)?)
    }

    /// Posts what is staged and waits until `wcs` is full.
    fn wait<'w>(&mut self, wcs: &'w mut [Wc]) -> Outcome<&'w mut [Wc]> {
        self.qp.flush()?;
        let deadline = now_ns() + u64::from(rig::PATIENCE) * kapi::time::MS;
        let mut n = 0;
        while n < wcs.len() {
            let found = self.cq.poll(&mut wcs[n..])?.len();
            n += found;
            if found == 0 {
                check!(now_ns() < deadline);
                sched::yield_to_others();
            }
        }
        Ok(wcs)
    }
}

/// The least time of batches, for one operation.
struct Least(u64);

impl Least {
    fn new() -> Self {
        Self(u64::MAX)
    }

    /// A batch took from `begin` until now.
    fn since(&mut self, begin: u64) {
        self.0 = self.0.min(now_ns() - begin);
    }

    /// Prints it, without what the clock itself takes.
    fn report(self, step: &str, mode: &str, each: usize) {
        let mut clock = Least::new();
        for _ in 0..BATCHES {
            clock.since(now_ns());
        }
        let ns = self.0.saturating_sub(clock.0) / each as u64;
        pr_info!("{step}{mode} {ns}\n");
    }
}

/// `post` and `completion`: a READ of one work request into memory that stays mapped.
#[inline(never)]
fn plain(rig: &Rig) -> Outcome {
    let mut reading = Reading::<(Arc<Mapped>, RemoteAddr)>::new(rig)?;
    let memory = memory(&reading.pd, SIZE)?;
    let (mut post, mut completion) = (Least::new(), Least::new());
    let mut wcs = [const { Wc::EMPTY }; BATCH];
    for _ in 0..BATCHES {
        let begin = now_ns();
        for _ in 0..BATCH {
            let token = (memory.clone(), reading.from);
            reading.qp.push(token, |(memory, from), wr| {
                wr.sge(memory.sge(0..SIZE)?)?;
                wr.signaled();
                wr.read(*from)
            })?;
        }
        post.since(begin);
        let wcs = reading.wait(&mut wcs)?;
        let mut good = 0;
        let begin = now_ns();
        for wc in wcs {
            while let Some(done) = reading.qp.take_send(wc) {
                good += usize::from(done.status == WcStatus::Success);
            }
        }
        completion.since(begin);
        check!(good == BATCH);
    }
    post.report("post", "", BATCH);
    completion.report("completion", "", BATCH);
    Ok(())
}

type Token = <Memory<Pages> as Carrier<Pages, ()>>::Token;

fn need() -> Need {
    Need {
        depth: BATCH as u32,
        len: SIZE,
        lanes: 1,
        node: None,
    }
}

fn buffers() -> Outcome<KVec<Pages>> {
    let mut buffers = KVec::with_capacity(BATCH, GFP_KERNEL)?;
    for _ in 0..BATCH {
        buffers.push(Arc::new(Buffer::new(SIZE, None)?, GFP_KERNEL)?, GFP_KERNEL)?;
    }
    Ok(buffers)
}

/// `submit-MODE` and `complete-MODE`: READs into a caller's pages, in all that the engine does for
/// them. Those of `cached` are found in the cache.
#[inline(never)]
fn engine_reads(rig: &Rig, mode: knobs::Memory, name: &str) -> Outcome {
    let mut reading = Reading::<Token>::new(rig)?;
    let knobs = Knobs {
        memory: mode,
        ..Knobs::DEFAULT
    };
    let mut memory = Memory::<Pages>::new(&reading.pd, &knobs, &need())?;
    let stats = LaneStats::new();
    let mut buffers = buffers()?;
    let (mut submit, mut complete) = (Least::new(), Least::new());
    let mut wcs = [const { Wc::EMPTY }; BATCH];
    for _ in 0..BATCHES {
        let begin = now_ns();
        while let Some(pages) = buffers.pop() {
            let read = Transfer {
                user: (),
                verb: reading.from,
                len: SIZE,
                signaled: true,
            };
            let staged = memory.stage(&mut reading.qp, (), read, pages, &stats);
            staged.map_err(|(e, ..)| e)?;
        }
        submit.since(begin);
        let wcs = reading.wait(&mut wcs)?;
        let begin = now_ns();
        for wc in wcs {
            while let Some(done) = reading.qp.take_send(wc) {
                if let Step::Over((), WcStatus::Success, Some(pages)) =
                    memory.completed(done, &stats)
                {
                    let _ = buffers.push_within_capacity(pages);
                }
            }
        }
        complete.since(begin);
        check!(buffers.len() == BATCH);
    }
    submit.report("submit-", name, BATCH);
    complete.report("complete-", name, BATCH);
    if mode == knobs::Memory::Cached {
        lookup(&mut memory, &buffers, &stats)?;
    }
    Ok(())
}

/// `mr_lookup`: a usable key of pages that are in the cache, and giving it back.
fn lookup(memory: &mut Memory<Pages>, buffers: &[Pages], stats: &LaneStats) -> Outcome {
    let mut least = Least::new();
    let before = stats.read().mr_hits;
    for _ in 0..BATCHES {
        let begin = now_ns();
        for pages in buffers {
            let held = memory.take(pages.clone(), SIZE, stats);
            let held = held.map_err(|(e, _)| e)?;
            memory.give_back(held, SIZE, None, false, stats);
        }
        least.since(begin);
    }
    check!(stats.read().mr_hits - before == (BATCHES * BATCH) as u64);
    least.report("mr_lookup", "", BATCH);
    Ok(())
}

/// What [`register`] posts.
enum Stage {
    Register(Registration<MappedPages<Pages>>),
    Invalidate(RegisteredMr<MappedPages<Pages>>),
}

/// `mr_register`: the same without the cache, as `register` does it: a region is allocated,
/// registered, invalidated and freed, and each step waited for.
#[inline(never)]
fn register(rig: &Rig) -> Outcome {
    let mut reading = Reading::<Stage>::new(rig)?;
    let pages: Pages = Arc::new(Buffer::new(SIZE, None)?, GFP_KERNEL)?;
    let mut least = Least::new();
    let mut wcs = [const { Wc::EMPTY }; 1];
    for _ in 0..BATCHES {
        let begin = now_ns();
        let mr = Mr::new(&reading.pd, SIZE)?;
        let table = SgTable::new(&reading.pd, 1)?;
        let mapped = table.map(pages.clone(), 0..SIZE, Direction::FromDevice);
        let mapped = mapped.map_err(|(e, ..)| e)?;
        let registration = mr.register(mapped, Access::LOCAL_WRITE)?;
        reading.qp.push(Stage::Register(registration), stage)?;
        reading.wait(&mut wcs)?;
        let done = reading.qp.take_send(&mut wcs[0]).ok_or(EIO)?;
        let (Stage::Register(registration), WcStatus::Success) = (done.token, done.status) else {
            return Err(EIO.into());
        };
        let invalidate = Stage::Invalidate(registration.done());
        reading.qp.push(invalidate, stage)?;
        reading.wait(&mut wcs)?;
        let done = reading.qp.take_send(&mut wcs[0]).ok_or(EIO)?;
        let (Stage::Invalidate(region), Some(proof)) = (done.token, &done.revocation) else {
            return Err(EIO.into());
        };
        drop(region.reclaim(proof));
        least.since(begin);
    }
    least.report("mr_register", "", 1);
    Ok(())
}

fn stage<'t>(token: &'t Stage, wr: &mut verbs::SendWr<'_, 't>) -> Result {
    wr.signaled();
    match token {
        Stage::Register(registration) => wr.reg_mr(registration),
        Stage::Invalidate(region) => wr.local_inv(region),
    }
}

/// The loaded module.
struct Cost {
    _client: Pin<KBox<verbs::device::Registration>>,
}

fn run(rig: &Rig) -> Outcome {
    plain(rig)?;
    engine_reads(rig, knobs::Memory::Copy, "copy")?;
    engine_reads(rig, knobs::Memory::Fast, "fast")?;
    engine_reads(rig, knobs::Memory::Cached, "cached")?;
    register(rig)
}

impl kernel::Module for Cost {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let client = KBox::pin_init(verbs::device::register(), GFP_KERNEL)?;
        let rig = Rig::new()?;
        if let Err(fail) = run(&rig) {
            fail.say();
            return Err(EIO);
        }
        Ok(Self { _client: client })
    }
}
