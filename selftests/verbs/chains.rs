// SPDX-License-Identifier: GPL-2.0

//! Several work requests with one token, and what becomes of tokens that a driver refuses.

#![forbid(unsafe_code)]

use crate::{
    harness::{check, check_eq, check_err, say, Case, Code, Outcome},
    ops::uc_pair,
    rig::{
        config, connect, fill, is_filled, loose, memory, pair, pause, plain, Census, End, Pair,
        Rig, Setup, Token, PATIENCE,
    },
    verbs::{Access, Members, Mr, QpType, RemoteAddr, Wc, WcStatus},
};
use kernel::prelude::*;

/// In the order in which they run.
pub(crate) const CASES: &[Case] = &[
    ("chain_read_cycles", chain_read_cycles),
    ("chain_refused", chain_refused),
    ("chain_of_registration", chain_of_registration),
    ("chain_posts_what_is_before", chain_posts_what_is_before),
    ("chain_signals", chain_signals),
    ("chain_never_stuck", chain_never_stuck),
    ("chain_first_error", chain_first_error),
    ("chain_error_of_the_first", chain_error_of_the_first),
    ("chain_error_gives_no_proof", chain_error_gives_no_proof),
    ("chain_flush", chain_flush),
    ("chain_dropped", chain_dropped),
    ("chain_proves_each", chain_proves_each),
    ("region_used_locally", region_used_locally),
    ("region_without_local_write", region_without_local_write),
    ("refused_sends_come_back", refused_sends_come_back),
    ("refused_sends_go_with_the_qp", refused_sends_go_with_the_qp),
    (
        "refused_receives_go_with_the_qp",
        refused_receives_go_with_the_qp,
    ),
];

const ALL: usize = 4096;

/// An RDMA WRITE of nothing: it needs neither memory nor a receive.
const NOWHERE: RemoteAddr = RemoteAddr { addr: 0, rkey: 0 };

/// A key that nobody gave.
fn wrong(remote: RemoteAddr) -> RemoteAddr {
    RemoteAddr {
        rkey: remote.rkey ^ 0x80,
        ..remote
    }
}

/// Adds `n` WRITEs of nothing.
fn writes(chain: &mut Members<'_, '_>, n: u32) -> Result {
    for _ in 0..n {
        chain.wr(|wr| wr.write(NOWHERE))?;
    }
    Ok(())
}

/// Registers, reads into the region, and ends it; all in one chain. `from` is where to.
fn read_through(end: &mut End, parts: (Mr, crate::verbs::Mapped), from: RemoteAddr) -> Outcome {
    let registration = parts.0.register(parts.1, Access::LOCAL_WRITE)?;
    let token = Token {
        registration: Some(registration),
        ..Default::default()
    };
    end.post_chain(token, |token, chain| {
        let region = token.reg()?;
        chain.wr(|wr| wr.reg_mr(region))?;
        chain.wr(|wr| {
            wr.sge(region.sge(8..1008)?)?;
            wr.read(from)
        })?;
        chain.wr(|wr| {
            wr.fence();
            wr.signaled();
            wr.local_inv(region)
        })
    })
}

fn chain_read_cycles(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let source = b.region(ALL, Access::REMOTE_READ)?;
    let remote = source.remote(0)?;
    let mut parts = (Mr::new(&a.pd, ALL)?, plain(&a.pd, ALL)?);
    // More cycles than a key has values.
    for cycle in 0..300u32 {
        let seed = cycle as u8;
        if cycle % 10 == 0 {
            fill(source.memory(), 0, 1000, seed)?;
        }
        read_through(a, parts, remote)?;
        let mut seen = a.success()?;
        check!(seen.proof);
        check_eq!(a.qp.outstanding(), 0);
        parts = seen.back.take().ok_or(EIO)?;
        if cycle % 10 == 0 {
            check!(is_filled(&parts.1, 8, 1000, seed)?);
            check_eq!(parts.1.peek(7)?, 0);
            check_eq!(parts.1.peek(1008)?, 0);
        }
    }
    Ok(())
}

/// What pushing a chain says; the token comes back, and nothing may be staged then.
fn refusal<F>(end: &mut End, build: F) -> Option<Error>
where
    F: for<'t> FnOnce(&'t Token, &mut Members<'_, 't>) -> Result,
{
    let room = end.qp.send_room();
    let pushed = end.qp.push_chain(Token::number(77), build);
    let code = pushed.code();
    let back = pushed.err().is_some_and(|(_, token)| token.number == 77);
    if back && end.qp.send_room() == room {
        code
    } else {
        None
    }
}

fn chain_refused(rig: &Rig) -> Outcome {
    let mut setup = Setup::rc(16);
    setup.a.batch = 4;
    let mut pair = connect(rig, setup)?;
    let a = &mut pair.a;
    check!(refusal(a, |_, _| Ok(())) == Some(EINVAL));
    check!(refusal(a, |_, _| Err(EDOM)) == Some(EDOM));
    check!(refusal(a, |_, chain| writes(chain, 2).and(Err(EDOM))) == Some(EDOM));
    // The refusal of a member is not looked at.
    let got = refusal(a, |_, chain| {
        chain.wr(|wr| wr.write(NOWHERE))?;
        let _ = chain.wr(|_| Err(EDOM));
        chain.wr(|wr| wr.write(NOWHERE))
    });
    check!(got == Some(EDOM));
    let got = refusal(a, |_, chain| {
        chain.wr(|wr| wr.write(NOWHERE))?;
        chain.wr(|_| Ok(()))
    });
    check!(got == Some(EINVAL));
    // More than a batch, with and without something before it.
    check!(refusal(a, |_, chain| writes(chain, 5)) == Some(E2BIG));
    a.qp.push(Token::number(0), |_, wr| wr.write(NOWHERE))?;
    check!(refusal(a, |_, chain| writes(chain, 5)) == Some(E2BIG));
    // That one was posted by this.
    check_eq!(a.qp.outstanding(), 1);
    // A ring with room for a part of it.
    for number in 1..14 {
        a.qp.push(Token::number(number), |_, wr| wr.send())?;
    }
    a.qp.flush()?;
    check_eq!(a.qp.send_room(), 2);
    check!(refusal(a, |_, chain| writes(chain, 3)) == Some(EAGAIN));
    a.post_chain(Token::number(14), |_, chain| writes(chain, 2))?;
    check_eq!(a.qp.send_room(), 0);
    check!(refusal(a, |_, chain| writes(chain, 1)) == Some(EAGAIN));
    // What fits only when nothing is without a signal.
    let a = &mut connect(rig, Setup::rc(16))?.a;
    check!(refusal(a, |_, chain| writes(chain, 10)) == Some(E2BIG));
    a.post_chain(Token::number(0), |_, chain| writes(chain, 7))?;
    a.post_chain(Token::number(1), |_, chain| writes(chain, 9))?;
    check_eq!(a.wait(2)?.len(), 2);
    Ok(())
}

/// A registration can be ended only behind its beginning, and is made on one QP.
fn chain_of_registration(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, .. } = &mut pair;
    let mr = Mr::new(&a.pd, ALL)?;
    let registration = mr.register(plain(&a.pd, ALL)?, Access::LOCAL_WRITE)?;
    check_err!(registration.sge(0..ALL + 1), EINVAL);
    check_err!(registration.remote(ALL), EINVAL);
    let token = Token {
        registration: Some(registration),
        ..Default::default()
    };
    let refused = a.qp.push(token, |token, wr| wr.local_inv(token.reg()?));
    check_err!(refused, EINVAL);
    let Err((_, token)) = refused else {
        return Err(EIO.into());
    };
    let refused = a.qp.push_chain(token, |token, chain| {
        chain.wr(|wr| wr.local_inv(token.reg()?))?;
        chain.wr(|wr| wr.reg_mr(token.reg()?))
    });
    check_err!(refused, EINVAL);
    let Err((_, token)) = refused else {
        return Err(EIO.into());
    };
    // Refused after it was named: it can be posted later, on this QP and no other.
    let refused = a.qp.push_chain(token, |token, chain| {
        chain.wr(|wr| wr.reg_mr(token.reg()?))?;
        Err(EDOM)
    });
    check_err!(refused, EDOM);
    let Err((_, token)) = refused else {
        return Err(EIO.into());
    };
    let mut other = crate::rig::loose(&a.pd, config(QpType::Rc, 4))?;
    let refused = other.qp.push(token, |token, wr| wr.reg_mr(token.reg()?));
    check_err!(refused, EINVAL);
    let Err((_, token)) = refused else {
        return Err(EIO.into());
    };
    a.post_chain(token, |token, chain| {
        chain.wr(|wr| wr.reg_mr(token.reg()?))?;
        chain.wr(|wr| {
            wr.signaled();
            wr.local_inv(token.reg()?)
        })
    })?;
    let seen = a.success()?;
    check!(seen.proof && seen.back.is_some());
    Ok(())
}

fn chain_posts_what_is_before(rig: &Rig) -> Outcome {
    let mut setup = Setup::rc(64);
    setup.a.batch = 5;
    let mut pair = connect(rig, setup)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(ALL, Access::REMOTE_WRITE)?;
    let remote = region.remote(0)?;
    let from = memory(&a.pd, ALL)?;
    fill(&from, 0, ALL, 1)?;
    let mut at = 0;
    for before in 0..=5usize {
        for len in 1..=5usize {
            let (first, second) = (at, at + before * 3);
            // Each work request writes 3 bytes in two pieces, at a place of its own.
            for i in 0..before {
                let begin = first + 3 * i;
                let to = region.remote(begin)?;
                a.qp.push(Token::memory(&from), |token, wr| {
                    wr.sge(token.mem()?.sge(begin..begin + 1)?)?;
                    wr.sge(token.mem()?.sge(begin + 1..begin + 3)?)?;
                    wr.write(to)
                })?;
            }
            a.qp.push_chain(Token::memory(&from), |token, chain| {
                for i in 0..len {
                    let begin = second + 3 * i;
                    let to = RemoteAddr {
                        addr: remote.addr + begin as u64,
                        ..remote
                    };
                    chain.wr(|wr| {
                        if i + 1 == len {
                            wr.signaled();
                        }
                        wr.sge(token.mem()?.sge(begin..begin + 2)?)?;
                        wr.sge(token.mem()?.sge(begin + 2..begin + 3)?)?;
                        wr.write(to)
                    })?;
                }
                Ok(())
            })?;
            let posted = if before + len > 5 { before } else { 0 };
            check_eq!(a.qp.outstanding() as usize, posted);
            a.qp.flush()?;
            let seen = a.wait(before + 1)?;
            check_eq!(seen.len(), before + 1);
            check!(seen.iter().all(|seen| seen.status == WcStatus::Success));
            at = second + 3 * len;
        }
    }
    check!(is_filled(region.memory(), 0, at, 1)?);
    check_eq!(region.memory().peek(at)?, 0);
    Ok(())
}

fn chain_signals(rig: &Rig) -> Outcome {
    let mut pair = connect(rig, Setup::rc(64))?;
    let a = &mut pair.a;
    // A signal in the middle frees places, and no token.
    a.post_chain(Token::number(1), |_, chain| {
        chain.wr(|wr| wr.write(NOWHERE))?;
        chain.wr(|wr| {
            wr.signaled();
            wr.write(NOWHERE)
        })?;
        chain.wr(|wr| wr.write(NOWHERE))
    })?;
    a.poll_until(PATIENCE, |end| end.stale > 0)?;
    check_eq!((a.seen.len(), a.qp.outstanding()), (0, 1));
    a.post(Token::number(2), |_, wr| {
        wr.signaled();
        wr.write(NOWHERE)
    })?;
    let seen = a.wait(2)?;
    check!(seen.iter().all(|seen| seen.status == WcStatus::Success));
    check_eq!((seen[0].token.number, seen[1].token.number), (1, 2));
    // Without a signal until half of the queue.
    for number in 0..10 {
        a.post_chain(Token::number(number), |_, chain| writes(chain, 3))?;
    }
    pause(50)?;
    a.pump()?;
    check_eq!((a.seen.len(), a.qp.outstanding()), (0, 30));
    a.post_chain(Token::number(10), |_, chain| writes(chain, 3))?;
    let seen = a.wait(11)?;
    for (at, seen) in seen.iter().enumerate() {
        check_eq!(seen.token.number as usize, at);
        check!(seen.status == WcStatus::Success);
    }
    check_eq!(a.qp.send_room(), 64);
    Ok(())
}

/// Chains of changing lengths go round without a stop, in their order.
fn chain_never_stuck(rig: &Rig) -> Outcome {
    for (depth, batch) in [(2, 2), (3, 2), (5, 3), (8, 8), (16, 5), (33, 4), (64, 16)] {
        let mut setup = Setup::rc(depth);
        setup.a.batch = batch;
        let mut pair = connect(rig, setup)?;
        let end = &mut pair.a;
        let (mut posted, mut expected) = (0u32, 0);
        while posted < 3 * depth {
            let len = 1 + (posted * 7 + posted / 5) % batch.min(depth / 2 + 1);
            match end
                .qp
                .push_chain(Token::number(posted), |_, chain| writes(chain, len))
            {
                Ok(()) => posted += 1,
                Err((e, _)) => {
                    check!(e == EAGAIN);
                    let room = end.qp.send_room();
                    end.qp.flush()?;
                    end.poll_until(PATIENCE, |end| end.qp.send_room() > room)?;
                    if end.qp.send_room() <= room {
                        say!("# stuck: depth {} batch {} at {}", depth, batch, posted);
                        check!(false);
                    }
                }
            }
        }
        end.qp.flush()?;
        end.drain()?;
        for seen in core::mem::take(&mut end.seen) {
            check_eq!(seen.token.number, expected);
            expected += 1;
        }
        check_eq!(expected, posted);
        check_eq!(end.qp.send_room(), depth);
    }
    Ok(())
}

/// The status that a completion gave, and number and status of the token that came with it.
type Told = (WcStatus, Option<(u32, WcStatus)>);

/// Three WRITEs of which `bad` has a wrong key, and a work request behind them: what came, in order.
fn with_error(rig: &Rig, bad: usize) -> Outcome<KVec<Told>> {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(ALL, Access::REMOTE_WRITE)?;
    let remote = region.remote(0)?;
    let from = memory(&a.pd, ALL)?;
    a.qp.push_chain(Token::memory(&from), |token, chain| {
        for i in 0..3 {
            chain.wr(|wr| {
                if i == 2 {
                    wr.signaled();
                }
                wr.sge(token.mem()?.sge(0..8)?)?;
                wr.write(if i == bad { wrong(remote) } else { remote })
            })?;
        }
        Ok(())
    })?;
    a.qp.push(Token::number(9), |_, wr| {
        wr.signaled();
        wr.write(NOWHERE)
    })?;
    a.qp.flush()?;
    let mut all = KVec::new();
    for _ in 0..PATIENCE / 10 {
        let mut wcs = [const { Wc::EMPTY }; 8];
        for wc in a.cq.poll(&mut wcs)? {
            let status = wc.status();
            let mut token = None;
            while let Some(done) = a.qp.take_send(wc) {
                check!(token.is_none() && done.revocation.is_none());
                token = Some((done.token.number, done.status));
            }
            all.push((status, token), GFP_KERNEL)?;
        }
        if a.qp.outstanding() == 0 {
            break;
        }
        a.bell.wait(10);
    }
    check_eq!(a.qp.outstanding(), 0);
    Ok(all)
}

/// The token waits for the last member, and has the error that came first.
fn chain_first_error(rig: &Rig) -> Outcome {
    use WcStatus::{Flushed, RemoteAccess};
    let all = with_error(rig, 1)?;
    check_eq!(all.len(), 3);
    check!(all[0] == (RemoteAccess, None));
    check!(all[1] == (Flushed, Some((0, RemoteAccess))));
    check!(all[2] == (Flushed, Some((9, Flushed))));
    Ok(())
}

fn chain_error_of_the_first(rig: &Rig) -> Outcome {
    use WcStatus::{Flushed, RemoteAccess};
    let all = with_error(rig, 0)?;
    check_eq!(all.len(), 4);
    check!(all[0] == (RemoteAccess, None));
    check!(all[1] == (Flushed, None));
    check!(all[2] == (Flushed, Some((0, RemoteAccess))));
    check!(all[3] == (Flushed, Some((9, Flushed))));
    // And of the last.
    let all = with_error(rig, 2)?;
    check_eq!(all.len(), 2);
    check!(all[0] == (RemoteAccess, Some((0, RemoteAccess))));
    check!(all[1] == (Flushed, Some((9, Flushed))));
    Ok(())
}

fn chain_error_gives_no_proof(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let source = b.region(ALL, Access::REMOTE_READ)?;
    let parts = (Mr::new(&a.pd, ALL)?, plain(&a.pd, ALL)?);
    read_through(a, parts, wrong(source.remote(0)?))?;
    let seen = a.one()?;
    check!(seen.status == WcStatus::RemoteAccess);
    check!(!seen.proof && seen.back.is_none());
    // Its end deregisters it.
    check!(seen.token.registration.is_some());
    Ok(())
}

fn chain_flush(rig: &Rig) -> Outcome {
    for signaled in [false, true] {
        let census = Census::new()?;
        let mut pair = connect(rig, Setup::rc(64))?;
        let a = &mut pair.a;
        for number in 0..16 {
            let token = Token {
                number,
                soul: Some(census.birth()),
                ..Default::default()
            };
            // SENDs without a receive at the peer: none completes.
            a.qp.push_chain(token, |_, chain| {
                for i in 0..4 {
                    chain.wr(|wr| {
                        if signaled && i == 3 {
                            wr.signaled();
                        }
                        wr.send()
                    })?;
                }
                Ok(())
            })?;
        }
        a.qp.flush()?;
        check_eq!((a.qp.send_room(), a.qp.outstanding()), (0, 64));
        a.drain()?;
        check_eq!(a.seen.len(), 16);
        for (at, seen) in core::mem::take(&mut a.seen).into_iter().enumerate() {
            check_eq!(seen.token.number as usize, at);
            check!(seen.status == WcStatus::Flushed);
        }
        check_eq!(census.alive(), 0);
    }
    Ok(())
}

/// Staged, posted, and half completed: each token goes once.
fn chain_dropped(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let mut pair = pair(rig)?;
    let a = &mut pair.a;
    let token = || Token {
        soul: Some(census.birth()),
        ..Default::default()
    };
    a.post_chain(token(), |_, chain| {
        chain.wr(|wr| {
            wr.signaled();
            wr.write(NOWHERE)
        })?;
        chain.wr(|wr| wr.send())
    })?;
    a.post_chain(token(), |_, chain| writes(chain, 3))?;
    a.qp.push_chain(token(), |_, chain| writes(chain, 2))?;
    a.poll_until(PATIENCE, |end| end.stale > 0)?;
    check_eq!((a.qp.outstanding(), census.alive()), (4, 3));
    // What is staged goes first, without a completion.
    a.qp.enter_error()?;
    check_eq!(census.alive(), 2);
    drop(pair);
    check_eq!(census.alive(), 0);
    Ok(())
}

/// One completion proves every invalidation of its chain.
fn chain_proves_each(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let b = &mut pair.b;
    let registration = Mr::new(&b.pd, ALL)?.register(plain(&b.pd, ALL)?, Access::REMOTE_READ)?;
    let token = Token {
        region: Some(b.region(ALL, Access::REMOTE_WRITE)?),
        registration: Some(registration),
        ..Default::default()
    };
    b.post_chain(token, |token, chain| {
        let region = token.region.as_ref().ok_or(EINVAL)?;
        chain.wr(|wr| wr.reg_mr(token.reg()?))?;
        chain.wr(|wr| wr.local_inv(region))?;
        chain.wr(|wr| {
            wr.signaled();
            wr.local_inv(token.reg()?)
        })
    })?;
    let mut wcs = [const { Wc::EMPTY }; 4];
    for _ in 0..PATIENCE {
        for wc in b.cq.poll(&mut wcs)? {
            if let Some(done) = b.qp.take_send(wc) {
                let proof = done.revocation.ok_or(EIO)?;
                let (region, registration) = (done.token.region, done.token.registration);
                check!(region.ok_or(EIO)?.reclaim(&proof).is_ok());
                check!(registration.ok_or(EIO)?.reclaim(&proof).is_ok());
                return Ok(());
            }
        }
        b.bell.wait(1);
    }
    check!(false);
    Ok(())
}

/// A region is a source and a destination of local work requests, by its lkey.
fn region_used_locally(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let region = a.region(2 * ALL, Access::LOCAL_WRITE)?;
    check_err!(region.sge(0..2 * ALL + 1), EINVAL);
    let (start, stop) = (5, 4);
    check_err!(region.sge(start..stop), EINVAL);
    check_eq!(region.sge(0..2 * ALL)?.len() as usize, 2 * ALL);
    fill(region.memory(), 100, 5000, 3)?;
    let to = memory(&b.pd, 2 * ALL)?;
    b.recv(&to, 0, 2 * ALL)?;
    let token = Token {
        region: Some(region),
        ..Default::default()
    };
    a.post(token, |token, wr| {
        let region = token.region.as_ref().ok_or(EINVAL)?;
        wr.signaled();
        wr.sge(region.sge(100..5100)?)?;
        wr.send()
    })?;
    let mut seen = a.success()?;
    check_eq!(b.success()?.len, 5000);
    check!(is_filled(&to, 0, 5000, 3)?);
    // Not of another PD.
    let region = seen.token.region.take().ok_or(EIO)?;
    let token = Token {
        region: Some(region),
        ..Default::default()
    };
    let refused = b.qp.push(token, |token, wr| {
        let region = token.region.as_ref().ok_or(EINVAL)?;
        wr.sge(region.sge(0..8)?)?;
        wr.send()
    });
    check_err!(refused, EINVAL);
    Ok(())
}

fn region_without_local_write(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let source = b.region(ALL, Access::REMOTE_READ)?;
    let remote = source.remote(0)?;
    fill(source.memory(), 0, 8, 50)?;
    let token = Token {
        region: Some(a.region(ALL, Access::REMOTE_READ)?),
        ..Default::default()
    };
    a.post(token, |token, wr| {
        wr.signaled();
        wr.sge(token.region.as_ref().ok_or(EINVAL)?.sge(0..8)?)?;
        wr.read(remote)
    })?;
    let seen = a.one()?;
    check!(seen.status == WcStatus::LocalProtection);
    let region = seen.token.region.ok_or(EIO)?;
    check_eq!(region.memory().peek(0)?, 0);
    Ok(())
}

fn refused_sends_come_back(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let mut pair = pair(rig)?;
    let path = pair.a.id()?.path()?;
    let (mut peer, _b) = uc_pair(&mut pair, Access::LOCAL_WRITE)?;
    let mut uc = loose(&pair.a.pd, config(QpType::Uc, 8))?;
    let token = |number| Token {
        number,
        soul: Some(census.birth()),
        ..Default::default()
    };
    // Not connected: the driver takes nothing.
    uc.qp.push(token(0), |_, wr| wr.send())?;
    uc.qp.push_chain(token(1), |_, chain| writes(chain, 3))?;
    check!(uc.qp.flush().is_err());
    check_eq!((census.alive(), uc.qp.send_room()), (2, 4));
    uc.qp
        .connect_uc(&path, peer.qp.number(), 1000, 1000, Access::LOCAL_WRITE)?;
    uc.post(token(2), |_, wr| wr.write(NOWHERE))?;
    let seen = uc.wait(3)?;
    let ends = [WcStatus::Flushed, WcStatus::Flushed, WcStatus::Success];
    for (at, (seen, end)) in seen.iter().zip(ends).enumerate() {
        check_eq!((seen.token.number as usize, seen.status), (at, end));
    }
    check_eq!((uc.qp.send_room(), uc.qp.outstanding()), (8, 0));
    drop(seen);
    check_eq!(census.alive(), 0);
    peer.drain()?;
    Ok(())
}

fn refused_sends_go_with_the_qp(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let pair = pair(rig)?;
    let mut uc = loose(&pair.a.pd, config(QpType::Uc, 4))?;
    for _ in 0..4 {
        let token = Token {
            soul: Some(census.birth()),
            ..Default::default()
        };
        uc.qp.push(token, |_, wr| wr.write(NOWHERE))?;
        check!(uc.qp.flush().is_err());
    }
    check_err!(uc.qp.push(Token::default(), |_, wr| wr.send()), EAGAIN);
    check_eq!(census.alive(), 4);
    drop(uc);
    check_eq!(census.alive(), 0);
    Ok(())
}

fn refused_receives_go_with_the_qp(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let pair = pair(rig)?;
    let mut uc = loose(&pair.a.pd, config(QpType::Uc, 4))?;
    for _ in 0..3 {
        let token = Token {
            soul: Some(census.birth()),
            ..Default::default()
        };
        uc.qp.post_recv(token, |_, _| Ok(()))?;
    }
    check!(uc.qp.flush_recv().is_err());
    check_eq!((census.alive(), uc.qp.outstanding()), (3, 0));
    check_eq!(uc.qp.recv_room(), 1);
    drop(uc);
    check_eq!(census.alive(), 0);
    Ok(())
}
