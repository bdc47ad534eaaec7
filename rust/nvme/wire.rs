// SPDX-License-Identifier: GPL-2.0

//! What goes over the network: the private data of a connection, the SGL of a command, and the
//! completion queue entry. Pure: it is tested on the host too.
//!
//! NVMe over RDMA transport specification 1.0 (private data: 3.2; SGLs: NVMe base specification
//! 2.0, 4.1.2; in capsules and keyed: 4.1.2.1 there and 3.3 here). All numbers are little endian.
//!
//! Nothing that comes from a peer is taken for granted: what is read here are numbers, which whoever
//! uses them checks against what he has asked for.

use core::fmt;

/// Bytes of a command.
pub(crate) const COMMAND: usize = 64;
/// Bytes of a completion queue entry.
pub(crate) const COMPLETION: usize = 16;
/// Commands of the admin queue.
pub(crate) const ADMIN_QUEUE_SIZE: u16 = 32;

/// Opcode of an asynchronous event request.
const ASYNC_EVENT_REQUEST: u8 = 0x0c;
/// In the flags of a command: data is described by an SGL.
const PSDT_SGL: u8 = 1 << 6;
/// Where flags, id and SGL are in a command.
const FLAGS: usize = 1;
const ID: usize = 2;
const SGL: usize = 24;
/// Types of SGL descriptors, with their subtypes.
const KEYED: u8 = 0x40;
const KEYED_INVALIDATE: u8 = 0x4f;
const IN_CAPSULE: u8 = 0x01;

/// In what a controller says of its SGLs: it takes keyed ones.
pub(crate) const SGLS_KEYED: u32 = 1 << 2;

/// The longest data that a keyed SGL describes, bytes.
pub(crate) const LONGEST_KEYED: u32 = (1 << 24) - 1;

/// The private data of a connect request (RDMA transport specification, figure 4).
pub(crate) struct ConnectRequest {
    /// The queue; 0 is the admin queue.
    pub(crate) qid: u16,
    /// Commands of the queue at a time.
    pub(crate) queue_size: u16,
    /// The controller that it is of; without meaning for an admin queue.
    pub(crate) cntlid: u16,
}

impl ConnectRequest {
    /// As bytes.
    pub(crate) fn to_bytes(&self) -> [u8; 32] {
        let mut out = [0; 32];
        let mut put = |at: usize, value: u16| out[at..at + 2].copy_from_slice(&value.to_le_bytes());
        put(2, self.qid);
        put(4, self.queue_size);
        put(6, self.queue_size.saturating_sub(1));
        put(8, self.cntlid);
        out
    }
}

/// Why the private data of an accept is no good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadReply {
    /// It is too short.
    Length(usize),
    /// It has another format than 1.0.
    Format(u16),
    /// The controller takes too few commands at a time to be used.
    NoRoom,
}

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadReply::Length(len) => write!(f, "{len} bytes of private data are no reply"),
            BadReply::Format(format) => write!(f, "a reply of record format {format}, not 0"),
            BadReply::NoRoom => f.write_str("of a receive queue that is too small"),
        }
    }
}

/// Reads the private data of an accept: how many commands the controller takes at a time.
pub(crate) fn parse_reply(data: &[u8]) -> Result<u16, BadReply> {
    let number = |at: usize| {
        let bytes = data.get(at..at + 2);
        bytes.map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    };
    let (Some(format), Some(size)) = (number(0), number(2)) else {
        return Err(BadReply::Length(data.len()));
    };
    match (format, size) {
        (0, 0) => Err(BadReply::NoRoom),
        (0, size) => Ok(size),
        (format, _) => Err(BadReply::Format(format)),
    }
}

/// Why a controller refused a connection: its private data says (figure 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal(u16);

impl Refusal {
    /// From the private data of a reject, if it says something.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let status = data.get(2..4)?;
        Some(Self(u16::from_le_bytes([status[0], status[1]])))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            1 => "invalid length of the private data",
            2 => "invalid record format",
            3 => "invalid queue ID",
            4 => "invalid size of the send queue",
            5 => "invalid size of the receive queue",
            6 => "no resources",
            7 => "invalid number of READs to answer",
            8 => "invalid number of READs to make",
            9 => "invalid controller ID",
            status => return write!(f, "status {status}"),
        })
    }
}

/// Where a command's data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Data {
    /// There is none.
    None,
    /// Behind the command, in its capsule: so many bytes.
    InCapsule(u32),
    /// In memory of the host.
    Keyed {
        /// Where.
        addr: u64,
        /// Bytes, up to [`LONGEST_KEYED`].
        len: u32,
        /// By which key.
        rkey: u32,
        /// The controller is to invalidate the key with its answer.
        invalidate: bool,
    },
}

/// Says in a command where its data is.
pub(crate) fn set_data(command: &mut [u8; COMMAND], data: Data) {
    command[FLAGS] = command[FLAGS] & !(3 << 6) | PSDT_SGL;
    let sgl = &mut command[SGL..SGL + 16];
    sgl.fill(0);
    match data {
        Data::None => sgl[15] = KEYED,
        Data::InCapsule(len) => {
            sgl[8..12].copy_from_slice(&len.to_le_bytes());
            sgl[15] = IN_CAPSULE;
        }
        Data::Keyed {
            addr,
            len,
            rkey,
            invalidate,
        } => {
            sgl[..8].copy_from_slice(&addr.to_le_bytes());
            sgl[8..11].copy_from_slice(&len.to_le_bytes()[..3]);
            sgl[11..15].copy_from_slice(&rkey.to_le_bytes());
            sgl[15] = if invalidate { KEYED_INVALIDATE } else { KEYED };
        }
    }
}

/// The code of a status, with its type: without the phase bit, and what tells how to try again.
pub(crate) fn status_code(status: u16) -> u16 {
    (status >> 1) & 0x7ff
}

/// Whether a status says that the command has succeeded.
pub(crate) fn is_success(status: u16) -> bool {
    status_code(status) == 0
}

/// Opcode of Identify, and what it says where of what it asks for: the namespace, and the kind of data.
pub(super) const IDENTIFY: u8 = 0x06;
pub(super) const NSID: usize = 4;
const CNS: usize = 40;
/// In what identifies a namespace (NVM command set specification 1.0, figure 97): the format of its
/// blocks, and the formats that there are.
pub(crate) const FLBAS: usize = 26;
const LBAF: usize = 128;

/// Which namespace a command identifies, if it does that, by what is common to all namespaces of blocks.
pub(crate) fn identified(command: &[u8; COMMAND]) -> Option<u32> {
    let nsid = command[NSID..NSID + 4].try_into().map(u32::from_le_bytes);
    (command[0] == IDENTIFY && command[CNS] == 0)
        .then_some(nsid)
        .and_then(Result::ok)
}

/// Where in the answer to that stands, in 2 bytes, how much metadata a block has, by the byte at
/// [`FLBAS`]: four bits, and two more of a later standard. Behind that is the length of a block.
pub(crate) fn metadata_at(flbas: u8) -> usize {
    LBAF + 4 * usize::from((flbas & 0xf) | ((flbas >> 1) & 0x30))
}

/// The id of a command.
pub(crate) fn command_id(command: &[u8; COMMAND]) -> u16 {
    u16::from_le_bytes([command[ID], command[ID + 1]])
}

/// Gives a command its id.
pub(crate) fn set_command_id(command: &mut [u8; COMMAND], id: u16) {
    command[ID..ID + 2].copy_from_slice(&id.to_le_bytes());
}

/// The tag in a command id, which has a generation in front of it.
pub(crate) fn tag_of(command_id: u16) -> u16 {
    command_id & 0xfff
}

/// An asynchronous event request.
pub(crate) fn event_request(command_id: u16) -> [u8; COMMAND] {
    let mut command = [0; COMMAND];
    command[0] = ASYNC_EVENT_REQUEST;
    set_command_id(&mut command, command_id);
    set_data(&mut command, Data::None);
    command
}

/// The controller's answer to a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    /// Specific to the command.
    pub(crate) result: u64,
    /// Of the command.
    pub(crate) command_id: u16,
    /// With the phase bit at its lowest.
    pub(crate) status: u16,
}

impl Completion {
    /// From the bytes of a completion queue entry.
    pub(crate) fn parse(bytes: &[u8; COMPLETION]) -> Self {
        let [r0, r1, r2, r3, r4, r5, r6, r7, _, _, _, _, i0, i1, s0, s1] = *bytes;
        Self {
            result: u64::from_le_bytes([r0, r1, r2, r3, r4, r5, r6, r7]),
            command_id: u16::from_le_bytes([i0, i1]),
            status: u16::from_le_bytes([s0, s1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_request_is_laid_out_as_the_standard_says() {
        let request = ConnectRequest {
            qid: 0x0102,
            queue_size: 0x80,
            cntlid: 0x0304,
        };
        let bytes = request.to_bytes();
        assert_eq!(bytes[..10], [0, 0, 2, 1, 0x80, 0, 0x7f, 0, 4, 3]);
        assert!(bytes[10..].iter().all(|b| *b == 0));
    }

    #[test]
    fn replies() {
        assert_eq!(parse_reply(&[0, 0, 0x80, 0]), Ok(128));
        let mut padded = [0; 196];
        padded[2] = 1;
        assert_eq!(parse_reply(&padded), Ok(1));
        assert_eq!(parse_reply(&[0, 0, 0, 0]), Err(BadReply::NoRoom));
        assert_eq!(parse_reply(&[1, 0, 9, 0]), Err(BadReply::Format(1)));
        for len in 0..4 {
            assert_eq!(parse_reply(&[0; 4][..len]), Err(BadReply::Length(len)));
        }
    }

    #[test]
    fn refusals() {
        let text = |status: u16| {
            let [low, high] = status.to_le_bytes();
            Refusal::parse(&[0, 0, low, high]).unwrap().to_string()
        };
        assert_eq!(text(3), "invalid queue ID");
        assert_eq!(text(9), "invalid controller ID");
        assert_eq!(text(0x102), "status 258");
        assert_eq!(Refusal::parse(&[0, 0, 1]), None);
        assert_eq!(Refusal::parse(&[]), None);
    }

    #[test]
    fn where_data_is() {
        let mut command = [0xff; COMMAND];
        set_data(&mut command, Data::None);
        assert_eq!(command[1], 0x7f);
        assert_eq!(command[24..39], [0; 15]);
        assert_eq!(command[39], 0x40);
        set_data(&mut command, Data::InCapsule(0x1000));
        assert_eq!(
            command[24..40],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 1]
        );
        let keyed = |invalidate| Data::Keyed {
            addr: 0x0807_0605_0403_0201,
            len: 0x0a_0b0c,
            rkey: 0x1122_3344,
            invalidate,
        };
        set_data(&mut command, keyed(true));
        assert_eq!(
            command[24..40],
            [1, 2, 3, 4, 5, 6, 7, 8, 0x0c, 0x0b, 0x0a, 0x44, 0x33, 0x22, 0x11, 0x4f]
        );
        set_data(&mut command, keyed(false));
        assert_eq!(command[39], 0x40);
        // Nothing else changes.
        assert_eq!(command[0], 0xff);
        assert!(command[2..24]
            .iter()
            .chain(&command[40..])
            .all(|b| *b == 0xff));
    }

    #[test]
    fn ids() {
        let command = event_request(0x101f);
        assert_eq!(command_id(&command), 0x101f);
        assert_eq!(tag_of(0x101f), 0x01f);
        assert_eq!((command[0], command[1], command[39]), (0x0c, 0x40, 0x40));
    }

    #[test]
    fn statuses() {
        for (status, success) in [
            (0, true),
            (1, true),
            (0x8001, true),
            (2, false),
            (0x0800, false),
        ] {
            assert_eq!(is_success(status), success, "{status:#x}");
        }
    }

    #[test]
    fn namespaces_that_are_identified() {
        let mut command = [0; COMMAND];
        command[0] = 6;
        command[4..8].copy_from_slice(&0x0102_0304_u32.to_le_bytes());
        assert_eq!(identified(&command), Some(0x0102_0304));
        command[40] = 2;
        assert_eq!(identified(&command), None);
        command[40] = 0;
        command[0] = 2;
        assert_eq!(identified(&command), None);
        // The first, the sixteenth, and the last of 64.
        assert_eq!(metadata_at(0x10), 128);
        assert_eq!(metadata_at(0x0f), 188);
        assert_eq!(metadata_at(0x6f), 128 + 63 * 4);
    }

    #[test]
    fn completions() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(
            Completion::parse(&bytes),
            Completion {
                result: 0x0807_0605_0403_0201,
                command_id: 0x0e0d,
                status: 0x100f,
            }
        );
    }
}
