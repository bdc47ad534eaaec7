// SPDX-License-Identifier: GPL-2.0

//! Connections by `rdma_cm`, and ids that end where it is awkward.

#![forbid(unsafe_code)]

use crate::{
    harness::{check, check_eq, check_err, Case, Fail, Outcome},
    kapi::kthread,
    rig::{
        config, connect, end, hear, listener, pair, param, pause, resolved, Ear, End, Inbox, News,
        Policy, Rig, Setup, Token, ADDRESS6, ANSWER, HELLO,
    },
    verbs::{
        cm::REQUEST_DATA, CmId, ConnParam, NetNs, Pd, QpType, RejectReason, SocketAddr, WcStatus,
    },
};
use kernel::{prelude::*, str::CString, sync::Arc};

/// In the order in which they run.
pub(crate) const CASES: &[Case] = &[
    ("cm_addresses", cm_addresses),
    ("cm_private_data", cm_private_data),
    ("cm_private_data_length", cm_private_data_length),
    ("cm_nobody_listens", cm_nobody_listens),
    ("cm_reject_in_handler", cm_reject_in_handler),
    ("cm_reject_later", cm_reject_later),
    ("cm_request_dropped", cm_request_dropped),
    ("cm_request_taken_and_dropped", cm_request_taken_and_dropped),
    ("cm_request_with_qp_dropped", cm_request_with_qp_dropped),
    ("cm_request_dropped_by_thread", cm_request_dropped_by_thread),
    ("cm_id_dropped_in_handler", cm_id_dropped_in_handler),
    (
        "cm_id_dropped_in_handler_before_qp",
        cm_id_dropped_in_handler_before_qp,
    ),
    (
        "cm_listener_dropped_in_handler",
        cm_listener_dropped_in_handler,
    ),
    (
        "cm_listener_dropped_while_busy",
        cm_listener_dropped_while_busy,
    ),
    ("cm_disconnect", cm_disconnect),
    ("cm_states", cm_states),
    ("cm_unroutable", cm_unroutable),
    ("cm_foreign_address", cm_foreign_address),
    ("cm_address_in_use", cm_address_in_use),
    ("cm_wildcard", cm_wildcard),
    ("cm_ipv6", cm_ipv6),
];

fn cm_addresses(rig: &Rig) -> Outcome {
    let parse = |host| SocketAddr::parse(&rig.net, host, 7);
    check_err!(parse(c"nonsense"), EINVAL);
    check_err!(parse(c""), EINVAL);
    check_err!(parse(c"10.77.0"), EINVAL);
    check_err!(parse(c"10.77.0.1.2"), EINVAL);
    let text = CString::try_from_fmt(fmt!("{} {}", parse(c"10.77.0.1")?, parse(c"fd77::1")?))?;
    check_eq!(text.to_bytes(), b"10.77.0.1:7 [fd77::1]:7");
    Ok(())
}

fn cm_private_data(rig: &Rig) -> Outcome {
    let pair = pair(rig)?;
    // Padded with zeros: RoCE always carries all of it.
    check_eq!(pair.hello.len(), REQUEST_DATA);
    check!(pair.hello.starts_with(HELLO));
    check!(pair.hello.iter().skip(HELLO.len()).all(|byte| *byte == 0));
    check!(pair.answer.starts_with(ANSWER));
    check!(pair.answer.iter().skip(ANSWER.len()).all(|byte| *byte == 0));
    Ok(())
}

/// A connecting end whose route is known.
fn caller(rig: &Rig, to: &SocketAddr) -> Outcome<KBox<End>> {
    let (id, inbox) = resolved(rig, to)?;
    let pd = Pd::new(&rig.device)?;
    end(id, inbox, pd, None, config(QpType::Rc, 4), 0)
}

fn dial(end: &mut End, data: &[u8]) -> Result {
    end.id()?.connect(&param(data))
}

fn cm_private_data_length(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    let (_listener, door) = listener(rig, to, Policy::Take)?;
    let long = [b'x'; 300];
    let mut a = caller(rig, &to)?;
    check!(dial(&mut a, &long[..REQUEST_DATA + 1]).is_err());
    let mut a = caller(rig, &to)?;
    check!(dial(&mut a, &long).is_err());
    let mut a = caller(rig, &to)?;
    dial(&mut a, &long[..REQUEST_DATA])?;
    let (data, mut id, _inbox) = hear!(door, News::Request(data, id, inbox) => (data, id, inbox));
    check!(data.len() == REQUEST_DATA && data.iter().all(|byte| *byte == b'x'));
    check!(id.reject(&long).is_err());
    Ok(())
}

fn cm_nobody_listens(rig: &Rig) -> Outcome {
    let mut a = caller(rig, &rig.address()?)?;
    dial(&mut a, HELLO)?;
    let (reason, data) = hear!(a.inbox, News::Rejected(reason, data) => (reason, data));
    check_eq!(reason, RejectReason::InvalidServiceId);
    check!(data.is_empty());
    Ok(())
}

fn cm_reject_in_handler(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    let (_listener, door) = listener(rig, to, Policy::Reject)?;
    for _ in 0..3 {
        let mut a = caller(rig, &to)?;
        dial(&mut a, HELLO)?;
        hear!(door, News::Refused);
        let (reason, data) = hear!(a.inbox, News::Rejected(reason, data) => (reason, data));
        check_eq!(reason, RejectReason::Consumer);
        check!(data.starts_with(b"not today"));
    }
    Ok(())
}

fn cm_reject_later(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    let (_listener, door) = listener(rig, to, Policy::Take)?;
    let mut a = caller(rig, &to)?;
    dial(&mut a, HELLO)?;
    let (mut id, _inbox) = hear!(door, News::Request(_, id, inbox) => (id, inbox));
    id.reject(b"later")?;
    let (reason, data) = hear!(a.inbox, News::Rejected(reason, data) => (reason, data));
    check_eq!(reason, RejectReason::Consumer);
    check!(data.starts_with(b"later"));
    Ok(())
}

/// Requests that the handler does not keep, one way or the other, are refused.
fn refused_by(rig: &Rig, policy: Policy) -> Outcome {
    let to = rig.address()?;
    let (_listener, door) = listener(rig, to, policy)?;
    for _ in 0..4 {
        let mut a = caller(rig, &to)?;
        dial(&mut a, HELLO)?;
        hear!(door, News::Refused);
        hear!(a.inbox, News::Rejected(..));
    }
    Ok(())
}

fn cm_request_dropped(rig: &Rig) -> Outcome {
    refused_by(rig, Policy::Drop)
}

fn cm_request_taken_and_dropped(rig: &Rig) -> Outcome {
    refused_by(rig, Policy::TakeAndDrop)
}

fn cm_request_with_qp_dropped(rig: &Rig) -> Outcome {
    refused_by(rig, Policy::QpAndDrop)
}

fn cm_request_dropped_by_thread(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    let (_listener, door) = listener(rig, to, Policy::Take)?;
    // Takes requests as soon as they are there, while the handler may still run.
    let thread = kthread::spawn(c"verbs-test", move || {
        for _ in 0..8 {
            drop(door.next(crate::rig::PATIENCE));
        }
    })?;
    for _ in 0..8 {
        let mut a = caller(rig, &to)?;
        dial(&mut a, HELLO)?;
        hear!(a.inbox, News::Rejected(..));
    }
    drop(thread);
    Ok(())
}

/// The last reference goes in the id's own handler, at each step of a connection.
fn cm_id_dropped_in_handler(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    let inbox = Inbox::new(Policy::Drop)?;
    let mut id = CmId::new(&rig.net, Ear(inbox.clone()))?;
    id.resolve_addr(None, &to, 2000)?;
    hear!(inbox, News::AddrResolved);
    drop(id);

    // At the route.
    let inbox = Inbox::new(Policy::Drop)?;
    let mut id = CmId::new(&rig.net, Ear(inbox.clone()))?;
    id.resolve_addr(None, &to, 2000)?;
    hear!(inbox, News::AddrResolved);
    id.resolve_route(2000)?;
    let _own = inbox.own(id);
    match inbox.next(crate::rig::PATIENCE) {
        // The handler dropped it, or it ran before it had it.
        News::RouteResolved => {}
        other => return Err(other.unexpected()),
    }

    // At the refusal.
    let mut a = caller(rig, &to)?;
    dial(&mut a, HELLO)?;
    let End { qp, id, inbox, .. } = KBox::into_inner(a);
    drop(qp);
    let _own = inbox.own(id.ok_or(EIO)?);
    match inbox.next(crate::rig::PATIENCE) {
        News::Rejected(..) => {}
        other => return Err(other.unexpected()),
    }

    // At the peer's disconnect.
    for _ in 0..4 {
        let mut pair = crate::rig::pair(rig)?;
        let End { qp, id, inbox, .. } = KBox::into_inner(pair.b);
        drop(qp);
        let _own = inbox.own(id.ok_or(EIO)?);
        pair.a.id()?.disconnect()?;
        hear!(inbox, News::Disconnected);
        check!(!inbox.owns());
    }
    Ok(())
}

/// The id goes in its handler, but its QP keeps what is behind it.
fn cm_id_dropped_in_handler_before_qp(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let End {
        mut qp, id, inbox, ..
    } = KBox::into_inner(pair.b);
    let _own = inbox.own(id.ok_or(EIO)?);
    pair.a.id()?.disconnect()?;
    hear!(inbox, News::Disconnected);
    check!(!inbox.owns());
    qp.enter_error()?;
    drop(qp);
    Ok(())
}

/// A listener whose last reference goes in its own handler listens no more.
fn cm_listener_dropped_in_handler(rig: &Rig) -> Outcome {
    for policy in [Policy::DropListener, Policy::DropListenerAndTake] {
        let to = rig.address()?;
        let (id, door) = listener(rig, to, policy)?;
        let _own = door.own(id);
        let mut a = caller(rig, &to)?;
        dial(&mut a, HELLO)?;
        match door.next(crate::rig::PATIENCE) {
            News::Refused => hear!(a.inbox, News::Rejected(..)),
            News::Request(_, id, inbox) => {
                // What came in before lives on.
                let pd = Pd::new(&rig.device)?;
                let mut b = end(id, inbox, pd, None, config(QpType::Rc, 4), 0)?;
                b.id()?.accept(&param(ANSWER))?;
                hear!(a.inbox, News::Established(_));
            }
            other => return Err(other.unexpected()),
        }
        check!(!door.owns());
        // It ends in the background.
        pause(200)?;
        let mut late = caller(rig, &to)?;
        dial(&mut late, HELLO)?;
        let reason = hear!(late.inbox, News::Rejected(reason, _) => reason);
        check_eq!(reason, RejectReason::InvalidServiceId);
        match door.next(50) {
            News::Nothing => {}
            other => return Err(other.unexpected()),
        }
    }
    Ok(())
}

fn cm_listener_dropped_while_busy(rig: &Rig) -> Outcome {
    for _ in 0..4 {
        let to = rig.address()?;
        let (id, door) = listener(rig, to, Policy::Take)?;
        let mut callers = [caller(rig, &to)?, caller(rig, &to)?, caller(rig, &to)?];
        for a in &mut callers {
            dial(a, HELLO)?;
        }
        drop(id);
        drop(callers);
        drop(door);
    }
    Ok(())
}

fn cm_disconnect(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    pair.b.qp.post_recv(Token::default(), |_, _| Ok(()))?;
    pair.b.qp.flush_recv()?;
    pair.a.id()?.disconnect()?;
    hear!(pair.b.inbox, News::Disconnected);
    // The answer, which puts this QP into error, too.
    pair.b.id()?.disconnect()?;
    hear!(pair.a.inbox, News::Disconnected);
    check!(pair.b.one()?.status == WcStatus::Flushed);
    pair.a.post(Token::default(), |_, wr| wr.send())?;
    check!(pair.a.one()?.status == WcStatus::Flushed);
    Ok(())
}

/// Calls at the wrong time are refused and change nothing.
fn cm_states(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    let inbox = Inbox::new(Policy::Drop)?;
    let mut id = CmId::new(&rig.net, Ear(inbox))?;
    check!(id.resolve_route(100).is_err());
    check!(id.connect(&param(HELLO)).is_err());
    check!(id.accept(&param(HELLO)).is_err());
    check!(id.reject(HELLO).is_err());
    check!(id.disconnect().is_err());
    check_err!(id.path(), ENODEV);
    id.listen(to, 4)?;
    check!(id.listen(to, 4).is_err());
    check!(id.resolve_addr(None, &to, 100).is_err());
    check!(id.connect(&param(HELLO)).is_err());

    let (door, inbox) = (id, Inbox::new(Policy::Take)?);
    drop(door);
    let mut listening = CmId::new(&rig.net, Ear(inbox.clone()))?;
    listening.listen(to, 4)?;
    let mut a = caller(rig, &to)?;
    // A peer is not known yet.
    check!(a.id()?.path().is_err());
    check!(a.id()?.accept(&param(ANSWER)).is_err());
    dial(&mut a, HELLO)?;
    let (id, news) = hear!(inbox, News::Request(_, id, news) => (id, news));
    let mut b = end(
        id,
        news,
        Pd::new(&rig.device)?,
        None,
        config(QpType::Rc, 4),
        0,
    )?;
    let long = [0; 256];
    let too_long = ConnParam {
        private_data: &long,
        responder_resources: 1,
        initiator_depth: 1,
    };
    check!(b.id()?.accept(&too_long).is_err());
    b.id()?.accept(&param(ANSWER))?;
    hear!(a.inbox, News::Established(_));
    hear!(b.inbox, News::Established(_));
    check!(b.id()?.accept(&param(ANSWER)).is_err());
    Ok(())
}

fn cm_unroutable(rig: &Rig) -> Outcome {
    for host in [c"192.0.2.1", c"2001:db8::1"] {
        let inbox = Inbox::new(Policy::Drop)?;
        let mut id = CmId::new(&rig.net, Ear(inbox.clone()))?;
        let to = SocketAddr::parse(&rig.net, host, 1)?;
        match id.resolve_addr(None, &to, 500) {
            Err(_) => {}
            Ok(()) => hear!(inbox, News::AddrError(e) => check!(e < 0)),
        }
        check_err!(id.device(), ENODEV);
    }
    Ok(())
}

fn cm_foreign_address(rig: &Rig) -> Outcome {
    let inbox = Inbox::new(Policy::Take)?;
    let mut id = CmId::new(&rig.net, Ear(inbox))?;
    let foreign = SocketAddr::parse(&rig.net, c"192.0.2.1", 9)?;
    check_err!(id.listen(foreign, 1), EADDRNOTAVAIL);
    // It can listen elsewhere after that.
    id.listen(rig.address()?, 1)?;
    Ok(())
}

fn cm_address_in_use(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    let (first, _door) = listener(rig, to, Policy::Drop)?;
    let mut second = CmId::new(&rig.net, Ear(Inbox::new(Policy::Drop)?))?;
    check_err!(second.listen(to, 1), EADDRINUSE);
    drop(first);
    let mut third = CmId::new(&rig.net, Ear(Inbox::new(Policy::Drop)?))?;
    third.listen(to, 1)?;
    Ok(())
}

/// A listener on any address has a C id for each device behind it.
fn cm_wildcard(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    // The same port on every address.
    let any = rig.same_port(c"0.0.0.0")?;
    let (id, door) = listener(rig, any, Policy::Take)?;
    check_err!(id.device(), ENODEV);
    let mut a = caller(rig, &to)?;
    dial(&mut a, HELLO)?;
    let (taken, inbox) = hear!(door, News::Request(_, id, inbox) => (id, inbox));
    check!(Arc::ptr_eq(&taken.device()?, &rig.device));
    let mut b = end(
        taken,
        inbox,
        Pd::new(&rig.device)?,
        None,
        config(QpType::Rc, 4),
        0,
    )?;
    b.id()?.accept(&param(ANSWER))?;
    hear!(a.inbox, News::Established(_));
    drop(id);
    // Dropped in its own handler.
    let to = rig.address()?;
    let any = rig.same_port(c"0.0.0.0")?;
    let (id, door) = listener(rig, any, Policy::DropListener)?;
    let _own = door.own(id);
    for _ in 0..2 {
        let mut a = caller(rig, &to)?;
        dial(&mut a, HELLO)?;
        hear!(a.inbox, News::Rejected(..));
    }
    check!(!door.owns());
    Ok(())
}

fn cm_ipv6(rig: &Rig) -> Outcome {
    let to = rig.address_of(ADDRESS6)?;
    let mut probe = CmId::new(&rig.net, Ear(Inbox::new(Policy::Drop)?))?;
    if probe.listen(to, 1).is_err() {
        return Err(Fail::skip("there is no IPv6 address"));
    }
    drop(probe);
    let setup = Setup {
        host: ADDRESS6,
        ..Setup::rc(16)
    };
    let mut pair = connect(rig, setup)?;
    pair.b.qp.post_recv(Token::default(), |_, _| Ok(()))?;
    pair.b.qp.flush_recv()?;
    pair.a.post(Token::default(), |_, wr| {
        wr.signaled();
        wr.send()
    })?;
    let _ = pair.a.success()?;
    let _ = pair.b.success()?;
    pause(1)?;
    Ok(())
}

/// An id that outlives the registration's end by a while, in a thread that a drop waits for.
pub(crate) struct Late {
    _thread: kthread::Thread,
}

impl Late {
    /// Makes the id.
    pub(crate) fn new() -> Result<Self> {
        let id = CmId::new(&NetNs::current()?, Ear(Inbox::new(Policy::Drop)?))?;
        let thread = kthread::spawn(c"verbs-test-late", move || {
            let _ = pause(500);
            drop(id);
        })?;
        Ok(Self { _thread: thread })
    }
}
