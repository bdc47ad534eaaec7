// SPDX-License-Identifier: GPL-2.0

//! Connections by `rdma_cm`.
//!
//! # Who calls whom
//!
//! A [`CmId`] is one end of a connection, or a listener. The CM calls its [`Handler`] in process
//! context, one event at a time (it holds the id's handler mutex meanwhile). Calls on the id may
//! come from any task; those that answer an event (`accept`) wait for that mutex, so a handler
//! must not make them for an id whose event it is handling, but hand the event to a thread.
//!
//! Calls that act on an id take `&mut CmId`, as the CM itself does not keep two of them apart.
//!
//! # Destruction
//!
//! `rdma_destroy_id` waits for a running handler, so after it nobody uses the handler object. The
//! C id goes with the last reference: that of the [`CmId`] or that of the QP made on it, whichever
//! goes later. It is destroyed at once, unless that happens inside of its own handler or on a
//! workqueue, where handlers of other ids run: there waiting could be waiting for oneself, so the
//! id is given to the [`super::reaper`], which waits in its place. All this is so for whoever comes
//! first, our own teardown, `DEVICE_REMOVAL`, or the [`super::device`] removal.
//!
//! C header: `include/rdma/rdma_cm.h`

use super::{
    device,
    place::Place,
    reaper::{self, Doomed},
    running::Running,
    Device, NetNs, Path, QpType, RejectReason, SocketAddr,
};
use crate::{kapi::trace, sys};
use core::{cell::Cell, ptr::NonNull};
use kernel::{
    error::{from_err_ptr, to_result},
    ffi::c_int,
    prelude::*,
    sync::Arc,
    task::Task,
};

/// Bytes of private data that a connect request carries on RoCE and InfiniBand (the CM takes 36 of
/// the 92 that IBA vol. 1, 12.6.5 gives). There the peer always sees the full length, padded with
/// zeros, so what is in it has to say its length itself.
pub(crate) const REQUEST_DATA: usize = 56;

/// What happens to an id.
pub(crate) enum Event<'e> {
    /// The destination is an address of a device now: the id is bound to that.
    AddrResolved,
    /// The destination cannot be resolved, or no device reaches it.
    AddrError(Error),
    /// The way to it is known.
    RouteResolved,
    /// There is no way to it.
    RouteError(Error),
    /// The connection is up. On the connecting side, with the private data of the accept.
    Established(&'e [u8]),
    /// Connecting failed for a local reason.
    ConnectError(Error),
    /// No answer from the peer.
    Unreachable(Error),
    /// The peer refused: why, and its private data if the service itself refused.
    Rejected(RejectReason, &'e [u8]),
    /// The peer ended the connection, or the CM noticed its end.
    Disconnected,
    /// The device goes; let go of the id.
    DeviceRemoval,
    /// The IP address moved to another interface: the connection may not work any longer.
    AddrChange,
    /// The QP number of a closed connection may be used again.
    TimewaitExit,
}

/// Who is told of an id's events. Process context, may sleep, but see the file's head.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Something happened to the connection.
    fn event(&self, event: Event<'_>);

    /// On a listener: a peer wants to connect. Dropping `request` refuses.
    fn request(&self, _request: Request<'_>) {}
}

/// The C id's context.
#[repr(C)]
struct Context<H> {
    // First, so that the address of the one is that of the other.
    header: Header,
    handler: H,
}

/// What is known of a context without its handler's type.
pub(super) struct Header {
    running: Running,
    /// For the reaper.
    doomed: Doomed,
    /// Frees the context that this is the header of.
    free: unsafe fn(NonNull<Header>),
}

/// A C id, shared by its [`CmId`] and the QP made on it.
///
/// # Invariants
///
/// `raw` is an id that nobody else destroys; `context` is its context, from [`new_context`].
pub(super) struct Id {
    raw: NonNull<sys::rdma_cm_id>,
    context: NonNull<Header>,
    /// Taken while there is a QP on it. The CM itself would take a second one.
    qp_place: Place,
    wanted: Wanted,
}

/// READs and atomics that a connect request asks for (IBA vol. 1, 12.7.29 and 12.7.30).
#[derive(Clone, Copy)]
struct Wanted {
    /// The most that the peer will have outstanding: more than that need not be served.
    responder_resources: u8,
    /// The most that the peer serves: more than that may not be outstanding.
    initiator_depth: u8,
}

impl Wanted {
    /// For an id that comes from no request, or is on iWARP, where the device negotiates.
    const ANY: Self = Self {
        responder_resources: u8::MAX,
        initiator_depth: u8::MAX,
    };
}

/// A reference that keeps the C id.
pub(super) type IdRef = Arc<Id>;

// SAFETY: The C object may be used from any thread, and the handler is `Send`.
unsafe impl Send for Id {}
// SAFETY: `&Id` gives the pointer only. What acts on the C id is called through `&mut CmId`, so
// by one task at a time; the QP calls `rdma_destroy_qp`, which takes the CM's QP mutex, and
// `rdma_notify`, which locks the `ib_cm` id. The handler is `Sync`.
unsafe impl Sync for Id {}

impl Id {
    pub(super) fn as_raw(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Reserves the id's one place for a QP.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is taken.
    pub(super) fn take_qp_place(&self) -> Result {
        self.qp_place.take().then_some(()).ok_or(EBUSY)
    }

    /// Gives it back: the QP is gone, or was never made.
    pub(super) fn free_qp_place(&self) {
        self.qp_place.free();
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let (raw, context) = (self.raw, self.context);
        // SAFETY: The context lives until it is freed by `destroy`.
        let header = unsafe { context.as_ref() };
        if header.running.is_in(this_task()) || reaper::must_defer() {
            // SAFETY: The id is ours and its QP is gone; `header` is freed by `destroy` only.
            unsafe { reaper::defer(&header.doomed, raw, context) };
        } else {
            // SAFETY: The id is ours, its QP is gone (it held a reference), and this is neither a
            // handler of it nor of anybody whom its end could wait for.
            unsafe { destroy(raw, context) };
        }
    }
}

/// Ends an id and frees its context. Sleeps until no handler of it runs.
///
/// # Safety
///
/// `context` is the context of `raw`; both are given up. Not inside of a handler of the id.
pub(super) unsafe fn destroy(raw: NonNull<sys::rdma_cm_id>, context: NonNull<Header>) {
    // SAFETY: By the function's safety requirements.
    unsafe { sys::rdma_destroy_id(raw.as_ptr()) };
    // SAFETY: No handler runs any more or will run, so nobody uses the context.
    unsafe { (context.as_ref().free)(context) };
}

fn this_task() -> usize {
    Task::current_raw() as usize
}

/// One end of a connection of RC type, or a listener for such.
pub(crate) struct CmId(IdRef);

/// Parameters of `connect` and `accept`.
pub(crate) struct ConnParam<'a> {
    /// Handed to the peer.
    pub(crate) private_data: &'a [u8],
    /// READs and atomics of the peer that this end serves at a time.
    pub(crate) responder_resources: u8,
    /// READs and atomics that this end has outstanding at a time.
    pub(crate) initiator_depth: u8,
}

impl ConnParam<'_> {
    /// For the C call; valid as long as `self`.
    fn to_raw(&self) -> Result<sys::rdma_conn_param> {
        Ok(sys::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len())?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            // The most that the field holds; 7 RNR retries mean "without end".
            retry_count: 7,
            rnr_retry_count: 7,
            ..Default::default()
        })
    }
}

/// The RC ack timeout as a power of two of 4.096 µs: 67 ms. The CM's own default (0.5 s, from the
/// packet life time that it assumes for RoCE) makes a lost last packet cost as much.
const ACK_TIMEOUT: u8 = 14;

impl CmId {
    /// Makes an id in a network namespace. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENODEV` before [`device::register`] or after its end; what the CM says.
    pub(crate) fn new<H: Handler>(net: &NetNs, handler: H) -> Result<Self> {
        let context = new_context(handler, 0)?;
        // SAFETY: The namespace is referenced; the callback matches the context's type, which
        // lives until after the id (by `Id::drop`, or freed below if there is no id).
        let raw = from_err_ptr(unsafe {
            sys::rivet_rdma_create_id(
                net.as_raw(),
                Some(on_event::<H>),
                context.as_ptr().cast(),
                sys::rdma_ucm_port_space_RDMA_PS_TCP,
                QpType::Rc.as_raw(),
            )
        });
        let raw = match raw.and_then(|raw| NonNull::new(raw).ok_or(ENOMEM)) {
            Ok(raw) => raw,
            Err(e) => {
                // SAFETY: From `new_context`, and no id has it.
                unsafe { free::<H>(context) };
                return Err(e);
            }
        };
        // INVARIANT: Made just now with this context.
        Self::adopt(raw, context, Wanted::ANY)
    }

    /// Takes an id over. On error it is destroyed.
    fn adopt(
        raw: NonNull<sys::rdma_cm_id>,
        context: NonNull<Header>,
        wanted: Wanted,
    ) -> Result<Self> {
        let id = Id {
            raw,
            context,
            qp_place: Place::new(),
            wanted,
        };
        Ok(Self(Arc::new(id, GFP_KERNEL)?))
    }

    pub(super) fn as_raw(&self) -> *mut sys::rdma_cm_id {
        self.0.as_raw()
    }

    pub(super) fn reference(&self) -> IdRef {
        self.0.clone()
    }

    /// The device that the id is bound to.
    ///
    /// # Errors
    ///
    /// `ENODEV` if it is not bound, or the device is going.
    pub(crate) fn device(&self) -> Result<Arc<Device>> {
        // SAFETY: The id is valid. The pointer is compared, not followed; an id that is bound to a
        // device keeps it, so no other device is at that address.
        device::from_raw(unsafe { core::ptr::addr_of!((*self.as_raw()).device).read_volatile() })
    }

    /// The port of that device.
    pub(crate) fn port(&self) -> u32 {
        // SAFETY: The id is valid; the CM writes the field while it binds the id.
        unsafe { core::ptr::addr_of!((*self.as_raw()).port_num).read_volatile() }
    }

    /// Starts to resolve `dst`, from `src` if given; ends with [`Event::AddrResolved`] or
    /// [`Event::AddrError`]. Sleeps.
    pub(crate) fn resolve_addr(
        &mut self,
        src: Option<SocketAddr>,
        dst: &SocketAddr,
        timeout_ms: u32,
    ) -> Result {
        let mut src = src;
        let src = src
            .as_mut()
            .map_or(core::ptr::null_mut(), SocketAddr::as_raw_mut);
        // SAFETY: The id is valid, and the addresses are storage of full size.
        to_result(unsafe {
            sys::rdma_resolve_addr(self.as_raw(), src, dst.as_raw(), timeout_ms as usize)
        })
    }

    /// Sets the type of service (IP's DS field) of the connection: before the way is looked for.
    pub(crate) fn set_tos(&mut self, tos: u8) {
        // SAFETY: The id is valid.
        unsafe { sys::rdma_set_service_type(self.as_raw(), i32::from(tos)) };
    }

    /// Starts to find the way; ends with [`Event::RouteResolved`] or [`Event::RouteError`].
    pub(crate) fn resolve_route(&mut self, timeout_ms: u32) -> Result {
        // SAFETY: The id is valid; the CM checks its state.
        to_result(unsafe { sys::rdma_resolve_route(self.as_raw(), timeout_ms as usize) })
    }

    /// Starts to connect the QP made on this id; ends with [`Event::Established`] or one of the
    /// failures. The private data is at most [`REQUEST_DATA`] bytes. Not from the id's own handler.
    pub(crate) fn connect(&mut self, param: &ConnParam<'_>) -> Result {
        let mut raw = param.to_raw()?;
        // SAFETY: The id is valid; the CM checks its state and copies the private data.
        unsafe {
            sys::rdma_set_ack_timeout(self.as_raw(), ACK_TIMEOUT);
            to_result(sys::rdma_connect(self.as_raw(), &mut raw))
        }
    }

    /// Accepts the request that this id came from; a QP must have been made on it. READs and atomics
    /// are not more than the peer asked for. Not from the id's own handler. If it fails, the peer has
    /// been refused.
    pub(crate) fn accept(&mut self, param: &ConnParam<'_>) -> Result {
        let mut raw = param.to_raw()?;
        let wanted = self.0.wanted;
        raw.responder_resources = raw.responder_resources.min(wanted.responder_resources);
        raw.initiator_depth = raw.initiator_depth.min(wanted.initiator_depth);
        // SAFETY: The id is valid; the helper takes the mutex that the CM asks for.
        unsafe {
            sys::rdma_set_ack_timeout(self.as_raw(), ACK_TIMEOUT);
            to_result(sys::rivet_rdma_accept(self.as_raw(), &mut raw))
        }
    }

    /// Refuses the request that this id came from, with private data that says why.
    pub(crate) fn reject(&mut self, private_data: &[u8]) -> Result {
        reject(self.as_raw(), private_data)
    }

    /// Binds to a local address and listens. A listener that is bound to an address dies with its
    /// device (an unspecified address lives on).
    pub(crate) fn listen(&mut self, addr: SocketAddr, backlog: i32) -> Result {
        let mut addr = addr;
        // SAFETY: The id is valid; the CM checks its state.
        unsafe {
            to_result(sys::rdma_bind_addr(self.as_raw(), addr.as_raw_mut()))?;
            to_result(sys::rdma_listen(self.as_raw(), backlog))
        }
    }

    /// Ends the connection: the QP goes to error, the peer is told. Sleeps.
    pub(crate) fn disconnect(&mut self) -> Result {
        // SAFETY: The id is valid; the CM checks its state.
        to_result(unsafe { sys::rdma_disconnect(self.as_raw()) })
    }

    /// The way to the peer of this connection (known from the route on the connecting side, from
    /// the request on the other).
    ///
    /// # Errors
    ///
    /// `ENODEV` if the id is not bound; `ENOTCONN`, or what the CM says, if it knows no peer yet.
    pub(crate) fn path(&mut self) -> Result<Path> {
        let device = self.device()?;
        let mut mask = 0;
        let mut init = sys::ib_qp_attr {
            qp_state: sys::ib_qp_state_IB_QPS_INIT,
            ..Default::default()
        };
        let mut rtr = sys::ib_qp_attr {
            qp_state: sys::ib_qp_state_IB_QPS_RTR,
            ..Default::default()
        };
        // SAFETY: The id is valid and bound to a device that is held; the attributes are ours.
        unsafe {
            to_result(sys::rdma_init_qp_attr(self.as_raw(), &mut init, &mut mask))?;
            to_result(sys::rdma_init_qp_attr(self.as_raw(), &mut rtr, &mut mask))?;
        }
        if mask as u32 & sys::ib_qp_attr_mask_IB_QP_AV == 0 {
            return Err(ENOTCONN);
        }
        Ok(Path::new(device, &init, &rtr))
    }
}

fn reject(id: *mut sys::rdma_cm_id, data: &[u8]) -> Result {
    let len = u8::try_from(data.len())?;
    // SAFETY: The callers have a valid id; the CM checks its state and copies the data.
    to_result(unsafe {
        sys::rdma_reject(
            id,
            data.as_ptr().cast(),
            len,
            sys::ib_cm_rej_reason_IB_CM_REJ_CONSUMER_DEFINED as u8,
        )
    })
}

/// A peer that wants to connect to a listener.
pub(crate) struct Request<'e> {
    id: NonNull<sys::rdma_cm_id>,
    private_data: &'e [u8],
    wanted: Wanted,
    /// The context of the id, once it was taken.
    taken: &'e Cell<Option<NonNull<Header>>>,
}

impl Request<'_> {
    /// What the peer sent with the request. As long as the fabric makes it, and not to be trusted.
    pub(crate) fn private_data(&self) -> &[u8] {
        self.private_data
    }

    /// Refuses with private data that says why.
    pub(crate) fn reject(self, private_data: &[u8]) {
        // A request that cannot be answered is refused by the id's end as well.
        let _ = reject(self.id.as_ptr(), private_data);
    }

    /// Takes the request's id, to accept or reject it later, from elsewhere.
    pub(crate) fn take<H: Handler>(self, handler: H) -> Result<CmId> {
        // The listener's callback runs with the new id's mutex held too: it is in its handler.
        let context = new_context(handler, this_task())?;
        // SAFETY: The new id is valid, and its events wait for the mutex that is held now.
        unsafe {
            (*self.id.as_ptr()).context = context.as_ptr().cast();
            (*self.id.as_ptr()).event_handler = Some(on_event::<H>);
        }
        self.taken.set(Some(context));
        CmId::adopt(self.id, context, self.wanted)
    }
}

/// Makes the context of an id, and counts the id.
fn new_context<H: Handler>(handler: H, running: usize) -> Result<NonNull<Header>> {
    reaper::enter()?;
    let context = KBox::new(
        Context {
            header: Header {
                running: Running::new(running),
                doomed: Doomed::new(),
                free: free::<H>,
            },
            handler,
        },
        GFP_KERNEL,
    )
    .inspect_err(|_| reaper::leave())?;
    // A box is never null.
    NonNull::new(KBox::into_raw(context).cast()).ok_or(ENOMEM)
}

/// # Safety
///
/// `context` comes from [`new_context`] for `H` and is given up.
unsafe fn free<H>(context: NonNull<Header>) {
    // SAFETY: By the function's safety requirement; the header is at the start of the context.
    drop(unsafe { KBox::from_raw(context.as_ptr().cast::<Context<H>>()) });
    reaper::leave();
}

/// The CM's callback. A value other than 0 makes the CM destroy the id, which is right for a new id
/// that nobody took, and for no other: not every caller in the CM ends all of the id.
///
/// # Safety
///
/// For the CM: the id's context is a `Context<H>`.
unsafe extern "C" fn on_event<H: Handler>(
    id: *mut sys::rdma_cm_id,
    event: *mut sys::rdma_cm_event,
) -> c_int {
    // SAFETY: The CM calls with a valid event.
    let ev = unsafe { &*event };
    // For a request, `id` is the new one, which still has the listener's context.
    // SAFETY: The CM calls with a valid id; its context is the `Context<H>` that it was made
    // with, which is freed only after `rdma_destroy_id` has waited for this to return.
    let context = unsafe { &*(*id).context.cast::<Context<H>>() };
    trace::cm(id as u64, ev.event, ev.status);
    if ev.event == sys::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST {
        return c_int::from(on_request(context, id, ev));
    }
    let Some(event) = translate(id, event) else {
        return 0;
    };
    context.header.running.begin(this_task());
    context.handler.event(event);
    // Still there: `Id::drop` does not free it inside of the handler.
    context.header.running.end();
    0
}

/// Shows a connect request to the listener's handler; `true` if the CM has to destroy the new id.
///
/// The listener is not marked as running: one that listens on all devices takes requests of
/// several at a time.
fn on_request<H: Handler>(
    listener: &Context<H>,
    id: *mut sys::rdma_cm_id,
    event: &sys::rdma_cm_event,
) -> bool {
    let taken = Cell::new(None);
    if let Some(id) = NonNull::new(id) {
        listener.handler.request(Request {
            id,
            private_data: private_data(event),
            wanted: wanted(id, event),
            taken: &taken,
        });
    }
    let Some(new) = taken.get() else {
        // Nobody wants it.
        return true;
    };
    // SAFETY: The new id's context lives: who lets the id go waits for its mutex, which is held
    // now.
    unsafe { new.as_ref().running.end() };
    false
}

/// The private data of an event of connection type.
fn private_data(event: &sys::rdma_cm_event) -> &[u8] {
    // SAFETY: The events that this is called for have this member of the union.
    let conn = unsafe { &event.param.conn };
    if conn.private_data.is_null() {
        return &[];
    }
    // SAFETY: The CM says that there are so many bytes, valid during the callback.
    unsafe {
        core::slice::from_raw_parts(conn.private_data.cast(), usize::from(conn.private_data_len))
    }
}

/// What a connect request asks for, seen from here: the CM has changed sides.
fn wanted(id: NonNull<sys::rdma_cm_id>, event: &sys::rdma_cm_event) -> Wanted {
    // SAFETY: A new id is valid and bound to a device for as long as the CM's callback runs.
    let iwarp = unsafe {
        let id = id.as_ref();
        sys::rivet_rdma_cap_iwarp(id.device, id.port_num)
    };
    if iwarp {
        return Wanted::ANY;
    }
    // SAFETY: A connect request has this member of the union.
    let conn = unsafe { &event.param.conn };
    Wanted {
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
    }
}

/// The event in our terms; `None` for those that do not concern us.
fn translate<'e>(id: *mut sys::rdma_cm_id, raw: *mut sys::rdma_cm_event) -> Option<Event<'e>> {
    // SAFETY: The CM's callback has a valid event for as long as it runs; `'e` ends with that, as
    // `Handler::event` takes any lifetime.
    let event: &'e sys::rdma_cm_event = unsafe { &*raw };
    let error = || match event.status {
        status @ -4095..=-1 => Error::from_errno(status),
        _ => EIO,
    };
    Some(match event.event {
        sys::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddrResolved,
        sys::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR => Event::AddrError(error()),
        sys::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
        sys::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR => Event::RouteError(error()),
        sys::rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED => {
            Event::Established(private_data(event))
        }
        sys::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_ERROR => Event::ConnectError(error()),
        sys::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE => Event::Unreachable(error()),
        sys::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED => {
            let mut len = 0;
            // SAFETY: Id and event are valid.
            let data = unsafe { sys::rdma_consumer_reject_data(id, raw, &mut len) };
            let data = if data.is_null() {
                &[][..]
            } else {
                // SAFETY: As the CM says, valid during the callback.
                unsafe { core::slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) }
            };
            Event::Rejected(RejectReason::from_raw(event.status.unsigned_abs()), data)
        }
        sys::rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected,
        sys::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoval,
        sys::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE => Event::AddrChange,
        sys::rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT => Event::TimewaitExit,
        _ => return None,
    })
}
