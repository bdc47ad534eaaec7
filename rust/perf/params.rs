// SPDX-License-Identifier: GPL-2.0

//! What can be set on a perf end: values, their names, their ranges. Pure: it is tested on the
//! host too.

use super::exchange::wire::{ANSWER_LEN, REQUEST_LEN};
use crate::engine::accounting;
use crate::value::{choice, Bounds};
use core::num::NonZeroUsize;

choice! {
    /// Which end of the test it is.
    Role {
        /// Waits for clients.
        Server = 1, "server";
        /// Connects and makes the load.
        Client = 2, "client";
    }
}

choice! {
    /// The transport of the data QPs.
    Transport {
        /// Reliable connection.
        Rc = 1, "rc";
        /// Unreliable connection.
        Uc = 2, "uc";
        /// Unreliable datagram.
        Ud = 3, "ud";
    }
}

choice! {
    /// The operation that is measured.
    Op {
        /// SEND.
        Send = 1, "send";
        /// SEND with immediate data.
        SendImm = 2, "send_imm";
        /// RDMA WRITE.
        Write = 3, "write";
        /// RDMA WRITE with immediate data.
        WriteImm = 4, "write_imm";
        /// RDMA READ.
        Read = 5, "read";
        /// Atomic fetch-and-add.
        FetchAdd = 6, "fetch_add";
        /// Atomic compare-and-swap.
        CmpSwap = 7, "cmp_swap";
        /// A SEND answered by a SEND.
        SendPing = 8, "send_ping";
        /// An RDMA WRITE answered by an RDMA WRITE.
        WritePing = 9, "write_ping";
        /// A SEND answered by an RDMA WRITE and a SEND.
        ExchangeOut = 10, "exchange_out";
        /// A SEND answered by a SEND after an RDMA READ.
        ExchangeIn = 11, "exchange_in";
        /// A READ command of an NVMe/RDMA target, which is no end of perf.
        CapsuleRead = 12, "capsule_read";
    }
}

impl Op {
    /// From its number on the wire, if it is one that servers have.
    pub(crate) fn of_server(number: u8) -> Option<Self> {
        Self::from_wire(number).filter(|op| !op.is_capsule())
    }

    /// Whether it is a command of a storage protocol, whose server is no end of perf: see
    /// `perf::capsule`.
    pub(crate) fn is_capsule(self) -> bool {
        self == Op::CapsuleRead
    }

    /// Whether `transport` carries it.
    pub(crate) fn runs_on(self, transport: Transport) -> bool {
        match self {
            Op::Send | Op::SendImm | Op::SendPing => true,
            Op::Write | Op::WriteImm | Op::WritePing => transport != Transport::Ud,
            Op::Read
            | Op::FetchAdd
            | Op::CmpSwap
            | Op::ExchangeOut
            | Op::ExchangeIn
            | Op::CapsuleRead => transport == Transport::Rc,
        }
    }

    /// Whether it is an atomic: 8 bytes, one SGE.
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Op::FetchAdd | Op::CmpSwap)
    }

    /// Whether it is ping-pong, reported as half of a round trip.
    pub(crate) fn is_ping(self) -> bool {
        matches!(self, Op::SendPing | Op::WritePing)
    }

    /// Whether it is a request, what the server then does with memory of the client, and an answer:
    /// see [`super::exchange`].
    pub(crate) fn is_exchange(self) -> bool {
        matches!(self, Op::ExchangeOut | Op::ExchangeIn)
    }

    /// Whether it ends with something that the server sends, not with its own completion.
    pub(crate) fn has_answer(self) -> bool {
        self.is_ping() || self.is_exchange() || self.is_capsule()
    }

    /// Whether each operation takes a receive of the server.
    pub(crate) fn takes_receive(self) -> bool {
        self.needs_credit() || self.is_exchange()
    }

    /// Whether the server has to tell of the receives that it posts again.
    pub(crate) fn needs_credit(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::WriteImm | Op::SendPing)
    }

    /// Whether payloads are written into the peer's memory, but for pings.
    pub(crate) fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::WriteImm)
    }

    /// Whether submitters can make it: it ends with its own completion, and its payload may be in
    /// any page.
    pub(crate) fn can_be_submitted(self) -> bool {
        matches!(
            self,
            Op::Send | Op::SendImm | Op::Write | Op::WriteImm | Op::Read
        )
    }

    /// Whether READs or atomics are the server's, not the client's.
    pub(crate) fn server_reads(self) -> bool {
        self == Op::ExchangeIn
    }

    /// Whether it works on memory that was registered for the other end.
    pub(crate) fn needs_region(self) -> bool {
        !matches!(self, Op::Send | Op::SendImm | Op::SendPing)
    }
}

/// Namespace of a subsystem.
pub(crate) const NSID: Bounds = Bounds {
    min: 1,
    max: 0xffff_fffe,
};
/// TCP-like port.
pub(crate) const PORT: Bounds = Bounds { min: 1, max: 65535 };
/// Payload, bytes.
pub(crate) const SIZE: Bounds = Bounds {
    min: 1,
    max: 1 << 20,
};
/// SGEs per operation.
pub(crate) const SGES: Bounds = Bounds { min: 1, max: 32 };
/// Operations outstanding per connection.
pub(crate) const DEPTH: Bounds = Bounds { min: 1, max: 1024 };
/// Connections per client.
pub(crate) const CONNECTIONS: Bounds = Bounds { min: 1, max: 256 };
/// Operations of all connections together; 0 = by time.
pub(crate) const COUNT: Bounds = Bounds {
    min: 0,
    max: 1 << 48,
};
/// Duration, ms; 0 = by count.
pub(crate) const DURATION_MS: Bounds = Bounds {
    min: 0,
    max: 86_400_000,
};
/// Silence of the peer that ends a session, ms.
pub(crate) const TIMEOUT_MS: Bounds = Bounds {
    min: 100,
    max: 60_000,
};
/// Memory of one connection for its slots, bytes: at most this many at each end.
pub(crate) const CONNECTION_MEMORY: u64 = 256 << 20;

/// What a client asks of a server: the shape of the load. It comes over the wire, so the server
/// checks it as the client did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Load {
    /// Transport of the data QPs.
    pub(crate) transport: Transport,
    /// Operation.
    pub(crate) op: Op,
    /// Payload, bytes.
    pub(crate) size: u32,
    /// Operations outstanding per connection. With submitters, a connection is a lane, and it is
    /// what all of a lane have outstanding; but for READs, which share what they read, what one has.
    pub(crate) depth: u32,
    /// Connections.
    pub(crate) connections: u32,
    /// Whether payloads are checked.
    pub(crate) verify: bool,
}

/// What is wrong with a load, in words.
pub(crate) type Wrong = &'static str;

impl Load {
    /// Checks what does not depend on a device.
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        let within = |value: u32, b: Bounds| (b.min..=b.max).contains(&u64::from(value));
        if !within(self.size, SIZE) {
            return Err("size is out of range");
        }
        if !within(self.depth, DEPTH) {
            return Err("depth is out of range");
        }
        if !within(self.connections, CONNECTIONS) {
            return Err("connections is out of range");
        }
        if !self.op.runs_on(self.transport) {
            return Err("the transport does not carry the operation: \
                read, fetch_add, cmp_swap, exchange_out, exchange_in and capsule_read need rc; \
                write, write_imm and write_ping rc or uc");
        }
        if self.op.is_atomic() && self.size != 8 {
            return Err("fetch_add and cmp_swap need size 8");
        }
        if self.op.is_ping() && self.depth != 1 {
            return Err("send_ping and write_ping need depth 1");
        }
        let client = self.memory(true) / u64::from(self.connections);
        let server = self.memory(false) / u64::from(self.connections);
        if client.max(server) > CONNECTION_MEMORY {
            return Err("size times depth needs more than 256 MiB per connection");
        }
        Ok(())
    }

    /// Slots of an end that sends. What ends with an answer signals only now and then, so that slots
    /// are busy for longer than operations, and there are more; unless they are large.
    pub(crate) fn slots(&self) -> u32 {
        match self.op {
            op if op.is_ping() => PING_SLOTS,
            op if op.is_exchange() && self.size <= SMALL => self.depth.max(PING_SLOTS / 2) * 2,
            // Of capsules, which are small: two for each operation.
            op if op.is_capsule() => self.depth.max(PING_SLOTS / 2) * 2,
            _ => self.depth,
        }
    }

    /// One operation of so many asks for a completion, which ends those before it as well. `wanted`
    /// says how many; 0 is for: half of the depth at a time, so that at small depths each does;
    /// and a quarter of the slots where nobody waits for them, as an answer ends the operation.
    /// With `verify` each operation without an answer does whatever is wanted.
    pub(crate) fn signal_every(&self, wanted: u32) -> u64 {
        let answered = self.op.has_answer();
        match wanted {
            _ if self.verify && !answered => 1,
            0 if answered => u64::from(accounting::every(self.slots() / 2, 0)),
            0 => u64::from(accounting::every(self.depth, 0)),
            wanted => u64::from(wanted),
        }
    }

    /// Whether the client asks the server to look at each payload when the operation has completed.
    pub(crate) fn server_checks(&self) -> bool {
        self.verify && self.op.is_write()
    }

    /// Bytes of a message to an end.
    pub(crate) fn message_len(&self, client: bool) -> u32 {
        match (self.op.is_exchange(), client) {
            (true, true) => ANSWER_LEN as u32,
            (true, false) => REQUEST_LEN as u32,
            (false, _) => self.size,
        }
    }

    /// Receives that the server keeps posted per connection, and that a client may count on
    /// before it hears of more.
    pub(crate) fn receives(&self) -> u32 {
        if !self.op.takes_receive() {
            0
        } else if self.message_len(false) > SMALL {
            (self.depth * 2).max(4)
        } else {
            (self.depth * 8).clamp(16, 512).max(self.depth * 2)
        }
    }

    /// Slots that an end sends from: the client's load, and a server's answers.
    pub(crate) fn send_slots(&self, client: bool) -> u32 {
        if client || self.op.has_answer() {
            self.slots()
        } else {
            0
        }
    }

    /// Bytes from one of these slots to the next: what is sent, and with the payload of an
    /// exchange the server's answer behind it.
    pub(crate) fn send_stride(&self, client: bool) -> usize {
        match (self.op.is_exchange(), client) {
            (true, true) => REQUEST_LEN,
            (false, true) if self.op.is_capsule() => CAPSULE_LEN,
            (true, false) => self.stride() + ANSWER_LEN.next_multiple_of(64),
            (false, _) => self.stride(),
        }
    }

    /// Work requests that an end stages as one chain.
    pub(crate) fn chain(&self, client: bool) -> u32 {
        match self.op {
            Op::ExchangeOut if !client => 2,
            _ => 1,
        }
    }

    /// Work requests that an end's send queue has to hold.
    pub(crate) fn send_queue(&self, client: bool) -> u32 {
        (self.send_slots(client) * self.chain(client)).max(2)
    }

    /// Receives that an end posts per connection.
    pub(crate) fn posted_receives(&self, client: bool) -> u32 {
        if client && !self.op.has_answer() {
            0
        } else {
            self.receives()
        }
    }

    /// Slots of an end that the peer can reach, per connection.
    pub(crate) fn exposed_slots(&self, client: bool) -> u32 {
        match self.op {
            Op::WritePing => 1,
            Op::ExchangeOut | Op::ExchangeIn | Op::CapsuleRead if client => self.depth,
            _ if client => 0,
            Op::Write | Op::WriteImm | Op::Read => self.depth,
            Op::FetchAdd | Op::CmpSwap => 1,
            Op::Send
            | Op::SendImm
            | Op::SendPing
            | Op::ExchangeOut
            | Op::ExchangeIn
            | Op::CapsuleRead => 0,
        }
    }

    /// Bytes that a receive of an end has to hold.
    pub(crate) fn receive_len(&self, client: bool) -> usize {
        let header = match self.transport {
            Transport::Ud => GRH_LEN,
            _ => 0,
        };
        self.message_len(client) as usize + header
    }

    /// Bytes of payload memory that an end allocates for all connections.
    pub(crate) fn memory(&self, client: bool) -> u64 {
        let stride = self.stride();
        let receive = self.receive_len(client).next_multiple_of(64);
        let each = memory_of(self.send_slots(client), self.send_stride(client))
            + memory_of(self.posted_receives(client), receive)
            + memory_of(self.exposed_slots(client), stride);
        each.saturating_mul(u64::from(self.connections))
    }

    /// Bytes from one slot to the next in memory. With `verify`, payloads start at odd places.
    pub(crate) fn stride(&self) -> usize {
        // Blocks stay aligned.
        let odd = self.verify && !self.op.is_capsule();
        let pad = if odd { ODD_OFFSETS } else { 0 };
        (self.size as usize + pad).next_multiple_of(64)
    }

    /// Where in its slot the payload of operation `seq` starts: at odd places with `verify`, to
    /// see what alignment does. Atomics stay aligned.
    pub(crate) fn offset(&self, seq: u64) -> usize {
        if self.verify && self.op == Op::WritePing {
            // The ends poll one and the same byte.
            ODD_OFFSETS - 2
        } else if self.verify && !self.op.is_atomic() {
            (seq % ODD_OFFSETS as u64) as usize * 7 % ODD_OFFSETS
        } else {
            0
        }
    }
}

/// Memory is allocated in pieces of about so many bytes (and registered so).
const PIECE: usize = 1 << 20;
/// The least piece: a page.
const PAGE: usize = 4096;
/// Bytes in front of the payload of a receive on UD, as `verbs` has it.
const GRH_LEN: usize = 40;

/// How many slots of `stride` bytes go into a piece.
pub(crate) fn slots_per_piece(stride: usize) -> NonZeroUsize {
    PIECE
        .checked_div(stride)
        .and_then(NonZeroUsize::new)
        .unwrap_or(NonZeroUsize::MIN)
}

/// Bytes that `count` slots of `stride` bytes take: pieces are powers of two of pages.
fn memory_of(count: u32, stride: usize) -> u64 {
    let piece = |slots: usize| match slots {
        0 => 0,
        n => (n * stride).next_power_of_two().max(PAGE) as u64,
    };
    let per_piece = slots_per_piece(stride);
    let (full, rest) = (count as usize / per_piece, count as usize % per_piece);
    full as u64 * piece(per_piece.get()) + piece(rest)
}

/// Bytes of a capsule without data.
const CAPSULE_LEN: usize = 64;
/// Slots of a ping-pong end, and the least of an exchange's.
pub(crate) const PING_SLOTS: u32 = 32;
/// Messages up to so many bytes are small: a few more of them do not matter.
const SMALL: u32 = 1 << 14;

/// Payloads start at one of so many places with `verify`.
const ODD_OFFSETS: usize = 61;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_choices_go_both_ways() {
        for op in Op::ALL {
            assert_eq!(Op::parse(&op.to_string()), Some(*op));
            assert_eq!(Op::from_wire(op.to_wire()), Some(*op));
        }
        for t in Transport::ALL {
            assert_eq!(Transport::parse(&t.to_string()), Some(*t));
            assert_eq!(Transport::from_wire(t.to_wire()), Some(*t));
        }
        assert_eq!(Op::from_wire(0), None);
        assert_eq!(Op::from_wire(255), None);
        assert_eq!(Op::parse("SEND"), None);
    }

    fn load() -> Load {
        Load {
            transport: Transport::Rc,
            op: Op::Send,
            size: 64,
            depth: 1,
            connections: 1,
            verify: false,
        }
    }

    #[test]
    fn which_op_runs_where() {
        let on = |t| Op::ALL.iter().filter(|op| op.runs_on(t)).count();
        assert_eq!(on(Transport::Rc), 12);
        assert_eq!(on(Transport::Uc), 6);
        assert_eq!(on(Transport::Ud), 3);
        for t in Transport::ALL {
            for op in Op::ALL {
                let l = Load {
                    transport: *t,
                    op: *op,
                    size: 8,
                    ..load()
                };
                assert_eq!(l.check().is_ok(), op.runs_on(*t));
            }
        }
    }

    #[test]
    fn loads_that_make_no_sense() {
        assert!(load().check().is_ok());
        assert!(Load { size: 0, ..load() }.check().is_err());
        assert!(Load {
            size: (1 << 20) + 1,
            ..load()
        }
        .check()
        .is_err());
        assert!(Load { depth: 0, ..load() }.check().is_err());
        assert!(Load {
            depth: 1025,
            ..load()
        }
        .check()
        .is_err());
        assert!(Load {
            connections: 0,
            ..load()
        }
        .check()
        .is_err());
        assert!(Load {
            connections: u32::MAX,
            ..load()
        }
        .check()
        .is_err());
        assert!(Load {
            op: Op::FetchAdd,
            ..load()
        }
        .check()
        .is_err());
        assert!(Load {
            op: Op::SendPing,
            depth: 2,
            ..load()
        }
        .check()
        .is_err());
        assert!(Load {
            size: 1 << 20,
            depth: 1024,
            ..load()
        }
        .check()
        .is_err());
    }

    #[test]
    fn payloads_stay_in_their_slots() {
        for size in [1, 7, 8, 64, 1000, 4096, 1 << 20] {
            let l = Load {
                size,
                verify: true,
                ..load()
            };
            for op in [Op::Send, Op::WritePing] {
                let l = Load { op, ..l };
                for seq in 0..200 {
                    assert!(l.offset(seq) + size as usize <= l.stride());
                }
            }
        }
    }

    #[test]
    fn memory_is_what_slots_take() {
        assert_eq!(memory_of(0, 64), 0);
        assert_eq!(memory_of(1, 64), 4096);
        assert_eq!(memory_of(65, 64), 8192);
        assert_eq!(memory_of(3, 1 << 20), 3 << 20);
        assert_eq!(memory_of(2, (1 << 20) + 64), 4 << 20);
        let l = Load {
            op: Op::Write,
            size: 4096,
            depth: 16,
            connections: 4,
            ..load()
        };
        assert_eq!(l.memory(true), 4 * (64 << 10));
        assert_eq!(l.memory(false), 4 * (64 << 10));
        // What a client may ask for is bounded whatever it asks.
        for op in Op::ALL {
            let l = Load {
                op: *op,
                size: 1 << 20,
                depth: 1024,
                connections: 256,
                ..load()
            };
            assert!(l.check().is_err() || l.memory(false) <= 256 * CONNECTION_MEMORY);
        }
    }

    #[test]
    fn signals_at_small_depths_are_for_each() {
        let every = |op, depth, verify, wanted| {
            Load {
                op,
                depth,
                verify,
                ..load()
            }
            .signal_every(wanted)
        };
        assert_eq!(every(Op::Send, 1, false, 0), 1);
        assert_eq!(every(Op::Send, 3, false, 0), 1);
        assert_eq!(every(Op::Send, 32, false, 0), 16);
        assert_eq!(every(Op::Send, 1024, false, 0), 16);
        assert_eq!(every(Op::Send, 1024, true, 0), 1);
        assert_eq!(every(Op::SendPing, 1, false, 0), 8);
        assert_eq!(every(Op::SendPing, 1, true, 0), 8);
        assert_eq!(every(Op::ExchangeOut, 1, false, 0), 8);
        assert_eq!(every(Op::ExchangeIn, 32, true, 0), 16);
        let large = Load {
            op: Op::ExchangeOut,
            size: 1 << 20,
            ..load()
        };
        assert_eq!(large.signal_every(0), 1);
        // What is wanted counts at each depth, but not against the checks.
        assert_eq!(every(Op::Send, 1, false, 256), 256);
        assert_eq!(every(Op::Send, 1024, false, 1), 1);
        assert_eq!(every(Op::Send, 32, true, 256), 1);
        assert_eq!(every(Op::WritePing, 1, true, 1), 1);
        // Nobody divides by zero.
        for op in Op::ALL {
            for depth in [1, 7, 8, 1024] {
                for wanted in [0, 1, 256] {
                    assert!(every(*op, depth, false, wanted) > 0);
                }
            }
        }
    }

    #[test]
    fn receives_cover_the_depth() {
        for op in [Op::Send, Op::ExchangeOut, Op::ExchangeIn] {
            for size in [1, 4096, 1 << 16, 1 << 20] {
                for depth in [1, 2, 32, 128, 1024] {
                    let l = Load {
                        op,
                        size,
                        depth,
                        ..load()
                    };
                    assert!(l.receives() >= 2 * depth);
                    if op.is_exchange() {
                        assert_eq!(l.posted_receives(true), l.receives());
                    }
                }
            }
        }
    }

    #[test]
    fn capsules_are_no_business_of_servers() {
        for op in Op::ALL {
            let served = Op::of_server(op.to_wire());
            assert_eq!(served, Some(*op).filter(|op| *op != Op::CapsuleRead));
        }
        for (depth, slots) in [(1, 32), (16, 32), (32, 64), (1024, 2048)] {
            for verify in [false, true] {
                let l = Load {
                    op: Op::CapsuleRead,
                    size: 4096,
                    depth,
                    verify,
                    ..load()
                };
                assert!(l.check().is_ok());
                assert_eq!((l.slots(), l.stride()), (slots, 4096));
                assert_eq!((l.exposed_slots(true), l.exposed_slots(false)), (depth, 0));
                assert!(l.memory(true) >= u64::from(depth) * 4096 + u64::from(slots) * 64);
                assert_eq!(l.signal_every(0), u64::from(slots / 4).min(16));
            }
        }
    }

    #[test]
    fn slots_of_an_exchange() {
        let l = |op, size, depth| Load {
            op,
            size,
            depth,
            ..load()
        };
        for op in [Op::ExchangeOut, Op::ExchangeIn] {
            for (size, depth, slots) in [(1, 1, 32), (4096, 32, 64), (1 << 20, 32, 32)] {
                let l = l(op, size, depth);
                assert!(l.check().is_ok());
                assert_eq!(l.slots(), slots);
                assert_eq!(l.send_queue(true), slots);
                // The server's payload and its answer fit.
                assert!(l.send_stride(false) >= l.stride() + ANSWER_LEN);
                // The client's buffers are for the server; the server has none for the client.
                assert_eq!((l.exposed_slots(true), l.exposed_slots(false)), (depth, 0));
            }
        }
        assert_eq!(l(Op::ExchangeOut, 4096, 32).send_queue(false), 128);
        assert_eq!(l(Op::ExchangeIn, 4096, 32).send_queue(false), 64);
        assert!(l(Op::ExchangeIn, 1 << 20, 1024).check().is_err());
        let uc = Load {
            transport: Transport::Uc,
            ..l(Op::ExchangeOut, 64, 1)
        };
        assert!(uc.check().is_err());
    }
}
