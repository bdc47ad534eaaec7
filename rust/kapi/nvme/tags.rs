// SPDX-License-Identifier: GPL-2.0

//! What blk-mq calls.
//!
//! C header: `include/linux/blk-mq.h`

use super::{
    ctrl::{Ctrl, Object},
    request::{pdu, pop, push, Pdu},
    Batch, Expired, Request, Submitted, Timeout, Transport, Unsent,
};
use crate::sys;
use core::{marker::PhantomData, mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    ffi::{c_int, c_uint, c_void},
    prelude::*,
};

/// Bytes behind each request.
pub(super) const COMMAND_SIZE: u32 = core::mem::size_of::<Pdu>() as u32;

/// The functions for the tag set of the I/O queues (`IO`), or of the admin queue.
pub(super) struct Ops<T: Transport, const IO: bool>(PhantomData<T>);

impl<T: Transport, const IO: bool> Ops<T, IO> {
    pub(super) const OPS: &'static sys::blk_mq_ops = &sys::blk_mq_ops {
        queue_rq: Some(Self::queue_rq),
        commit_rqs: Some(Self::commit_rqs),
        queue_rqs: if IO { Some(Self::queue_rqs) } else { None },
        get_budget: None,
        put_budget: None,
        set_rq_budget_token: None,
        get_rq_budget_token: None,
        timeout: Some(Self::timeout),
        poll: if IO { Some(Self::poll) } else { None },
        complete: Some(sys::nvme_complete_rq),
        init_hctx: Some(Self::init_hctx),
        exit_hctx: None,
        init_request: Some(Self::init_request),
        exit_request: None,
        cleanup_rq: None,
        busy: None,
        map_queues: if IO { Some(Self::map_queues) } else { None },
        #[cfg(CONFIG_BLK_DEBUG_FS)]
        show_rq: None,
    };

    /// The queue that a hardware context stands for.
    ///
    /// # Safety
    ///
    /// It is one of ours.
    unsafe fn qid(hctx: *mut sys::blk_mq_hw_ctx) -> u16 {
        match IO {
            // SAFETY: By the function's safety requirement. There are fewer than 2^16.
            true => unsafe { (*hctx).queue_num as u16 + 1 },
            false => 0,
        }
    }

    /// The controller of a tag set or hardware context.
    ///
    /// # Safety
    ///
    /// `data` is what `nvme_alloc_admin_tag_set` and its like have as `driver_data`; the controller
    /// stays as long as the result is used.
    unsafe fn ctrl(data: *mut c_void) -> ManuallyDrop<Ctrl<T>> {
        // SAFETY: By the function's safety requirement.
        unsafe { Ctrl::borrow(data.cast()) }
    }

    /// # Safety
    ///
    /// For blk-mq: `hctx` is being made, of a set with `data` as its `driver_data`.
    unsafe extern "C" fn init_hctx(
        hctx: *mut sys::blk_mq_hw_ctx,
        data: *mut c_void,
        _index: c_uint,
    ) -> c_int {
        // SAFETY: blk-mq calls this for a context that it makes; `data` is our `driver_data`.
        unsafe { (*hctx).driver_data = data };
        0
    }

    /// # Safety
    ///
    /// For blk-mq: `rq` is being made, of `set`.
    unsafe extern "C" fn init_request(
        set: *mut sys::blk_mq_tag_set,
        rq: *mut sys::request,
        _index: c_uint,
        _node: c_int,
    ) -> c_int {
        let Some(rq) = NonNull::new(rq) else {
            return EINVAL.to_errno();
        };
        // SAFETY: The request is being made, with room for our data, which is zeroed; the set's
        // data is the controller.
        unsafe {
            let pdu = pdu(rq).as_mut();
            pdu.core.ctrl = (*set).driver_data.cast();
            pdu.core.cmd = &raw mut pdu.command;
        }
        0
    }

    /// # Safety
    ///
    /// For blk-mq: `hctx` is one of ours, and `data` has a request of it.
    unsafe extern "C" fn queue_rq(
        hctx: *mut sys::blk_mq_hw_ctx,
        data: *const sys::blk_mq_queue_data,
    ) -> sys::blk_status_t {
        // SAFETY: blk-mq calls this for one of our contexts with a request of it; the controller
        // outlives its tag sets.
        let (qid, ctrl, rq, last) = unsafe {
            let ctrl = Self::ctrl((*hctx).driver_data);
            (Self::qid(hctx), ctrl, (*data).rq, (*data).last)
        };
        let ready = ctrl.data().is_live(qid);
        // SAFETY: As above.
        let begun = unsafe { sys::rivet_nvme_begin(hctx, rq, ready) };
        let Some(rq) = NonNull::new(rq).filter(|_| begun.begun) else {
            return begun.status;
        };
        // SAFETY: It has begun, and blk-mq has given it to us.
        let request = unsafe { Request::from_raw(rq) };
        let (request, status) = match ctrl.data().submit(&ctrl, qid, request, last) {
            Submitted::Taken => return 0,
            Submitted::Busy(request) => (request, sys::RIVET_BLK_STS_RESOURCE),
            Submitted::Refused(request) => (request, sys::RIVET_BLK_STS_IOERR),
            // SAFETY: It has begun, and ends here.
            Submitted::Lost(request) => unsafe {
                return sys::nvme_host_path_error(request.into_raw().as_ptr());
            },
        };
        // SAFETY: It is given back to blk-mq, which ends it or begins it anew.
        unsafe { sys::nvme_cleanup_cmd(request.into_raw().as_ptr()) };
        status as sys::blk_status_t
    }

    /// What cannot begin stays in the list, and blk-mq has [`Self::queue_rq`] say what becomes of it.
    ///
    /// # Safety
    ///
    /// For blk-mq: the list has requests of our contexts, which are given to us.
    unsafe extern "C" fn queue_rqs(list: *mut sys::rq_list) {
        let (mut batch, mut hctx) = (Batch::new(), core::ptr::null_mut());
        // SAFETY: By the function's safety requirement. A request that has begun is taken out of the
        // list; one that has not stays ours only to be put back.
        unsafe {
            let mut given = core::mem::take(&mut *list);
            while let Some(rq) = pop(&mut given) {
                let its = rq.as_ref().mq_hctx;
                if its != hctx && !batch.is_empty() {
                    Self::send(hctx, core::mem::replace(&mut batch, Batch::new()));
                }
                hctx = its;
                let ctrl = Self::ctrl((*hctx).driver_data);
                let ready = ctrl.data().is_live(Self::qid(hctx));
                if !ctrl.submitting_sleeps() && sys::rivet_nvme_begin_one(rq.as_ptr(), ready) {
                    batch.push(Request::from_raw(rq));
                } else {
                    push(&mut *list, rq);
                }
            }
            if !batch.is_empty() {
                Self::send(hctx, batch);
            }
        }
    }

    /// # Safety
    ///
    /// `hctx` is one of ours, and the requests are of it.
    unsafe fn send(hctx: *mut sys::blk_mq_hw_ctx, batch: Batch) {
        // SAFETY: By the function's safety requirement.
        let (ctrl, qid) = unsafe { (Self::ctrl((*hctx).driver_data), Self::qid(hctx)) };
        let Unsent {
            busy,
            refused,
            lost,
        } = ctrl.data().submit_batch(&ctrl, qid, batch);
        // SAFETY: They have begun and are given back to blk-mq, which begins them anew, or end here.
        unsafe {
            for request in busy {
                let rq = request.into_raw().as_ptr();
                sys::nvme_cleanup_cmd(rq);
                sys::blk_mq_requeue_request(rq, true);
            }
            for request in refused {
                let rq = request.into_raw().as_ptr();
                sys::nvme_cleanup_cmd(rq);
                sys::blk_mq_end_request(rq, sys::RIVET_BLK_STS_IOERR as sys::blk_status_t);
            }
            for request in lost {
                sys::nvme_host_path_error(request.into_raw().as_ptr());
            }
        }
    }

    /// # Safety
    ///
    /// For blk-mq: `hctx` is one of ours.
    unsafe extern "C" fn commit_rqs(hctx: *mut sys::blk_mq_hw_ctx) {
        // SAFETY: As in `queue_rq`.
        unsafe {
            Self::ctrl((*hctx).driver_data)
                .data()
                .commit(Self::qid(hctx))
        };
    }

    /// # Safety
    ///
    /// For blk-mq: `hctx` is one of ours.
    unsafe extern "C" fn poll(
        hctx: *mut sys::blk_mq_hw_ctx,
        _batch: *mut sys::io_comp_batch,
    ) -> c_int {
        // SAFETY: As in `queue_rq`.
        let found = unsafe { Self::ctrl((*hctx).driver_data).data().poll(Self::qid(hctx)) };
        // A queue has fewer completions.
        found as c_int
    }

    /// # Safety
    ///
    /// For blk-mq: `rq` is one of ours that has begun, and is kept meanwhile.
    unsafe extern "C" fn timeout(rq: *mut sys::request) -> sys::blk_eh_timer_return {
        let Some(rq) = NonNull::new(rq) else {
            return sys::blk_eh_timer_return_BLK_EH_DONE;
        };
        // SAFETY: blk-mq calls this for a request that has begun, and keeps it meanwhile, though
        // it may have ended; then tag and command are just old.
        let (ctrl, qid, what) = unsafe {
            let hctx = rq.as_ref().mq_hctx;
            let command = (&raw const (*pdu(rq).as_ptr()).command).cast::<u8>();
            let what = Timeout {
                tag: rq.as_ref().tag as u16,
                opcode: command.read(),
            };
            (Self::ctrl((*hctx).driver_data), Self::qid(hctx), what)
        };
        match ctrl.data().expired(&ctrl, qid, &what) {
            Expired::Over => sys::blk_eh_timer_return_BLK_EH_DONE,
            Expired::Wait => sys::blk_eh_timer_return_BLK_EH_RESET_TIMER,
        }
    }

    /// # Safety
    ///
    /// For blk-mq: `set` is one of ours.
    unsafe extern "C" fn map_queues(set: *mut sys::blk_mq_tag_set) {
        // SAFETY: blk-mq calls this for one of our sets.
        let ctrl = unsafe { Self::ctrl((*set).driver_data) };
        let mut queues = ctrl.data().io_queues();
        // SAFETY: As above; there are so many kinds of queues.
        unsafe {
            sys::nvmf_map_queues(set, Object::raw(ctrl.object()), queues.as_mut_ptr());
        }
    }
}
