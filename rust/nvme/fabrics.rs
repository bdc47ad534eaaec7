// SPDX-License-Identifier: GPL-2.0

//! How a controller is set up over fabrics: the commands for that, without data pointer and id
//! ([`super::wire`] has these), and what it says of itself. Pure: it is tested on the host too.
//!
//! The host leaves this to the kernel's NVMe core; it is for who connects without that (perf's
//! `capsule_read`). NVMe base specification 2.0: Connect 6.3, properties 3.1.4 and 6.4, Identify
//! 5.17, features 5.27; READ in the NVM command set specification 1.0, 3.2.4.
//!
//! As there, what is read here are numbers of a peer, which whoever uses them checks.

use super::wire::{self, COMMAND, NSID};
use core::fmt;

/// Bytes of what goes with a Connect.
pub(crate) const CONNECT_DATA: usize = 1024;
/// Bytes of what Identify brings.
pub(crate) const IDENTIFY: usize = 4096;
/// Bytes of an NQN at most.
pub(crate) const NQN: usize = 223;
/// In the Connect of an admin queue: whatever controller there is.
pub(crate) const ANY_CONTROLLER: u16 = 0xffff;

/// Where the first command-specific words are.
const CDW10: usize = 40;
const CDW11: usize = 44;
const CDW12: usize = 48;

fn put(command: &mut [u8], at: usize, bytes: &[u8]) {
    command[at..at + bytes.len()].copy_from_slice(bytes);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(from) = bytes.get(at..at + N) {
        out.copy_from_slice(from);
    }
    out
}

/// A property of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Property {
    /// What it is able to: see [`Capabilities`].
    Cap,
    /// Its configuration.
    Cc,
    /// Its state: see [`State::of`].
    Csts,
}

impl Property {
    fn offset(self) -> u32 {
        match self {
            Property::Cap => 0,
            Property::Cc => 0x14,
            Property::Csts => 0x1c,
        }
    }
}

fn fabrics(kind: u8) -> [u8; COMMAND] {
    let mut command = [0; COMMAND];
    command[0] = 0x7f;
    command[NSID] = kind;
    command
}

/// Makes a connection the queue `qid`, of which `under_way` commands can be under way. The keep-alive
/// timer is off: who has nothing under way is not missed.
pub(crate) fn connect(qid: u16, under_way: u16) -> [u8; COMMAND] {
    let mut command = fabrics(1);
    put(&mut command, CDW10 + 2, &qid.to_le_bytes());
    put(&mut command, CDW11, &under_way.to_le_bytes());
    command
}

/// What goes with a Connect. NQNs that are too long are cut.
pub(crate) fn connect_data(
    host_id: [u8; 16],
    cntlid: u16,
    subsystem: &[u8],
    host: &[u8],
) -> [u8; CONNECT_DATA] {
    let mut data = [0; CONNECT_DATA];
    put(&mut data, 0, &host_id);
    put(&mut data, 16, &cntlid.to_le_bytes());
    put(&mut data, 256, &subsystem[..subsystem.len().min(NQN)]);
    put(&mut data, 512, &host[..host.len().min(NQN)]);
    data
}

/// Asks for a property.
pub(crate) fn get_property(property: Property) -> [u8; COMMAND] {
    let mut command = fabrics(4);
    // CAP has 8 bytes.
    command[CDW10] = u8::from(property == Property::Cap);
    put(&mut command, CDW11, &property.offset().to_le_bytes());
    command
}

/// Enables a controller with these capabilities: by its least page size, for NVM commands.
pub(crate) fn enable(capabilities: Capabilities) -> [u8; COMMAND] {
    let mut command = fabrics(0);
    let page = u64::from(capabilities.page_shift() - 12);
    let (entries, enabled) = ((4 << 20) | (6 << 16), 1);
    put(&mut command, CDW11, &Property::Cc.offset().to_le_bytes());
    put(
        &mut command,
        CDW12,
        &(entries | (page << 7) | enabled).to_le_bytes(),
    );
    command
}

fn identify(what: u8, nsid: u32) -> [u8; COMMAND] {
    let mut command = [0; COMMAND];
    command[0] = wire::IDENTIFY;
    command[CDW10] = what;
    put(&mut command, NSID, &nsid.to_le_bytes());
    command
}

/// Asks what a namespace is: see [`Namespace`].
pub(crate) fn identify_namespace(nsid: u32) -> [u8; COMMAND] {
    identify(0, nsid)
}

/// Asks what the controller is: see [`Controller`].
pub(crate) fn identify_controller() -> [u8; COMMAND] {
    identify(1, 0)
}

/// Asks for so many I/O queues; [`granted`] reads the answer.
pub(crate) fn ask_for_queues(n: u16) -> [u8; COMMAND] {
    let mut command = [0; COMMAND];
    command[0] = 0x09;
    command[CDW10] = 7;
    let n = n.saturating_sub(1).to_le_bytes();
    put(&mut command, CDW11, &n);
    put(&mut command, CDW11 + 2, &n);
    command
}

/// How many I/O queues there are, by the result of [`ask_for_queues`].
pub(crate) fn granted(result: u64) -> u32 {
    let [a, b, c, d, ..] = result.to_le_bytes();
    let (sends, completes) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    u32::from(sends.min(completes)) + 1
}

/// Reads `blocks` (1 to 65536) logical blocks from `first` on.
pub(crate) fn read(nsid: u32, first: u64, blocks: u32) -> [u8; COMMAND] {
    let mut command = [0; COMMAND];
    command[0] = 0x02;
    put(&mut command, NSID, &nsid.to_le_bytes());
    put(&mut command, CDW10, &first.to_le_bytes());
    let last = (blocks.saturating_sub(1) as u16).to_le_bytes();
    put(&mut command, CDW12, &last);
    command
}

/// What a controller is able to (CAP).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capabilities(pub(crate) u64);

impl Capabilities {
    /// Commands under way that a queue has at most: one less than its entries.
    pub(crate) fn under_way(self) -> u32 {
        // MQES counts from 0.
        u32::from(self.0 as u16)
    }

    /// How long it may take to become ready, ms.
    pub(crate) fn ready_ms(self) -> u32 {
        u32::from((self.0 >> 24) as u8) * 500
    }

    /// The least page size, as a power of two.
    pub(crate) fn page_shift(self) -> u32 {
        12 + ((self.0 >> 48) & 0xf) as u32
    }
}

/// The state of a controller (CSTS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It is getting ready.
    NotReady,
    /// It takes commands.
    Ready,
    /// It is of no use any more.
    Fatal,
}

impl State {
    /// By the property.
    pub(crate) fn of(csts: u64) -> Self {
        match csts & 3 {
            0 => State::NotReady,
            1 => State::Ready,
            _ => State::Fatal,
        }
    }
}

/// What the result of an admin queue's Connect says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Connected {
    /// The controller's id.
    pub(crate) cntlid: u16,
    /// It wants to know who the host is, before all else.
    pub(crate) authentication: bool,
}

impl Connected {
    /// By the result.
    pub(crate) fn of(result: u64) -> Self {
        Self {
            cntlid: result as u16,
            authentication: result & (3 << 17) != 0,
        }
    }
}

/// What a Connect was refused for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// There is no such subsystem.
    Subsystem,
    /// The host may not connect to it.
    Host,
    /// The queue is too long.
    QueueSize,
    /// The host has to say who it is.
    Authentication,
    /// Anything else.
    Other(u16),
}

impl Refused {
    /// By the status, and the result, which names a field.
    pub(crate) fn of(status: u16, result: u64) -> Self {
        match (wire::status_code(status), result as u32 & 0x1_ffff) {
            (0x182, 0x1_0100) => Refused::Subsystem,
            (0x182, 0x1_0200) | (0x184, _) => Refused::Host,
            (0x182, 44) => Refused::QueueSize,
            (0x191, _) => Refused::Authentication,
            _ => Refused::Other(status),
        }
    }
}

/// A status, without what is not of it: in words, for those that are met.
#[derive(Clone, Copy)]
pub(crate) struct Status(pub(crate) u16);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = wire::status_code(self.0);
        write!(f, "status {status:#x}")?;
        f.write_str(match status {
            0x1 => " (invalid opcode)",
            0x2 => " (invalid field)",
            0x6 => " (internal error)",
            0x7 => " (aborted)",
            0xb => " (invalid namespace or format)",
            0x80 => " (beyond the namespace's end)",
            0x281 => " (read error)",
            _ => "",
        })
    }
}

/// What a controller says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Controller {
    /// Data of a command, as a power of two of its pages; 0 for any length.
    mdts: u8,
    /// It takes keyed SGLs.
    pub(crate) keyed: bool,
}

impl Controller {
    /// By what Identify has brought.
    pub(crate) fn parse(data: &[u8]) -> Self {
        let sgls = u32::from_le_bytes(get(data, 536));
        Self {
            mdts: get::<1>(data, 77)[0],
            keyed: sgls & super::wire::SGLS_KEYED != 0,
        }
    }

    /// Bytes of data that a command has at most.
    pub(crate) fn longest(&self, capabilities: Capabilities) -> u64 {
        match self.mdts {
            0 => u64::MAX,
            mdts => 1u64
                .checked_shl(u32::from(mdts) + capabilities.page_shift())
                .unwrap_or(u64::MAX),
        }
    }
}

/// Why a namespace cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// There is none of that number.
    Absent,
    /// Its blocks are no power of two of bytes that makes sense.
    Blocks(u8),
    /// They have metadata.
    Metadata,
}

/// What a namespace is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Namespace {
    /// Logical blocks.
    pub(crate) blocks: u64,
    /// Bytes of one, as a power of two: 9 to 20.
    pub(crate) shift: u32,
}

impl Namespace {
    /// By what Identify has brought.
    pub(crate) fn parse(data: &[u8]) -> Result<Self, Unreadable> {
        let blocks = u64::from_le_bytes(get(data, 0));
        let [flbas] = get(data, wire::FLBAS);
        let [m0, m1, shift] = get(data, wire::metadata_at(flbas));
        match (blocks, shift) {
            (0, _) => Err(Unreadable::Absent),
            _ if (m0, m1) != (0, 0) => Err(Unreadable::Metadata),
            (_, 9..=20) if blocks <= u64::MAX >> shift => Ok(Self {
                blocks,
                shift: shift.into(),
            }),
            _ => Err(Unreadable::Blocks(shift)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connects() {
        let command = connect(0x0102, 0x1f);
        assert_eq!((command[0], command[4]), (0x7f, 1));
        assert_eq!(command[40..48], [0, 0, 2, 1, 0x1f, 0, 0, 0]);
        assert!(command[48..].iter().all(|b| *b == 0));
        let data = connect_data([7; 16], 0x0304, b"nqn.sub", &[b'h'; 300]);
        assert_eq!(data[..16], [7; 16]);
        assert_eq!(data[16..18], [4, 3]);
        assert_eq!(&data[256..264], b"nqn.sub\0");
        assert_eq!(data[512..512 + NQN], [b'h'; NQN]);
        assert_eq!(data[512 + NQN], 0);
        assert_eq!(
            Connected::of(0x1234),
            Connected {
                cntlid: 0x1234,
                authentication: false
            }
        );
        assert!(Connected::of(1 << 17).authentication && Connected::of(1 << 18).authentication);
        assert_eq!(Refused::of(0x182 << 1, 0x1_0100), Refused::Subsystem);
        // "Do not retry" and the phase say nothing.
        assert_eq!(Refused::of((0x4182 << 1) | 1, 0x1_0100), Refused::Subsystem);
        assert_eq!(Refused::of(0x184 << 1, 0), Refused::Host);
        assert_eq!(Refused::of(0x182 << 1, 0x1_0200), Refused::Host);
        assert_eq!(Refused::of(0x182 << 1, 44), Refused::QueueSize);
        assert_eq!(Refused::of(0x191 << 1, 0), Refused::Authentication);
        assert_eq!(Refused::of(0x182 << 1, 42), Refused::Other(0x182 << 1));
    }

    #[test]
    fn properties() {
        assert_eq!(
            get_property(Property::Cap)[40..48],
            [1, 0, 0, 0, 0, 0, 0, 0]
        );
        let command = get_property(Property::Csts);
        assert_eq!((command[4], command[40], command[44]), (4, 0, 0x1c));
        // 128 entries, 7.5 s, pages of 4 KiB.
        let cap = Capabilities(127 | 15 << 24);
        assert_eq!(
            (cap.under_way(), cap.ready_ms(), cap.page_shift()),
            (127, 7500, 12)
        );
        let command = enable(cap);
        assert_eq!((command[4], command[44]), (0, 0x14));
        assert_eq!(command[48..56], [1, 0, 0x46, 0, 0, 0, 0, 0]);
        let command = enable(Capabilities(1 << 48));
        assert_eq!(command[48..52], [0x81, 0, 0x46, 0]);
        assert_eq!(Capabilities(u64::MAX).page_shift(), 27);
        assert_eq!(State::of(0), State::NotReady);
        assert_eq!(State::of(1), State::Ready);
        assert_eq!(State::of(2), State::Fatal);
        assert_eq!(State::of(3), State::Fatal);
    }

    #[test]
    fn commands() {
        let command = read(0x0304, 0x0807_0605_0403_0201, 8);
        assert_eq!((command[0], command[4], command[5]), (2, 4, 3));
        assert_eq!(command[40..50], [1, 2, 3, 4, 5, 6, 7, 8, 7, 0]);
        assert_eq!(read(1, 0, 65536)[48..50], [0xff, 0xff]);
        let command = ask_for_queues(4);
        assert_eq!((command[0], command[40]), (9, 7));
        assert_eq!(command[44..48], [3, 0, 3, 0]);
        assert_eq!(granted(0x0003_0007), 4);
        assert_eq!(granted(0xffff_ffff), 65536);
        assert_eq!(identify_controller()[40], 1);
        assert_eq!(identify_namespace(5)[4..8], [5, 0, 0, 0]);
    }

    #[test]
    fn controllers() {
        let mut data = [0; IDENTIFY];
        assert_eq!(Controller::parse(&data).longest(Capabilities(0)), u64::MAX);
        assert!(!Controller::parse(&data).keyed);
        data[77] = 5;
        data[536] = 4;
        assert_eq!(Controller::parse(&data).longest(Capabilities(0)), 128 << 10);
        assert!(Controller::parse(&data).keyed);
        data[77] = 255;
        assert_eq!(Controller::parse(&data).longest(Capabilities(0)), u64::MAX);
        // Whatever there is too little of.
        assert!(!Controller::parse(&data[..100]).keyed);
    }

    #[test]
    fn namespaces() {
        let mut data = [0; IDENTIFY];
        assert_eq!(Namespace::parse(&data), Err(Unreadable::Absent));
        data[1] = 1;
        assert_eq!(Namespace::parse(&data), Err(Unreadable::Blocks(0)));
        data[130] = 9;
        let small = Namespace {
            blocks: 256,
            shift: 9,
        };
        assert_eq!(Namespace::parse(&data), Ok(small));
        data[128] = 8;
        assert_eq!(Namespace::parse(&data), Err(Unreadable::Metadata));
        // Another format, and one of a later standard.
        data[26] = 0x21;
        data[128 + 4 * 17 + 2] = 12;
        assert_eq!(
            Namespace::parse(&data),
            Ok(Namespace {
                blocks: 256,
                shift: 12
            })
        );
        data[7] = 0xff;
        assert_eq!(Namespace::parse(&data), Err(Unreadable::Blocks(12)));
        data[26] = 0x7f;
        data[7] = 0;
        assert_eq!(Namespace::parse(&data), Err(Unreadable::Blocks(0)));
    }

    #[test]
    fn statuses_have_words() {
        assert_eq!(
            Status(0x4281 << 1 | 1).to_string(),
            "status 0x281 (read error)"
        );
        assert_eq!(Status(0x7ff << 1).to_string(), "status 0x7ff");
    }
}
