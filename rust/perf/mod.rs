// SPDX-License-Identifier: GPL-2.0

//! perf: an RDMA performance test inside of the kernel.
//!
//! # The parts
//!
//! An [`end::End`] is a directory in configfs. Started as a server it runs a [`server`] thread,
//! which listens and makes a session for each client that it lets in; started as a client it runs
//! one session. A session ([`session::Session`]) is a thread that owns everything of it: a PD, its
//! CQs, a control connection ([`control::Control`], always RC), and the data connections
//! ([`conn::Conn`]) of the transport that is measured. As one thread owns it all, the data path
//! takes no lock; others reach a session only through its [`session::Mailbox`].
//!
//! A client with submitters has lanes of the engine instead of such connections, which threads of
//! their own share ([`submit`]); the server sees no difference.
//!
//! A client that reads from an NVMe target has no session, as nobody of perf is there: see [`capsule`].
//!
//! # A session from begin to end
//!
//! ```text
//! client                                             server
//!   connect request, Hello::Control (the load) ------> checks it against its own limits
//!   <---------------------------- accept, Welcome (a secret token), or reject, Refused
//!   for each data connection, one after the other:
//!     rc: connect request, Hello::Data (token, n) ---> accept
//!     uc, ud: Message::Open (QP number) ------------->
//!   <-------------------------------------------- Message::Opened (QP number)
//!   <-- Message::Region... (memory for one-sided operations; both ways for write_ping, the
//!                           client's for exchanges) -->
//!   <-------------------------------------------- Message::Ready
//!   operations ....................................
//!   Message::Finish -------------------------------> waits for what is still on its way
//!   <-------------------------------------------- Message::Finished (what it saw)
//!   disconnect
//! ```
//!
//! Both ends send heartbeats on the control connection, at a quarter of the silence that the other
//! end puts up with. Nobody else would tell a receiver that its peer is gone.
//!
//! # Flow control
//!
//! Operations that take a receive of the server are counted: a client has no more of them on their
//! way than the server keeps receives posted ([`params::Load::receives`]); [`wire::Message::Credit`]
//! tells how many the server has taken and replaced, but for exchanges, whose answers are credit
//! enough ([`exchange`]). So no transport ever meets a queue without a receive, and on UC and UD a
//! message that does not arrive was lost by the network.
//!
//! # Trust
//!
//! A session has a PD of its own, so its rkeys reach its own slots and nothing else, whatever the
//! peer does with them. Every message is decoded by [`wire`], which knows all ranges, and is then
//! checked against the state of the session; a peer that lies loses its session.

pub(crate) mod board;
pub(crate) mod capsule;
mod cause;
pub(crate) mod client;
pub(crate) mod conn;
pub(crate) mod control;
pub(crate) mod end;
pub(crate) mod exchange;
pub(crate) mod failure;
pub(crate) mod histogram;
pub(crate) mod listener;
pub(crate) mod params;
pub(crate) mod pattern;
pub(crate) mod post;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod slots;
pub(crate) mod stats;
pub(crate) mod submit;
pub(crate) mod wire;

crate::kapi::fmt::kernel_display!(
    board::State,
    cause::EndedWith,
    cause::LongPackets,
    failure::Failure,
    params::Op,
    params::Role,
    params::Transport,
    session::Place,
    wire::Refused,
);
