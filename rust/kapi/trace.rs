// SPDX-License-Identifier: GPL-2.0

//! Rivet's tracepoints, `events/rivet/` in tracefs. One that is off costs a static branch, which is
//! a `nop` that the kernel turns into a jump; its arguments must cost nothing either, or be made
//! only where it is on, as in [`waiting`].
//!
//! `kernel::tracepoint::declare_trace!` knows the kernel's own tracepoints only.
//!
//! Modules that are made of parts of Rivet, for tests, have no tracepoints: two modules cannot have
//! the same ones.
//!
//! C headers: `include/trace/events/rivet.h`, `include/linux/tracepoint.h`

#![cfg_attr(not(rivet_trace), allow(dead_code))]

/// The static branch of a tracepoint.
#[cfg(rivet_trace)]
macro_rules! is_on {
    ($key:ident) => {
        // SAFETY: The static key is that of a tracepoint, which C has defined.
        unsafe {
            kernel::jump_label::static_branch_unlikely!(
                crate::sys::$key,
                kernel::bindings::tracepoint,
                key
            )
        }
    };
}

#[cfg(not(rivet_trace))]
macro_rules! is_on {
    ($key:ident) => {
        false
    };
}

/// Defines functions that call a tracepoint, if it is on.
macro_rules! tracepoints {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) = $key:ident, $call:ident;)*) => {$(
        $(#[$doc])*
        /// Any context.
        #[inline(always)]
        pub(crate) fn $name($($arg: $ty),*) {
            if is_on!($key) {
                #[cfg(rivet_trace)]
                // SAFETY: The tracepoint takes plain numbers, in any context.
                unsafe { crate::sys::$call($($arg),*) };
            }
            #[cfg(not(rivet_trace))]
            let _ = ($($arg,)*);
        }
    )*};
}

tracepoints! {
    /// A work request was staged on the send queue of `qp`; `opcode` as in `enum ib_wr_opcode`.
    fn post(qp: u32, wr: u32, opcode: u32, bytes: u32, signaled: bool)
        = __tracepoint_rivet_post, rust_do_trace_rivet_post;
    /// `wrs` work requests are about to be posted with one call of the driver.
    fn doorbell(qp: u32, recv: bool, wrs: u32)
        = __tracepoint_rivet_doorbell, rust_do_trace_rivet_doorbell;
    /// A completion was taken out of a CQ and reached its QP; `status` as in `enum ib_wc_status`.
    fn complete(qp: u32, wr: u32, recv: bool, status: u32)
        = __tracepoint_rivet_complete, rust_do_trace_rivet_complete;
    /// A service's operation of `bytes`, which began at `begin`, is about to be staged on `qp`. If
    /// that fails, it is told again before the next try.
    fn submit(qp: u32, begin: u64, bytes: u64)
        = __tracepoint_rivet_submit, rust_do_trace_rivet_submit;
    /// A service's operation of `bytes` on `qp` is over; from `begin` to `end`, when its completion
    /// was taken, ns of the monotonic clock. Those of a QP end in the order in which they were
    /// submitted.
    fn done(qp: u32, begin: u64, end: u64, bytes: u64)
        = __tracepoint_rivet_done, rust_do_trace_rivet_done;
    /// A CQ of the poller of `cpu` has an event.
    fn cq_event(cpu: u32) = __tracepoint_rivet_cq_event, rust_do_trace_rivet_cq_event;
    /// The softirq of the poller of `cpu` was kicked, from another CPU if `remote`.
    fn kick(cpu: u32, remote: bool) = __tracepoint_rivet_kick, rust_do_trace_rivet_kick;
    /// A turn of the poller of `cpu` has found so many completions.
    fn poll(cpu: u32, found: u32) = __tracepoint_rivet_poll, rust_do_trace_rivet_poll;
    /// The poller of `cpu` waits in another mode from now on, in threads or in softirq: 0 =
    /// interrupt, 1 = coalesce, 2 = busy.
    fn mode(cpu: u32, thread: bool, mode: u32) = __tracepoint_rivet_mode, rust_do_trace_rivet_mode;
    /// A CQ of the poller of `cpu` was armed; completions may have come before that if `missed`.
    fn arm(cpu: u32, missed: bool) = __tracepoint_rivet_arm, rust_do_trace_rivet_arm;
    /// The MR cache had a registration, which has that key.
    fn mr_hit(key: u32, bytes: u64) = __tracepoint_rivet_mr_hit, rust_do_trace_rivet_mr_hit;
    /// The MR cache had none, and registers with that key.
    fn mr_miss(key: u32, bytes: u64) = __tracepoint_rivet_mr_miss, rust_do_trace_rivet_mr_miss;
    /// Memory is registered by a work request that is about to be staged.
    fn mr_register(key: u32, bytes: u64)
        = __tracepoint_rivet_mr_register, rust_do_trace_rivet_mr_register;
    /// A registration has ended, and its memory was let go.
    fn mr_invalidate(key: u32, bytes: u64)
        = __tracepoint_rivet_mr_invalidate, rust_do_trace_rivet_mr_invalidate;
    /// The MR cache gives a registration up: its invalidation is about to be staged.
    fn mr_evict(key: u32, bytes: u64) = __tracepoint_rivet_mr_evict, rust_do_trace_rivet_mr_evict;
    /// A lane's lock was had after a wait of `ns`.
    fn lock_wait(ns: u64) = __tracepoint_rivet_lock_wait, rust_do_trace_rivet_lock_wait;
    /// The QP with that number on its device was made (0), was reported to have failed (1), is being
    /// ended (2), or is gone (3).
    fn qp(qp: u32, number: u32, state: u32) = __tracepoint_rivet_qp, rust_do_trace_rivet_qp;
    /// The CM says something of a connection; `event` as in `enum rdma_cm_event_type`.
    fn cm(id: u64, event: u32, status: i32) = __tracepoint_rivet_cm, rust_do_trace_rivet_cm;
}

/// What happened to a QP, for [`qp`].
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum QpState {
    /// It was made.
    Made,
    /// The device reported an error.
    Failed,
    /// It is moved to error, to be drained.
    Ending,
    /// It was destroyed.
    Gone,
}

/// Calls `f` for its result, and tells how long that took if [`lock_wait`] is on. Any context.
#[inline(always)]
pub(crate) fn waiting<R>(f: impl FnOnce() -> R) -> R {
    if is_on!(__tracepoint_rivet_lock_wait) {
        let begin = super::time::now_ns();
        let result = f();
        lock_wait(super::time::now_ns().saturating_sub(begin));
        return result;
    }
    f()
}
