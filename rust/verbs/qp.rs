// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! # Posting and completing
//!
//! [`Qp::push`] stages a work request together with a token, which owns the memory that the
//! request names; [`Qp::push_chain`] stages several with one. [`Qp::flush`] posts what is staged
//! with one doorbell. The tokens stand in a ring in the order of posting. A completion of the send
//! queue says that everything up to its work request is done, so [`Qp::take_send`] gives the
//! tokens of the unsignalled ones before it as well; on an error each work request has a
//! completion of its own (IBA vol. 1, 10.8.5.1), so none is taken for done that is not. Receives
//! complete one by one ([`Qp::take_recv`]).
//!
//! The QP belongs to one owner (`&mut self`), so posting takes no lock of ours.
//!
//! # The send queue cannot overflow
//!
//! `push` refuses with `EAGAIN` when the ring is full, and signals by itself when half of the
//! queue went by without a signal; so a full ring always holds a work request whose completion
//! frees it.
//!
//! # The end
//!
//! [`Qp::enter_error`] flushes what is outstanding; the owner polls until [`Qp::outstanding`] is
//! zero or it has waited long enough. What was unsignalled and has succeeded before that has no
//! completion of its own, so a marker is posted behind it, which is flushed as well. Dropping
//! destroys the QP first: after `ib_destroy_qp` the HCA touches none of its memory, and only then
//! the tokens go. Completions of a destroyed QP that are still in the CQ are recognised by their
//! key and dropped by whoever polls.
//!
//! C header: `include/rdma/ib_verbs.h`

use super::{
    caps::Access,
    cm::IdRef,
    recv_queue::RecvQueue,
    send_queue::{Members, SendMemory, SendQueue},
    wc::Done,
    wr::{Limits, RecvWr},
    Ah, CmId, Cq, Path, Pd, QpType, SendWr, Srq, Wc,
};
use crate::{
    kapi::trace::{self, QpState},
    sys,
};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    error::{from_err_ptr, to_result},
    ffi::c_void,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Gives each QP and SRQ a key of its own.
static LAST_KEY: Atomic<u32> = Atomic::new(0);

/// A key that no other QP or SRQ of this module has.
pub(super) fn new_key() -> u32 {
    LAST_KEY.fetch_add(1, Relaxed).wrapping_add(1)
}

/// What a QP is made of.
#[derive(Clone, Copy)]
pub(crate) struct QpConfig {
    /// Transport.
    pub(crate) qp_type: QpType,
    /// Work requests that the send queue holds.
    pub(crate) max_send_wr: u32,
    /// Receives that the receive queue holds; without meaning with an SRQ.
    pub(crate) max_recv_wr: u32,
    /// SGEs of a work request on the send queue.
    pub(crate) max_send_sge: u32,
    /// SGEs of a receive.
    pub(crate) max_recv_sge: u32,
    /// Work requests that one doorbell posts at most.
    pub(crate) batch: u32,
}

/// What the core has as the QP's context. Outlives the QP in C.
#[pin_data]
struct Events {
    key: u32,
    failed: Atomic<bool>,
    /// For `rdma_notify`; null for a QP without a CM id.
    id: *mut sys::rdma_cm_id,
    /// The device calls it fatal when a connection ends ([`super::caps::Caps::overtakes`]): what was
    /// outstanding is flushed, and the CM tells.
    ends_fatally: bool,
    /// The QP, as long as it is there.
    #[pin]
    raw: Mutex<Option<NonNull<sys::ib_qp>>>,
}

// SAFETY: An atomic, a pointer that only the event handler follows, as long as there is a QP, and a
// QP, which may be used from any thread.
unsafe impl Send for Events {}
// SAFETY: As above.
unsafe impl Sync for Events {}

/// How a QP is doing, for others than its owner. Outlives the QP.
pub(crate) struct QpHealth(Arc<Events>);

impl QpHealth {
    /// Whether the device reported a fatal event. Any context.
    pub(crate) fn has_failed(&self) -> bool {
        self.0.failed.load(Relaxed)
    }

    /// Moves the QP to error, if it is still there, as [`CmId::disconnect`] does on InfiniBand and
    /// RoCE, but not on iWARP. Its owner has to [`Qp::mark_end`] then. Sleeps.
    pub(crate) fn enter_error(&self) -> Result {
        let raw = self.0.raw.lock();
        let Some(raw) = *raw else { return Ok(()) };
        let mut attr = sys::ib_qp_attr {
            qp_state: sys::ib_qp_state_IB_QPS_ERR,
            ..Default::default()
        };
        let mask = sys::ib_qp_attr_mask_IB_QP_STATE as i32;
        // SAFETY: The QP's drop takes the pointer away, under the lock that is held, before it
        // destroys the QP; the core and the driver take care of who else uses it.
        to_result(unsafe { sys::ib_modify_qp(raw.as_ptr(), &mut attr, mask) })
    }
}

/// What a QP has posted since it was made.
#[derive(Clone, Copy, Default)]
pub(crate) struct QpCounts {
    /// Work requests on the send queue.
    pub(crate) posts: u64,
    /// Doorbells, of both queues.
    pub(crate) doorbells: u64,
    /// Of these, those of the receive queue.
    pub(crate) recv_doorbells: u64,
    /// Work requests that asked for a completion.
    pub(crate) signaled: u64,
}

impl QpCounts {
    /// Adds those of another QP.
    pub(crate) fn add(&mut self, other: &Self) {
        self.posts += other.posts;
        self.doorbells += other.doorbells;
        self.recv_doorbells += other.recv_doorbells;
        self.signaled += other.signaled;
    }
}

/// Who destroys the QP, and what it was made with.
enum Backing {
    /// `ib_destroy_qp`.
    Plain,
    /// `rdma_destroy_qp`, on the id that it was made on.
    Cm(IdRef),
}

/// A queue pair whose send queue keeps tokens of type `S` and whose receive queue keeps tokens of
/// type `R`. Tokens borrow nothing: a QP that is forgotten instead of dropped goes on using their
/// memory.
///
/// # Invariants
///
/// * `raw` is a QP of `pd` on `send_cq` and `recv_cq` that nobody else destroys, with `events` as
///   its context.
/// * `sends` and `recvs` are only used for this QP; they own what its work requests name.
pub(crate) struct Qp<S: 'static, R: 'static> {
    raw: NonNull<sys::ib_qp>,
    key: u32,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    #[allow(dead_code)]
    srq: Option<Arc<Srq<R>>>,
    config: QpConfig,
    /// Dropped once the QP is gone.
    events: ManuallyDrop<Arc<Events>>,
    /// The destination of a UD QP's marker.
    marker_ah: Option<Ah>,
    backing: Backing,
    sends: SendQueue<S>,
    recvs: RecvQueue<R>,
}

// SAFETY: The C object may be used from any thread; tokens are `Send` by the bound, and the raw
// pointers lead into allocations that belong to this object.
unsafe impl<S: Send, R: Send> Send for Qp<S, R> {}

impl<S: 'static, R: 'static> Qp<S, R> {
    /// Makes a QP that the owner connects by hand ([`Qp::connect_uc`], [`Qp::ready_ud`]). Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for numbers beyond the device's limits or CQs of another device, `EOPNOTSUPP` for a
    /// transport that it does not have, `ENOSPC` if the CQs have no room for all of its completions.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        srq: Option<&Arc<Srq<R>>>,
        port: u32,
        config: QpConfig,
    ) -> Result<Self> {
        Self::create(pd, send_cq, recv_cq, srq, port, config, None)
    }

    /// Makes an RC QP on a CM id that is bound to the device of `pd`; the CM connects it. Sleeps.
    ///
    /// # Errors
    ///
    /// As [`Qp::new`]; `EBUSY` if the id has a QP.
    pub(crate) fn new_cm(
        id: &CmId,
        pd: &Arc<Pd>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        srq: Option<&Arc<Srq<R>>>,
        config: QpConfig,
    ) -> Result<Self> {
        if config.qp_type != QpType::Rc || !Arc::ptr_eq(&id.device()?, pd.device()) {
            return Err(EINVAL);
        }
        Self::create(pd, send_cq, recv_cq, srq, id.port(), config, Some(id))
    }

    fn create(
        pd: &Arc<Pd>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        srq: Option<&Arc<Srq<R>>>,
        port: u32,
        config: QpConfig,
        id: Option<&CmId>,
    ) -> Result<Self> {
        let device = pd.device();
        let caps = device.caps();
        caps.check_transport(config.qp_type)?;
        if config.max_send_wr < 2
            || config.max_send_wr >= caps.max_qp_wr
            || config.max_recv_wr > caps.max_qp_wr
            || config.max_send_sge > caps.max_send_sge
            || config.max_recv_sge > caps.max_recv_sge
            || config.batch == 0
            || !Arc::ptr_eq(device, send_cq.device())
            || !Arc::ptr_eq(device, recv_cq.device())
            || srq.is_some_and(|srq| !Arc::ptr_eq(srq.pd(), pd))
        {
            return Err(EINVAL);
        }
        let recv_wr = if srq.is_some() { 0 } else { config.max_recv_wr };

        // All memory first, so that nothing fails once the QP is there.
        let memory = SendMemory::new(config.max_send_wr, config.batch, config.max_send_sge)?;
        let recvs = RecvQueue::new(recv_wr, config.batch, config.max_recv_sge, caps)?;
        let max_message = device.port(port)?.max_message;
        let key = new_key();
        let events = Arc::pin_init(
            pin_init!(Events {
                key,
                failed: Atomic::new(false),
                id: id.map_or(core::ptr::null_mut(), CmId::as_raw),
                ends_fatally: caps.overtakes,
                raw <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )?;

        // One more than the owner posts, for the marker.
        let send_room = config.max_send_wr + 1;
        send_cq.reserve(send_room)?;
        // A QP on an SRQ completes on its CQ at most what the SRQ holds.
        let recv_room = srq.map_or(recv_wr, |srq| srq.capacity());
        if let Err(e) = recv_cq.reserve(recv_room) {
            send_cq.release(send_room);
            return Err(e);
        }

        let mut init = sys::ib_qp_init_attr {
            event_handler: Some(on_event),
            qp_context: Arc::as_ptr(&events).cast_mut().cast(),
            send_cq: send_cq.as_raw(),
            recv_cq: recv_cq.as_raw(),
            srq: srq.map_or(core::ptr::null_mut(), |srq| srq.as_raw()),
            cap: sys::ib_qp_cap {
                max_send_wr: send_room,
                max_recv_wr: recv_wr,
                max_send_sge: config.max_send_sge,
                max_recv_sge: config.max_recv_sge,
                ..Default::default()
            },
            sq_sig_type: sys::ib_sig_type_IB_SIGNAL_REQ_WR,
            qp_type: config.qp_type.as_raw(),
            ..Default::default()
        };
        let made = match id {
            // SAFETY: PD, CQs, SRQ and context are valid and kept alive by the object below.
            None => from_err_ptr(unsafe {
                sys::ib_create_qp_kernel(pd.as_raw(), &mut init, c"rivet".as_char_ptr())
            })
            .map(|raw| (raw, Backing::Plain)),
            Some(id) => {
                let id = id.reference();
                id.take_qp_place().and_then(|()| {
                    // SAFETY: As above; the id is bound to the same device and kept by `IdRef`, and
                    // has no other QP.
                    to_result(unsafe { sys::rdma_create_qp(id.as_raw(), pd.as_raw(), &mut init) })
                        .inspect_err(|_| id.free_qp_place())?;
                    // SAFETY: `rdma_create_qp` has set it.
                    Ok((unsafe { (*id.as_raw()).qp }, Backing::Cm(id)))
                })
            }
        };
        let made = made.and_then(|(raw, backing)| Ok((NonNull::new(raw).ok_or(ENOMEM)?, backing)));
        let (raw, backing) = match made {
            Ok(made) => made,
            Err(e) => {
                send_cq.release(send_room);
                recv_cq.release(recv_room);
                return Err(e);
            }
        };
        let limits = Limits {
            qp_type: config.qp_type,
            caps: caps.clone(),
            max_sge: config.max_send_sge,
            max_message,
        };
        *events.raw.lock() = Some(raw);
        // INVARIANT: Made just now; the queues are new, too.
        let qp = Self {
            raw,
            key,
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: srq.cloned(),
            sends: SendQueue::new(raw, key, pd.clone(), limits, config.max_send_wr, memory),
            recvs,
            config,
            events: ManuallyDrop::new(events),
            marker_ah: None,
            backing,
        };
        qp.tell(QpState::Made);
        Ok(qp)
    }

    pub(super) fn as_raw(&self) -> *mut sys::ib_qp {
        self.raw.as_ptr()
    }

    /// The key that its completions carry ([`Route::key`]).
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The QP number, by which the peer reaches it.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: The QP is valid, and the field never changes.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Has the tracepoint say what becomes of it.
    fn tell(&self, state: QpState) {
        trace::qp(self.key, self.number(), state as u32);
    }

    /// The PD whose memory its work requests may use.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Tells whether the device reported a fatal event for it, also to who has no access to it.
    pub(crate) fn health(&self) -> QpHealth {
        QpHealth((*self.events).clone())
    }

    /// Whether the device reported a fatal event for it.
    pub(crate) fn has_failed(&self) -> bool {
        self.events.failed.load(Relaxed)
    }

    /// Work requests and receives that are posted and not completed.
    pub(crate) fn outstanding(&self) -> u32 {
        self.sends.outstanding() + self.recvs.outstanding()
    }

    /// Work requests that can be pushed before completions must come.
    pub(crate) fn send_room(&self) -> u32 {
        self.sends.room()
    }

    /// Receives that can be posted.
    pub(crate) fn recv_room(&self) -> u32 {
        self.recvs.room()
    }

    /// Receives that are staged and not posted.
    pub(crate) fn recv_staged(&self) -> u32 {
        self.recvs.staged()
    }

    /// What it has posted so far.
    pub(crate) fn counts(&self) -> QpCounts {
        let (posts, doorbells, signaled) = self.sends.counts();
        let recv_doorbells = self.recvs.doorbells();
        QpCounts {
            posts,
            doorbells: doorbells + recv_doorbells,
            recv_doorbells,
            signaled,
        }
    }

    /// Moves the QP along; `mask` names what `attr` sets.
    fn modify(&mut self, attr: &mut sys::ib_qp_attr, mask: u32) -> Result {
        // SAFETY: The QP is valid; the core checks the transition and the attributes.
        to_result(unsafe { sys::ib_modify_qp(self.as_raw(), attr, mask as i32) })
    }

    /// Connects a UC QP by hand: to QP `qpn` at the far end of `path`, with the packet sequence
    /// numbers that the two ends agreed on. Peers get `access`. Sleeps.
    pub(crate) fn connect_uc(
        &mut self,
        path: &Path,
        qpn: u32,
        recv_psn: u32,
        send_psn: u32,
        access: Access,
    ) -> Result {
        if self.config.qp_type != QpType::Uc || !Arc::ptr_eq(&path.device, self.pd.device()) {
            return Err(EINVAL);
        }
        let mut attr = sys::ib_qp_attr {
            qp_state: sys::ib_qp_state_IB_QPS_INIT,
            pkey_index: path.pkey_index,
            port_num: path.port,
            qp_access_flags: access.as_raw(),
            ..Default::default()
        };
        self.modify(
            &mut attr,
            sys::ib_qp_attr_mask_IB_QP_STATE
                | sys::ib_qp_attr_mask_IB_QP_PKEY_INDEX
                | sys::ib_qp_attr_mask_IB_QP_PORT
                | sys::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
        )?;
        let mut attr = sys::ib_qp_attr {
            qp_state: sys::ib_qp_state_IB_QPS_RTR,
            ah_attr: path.attr,
            path_mtu: path.mtu,
            dest_qp_num: qpn,
            rq_psn: recv_psn,
            ..Default::default()
        };
        self.modify(
            &mut attr,
            sys::ib_qp_attr_mask_IB_QP_STATE
                | sys::ib_qp_attr_mask_IB_QP_AV
                | sys::ib_qp_attr_mask_IB_QP_PATH_MTU
                | sys::ib_qp_attr_mask_IB_QP_DEST_QPN
                | sys::ib_qp_attr_mask_IB_QP_RQ_PSN,
        )?;
        self.ready_to_send(send_psn)
    }

    /// Makes a UD QP ready, on the port of `path`; it takes messages with `qkey`. Messages are at
    /// most the path's MTU. Sleeps.
    pub(crate) fn ready_ud(&mut self, path: &Path, qkey: u32, send_psn: u32) -> Result {
        if self.config.qp_type != QpType::Ud || !Arc::ptr_eq(&path.device, self.pd.device()) {
            return Err(EINVAL);
        }
        let mut attr = sys::ib_qp_attr {
            qp_state: sys::ib_qp_state_IB_QPS_INIT,
            pkey_index: path.pkey_index,
            port_num: path.port,
            qkey,
            ..Default::default()
        };
        self.modify(
            &mut attr,
            sys::ib_qp_attr_mask_IB_QP_STATE
                | sys::ib_qp_attr_mask_IB_QP_PKEY_INDEX
                | sys::ib_qp_attr_mask_IB_QP_PORT
                | sys::ib_qp_attr_mask_IB_QP_QKEY,
        )?;
        let mut attr = sys::ib_qp_attr {
            qp_state: sys::ib_qp_state_IB_QPS_RTR,
            ..Default::default()
        };
        self.modify(&mut attr, sys::ib_qp_attr_mask_IB_QP_STATE)?;
        self.sends.limit_message(path.mtu());
        self.marker_ah = Some(Ah::new(&self.pd, path)?);
        self.ready_to_send(send_psn)
    }

    fn ready_to_send(&mut self, psn: u32) -> Result {
        let mut attr = sys::ib_qp_attr {
            qp_state: sys::ib_qp_state_IB_QPS_RTS,
            sq_psn: psn,
            ..Default::default()
        };
        self.modify(
            &mut attr,
            sys::ib_qp_attr_mask_IB_QP_STATE | sys::ib_qp_attr_mask_IB_QP_SQ_PSN,
        )
    }

    /// Ends all work: what is outstanding completes as flushed, and nothing new is executed. What
    /// was staged is dropped. Sleeps.
    pub(crate) fn enter_error(&mut self) -> Result {
        self.tell(QpState::Ending);
        self.sends.drop_staged();
        self.health().enter_error()?;
        // On UD made by `ready_ud`, without which nothing was sent.
        self.sends
            .post_marker(self.marker_ah.as_ref().map(Ah::as_raw))
    }

    /// What [`Qp::enter_error`] does behind the move, for a QP that [`QpHealth::enter_error`] has moved
    /// to error. Does not sleep.
    pub(crate) fn mark_end(&mut self) -> Result {
        self.tell(QpState::Ending);
        self.sends
            .post_marker(self.marker_ah.as_ref().map(Ah::as_raw))
    }

    /// Stages a work request. `build` gets the token and may name its memory and nothing else that
    /// does not live forever; the token comes back from [`Qp::take_send`].
    ///
    /// Posts what is staged first when that fills a batch. Does not sleep or allocate.
    ///
    /// # Errors
    ///
    /// Nothing is staged then, and the token comes back: `EAGAIN` when the ring is full (take
    /// completions first), what `build` says, or what the checks of [`SendWr`] say; an error of
    /// posting an earlier batch.
    #[inline]
    pub(crate) fn push<F>(&mut self, token: S, build: F) -> core::result::Result<(), (Error, S)>
    where
        F: for<'t> FnOnce(&'t S, &mut SendWr<'_, 't>) -> Result,
    {
        self.sends
            .push_chain(token, |token, chain| chain.wr(|wr| build(token, wr)))
    }

    /// Stages a chain of work requests that `build` adds with [`Members::wr`]: a registration and
    /// the operation that needs it, say. They are executed in this order and posted together. The
    /// token comes back once, when the last has completed; it has the first error that a member
    /// had. No member has a signal unless `build` asks for it, which it mostly does for the last;
    /// the completion of another one gives no token back.
    ///
    /// Posts what is staged first when the chain does not fit behind it. Does not sleep or
    /// allocate.
    ///
    /// # Errors
    ///
    /// As for [`Qp::push`], if only one of the chain cannot be staged; `E2BIG` for a chain that is
    /// longer than a batch or half of the queue, `EINVAL` for an empty one.
    #[inline]
    pub(crate) fn push_chain<F>(
        &mut self,
        token: S,
        build: F,
    ) -> core::result::Result<(), (Error, S)>
    where
        F: for<'t> FnOnce(&'t S, &mut Members<'_, 't>) -> Result,
    {
        self.sends.push_chain(token, build)
    }

    /// Posts what is staged: one doorbell. Does not sleep or allocate.
    ///
    /// # Errors
    ///
    /// What the driver says. The QP is of no more use then but to be drained. The tokens of what
    /// the driver did not take come back from [`Qp::take_send`] as flushed, with the completion of
    /// a later work request or of the marker of [`Qp::enter_error`], or go with the QP.
    pub(crate) fn flush(&mut self) -> Result {
        self.sends.flush()
    }

    /// Stages a receive; see [`Qp::push`]. The token comes back from [`Qp::take_recv`].
    pub(crate) fn post_recv<F>(
        &mut self,
        token: R,
        build: F,
    ) -> core::result::Result<(), (Error, R)>
    where
        F: for<'t> FnOnce(&'t R, &mut RecvWr<'_, 't>) -> Result,
    {
        self.recvs.push(self.raw, self.key, &self.pd, token, build)
    }

    /// Posts the staged receives. Does not sleep or allocate.
    ///
    /// # Errors
    ///
    /// What the driver says. The tokens of what it did not take go with the QP.
    pub(crate) fn flush_recv(&mut self) -> Result {
        self.recvs.flush(self.raw, self.key)
    }

    /// Takes the next chain that `wc` says is done off the ring. To be called until it gives
    /// `None`: unsignalled ones before it come first, in the order of posting, as successful.
    ///
    /// `None` also for a completion of somebody else, of a member that is not the last of its
    /// chain, or one that was taken already.
    pub(crate) fn take_send(&mut self, wc: &mut Wc) -> Option<Done<'_, S>> {
        self.sends.take(wc)
    }

    /// Takes the receive that `wc` says is done. `None` as for [`Qp::take_send`].
    pub(crate) fn take_recv(&mut self, wc: &mut Wc) -> Option<Done<'_, R>> {
        let route = wc.route();
        if !route.recv || route.key != self.key || !wc.is_of(self.as_raw()) {
            return None;
        }
        let mut done = self.recvs.take(&self.pd, wc)?;
        if !self.believes_claims() {
            done.revocation = None;
        }
        Some(done)
    }

    /// Whether what a peer says of a key proves something: see [`super::mr`].
    fn believes_claims(&self) -> bool {
        let caps = self.pd.device().caps();
        Arc::ptr_eq(&self.send_cq, &self.recv_cq) || !(caps.iwarp || caps.registers_twice)
    }
}

impl<S: 'static, R: 'static> Drop for Qp<S, R> {
    fn drop(&mut self) {
        let outstanding = self.outstanding();
        *self.events.raw.lock() = None;
        self.tell(QpState::Gone);
        let destroyed = match &self.backing {
            Backing::Plain => {
                // SAFETY: The QP is ours (type invariant).
                let ret = unsafe { sys::ib_destroy_qp_user(self.as_raw(), core::ptr::null_mut()) };
                to_result(ret).inspect_err(|e| {
                    pr_err!("a QP could not be destroyed: error {}\n", e.to_errno());
                })
            }
            Backing::Cm(id) => {
                // SAFETY: The QP was made on this id and is still there (type invariant). It is in
                // no multicast group, so the core refuses nothing; what the driver says is not
                // handed on.
                unsafe { sys::rdma_destroy_qp(id.as_raw()) };
                id.free_qp_place();
                Ok(())
            }
        };
        if destroyed.is_err() {
            // It may still write to what the tokens own, complete to the CQs, and call the event
            // handler: all that stays, and with it the device.
            self.sends.leak();
            self.recvs.leak();
            core::mem::forget((self.send_cq.clone(), self.recv_cq.clone(), self.srq.clone()));
            return;
        }
        // SAFETY: Not used after this. The driver does not return from the QP's end before a
        // running event handler has.
        unsafe { ManuallyDrop::drop(&mut self.events) };
        // What completed, or was flushed by the end, may still be in the CQs: only what was seen to
        // complete is out of them.
        let sends = self.config.max_send_wr + 1;
        let recvs = match &self.srq {
            Some(srq) => srq.capacity(),
            None => self.config.max_recv_wr,
        };
        if outstanding == 0 && self.srq.is_none() {
            self.send_cq.release(sends);
            self.recv_cq.release(recvs);
        } else {
            self.send_cq.abandon(sends);
            self.recv_cq.abandon(recvs);
        }
        // The tokens go with the fields, after this.
    }
}

/// `len` values made by `f`.
pub(crate) fn filled<T>(len: usize, mut f: impl FnMut() -> T) -> Result<KVVec<T>> {
    let mut v = KVVec::with_capacity(len, GFP_KERNEL)?;
    for _ in 0..len {
        v.push(f(), GFP_KERNEL)?;
    }
    Ok(v)
}

/// # Safety
///
/// For the core: `context` is the QP's context.
unsafe extern "C" fn on_event(event: *mut sys::ib_event, context: *mut c_void) {
    // SAFETY: The context is the `Events` of the QP, which outlives it.
    let events = unsafe { &*context.cast::<Events>() };
    // SAFETY: The core gives a valid event.
    match unsafe { (*event).event } {
        // A message came before the CM's last handshake: tell the CM.
        sys::ib_event_type_IB_EVENT_COMM_EST if !events.id.is_null() => {
            // SAFETY: The id outlives the QP that was made on it.
            unsafe { sys::rdma_notify(events.id, sys::ib_event_type_IB_EVENT_COMM_EST) };
        }
        sys::ib_event_type_IB_EVENT_QP_FATAL
        | sys::ib_event_type_IB_EVENT_QP_REQ_ERR
        | sys::ib_event_type_IB_EVENT_QP_ACCESS_ERR
            if !events.ends_fatally =>
        {
            // SAFETY: It is an event of a QP, which is valid during the callback.
            let number = unsafe { (*(*event).element.qp).qp_num };
            trace::qp(events.key, number, QpState::Failed as u32);
            events.failed.store(true, Relaxed);
        }
        _ => {}
    }
}
