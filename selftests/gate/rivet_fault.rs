// SPDX-License-Identifier: GPL-2.0

//! One deliberate fault of each kind that the debug kernel looks for, made when this is loaded.
//!
//! They are made in Rust, as what is built for that kernel has to be instrumented like its own code.
//! On another kernel nothing is reported, and memory is only read where there is some.

use core::{hint::black_box, mem};
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    sync::{Mutex, SpinLock},
};

module! {
    type: Fault,
    name: "rivet_fault",
    authors: ["The Rivet developers"],
    description: "Deliberate faults, which the debug kernel has to report",
    license: "GPL",
}

/// The bytes of an allocation; the slab that it comes from has 64.
const BYTES: usize = 40;

struct Fault;

impl kernel::Module for Fault {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        leak()?;
        // Lockdep reports once, and nothing behind what KASAN has reported.
        lock_inversion()?;
        sleep_in_atomic()?;
        out_of_bounds()?;
        use_after_free()?;
        Ok(Self)
    }
}

/// Reads the byte behind an allocation.
#[inline(never)]
fn out_of_bounds() -> Result {
    let bytes = KBox::new(black_box([1u8; BYTES]), GFP_KERNEL)?;
    // SAFETY: None: this is the fault. The slab has more bytes than were asked for.
    black_box(unsafe { bytes.as_ptr().add(BYTES).read_volatile() });
    Ok(())
}

/// Reads an allocation that was freed.
#[inline(never)]
fn use_after_free() -> Result {
    let bytes = KBox::new(black_box([1u8; BYTES]), GFP_KERNEL)?;
    let first = bytes.as_ptr();
    drop(bytes);
    // SAFETY: None: this is the fault. The slab's memory stays mapped.
    black_box(unsafe { first.read_volatile() });
    Ok(())
}

/// Allocates under a spinlock as only who may sleep can.
#[inline(never)]
fn sleep_in_atomic() -> Result {
    let lock: Pin<KBox<SpinLock<u32>>> =
        KBox::pin_init(new_spinlock!(0, "rivet_fault_spinlock"), GFP_KERNEL)?;
    let guard = lock.lock();
    let bytes = KBox::new(black_box([1u8; BYTES]), GFP_KERNEL);
    drop(guard);
    bytes.map(drop)?;
    Ok(())
}

/// Forgets allocations. Some, as a stale pointer to one may be left somewhere.
#[inline(never)]
fn leak() -> Result {
    for _ in 0..8 {
        mem::forget(KBox::new(black_box([1u8; BYTES]), GFP_KERNEL)?);
    }
    Ok(())
}

#[pin_data]
struct Two {
    #[pin]
    first: Mutex<u32>,
    #[pin]
    second: Mutex<u32>,
}

/// Takes two locks in one order and then in the other.
#[inline(never)]
fn lock_inversion() -> Result {
    let two = KBox::pin_init(
        pin_init!(Two {
            first <- new_mutex!(0, "rivet_fault_first"),
            second <- new_mutex!(0, "rivet_fault_second"),
        }),
        GFP_KERNEL,
    )?;
    {
        let mut first = two.first.lock();
        *first += *two.second.lock();
    }
    let mut second = two.second.lock();
    *second += *two.first.lock();
    Ok(())
}
