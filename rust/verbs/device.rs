// SPDX-License-Identifier: GPL-2.0

//! RDMA devices, and this module as a client of the RDMA core.
//!
//! # Life of a device
//!
//! The core calls `add` for each device that is or comes there, and `remove` when it goes or when
//! this module unregisters. Between the two the device is found by [`find`] and by the `rdma_cm`
//! id that is bound to it. `remove` takes the device out of the list (from then on nobody new gets
//! hold of it), tells the watchers, and sleeps until the last [`Device`] reference is dropped.
//! Clients are removed in the reverse order of their registration, so `rdma_cm` sees the removal
//! after us: whoever is told here must let go by itself and must not wait for
//! `RDMA_CM_EVENT_DEVICE_REMOVAL`.
//!
//! C header: `include/rdma/ib_verbs.h`

use super::{
    caps::{Caps, Driver},
    gone::{self, Gone},
    reaper::Reaper,
    room::Room,
};
use crate::sys;
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc, Completion,
    },
    types::Opaque,
};

kernel::sync::global_lock! {
    // SAFETY: `set_up` initialises it once, and whoever uses it has seen `READY` first.
    unsafe(uninit) static DEVICES: Mutex<KVec<Arc<Device>>> = KVec::new();
}

kernel::sync::global_lock! {
    // SAFETY: `set_up` initialises it once, and whoever uses it has seen `READY` first.
    unsafe(uninit) static WATCHERS: Mutex<Watchers> = Watchers { last: 0, list: KVec::new() };
}

/// The watchers, with ascending numbers, so that a walk can go on after the lock was let go.
struct Watchers {
    last: u64,
    list: KVec<(u64, Arc<dyn Watch>)>,
}

/// Told of devices that come and go. Runs in process context and may sleep.
pub(crate) trait Watch: Send + Sync {
    /// `device` can be used from now on.
    fn added(&self, _device: &Arc<Device>) {}

    /// `device` goes: drop every object on it, soon; the removal waits for that. Must not block
    /// on the removal itself.
    fn removing(&self, device: &Device);
}

/// A reference to an RDMA device that the core will not take away while it is held.
///
/// # Invariants
///
/// `raw` is a registered device: the client's `remove` for it does not return before this object
/// is dropped.
pub(crate) struct Device {
    raw: NonNull<sys::ib_device>,
    caps: Caps,
    /// Of the regions that may be kept.
    regions: Room,
    gone: Gone,
    released: Arc<Released>,
}

/// Outlives its [`Device`]; completed by the device's drop.
#[pin_data]
struct Released {
    #[pin]
    done: Completion,
}

// SAFETY: The C object may be used from any thread; all other fields are `Send`.
unsafe impl Send for Device {}
// SAFETY: What `&Device` offers is reading, and calls of the core that lock for themselves.
unsafe impl Sync for Device {}

impl Device {
    /// The C object, for the other files of `verbs`.
    pub(super) fn as_raw(&self) -> *mut sys::ib_device {
        self.raw.as_ptr()
    }

    /// What the device can do, as it said when it was added.
    pub(crate) fn caps(&self) -> &Caps {
        &self.caps
    }

    /// The room for regions that are kept ahead of need, of all who do so on the device: half of
    /// those that it has. The others are for regions that come and go, and for other ULPs.
    pub(crate) fn regions(&self) -> &Room {
        &self.regions
    }

    /// Whether the device is being removed. Work may still be outstanding on it.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.is()
    }

    /// The name at this moment (`rdma dev set` can change it), up to the first byte that is not
    /// ASCII.
    pub(crate) fn name(&self) -> DeviceName {
        let mut name = DeviceName([0; sys::IB_DEVICE_NAME_MAX as usize]);
        // SAFETY: The device is registered (type invariant) and the buffer has the length that
        // the helper writes at most.
        unsafe { sys::rivet_ib_device_name(self.as_raw(), name.0.as_mut_ptr().cast()) };
        name
    }

    /// The NUMA node that it is nearest to; `None` for one that is not on a bus, as the soft devices.
    pub(crate) fn node(&self) -> Option<i32> {
        // SAFETY: The device is registered (type invariant).
        let node = unsafe { sys::rivet_ibdev_to_node(self.as_raw()) };
        (node >= 0).then_some(node)
    }

    /// What port `port` (from 1) is and carries now. Sleeps.
    pub(crate) fn port(&self, port: u32) -> Result<Port> {
        let mut attr = sys::ib_port_attr::default();
        // SAFETY: The device is registered, `attr` is ours; the core checks the port number.
        to_result(unsafe { sys::ib_query_port(self.as_raw(), port, &mut attr) })?;
        Ok(Port {
            active_mtu: mtu_bytes(attr.active_mtu),
            max_message: attr.max_msg_sz,
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.released.done.complete_all();
    }
}

/// The name of a device, copied.
pub(crate) struct DeviceName([u8; sys::IB_DEVICE_NAME_MAX as usize]);

impl DeviceName {
    /// The name as text.
    pub(crate) fn as_str(&self) -> &str {
        let len = self.0.iter().position(|b| *b == 0 || !b.is_ascii());
        let bytes = &self.0[..len.unwrap_or(self.0.len())];
        core::str::from_utf8(bytes).unwrap_or("")
    }
}

/// Properties of a port.
pub(crate) struct Port {
    /// Path MTU of the link, bytes of payload per packet.
    pub(crate) active_mtu: u32,
    /// Longest message that the port carries, bytes.
    pub(crate) max_message: u32,
}

/// Bytes of an `enum ib_mtu`; 0 for a value that is none.
pub(super) fn mtu_bytes(mtu: sys::ib_mtu) -> u32 {
    // SAFETY: A pure function of its argument.
    let bytes = unsafe { sys::rivet_ib_mtu_enum_to_int(mtu) };
    u32::try_from(bytes).unwrap_or(0)
}

/// The device of that name, if it is there.
pub(crate) fn find(name: &str) -> Option<Arc<Device>> {
    if !is_ready() {
        return None;
    }
    let devices = DEVICES.lock();
    devices.iter().find(|d| d.name().as_str() == name).cloned()
}

/// The [`Device`] of a C device, unless its removal has begun.
pub(super) fn from_raw(raw: *mut sys::ib_device) -> Result<Arc<Device>> {
    if !is_ready() {
        return Err(ENODEV);
    }
    let devices = DEVICES.lock();
    let device = devices.iter().find(|d| d.as_raw() == raw);
    device.cloned().ok_or(ENODEV)
}

/// A watcher's place in the list; dropping it takes the watcher away. A call to it that is under
/// way may still run after that; it holds a reference of its own.
pub(crate) struct Watching(u64);

/// Adds a watcher; it is told of changes from now on. Who got hold of a device before this must
/// look at [`Device::is_gone`] after it, as the removal may already have been told.
///
/// # Errors
///
/// `ENODEV` before [`register`], `ENOMEM`.
pub(crate) fn watch(watcher: Arc<dyn Watch>) -> Result<Watching> {
    if !is_ready() {
        return Err(ENODEV);
    }
    let mut watchers = WATCHERS.lock();
    let number = watchers.last + 1;
    watchers.list.push((number, watcher), GFP_KERNEL)?;
    watchers.last = number;
    Ok(Watching(number))
}

impl Drop for Watching {
    fn drop(&mut self) {
        let removed = {
            let mut watchers = WATCHERS.lock();
            let at = watchers
                .list
                .iter()
                .position(|(number, _)| *number == self.0);
            at.and_then(|at| watchers.list.remove(at).ok())
        };
        // Its last reference may go here: outside of the lock.
        drop(removed);
    }
}

/// The first watcher behind the one with that number.
fn next_watcher(seen: u64) -> Option<(u64, Arc<dyn Watch>)> {
    gone::behind(&WATCHERS.lock().list, seen)
}

/// This module's registration with the RDMA core. Dropping it removes every device.
///
/// # Invariants
///
/// `client` is registered.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration {
    _once: (),
    // Dropped after the client is unregistered, which is done in `PinnedDrop`.
    #[allow(dead_code)]
    reaper: Reaper,
    #[pin]
    client: Opaque<sys::ib_client>,
}

/// The lists can be used.
static READY: Atomic<bool> = Atomic::new(false);
/// Somebody has set, or is setting them up.
static TAKEN: Atomic<bool> = Atomic::new(false);

/// Sets the lists up, once.
fn set_up() -> Result {
    if TAKEN.xchg(true, Relaxed) {
        return Err(EBUSY);
    }
    // SAFETY: Only the first comes here, and nobody uses the lists before `READY`.
    unsafe {
        DEVICES.init();
        WATCHERS.init();
    }
    READY.store(true, Release);
    Ok(())
}

/// Whether the lists can be used.
fn is_ready() -> bool {
    READY.load(Acquire)
}

// SAFETY: Only the core touches the C object, under its own locks.
unsafe impl Send for Registration {}
// SAFETY: `&Registration` offers nothing.
unsafe impl Sync for Registration {}

/// Registers as a client: `add` runs for each device that is there before this returns.
///
/// # Errors
///
/// `EBUSY` at the second call, whatever became of the first: there is one in a module's life.
pub(crate) fn register() -> impl PinInit<Registration, Error> {
    try_pin_init!(Registration {
        _once: set_up()?,
        reaper: Reaper::new()?,
        client <- Opaque::try_ffi_init(|slot: *mut sys::ib_client| {
            // SAFETY: `slot` is valid for writes; a zeroed `ib_client` is a valid one without
            // optional callbacks.
            unsafe {
                slot.write_bytes(0, 1);
                (*slot).name = c"rivet".as_char_ptr();
                (*slot).add = Some(add);
                (*slot).remove = Some(remove);
            }
            // INVARIANT: Registered if this succeeds; else the object is never made.
            // SAFETY: Initialised above; pinned until `PinnedDrop` unregisters it.
            to_result(unsafe { sys::ib_register_client(slot) })
        }),
    })
}

#[pinned_drop]
impl PinnedDrop for Registration {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered (type invariant). `remove` has run for each device when it returns.
        unsafe { sys::ib_unregister_client(self.client.get()) };
        // Statics are never dropped: what the empty lists still hold goes here.
        *DEVICES.lock() = KVec::new();
        WATCHERS.lock().list = KVec::new();
    }
}

/// The core's `add`: makes the [`Device`] and shows it around.
///
/// # Safety
///
/// For the core: `raw` is a registered device.
unsafe extern "C" fn add(raw: *mut sys::ib_device) -> kernel::ffi::c_int {
    match try_add(raw) {
        Ok(()) => 0,
        Err(e) => {
            pr_err!("an RDMA device cannot be used: error {}\n", e.to_errno());
            e.to_errno()
        }
    }
}

fn try_add(raw: *mut sys::ib_device) -> Result {
    let raw = NonNull::new(raw).ok_or(EINVAL)?;
    let released = Arc::pin_init(
        pin_init!(Released { done <- Completion::new() }),
        GFP_KERNEL,
    )?;
    // SAFETY: The device is registered: its attributes and operations are there and do not change.
    let caps = unsafe {
        let device = raw.as_ref();
        let driver = match device.ops.driver_id {
            sys::rdma_driver_id_RDMA_DRIVER_RXE => Driver::Rxe,
            sys::rdma_driver_id_RDMA_DRIVER_SIW => Driver::Siw,
            _ => Driver::Other,
        };
        // All ports of a device speak iWARP, or none does.
        let iwarp = sys::rivet_rdma_cap_iwarp(raw.as_ptr(), 1);
        Caps::new(&device.attrs, device.ops.modify_cq.is_some(), driver, iwarp)
    };
    // INVARIANT: The core calls `add` for a registered device and calls `remove` before it goes,
    // and `remove` waits for the drop of the object made here.
    let device = Arc::new(
        Device {
            raw,
            regions: Room::new(caps.max_mr / 2),
            caps,
            gone: Gone::new(),
            released,
        },
        GFP_KERNEL,
    )?;
    DEVICES.lock().push(device.clone(), GFP_KERNEL)?;
    gone::walk(next_watcher, |w| w.added(&device));
    Ok(())
}

/// The core's `remove`: nothing of ours is left on the device when it returns.
///
/// # Safety
///
/// For the core: `add` was called for `raw`.
unsafe extern "C" fn remove(raw: *mut sys::ib_device, _data: *mut kernel::ffi::c_void) {
    let device = {
        let mut devices = DEVICES.lock();
        let at = devices.iter().position(|d| d.as_raw() == raw);
        at.and_then(|at| devices.remove(at).ok())
    };
    // `add` failed for it: nothing was ever made on it.
    let Some(device) = device else { return };
    device.gone.announce(next_watcher, |w| w.removing(&device));
    let released = device.released.clone();
    drop(device);
    released.done.wait_for_completion();
}
