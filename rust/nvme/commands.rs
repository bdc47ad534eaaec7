// SPDX-License-Identifier: GPL-2.0

//! The commands of a queue that are under way.
//!
//! # The way of a command
//!
//! ```text
//! Free -> (Posted or Registering ->) Sent -> (Revoking ->) Free
//! ```
//!
//! A command has a slot, which is its tag, and in it a capsule that stays mapped. Its request is
//! held by the work requests that are posted for it, or by the slot when there are none:
//!
//! * `Posted`: the capsule's SEND is under way, and its token holds the request. For data in the
//!   capsule the token has the mapping of the pages, which the HCA reads; for other data a
//!   registration, whose REG_MR is in front of the SEND.
//! * `Sent`: no work request has to do with the request's pages any more, or ever had, and the
//!   controller has not answered. The slot holds the request, with the region that the controller
//!   reaches it by, if it does, or the name of an entry of the cache.
//! * `Revoking`: the controller has answered without an invalidation, so the region is invalidated
//!   here; the token of that holds region and request.
//! * `Registering`: only where each step is waited for (`memory=register` and `fast_waited`, which
//!   are there to be compared with): the REG_MR is under way, and the SEND follows its completion.
//!   The controller is not asked for an invalidation then.
//!
//! # Which SENDs ask for a completion
//!
//! Those whose request is `Posted`: such a request ends when both the completion and the answer are
//! there, in whichever order they come. So no page is unmapped that a SEND may still read, and a
//! region that the controller says it has invalidated is known to have been registered before it
//! said so; a claim that is seen earlier proves nothing, and the region is invalidated here once
//! more.
//!
//! The others, of commands without data, of those whose data is in the pool or in the cache, and of
//! event requests, read nothing but the capsule. When the answer is there the controller has had all
//! of that, whatever the HCA knows of it; so the tag is free, and the next command may be written
//! into the capsule. If the HCA has missed the acknowledgement and sends the old one again, with the
//! new bytes, then the controller's HCA drops it as one that it has had. One of `every` asks for a
//! completion, which gives the places of those before it in the send queue back; if there is no
//! place, commands wait for answers. One behind the REG_MR of an entry asks too, which cannot be
//! evicted before that is known to be done.
//!
//! # Completions of SENDs have no events
//!
//! Where a CPU's poller looks for them they go to a quiet CQ ([`crate::engine::poller`]): an answer is
//! nearly always later than the completion of what it is for, and whoever looks for answers looks for
//! these before. There are events for them only from when a command has its answer and waits for its
//! SEND, or for its region's invalidation, or from when a command waits for a place in the send queue.
//!
//! Two CQs lose the order of SENDs and answers, which shows a claim that came before its region was
//! registered, or was for the last time. It needs not be shown where the device itself refuses the
//! invalidation of a key that is not registered, which ends the QP, as on InfiniBand. On iWARP, where
//! soft-iWARP passes any number on as a claim, all is on one CQ; on soft-RoCE, which may register twice, no
//! claim is believed, and each region costs a LOCAL_INV more ([`crate::verbs::mr`]).
//!
//! # The cache
//!
//! With `memory=cached` data that goes neither through the pool nor in the capsule is registered once
//! and stays so: an entry of the queue's shard of the MR cache ([`crate::engine::shard`]) is found
//! again by the pages, in their order, where in them the data begins, its length, and which way it
//! goes. A hit is a SEND and nothing else, whose SGL does not ask for an invalidation; a miss has the
//! REG_MR in front. What is invalidated all the same is no command's key, and breaks the queue.
//!
//! ```text
//! hit:                         [SEND]
//! miss:                        [REG_MR | SEND]
//! few regions are free, too:   [LOCAL_INV old] [REG_MR | SEND]
//! ```
//!
//! (On soft-RoCE a REG_MR waits for all that is before it: see [`crate::verbs::Members::settle`].)
//!
//! No request owns an entry, and none waits for its REG_MR: it is over with the answer. A command
//! finds no entry that is its own, and no free region, or has pages that no reference keeps: then it
//! has a region of its own, as without a cache, and may have an entry evicted, so that the next finds
//! a free one.
//!
//! What that opens: the controller reaches a page from its first use until the entry's eviction, or
//! until the queue has ended, whatever the page holds by then. It can read what was written from, and
//! write to what was read into, and not the other way round, as the way is a part of what an entry is
//! found by. That is why it is chosen, and not given. Other controllers do not reach it: a PD and its
//! caches are one controller's.
//!
//! What it costs: an entry has a reference to each of its pages, so these are not freed before it
//! goes, at most `mr_cache_entries` times the longest request for a controller, and of a page in a
//! large folio all of that. Pages of a file that was truncated, of memory that was unmapped, or of
//! which a writer got a copy, stay for as long; what comes in their place are other pages, which no
//! key of theirs finds. They can be neither reclaimed nor moved meanwhile, and who counts references
//! (sealing of a memfd, say) sees one more. Pages of DAX files are not cached, as a truncation would
//! wait for them.
//!
//! # A request ends once
//!
//! There is one value for a request, and it is in one place: a token, or a slot. An answer takes it
//! out. An end of the queue drops what is left wherever it is: tokens when the QP is destroyed,
//! then the cache, then slots; each region is deregistered before the request that it covers is
//! dropped, and only then the block layer hears of it. Neither a timeout nor a teardown can end what
//! an answer ends. (nvme-rdma and others had requests freed before their SEND was done, or ended by
//! two at once.)
//!
//! # The peer
//!
//! An answer counts only if its command id is exactly that of a command under way that has no
//! answer yet, the length is right, and the key that came with it, if one did, is the command's.
//! All else breaks the queue ([`Broken`]), and with that the controller is connected anew.

use super::{
    connect::Progress,
    pool::{Opening, Pool},
    wire::{self, Completion, Data},
};
use crate::{
    engine::{
        lane::{Fault, Queue, Service},
        memory::Source,
        mr_cache::{self, Id},
        poller::Dues,
        shard::{Entry, Evicted, Reserved, Rights, Shard},
        stats::LaneStats,
    },
    kapi::nvme::{Ended, Request, Submitted, EVENT_TAG},
    verbs::{
        caps::Caps, mr::Revocation, wc::Done, Access, Buffer, Direction, Mapped, MappedPages, Mr,
        PageList, PageRefs, Pd, RegisteredMr, Registration, SgTable, Wc, WcStatus,
    },
};
use core::fmt;
use kernel::{prelude::*, sync::Arc};

/// Work requests that a command needs on a device, at most: REG_MR and SEND, and then LOCAL_INV; and
/// what REG_MR waits by, where it does ([`crate::verbs::Members::settle`]).
pub(crate) fn work_requests(caps: &Caps) -> u32 {
    3 + u32::from(caps.registers_twice)
}

/// Bytes from one completion queue entry to the next: a cache line.
const STRIDE: usize = 64;

/// What an answer says beyond that there is one.
#[derive(Clone, Copy)]
struct Answer {
    status: u16,
    result: u64,
}

/// A request whose SEND is under way.
enum Payload {
    /// Its data goes with the command.
    InCapsule(MappedPages<Request>),
    /// The controller reaches its data.
    Region(Registration<MappedPages<Request>>),
}

/// A request that no work request is posted for.
enum Held {
    /// Nobody reaches its memory.
    Plain(Request),
    /// The same; what it reads comes into its tag's place in the pool.
    Pooled(Request),
    /// The controller does.
    Region(RegisteredMr<MappedPages<Request>>),
    /// The same, by an entry of the cache.
    Cached(Id, Request),
}

impl Source for Request {
    fn add_to(&self, refs: &mut PageRefs, len: usize) -> Result {
        refs.add_pages(self, 0..len)
    }
}

/// See the file's head.
enum Slot {
    Free,
    Registering {
        id: u16,
    },
    Posted {
        id: u16,
        /// By which the controller reaches its data.
        key: Option<u32>,
        answer: Option<Answer>,
    },
    Sent {
        id: u16,
        held: Held,
    },
    Revoking,
    /// An error has stopped it on its way: it ends with the queue.
    Stuck(#[allow(dead_code)] Stuck), // It is only dropped.
}

/// What an error has left of a command.
#[allow(dead_code)] // It is only dropped.
enum Stuck {
    Nothing,
    Payload(Payload),
    Held(Held),
}

/// Token of a work request, or of a chain of such.
pub(crate) enum Token {
    /// A command's capsule.
    Command(Capsule),
    /// A capsule that nothing else goes with.
    Bare(Arc<Mapped>),
    /// The REG_MR of a part of the pool.
    Pool(Opening),
    /// A capsule, and the REG_MR of the entry that it names.
    Enter(Arc<Mapped>, Entry),
    /// The LOCAL_INV of an entry.
    Evict(Evicted),
    /// That of a command's region.
    Revoke(Revoke),
    /// The REG_MR of the command with that tag, whose SEND waits for it.
    Register(u16, Registration<MappedPages<Request>>),
}

// What every command moves, some of it several times: no more than a few registers' worth, so that it
// takes no call of memcpy.
const _: () = assert!(core::mem::size_of::<Token>() <= 64 && core::mem::size_of::<Slot>() <= 64);

/// See [`Token::Command`].
pub(crate) struct Capsule {
    tag: u16,
    memory: Arc<Mapped>,
    payload: Payload,
}

/// See [`Token::Revoke`].
pub(crate) struct Revoke {
    tag: u16,
    region: RegisteredMr<MappedPages<Request>>,
    answer: Answer,
}

/// How a command goes.
enum Way {
    /// With work requests that hold its request.
    Chain(Payload),
    /// In a bare capsule, while its slot holds the request.
    Bare(Held),
    /// The same, behind the REG_MR of a new entry.
    Enter(Entry, Held),
    /// The same, once its data is registered.
    Waited(Registration<MappedPages<Request>>),
}

/// What follows a completion.
enum Next {
    /// The region is to be invalidated.
    Revoke(Revoke),
    /// The command with that tag is to be sent.
    Send(u16),
}

/// Where an answer lands.
pub(crate) struct Landing {
    memory: Arc<Mapped>,
    at: usize,
}

/// Why a queue is of no more use.
#[derive(Clone, Copy)]
pub(crate) enum Broken {
    /// A work request of the send queue ended so.
    Sending(WcStatus),
    /// A receive ended so.
    Receiving(WcStatus),
    /// Nothing can be posted any more, or completions were lost.
    Posting,
    /// The connection has ended.
    Disconnected,
    /// An answer of so many bytes.
    Length(u32),
    /// An answer by something else than a plain SEND.
    Immediate,
    /// An answer to a command that is not under way, or has one.
    Id(u16),
    /// An invalidation of a key that is not the command's.
    Key(u32),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Sending(status) => write!(f, "a send failed: {status}"),
            Broken::Receiving(status) => write!(f, "a receive failed: {status}"),
            Broken::Posting => {
                f.write_str("the device takes no work requests, or has lost completions")
            }
            Broken::Disconnected => f.write_str("the connection has ended"),
            Broken::Length(len) => write!(f, "an answer of {len} bytes"),
            Broken::Immediate => f.write_str("an answer with immediate data"),
            Broken::Id(id) => write!(f, "an answer to command {id:#x}, which is not under way"),
            Broken::Key(key) => write!(f, "an invalidation of key {key:#x}, which is no command's"),
        }
    }
}

/// How the controller gets at the data of commands that is not copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Regions {
    /// By regions that there are from the start; a REG_MR goes with the SEND, and the controller
    /// invalidates.
    Chained,
    /// The same regions, with each step waited for.
    Waited,
    /// The same, with a region that is allocated for the command.
    Fresh,
}

/// What a queue is made for.
pub(crate) struct Shape {
    /// Commands at a time, with those that the core reserves, and without event requests: tags are
    /// below this.
    pub(crate) depth: u16,
    /// The size of the queue that the controller is asked for: one more than can be under way.
    pub(crate) queue_size: u16,
    /// Bytes of data in a capsule.
    pub(crate) in_capsule: usize,
    /// SGEs of a SEND.
    pub(crate) sges: u32,
    /// Pages of a request, at most.
    pub(crate) segments: u32,
    /// Reads of up to so many bytes go through the pool.
    pub(crate) copy_up_to: usize,
    /// How regions come about.
    pub(crate) regions: Regions,
    /// What is registered stays so: the queue's shard of the cache, or less where others have taken
    /// regions meanwhile.
    pub(crate) cache: Option<mr_cache::Shape>,
    /// Of SENDs that may go without a completion, one of so many asks for it.
    pub(crate) every: u32,
    /// It is the admin queue, which has an asynchronous event request.
    pub(crate) admin: bool,
}

/// The commands of a queue. To be changed with the lane's lock held.
pub(crate) struct Commands {
    admin: bool,
    /// The capsules, by tag, and behind them that of the event request.
    capsules: Arc<Mapped>,
    /// Where answers land.
    answers: Arc<Mapped>,
    // Before the slots, so that its regions are deregistered when these end requests.
    cache: Option<Shard>,
    slots: KVVec<Slot>,
    tables: KVec<SgTable>,
    regions: KVec<Mr>,
    pool: Pool,
    in_capsule: usize,
    copy_up_to: usize,
    waited: bool,
    sges: u32,
    every: u32,
    /// SENDs since the last that asked for a completion.
    since: u32,
    room: u16,
    /// Commands that are under way.
    busy: u16,
    /// The event request is.
    event: bool,
    /// It has to be sent, once there is room.
    event_due: bool,
    /// What [`work_requests`] says.
    each: u32,
    /// Work requests that commands under way need yet: a LOCAL_INV, or a SEND and that.
    owed: u32,
    /// For the commands that have their answers and wait for a work request, and for a place in the
    /// send queue, where completions of SENDs have no events.
    dues: Option<Dues>,
    /// A command waits for such a place.
    starved: bool,
    broken: bool,
}

/// What is to be done when the lane's lock was given back.
pub(crate) struct After {
    ended: Ended,
    event: Option<Answer>,
    broken: Option<Broken>,
    /// A namespace that was identified, whose blocks have metadata.
    metadata: Option<Metadata>,
}

/// What a namespace has beside its data.
#[derive(Clone, Copy)]
pub(super) struct Metadata {
    /// Its number.
    pub(super) nsid: u32,
    /// Bytes for each block.
    pub(super) bytes: u16,
}

impl Metadata {
    /// What an Identify that has succeeded tells, if it is about a namespace that has some.
    fn of(request: &Request) -> Option<Self> {
        let nsid = wire::identified(&request.command())?;
        let (mut flbas, mut bytes) = ([0], [0; 2]);
        request.read(wire::FLBAS, &mut flbas).ok()?;
        request.read(wire::metadata_at(flbas[0]), &mut bytes).ok()?;
        let bytes = u16::from_le_bytes(bytes);
        (bytes > 0).then_some(Self { nsid, bytes })
    }
}

impl Default for After {
    fn default() -> Self {
        Self {
            ended: Ended::new(),
            event: None,
            broken: None,
            metadata: None,
        }
    }
}

impl Commands {
    /// A queue without commands. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; what the device says.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        shape: &Shape,
        node: Option<i32>,
        dues: Option<Dues>,
    ) -> Result<Self> {
        let depth = usize::from(shape.depth);
        let map = |len: usize, direction| -> Result<Arc<Mapped>> {
            let buffer = Buffer::new(len, node)?;
            Ok(Arc::new(Mapped::new(pd, buffer, direction)?, GFP_KERNEL)?)
        };
        let mut slots = KVVec::with_capacity(depth, GFP_KERNEL)?;
        let mut tables = KVec::with_capacity(depth, GFP_KERNEL)?;
        let mut regions = KVec::with_capacity(depth, GFP_KERNEL)?;
        // Where the first does not begin at a page there is one more.
        let pages = (shape.segments + 1).min(pd.device().caps().max_fast_reg_pages) as usize;
        for _ in 0..depth {
            slots.push(Slot::Free, GFP_KERNEL)?;
            tables.push(SgTable::new(pd, pages)?, GFP_KERNEL)?;
            if shape.regions != Regions::Fresh {
                regions.push(region(pd, pages)?, GFP_KERNEL)?;
            }
        }
        Ok(Self {
            admin: shape.admin,
            capsules: map((depth + 1) * wire::COMMAND, Direction::ToDevice)?,
            answers: map((depth + 1) * STRIDE, Direction::FromDevice)?,
            cache: match shape
                .cache
                .and_then(|shape| Reserved::within(pd.device(), shape))
            {
                Some(reserved) => Some(Shard::new(pd, reserved, pages)?),
                None => None,
            },
            slots,
            tables,
            regions,
            pool: Pool::new(pd, depth, shape.copy_up_to, node)?,
            in_capsule: shape.in_capsule,
            copy_up_to: shape.copy_up_to,
            each: work_requests(pd.device().caps()),
            waited: shape.regions != Regions::Chained,
            sges: shape.sges,
            every: shape.every.max(1),
            since: 0,
            room: shape.queue_size,
            busy: 0,
            event: false,
            event_due: false,
            owed: 0,
            dues,
            starved: false,
            broken: false,
        })
    }

    /// Whether there is a shard of the cache.
    pub(crate) fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// Says how many commands the controller takes at a time.
    pub(crate) fn limit(&mut self, room: u16) {
        self.room = self.room.min(room);
    }

    /// Posts receives for all answers that can come.
    ///
    /// # Errors
    ///
    /// What posting says.
    pub(crate) fn prime(&mut self, queue: &mut Queue<Self>) -> Result {
        for i in 0..=self.slots.len() {
            let landing = Landing {
                memory: self.answers.clone(),
                at: i * STRIDE,
            };
            receive(queue, landing)?;
        }
        Ok(())
    }

    /// Has the pool registered, on a QP that is connected. Until that is done, and where it fails,
    /// reads get regions of their own.
    pub(crate) fn open_pool(&mut self, queue: &mut Queue<Self>) {
        self.pool.open(queue);
    }

    /// Takes in a region that was allocated for the next command, and gives one that was for an
    /// earlier.
    pub(crate) fn refresh(&mut self, region: Mr) -> Option<Mr> {
        let old = self.regions.pop();
        // It has room for each tag.
        let _ = self.regions.push_within_capacity(region);
        old
    }

    /// Sends a command, as soon as the lane posts.
    pub(crate) fn submit(
        &mut self,
        queue: &mut Queue<Self>,
        stats: &LaneStats,
        request: Request,
    ) -> Submitted {
        let tag = request.tag();
        if self.broken || queue.failed.is_some() {
            // The queue is about to end.
            return Submitted::Busy(request);
        }
        if !self.finds_room(queue) {
            return Submitted::Busy(request);
        }
        if !matches!(self.slots.get(usize::from(tag)), Some(Slot::Free)) {
            return Submitted::Refused(request);
        }
        let mut command = request.command();
        let way = match self.attach(request, &mut command, stats) {
            Ok(way) => way,
            Err(refused) => return refused,
        };
        let id = wire::command_id(&command);
        let at = usize::from(tag) * wire::COMMAND;
        // It has room for each tag.
        let _ = self.capsules.write(at, &command);
        self.busy += 1;
        if !matches!(way, Way::Bare(_)) {
            self.evict(queue, stats);
        }
        let slot = match way {
            Way::Bare(held) => match self.send_bare(queue, at) {
                Ok(()) => Slot::Sent { id, held },
                Err(()) => Slot::Stuck(Stuck::Held(held)),
            },
            Way::Enter(entry, held) => match self.send_entry(queue, at, entry) {
                Ok(()) => Slot::Sent { id, held },
                Err(()) => Slot::Stuck(Stuck::Held(held)),
            },
            Way::Chain(payload) => {
                self.owed += u32::from(payload.key().is_some());
                self.send_chain(queue, tag, at, id, payload)
            }
            Way::Waited(registration) => {
                self.owed += 2;
                self.register(queue, tag, id, registration)
            }
        };
        self.slots[usize::from(tag)] = slot;
        Submitted::Taken
    }

    /// Whether the send queue has places for one more command, and for what those under way need.
    fn has_room(&self, queue: &Queue<Self>) -> bool {
        queue.qp.send_room() >= self.owed + self.each
    }

    /// Has data registered, before its command is sent.
    fn register(
        &mut self,
        queue: &mut Queue<Self>,
        tag: u16,
        id: u16,
        registration: Registration<MappedPages<Request>>,
    ) -> Slot {
        let pushed = queue
            .qp
            .push_chain(Token::Register(tag, registration), |token, chain| {
                let Token::Register(_, registration) = token else {
                    return Err(EINVAL);
                };
                chain.settle()?;
                chain.wr(|wr| {
                    wr.signaled();
                    wr.reg_mr(registration)
                })
            });
        match pushed {
            Ok(()) => Slot::Registering { id },
            Err((_, token)) => {
                queue.failed.get_or_insert(Fault::Posting(EIO));
                Slot::stuck(token)
            }
        }
    }

    /// Sends a command whose data was registered.
    fn send_registered(&mut self, queue: &mut Queue<Self>, tag: u16, after: &mut After) {
        self.owed = self.owed.saturating_sub(1);
        if self
            .send_bare(queue, usize::from(tag) * wire::COMMAND)
            .is_err()
        {
            // It ends with the queue.
            self.fail(Broken::Posting, after);
        }
    }

    /// Sends the capsule that is at `at`, and nothing with it. The error is the end of the QP.
    fn send_bare(&mut self, queue: &mut Queue<Self>, at: usize) -> core::result::Result<(), ()> {
        let signaled = self.since + 1 >= self.every;
        let token = Token::Bare(self.capsules.clone());
        let pushed = queue.qp.push(token, |token, wr| {
            let Token::Bare(memory) = token else {
                return Err(EINVAL);
            };
            wr.sge(memory.sge(at..at + wire::COMMAND)?)?;
            if signaled {
                wr.signaled();
            }
            wr.send()
        });
        self.since = if signaled { 0 } else { self.since + 1 };
        pushed.map_err(|_| {
            queue.failed.get_or_insert(Fault::Posting(EIO));
        })
    }

    /// Sends the capsule that is at `at`, behind the REG_MR of its entry. The error is the end of the
    /// QP.
    fn send_entry(
        &mut self,
        queue: &mut Queue<Self>,
        at: usize,
        entry: Entry,
    ) -> core::result::Result<(), ()> {
        let token = Token::Enter(self.capsules.clone(), entry);
        let pushed = queue.qp.push_chain(token, |token, chain| {
            let Token::Enter(memory, entry) = token else {
                return Err(EINVAL);
            };
            let registration = entry.registration()?;
            chain.settle()?;
            chain.wr(|wr| wr.reg_mr(registration))?;
            chain.wr(|wr| {
                wr.sge(memory.sge(at..at + wire::COMMAND)?)?;
                wr.signaled();
                wr.send()
            })
        });
        self.since = 0;
        // The cache has the registration as well, so it does not end here.
        pushed.map_err(|_| {
            queue.failed.get_or_insert(Fault::Posting(EIO));
        })
    }

    /// Has the entry invalidated that was used least recently, if free regions are few, and if the
    /// send queue has a place for that beside what commands need.
    fn evict(&mut self, queue: &mut Queue<Self>, stats: &LaneStats) {
        let room = queue.qp.send_room() > self.owed + self.each;
        let evicted = match &mut self.cache {
            Some(cache) if room => cache.evict(stats),
            _ => None,
        };
        let Some(evicted) = evicted else {
            return;
        };
        let pushed = queue.qp.push(Token::Evict(evicted), |token, wr| {
            let Token::Evict(evicted) = token else {
                return Err(EINVAL);
            };
            wr.local_inv(evicted.registration()?)
        });
        // Else it comes back with the completion of a SEND behind it.
        if let Err((_, Token::Evict(evicted))) = pushed {
            queue.failed.get_or_insert(Fault::Posting(EIO));
            if let Some(cache) = &mut self.cache {
                cache.restore(evicted);
            }
        }
    }

    /// Sends the capsule that is at `at`, with what its payload needs.
    fn send_chain(
        &mut self,
        queue: &mut Queue<Self>,
        tag: u16,
        at: usize,
        id: u16,
        payload: Payload,
    ) -> Slot {
        let key = payload.key();
        let token = Token::Command(Capsule {
            tag,
            memory: self.capsules.clone(),
            payload,
        });
        let pushed = queue.qp.push_chain(token, |token, chain| {
            let Token::Command(capsule) = token else {
                return Err(EINVAL);
            };
            if let Payload::Region(registration) = &capsule.payload {
                chain.settle()?;
                chain.wr(|wr| wr.reg_mr(registration))?;
            }
            chain.wr(|wr| {
                wr.sge(capsule.memory.sge(at..at + wire::COMMAND)?)?;
                if let Payload::InCapsule(mapped) = &capsule.payload {
                    for sge in mapped.sges(0..mapped.len())? {
                        wr.sge(sge)?;
                    }
                }
                wr.signaled();
                wr.send()
            })
        });
        self.since = 0;
        match pushed {
            Ok(()) => Slot::Posted {
                id,
                key,
                answer: None,
            },
            // There was room: so the QP has failed. A region cannot end here, where nobody may
            // sleep.
            Err((_, token)) => {
                queue.failed.get_or_insert(Fault::Posting(EIO));
                Slot::stuck(token)
            }
        }
    }

    /// Says in the command where its data is, and makes that reachable.
    fn attach(
        &mut self,
        request: Request,
        command: &mut [u8; wire::COMMAND],
        stats: &LaneStats,
    ) -> core::result::Result<Way, Submitted> {
        if !request.has_data() {
            wire::set_data(command, Data::None);
            return Ok(Way::Bare(Held::Plain(request)));
        }
        let (len, direction) = (request.len(), request.direction());
        let writes = direction == Direction::ToDevice;
        let pooled =
            (!writes && len <= self.copy_up_to).then(|| self.pool.clear(request.tag(), len));
        if let Some(remote) = pooled.flatten() {
            let data = Data::Keyed {
                addr: remote.addr,
                len: len as u32,
                rkey: remote.rkey,
                invalidate: false,
            };
            wire::set_data(command, data);
            return Ok(Way::Bare(Held::Pooled(request)));
        }
        if len > wire::LONGEST_KEYED as usize {
            return Err(Submitted::Refused(request));
        }
        let access = match writes {
            true => Access::REMOTE_READ,
            false => Access::REMOTE_WRITE,
        };
        let fits_capsule = writes && len <= self.in_capsule;
        if let Some(cache) = self.cache.as_mut().filter(|_| !fits_capsule) {
            // A bounce buffer has to have what is in the pages before, as the controller need not
            // write all of them.
            let direction = match writes {
                true => Direction::ToDevice,
                false => Direction::Bidirectional,
            };
            let entry = cache.take(&request, len, Rights { direction, access }, stats);
            // Else it has a region of its own.
            if let Ok(entry) = entry {
                return Ok(Self::attach_entry(entry, request, command));
            }
        }
        // There is one of each for each tag.
        let Some(table) = self.tables.pop() else {
            return Err(Submitted::Busy(request));
        };
        let mapped = match table.map(request, 0..len, direction) {
            Ok(mapped) => mapped,
            Err((e, table, request)) => {
                let _ = self.tables.push_within_capacity(table);
                // What maps for DMA may be out of room, which is not the request's fault.
                return Err(match e {
                    e if e == EINVAL => Submitted::Refused(request),
                    _ => Submitted::Lost(request),
                });
            }
        };
        if fits_capsule && mapped.pieces() < self.sges {
            wire::set_data(command, Data::InCapsule(len as u32));
            return Ok(Way::Chain(Payload::InCapsule(mapped)));
        }
        let Some(region) = self.regions.pop() else {
            return Err(Submitted::Busy(self.unmap(mapped)));
        };
        let registered = region.try_register(mapped, access);
        let registration = registered.map_err(|(_, region, mapped)| {
            let _ = self.regions.push_within_capacity(region);
            Submitted::Refused(self.unmap(mapped))
        })?;
        stats.registrations.add(1);
        if let Ok(remote) = registration.remote(0) {
            let data = Data::Keyed {
                addr: remote.addr,
                len: len as u32,
                rkey: remote.rkey,
                invalidate: !self.waited,
            };
            wire::set_data(command, data);
        }
        Ok(match self.waited {
            false => Way::Chain(Payload::Region(registration)),
            true => Way::Waited(registration),
        })
    }

    /// Says in the command that its data is that of an entry.
    fn attach_entry(entry: Entry, request: Request, command: &mut [u8; wire::COMMAND]) -> Way {
        if let Ok(remote) = entry.registration().and_then(|region| region.remote(0)) {
            let data = Data::Keyed {
                addr: remote.addr,
                len: request.len() as u32,
                rkey: remote.rkey,
                invalidate: false,
            };
            wire::set_data(command, data);
        }
        let held = Held::Cached(entry.id(), request);
        match entry.is_miss() {
            true => Way::Enter(entry, held),
            false => Way::Bare(held),
        }
    }

    /// Takes a mapping apart.
    fn unmap(&mut self, mapped: MappedPages<Request>) -> Request {
        let (table, request) = mapped.unmap();
        let _ = self.tables.push_within_capacity(table);
        request
    }

    /// Sends the asynchronous event request, unless it is under way.
    pub(crate) fn send_event_request(&mut self, queue: &mut Queue<Self>) {
        let idle = !self.event && !self.broken && queue.failed.is_none();
        if !idle || !self.admin {
            return;
        }
        // Else when there is room again.
        self.event_due = !self.finds_room(queue);
        if self.event_due {
            return;
        }
        // Behind those of the tags.
        let at = self.slots.len() * wire::COMMAND;
        let _ = self.capsules.write(at, &wire::event_request(EVENT_TAG));
        if self.send_bare(queue, at).is_ok() {
            self.event = true;
            self.busy += 1;
        }
    }

    /// A work request of the send queue is done. Gives what is to be done then.
    fn sent(
        &mut self,
        done: Done<'_, Token>,
        stats: &LaneStats,
        after: &mut After,
    ) -> Option<Next> {
        match (done.token, done.status) {
            (Token::Bare(_), WcStatus::Success) => None,
            (Token::Enter(_, entry), WcStatus::Success) => {
                let cache = self.cache.as_mut()?;
                cache.registered(&entry, done.revocation.as_ref());
                None
            }
            (Token::Evict(evicted), WcStatus::Success) => {
                let cache = self.cache.as_mut()?;
                cache.evicted(evicted, done.revocation.as_ref(), stats);
                None
            }
            (Token::Pool(opening), WcStatus::Success) => {
                self.pool.opened(opening, true);
                None
            }
            (Token::Command(capsule), WcStatus::Success) => {
                let held = match capsule.payload {
                    Payload::InCapsule(mapped) => Held::Plain(self.unmap(mapped)),
                    Payload::Region(registration) => Held::Region(registration.done()),
                };
                let slot = self.slots.get_mut(usize::from(capsule.tag))?;
                match core::mem::replace(slot, Slot::Free) {
                    Slot::Posted {
                        answer: Some(answer),
                        ..
                    } => {
                        self.end_late();
                        let revoke = self.end(capsule.tag, held, answer, None, stats, after);
                        return revoke.map(Next::Revoke);
                    }
                    Slot::Posted { id, .. } => *slot = Slot::Sent { id, held },
                    // It cannot be, as the token has shown.
                    other => *slot = other,
                }
                None
            }
            (Token::Revoke(revoke), WcStatus::Success) => {
                let Revoke {
                    tag,
                    region,
                    answer,
                } = revoke;
                self.end_late();
                match self.reclaim(region, done.revocation.as_ref(), stats) {
                    Ok(request) => {
                        self.finish(tag, request, answer, stats, after);
                        None
                    }
                    // It cannot be, as the token has shown.
                    Err(region) => Some(Next::Revoke(Revoke {
                        tag,
                        region,
                        answer,
                    })),
                }
            }
            (Token::Register(tag, registration), WcStatus::Success) => {
                let slot = self.slots.get_mut(usize::from(tag))?;
                let Slot::Registering { id } = *slot else {
                    return None;
                };
                let held = Held::Region(registration.done());
                *slot = Slot::Sent { id, held };
                Some(Next::Send(tag))
            }
            (Token::Pool(opening), status) => {
                self.fail(Broken::Sending(status), after);
                self.pool.opened(opening, false);
                None
            }
            (token, status) => {
                self.fail(Broken::Sending(status), after);
                let tag = match &token {
                    Token::Command(capsule) => capsule.tag,
                    Token::Revoke(revoke) => revoke.tag,
                    Token::Register(tag, _) => *tag,
                    // What the cache has ends with it.
                    Token::Bare(_) | Token::Pool(_) | Token::Enter(..) | Token::Evict(_) => {
                        return None
                    }
                };
                if let Some(slot) = self.slots.get_mut(usize::from(tag)) {
                    *slot = Slot::stuck(token);
                }
                None
            }
        }
    }

    /// A command has its answer, and its SEND is done: its request ends, unless its region has to
    /// be revoked before, which is given then.
    fn end(
        &mut self,
        tag: u16,
        held: Held,
        answer: Answer,
        proof: Option<&Revocation<'_>>,
        stats: &LaneStats,
        after: &mut After,
    ) -> Option<Revoke> {
        let request = match held {
            Held::Plain(request) => request,
            Held::Cached(entry, request) => {
                if let Some(cache) = &mut self.cache {
                    if request.direction() == Direction::FromDevice {
                        cache.sync_for_cpu(entry);
                    }
                    cache.put(entry);
                }
                request
            }
            Held::Pooled(request) => {
                if wire::is_success(answer.status) {
                    stats.copies.add(1);
                    self.pool.deliver(tag, &request);
                }
                request
            }
            Held::Region(region) => {
                // It has ended, or its LOCAL_INV is posted now.
                self.owed = self.owed.saturating_sub(1);
                match self.reclaim(region, proof, stats) {
                    Ok(request) => request,
                    Err(region) => {
                        return Some(Revoke {
                            tag,
                            region,
                            answer,
                        })
                    }
                }
            }
        };
        self.finish(tag, request, answer, stats, after);
        None
    }

    /// Takes a region apart, if that is the proof that it was invalidated.
    fn reclaim(
        &mut self,
        region: RegisteredMr<MappedPages<Request>>,
        proof: Option<&Revocation<'_>>,
        stats: &LaneStats,
    ) -> core::result::Result<Request, RegisteredMr<MappedPages<Request>>> {
        let (region, mapped) = match proof {
            Some(proof) => region.reclaim(proof)?,
            None => return Err(region),
        };
        stats.invalidations.add(1);
        let _ = self.regions.push_within_capacity(region);
        Ok(self.unmap(mapped))
    }

    /// A command is over.
    fn finish(
        &mut self,
        tag: u16,
        request: Request,
        answer: Answer,
        stats: &LaneStats,
        after: &mut After,
    ) {
        if wire::is_success(answer.status) {
            stats.bytes.add(request.len() as u64);
            if self.admin {
                after.metadata = Metadata::of(&request).or(after.metadata);
            }
        }
        self.slots[usize::from(tag)] = Slot::Free;
        self.busy -= 1;
        after.ended.push(request, answer.status, answer.result);
    }

    /// Has a region invalidated.
    fn revoke(&mut self, queue: &mut Queue<Self>, revoke: Revoke, after: &mut After) {
        let tag = revoke.tag;
        let pushed = queue.qp.push(Token::Revoke(revoke), |token, wr| {
            let Token::Revoke(revoke) = token else {
                return Err(EINVAL);
            };
            wr.signaled();
            wr.local_inv(&revoke.region)
        });
        self.slots[usize::from(tag)] = match pushed {
            Ok(()) => {
                self.begin_late();
                Slot::Revoking
            }
            // There is room for one for each command, so the QP has failed.
            Err((_, token)) => {
                self.fail(Broken::Posting, after);
                Slot::stuck(token)
            }
        };
    }

    /// A receive is done.
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
        let mut bytes = [0; wire::COMPLETION];
        if len != bytes.len() as u32 || landing.memory.read(landing.at, &mut bytes).is_err() {
            return Err(Broken::Length(len));
        }
        if immediate {
            return Err(Broken::Immediate);
        }
        let completion = Completion::parse(&bytes);
        let revoke = match self.take_answered(&completion, key, after)? {
            Some((tag, held)) => {
                let proof = done.revocation.as_ref();
                self.end(tag, held, Answer::of(&completion), proof, stats, after)
            }
            None => None,
        };
        if let Some(revoke) = revoke {
            self.revoke(queue, revoke, after);
        }
        receive(queue, landing).map_err(|_| Broken::Posting)?;
        self.feed(queue);
        if self.event_due {
            self.send_event_request(queue);
        }
        Ok(())
    }

    /// The command that an answer is for, taken out of its slot if it can end.
    fn take_answered(
        &mut self,
        completion: &Completion,
        invalidated: Option<u32>,
        after: &mut After,
    ) -> core::result::Result<Option<(u16, Held)>, Broken> {
        let id = completion.command_id;
        let answer = Answer::of(completion);
        if self.admin && id == EVENT_TAG {
            if !core::mem::replace(&mut self.event, false) {
                return Err(Broken::Id(id));
            }
            self.busy -= 1;
            after.event = Some(answer);
            return match invalidated {
                Some(key) => Err(Broken::Key(key)),
                None => Ok(None),
            };
        }
        let tag = wire::tag_of(id);
        let slot = self.slots.get_mut(usize::from(tag));
        let slot = slot.ok_or(Broken::Id(id))?;
        let (under_way, own) = match slot {
            Slot::Posted {
                id, key, answer, ..
            } if answer.is_none() => (*id, *key),
            Slot::Sent { id, held } => (*id, held.key()),
            _ => return Err(Broken::Id(id)),
        };
        if under_way != id {
            return Err(Broken::Id(id));
        }
        if let Some(key) = invalidated.filter(|key| Some(*key) != own) {
            return Err(Broken::Key(key));
        }
        match core::mem::replace(slot, Slot::Free) {
            Slot::Sent { held, .. } => Ok(Some((tag, held))),
            _ => {
                *slot = Slot::Posted {
                    id,
                    key: own,
                    answer: Some(answer),
                };
                self.begin_late();
                Ok(None)
            }
        }
    }

    /// One more command waits for nothing but a work request.
    fn begin_late(&mut self) {
        if let Some(dues) = &mut self.dues {
            dues.add();
        }
    }

    /// One does not any more.
    fn end_late(&mut self) {
        if let Some(dues) = &mut self.dues {
            dues.sub();
        }
    }

    /// Whether there is room for one more command. If only the send queue has none, completions of
    /// SENDs are waited for from here on, as no answer may be left to come.
    fn finds_room(&mut self, queue: &Queue<Self>) -> bool {
        if self.busy >= self.room {
            return false;
        }
        let room = self.has_room(queue);
        if !room && !core::mem::replace(&mut self.starved, true) {
            if let Some(dues) = &mut self.dues {
                dues.add_and_kick();
            }
        }
        room
    }

    /// A place of the send queue may have come back.
    fn feed(&mut self, queue: &mut Queue<Self>) {
        if self.starved && self.has_room(queue) {
            self.starved = false;
            self.end_late();
            if self.event_due {
                self.send_event_request(queue);
            }
        }
    }

    /// Nothing more is to be done with the queue but to end it.
    fn fail(&mut self, broken: Broken, after: &mut After) {
        // The first reason is the one that says something.
        if !core::mem::replace(&mut self.broken, true) {
            after.broken = Some(broken);
        }
    }
}

impl Answer {
    fn of(completion: &Completion) -> Self {
        Self {
            status: completion.status,
            result: completion.result,
        }
    }
}

impl Payload {
    /// By which the controller reaches its data.
    fn key(&self) -> Option<u32> {
        match self {
            Payload::Region(registration) => Some(registration.key()),
            _ => None,
        }
    }
}

impl Held {
    fn key(&self) -> Option<u32> {
        match self {
            Held::Region(region) => Some(region.key()),
            // What has no key that is its own.
            Held::Plain(_) | Held::Pooled(_) | Held::Cached(..) => None,
        }
    }
}

impl Slot {
    /// Of what an error has left.
    fn stuck(token: Token) -> Self {
        Slot::Stuck(match token {
            Token::Command(capsule) => Stuck::Payload(capsule.payload),
            Token::Revoke(revoke) => Stuck::Held(Held::Region(revoke.region)),
            Token::Register(_, registration) => Stuck::Payload(Payload::Region(registration)),
            Token::Bare(_) | Token::Pool(_) | Token::Enter(..) | Token::Evict(_) => Stuck::Nothing,
        })
    }
}

/// A region for so many pages. Sleeps.
pub(crate) fn region(pd: &Arc<Pd>, pages: usize) -> Result<Mr> {
    Mr::new(pd, pages * kernel::page::PAGE_SIZE)
}

/// Posts a receive.
fn receive(queue: &mut Queue<Commands>, landing: Landing) -> Result {
    let posted = queue.qp.post_recv(landing, |landing, wr| {
        let end = landing.at + wire::COMPLETION;
        wr.sge(landing.memory.sge(landing.at..end)?)
    });
    posted.map_err(|(e, _)| e)
}

impl Service for Commands {
    type Send = Token;
    type Recv = Landing;
    /// Who is told of what ends the queue. It holds the controller, and goes with the queue.
    type Shared = Arc<Progress>;
    type After = After;

    const BROKEN: After = After {
        ended: Ended::new(),
        event: None,
        broken: Some(Broken::Posting),
        metadata: None,
    };

    fn completed(
        &mut self,
        queue: &mut Queue<Self>,
        wc: &mut Wc,
        stats: &LaneStats,
        after: &mut After,
    ) {
        if wc.route().recv {
            if let Err(broken) = self.received(queue, wc, stats, after) {
                self.fail(broken, after);
            }
            return;
        }
        while let Some(done) = queue.qp.take_send(wc) {
            match self.sent(done, stats, after) {
                Some(Next::Revoke(revoke)) => self.revoke(queue, revoke, after),
                Some(Next::Send(tag)) => self.send_registered(queue, tag, after),
                None => {}
            }
        }
        self.feed(queue);
    }

    fn after(progress: &Arc<Progress>, after: After) {
        let After {
            ended,
            event,
            broken,
            metadata,
        } = after;
        if let Some(metadata) = metadata {
            let ctrl = progress.ctrl();
            ctrl.data().has_metadata(ctrl, metadata);
        }
        drop(ended);
        if let Some(Answer { status, result }) = event {
            progress.ctrl().event(status, result);
        }
        if let Some(broken) = broken {
            progress.broke(&broken);
        }
    }
}
