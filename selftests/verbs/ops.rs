// SPDX-License-Identifier: GPL-2.0

//! Operations on each transport, and what is refused before it is posted.

#![forbid(unsafe_code)]

use crate::{
    harness::{check, check_eq, check_err, Case, Code, Outcome},
    rig::{
        config, connect, fill, is_filled, loose, memory, pair, pause, End, Pair, Rig, Setup, Token,
    },
    verbs::{caps::UD_GRH_LEN, Access, Ah, Pd, QpConfig, QpType, RemoteAddr, SendWr, WcStatus},
};
use kernel::{prelude::*, sync::Arc};

/// In the order in which they run.
pub(crate) const CASES: &[Case] = &[
    ("rc_send", rc_send),
    ("rc_send_imm", rc_send_imm),
    ("rc_send_inv", rc_send_inv),
    ("rc_write", rc_write),
    ("rc_write_imm", rc_write_imm),
    ("rc_read", rc_read),
    ("rc_cmp_swap", rc_cmp_swap),
    ("rc_fetch_add", rc_fetch_add),
    ("rc_sges", rc_sges),
    ("rc_empty_sges", rc_empty_sges),
    ("rc_long_message", rc_long_message),
    ("rc_recv_too_short", rc_recv_too_short),
    ("rc_fence_and_solicited", rc_fence_and_solicited),
    ("rc_rights", rc_rights),
    ("uc", uc),
    ("ud", ud),
    ("uc_drain", uc_drain),
    ("ud_drain", ud_drain),
    ("ud_wrong_qkey", ud_wrong_qkey),
    ("refused_on_uc", refused_on_uc),
    ("refused_on_ud", refused_on_ud),
    ("refused_on_rc", refused_on_rc),
    ("refused_sges", refused_sges),
    ("refused_pd", refused_pd),
    (
        "connected_by_hand_as_its_type",
        connected_by_hand_as_its_type,
    ),
];

const ALL: usize = 4096;

fn rc_send(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let (from, to) = (memory(&pair.a.pd, ALL)?, memory(&pair.b.pd, ALL)?);
    for len in [0, 1, 7, 255, 1024, ALL] {
        let seed = len as u8 ^ 3;
        fill(&from, 0, len, seed)?;
        pair.b.recv(&to, 0, ALL)?;
        pair.a.post(Token::memory(&from), |token, wr| {
            wr.signaled();
            wr.sge(token.mem()?.sge(0..len)?)?;
            wr.send()
        })?;
        let _ = pair.a.success()?;
        let seen = pair.b.success()?;
        check!(seen.recv && seen.imm.is_none() && seen.invalidated.is_none());
        check_eq!(seen.len as usize, len);
        check!(is_filled(&to, 0, len, seed)?);
    }
    Ok(())
}

fn rc_send_imm(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let to = memory(&pair.b.pd, ALL)?;
    for imm in [0, 1, 0x0102_0304, u32::MAX] {
        pair.b.recv(&to, 0, ALL)?;
        pair.a.post(Token::default(), |_, wr| {
            wr.signaled();
            wr.send_imm(imm)
        })?;
        let _ = pair.a.success()?;
        let seen = pair.b.success()?;
        check_eq!(seen.imm, Some(imm));
        check_eq!(seen.len, 0);
    }
    Ok(())
}

fn write(end: &mut End, from: &Arc<crate::verbs::Mapped>, len: usize, to: RemoteAddr) -> Outcome {
    end.post(Token::memory(from), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..len)?)?;
        wr.write(to)
    })
}

/// The peer ends a registration: the receive's completion says so, it is the proof with which the
/// region comes back, and the old rkey reaches nothing.
fn rc_send_inv(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(ALL, Access::REMOTE_WRITE)?;
    let remote = region.remote(0)?;
    let from = memory(&a.pd, ALL)?;
    fill(&from, 0, 64, 5)?;
    write(a, &from, 64, remote)?;
    let _ = a.success()?;
    check!(is_filled(region.memory(), 0, 64, 5)?);

    b.lent = Some(region);
    b.qp.post_recv(Token::default(), |_, _| Ok(()))?;
    b.qp.flush_recv()?;
    a.post(Token::default(), |_, wr| {
        wr.signaled();
        wr.send_inv(remote.rkey)
    })?;
    let _ = a.success()?;
    let mut seen = b.success()?;
    check_eq!(seen.invalidated, Some(remote.rkey));
    check!(seen.proof && b.lent.is_none());
    let (mr, back) = seen.back.take().ok_or(EIO)?;
    check!(is_filled(&back, 0, 64, 5)?);

    // The region works again, under another key.
    let region = b.register(mr, back, Access::REMOTE_WRITE)?;
    let again = region.remote(0)?;
    check!(again.rkey != remote.rkey);
    fill(&from, 0, 64, 6)?;
    write(a, &from, 64, again)?;
    let _ = a.success()?;
    check!(is_filled(region.memory(), 0, 64, 6)?);

    // The old key does not.
    fill(&from, 0, 64, 7)?;
    write(a, &from, 64, remote)?;
    check!(a.one()?.status == WcStatus::RemoteAccess);
    check!(is_filled(region.memory(), 0, 64, 6)?);
    Ok(())
}

fn rc_write(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(2 * ALL, Access::REMOTE_WRITE)?;
    let from = memory(&a.pd, ALL)?;
    for (offset, len) in [
        (0, 8),
        (1, 4095),
        (ALL - 3, 6),
        (2 * ALL - 1, 1),
        (ALL, ALL),
    ] {
        fill(&from, 0, len, offset as u8 ^ 0x5a)?;
        write(a, &from, len, region.remote(offset)?)?;
        let _ = a.success()?;
        check!(is_filled(
            region.memory(),
            offset,
            len,
            offset as u8 ^ 0x5a
        )?);
    }
    check_err!(region.remote(2 * ALL), EINVAL);
    // One byte beyond the end.
    write(a, &from, 2, region.remote(2 * ALL - 1)?)?;
    check!(a.one()?.status == WcStatus::RemoteAccess);
    Ok(())
}

fn rc_write_imm(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(ALL, Access::REMOTE_WRITE)?;
    let from = memory(&a.pd, ALL)?;
    fill(&from, 0, 100, 9)?;
    b.qp.post_recv(Token::default(), |_, _| Ok(()))?;
    b.qp.flush_recv()?;
    let remote = region.remote(10)?;
    a.post(Token::memory(&from), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..100)?)?;
        wr.write_imm(remote, 0xfeed_f00d)
    })?;
    let _ = a.success()?;
    let seen = b.success()?;
    check!(seen.recv);
    check_eq!(seen.imm, Some(0xfeed_f00d));
    check_eq!(seen.len, 100);
    check!(is_filled(region.memory(), 10, 100, 9)?);
    Ok(())
}

fn rc_read(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(ALL, Access::REMOTE_READ)?;
    // It begins again after 251 bytes.
    fill(region.memory(), 0, ALL, 11)?;
    let to = memory(&a.pd, ALL)?;
    for (offset, len) in [(0, 8), (251, 1000), (0, ALL)] {
        let remote = region.remote(offset)?;
        a.post(Token::memory(&to), |token, wr| {
            wr.signaled();
            wr.sge(token.mem()?.sge(0..len)?)?;
            wr.read(remote)
        })?;
        let _ = a.success()?;
        check!(is_filled(&to, 0, len, 11)?);
    }
    Ok(())
}

fn word(memory: &crate::verbs::Mapped, offset: usize) -> Result<u64> {
    let mut bytes = [0; 8];
    memory.read(offset, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn rc_cmp_swap(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(ALL, Access::REMOTE_ATOMIC)?;
    let remote = region.remote(16)?;
    let old = memory(&a.pd, ALL)?;
    region
        .memory()
        .write(16, &0x1122_3344_5566_7788u64.to_ne_bytes())?;
    for (compare, swap, before, after) in [
        (1, 2, 0x1122_3344_5566_7788, 0x1122_3344_5566_7788),
        (0x1122_3344_5566_7788, 77, 0x1122_3344_5566_7788, 77),
        (77, u64::MAX, 77, u64::MAX),
    ] {
        a.post(Token::memory(&old), |token, wr| {
            wr.signaled();
            wr.sge(token.mem()?.sge(8..16)?)?;
            wr.cmp_swap(remote, compare, swap)
        })?;
        let _ = a.success()?;
        check_eq!(word(&old, 8)?, before);
        check_eq!(word(region.memory(), 16)?, after);
    }
    Ok(())
}

fn rc_fetch_add(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(ALL, Access::REMOTE_ATOMIC)?;
    let remote = region.remote(0)?;
    let old = memory(&a.pd, ALL)?;
    for (add, before, after) in [(5, 0, 5), (10, 5, 15), (u64::MAX, 15, 14)] {
        a.post(Token::memory(&old), |token, wr| {
            wr.signaled();
            wr.sge(token.mem()?.sge(0..8)?)?;
            wr.fetch_add(remote, add)
        })?;
        let _ = a.success()?;
        check_eq!(word(&old, 0)?, before);
        check_eq!(word(region.memory(), 0)?, after);
    }
    // Not aligned, and the refusal not looked at.
    let odd = region.remote(3)?;
    let got = refusal(a, Token::memory(&old), |token, wr| {
        wr.sge(token.mem()?.sge(0..8)?)?;
        let _ = wr.fetch_add(odd, 1);
        Ok(())
    });
    check!(got == Some(EINVAL));
    check_eq!(word(region.memory(), 0)?, 14);
    Ok(())
}

/// Each number of SGEs on both sides, with the pieces in an order of their own.
fn rc_sges(rig: &Rig) -> Outcome {
    let caps = rig.device.caps();
    let most = caps
        .max_send_sge
        .min(caps.max_recv_sge)
        .min(caps.max_sge_rd)
        .min(32);
    let mut setup = Setup::rc(8);
    for config in [&mut setup.a, &mut setup.b] {
        config.max_send_sge = most;
        config.max_recv_sge = most;
    }
    let mut pair = connect(rig, setup)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(ALL, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let remote = region.remote(0)?;
    let (from, to) = (memory(&a.pd, ALL)?, memory(&b.pd, ALL)?);
    let back = memory(&a.pd, ALL)?;
    const PIECE: usize = 61;
    for n in 1..=most as usize {
        // Piece k of the message lies at place n - 1 - k.
        for k in 0..n {
            for at in 0..PIECE {
                let byte = (k * PIECE + at) as u8 ^ n as u8;
                from.write((n - 1 - k) * PIECE + at, &[byte])?;
            }
        }
        let pieces = |n: usize| (0..n).rev().map(|at| at * PIECE..(at + 1) * PIECE);
        b.qp.post_recv(Token::memory(&to), |token, wr| {
            for piece in pieces(n) {
                wr.sge(token.mem()?.sge(piece)?)?;
            }
            Ok(())
        })?;
        b.qp.flush_recv()?;
        for send in [true, false] {
            a.post(Token::memory(&from), |token, wr| {
                wr.signaled();
                for piece in pieces(n) {
                    wr.sge(token.mem()?.sge(piece)?)?;
                }
                if send {
                    wr.send()
                } else {
                    wr.write(remote)
                }
            })?;
            let _ = a.success()?;
        }
        check_eq!(b.success()?.len as usize, n * PIECE);
        a.post(Token::memory(&back), |token, wr| {
            wr.signaled();
            for piece in pieces(n) {
                wr.sge(token.mem()?.sge(piece)?)?;
            }
            wr.read(remote)
        })?;
        let _ = a.success()?;
        for at in 0..n * PIECE {
            let (there, then) = (to.peek(at)?, back.peek(at)?);
            let sent = from.peek(at)?;
            check_eq!((n, at, there, then), (n, at, sent, sent));
            check_eq!(region.memory().peek(at)?, at as u8 ^ n as u8);
        }
    }
    Ok(())
}

/// SGEs without length carry nothing (and do not mean "very much").
fn rc_empty_sges(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let (from, to) = (memory(&pair.a.pd, ALL)?, memory(&pair.b.pd, ALL)?);
    fill(&from, 0, 32, 1)?;
    let token = Token::memory(&to);
    pair.b.qp.post_recv(token, |token, wr| {
        for range in [0..0, 0..16, 16..16, 16..32] {
            wr.sge(token.mem()?.sge(range)?)?;
        }
        Ok(())
    })?;
    pair.b.qp.flush_recv()?;
    pair.a.post(Token::memory(&from), |token, wr| {
        wr.signaled();
        for range in [0..8, 8..8, ALL..ALL, 8..32] {
            wr.sge(token.mem()?.sge(range)?)?;
        }
        wr.send()
    })?;
    let _ = pair.a.success()?;
    check_eq!(pair.b.success()?.len, 32);
    check!(is_filled(&to, 0, 32, 1)?);
    check_eq!(to.peek(32)?, 0);
    Ok(())
}

fn rc_long_message(rig: &Rig) -> Outcome {
    const LEN: usize = 256 << 10;
    let mut pair = pair(rig)?;
    let (from, to) = (memory(&pair.a.pd, LEN)?, memory(&pair.b.pd, LEN)?);
    fill(&from, 0, LEN, 42)?;
    pair.b.recv(&to, 0, LEN)?;
    pair.a.post(Token::memory(&from), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..LEN)?)?;
        wr.send()
    })?;
    let _ = pair.a.success()?;
    check_eq!(pair.b.success()?.len as usize, LEN);
    check!(is_filled(&to, 0, LEN, 42)?);
    Ok(())
}

fn rc_recv_too_short(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let (from, to) = (memory(&pair.a.pd, ALL)?, memory(&pair.b.pd, ALL)?);
    fill(&from, 0, 64, 1)?;
    pair.b.recv(&to, 0, 32)?;
    pair.a.post(Token::memory(&from), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..64)?)?;
        wr.send()
    })?;
    // Of the two, IBA vol. 1, 9.9.5.2 means the first.
    let status = pair.a.one()?.status;
    check!(matches!(
        status,
        WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperation
    ));
    check!(pair.b.one()?.status != WcStatus::Success);
    // Nothing beyond the receive.
    check_eq!(to.peek(32)?, 0);
    Ok(())
}

fn rc_fence_and_solicited(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let region = b.region(ALL, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    region.memory().write(0, &[1])?;
    let remote = region.remote(0)?;
    let (to, from) = (memory(&a.pd, ALL)?, memory(&a.pd, ALL)?);
    from.write(0, &[2])?;
    a.qp.push(Token::memory(&to), |token, wr| {
        wr.sge(token.mem()?.sge(0..1)?)?;
        wr.read(remote)
    })?;
    b.qp.post_recv(Token::default(), |_, _| Ok(()))?;
    b.qp.flush_recv()?;
    a.qp.push(Token::memory(&from), |token, wr| {
        wr.fence();
        wr.sge(token.mem()?.sge(0..1)?)?;
        wr.write(remote)
    })?;
    a.qp.push(Token::default(), |_, wr| {
        wr.solicited();
        wr.signaled();
        wr.send()
    })?;
    a.qp.flush()?;
    let _ = a.wait(3)?;
    let _ = b.success()?;
    check_eq!(to.peek(0)?, 1);
    check_eq!(region.memory().peek(0)?, 2);
    Ok(())
}

/// Each right alone allows its operation and refuses the others; a refusal costs the connection.
fn rc_rights(rig: &Rig) -> Outcome {
    for (access, may) in [
        (Access::REMOTE_READ, [true, false, false]),
        (Access::REMOTE_WRITE, [false, true, false]),
        (Access::REMOTE_ATOMIC, [false, false, true]),
        (Access::LOCAL_WRITE, [false, false, false]),
    ] {
        for (op, may) in may.into_iter().enumerate() {
            let mut pair = pair(rig)?;
            let Pair { a, b, .. } = &mut pair;
            let region = b.region(ALL, access)?;
            let remote = region.remote(0)?;
            let local = memory(&a.pd, ALL)?;
            fill(&local, 0, 8, 200)?;
            a.post(Token::memory(&local), |token, wr| {
                wr.signaled();
                wr.sge(token.mem()?.sge(0..8)?)?;
                match op {
                    0 => wr.read(remote),
                    1 => wr.write(remote),
                    _ => wr.fetch_add(remote, 1),
                }
            })?;
            let status = a.one()?.status;
            check_eq!((op, status == WcStatus::Success), (op, may));
            if !may {
                check!(status == WcStatus::RemoteAccess);
                check_eq!(word(region.memory(), 0)?, 0);
            }
        }
    }
    Ok(())
}

/// Two UC ends, connected by the path of an RC connection between the same addresses.
pub(crate) fn uc_pair(pair: &mut Pair, access: Access) -> Outcome<(KBox<End>, KBox<End>)> {
    let there = pair.a.id()?.path()?;
    let back = pair.b.id()?.path()?;
    let mut a = loose(&pair.a.pd, config(QpType::Uc, 16))?;
    let mut b = loose(&pair.b.pd, config(QpType::Uc, 16))?;
    a.qp.connect_uc(&there, b.qp.number(), 1000, 2000, access)?;
    b.qp.connect_uc(&back, a.qp.number(), 2000, 1000, access)?;
    Ok((a, b))
}

fn uc(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let (mut a, mut b) = uc_pair(&mut pair, Access::REMOTE_WRITE)?;
    let (from, to) = (memory(&a.pd, ALL)?, memory(&b.pd, ALL)?);
    fill(&from, 0, ALL, 13)?;
    b.recv(&to, 0, ALL)?;
    a.post(Token::memory(&from), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..3000)?)?;
        wr.send_imm(17)
    })?;
    let _ = a.success()?;
    let seen = b.success()?;
    check_eq!((seen.len, seen.imm), (3000, Some(17)));
    check!(is_filled(&to, 0, 3000, 13)?);

    // A region for UC is registered by an RC QP of the same PD.
    let region = pair.b.region(ALL, Access::REMOTE_WRITE)?;
    let remote = region.remote(96)?;
    write(&mut a, &from, 1500, remote)?;
    let _ = a.success()?;
    b.recv(&to, 0, 8)?;
    a.post(Token::memory(&from), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..1)?)?;
        wr.write_imm(
            RemoteAddr {
                addr: remote.addr + 1500,
                ..remote
            },
            18,
        )
    })?;
    let _ = a.success()?;
    let seen = b.success()?;
    check_eq!(seen.imm, Some(18));
    check!(is_filled(region.memory(), 96, 1500, 13)?);
    // Back to front.
    let to = memory(&a.pd, ALL)?;
    a.recv(&to, 0, 64)?;
    b.post(Token::default(), |_, wr| {
        wr.signaled();
        wr.send()
    })?;
    let _ = b.success()?;
    let _ = a.success()?;
    Ok(())
}

const QKEY: u32 = 0x1234_5678;

fn ud_ready(pd: &Arc<Pd>, pair: &mut Pair, qkey: u32) -> Outcome<(KBox<End>, Arc<Ah>, u32)> {
    let path = pair.a.id()?.path()?;
    check_eq!(path.port(), 1);
    let mut end = loose(pd, config(QpType::Ud, 16))?;
    end.qp.ready_ud(&path, qkey, 7)?;
    let ah = Arc::new(Ah::new(pd, &path)?, GFP_KERNEL)?;
    Ok((end, ah, path.mtu()))
}

fn ud(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let (mut a, ah, mtu) = ud_ready(&pair.a.pd.clone(), &mut pair, QKEY)?;
    let (mut b, _, _) = ud_ready(&pair.b.pd.clone(), &mut pair, QKEY)?;
    let mtu = mtu as usize;
    check!((256..=4096).contains(&mtu));
    let (from, to) = (memory(&a.pd, ALL)?, memory(&b.pd, 2 * ALL)?);
    fill(&from, 0, ALL, 77)?;
    let qpn = b.qp.number();
    for len in [0, 1, 100, mtu] {
        b.recv(&to, 0, UD_GRH_LEN + mtu)?;
        let token = Token {
            ah: Some(ah.clone()),
            ..Token::memory(&from)
        };
        a.post(token, |token, wr| {
            wr.signaled();
            wr.sge(token.mem()?.sge(0..len)?)?;
            wr.to(token.ah()?, qpn, QKEY)?;
            wr.send_imm(len as u32)
        })?;
        let _ = a.success()?;
        let seen = b.success()?;
        check_eq!(seen.len as usize, UD_GRH_LEN + len);
        check_eq!(seen.imm, Some(len as u32));
        check_eq!(seen.src_qp, a.qp.number());
        check!(is_filled(&to, UD_GRH_LEN, len, 77)?);
    }
    // Beyond the MTU nothing is posted.
    let token = Token {
        ah: Some(ah.clone()),
        ..Token::memory(&from)
    };
    let long = memory(&a.pd, 2 * ALL)?;
    let long = Token {
        ah: token.ah,
        ..Token::memory(&long)
    };
    let refused = a.qp.push(long, |token, wr| {
        wr.sge(token.mem()?.sge(0..mtu + 1)?)?;
        wr.to(token.ah()?, qpn, QKEY)?;
        wr.send()
    });
    check_err!(refused, EMSGSIZE);
    check_eq!(a.qp.send_room(), 16);
    Ok(())
}

/// Unsignalled SENDs of UC come back at the end.
fn uc_drain(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let (mut a, b) = uc_pair(&mut pair, Access::LOCAL_WRITE)?;
    for number in 0..5 {
        a.post(Token::number(number), |_, wr| wr.send())?;
    }
    pause(50)?;
    a.drain()?;
    check_eq!(a.seen.len(), 5);
    // One that was never connected has nothing to end.
    drop(b);
    let mut idle = loose(&a.pd, config(QpType::Uc, 4))?;
    check_err!(idle.qp.enter_error(), EINVAL);
    check_eq!(idle.qp.outstanding(), 0);
    Ok(())
}

/// The same for UD.
fn ud_drain(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let pd = pair.a.pd.clone();
    let (mut a, ah, _) = ud_ready(&pd, &mut pair, QKEY)?;
    let qpn = a.qp.number();
    for number in 0..5 {
        let token = Token {
            number,
            ah: Some(ah.clone()),
            ..Default::default()
        };
        a.post(token, |token, wr| {
            wr.to(token.ah()?, qpn, QKEY)?;
            wr.send()
        })?;
    }
    pause(50)?;
    a.drain()?;
    check_eq!(a.seen.len(), 5);
    drop(a);
    let (mut idle, _, _) = ud_ready(&pd, &mut pair, QKEY)?;
    idle.drain()?;
    Ok(())
}

fn ud_wrong_qkey(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let (mut a, ah, _) = ud_ready(&pair.a.pd.clone(), &mut pair, QKEY)?;
    let (mut b, _, _) = ud_ready(&pair.b.pd.clone(), &mut pair, QKEY + 1)?;
    let to = memory(&b.pd, ALL)?;
    b.recv(&to, 0, ALL)?;
    let qpn = b.qp.number();
    let token = Token {
        ah: Some(ah),
        ..Default::default()
    };
    a.post(token, |token, wr| {
        wr.signaled();
        wr.to(token.ah()?, qpn, QKEY)?;
        wr.send()
    })?;
    let _ = a.success()?;
    pause(50)?;
    b.pump()?;
    check_eq!(b.seen.len(), 0);
    check_eq!(b.qp.outstanding(), 1);
    Ok(())
}

/// What pushing says; nothing may be staged then.
fn refusal<F>(end: &mut End, token: Token, build: F) -> Option<Error>
where
    F: for<'t> FnOnce(&'t Token, &mut SendWr<'_, 't>) -> Result,
{
    let room = end.qp.send_room();
    let code = end.qp.push(token, build).code();
    if end.qp.send_room() == room {
        code
    } else {
        None
    }
}

const SOMEWHERE: RemoteAddr = RemoteAddr {
    addr: 4096,
    rkey: 1,
};

/// What only RC has.
fn refused_but_on_rc(pair: &mut Pair, end: &mut End) -> Outcome {
    let local = memory(&end.pd, ALL)?;
    let local = || Token::memory(&local);
    let got = refusal(end, local(), |token, wr| {
        wr.sge(token.mem()?.sge(0..8)?)?;
        wr.read(SOMEWHERE)
    });
    check!(got == Some(EOPNOTSUPP));
    let got = refusal(end, local(), |token, wr| {
        wr.sge(token.mem()?.sge(0..8)?)?;
        wr.cmp_swap(SOMEWHERE, 1, 2)
    });
    check!(got == Some(EOPNOTSUPP));
    let got = refusal(end, local(), |token, wr| {
        wr.sge(token.mem()?.sge(0..8)?)?;
        wr.fetch_add(SOMEWHERE, 1)
    });
    check!(got == Some(EOPNOTSUPP));
    check!(refusal(end, local(), |_, wr| wr.send_inv(1)) == Some(EOPNOTSUPP));
    let region = pair.b.region(ALL, Access::REMOTE_WRITE)?;
    let token = Token {
        region: Some(region),
        ..Default::default()
    };
    let got = refusal(end, token, |token, wr| {
        wr.local_inv(token.region.as_ref().ok_or(EINVAL)?)
    });
    check!(got == Some(EOPNOTSUPP));
    let mr = crate::verbs::Mr::new(&end.pd, ALL)?;
    let registration = mr.register(crate::rig::plain(&end.pd, ALL)?, Access::REMOTE_READ)?;
    let token = Token {
        registration: Some(registration),
        ..Default::default()
    };
    let got = refusal(end, token, |token, wr| {
        wr.reg_mr(token.registration.as_ref().ok_or(EINVAL)?)
    });
    check!(got == Some(EOPNOTSUPP));
    Ok(())
}

fn refused_on_uc(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let (mut a, _b) = uc_pair(&mut pair, Access::LOCAL_WRITE)?;
    refused_but_on_rc(&mut pair, &mut a)
}

fn refused_on_ud(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let (mut a, ah, _) = ud_ready(&pair.a.pd.clone(), &mut pair, QKEY)?;
    refused_but_on_rc(&mut pair, &mut a)?;
    let got = refusal(&mut a, Token::default(), |_, wr| wr.write(SOMEWHERE));
    check!(got == Some(EOPNOTSUPP));
    let got = refusal(&mut a, Token::default(), |_, wr| wr.write_imm(SOMEWHERE, 1));
    check!(got == Some(EOPNOTSUPP));
    let got = refusal(&mut a, Token::default(), |_, wr| wr.send());
    check!(got == Some(EDESTADDRREQ));
    // A destination elsewhere than on UD, and one of another PD.
    let with = || Token {
        ah: Some(ah.clone()),
        ..Default::default()
    };
    let got = refusal(&mut pair.a, with(), |token, wr| {
        wr.to(token.ah()?, 1, QKEY)?;
        wr.send()
    });
    check!(got == Some(EINVAL));
    let (mut b, _, _) = ud_ready(&pair.b.pd.clone(), &mut pair, QKEY)?;
    let got = refusal(&mut b, with(), |token, wr| {
        wr.to(token.ah()?, 1, QKEY)?;
        wr.send()
    });
    check!(got == Some(EINVAL));
    Ok(())
}

fn refused_on_rc(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let end = &mut pair.a;
    let local = memory(&end.pd, ALL)?;
    let local = || Token::memory(&local);
    for len in [0, 4, 7, 9, 16] {
        let got = refusal(end, local(), |token, wr| {
            wr.sge(token.mem()?.sge(0..len)?)?;
            wr.fetch_add(SOMEWHERE, 1)
        });
        check!(got == Some(EINVAL));
    }
    let got = refusal(end, local(), |_, wr| wr.cmp_swap(SOMEWHERE, 1, 1));
    check!(got == Some(EINVAL));
    let got = refusal(end, local(), |token, wr| {
        wr.sge(token.mem()?.sge(0..4)?)?;
        wr.sge(token.mem()?.sge(4..8)?)?;
        wr.fetch_add(SOMEWHERE, 1)
    });
    check!(got == Some(E2BIG));
    // No operation, and two.
    check!(refusal(end, local(), |_, _| Ok(())) == Some(EINVAL));
    let got = refusal(end, local(), |_, wr| {
        wr.send()?;
        wr.write(SOMEWHERE)
    });
    check!(got == Some(EINVAL));
    let got = refusal(end, local(), |_, wr| {
        wr.send()?;
        wr.send()
    });
    check!(got == Some(EINVAL));
    Ok(())
}

fn refused_sges(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let end = &mut pair.a;
    let local = memory(&end.pd, ALL)?;
    let (start, stop) = (5, 4);
    check_err!(local.sge(0..ALL + 1), EINVAL);
    check_err!(local.sge(ALL..ALL + 1), EINVAL);
    check_err!(local.sge(start..stop), EINVAL);
    check_err!(local.sge(usize::MAX - 1..usize::MAX), EINVAL);
    check_err!(local.write(ALL - 1, &[1, 2]), EINVAL);
    check_err!(local.write(usize::MAX, &[1, 2]), EINVAL);
    check_err!(local.read(ALL, &mut [0]), EINVAL);
    check_err!(local.peek(ALL), EINVAL);
    let local = || Token::memory(&local);
    // The QP was made for 4.
    let got = refusal(end, local(), |token, wr| {
        for at in 0..5 {
            wr.sge(token.mem()?.sge(at..at + 1)?)?;
        }
        wr.send()
    });
    check!(got == Some(E2BIG));
    let refused = end.qp.post_recv(local(), |token, wr| {
        for at in 0..5 {
            wr.sge(token.mem()?.sge(at..at + 1)?)?;
        }
        Ok(())
    });
    check_err!(refused, E2BIG);
    check_eq!(end.qp.recv_room(), 16);
    // One that was made for none.
    let none = QpConfig {
        max_send_sge: 0,
        max_recv_sge: 0,
        ..config(QpType::Ud, 4)
    };
    let mut bare = loose(&end.pd, none)?;
    let refused = bare
        .qp
        .post_recv(local(), |token, wr| wr.sge(token.mem()?.sge(0..1)?));
    check_err!(refused, E2BIG);
    Ok(())
}

fn refused_pd(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let foreign = memory(&b.pd, ALL)?;
    let got = refusal(a, Token::memory(&foreign), |token, wr| {
        wr.sge(token.mem()?.sge(0..8)?)?;
        wr.send()
    });
    check!(got == Some(EINVAL));
    let refused = a.qp.post_recv(Token::memory(&foreign), |token, wr| {
        wr.sge(token.mem()?.sge(0..8)?)
    });
    check_err!(refused, EINVAL);
    // Regions of another PD.
    let region = b.region(ALL, Access::REMOTE_WRITE)?;
    let token = Token {
        region: Some(region),
        ..Default::default()
    };
    let got = refusal(a, token, |token, wr| {
        wr.local_inv(token.region.as_ref().ok_or(EINVAL)?)
    });
    check!(got == Some(EINVAL));
    let mr = crate::verbs::Mr::new(&b.pd, ALL)?;
    let registration = mr.register(crate::rig::plain(&b.pd, ALL)?, Access::REMOTE_READ)?;
    let token = Token {
        registration: Some(registration),
        ..Default::default()
    };
    let got = refusal(a, token, |token, wr| {
        wr.reg_mr(token.registration.as_ref().ok_or(EINVAL)?)
    });
    check!(got == Some(EINVAL));
    Ok(())
}

fn connected_by_hand_as_its_type(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let path = pair.a.id()?.path()?;
    check_err!(
        pair.a.qp.connect_uc(&path, 1, 0, 0, Access::LOCAL_WRITE),
        EINVAL
    );
    check_err!(pair.a.qp.ready_ud(&path, QKEY, 0), EINVAL);
    let mut uc = loose(&pair.a.pd, config(QpType::Uc, 4))?;
    check_err!(uc.qp.ready_ud(&path, QKEY, 0), EINVAL);
    let mut ud = loose(&pair.a.pd, config(QpType::Ud, 4))?;
    check_err!(
        ud.qp.connect_uc(&path, 1, 0, 0, Access::LOCAL_WRITE),
        EINVAL
    );
    Ok(())
}
