// SPDX-License-Identifier: GPL-2.0

//! DMA mappings and memory regions.

#![forbid(unsafe_code)]

use crate::{
    harness::{check, check_eq, check_err, Case, Outcome},
    rig::{fill, is_filled, memory, pair, plain, Census, End, Pair, Rig, Token},
    verbs::{
        dma::live_mappings, Access, Buffer, Direction, Mapped, Mr, Pd, RemoteAddr, Wc, WcStatus,
    },
};
use kernel::prelude::*;

/// In the order in which they run.
pub(crate) const CASES: &[Case] = &[
    ("dma_buffer", dma_buffer),
    ("dma_kvec", dma_kvec),
    ("dma_vmalloc_is_refused", dma_vmalloc_is_refused),
    (
        "dma_memory_is_mapped_until_done",
        dma_memory_is_mapped_until_done,
    ),
    ("mr_limits", mr_limits),
    ("mr_foreign_pd", mr_foreign_pd),
    ("mr_cycles", mr_cycles),
    ("mr_wrong_proof", mr_wrong_proof),
    (
        "mr_flushed_invalidation_proves_nothing",
        mr_flushed_invalidation_proves_nothing,
    ),
    ("mr_after_invalidation", mr_after_invalidation),
    ("mr_dropped_registered", mr_dropped_registered),
    ("mr_foreign_invalidation", mr_foreign_invalidation),
    ("mr_unregistered", mr_unregistered),
];

const ALL: usize = 4096;

fn dma_buffer(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    check_err!(Buffer::new(0, None), EINVAL);
    check_err!(Buffer::new(Buffer::MAX + 1, None), EINVAL);
    check_err!(Buffer::new(usize::MAX, None), EINVAL);
    // A node that is not there.
    let _ = Buffer::new(1, Some(12_345))?;
    let _ = Buffer::new(1, Some(-7))?;
    let before = live_mappings();
    for (asked, len) in [(1, ALL), (ALL, ALL), (ALL + 1, 2 * ALL), (5 * ALL, 8 * ALL)] {
        let mapped = plain(&pd, asked)?;
        check_eq!(mapped.len(), len);
        check_eq!(live_mappings(), before + 1);
        let mut last = [1; 2];
        mapped.read(len - 2, &mut last)?;
        check_eq!(last, [0, 0]);
        mapped.write(len - 2, &[8, 9])?;
        mapped.read(len - 2, &mut last)?;
        check_eq!(last, [8, 9]);
        check_eq!(mapped.peek(len - 1)?, 9);
        check_eq!(mapped.sge(0..len)?.len() as usize, len);
        check_eq!(mapped.sge(len..len)?.len(), 0);
    }
    check_eq!(live_mappings(), before);
    Ok(())
}

fn dma_kvec(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let mut vec = KVec::new();
    vec.extend_from_slice(b"0123456789", GFP_KERNEL)?;
    let mapped = Mapped::new(&pd, vec, Direction::ToDevice)?;
    check_eq!(mapped.len(), 10);
    check_eq!(mapped.peek(9)?, b'9');
    check_err!(mapped.sge(0..11), EINVAL);
    let _ = mapped.sge(0..10)?;
    drop(mapped);
    check_err!(
        Mapped::new(&pd, KVec::<u8>::new(), Direction::ToDevice),
        EINVAL
    );
    Ok(())
}

fn dma_vmalloc_is_refused(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let before = live_mappings();
    let mut vec = VVec::with_capacity(3 * ALL, GFP_KERNEL)?;
    vec.extend_with(3 * ALL, 7u8, GFP_KERNEL)?;
    check_err!(Mapped::new(&pd, vec, Direction::Bidirectional), EINVAL);
    // One page of it, too.
    let mut vec = VVec::with_capacity(ALL, GFP_KERNEL)?;
    vec.extend_with(16, 7u8, GFP_KERNEL)?;
    check_err!(Mapped::new(&pd, vec, Direction::Bidirectional), EINVAL);
    check_eq!(live_mappings(), before);
    Ok(())
}

/// A token that is dropped by the caller's side alone still holds its memory while it is posted.
fn dma_memory_is_mapped_until_done(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let before = live_mappings();
    let to = memory(&pair.b.pd, ALL)?;
    pair.b.recv(&to, 0, ALL)?;
    drop(to);
    check_eq!(live_mappings(), before + 1);
    let from = memory(&pair.a.pd, ALL)?;
    fill(&from, 0, 100, 3)?;
    pair.a.post(Token::memory(&from), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..100)?)?;
        wr.send()
    })?;
    drop(from);
    let seen = pair.a.success()?;
    drop(seen);
    let seen = pair.b.success()?;
    check!(is_filled(seen.token.mem()?, 0, 100, 3)?);
    check_eq!(live_mappings(), before + 1);
    drop(seen);
    check_eq!(live_mappings(), before);
    Ok(())
}

fn mr_limits(rig: &Rig) -> Outcome {
    let pd = Pd::new(&rig.device)?;
    let most = rig.device.caps().max_fast_reg_pages as usize * ALL;
    check_err!(Mr::new(&pd, 0), EINVAL);
    check_err!(Mr::new(&pd, most + 1), EINVAL);
    check!(Mr::new(&pd, usize::MAX).is_err());
    let _ = Mr::new(&pd, most)?;
    let before = live_mappings();
    // Longer than the region covers.
    let short = Mr::new(&pd, ALL)?;
    check_err!(
        short.register(plain(&pd, 2 * ALL)?, Access::REMOTE_READ),
        EINVAL
    );
    check_eq!(live_mappings(), before);
    // Shorter is fine.
    let long = Mr::new(&pd, 4 * ALL)?;
    let registration = long.register(plain(&pd, ALL)?, Access::REMOTE_READ)?;
    check_err!(registration.done().remote(ALL), EINVAL);
    Ok(())
}

fn mr_foreign_pd(rig: &Rig) -> Outcome {
    let (pd, other) = (Pd::new(&rig.device)?, Pd::new(&rig.device)?);
    let mr = Mr::new(&pd, ALL)?;
    check_err!(
        mr.register(plain(&other, ALL)?, Access::REMOTE_READ),
        EINVAL
    );
    Ok(())
}

fn write(end: &mut End, to: RemoteAddr, seed: u8) -> Outcome<WcStatus> {
    let from = memory(&end.pd, ALL)?;
    fill(&from, 0, 64, seed)?;
    end.post(Token::memory(&from), |token, wr| {
        wr.signaled();
        wr.sge(token.mem()?.sge(0..64)?)?;
        wr.write(to)
    })?;
    Ok(end.one()?.status)
}

/// More cycles than a key has values.
fn mr_cycles(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let mut parts = (Mr::new(&b.pd, ALL)?, plain(&b.pd, ALL)?);
    let mut last = None;
    for cycle in 0..300u32 {
        let region = b.register(parts.0, parts.1, Access::REMOTE_WRITE)?;
        let remote = region.remote(0)?;
        check!(last != Some(remote.rkey));
        last = Some(remote.rkey);
        if cycle % 10 == 0 {
            let seed = cycle as u8;
            check!(write(a, remote, seed)? == WcStatus::Success);
            check!(is_filled(region.memory(), 0, 64, seed)?);
        }
        let mut seen = b.invalidate(region)?;
        check!(seen.status == WcStatus::Success && seen.proof);
        parts = seen.back.take().ok_or(EIO)?;
    }
    Ok(())
}

/// The proof of one registration does not open another, which stays as it was.
fn mr_wrong_proof(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let kept = b.region(ALL, Access::REMOTE_WRITE)?;
    let remote = kept.remote(0)?;
    let gone = b.region(ALL, Access::REMOTE_WRITE)?;
    let gone_remote = gone.remote(0)?;

    // By the peer: of `gone`, presented for `kept`.
    b.lent = Some(kept);
    b.qp.post_recv(Token::default(), |_, _| Ok(()))?;
    b.qp.flush_recv()?;
    a.post(Token::default(), |_, wr| {
        wr.signaled();
        wr.send_inv(gone_remote.rkey)
    })?;
    let _ = a.success()?;
    let seen = b.success()?;
    check!(seen.proof && seen.back.is_none());
    check_eq!(seen.invalidated, Some(gone_remote.rkey));
    let kept = b.lent.take().ok_or(EIO)?;
    check!(write(a, remote, 21)? == WcStatus::Success);
    check!(is_filled(kept.memory(), 0, 64, 21)?);

    drop(gone);

    // By ourselves: the work request invalidates `third`, the proof is presented for `kept`.
    let third = b.region(ALL, Access::REMOTE_WRITE)?;
    let token = Token {
        region: Some(third),
        ..Default::default()
    };
    b.post(token, |token, wr| {
        wr.signaled();
        wr.local_inv(token.region.as_ref().ok_or(EINVAL)?)
    })?;
    let mut kept = Some(kept);
    let mut wcs = [const { Wc::EMPTY }; 4];
    let mut tries = 0;
    let refused = loop {
        let mut refused = None;
        for wc in b.cq.poll(&mut wcs)? {
            while let Some(done) = b.qp.take_send(wc) {
                let proof = done.revocation.ok_or(EIO)?;
                let region = kept.take().ok_or(EIO)?;
                refused = Some(match region.reclaim(&proof) {
                    Ok(_) => false,
                    Err(region) => {
                        kept = Some(region);
                        true
                    }
                });
            }
        }
        if let Some(refused) = refused {
            break refused;
        }
        tries += 1;
        check!(tries < 1000);
        b.bell.wait(1);
    };
    check!(refused);
    let kept = kept.take().ok_or(EIO)?;
    check!(write(a, remote, 22)? == WcStatus::Success);
    check!(is_filled(kept.memory(), 0, 64, 22)?);
    Ok(())
}

/// An invalidation that was flushed gives no proof: not by its own completion, and not by a later
/// one when its own was thrown away.
fn mr_flushed_invalidation_proves_nothing(rig: &Rig) -> Outcome {
    for skip in [false, true] {
        let mut pair = pair(rig)?;
        let b = &mut pair.b;
        let region = b.region(ALL, Access::REMOTE_WRITE)?;
        b.qp.enter_error()?;
        let token = Token {
            number: 1,
            region: Some(region),
            ..Default::default()
        };
        b.post(token, |token, wr| {
            wr.local_inv(token.region.as_ref().ok_or(EINVAL)?)
        })?;
        b.post(Token::number(2), |_, wr| {
            wr.signaled();
            wr.send()
        })?;
        crate::rig::pause(100)?;
        let mut wcs = [const { Wc::EMPTY }; 4];
        let wcs = b.cq.poll(&mut wcs)?;
        check_eq!(wcs.len(), 2);
        let mut last = 0;
        for wc in wcs.iter_mut().skip(usize::from(skip)) {
            while let Some(done) = b.qp.take_send(wc) {
                check!(done.revocation.is_none());
                last = done.token.number;
            }
        }
        check_eq!(last, 2);
    }
    Ok(())
}

/// Access after the invalidation costs the connection, and nothing else.
fn mr_after_invalidation(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let mut other = crate::rig::pair(rig)?;
    let region = pair.b.region(ALL, Access::REMOTE_WRITE)?;
    let remote = region.remote(0)?;
    check!(write(&mut pair.a, remote, 30)? == WcStatus::Success);
    let mut seen = pair.b.invalidate(region)?;
    let (mr, back) = seen.back.take().ok_or(EIO)?;
    check!(write(&mut pair.a, remote, 31)? == WcStatus::RemoteAccess);
    check!(is_filled(&back, 0, 64, 30)?);
    check!(write(&mut pair.a, remote, 32)? == WcStatus::Flushed);
    drop((mr, back));
    // Another connection does not notice.
    let region = other.b.region(ALL, Access::REMOTE_WRITE)?;
    check!(write(&mut other.a, region.remote(0)?, 33)? == WcStatus::Success);
    check!(is_filled(region.memory(), 0, 64, 33)?);
    Ok(())
}

/// A region that is just dropped: its key ends before its memory does.
fn mr_dropped_registered(rig: &Rig) -> Outcome {
    let mut pair = pair(rig)?;
    let Pair { a, b, .. } = &mut pair;
    let before = live_mappings();
    let region = b.region(ALL, Access::REMOTE_WRITE)?;
    let remote = region.remote(0)?;
    check_eq!(live_mappings(), before + 1);
    check!(write(a, remote, 40)? == WcStatus::Success);
    drop(region);
    check_eq!(live_mappings(), before);
    check!(write(a, remote, 41)? == WcStatus::RemoteAccess);
    Ok(())
}

/// A peer that names a region of another PD: whatever the device does, no proof comes of it.
fn mr_foreign_invalidation(rig: &Rig) -> Outcome {
    let mut victim = pair(rig)?;
    let mut hostile = pair(rig)?;
    let region = victim.b.region(ALL, Access::REMOTE_WRITE)?;
    let rkey = region.remote(0)?.rkey;
    hostile.b.lent = Some(region);
    hostile.b.qp.post_recv(Token::default(), |_, _| Ok(()))?;
    hostile.b.qp.flush_recv()?;
    hostile.a.post(Token::default(), |_, wr| {
        wr.signaled();
        wr.send_inv(rkey)
    })?;
    let _ = hostile.a.one()?;
    let seen = hostile.b.one()?;
    check!(seen.back.is_none() && hostile.b.lent.is_some());
    // Our own invalidation finds it, whether the peer's did anything or not.
    let region = hostile.b.lent.take().ok_or(EIO)?;
    let _ = victim.b.invalidate(region)?;
    Ok(())
}

/// A registration that is dropped before it is posted, and one whose QP goes with it posted.
fn mr_unregistered(rig: &Rig) -> Outcome {
    let census = Census::new()?;
    let before = live_mappings();
    let pd = Pd::new(&rig.device)?;
    let registration = Mr::new(&pd, ALL)?.register(plain(&pd, ALL)?, Access::REMOTE_READ)?;
    drop(registration);
    check_eq!(live_mappings(), before);
    let mut pair = pair(rig)?;
    let mr = Mr::new(&pair.b.pd, ALL)?;
    let registration = mr.register(plain(&pair.b.pd, ALL)?, Access::REMOTE_READ)?;
    let token = Token {
        registration: Some(registration),
        soul: Some(census.birth()),
        ..Default::default()
    };
    pair.b.post(token, |token, wr| {
        wr.reg_mr(token.registration.as_ref().ok_or(EINVAL)?)
    })?;
    drop(pair);
    check_eq!(census.alive(), 0);
    check_eq!(live_mappings(), before);
    Ok(())
}
