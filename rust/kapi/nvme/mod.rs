// SPDX-License-Identifier: GPL-2.0

//! The NVMe core and blk-mq as a fabrics transport sees them.
//!
//! # Who owns what
//!
//! * A [`Ctrl`] is a reference to a controller: the core's `nvme_ctrl` with the transport's own
//!   data, in one allocation that the core frees with the last reference. Work that the transport
//!   queues on a controller holds one.
//! * A [`Request`] is a request that has begun and is owed its end. There is one value for it, so
//!   it ends once: with the controller's answer ([`Ended`]), or, where the value is dropped, as
//!   aborted. It owns the pages of the request until then: a mapping or a region that covers them
//!   holds the request, so a request cannot end while an HCA reaches its pages.
//! * So nothing of the core that ends other people's requests (`nvme_cancel_tagset`) is called: who
//!   ends a queue drops what the queue holds, and the core's own functions wait for the requests
//!   whose end is under way ([`Ctrl::wait_ended`]).
//!
//! # Who may run where
//!
//! [`Transport::submit`] and what it calls do not sleep. All other callbacks, and what is called of
//! a controller, may sleep, but for what says "any context".
//!
//! The structures are private to the kernel: [`crate::sys`] has them from the source of the kernel
//! that the module is built for, and the build compares them with what that kernel itself was built
//! with (`scripts/nvme-layout`).
//!
//! C headers: `drivers/nvme/host/nvme.h`, `drivers/nvme/host/fabrics.h`, `include/linux/blk-mq.h`

mod ctrl;
mod host;
mod request;
mod tags;
mod work;

pub(crate) use ctrl::{Ctrl, State, Trouble};
pub(crate) use host::{register, Connect, New, Options, Registration};
pub(crate) use request::{Batch, Ended, Request};
pub(crate) use work::together;

/// Command ids of the admin queue from this on are of asynchronous event requests, of which there
/// is one (`NVME_AQ_BLK_MQ_DEPTH`).
pub(crate) const EVENT_TAG: u16 = 31;

/// What becomes of a request that [`Transport::submit`] was given.
pub(crate) enum Submitted {
    /// The transport has it.
    Taken,
    /// Not now: it comes again, when another has ended or after a while.
    Busy(Request),
    /// Never: it fails with an I/O error.
    Refused(Request),
    /// There is no way to the controller: it fails as one that another path may take.
    Lost(Request),
}

/// Those of a batch that were not taken. See [`Submitted`].
pub(crate) struct Unsent {
    pub(crate) busy: Batch,
    pub(crate) refused: Batch,
    pub(crate) lost: Batch,
}

impl Unsent {
    /// None.
    pub(crate) const fn new() -> Self {
        Self {
            busy: Batch::new(),
            refused: Batch::new(),
            lost: Batch::new(),
        }
    }

    /// Whether all were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.busy.is_empty() && self.refused.is_empty() && self.lost.is_empty()
    }

    /// Adds what became of a request.
    pub(crate) fn add(&mut self, submitted: Submitted) {
        match submitted {
            Submitted::Taken => {}
            Submitted::Busy(request) => self.busy.push(request),
            Submitted::Refused(request) => self.refused.push(request),
            Submitted::Lost(request) => self.lost.push(request),
        }
    }
}

/// What follows a request's timeout.
pub(crate) enum Expired {
    /// It has ended, or ends soon.
    Over,
    /// It gets the same time again.
    Wait,
}

/// A transport's part of a controller. See the file's head for who may sleep.
pub(crate) trait Transport: Sized + Send + Sync + 'static {
    /// Whether the queue may be given any request, and not just those that make it ready. Any
    /// context.
    fn is_live(&self, qid: u16) -> bool;

    /// Sends a request. Must not sleep, unless the controller was made so. More are to come soon if
    /// it is not the `last`.
    fn submit(&self, ctrl: &Ctrl<Self>, qid: u16, request: Request, last: bool) -> Submitted;

    /// Sends requests that came together. Must not sleep; controllers whose [`Transport::submit`] may
    /// sleep are not asked.
    fn submit_batch(&self, ctrl: &Ctrl<Self>, qid: u16, batch: Batch) -> Unsent;

    /// No more come for now after all. Must not sleep.
    fn commit(&self, qid: u16);

    /// Looks for answers on a polled queue; says how many completions it has seen. Process context;
    /// must not sleep.
    fn poll(&self, qid: u16) -> u32;

    /// A request was not answered in time. It is somewhere in the transport.
    fn expired(&self, ctrl: &Ctrl<Self>, qid: u16, what: &Timeout) -> Expired;

    /// Sends the asynchronous event request, whose command id is [`EVENT_TAG`].
    fn send_event_request(&self, ctrl: &Ctrl<Self>);

    /// The controller is reset: ends all queues and sets them up again.
    fn reset(&self, ctrl: &Ctrl<Self>);

    /// What [`Ctrl::recover`] has queued.
    fn recover(&self, ctrl: &Ctrl<Self>);

    /// What [`Ctrl::reconnect_or_delete`] has queued.
    fn reconnect(&self, ctrl: &Ctrl<Self>);

    /// What [`Ctrl::give_up`] has queued.
    fn give_up(&self, ctrl: &Ctrl<Self>);

    /// The controller goes: ends all queues, and their tag sets.
    fn delete(&self, ctrl: &Ctrl<Self>);

    /// I/O queues for default, read and polled requests.
    fn io_queues(&self) -> [u32; 3];
}

/// A request that has timed out.
pub(crate) struct Timeout {
    /// Its tag.
    pub(crate) tag: u16,
    /// What was asked.
    pub(crate) opcode: u8,
}
