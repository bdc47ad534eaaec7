// SPDX-License-Identifier: GPL-2.0

//! The device's removal while objects of every kind live on it.
//!
//! A thread owns them and lets go when the watcher is told; until then the removal has to wait.

#![forbid(unsafe_code)]

use crate::{
    harness::{check, report, Fail, Outcome},
    kapi::{event::Event, kthread},
    rig::{connect, memory, pair, pause, Pair, Rig, Setup, Token},
    verbs::{device, Access, Device, Pd, Srq},
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// What the watcher shares with the thread.
#[pin_data]
struct Bond {
    #[pin]
    event: Event,
    device: Atomic<usize>,
    told: Atomic<bool>,
    stop: Atomic<bool>,
}

fn address(device: &Device) -> usize {
    core::ptr::from_ref(device).addr()
}

impl device::Watch for Bond {
    fn removing(&self, device: &Device) {
        if self.device.load(Relaxed) == address(device) {
            self.told.store(true, Relaxed);
            self.event.raise();
        }
    }
}

/// The objects and their keeper; a drop ends both. Fields are dropped in order.
pub(crate) struct Hostage {
    bond: Arc<Bond>,
    _thread: kthread::Thread,
    _watching: device::Watching,
}

impl Drop for Hostage {
    fn drop(&mut self) {
        self.bond.stop.store(true, Relaxed);
        self.bond.event.raise();
    }
}

/// What a device can have on it.
struct Objects {
    _pair: Pair,
    _other: Pair,
    _srq: Arc<Srq<Token>>,
    _region: crate::verbs::RegisteredMr,
    device: Arc<Device>,
}

fn objects(rig: &Rig) -> Outcome<Objects> {
    let mut one = pair(rig)?;
    let region = one.b.region(4096, Access::REMOTE_WRITE)?;
    let pd = Pd::new(&rig.device)?;
    let srq = Srq::new(&pd, 4, 1)?;
    let to = memory(&pd, 4096)?;
    srq.post_recv(Token::memory(&to), |token, wr| {
        wr.sge(token.mem()?.sge(0..64)?)
    })?;
    let setup = Setup {
        srq: Some((pd, srq.clone())),
        ..Setup::rc(4)
    };
    let other = connect(rig, setup)?;
    // Under way, for good.
    let from = memory(&one.a.pd, 4096)?;
    for _ in 0..8 {
        one.a.post(Token::memory(&from), |token, wr| {
            wr.sge(token.mem()?.sge(0..64)?)?;
            wr.send()
        })?;
        one.a.recv(&from, 64, 64)?;
    }
    Ok(Objects {
        _pair: one,
        _other: other,
        _srq: srq,
        _region: region,
        device: rig.device.clone(),
    })
}

const NAME: &str = "device_removal";

/// Takes hold of the device; result `number` comes when it is removed, or the module is.
pub(crate) fn hold(rig: &Rig, number: usize) -> Option<Hostage> {
    match try_hold(rig, number) {
        Ok(hostage) => Some(hostage),
        Err(fail) => {
            report(number, NAME, Err(fail));
            None
        }
    }
}

fn try_hold(rig: &Rig, number: usize) -> Outcome<Hostage> {
    let objects = objects(rig)?;
    let bond = Arc::pin_init(
        pin_init!(Bond {
            event <- Event::new(),
            device: Atomic::new(address(&rig.device)),
            told: Atomic::new(false),
            stop: Atomic::new(false),
        }),
        GFP_KERNEL,
    )?;
    let watching = device::watch(bond.clone())?;
    let thread = {
        let bond = bond.clone();
        kthread::spawn(c"verbs-test-hold", move || {
            let outcome = keep(&bond, objects);
            report(number, NAME, outcome);
        })?
    };
    Ok(Hostage {
        bond,
        _thread: thread,
        _watching: watching,
    })
}

fn keep(bond: &Bond, objects: Objects) -> Outcome {
    while !bond.told.load(Relaxed) && !bond.stop.load(Relaxed) {
        bond.event.wait(1000);
    }
    if !bond.told.load(Relaxed) {
        return Err(Fail::skip("nobody removed the device"));
    }
    check!(objects.device.is_gone());
    let name = objects.device.name();
    // New objects still can be made by who holds the device; nobody new gets hold of it.
    check!(device::find(name.as_str()).is_none());
    pause(300)?;
    drop(objects);
    Ok(())
}
