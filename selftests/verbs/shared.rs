// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

#![forbid(unsafe_code)]

use crate::{
    harness::{check, check_eq, check_err, Case, Outcome},
    kapi::time::{now_ns, MS},
    rig::{
        config, connect, fill, is_filled, memory, Bell, Census, End, Pair, Rig, Setup, TestQp,
        Token, PATIENCE,
    },
    verbs::{Cq, Mapped, Pd, Qp, QpType, Srq, Wc, WcStatus},
};
use kernel::{prelude::*, sync::Arc};

/// In the order in which they run.
pub(crate) const CASES: &[Case] = &[
    ("srq_limits", srq_limits),
    ("srq_capacity", srq_capacity),
    ("srq_refusals", srq_refusals),
    ("srq_of_another_pd", srq_of_another_pd),
    ("srq_of_two_qps", srq_of_two_qps),
    ("srq_flush", srq_flush),
];

const ALL: usize = 4096;

fn srq_limits(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let caps = rig.device.caps();
    let new = |wr, sge| -> Result<Arc<Srq<Token>>> { Srq::new(&pd, wr, sge) };
    check_err!(new(0, 1), EINVAL);
    check_err!(new(1, 0), EINVAL);
    check_err!(new(caps.max_srq_wr + 1, 1), EINVAL);
    check_err!(new(1, caps.max_srq_sge + 1), EINVAL);
    check_eq!(new(7, caps.max_srq_sge)?.capacity(), 7);
    Ok(())
}

fn srq_capacity(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let pd = Pd::new(&rig.device)?;
    let srq = Srq::new(&pd, 5, 1)?;
    let memory = memory(&pd, ALL)?;
    let token = |number| Token {
        number,
        soul: Some(census.birth()),
        ..Token::memory(&memory)
    };
    for number in 0..5 {
        srq.post_recv(token(number), |token, wr| wr.sge(token.mem()?.sge(0..8)?))?;
    }
    match srq.post_recv(token(5), |token, wr| wr.sge(token.mem()?.sge(0..8)?)) {
        Err((e, token)) => check!(e == EAGAIN && token.number == 5),
        Ok(()) => check!(false),
    }
    check_eq!(census.alive(), 5);
    drop(srq);
    check_eq!(census.alive(), 0);
    Ok(())
}

fn srq_refusals(rig: &Rig) -> Outcome {
    let (pd, other) = (Pd::new(&rig.device)?, Pd::new(&rig.device)?);
    let srq = Srq::new(&pd, 4, 2)?;
    let (mine, foreign) = (memory(&pd, ALL)?, memory(&other, ALL)?);
    for _ in 0..8 {
        // More often than there are slots: a refusal keeps none.
        let refused = srq.post_recv(Token::memory(&foreign), |token, wr| {
            wr.sge(token.mem()?.sge(0..8)?)
        });
        check_err!(refused, EINVAL);
        let refused = srq.post_recv(Token::memory(&mine), |token, wr| {
            for at in 0..3 {
                wr.sge(token.mem()?.sge(at..at + 1)?)?;
            }
            Ok(())
        });
        check_err!(refused, E2BIG);
    }
    for _ in 0..4 {
        srq.post_recv(Token::memory(&mine), |token, wr| {
            wr.sge(token.mem()?.sge(0..8)?)
        })?;
    }
    let mut empty = Wc::EMPTY;
    check!(srq.take_recv(&mut empty).is_none());
    Ok(())
}

fn srq_of_another_pd(rig: &Rig) -> Outcome {
    let (pd, other) = (Pd::new(&rig.device)?, Pd::new(&rig.device)?);
    let srq = Srq::new(&other, 4, 1)?;
    let cq = Cq::new(&rig.device, 64, 0, Bell::new()?)?;
    let made: Result<TestQp> = Qp::new(&pd, &cq, &cq, Some(&srq), 1, config(QpType::Rc, 4));
    check_err!(made, EINVAL);
    // It reserves what the SRQ holds.
    let _qp: TestQp = Qp::new(&other, &cq, &cq, Some(&srq), 1, config(QpType::Rc, 4))?;
    check_eq!(cq.room(), 64 - 4 - 1 - 4);
    Ok(())
}

/// Takes receives of `end`'s CQ off the SRQ until there are `n`.
fn receives(end: &mut End, srq: &Srq<Token>, n: usize) -> Outcome<KVec<(Token, WcStatus, u32)>> {
    let mut taken = KVec::new();
    let deadline = now_ns() + u64::from(PATIENCE) * MS;
    let mut wcs = [const { Wc::EMPTY }; 8];
    while taken.len() < n && now_ns() < deadline {
        let wcs = end.cq.poll(&mut wcs)?;
        if wcs.is_empty() {
            end.bell.wait(1);
        }
        for wc in wcs {
            check!(end.qp.take_recv(wc).is_none());
            let len = wc.byte_len();
            match srq.take_recv(wc) {
                Some(done) => taken.push((done.token, done.status, len), GFP_KERNEL)?,
                None => while end.qp.take_send(wc).is_some() {},
            }
            check!(srq.take_recv(wc).is_none());
        }
    }
    check_eq!(taken.len(), n);
    Ok(taken)
}

fn send(end: &mut End, from: &Arc<Mapped>, len: usize) -> Outcome {
    end.post(Token::memory(from), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..len)?)?;
        wr.send()
    })
}

fn two(rig: &Rig, pd: &Arc<Pd>, srq: &Arc<Srq<Token>>) -> Outcome<(Pair, Pair)> {
    let setup = || Setup {
        srq: Some((pd.clone(), srq.clone())),
        ..Setup::rc(16)
    };
    Ok((connect(rig, setup())?, connect(rig, setup())?))
}

fn srq_of_two_qps(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let srq = Srq::new(&pd, 8, 2)?;
    let to = memory(&pd, 16 * ALL)?;
    let post = |number: u32| {
        let token = Token {
            number,
            ..Token::memory(&to)
        };
        srq.post_recv(token, |token, wr| {
            let at = token.number as usize * ALL;
            wr.sge(token.mem()?.sge(at..at + 100)?)?;
            wr.sge(token.mem()?.sge(at + 100..at + ALL)?)
        })
    };
    let (mut one, mut two) = two(rig, &pd, &srq)?;
    check!(one.b.qp.recv_room() == 0);
    let refused = one.b.qp.post_recv(Token::default(), |_, _| Ok(()));
    check_err!(refused, EAGAIN);
    for round in 0..10 {
        for number in 0..8 {
            post(number)?;
        }
        let (from_one, from_two) = (memory(&one.a.pd, ALL)?, memory(&two.a.pd, ALL)?);
        fill(&from_one, 0, ALL, 1)?;
        fill(&from_two, 0, ALL, 2)?;
        for k in 0..4 {
            send(&mut one.a, &from_one, 200 + k)?;
            send(&mut two.a, &from_two, 300 + k)?;
        }
        let _ = one.a.wait(4)?;
        let _ = two.a.wait(4)?;
        let mut slots = [false; 8];
        for (end, seed, base) in [(&mut one.b, 1, 200), (&mut two.b, 2, 300)] {
            let taken = receives(end, &srq, 4)?;
            for (k, (token, status, len)) in taken.iter().enumerate() {
                check!(*status == WcStatus::Success);
                check_eq!((round, *len as usize), (round, base + k));
                let number = token.number as usize;
                check!(!core::mem::replace(&mut slots[number], true));
                check!(is_filled(&to, number * ALL, *len as usize, seed)?);
            }
        }
        check!(slots.iter().all(|slot| *slot));
    }
    Ok(())
}

/// An SRQ outlives the error of one of its QPs; its receives stay for the other.
fn srq_flush(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let pd = Pd::new(&rig.device)?;
    let srq = Srq::new(&pd, 8, 1)?;
    let to = memory(&pd, ALL)?;
    let (mut one, mut two) = two(rig, &pd, &srq)?;
    for number in 0..8 {
        let token = Token {
            number,
            soul: Some(census.birth()),
            ..Token::memory(&to)
        };
        srq.post_recv(token, |token, wr| wr.sge(token.mem()?.sge(0..64)?))?;
    }
    one.b.qp.enter_error()?;
    check_eq!(one.b.qp.outstanding(), 0);
    drop(one);
    let from = memory(&two.a.pd, ALL)?;
    send(&mut two.a, &from, 64)?;
    let _ = two.a.success()?;
    let taken = receives(&mut two.b, &srq, 1)?;
    check!(taken
        .iter()
        .all(|(_, status, _)| *status == WcStatus::Success));
    drop(taken);
    drop(two);
    check_eq!(census.alive(), 7);
    drop(srq);
    check_eq!(census.alive(), 0);
    Ok(())
}
