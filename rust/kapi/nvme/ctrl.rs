// SPDX-License-Identifier: GPL-2.0

//! Controllers.
//!
//! # Life
//!
//! [`super::New::make`] makes one, in the state [`State::Connecting`]. If [`super::Connect::connect`]
//! fails, it is taken out of the core again; else it is given to fabrics, and [`Ctrl::delete`] or
//! user space ends it, by [`Transport::delete`]. The object is freed with the last reference.
//!
//! C header: `drivers/nvme/host/nvme.h`

use super::{
    tags::{Ops, COMMAND_SIZE},
    work::{self, Work},
    Options, Transport,
};
use crate::sys;
use core::{fmt, mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc, Completion,
    },
    time::{delay::fsleep, Delta},
    types::Opaque,
};

/// Controllers that exist.
static LIVE: Atomic<usize> = Atomic::new(0);

/// Waits until no controller exists. Sleeps.
pub(super) fn wait_for_all() {
    // SAFETY: The workqueue is the core's and there as long as that is loaded, which our use of its
    // symbols sees to.
    unsafe { sys::__flush_workqueue(sys::nvme_delete_wq) };
    let mut said = false;
    loop {
        let live = LIVE.load(Acquire);
        if live == 0 {
            // What put the last references may still be about to return.
            // SAFETY: As above.
            unsafe {
                sys::__flush_workqueue(sys::nvme_delete_wq);
                sys::__flush_workqueue(sys::nvme_reset_wq);
                sys::__flush_workqueue(sys::nvme_wq);
            }
            return;
        }
        if !core::mem::replace(&mut said, true) {
            pr_info!("unloading waits for the end of {live} NVMe controllers\n");
        }
        fsleep(Delta::from_millis(20));
    }
}

/// What went wrong: an errno, or the status of an NVMe command.
///
/// # Invariants
///
/// Not 0; if negative, an errno.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trouble(i32);

impl Trouble {
    /// From what the core's functions return.
    fn from_ret(ret: i32) -> Result<(), Self> {
        match ret {
            0 => Ok(()),
            // INVARIANT: Not 0; the core's errors are errnos.
            ret => Err(Self(ret)),
        }
    }

    /// An errno for it.
    pub(crate) fn to_error(self) -> Error {
        match self.0 {
            e if e < 0 => Error::from_errno(e),
            _ => EIO,
        }
    }
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Self {
        // INVARIANT: Errnos are negative.
        Self(e.to_errno())
    }
}

impl From<kernel::alloc::AllocError> for Trouble {
    fn from(_: kernel::alloc::AllocError) -> Self {
        ENOMEM.into()
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            e if e < 0 => write!(f, "error {e}"),
            status => write!(f, "NVMe status {status:#x}"),
        }
    }
}

/// What a controller is doing (`enum nvme_ctrl_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It was made.
    New,
    /// It works.
    Live,
    /// Its queues end, to be set up again.
    Resetting,
    /// Its queues are set up, or will be.
    Connecting,
    /// It goes.
    Deleting,
    /// The same, and its namespaces take no more I/O.
    DeletingNoIo,
    /// It does not work any more.
    Dead,
}

impl State {
    fn from_raw(state: sys::nvme_ctrl_state) -> Self {
        match state {
            sys::nvme_ctrl_state_NVME_CTRL_NEW => State::New,
            sys::nvme_ctrl_state_NVME_CTRL_LIVE => State::Live,
            sys::nvme_ctrl_state_NVME_CTRL_RESETTING => State::Resetting,
            sys::nvme_ctrl_state_NVME_CTRL_CONNECTING => State::Connecting,
            sys::nvme_ctrl_state_NVME_CTRL_DELETING => State::Deleting,
            sys::nvme_ctrl_state_NVME_CTRL_DELETING_NOIO => State::DeletingNoIo,
            _ => State::Dead,
        }
    }
}

/// A controller, as the core and the transport share it.
///
/// # Invariants
///
/// * `ctrl` is initialised with operations for `T`; its options are valid until it is freed.
/// * A tag set is allocated if and only if its flag is set.
#[pin_data]
#[repr(C)]
pub(super) struct Object<T: Transport> {
    // First, so that the address of the one is that of the other.
    #[pin]
    ctrl: Opaque<sys::nvme_ctrl>,
    #[pin]
    admin_tags: Opaque<sys::blk_mq_tag_set>,
    has_admin_tags: Atomic<bool>,
    #[pin]
    io_tags: Opaque<sys::blk_mq_tag_set>,
    has_io_tags: Atomic<bool>,
    #[pin]
    pub(super) work: Work<T>,
    /// Fabrics has it, and the core deletes it, with its options.
    given: Atomic<bool>,
    /// The core does not use the options any more.
    freed: Arc<Freed>,
    #[pin]
    data: T,
}

// SAFETY: The core locks what it shares; `T` is `Send`.
unsafe impl<T: Transport> Send for Object<T> {}
// SAFETY: As above; `T` is `Sync`.
unsafe impl<T: Transport> Sync for Object<T> {}

impl<T: Transport> Object<T> {
    /// The core's part.
    pub(super) fn raw(this: NonNull<Self>) -> *mut sys::nvme_ctrl {
        this.as_ptr().cast()
    }

    /// Makes one.
    ///
    /// # Safety
    ///
    /// The device is the core's for fabrics; the options are valid until `create_ctrl` has failed,
    /// or else ours; the operations are static, and those of [`ops`] for `T`.
    pub(super) unsafe fn make(
        dev: *mut sys::device,
        opts: NonNull<sys::nvmf_ctrl_options>,
        ops: *const sys::nvme_ctrl_ops,
        data: impl PinInit<T, Error>,
    ) -> Result<Ctrl<T>> {
        // SAFETY: By the function's safety requirement.
        let options = unsafe { Options::from_raw(opts) };
        let init = try_pin_init!(Self {
            ctrl <- zeroed(),
            admin_tags <- zeroed(),
            has_admin_tags: Atomic::new(false),
            io_tags <- zeroed(),
            has_io_tags: Atomic::new(false),
            work <- Work::new(),
            given: Atomic::new(false),
            freed: Arc::pin_init(pin_init!(Freed { done <- Completion::new() }), GFP_KERNEL)?,
            data <- data,
        }? Error);
        let object = KBox::pin_init(init, GFP_KERNEL)?;
        // SAFETY: It is not moved: from here on only the pointer is used.
        let object = KBox::into_raw(unsafe { Pin::into_inner_unchecked(object) });
        let object = NonNull::new(object).ok_or(ENOMEM)?;
        let raw = Self::raw(object);
        // SAFETY: The memory is zeroed and ours; the core's initialisation follows.
        let made = unsafe {
            (*raw).opts = opts.as_ptr();
            sys::rivet_nvme_init_work(&raw mut (*raw).reset_work, Some(work::reset::<T>));
            (*raw).queue_count = options.all_io_queues() + 1;
            // 0's based. The options' is at least 16.
            (*raw).sqsize = options.queue_size().saturating_sub(1) as u16;
            (*raw).kato = (*opts.as_ptr()).kato;
            to_result(sys::nvme_init_ctrl(raw, dev, ops, 0))
        };
        if let Err(e) = made {
            // SAFETY: From `into_raw`, and the core has let go of it.
            drop(unsafe { KBox::from_raw(object.as_ptr()) });
            return Err(e);
        }
        LIVE.fetch_add(1, Relaxed);
        // The reference that it begins with is this one's.
        let ctrl = Ctrl(object);
        // SAFETY: Initialised above. It takes a reference, which `nvme_uninit_ctrl` puts.
        to_result(unsafe { sys::nvme_add_ctrl(raw) })?;
        ctrl.change_state(sys::nvme_ctrl_state_NVME_CTRL_CONNECTING);
        Ok(ctrl)
    }
}

/// Outlives its controller; completed by the controller's end.
#[pin_data]
struct Freed {
    #[pin]
    done: Completion,
}

/// Zeroed memory of a C object that is initialised later.
fn zeroed<C>() -> impl PinInit<Opaque<C>> {
    Opaque::ffi_init(|slot: *mut C| {
        // SAFETY: Memory for it.
        unsafe { slot.write_bytes(0, 1) }
    })
}

/// A reference to a controller. Dropping it may sleep.
///
/// # Invariants
///
/// The object lives, and a reference of the core's count belongs to this.
pub(crate) struct Ctrl<T: Transport>(NonNull<Object<T>>);

// SAFETY: The count is atomic, and the object is `Sync` and `Send`.
unsafe impl<T: Transport> Send for Ctrl<T> {}
// SAFETY: As above.
unsafe impl<T: Transport> Sync for Ctrl<T> {}

impl<T: Transport> Clone for Ctrl<T> {
    fn clone(&self) -> Self {
        // SAFETY: The object lives (type invariant).
        unsafe { sys::rivet_nvme_get_ctrl(self.raw()) };
        // INVARIANT: Counted just now.
        Self(self.0)
    }
}

impl<T: Transport> Drop for Ctrl<T> {
    fn drop(&mut self) {
        // SAFETY: The reference is ours (type invariant).
        unsafe { sys::rivet_nvme_put_ctrl(self.raw()) };
    }
}

impl<T: Transport> Ctrl<T> {
    /// A view of a controller that somebody else keeps.
    ///
    /// # Safety
    ///
    /// `raw` is one of ours with this transport, and stays as long as the result is used.
    pub(super) unsafe fn borrow(raw: *mut sys::nvme_ctrl) -> ManuallyDrop<Self> {
        // SAFETY: Never null, by the function's safety requirement.
        ManuallyDrop::new(Self(unsafe { NonNull::new_unchecked(raw.cast()) }))
    }

    /// Takes over a reference.
    ///
    /// # Safety
    ///
    /// The object lives, with a reference that is the caller's.
    pub(super) unsafe fn from_object(object: NonNull<Object<T>>) -> Self {
        // INVARIANT: By the function's safety requirement.
        Self(object)
    }

    pub(super) fn object(&self) -> NonNull<Object<T>> {
        self.0
    }

    fn raw(&self) -> *mut sys::nvme_ctrl {
        Object::raw(self.0)
    }

    pub(super) fn this(&self) -> &Object<T> {
        // SAFETY: The object lives (type invariant).
        unsafe { self.0.as_ref() }
    }

    /// The transport's part.
    pub(crate) fn data(&self) -> &T {
        &self.this().data
    }

    /// Reads a field of the core's, which may change at any time.
    fn read<V: Copy>(&self, field: impl FnOnce(*mut sys::nvme_ctrl) -> *mut V) -> V {
        // SAFETY: A field of an object that lives (type invariant), of a plain type.
        unsafe { field(self.raw()).read_volatile() }
    }

    /// Whether both are the same controller.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Its number, as in `/dev/nvme0`.
    pub(crate) fn number(&self) -> i32 {
        // SAFETY: The pointer is of a live object.
        self.read(|ctrl| unsafe { &raw mut (*ctrl).instance })
    }

    /// What it is doing. Any context.
    pub(crate) fn state(&self) -> State {
        // SAFETY: The pointer is of a live object.
        State::from_raw(self.read(|ctrl| unsafe { &raw mut (*ctrl).state }))
    }

    fn change_state(&self, to: sys::nvme_ctrl_state) -> bool {
        // SAFETY: Initialised (type invariant of `Object`).
        unsafe { sys::nvme_change_ctrl_state(self.raw(), to) }
    }

    /// From here on it is connecting. `false` if it is being deleted.
    #[must_use]
    pub(crate) fn set_connecting(&self) -> bool {
        self.change_state(sys::nvme_ctrl_state_NVME_CTRL_CONNECTING)
    }

    /// From here on it works. `false` if it is being deleted.
    #[must_use]
    pub(crate) fn set_live(&self) -> bool {
        self.change_state(sys::nvme_ctrl_state_NVME_CTRL_LIVE)
    }

    /// What the user has asked for.
    pub(crate) fn options(&self) -> Options<'_> {
        // SAFETY: The pointer is of a live object.
        let opts = self.read(|ctrl| unsafe { &raw mut (*ctrl).opts });
        // SAFETY: Set when the object was made, and valid as long as it (type invariant of
        // `Object`).
        unsafe { Options::from_raw(NonNull::new_unchecked(opts)) }
    }

    /// Whether it is the one that these options ask for.
    pub(crate) fn matches(&self, options: &Options<'_>) -> bool {
        // SAFETY: Both are valid.
        unsafe { sys::nvmf_ip_options_match(self.raw(), options.as_raw()) }
    }

    // ---- what the controller has said, and what it is told -----------------

    /// Queues, with the admin queue, that are in use or wanted.
    pub(crate) fn queue_count(&self) -> u32 {
        // SAFETY: The pointer is of a live object.
        self.read(|ctrl| unsafe { &raw mut (*ctrl).queue_count })
    }

    /// Asks for the I/O queues that the user wants, up to `most`; says how many there are to be, which
    /// is none if the controller has none to give. Sleeps.
    pub(crate) fn negotiate_queues(&self, most: u32) -> Result<u32, Trouble> {
        // SAFETY: The options are valid.
        let wanted = unsafe { sys::rivet_nvmf_nr_io_queues(self.options().as_raw()) };
        let mut n = wanted.min(most) as i32;
        // SAFETY: The admin queue is connected, or the command fails.
        Trouble::from_ret(unsafe { sys::nvme_set_queue_count(self.raw(), &mut n) })?;
        Ok(n.unsigned_abs())
    }

    /// Sets how many I/O queues there are, and deals them out over the kinds of requests: default,
    /// read, polled.
    pub(crate) fn set_io_queues(&self, n: u32) -> [u32; 3] {
        let mut kinds = [0; 3];
        // SAFETY: The object lives, and the caller sets queues up; there are so many kinds.
        unsafe {
            (*self.raw()).queue_count = n + 1;
            sys::nvmf_set_io_queues(self.options().as_raw(), n, kinds.as_mut_ptr());
        }
        kinds
    }

    /// Commands of an I/O queue at a time, less one.
    pub(crate) fn sqsize(&self) -> u16 {
        // SAFETY: The pointer is of a live object.
        self.read(|ctrl| unsafe { &raw mut (*ctrl).sqsize })
    }

    /// Sets that.
    pub(crate) fn set_sqsize(&self, sqsize: u16) {
        // SAFETY: The object lives; who sets queues up is alone with it.
        unsafe { (*self.raw()).sqsize = sqsize };
    }

    /// Commands that the controller takes at a time.
    pub(crate) fn maxcmd(&self) -> u16 {
        // SAFETY: The pointer is of a live object.
        self.read(|ctrl| unsafe { &raw mut (*ctrl).maxcmd })
    }

    /// Its number at the subsystem.
    pub(crate) fn cntlid(&self) -> u16 {
        // SAFETY: The pointer is of a live object.
        self.read(|ctrl| unsafe { &raw mut (*ctrl).cntlid })
    }

    /// Bytes of a capsule that it takes, with the command.
    pub(crate) fn capsule_len(&self) -> usize {
        // SAFETY: The pointer is of a live object. In units of 16 bytes.
        let ioccsz = self.read(|ctrl| unsafe { &raw mut (*ctrl).ioccsz });
        ioccsz as usize * 16
    }

    /// Where data in a capsule has to begin, behind the command, in units of 16 bytes.
    pub(crate) fn icdoff(&self) -> u16 {
        // SAFETY: The pointer is of a live object.
        self.read(|ctrl| unsafe { &raw mut (*ctrl).icdoff })
    }

    /// Which SGLs it takes.
    pub(crate) fn sgls(&self) -> u32 {
        // SAFETY: The pointer is of a live object.
        self.read(|ctrl| unsafe { &raw mut (*ctrl).sgls })
    }

    /// Says what a request may be: so many segments of a page each, on this memory node.
    pub(crate) fn set_limits(&self, segments: u32) {
        const SECTORS_OF_PAGE: u32 = 8;
        // SAFETY: The object lives; who sets queues up is alone with it.
        unsafe {
            let raw = self.raw();
            (*raw).max_segments = segments;
            (*raw).max_hw_sectors = segments.saturating_mul(SECTORS_OF_PAGE);
            (*raw).max_integrity_segments = 0;
        }
    }

    /// Says which memory node its tags are to be on.
    pub(crate) fn set_node(&self, node: Option<i32>) {
        // SAFETY: As for `set_limits`.
        unsafe { (*self.raw()).numa_node = node.unwrap_or(sys::NUMA_NO_NODE) };
    }

    // ---- tag sets and their queues --------------------------------------------

    /// Allocates the tags of the admin queue. Sleeps.
    pub(crate) fn alloc_admin_tags(&self) -> Result {
        let this = self.this();
        if this.has_admin_tags.xchg(true, Acquire) {
            return Err(EBUSY);
        }
        // SAFETY: There is none (type invariant of `Object`), and the set lives as long as the
        // object.
        let ret = to_result(unsafe {
            sys::nvme_alloc_admin_tag_set(
                self.raw(),
                this.admin_tags.get(),
                Ops::<T, false>::OPS,
                COMMAND_SIZE,
            )
        });
        if ret.is_err() {
            this.has_admin_tags.store(false, Release);
        }
        ret
    }

    /// Frees them; waits for the requests that have them. Sleeps.
    pub(crate) fn remove_admin_tags(&self) {
        let this = self.this();
        if this.has_admin_tags.xchg(false, Acquire) {
            // SAFETY: There is one (type invariant of `Object`).
            unsafe { sys::nvme_remove_admin_tag_set(self.raw()) };
        }
    }

    /// Allocates the tags of the I/O queues. Sleeps.
    pub(crate) fn alloc_io_tags(&self) -> Result {
        let this = self.this();
        if this.has_io_tags.xchg(true, Acquire) {
            return Err(EBUSY);
        }
        let kinds = match self.options().poll_queues() {
            0 => 2,
            _ => 3,
        };
        // SAFETY: As for `alloc_admin_tags`.
        let ret = to_result(unsafe {
            sys::nvme_alloc_io_tag_set(
                self.raw(),
                this.io_tags.get(),
                Ops::<T, true>::OPS,
                kinds,
                COMMAND_SIZE,
            )
        });
        if ret.is_err() {
            this.has_io_tags.store(false, Release);
        }
        ret
    }

    /// Frees them; waits for the requests that have them. Sleeps.
    pub(crate) fn remove_io_tags(&self) {
        let this = self.this();
        if this.has_io_tags.xchg(false, Acquire) {
            // SAFETY: There is one (type invariant of `Object`).
            unsafe { sys::nvme_remove_io_tag_set(self.raw()) };
        }
    }

    /// Hardware queues that the tags of the I/O queues are for; 0 without such.
    pub(crate) fn hardware_queues(&self) -> u32 {
        let this = self.this();
        match this.has_io_tags.load(Acquire) {
            // SAFETY: There is a tag set; the number changes only by the caller's own doing.
            true => unsafe { (*this.io_tags.get()).nr_hw_queues },
            false => 0,
        }
    }

    /// Tags of an I/O queue, with those that the core reserves; 0 without a tag set.
    pub(crate) fn io_depth(&self) -> u16 {
        let this = self.this();
        match this.has_io_tags.load(Acquire) {
            // SAFETY: There is a tag set; the number never changes. It comes from `sqsize`.
            true => unsafe { (*this.io_tags.get()).queue_depth as u16 },
            false => 0,
        }
    }

    /// The I/O queues become as many as were set: to be called while they are frozen. Sleeps.
    pub(crate) fn update_hardware_queues(&self) {
        let this = self.this();
        if this.has_io_tags.load(Acquire) {
            let n = self.queue_count().saturating_sub(1) as i32;
            // SAFETY: There is a tag set.
            unsafe { sys::blk_mq_update_nr_hw_queues(this.io_tags.get(), n) };
        }
    }

    /// Waits until all requests have ended whose end is under way. Sleeps.
    pub(crate) fn wait_ended(&self, io: bool) {
        let this = self.this();
        let (has, tags) = match io {
            true => (&this.has_io_tags, &this.io_tags),
            false => (&this.has_admin_tags, &this.admin_tags),
        };
        if has.load(Acquire) {
            // SAFETY: There is a tag set.
            unsafe { sys::blk_mq_tagset_wait_completed_request(tags.get()) };
        }
    }

    /// No request comes to the I/O queues from here on; waits for those that are being submitted,
    /// and for what looks for timeouts. Sleeps.
    pub(crate) fn quiesce_io(&self) {
        if self.this().has_io_tags.load(Acquire) {
            // SAFETY: There is a tag set.
            unsafe {
                sys::nvme_quiesce_io_queues(self.raw());
                sys::nvme_sync_io_queues(self.raw());
            }
        }
    }

    /// They come again.
    pub(crate) fn unquiesce_io(&self) {
        if self.this().has_io_tags.load(Acquire) {
            // SAFETY: There is a tag set.
            unsafe { sys::nvme_unquiesce_io_queues(self.raw()) };
        }
    }

    /// As [`Ctrl::quiesce_io`], for the admin queue.
    pub(crate) fn quiesce_admin(&self) {
        if self.this().has_admin_tags.load(Acquire) {
            // SAFETY: There is an admin queue, which came with the tags.
            unsafe {
                sys::nvme_quiesce_admin_queue(self.raw());
                sys::blk_sync_queue((*self.raw()).admin_q);
            }
        }
    }

    /// As [`Ctrl::unquiesce_io`], for the admin queue.
    pub(crate) fn unquiesce_admin(&self) {
        if self.this().has_admin_tags.load(Acquire) {
            // SAFETY: There is an admin queue, which came with the tags.
            unsafe { sys::nvme_unquiesce_admin_queue(self.raw()) };
        }
    }

    /// Freezes the I/O queues once they have run dry, which is waited for, to have their number
    /// changed by `f`. `false`, and nothing is changed, if that takes too long. Sleeps.
    #[must_use]
    pub(crate) fn frozen(&self, f: impl FnOnce()) -> bool {
        // SAFETY: Initialised; unfrozen below in any case.
        unsafe { sys::nvme_start_freeze(self.raw()) };
        self.unquiesce_io();
        // SAFETY: As above.
        let dry = unsafe { sys::nvme_wait_freeze_timeout(self.raw()) } != 0;
        if dry {
            f();
        }
        // SAFETY: Frozen above.
        unsafe { sys::nvme_unfreeze(self.raw()) };
        dry
    }

    // ---- steps of setting up and of ending -------------------------------------

    /// Has the admin queue made a queue of the controller. Sleeps.
    pub(crate) fn connect_admin_queue(&self) -> Result<(), Trouble> {
        // SAFETY: Sends a request to the queue for it, which the tags are there for.
        self.with_admin_tags(|raw| unsafe { sys::nvmf_connect_admin_queue(raw) })
    }

    /// Has an I/O queue made one of the controller. Sleeps.
    pub(crate) fn connect_io_queue(&self, qid: u16) -> Result<(), Trouble> {
        if qid == 0 || u32::from(qid) > self.hardware_queues() {
            return Err(EINVAL.into());
        }
        // SAFETY: There is a queue for it, which came with the tags.
        Trouble::from_ret(unsafe { sys::nvmf_connect_io_queue(self.raw(), qid) })
    }

    fn with_admin_tags(&self, f: impl FnOnce(*mut sys::nvme_ctrl) -> i32) -> Result<(), Trouble> {
        match self.this().has_admin_tags.load(Acquire) {
            true => Trouble::from_ret(f(self.raw())),
            false => Err(EINVAL.into()),
        }
    }

    /// Enables the controller. Sleeps.
    pub(crate) fn enable(&self) -> Result<(), Trouble> {
        // SAFETY: Sends requests to the admin queue, which is there.
        self.with_admin_tags(|raw| unsafe { sys::nvme_enable_ctrl(raw) })
    }

    /// Disables it, or has it shut down. Sleeps.
    pub(crate) fn disable(&self, shut_down: bool) {
        // SAFETY: As for `enable`. That it is gone already is no error.
        let _ = self.with_admin_tags(|raw| unsafe { sys::nvme_disable_ctrl(raw, shut_down) });
    }

    /// Identifies it, and does what follows from that. Sleeps.
    pub(crate) fn identify(&self) -> Result<(), Trouble> {
        // SAFETY: As for `enable`.
        self.with_admin_tags(|raw| unsafe { sys::nvme_init_ctrl_finish(raw, false) })
    }

    /// It works: looks for namespaces, and has events sent. Sleeps.
    pub(crate) fn start(&self) {
        // SAFETY: Initialised, and added.
        unsafe { sys::nvme_start_ctrl(self.raw()) };
    }

    /// Ends what [`Ctrl::start`] began. Sleeps.
    pub(crate) fn stop(&self) {
        // SAFETY: Initialised, and added.
        unsafe { sys::nvme_stop_ctrl(self.raw()) };
    }

    /// Ends the keep-alive. Sleeps.
    pub(crate) fn stop_keep_alive(&self) {
        // SAFETY: Initialised.
        unsafe { sys::nvme_stop_keep_alive(self.raw()) };
    }

    /// Ends an authentication that is under way. Sleeps.
    pub(crate) fn stop_authentication(&self) {
        // SAFETY: Initialised.
        unsafe { sys::rivet_nvme_auth_stop(self.raw()) };
    }

    /// Waits for what handles events, which may be sending the request for the next. Sleeps.
    pub(crate) fn flush_events(&self) {
        // SAFETY: Initialised by `nvme_init_ctrl`.
        unsafe { sys::flush_work(&raw mut (*self.raw()).async_event_work) };
    }

    /// The controller has answered the asynchronous event request. Any context.
    pub(crate) fn event(&self, status: u16, result: u64) {
        // SAFETY: Initialised; the result is read before the function returns.
        unsafe { sys::rivet_nvme_complete_async_event(self.raw(), status, result) };
    }

    /// From here on it is being reset. `false` if it is in a state in which that is not for others.
    pub(super) fn set_resetting(&self) -> bool {
        self.change_state(sys::nvme_ctrl_state_NVME_CTRL_RESETTING)
    }

    /// Whether it is to be connected again, when that has failed for `reason` if it was tried.
    pub(super) fn should_reconnect(&self, reason: Option<Trouble>) -> bool {
        let status = reason.map_or(0, |trouble| trouble.0);
        // SAFETY: Initialised.
        unsafe { sys::nvmf_should_reconnect(self.raw(), status) }
    }

    /// Counts an attempt to connect again; says which it is.
    pub(crate) fn count_attempt(&self) -> u32 {
        // SAFETY: The object lives; only who reconnects writes this.
        unsafe {
            let n = &raw mut (*self.raw()).nr_reconnects;
            *n = (*n).saturating_add(1);
            (*n).unsigned_abs()
        }
    }

    /// Connecting again has succeeded.
    pub(crate) fn reconnected(&self) {
        // SAFETY: As for `count_attempt`.
        unsafe { sys::rivet_nvme_count_reconnects(self.raw()) };
    }

    /// Deletes it soon, if it is not being deleted. Any context.
    pub(crate) fn delete(&self) {
        // SAFETY: Initialised. That it is being deleted is no error.
        let _ = unsafe { sys::nvme_delete_ctrl(self.raw()) };
    }

    /// Whether it was made so that [`Transport::submit`] may sleep. Any context.
    pub(super) fn submitting_sleeps(&self) -> bool {
        // SAFETY: Set when the object was made, and static.
        unsafe { (*(*self.raw()).ops).flags & sys::NVME_F_BLOCKING != 0 }
    }

    /// The name of its subsystem.
    pub(crate) fn subsystem(&self) -> &str {
        // SAFETY: The subsystem stays as long as the controller.
        let nqn = unsafe { CStr::from_char_ptr(sys::rivet_nvmf_ctrl_subsysnqn(self.raw())) };
        nqn.to_str().unwrap_or("?")
    }

    /// It is connected: fabrics gets the reference, and the options are the object's.
    pub(super) fn give(self) -> *mut sys::nvme_ctrl {
        self.this().given.store(true, Release);
        ManuallyDrop::new(self).raw()
    }

    /// It could not be connected: takes it out of the core, and waits for the last reference to go,
    /// as the options are fabrics' then. To be called once, of one that was not given. Sleeps.
    pub(super) fn take_back(self) {
        let freed = self.this().freed.clone();
        // SAFETY: Added, and as it was never started nobody else can delete it. This puts the
        // reference of `nvme_add_ctrl`, and `self` the other.
        unsafe { sys::nvme_uninit_ctrl(self.raw()) };
        drop(self);
        freed.done.wait_for_completion();
    }
}

// ---- what the core calls ---------------------------------------------------------

/// The operations of controllers of a transport that is known by `name`.
pub(super) fn ops<T: Transport>(name: &'static CStr, module: &ThisModule) -> sys::nvme_ctrl_ops {
    sys::nvme_ctrl_ops {
        name: name.as_char_ptr(),
        module: module.as_ptr(),
        flags: sys::NVME_F_FABRICS,
        reg_read32: Some(sys::nvmf_reg_read32),
        reg_read64: Some(sys::nvmf_reg_read64),
        reg_write32: Some(sys::nvmf_reg_write32),
        subsystem_reset: Some(sys::nvmf_subsystem_reset),
        free_ctrl: Some(free_ctrl::<T>),
        submit_async_event: Some(submit_async_event::<T>),
        delete_ctrl: Some(delete_ctrl::<T>),
        stop_ctrl: Some(stop_ctrl::<T>),
        get_address: Some(sys::nvmf_get_address),
        get_virt_boundary: Some(get_virt_boundary),
        ..Default::default()
    }
}

/// # Safety
///
/// For the core: `raw` is one of ours, without a reference; it is given up.
unsafe extern "C" fn free_ctrl<T: Transport>(raw: *mut sys::nvme_ctrl) {
    let object = raw.cast::<Object<T>>();
    // SAFETY: By the function's safety requirement. The options of one that was not given are freed
    // by fabrics.
    unsafe {
        if (*object).given.load(Acquire) {
            sys::nvmf_free_options((*raw).opts);
        }
        (*object).freed.done.complete_all();
        drop(KBox::from_raw(object));
    }
    LIVE.fetch_sub(1, Release);
}

/// # Safety
///
/// For the core: `raw` is one of ours.
unsafe extern "C" fn submit_async_event<T: Transport>(raw: *mut sys::nvme_ctrl) {
    // SAFETY: By the function's safety requirement.
    let ctrl = unsafe { Ctrl::<T>::borrow(raw) };
    ctrl.data().send_event_request(&ctrl);
}

/// # Safety
///
/// For the core: `raw` is one of ours.
unsafe extern "C" fn delete_ctrl<T: Transport>(raw: *mut sys::nvme_ctrl) {
    // SAFETY: By the function's safety requirement.
    let ctrl = unsafe { Ctrl::<T>::borrow(raw) };
    ctrl.data().delete(&ctrl);
}

/// # Safety
///
/// For the core: `raw` is one of ours.
unsafe extern "C" fn stop_ctrl<T: Transport>(raw: *mut sys::nvme_ctrl) {
    // SAFETY: By the function's safety requirement.
    let ctrl = unsafe { Ctrl::<T>::borrow(raw) };
    ctrl.stop_work();
}

/// No gaps within the pages of a request: a region cannot have such.
///
/// # Safety
///
/// None: it looks at nothing.
unsafe extern "C" fn get_virt_boundary(_raw: *mut sys::nvme_ctrl, _admin: bool) -> usize {
    sys::NVME_CTRL_PAGE_SIZE as usize - 1
}
