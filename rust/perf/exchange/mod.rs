// SPDX-License-Identifier: GPL-2.0

//! `exchange_out` and `exchange_in`: what storage does for a read and for a write I/O, without the
//! storage. With all memory registered and completions polled they are the floor for a transport.
//!
//! # An operation
//!
//! ```text
//! client                                                 server
//!   request of 64 B: address and rkey of a buffer -------->
//!   exchange_out:  <---- RDMA WRITE into it, and behind it the answer, in one chain
//!   exchange_in:   <---- RDMA READ of it; when that has completed, the answer
//!   <------------------------------------- answer of 16 B
//! ```
//!
//! The operation is over at the client when the answer has come; RC brings it after the data. A
//! client has `depth` buffers, registered at the start of the session for no more than the server
//! has to do with them, and as many operations under way; they use the buffers in turn. Requests
//! are numbered, executed and answered in order, so counters are all the state there is: a number
//! says which buffer it is, and whether an answer can be. From its request to its answer a buffer
//! is the server's; the QP goes before the buffers do.
//!
//! # Queues
//!
//! Neither end waits for the completion of a SEND. So few of them ask for one, and there are more
//! slots than operations, for those whose completion is not known yet. A request that finds no slot
//! at the server waits there until one is free: the last slot's work request always asks for a
//! completion ([`super::conn::Conn::signals`]), and so does every READ, so one will be. A slot is
//! what the send queue has room for, so this cannot overflow.
//!
//! Each end has at least twice `depth` receives and posts them again before half of them are gone:
//! no request and no answer meets an empty queue. An answer is credit enough.

pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod wire;
