// SPDX-License-Identifier: GPL-2.0

//! Devices, CQs and the rings of QPs.

#![forbid(unsafe_code)]

use crate::{
    harness::{check, check_eq, check_err, say, Case, Outcome},
    rig::{
        config, connect, loose, memory, pair, pause, Bell, Census, Pair, Rig, Setup, TestQp, Token,
        PATIENCE,
    },
    verbs::{device, Cq, Pd, Qp, QpConfig, QpType, RemoteAddr, WcStatus},
};
use kernel::{prelude::*, sync::Arc};

/// In the order in which they run.
pub(crate) const CASES: &[Case] = &[
    ("device_found_by_name", device_found_by_name),
    ("device_caps", device_caps),
    ("device_node", device_node),
    ("pd", pd),
    ("cq_limits", cq_limits),
    ("cq_reservation", cq_reservation),
    ("cq_reservation_is_given_back", cq_reservation_is_given_back),
    ("cq_event", cq_event),
    ("cq_missed_event", cq_missed_event),
    ("cq_moderation", cq_moderation),
    ("qp_limits", qp_limits),
    ("qp_foreign_id", qp_foreign_id),
    ("qp_one_for_an_id", qp_one_for_an_id),
    ("send_ring_full", send_ring_full),
    ("recv_ring_full", recv_ring_full),
    ("staged_ring_full", staged_ring_full),
    ("unsignaled_order", unsignaled_order),
    ("never_stuck", never_stuck),
    ("flush", flush),
    ("flush_unsignaled", flush_unsignaled),
    ("flush_of_what_is_done", flush_of_what_is_done),
    ("post_after_error", post_after_error),
    ("dropped_undrained", dropped_undrained),
    ("dropped_staged", dropped_staged),
    ("stale_completions", stale_completions),
    ("cq_full", cq_full),
    ("cq_room_after_stale", cq_room_after_stale),
    ("completion_taken_once", completion_taken_once),
];

fn device_found_by_name(rig: &Rig) -> Outcome {
    let name = rig.device.name();
    check!(!name.as_str().is_empty());
    let found = device::find(name.as_str());
    check!(found.is_some_and(|found| Arc::ptr_eq(&found, &rig.device)));
    check!(device::find("nonesuch").is_none());
    check!(device::find("").is_none());
    check!(!rig.device.is_gone());
    Ok(())
}

fn device_caps(rig: &Rig) -> Outcome {
    let caps = rig.device.caps();
    check!(caps.max_qp_wr >= 64 && caps.max_cqe >= 128);
    check!(caps.max_send_sge >= 4 && caps.max_recv_sge >= 4 && caps.max_sge_rd >= 1);
    check!(caps.max_fast_reg_pages >= 16);
    check!(caps.mem_mgt && caps.atomics);
    let port = rig.device.port(1)?;
    check!((256..=4096).contains(&port.active_mtu));
    check!(port.max_message >= 1 << 20);
    check!(!caps.iwarp);
    check_err!(rig.device.port(0), EINVAL);
    check_err!(rig.device.port(99), EINVAL);
    Ok(())
}

/// A soft device is nowhere.
fn device_node(rig: &Rig) -> Outcome {
    check!(rig.device.node().is_none());
    Ok(())
}

fn pd(rig: &Rig) -> Outcome {
    let one = Pd::new(&rig.device)?;
    let two = Pd::new(&rig.device)?;
    check!(!Arc::ptr_eq(&one, &two));
    check!(Arc::ptr_eq(one.device(), two.device()));
    Ok(())
}

fn cq(rig: &Rig, entries: u32) -> Result<Arc<Cq>> {
    Cq::new(&rig.device, entries, 0, Bell::new()?)
}

fn cq_limits(rig: &Rig) -> Outcome {
    let max = rig.device.caps().max_cqe;
    check_err!(cq(rig, 0), EINVAL);
    check_err!(cq(rig, max + 1), EINVAL);
    check_err!(cq(rig, u32::MAX), EINVAL);
    check_eq!(cq(rig, max)?.room(), max);
    check_eq!(cq(rig, 1)?.room(), 1);
    // The vector is taken modulo what there is.
    let _ = Cq::new(&rig.device, 1, 12_345, Bell::new()?)?;
    Ok(())
}

fn ud(pd: &Arc<Pd>, send: &Arc<Cq>, recv: &Arc<Cq>, depth: u32) -> Result<TestQp> {
    Qp::new(pd, send, recv, None, 1, config(QpType::Ud, depth))
}

fn cq_reservation(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let full = cq(rig, 66)?;
    let mut qps = KVec::new();
    for _ in 0..2 {
        qps.push(ud(&pd, &full, &full, 16)?, GFP_KERNEL)?;
    }
    check_eq!(full.room(), 0);
    check_err!(ud(&pd, &full, &full, 16), ENOSPC);
    check_err!(ud(&pd, &full, &full, 2), ENOSPC);
    let other = cq(rig, 66)?;
    qps.push(ud(&pd, &other, &other, 16)?, GFP_KERNEL)?;
    check_eq!(other.room(), 33);
    let _ = qps.pop();
    check_eq!(other.room(), 66);
    drop(qps);
    check_eq!(full.room(), 66);
    Ok(())
}

fn cq_reservation_is_given_back(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let (large, small) = (cq(rig, 64)?, cq(rig, 8)?);
    // The sends fit, the receives do not; and the other way round.
    check_err!(ud(&pd, &large, &small, 16), ENOSPC);
    check_err!(ud(&pd, &small, &large, 16), ENOSPC);
    check_eq!(large.room(), 64);
    check_eq!(small.room(), 8);
    Ok(())
}

/// Sends `n` empty messages from a to b, which has receives for them.
fn send_empty(pair: &mut Pair, n: u32) -> Outcome {
    for number in 0..n {
        pair.b.qp.post_recv(Token::number(number), |_, _| Ok(()))?;
    }
    pair.b.qp.flush_recv()?;
    for number in 0..n {
        pair.a.post(Token::number(number), |_, wr| {
            wr.signaled();
            wr.send()
        })?;
        // When it has completed here, it has there.
        let _ = pair.a.success()?;
    }
    Ok(())
}

fn cq_event(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    check!(!pair.b.cq.arm());
    check_eq!(pair.b.bell.kicks(), 0);
    send_empty(&mut pair, 3)?;
    check!(pair.b.bell.wait(PATIENCE));
    pause(50)?;
    // Once, though three came.
    check_eq!(pair.b.bell.kicks(), 1);
    check_eq!(pair.b.wait(3)?.len(), 3);
    // Not armed: none.
    send_empty(&mut pair, 1)?;
    pause(50)?;
    check_eq!(pair.b.bell.kicks(), 1);
    check_eq!(pair.b.wait(1)?.len(), 1);
    check!(!pair.b.cq.arm());
    send_empty(&mut pair, 1)?;
    check!(pair.b.bell.wait(PATIENCE));
    check_eq!(pair.b.bell.kicks(), 2);
    check_eq!(pair.b.bell.failures(), 0);
    Ok(())
}

fn cq_missed_event(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    send_empty(&mut pair, 1)?;
    pause(20)?;
    check!(pair.b.cq.arm());
    check_eq!(pair.b.wait(1)?.len(), 1);
    check!(!pair.b.cq.arm());
    Ok(())
}

/// The device has none, and says so both ways; the CQ works as before.
fn cq_moderation(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    check!(rig.device.caps().cq_moderation.is_none());
    check_err!(pair.b.cq.set_moderation(16, 100), EOPNOTSUPP);
    check!(!pair.b.cq.arm());
    send_empty(&mut pair, 1)?;
    check!(pair.b.bell.wait(PATIENCE));
    check_eq!(pair.b.wait(1)?.len(), 1);
    Ok(())
}

fn qp_limits(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let caps = rig.device.caps().clone();
    let cq = cq(rig, 128)?;
    let new = |config: QpConfig| -> Result<TestQp> { Qp::new(&pd, &cq, &cq, None, 1, config) };
    let good = || config(QpType::Rc, 16);
    check_err!(
        new(QpConfig {
            max_send_wr: 0,
            ..good()
        }),
        EINVAL
    );
    check_err!(
        new(QpConfig {
            max_send_wr: 1,
            ..good()
        }),
        EINVAL
    );
    check_err!(
        new(QpConfig {
            max_send_wr: caps.max_qp_wr + 1,
            ..good()
        }),
        EINVAL
    );
    check_err!(
        new(QpConfig {
            max_send_wr: u32::MAX,
            ..good()
        }),
        EINVAL
    );
    check_err!(
        new(QpConfig {
            max_recv_wr: caps.max_qp_wr + 1,
            ..good()
        }),
        EINVAL
    );
    check_err!(
        new(QpConfig {
            max_send_sge: caps.max_send_sge + 1,
            ..good()
        }),
        EINVAL
    );
    check_err!(
        new(QpConfig {
            max_recv_sge: caps.max_recv_sge + 1,
            ..good()
        }),
        EINVAL
    );
    check_err!(new(QpConfig { batch: 0, ..good() }), EINVAL);
    // A port that is not there.
    let port: Result<TestQp> = Qp::new(&pd, &cq, &cq, None, 9, good());
    check_err!(port, EINVAL);
    // What is left out is allowed.
    let _ = new(QpConfig {
        max_recv_wr: 0,
        max_recv_sge: 0,
        ..good()
    })?;
    let _ = new(QpConfig {
        max_send_sge: 0,
        batch: u32::MAX,
        ..good()
    })?;
    check_eq!(cq.room(), 128);
    Ok(())
}

fn qp_foreign_id(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    let (id, _inbox) = crate::rig::resolved(rig, &to)?;
    let pd = Pd::new(&rig.device)?;
    let cq = cq(rig, 128)?;
    let made: Result<TestQp> = Qp::new_cm(&id, &pd, &cq, &cq, None, config(QpType::Ud, 16));
    check_err!(made, EINVAL);
    let unbound = crate::verbs::CmId::new(
        &rig.net,
        crate::rig::Ear(crate::rig::Inbox::new(crate::rig::Policy::Drop)?),
    )?;
    check_err!(unbound.device(), ENODEV);
    let made: Result<TestQp> = Qp::new_cm(&unbound, &pd, &cq, &cq, None, config(QpType::Rc, 16));
    check_err!(made, ENODEV);
    check_eq!(cq.room(), 128);
    Ok(())
}

fn qp_one_for_an_id(rig: &Rig) -> Outcome {
    let to = rig.address()?;
    let (id, _inbox) = crate::rig::resolved(rig, &to)?;
    let pd = Pd::new(&rig.device)?;
    let cq = cq(rig, 128)?;
    let new = || -> Result<TestQp> { Qp::new_cm(&id, &pd, &cq, &cq, None, config(QpType::Rc, 16)) };
    let first = new()?;
    check!(new().is_err());
    check_eq!(cq.room(), 95);
    drop(first);
    let _ = new()?;
    Ok(())
}

/// An RDMA WRITE of nothing: it needs neither memory nor a receive.
const NOWHERE: RemoteAddr = RemoteAddr { addr: 0, rkey: 0 };

fn send_ring_full(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let mut pair = connect(rig, Setup::rc(8))?;
    let token = |number| Token {
        number,
        soul: Some(census.birth()),
        ..Default::default()
    };
    // SENDs without a receive at the peer: none completes.
    for number in 0..8 {
        pair.a.post(token(number), |_, wr| wr.send())?;
    }
    check_eq!(pair.a.qp.send_room(), 0);
    check_eq!(pair.a.qp.outstanding(), 8);
    let refused = pair.a.qp.push(token(99), |_, wr| wr.send());
    match refused {
        Err((e, token)) => {
            check!(e == EAGAIN);
            check_eq!(token.number, 99);
            check!(token.soul.is_some());
        }
        Ok(()) => check!(false),
    }
    check_eq!(census.alive(), 8);
    // The same when the checks refuse it.
    for number in 0..8 {
        pair.b.qp.post_recv(Token::number(number), |_, _| Ok(()))?;
    }
    pair.b.qp.flush_recv()?;
    let seen = pair.a.wait(8)?;
    for (at, seen) in seen.iter().enumerate() {
        check_eq!(seen.token.number as usize, at);
        check!(seen.status == WcStatus::Success);
    }
    match pair.a.qp.push(token(7), |_, _| Err(EDOM)) {
        Err((e, token)) => check!(e == EDOM && token.number == 7),
        Ok(()) => check!(false),
    }
    check_eq!(pair.a.qp.send_room(), 8);
    drop(seen);
    check_eq!(census.alive(), 0);
    Ok(())
}

fn recv_ring_full(rig: &Rig) -> Outcome {
    let mut pair = connect(rig, Setup::rc(8))?;
    for number in 0..8 {
        pair.b.qp.post_recv(Token::number(number), |_, _| Ok(()))?;
    }
    check_eq!(pair.b.qp.recv_room(), 0);
    check_eq!(pair.b.qp.outstanding(), 0);
    match pair.b.qp.post_recv(Token::number(8), |_, _| Ok(())) {
        Err((e, token)) => check!(e == EAGAIN && token.number == 8),
        Ok(()) => check!(false),
    }
    pair.b.qp.flush_recv()?;
    check_eq!(pair.b.qp.outstanding(), 8);
    pair.b.drain()?;
    check_eq!(pair.b.seen.len(), 8);
    check_eq!(pair.b.qp.recv_room(), 8);
    Ok(())
}

/// A ring that is full of staged work requests empties by a flush.
fn staged_ring_full(rig: &Rig) -> Outcome {
    let mut setup = Setup::rc(8);
    setup.a.batch = 8;
    let mut pair = connect(rig, setup)?;
    for round in 0..3 {
        for number in 0..8 {
            pair.a
                .qp
                .push(Token::number(number), |_, wr| wr.write(NOWHERE))?;
        }
        check_eq!(pair.a.qp.outstanding(), 0);
        check_err!(
            pair.a.qp.push(Token::number(8), |_, wr| wr.write(NOWHERE)),
            EAGAIN
        );
        pair.a.qp.flush()?;
        let seen = pair.a.wait(8)?;
        check_eq!((round, seen.len()), (round, 8));
    }
    Ok(())
}

fn unsignaled_order(rig: &Rig) -> Outcome {
    let mut pair = connect(rig, Setup::rc(64))?;
    for number in 0..9 {
        pair.a
            .post(Token::number(number), |_, wr| wr.write(NOWHERE))?;
    }
    pause(50)?;
    pair.a.pump()?;
    check_eq!(pair.a.seen.len(), 0);
    check_eq!(pair.a.qp.outstanding(), 9);
    pair.a.post(Token::number(9), |_, wr| {
        wr.signaled();
        wr.write(NOWHERE)
    })?;
    let seen = pair.a.wait(10)?;
    for (at, seen) in seen.iter().enumerate() {
        check_eq!(seen.token.number as usize, at);
        check!(seen.status == WcStatus::Success && !seen.recv);
    }
    check_eq!(pair.a.qp.outstanding(), 0);
    // By itself at half of the queue: 32 without a signal.
    for number in 0..31 {
        pair.a
            .post(Token::number(number), |_, wr| wr.write(NOWHERE))?;
    }
    pause(50)?;
    pair.a.pump()?;
    check_eq!(pair.a.seen.len(), 0);
    pair.a.post(Token::number(31), |_, wr| wr.write(NOWHERE))?;
    let seen = pair.a.wait(32)?;
    check_eq!(seen.len(), 32);
    Ok(())
}

/// Every depth, batch and rhythm of signals goes round without a stop.
fn never_stuck(rig: &Rig) -> Outcome {
    for depth in [2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32, 33, 63, 64] {
        for batch in [1, depth] {
            let mut setup = Setup::rc(depth);
            setup.a.batch = batch;
            let mut pair = connect(rig, setup)?;
            let odd = |every: &u32| *every > 3 && !every.is_power_of_two() && *every + 1 < depth;
            for every in (1..=depth).filter(|every| !odd(every)) {
                rounds(&mut pair, 2 * depth + 3, every)
                    .inspect_err(|_| say!("# depth {} batch {} every {}", depth, batch, every))?;
            }
            rounds(&mut pair, 2 * depth + 3, u32::MAX)?;
        }
    }
    Ok(())
}

/// Posts `n` writes, each `every`th signalled, as fast as the ring takes them.
fn rounds(pair: &mut Pair, n: u32, every: u32) -> Outcome {
    let (mut posted, mut expected) = (0, 0);
    let end = &mut pair.a;
    while posted < n {
        let pushed = end.qp.push(Token::number(posted), |token, wr| {
            if token.number % every == every - 1 || token.number == n - 1 {
                wr.signaled();
            }
            wr.write(NOWHERE)
        });
        match pushed {
            Ok(()) => posted += 1,
            Err((e, _)) => {
                check!(e == EAGAIN);
                end.qp.flush()?;
                end.poll_until(PATIENCE, |end| end.qp.send_room() > 0)?;
                check!(end.qp.send_room() > 0);
            }
        }
    }
    end.qp.flush()?;
    end.poll_until(PATIENCE, |end| end.qp.outstanding() == 0)?;
    check_eq!(end.qp.outstanding(), 0);
    for seen in core::mem::take(&mut end.seen) {
        check!(seen.status == WcStatus::Success);
        check_eq!(seen.token.number, expected);
        expected += 1;
    }
    check_eq!(expected, n);
    Ok(())
}

/// Posts what cannot complete: `sends` SENDs of a without a receive of b, `recvs` receives of a.
fn load(pair: &mut Pair, sends: u32, recvs: u32, signaled: bool, census: &Census) -> Outcome {
    let memory = memory(&pair.a.pd, 4096)?;
    for number in 0..recvs {
        let token = Token {
            number,
            memory: Some(memory.clone()),
            soul: Some(census.birth()),
            ..Default::default()
        };
        pair.a
            .qp
            .post_recv(token, |token, wr| wr.sge(token.mem()?.sge(0..64)?))?;
    }
    pair.a.qp.flush_recv()?;
    for number in 0..sends {
        let token = Token {
            number,
            memory: Some(memory.clone()),
            soul: Some(census.birth()),
            ..Default::default()
        };
        pair.a.qp.push(token, |token, wr| {
            if signaled {
                wr.signaled();
            }
            wr.sge(token.mem()?.sge(0..64)?)?;
            wr.send()
        })?;
    }
    pair.a.qp.flush()?;
    check_eq!(census.alive(), (sends + recvs) as i32);
    Ok(())
}

fn flush_with(rig: &Rig, signaled: bool) -> Outcome {
    let census = Census::new()?;
    let mut pair = connect(rig, Setup::rc(64))?;
    load(&mut pair, 64, 64, signaled, &census)?;
    check_eq!(pair.a.qp.outstanding(), 128);
    pair.a.drain()?;
    let (mut sends, mut recvs) = (0, [false; 64]);
    for seen in core::mem::take(&mut pair.a.seen) {
        check!(seen.status == WcStatus::Flushed);
        if seen.recv {
            let was = core::mem::replace(&mut recvs[seen.token.number as usize], true);
            check!(!was);
        } else {
            check_eq!(seen.token.number, sends);
            sends += 1;
        }
    }
    check_eq!(sends, 64);
    check!(recvs.iter().all(|seen| *seen));
    check_eq!(census.alive(), 0);
    check_eq!(pair.a.stale, 0);
    check_eq!(pair.a.bell.failures(), 0);
    Ok(())
}

fn flush(rig: &Rig) -> Outcome {
    flush_with(rig, true)
}

fn flush_unsignaled(rig: &Rig) -> Outcome {
    flush_with(rig, false)
}

/// Unsignalled work requests that were done before the error come back, too.
fn flush_of_what_is_done(rig: &Rig) -> Outcome {
    let mut pair = connect(rig, Setup::rc(64))?;
    for number in 0..5 {
        pair.a
            .post(Token::number(number), |_, wr| wr.write(NOWHERE))?;
    }
    pause(50)?;
    pair.a.pump()?;
    check_eq!(pair.a.qp.outstanding(), 5);
    pair.a.drain()?;
    let seen = core::mem::take(&mut pair.a.seen);
    check_eq!(seen.len(), 5);
    for (at, seen) in seen.iter().enumerate() {
        check_eq!(seen.token.number as usize, at);
        check!(seen.status == WcStatus::Success);
    }
    Ok(())
}

fn post_after_error(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    pair.a.qp.enter_error()?;
    pair.a.post(Token::number(1), |_, wr| wr.send())?;
    pair.a.qp.post_recv(Token::number(2), |_, _| Ok(()))?;
    pair.a.qp.flush_recv()?;
    let seen = pair.a.wait(2)?;
    check!(seen.iter().all(|seen| seen.status == WcStatus::Flushed));
    check_eq!(pair.a.qp.outstanding(), 0);
    // Again, to no effect.
    pair.a.qp.enter_error()?;
    Ok(())
}

fn dropped_undrained(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    for _ in 0..8 {
        let mut pair = connect(rig, Setup::rc(32))?;
        load(&mut pair, 32, 32, true, &census)?;
        let Pair { a, .. } = pair;
        drop(a);
        check_eq!(census.alive(), 0);
    }
    Ok(())
}

fn dropped_staged(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let mut pair = pair(rig)?;
    let token = || Token {
        soul: Some(census.birth()),
        ..Default::default()
    };
    for _ in 0..3 {
        pair.a.qp.push(token(), |_, wr| wr.write(NOWHERE))?;
        pair.a.qp.post_recv(token(), |_, _| Ok(()))?;
    }
    check_eq!(pair.a.qp.outstanding(), 0);
    check_eq!(pair.a.qp.send_room(), 13);
    drop(pair);
    check_eq!(census.alive(), 0);
    Ok(())
}

/// Completions that outlive their QP belong to nobody.
fn stale_completions(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let mut setup = Setup::rc(16);
    setup.entries = 64;
    let mut pair = connect(rig, setup)?;
    load(&mut pair, 16, 16, true, &census)?;
    pair.a.qp.enter_error()?;
    pause(100)?;
    let (cq, pd, bell) = (pair.a.cq.clone(), pair.a.pd.clone(), pair.a.bell.clone());
    drop(pair);
    check_eq!(census.alive(), 0);
    let mut other = loose(&pd, config(QpType::Ud, 8))?;
    other.cq = cq;
    other.bell = bell;
    while other.pump()? > 0 {}
    check_eq!(other.seen.len(), 0);
    check_eq!(other.stale, 32);
    check_eq!(census.alive(), 0);
    Ok(())
}

/// A CQ whose every entry is reserved takes the flush of all.
fn cq_full(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let mut setup = Setup::rc(30);
    // Not rounded up by drivers whose queues have a power of two less one.
    setup.a.max_recv_wr = 32;
    setup.entries = 63;
    let mut pair = connect(rig, setup)?;
    check_eq!(pair.a.cq.room(), 0);
    load(&mut pair, 30, 32, true, &census)?;
    pair.a.qp.enter_error()?;
    pause(200)?;
    pair.a.drain()?;
    check_eq!(pair.a.seen.len(), 62);
    check_eq!(pair.a.bell.failures(), 0);
    Ok(())
}

/// Stale completions take up room until they are polled: no QP gets it before.
fn cq_room_after_stale(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let mut setup = Setup::rc(30);
    setup.a.max_recv_wr = 32;
    setup.entries = 63;
    let mut pair = connect(rig, setup)?;
    load(&mut pair, 30, 32, true, &census)?;
    pair.a.qp.enter_error()?;
    pause(200)?;
    let (cq, pd, bell) = (pair.a.cq.clone(), pair.a.pd.clone(), pair.a.bell.clone());
    drop(pair);
    check_eq!(cq.room(), 0);
    let early: Result<TestQp> = Qp::new(&pd, &cq, &cq, None, 1, config(QpType::Ud, 16));
    check_err!(early, ENOSPC);
    let mut other = loose(&pd, config(QpType::Ud, 8))?;
    other.cq = cq.clone();
    while other.pump()? > 0 {}
    check_eq!(other.stale, 62);
    check_eq!(cq.room(), 63);
    let _: TestQp = Qp::new(&pd, &cq, &cq, None, 1, config(QpType::Ud, 16))?;
    check_eq!(bell.failures(), 0);
    Ok(())
}

fn completion_taken_once(rig: &Rig) -> Outcome {
    use crate::verbs::Wc;
    let mut pair = pair(rig)?;
    let mut empty = Wc::EMPTY;
    check!(pair.a.qp.take_send(&mut empty).is_none());
    check!(pair.a.qp.take_recv(&mut empty).is_none());
    pair.b.qp.post_recv(Token::number(0), |_, _| Ok(()))?;
    pair.b.qp.flush_recv()?;
    for number in 0..2 {
        pair.a.post(Token::number(number), |_, wr| {
            wr.signaled();
            wr.write(NOWHERE)
        })?;
    }
    pair.a.post(Token::number(2), |_, wr| wr.send())?;
    pair.a.post(Token::number(3), |_, wr| {
        wr.signaled();
        wr.write(NOWHERE)
    })?;
    pause(100)?;
    let mut wcs = [const { Wc::EMPTY }; 8];
    let Pair { a, b, .. } = &mut pair;
    let wcs = a.cq.poll(&mut wcs)?;
    check_eq!(wcs.len(), 3);
    // Of another QP.
    check!(b.qp.take_send(&mut wcs[0]).is_none());
    check!(b.qp.take_recv(&mut wcs[0]).is_none());
    check!(a.qp.take_recv(&mut wcs[0]).is_none());
    // The second takes the first with it, whose own comes too late.
    check!(a
        .qp
        .take_send(&mut wcs[1])
        .is_some_and(|done| done.token.number == 0));
    check!(a
        .qp
        .take_send(&mut wcs[1])
        .is_some_and(|done| done.token.number == 1));
    check!(a.qp.take_send(&mut wcs[1]).is_none());
    check!(a.qp.take_send(&mut wcs[0]).is_none());
    check!(a
        .qp
        .take_send(&mut wcs[2])
        .is_some_and(|done| done.token.number == 2));
    check!(a
        .qp
        .take_send(&mut wcs[2])
        .is_some_and(|done| done.token.number == 3));
    check!(a.qp.take_send(&mut wcs[2]).is_none());
    check_eq!(a.qp.outstanding(), 0);
    Ok(())
}
