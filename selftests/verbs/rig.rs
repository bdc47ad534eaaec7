// SPDX-License-Identifier: GPL-2.0

//! What the cases stand on: two ends of a connection, and tokens that are counted.

#![forbid(unsafe_code)]

use crate::{
    harness::{check, say, Fail, Outcome},
    kapi::{
        event::Event,
        time::{now_ns, MS},
    },
    verbs::{
        cm, cq, mr::Revocation, Access, Ah, Buffer, CmId, ConnParam, Cq, Device, Direction, Mapped,
        MappedPages, Members, Mr, NetNs, Pd, Qp, QpConfig, QpType, RegisteredMr, Registration,
        RejectReason, SendWr, SocketAddr, Srq, Wc, WcStatus,
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// The address of the device that the cases use.
pub(crate) const ADDRESS: &CStr = c"10.77.0.1";
/// Another address of it.
pub(crate) const ADDRESS6: &CStr = c"fd77::1";
/// How long anything may take, ms.
pub(crate) const PATIENCE: u32 = 10_000;

/// Where the cases run.
pub(crate) struct Rig {
    pub(crate) net: NetNs,
    pub(crate) device: Arc<Device>,
    next_port: Atomic<u32>,
}

impl Rig {
    /// Finds the device by its address.
    pub(crate) fn new() -> Result<Self> {
        let net = NetNs::current()?;
        let inbox = Inbox::new(Policy::Take)?;
        let mut id = CmId::new(&net, Ear(inbox))?;
        id.listen(SocketAddr::parse(&net, ADDRESS, 17_000)?, 1)?;
        let device = id.device()?;
        Ok(Self {
            net,
            device,
            next_port: Atomic::new(17_001),
        })
    }

    /// An address of the device with a port that was not used yet.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        self.address_of(ADDRESS)
    }

    /// `host` with the port that was given out last.
    pub(crate) fn same_port(&self, host: &CStr) -> Result<SocketAddr> {
        let port = self.next_port.load(Relaxed) - 1;
        SocketAddr::parse(&self.net, host, port as u16)
    }

    /// `host` with a port that was not used yet.
    pub(crate) fn address_of(&self, host: &CStr) -> Result<SocketAddr> {
        let port = self.next_port.fetch_add(1, Relaxed);
        SocketAddr::parse(&self.net, host, port as u16)
    }
}

/// Counts values that are alive.
pub(crate) struct Census(Arc<Atomic<i32>>);

impl Census {
    /// Nobody lives.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Arc::new(Atomic::new(0), GFP_KERNEL)?))
    }

    /// One more lives, as long as the value.
    pub(crate) fn birth(&self) -> Soul {
        self.0.fetch_add(1, Relaxed);
        Soul(self.0.clone())
    }

    /// How many live. Negative if one died twice.
    pub(crate) fn alive(&self) -> i32 {
        self.0.load(Relaxed)
    }
}

/// A value that is counted.
pub(crate) struct Soul(Arc<Atomic<i32>>);

impl Drop for Soul {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The token of the cases: whatever a work request may need.
#[derive(Default)]
pub(crate) struct Token {
    pub(crate) number: u32,
    pub(crate) memory: Option<Arc<Mapped>>,
    pub(crate) registration: Option<Registration>,
    pub(crate) region: Option<RegisteredMr>,
    /// Pages under a mapping, and a registration of such.
    pub(crate) pages: Option<KBox<MappedPages>>,
    pub(crate) paged: Option<KBox<Registration<MappedPages>>>,
    pub(crate) ah: Option<Arc<Ah>>,
    pub(crate) soul: Option<Soul>,
}

impl Token {
    /// Of a work request without memory.
    pub(crate) fn number(number: u32) -> Self {
        Self {
            number,
            ..Default::default()
        }
    }

    /// That holds `memory`.
    pub(crate) fn memory(memory: &Arc<Mapped>) -> Self {
        Self {
            memory: Some(memory.clone()),
            ..Default::default()
        }
    }

    /// The memory that it must hold.
    pub(crate) fn mem(&self) -> Result<&Mapped> {
        Ok(&**self.memory.as_ref().ok_or(EINVAL)?)
    }

    /// The registration that it must hold.
    pub(crate) fn reg(&self) -> Result<&Registration> {
        self.registration.as_ref().ok_or(EINVAL)
    }

    /// The registration of pages that it must hold.
    pub(crate) fn paged(&self) -> Result<&Registration<MappedPages>> {
        Ok(&**self.paged.as_ref().ok_or(EINVAL)?)
    }

    /// The address handle that it must hold.
    pub(crate) fn ah(&self) -> Result<&Ah> {
        Ok(&**self.ah.as_ref().ok_or(EINVAL)?)
    }
}

/// The QPs of the cases.
pub(crate) type TestQp = Qp<Token, Token>;

/// Memory of `len` bytes (rounded up to pages) for both directions.
pub(crate) fn memory(pd: &Arc<Pd>, len: usize) -> Result<Arc<Mapped>> {
    Ok(Arc::new(plain(pd, len)?, GFP_KERNEL)?)
}

/// The same, not shared.
pub(crate) fn plain(pd: &Arc<Pd>, len: usize) -> Result<Mapped> {
    Mapped::new(pd, Buffer::new(len, None)?, Direction::Bidirectional)
}

/// Fills `len` bytes at `offset` with a pattern that `seed` begins.
pub(crate) fn fill(memory: &Mapped, offset: usize, len: usize, seed: u8) -> Result {
    for at in 0..len {
        memory.write(offset + at, &[seed.wrapping_add((at % 251) as u8)])?;
    }
    Ok(())
}

/// Whether [`fill`] wrote that.
pub(crate) fn is_filled(memory: &Mapped, offset: usize, len: usize, seed: u8) -> Result<bool> {
    for at in 0..len {
        if memory.peek(offset + at)? != seed.wrapping_add((at % 251) as u8) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A QP for `depth` work requests in each direction.
pub(crate) fn config(qp_type: QpType, depth: u32) -> QpConfig {
    QpConfig {
        qp_type,
        max_send_wr: depth,
        max_recv_wr: depth,
        max_send_sge: 4,
        max_recv_sge: 4,
        batch: 16,
    }
}

/// The CQ's handler of the cases.
#[pin_data]
pub(crate) struct Bell {
    #[pin]
    event: Event,
    kicks: Atomic<u32>,
    failures: Atomic<u32>,
}

impl Bell {
    /// That did not ring yet.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                event <- Event::new(),
                kicks: Atomic::new(0),
                failures: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// How often it rang.
    pub(crate) fn kicks(&self) -> u32 {
        self.kicks.load(Relaxed)
    }

    /// How often the CQ failed.
    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Relaxed)
    }

    /// Waits for the next ring.
    pub(crate) fn wait(&self, ms: u32) -> bool {
        self.event.wait(ms)
    }
}

impl cq::Handler for Bell {
    fn kick(&self) {
        self.kicks.fetch_add(1, Relaxed);
        self.event.raise();
    }

    fn failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }
}

/// Waits without anybody to wait for.
pub(crate) fn pause(ms: u32) -> Result {
    Bell::new()?.wait(ms);
    Ok(())
}

/// What a handler of the CM has to tell.
#[derive(Default)]
pub(crate) enum News {
    /// None came in time.
    #[default]
    Nothing,
    AddrResolved,
    AddrError(i32),
    RouteResolved,
    RouteError(i32),
    Established(KVec<u8>),
    ConnectError(i32),
    Unreachable(i32),
    Rejected(RejectReason, KVec<u8>),
    Disconnected,
    DeviceRemoval,
    AddrChange,
    TimewaitExit,
    Request(KVec<u8>, CmId, Arc<Inbox>),
    /// A request was dealt with in the handler.
    Refused,
}

impl News {
    fn name(&self) -> &'static str {
        match self {
            News::Nothing => "nothing",
            News::AddrResolved => "address resolved",
            News::AddrError(_) => "address error",
            News::RouteResolved => "route resolved",
            News::RouteError(_) => "route error",
            News::Established(_) => "established",
            News::ConnectError(_) => "connect error",
            News::Unreachable(_) => "unreachable",
            News::Rejected(..) => "rejected",
            News::Disconnected => "disconnected",
            News::DeviceRemoval => "device removal",
            News::AddrChange => "address change",
            News::TimewaitExit => "timewait exit",
            News::Request(..) => "request",
            News::Refused => "refused",
        }
    }

    /// The failure that these are not the news that the case waits for.
    #[track_caller]
    pub(crate) fn unexpected(&self) -> Fail {
        let code = match self {
            News::AddrError(e)
            | News::RouteError(e)
            | News::ConnectError(e)
            | News::Unreachable(e) => *e,
            _ => 0,
        };
        say!("# unexpected news of the CM: {} ({})", self.name(), code);
        Fail::check("other news")
    }
}

/// What a handler does with requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Takes them and puts them into the inbox.
    Take,
    /// Drops them.
    Drop,
    /// Takes them and drops what it got.
    TakeAndDrop,
    /// Drops the listener in its own handler, and takes the request.
    DropListenerAndTake,
    /// Drops the listener in its own handler, and the request with it.
    DropListener,
    /// Takes them, makes a QP, and drops both.
    QpAndDrop,
    /// Refuses them with private data.
    Reject,
}

/// Where handlers put their news.
#[pin_data]
pub(crate) struct Inbox {
    #[pin]
    event: Event,
    #[pin]
    news: Mutex<KVec<News>>,
    policy: Policy,
    /// Dropped by the handler at the next event, inside of it.
    #[pin]
    own: Mutex<Option<CmId>>,
    /// Lost news, for want of memory.
    lost: Atomic<u32>,
}

impl Inbox {
    /// An empty one.
    pub(crate) fn new(policy: Policy) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                event <- Event::new(),
                news <- new_mutex!(KVec::new()),
                policy,
                own <- new_mutex!(None),
                lost: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Makes the handler drop `id` at its next event. If none comes, the guard does: an id that
    /// its own handler owns would live forever.
    pub(crate) fn own(self: &Arc<Self>, id: CmId) -> Owned {
        *self.own.lock() = Some(id);
        Owned(self.clone())
    }

    /// Whether the handler has dropped it.
    pub(crate) fn owns(&self) -> bool {
        self.own.lock().is_some()
    }

    /// What came first and was not taken yet.
    pub(crate) fn next(&self, ms: u32) -> News {
        let end = now_ns() + u64::from(ms) * MS;
        loop {
            let first = {
                let mut news = self.news.lock();
                if news.is_empty() {
                    None
                } else {
                    news.remove(0).ok()
                }
            };
            if let Some(first) = first {
                return first;
            }
            if now_ns() >= end {
                return News::Nothing;
            }
            self.event.wait(50);
        }
    }

    fn put(&self, news: News) {
        if self.news.lock().push(news, GFP_KERNEL).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
        self.event.raise();
    }

    fn drop_own(&self) -> bool {
        let own = self.own.lock().take();
        own.is_some()
    }
}

/// See [`Inbox::own`].
pub(crate) struct Owned(Arc<Inbox>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.drop_own();
    }
}

/// The CM's handler of the cases.
pub(crate) struct Ear(pub(crate) Arc<Inbox>);

fn copy(data: &[u8]) -> KVec<u8> {
    let mut copy = KVec::new();
    // Short data fails the case.
    let _ = copy.extend_from_slice(data, GFP_KERNEL);
    copy
}

impl cm::Handler for Ear {
    fn event(&self, event: cm::Event<'_>) {
        let news = match event {
            cm::Event::AddrResolved => News::AddrResolved,
            cm::Event::AddrError(e) => News::AddrError(e.to_errno()),
            cm::Event::RouteResolved => News::RouteResolved,
            cm::Event::RouteError(e) => News::RouteError(e.to_errno()),
            cm::Event::Established(data) => News::Established(copy(data)),
            cm::Event::ConnectError(e) => News::ConnectError(e.to_errno()),
            cm::Event::Unreachable(e) => News::Unreachable(e.to_errno()),
            cm::Event::Rejected(reason, data) => News::Rejected(reason, copy(data)),
            cm::Event::Disconnected => News::Disconnected,
            cm::Event::DeviceRemoval => News::DeviceRemoval,
            cm::Event::AddrChange => News::AddrChange,
            cm::Event::TimewaitExit => News::TimewaitExit,
        };
        let inbox = self.0.clone();
        inbox.drop_own();
        inbox.put(news);
    }

    fn request(&self, request: cm::Request<'_>) {
        let listener = self.0.clone();
        let data = copy(request.private_data());
        match listener.policy {
            // Its end refuses.
            Policy::Drop => {}
            Policy::Reject => request.reject(b"not today"),
            Policy::DropListener => {
                listener.drop_own();
            }
            Policy::Take
            | Policy::TakeAndDrop
            | Policy::QpAndDrop
            | Policy::DropListenerAndTake => {
                if listener.policy == Policy::DropListenerAndTake {
                    listener.drop_own();
                }
                let Ok(inbox) = Inbox::new(Policy::Drop) else {
                    return;
                };
                let Ok(id) = request.take(Ear(inbox.clone())) else {
                    return;
                };
                match listener.policy {
                    Policy::TakeAndDrop => drop(id),
                    Policy::QpAndDrop => {
                        let made = qp_on(&id);
                        // The QP keeps the id for a moment longer.
                        drop(id);
                        if made.is_err() {
                            return listener.put(News::Nothing);
                        }
                    }
                    _ => return listener.put(News::Request(data, id, inbox)),
                }
            }
        }
        listener.put(News::Refused);
    }
}

fn qp_on(id: &CmId) -> Result<TestQp> {
    let device = id.device()?;
    let pd = Pd::new(&device)?;
    let cq = Cq::new(&device, 16, 0, Bell::new()?)?;
    Qp::new_cm(id, &pd, &cq, &cq, None, config(QpType::Rc, 4))
}

/// A completed work request of a case.
pub(crate) struct Seen {
    pub(crate) recv: bool,
    pub(crate) token: Token,
    pub(crate) status: WcStatus,
    pub(crate) len: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) src_qp: u32,
    /// It gave a proof of what became of registrations.
    pub(crate) proof: bool,
    /// What the proof gave back: of the token's region or registration, or of [`End::lent`].
    pub(crate) back: Option<(Mr, Mapped)>,
    /// The same of [`Token::paged`].
    pub(crate) back_paged: Option<KBox<(Mr, MappedPages)>>,
}

/// One end: a QP and all that it needs. Fields are dropped in order.
pub(crate) struct End {
    pub(crate) qp: TestQp,
    pub(crate) id: Option<CmId>,
    pub(crate) inbox: Arc<Inbox>,
    /// Completions that were taken.
    pub(crate) seen: KVec<Seen>,
    /// Completions that belong to nobody.
    pub(crate) stale: u32,
    /// A region that the peer may invalidate.
    pub(crate) lent: Option<RegisteredMr>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) pd: Arc<Pd>,
}

impl End {
    /// Takes what is in the CQ.
    #[inline(never)]
    pub(crate) fn pump(&mut self) -> Result<usize> {
        let mut wcs = [const { Wc::EMPTY }; 16];
        let wcs = self.cq.poll(&mut wcs)?;
        let n = wcs.len();
        for wc in wcs {
            if !take(&mut self.qp, wc, &mut self.lent, &mut self.seen)? {
                self.stale += 1;
            }
        }
        Ok(n)
    }

    /// The CM id that it must be on.
    pub(crate) fn id(&mut self) -> Result<&mut CmId> {
        self.id.as_mut().ok_or(EIO)
    }

    /// Polls until `n` completions were taken and returns all of them.
    pub(crate) fn wait(&mut self, n: usize) -> Outcome<KVec<Seen>> {
        self.poll_until(PATIENCE, |end| end.seen.len() >= n)?;
        check!(self.seen.len() >= n);
        Ok(core::mem::take(&mut self.seen))
    }

    /// Waits for the one completion that there must be.
    pub(crate) fn one(&mut self) -> Outcome<Seen> {
        let mut seen = self.wait(1)?;
        check!(seen.len() == 1);
        Ok(seen.pop().ok_or(EIO)?)
    }

    /// Waits for one completion, which must be a success.
    pub(crate) fn success(&mut self) -> Outcome<Seen> {
        let seen = self.one()?;
        if seen.status != WcStatus::Success {
            say!("# completion: {}", seen.status);
        }
        check!(seen.status == WcStatus::Success);
        Ok(seen)
    }

    /// Polls until `done` or `ms` went by.
    pub(crate) fn poll_until(&mut self, ms: u32, done: impl Fn(&Self) -> bool) -> Result {
        let end = now_ns() + u64::from(ms) * MS;
        while !done(self) && now_ns() < end {
            if self.pump()? == 0 && !self.cq.arm() {
                self.bell.wait(20);
            }
        }
        Ok(())
    }

    /// Posts one work request.
    pub(crate) fn post<F>(&mut self, token: Token, build: F) -> Outcome
    where
        F: for<'t> FnOnce(&'t Token, &mut SendWr<'_, 't>) -> Result,
    {
        self.qp.push(token, build)?;
        Ok(self.qp.flush()?)
    }

    /// Posts one chain.
    pub(crate) fn post_chain<F>(&mut self, token: Token, build: F) -> Outcome
    where
        F: for<'t> FnOnce(&'t Token, &mut Members<'_, 't>) -> Result,
    {
        self.qp.push_chain(token, build)?;
        Ok(self.qp.flush()?)
    }

    /// Posts a receive into `len` bytes at `offset` of `memory`.
    pub(crate) fn recv(&mut self, memory: &Arc<Mapped>, offset: usize, len: usize) -> Outcome {
        let token = Token::memory(memory);
        self.qp.post_recv(token, |token, wr| {
            wr.sge(token.mem()?.sge(offset..offset + len)?)
        })?;
        Ok(self.qp.flush_recv()?)
    }

    /// Registers `memory` for the peer.
    pub(crate) fn register(
        &mut self,
        mr: Mr,
        memory: Mapped,
        access: Access,
    ) -> Outcome<RegisteredMr> {
        let registration = mr.register(memory, access)?;
        let token = Token {
            registration: Some(registration),
            ..Default::default()
        };
        self.post(token, |token, wr| {
            wr.signaled();
            wr.reg_mr(token.registration.as_ref().ok_or(EINVAL)?)
        })?;
        let mut seen = self.success()?;
        Ok(seen.token.registration.take().ok_or(EIO)?.done())
    }

    /// A registered region of `len` bytes.
    pub(crate) fn region(&mut self, len: usize, access: Access) -> Outcome<RegisteredMr> {
        let mr = Mr::new(&self.pd, len)?;
        let memory = plain(&self.pd, len)?;
        self.register(mr, memory, access)
    }

    /// Ends a registration; what comes back is in [`Seen::back`].
    pub(crate) fn invalidate(&mut self, region: RegisteredMr) -> Outcome<Seen> {
        let token = Token {
            region: Some(region),
            ..Default::default()
        };
        self.post(token, |token, wr| {
            wr.signaled();
            wr.local_inv(token.region.as_ref().ok_or(EINVAL)?)
        })?;
        self.one()
    }

    /// Flushes the QP and takes everything back.
    pub(crate) fn drain(&mut self) -> Outcome {
        self.qp.enter_error()?;
        self.poll_until(PATIENCE, |end| end.qp.outstanding() == 0)?;
        check!(self.qp.outstanding() == 0);
        Ok(())
    }
}

type Paged = KBox<Registration<MappedPages>>;

/// What the proof gives back, or else the registration. Of its own: stacks are short here.
#[inline(never)]
fn reclaim_paged(
    paged: Paged,
    proof: &Revocation<'_>,
) -> (Option<KBox<(Mr, MappedPages)>>, Option<Paged>) {
    match KBox::into_inner(paged).reclaim(proof) {
        Ok(parts) => (KBox::new(parts, GFP_KERNEL).ok(), None),
        Err(paged) => (None, KBox::new(paged, GFP_KERNEL).ok()),
    }
}

/// Gives a completion to a QP; whether it was of that QP.
pub(crate) fn take(
    qp: &mut TestQp,
    wc: &mut Wc,
    lent: &mut Option<RegisteredMr>,
    seen: &mut KVec<Seen>,
) -> Result<bool> {
    let (len, imm, invalidated) = (wc.byte_len(), wc.imm(), wc.invalidated());
    let src_qp = wc.src_qp();
    let mut mine = false;
    while let Some(done) = qp.take_send(wc) {
        mine = true;
        let mut token = done.token;
        let proof = done.revocation.is_some();
        let mut back_paged = None;
        let back = done.revocation.and_then(|proof| {
            if let Some(paged) = token.paged.take() {
                (back_paged, token.paged) = reclaim_paged(paged, &proof);
            }
            if let Some(region) = token.region.take() {
                return region
                    .reclaim(&proof)
                    .map_err(|region| token.region = Some(region))
                    .ok();
            }
            let registration = token.registration.take()?;
            registration
                .reclaim(&proof)
                .map_err(|registration| token.registration = Some(registration))
                .ok()
        });
        let done = Seen {
            recv: false,
            token,
            status: done.status,
            len,
            imm: None,
            invalidated: None,
            src_qp,
            proof,
            back,
            back_paged,
        };
        seen.push(done, GFP_KERNEL)?;
    }
    if let Some(done) = qp.take_recv(wc) {
        mine = true;
        let proof = done.revocation.is_some();
        let back = done.revocation.and_then(|proof| {
            let region = lent.take()?;
            region
                .reclaim(&proof)
                .map_err(|region| *lent = Some(region))
                .ok()
        });
        let done = Seen {
            recv: true,
            token: done.token,
            status: done.status,
            len,
            imm,
            invalidated,
            src_qp,
            proof,
            back,
            back_paged: None,
        };
        seen.push(done, GFP_KERNEL)?;
    }
    Ok(mine)
}

/// How a connection is made.
pub(crate) struct Setup {
    pub(crate) host: &'static CStr,
    /// Of the connecting end.
    pub(crate) a: QpConfig,
    /// Of the accepting end.
    pub(crate) b: QpConfig,
    /// Of the accepting end, instead of receives of its own.
    pub(crate) srq: Option<(Arc<Pd>, Arc<Srq<Token>>)>,
    /// Entries of the CQ; 0 for what the QP needs.
    pub(crate) entries: u32,
}

impl Setup {
    /// RC with `depth` work requests in each direction.
    pub(crate) fn rc(depth: u32) -> Self {
        Self {
            host: ADDRESS,
            a: config(QpType::Rc, depth),
            b: config(QpType::Rc, depth),
            srq: None,
            entries: 0,
        }
    }
}

/// What each end sends when it connects.
pub(crate) const HELLO: &[u8] = b"hello from a";
/// What the other answers.
pub(crate) const ANSWER: &[u8] = b"answer of b";

/// Two connected ends.
pub(crate) struct Pair {
    pub(crate) a: KBox<End>,
    pub(crate) b: KBox<End>,
    /// Private data that b saw.
    pub(crate) hello: KVec<u8>,
    /// Private data that a saw.
    pub(crate) answer: KVec<u8>,
}

/// Waits for news of one kind, or fails the case.
macro_rules! hear {
    ($inbox:expr, $pattern:pat => $value:expr) => {
        match $inbox.next($crate::rig::PATIENCE) {
            $pattern => $value,
            other => return Err(other.unexpected()),
        }
    };
    ($inbox:expr, $pattern:pat) => {
        hear!($inbox, $pattern => ())
    };
}
pub(crate) use hear;

/// An id whose route to `to` is known.
pub(crate) fn resolved(rig: &Rig, to: &SocketAddr) -> Outcome<(CmId, Arc<Inbox>)> {
    let inbox = Inbox::new(Policy::Drop)?;
    let mut id = CmId::new(&rig.net, Ear(inbox.clone()))?;
    id.resolve_addr(None, to, 2000)?;
    hear!(inbox, News::AddrResolved);
    id.resolve_route(2000)?;
    hear!(inbox, News::RouteResolved);
    Ok((id, inbox))
}

/// A listener.
pub(crate) fn listener(rig: &Rig, at: SocketAddr, policy: Policy) -> Outcome<(CmId, Arc<Inbox>)> {
    let inbox = Inbox::new(policy)?;
    let mut id = CmId::new(&rig.net, Ear(inbox.clone()))?;
    id.listen(at, 8)?;
    Ok((id, inbox))
}

/// What a QP reserves on its CQ: its work requests, the marker behind them, and `recvs`.
pub(crate) fn completions(config: &QpConfig, recvs: u32) -> u32 {
    config.max_send_wr + 1 + recvs
}

/// Puts an end into a box: stacks are short here.
#[inline(never)]
fn boxed(
    qp: TestQp,
    id: Option<CmId>,
    inbox: Arc<Inbox>,
    cq: Arc<Cq>,
    bell: Arc<Bell>,
    pd: Arc<Pd>,
) -> Outcome<KBox<End>> {
    let end = End {
        qp,
        id,
        inbox,
        seen: KVec::new(),
        stale: 0,
        lent: None,
        cq,
        bell,
        pd,
    };
    Ok(KBox::new(end, GFP_KERNEL)?)
}

/// An end on `id`, not connected yet.
#[inline(never)]
pub(crate) fn end(
    id: CmId,
    inbox: Arc<Inbox>,
    pd: Arc<Pd>,
    srq: Option<&Arc<Srq<Token>>>,
    config: QpConfig,
    entries: u32,
) -> Outcome<KBox<End>> {
    let bell = Bell::new()?;
    let recvs = srq.map_or(config.max_recv_wr, |srq| srq.capacity());
    let entries = if entries == 0 {
        completions(&config, recvs)
    } else {
        entries
    };
    let cq = Cq::new(pd.device(), entries, 0, bell.clone())?;
    let qp = Qp::new_cm(&id, &pd, &cq, &cq, srq, config)?;
    boxed(qp, Some(id), inbox, cq, bell, pd)
}

/// What both ends ask of the connection.
pub(crate) fn param(private_data: &[u8]) -> ConnParam<'_> {
    ConnParam {
        private_data,
        responder_resources: 16,
        initiator_depth: 16,
    }
}

/// Connects two ends.
#[inline(never)]
pub(crate) fn connect(rig: &Rig, setup: Setup) -> Outcome<Pair> {
    let to = rig.address_of(setup.host)?;
    let (_listener, door) = listener(rig, to, Policy::Take)?;
    let (id, inbox) = resolved(rig, &to)?;
    let device = id.device()?;
    let mut a = end(id, inbox, Pd::new(&device)?, None, setup.a, setup.entries)?;
    a.id()?.connect(&param(HELLO))?;
    let (hello, id, inbox) = hear!(door, News::Request(data, id, inbox) => (data, id, inbox));
    let (pd, srq) = match setup.srq {
        Some((pd, srq)) => (pd, Some(srq)),
        None => (Pd::new(&device)?, None),
    };
    let mut b = end(id, inbox, pd, srq.as_ref(), setup.b, setup.entries)?;
    b.id()?.accept(&param(ANSWER))?;
    let answer = hear!(a.inbox, News::Established(data) => data);
    hear!(b.inbox, News::Established(_));
    Ok(Pair {
        a,
        b,
        hello,
        answer,
    })
}

/// Connects two ends with QPs of 16 work requests.
pub(crate) fn pair(rig: &Rig) -> Outcome<Pair> {
    connect(rig, Setup::rc(16))
}

/// UC or UD ends without a CM: two QPs in one PD on one CQ each.
#[inline(never)]
pub(crate) fn loose(pd: &Arc<Pd>, config: QpConfig) -> Outcome<KBox<End>> {
    let bell = Bell::new()?;
    let entries = completions(&config, config.max_recv_wr);
    let cq = Cq::new(pd.device(), entries, 0, bell.clone())?;
    let qp = Qp::new(pd, &cq, &cq, None, 1, config)?;
    boxed(qp, None, Inbox::new(Policy::Drop)?, cq, bell, pd.clone())
}
