// SPDX-License-Identifier: GPL-2.0

//! What the two ends of a perf session say to each other. Pure: it is tested on the host too.
//!
//! Nothing here trusts the peer: each decoder checks magic, version, length and every field that
//! has a range, and what it does not know is an error, never a guess.
//!
//! All numbers are little-endian. Beside the data, three kinds of bytes travel:
//!
//! * the private data of a connect request, [`Hello`]: of a client's control connection (what load
//!   it is going to make) or of one of its RC data connections (which session it belongs to);
//! * the private data of the answer, [`Welcome`] or [`Refused`];
//! * [`Message`]s of 64 bytes on the control connection, each with a sequence number.

use super::params::{Load, Op, Transport};

/// Starts all private data: "RvPf".
const MAGIC: u32 = u32::from_le_bytes(*b"RvPf");
/// Version of all that this file describes.
pub(crate) const VERSION: u16 = 1;

/// Magic, version and length.
const HEAD: usize = 8;
/// Length of an encoded [`Hello`].
pub(crate) const HELLO_LEN: usize = 40;
/// Length of an encoded [`Welcome`].
pub(crate) const WELCOME_LEN: usize = 24;
/// Length of an encoded [`Refused`].
pub(crate) const REFUSED_LEN: usize = 12;

/// Why bytes of the peer are not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    /// Too short for what it says it is, or it lies about its length.
    Length,
    /// Of some other service.
    Magic,
    /// Of another version of this one.
    Version,
    /// A field has a value that it cannot have.
    Field,
    /// A message that is not the next one.
    Sequence,
}

impl Bad {
    /// In words, for the log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Bad::Length => "it lies about its length",
            Bad::Magic => "it is not of this service",
            Bad::Version => "it is of another version of this service",
            Bad::Field => "a field has an impossible value",
            Bad::Sequence => "it is not the next message",
        }
    }
}

/// Writes fields one after another into an array.
pub(super) struct Writer<const N: usize> {
    pub(super) bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; N],
            at: 0,
        }
    }

    fn with_head() -> Self {
        let mut w = Self::new();
        w.put(MAGIC.to_le_bytes());
        w.put(VERSION.to_le_bytes());
        w.put((N as u16).to_le_bytes());
        w
    }

    pub(super) fn put<const M: usize>(&mut self, field: [u8; M]) {
        self.bytes[self.at..self.at + M].copy_from_slice(&field);
        self.at += M;
    }
}

/// Reads fields one after another.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// Checks the head of private data that is `len` bytes long without its padding.
    fn with_head(bytes: &'a [u8], len: usize) -> Result<Self, Bad> {
        let mut r = Self(bytes);
        if bytes.len() < HEAD {
            return Err(Bad::Length);
        }
        if r.u32()? != MAGIC {
            return Err(Bad::Magic);
        }
        if r.u16()? != VERSION {
            return Err(Bad::Version);
        }
        if usize::from(r.u16()?) != len || bytes.len() < len {
            return Err(Bad::Length);
        }
        Ok(r)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(Bad::Length)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Bad> {
        Ok(self.take::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, Bad> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Bad> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Bad> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// A number of operations: so small that sums of it do not overflow.
    fn count(&mut self) -> Result<u64, Bad> {
        let count = self.u64()?;
        if count <= super::params::COUNT.max {
            Ok(count)
        } else {
            Err(Bad::Field)
        }
    }

    /// What is left has no meaning.
    pub(super) fn zeros(&self) -> Result<(), Bad> {
        match self.0.iter().fold(0, |any, byte| any | byte) {
            0 => Ok(()),
            _ => Err(Bad::Field),
        }
    }

    fn flag(&mut self) -> Result<bool, Bad> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Bad::Field),
        }
    }
}

/// Private data of a connect request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hello {
    /// Begins a session.
    Control {
        /// What the client is going to do.
        load: Load,
        /// Silence after which the client gives up, ms; the server speaks more often.
        timeout_ms: u32,
    },
    /// An RC data connection of a session.
    Data {
        /// The session's secret, from [`Welcome`].
        token: u64,
        /// Which of the session's connections it is.
        connection: u32,
    },
}

impl Hello {
    /// To bytes.
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut w = Writer::<HELLO_LEN>::with_head();
        match self {
            Hello::Control { load, timeout_ms } => {
                w.put([1]);
                w.put([load.transport.to_wire()]);
                w.put([load.op.to_wire()]);
                w.put([u8::from(load.verify)]);
                w.put(load.size.to_le_bytes());
                w.put(load.depth.to_le_bytes());
                w.put(load.connections.to_le_bytes());
                w.put(timeout_ms.to_le_bytes());
            }
            Hello::Data { token, connection } => {
                w.put([2]);
                w.put([0; 3]);
                w.put(connection.to_le_bytes());
                w.put(token.to_le_bytes());
            }
        }
        w.bytes
    }

    /// From bytes of the peer, which may be followed by padding.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        let mut r = Reader::with_head(bytes, HELLO_LEN)?;
        match r.u8()? {
            1 => {
                let load = Load {
                    transport: Transport::from_wire(r.u8()?).ok_or(Bad::Field)?,
                    op: Op::of_server(r.u8()?).ok_or(Bad::Field)?,
                    verify: r.flag()?,
                    size: r.u32()?,
                    depth: r.u32()?,
                    connections: r.u32()?,
                };
                let timeout_ms = r.u32()?;
                load.check().map_err(|_| Bad::Field)?;
                let bounds = super::params::TIMEOUT_MS;
                if !(bounds.min..=bounds.max).contains(&u64::from(timeout_ms)) {
                    return Err(Bad::Field);
                }
                Ok(Hello::Control { load, timeout_ms })
            }
            2 => {
                let _pad: [u8; 3] = r.take()?;
                Ok(Hello::Data {
                    connection: r.u32()?,
                    token: r.u64()?,
                })
            }
            _ => Err(Bad::Field),
        }
    }
}

/// Private data of an accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Welcome {
    /// The session's secret: data connections have to name it.
    pub(crate) token: u64,
    /// Silence after which the server gives up, ms; the client speaks more often.
    pub(crate) timeout_ms: u32,
}

impl Welcome {
    /// To bytes.
    pub(crate) fn encode(&self) -> [u8; WELCOME_LEN] {
        let mut w = Writer::<WELCOME_LEN>::with_head();
        w.put(self.token.to_le_bytes());
        w.put(self.timeout_ms.to_le_bytes());
        w.bytes
    }

    /// From bytes of the peer, which may be followed by padding.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        let mut r = Reader::with_head(bytes, WELCOME_LEN)?;
        let welcome = Self {
            token: r.u64()?,
            timeout_ms: r.u32()?,
        };
        let bounds = super::params::TIMEOUT_MS;
        if !(bounds.min..=bounds.max).contains(&u64::from(welcome.timeout_ms)) {
            return Err(Bad::Field);
        }
        Ok(welcome)
    }
}

/// Private data of a reject: why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// The request is not of this service, or makes no sense.
    BadRequest,
    /// The server speaks another version.
    Version,
    /// The server has as many sessions as it takes.
    Full,
    /// The server was told not to take such a load, or not by this device.
    NotAllowed,
    /// It was told to take another transport only.
    Transport(Transport),
    /// It was told to take another operation only.
    Op(Op),
    /// It was told to take payloads of so many bytes at most.
    Size(u32),
    /// It was told to take so many operations outstanding per connection at most.
    Depth(u32),
    /// It was told to take so many connections at most.
    Connections(u32),
    /// No such session, or that connection of it is there already.
    NoSession,
    /// The server's device cannot do it, or it has no memory for it.
    Resources,
    /// The operation polls memory, and the server's policy does not poll.
    Sleeps,
}

impl Refused {
    /// To bytes: a number for the reason, and three bytes for what is allowed, of which no setting
    /// is beyond.
    pub(crate) fn encode(self) -> [u8; REFUSED_LEN] {
        let (reason, allowed) = match self {
            Refused::BadRequest => (1, 0),
            Refused::Version => (2, 0),
            Refused::Full => (3, 0),
            Refused::NotAllowed => (4, 0),
            Refused::NoSession => (5, 0),
            Refused::Resources => (6, 0),
            Refused::Sleeps => (7, 0),
            Refused::Transport(transport) => (8, transport.to_wire().into()),
            Refused::Op(op) => (9, op.to_wire().into()),
            Refused::Size(max) => (10, max),
            Refused::Depth(max) => (11, max),
            Refused::Connections(max) => (12, max),
        };
        let mut w = Writer::<REFUSED_LEN>::with_head();
        let [a, b, c, _] = u32::to_le_bytes(allowed);
        w.put([reason, a, b, c]);
        w.bytes
    }

    /// From bytes of the peer, which may be followed by padding.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        let mut r = Reader::with_head(bytes, REFUSED_LEN)?;
        let [reason, a, b, c] = r.take()?;
        let allowed = u32::from_le_bytes([a, b, c, 0]);
        Ok(match reason {
            1 => Refused::BadRequest,
            2 => Refused::Version,
            3 => Refused::Full,
            4 => Refused::NotAllowed,
            5 => Refused::NoSession,
            6 => Refused::Resources,
            7 => Refused::Sleeps,
            8 => Refused::Transport(Transport::from_wire(a).ok_or(Bad::Field)?),
            9 => Refused::Op(Op::of_server(a).ok_or(Bad::Field)?),
            10 => Refused::Size(allowed),
            11 => Refused::Depth(allowed),
            12 => Refused::Connections(allowed),
            _ => return Err(Bad::Field),
        })
    }
}

/// In words, as the client shows it.
impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const SET_UP: &str = "the server is set up to refuse such a load";
        match self {
            Refused::BadRequest => f.write_str("the server did not understand the request"),
            Refused::Version => f.write_str("the server speaks another version of the protocol"),
            Refused::Full => f.write_str("the server has as many sessions as it takes"),
            Refused::NotAllowed => f.write_str(SET_UP),
            Refused::Transport(only) => write!(f, "{SET_UP}: transport: allowed: {only}"),
            Refused::Op(only) => write!(f, "{SET_UP}: op: allowed: {only}"),
            Refused::Size(max) => write!(f, "{SET_UP}: size: allowed: up to {max}"),
            Refused::Depth(max) => write!(f, "{SET_UP}: depth: allowed: up to {max}"),
            Refused::Connections(max) => write!(f, "{SET_UP}: connections: allowed: up to {max}"),
            Refused::NoSession => f.write_str("the server does not know the session"),
            Refused::Resources => f.write_str("the server's device or memory does not suffice"),
            Refused::Sleeps => {
                f.write_str("write_ping polls memory, and the server's policy does not poll")
            }
        }
    }
}

impl From<Bad> for Refused {
    fn from(bad: Bad) -> Self {
        match bad {
            Bad::Version => Refused::Version,
            _ => Refused::BadRequest,
        }
    }
}

/// Bytes of a control message.
pub(crate) const MESSAGE_LEN: usize = 64;

/// A control message, about one connection of the session (heartbeats: about none, 0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// I am here.
    Heartbeat,
    /// Client: the UC or UD QP of a connection.
    Open(QpAddress),
    /// Server: its QP for it.
    Opened(QpAddress),
    /// Memory for slots `first` to `first + slots - 1`, the first of them at `addr`.
    Region(Region),
    /// Server: the connection can be used.
    Ready,
    /// Server: it took so many messages off the connection and posted as many receives.
    Credit {
        /// Since the beginning.
        received: u64,
    },
    /// Client: it has sent so many messages, and waits for a [`Message::Credit`].
    Sync {
        /// Since the beginning.
        sent: u64,
    },
    /// Client: check the payload that a WRITE put into a slot.
    Check {
        /// The operation's number.
        seq: u64,
        /// The slot.
        slot: u32,
    },
    /// Server: it has.
    Checked {
        /// The operation's number.
        seq: u64,
        /// What it saw.
        verdict: Verdict,
    },
    /// Client: it has sent all.
    Finish {
        /// Operations that completed.
        ops: u64,
        /// Messages sent.
        sent: u64,
    },
    /// Server: what it saw.
    Finished {
        /// Messages that arrived.
        received: u64,
        /// Payloads that were wrong.
        miscompares: u64,
        /// Payloads that did not arrive; only of unreliable transports.
        lost: u64,
        /// The word that atomics worked on.
        value: u64,
    },
}

/// What a check of a payload found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Every byte is right.
    Good,
    /// Some byte is wrong.
    Wrong,
    /// It did not arrive, or not as a whole; only of unreliable transports.
    Lost,
}

impl Verdict {
    fn to_wire(self) -> u8 {
        match self {
            Verdict::Good => 1,
            Verdict::Wrong => 2,
            Verdict::Lost => 3,
        }
    }

    fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Verdict::Good),
            2 => Some(Verdict::Wrong),
            3 => Some(Verdict::Lost),
            _ => None,
        }
    }
}

/// How a QP that the CM does not know is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QpAddress {
    /// QP number, 24 bits.
    pub(crate) qpn: u32,
    /// First packet sequence number that it sends, 24 bits.
    pub(crate) psn: u32,
    /// Key that UD messages to it carry.
    pub(crate) qkey: u32,
}

/// Memory that the other end may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// First slot in it.
    pub(crate) first: u32,
    /// Number of slots.
    pub(crate) slots: u32,
    /// Address of the first slot.
    pub(crate) addr: u64,
    /// Its key.
    pub(crate) rkey: u32,
    /// Bytes from slot to slot.
    pub(crate) stride: u32,
}

impl Message {
    /// To bytes: the `seq`th message on the control connection, about `connection`.
    pub(crate) fn encode(&self, connection: u32, seq: u64) -> [u8; MESSAGE_LEN] {
        let mut body = Writer::<48>::new();
        let kind: u16 = match *self {
            Message::Heartbeat => 1,
            Message::Open(qp) => {
                put_qp(&mut body, qp);
                2
            }
            Message::Opened(qp) => {
                put_qp(&mut body, qp);
                3
            }
            Message::Region(region) => {
                body.put(region.first.to_le_bytes());
                body.put(region.slots.to_le_bytes());
                body.put(region.addr.to_le_bytes());
                body.put(region.rkey.to_le_bytes());
                body.put(region.stride.to_le_bytes());
                4
            }
            Message::Ready => 5,
            Message::Credit { received } => {
                body.put(received.to_le_bytes());
                6
            }
            Message::Sync { sent } => {
                body.put(sent.to_le_bytes());
                7
            }
            Message::Check { seq, slot } => {
                body.put(seq.to_le_bytes());
                body.put(slot.to_le_bytes());
                8
            }
            Message::Checked { seq, verdict } => {
                body.put(seq.to_le_bytes());
                body.put([verdict.to_wire()]);
                9
            }
            Message::Finish { ops, sent } => {
                body.put(ops.to_le_bytes());
                body.put(sent.to_le_bytes());
                10
            }
            Message::Finished {
                received,
                miscompares,
                lost,
                value,
            } => {
                body.put(received.to_le_bytes());
                body.put(miscompares.to_le_bytes());
                body.put(lost.to_le_bytes());
                body.put(value.to_le_bytes());
                11
            }
        };
        let mut w = Writer::<MESSAGE_LEN>::new();
        w.put(kind.to_le_bytes());
        w.put((body.at as u16).to_le_bytes());
        w.put(connection.to_le_bytes());
        w.put(seq.to_le_bytes());
        w.put(body.bytes);
        w.bytes
    }

    /// From a message of the peer: which connection it is about, and what it says. `seq` is the
    /// number that it must have.
    pub(crate) fn decode(bytes: &[u8], seq: u64) -> Result<(u32, Self), Bad> {
        if bytes.len() != MESSAGE_LEN {
            return Err(Bad::Length);
        }
        let mut r = Reader(bytes);
        let kind = r.u16()?;
        let len = usize::from(r.u16()?);
        let connection = r.u32()?;
        if r.u64()? != seq {
            return Err(Bad::Sequence);
        }
        let mut body = Reader(r.0.get(..len).ok_or(Bad::Length)?);
        let message = match kind {
            1 => Message::Heartbeat,
            2 => Message::Open(take_qp(&mut body)?),
            3 => Message::Opened(take_qp(&mut body)?),
            4 => Message::Region(Region {
                first: body.u32()?,
                slots: body.u32()?,
                addr: body.u64()?,
                rkey: body.u32()?,
                stride: body.u32()?,
            }),
            5 => Message::Ready,
            6 => Message::Credit {
                received: body.count()?,
            },
            7 => Message::Sync {
                sent: body.count()?,
            },
            8 => Message::Check {
                seq: body.count()?,
                slot: body.u32()?,
            },
            9 => Message::Checked {
                seq: body.count()?,
                verdict: Verdict::from_wire(body.u8()?).ok_or(Bad::Field)?,
            },
            10 => Message::Finish {
                ops: body.count()?,
                sent: body.count()?,
            },
            11 => Message::Finished {
                received: body.count()?,
                miscompares: body.count()?,
                lost: body.count()?,
                value: body.u64()?,
            },
            _ => return Err(Bad::Field),
        };
        if body.0.is_empty() {
            Ok((connection, message))
        } else {
            Err(Bad::Length)
        }
    }
}

fn put_qp(body: &mut Writer<48>, qp: QpAddress) {
    body.put(qp.qpn.to_le_bytes());
    body.put(qp.psn.to_le_bytes());
    body.put(qp.qkey.to_le_bytes());
}

/// QP and packet sequence numbers have so many bits.
const BITS_24: u32 = 0xff_ffff;

fn take_qp(body: &mut Reader<'_>) -> Result<QpAddress, Bad> {
    let qp = QpAddress {
        qpn: body.u32()?,
        psn: body.u32()?,
        qkey: body.u32()?,
    };
    if qp.qpn > BITS_24 || qp.psn > BITS_24 {
        return Err(Bad::Field);
    }
    Ok(qp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load {
            transport: Transport::Uc,
            op: Op::WriteImm,
            size: 4096,
            depth: 16,
            connections: 3,
            verify: true,
        }
    }

    fn hellos() -> Vec<Hello> {
        vec![
            Hello::Control {
                load: load(),
                timeout_ms: 1000,
            },
            Hello::Data {
                token: 0x0123_4567_89ab_cdef,
                connection: 7,
            },
        ]
    }

    fn messages() -> Vec<Message> {
        let qp = QpAddress {
            qpn: 0xabcdef,
            psn: 1,
            qkey: u32::MAX,
        };
        vec![
            Message::Heartbeat,
            Message::Open(qp),
            Message::Opened(qp),
            Message::Region(Region {
                first: 1,
                slots: 2,
                addr: u64::MAX,
                rkey: 3,
                stride: 4,
            }),
            Message::Ready,
            Message::Credit { received: 5 },
            Message::Sync { sent: 6 },
            Message::Check { seq: 7, slot: 8 },
            Message::Checked {
                seq: 9,
                verdict: Verdict::Lost,
            },
            Message::Finish { ops: 1, sent: 10 },
            Message::Finished {
                received: 11,
                miscompares: 12,
                lost: 13,
                value: 14,
            },
        ]
    }

    #[test]
    fn private_data_goes_both_ways_also_padded() {
        for hello in hellos() {
            let bytes = hello.encode();
            assert_eq!(Hello::decode(&bytes), Ok(hello));
            let mut padded = bytes.to_vec();
            padded.resize(56, 0);
            assert_eq!(Hello::decode(&padded), Ok(hello));
            assert_eq!(Hello::decode(&bytes[..HELLO_LEN - 1]), Err(Bad::Length));
        }
        let welcome = Welcome {
            token: 42,
            timeout_ms: 500,
        };
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        for refused in [
            Refused::BadRequest,
            Refused::Version,
            Refused::Full,
            Refused::NotAllowed,
            Refused::NoSession,
            Refused::Resources,
            Refused::Sleeps,
            Refused::Transport(Transport::Ud),
            Refused::Op(Op::ExchangeIn),
            Refused::Size(1 << 20),
            Refused::Depth(1024),
            Refused::Connections(1),
        ] {
            assert_eq!(Refused::decode(&refused.encode()), Ok(refused));
        }
        // Every limit that can be set goes through.
        assert!(super::super::params::SIZE.max < 1 << 24);
        let text = Refused::Size(1 << 20).to_string();
        assert!(text.ends_with("size: allowed: up to 1048576"), "{text}");
        for reason in [0, 8, 9, 13, 255] {
            let mut bytes = Refused::Full.encode();
            bytes[8] = reason;
            assert_eq!(Refused::decode(&bytes), Err(Bad::Field));
        }
    }

    #[test]
    fn bad_private_data() {
        assert_eq!(Hello::decode(&[]), Err(Bad::Length));
        assert_eq!(Hello::decode(&[0; 56]), Err(Bad::Magic));
        let good = hellos()[0].encode();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Hello::decode(&bytes)
        };
        assert_eq!(with(4, 2), Err(Bad::Version));
        assert_eq!(with(6, 255), Err(Bad::Length));
        assert_eq!(with(6, 8), Err(Bad::Length));
        for at in [8, 9, 10, 11] {
            assert_eq!(with(at, 99), Err(Bad::Field));
        }
        // A read on UC, a size of 16 MiB, a depth of 16 million.
        assert_eq!(with(10, 5), Err(Bad::Field));
        assert_eq!(with(15, 1), Err(Bad::Field));
        assert_eq!(with(19, 1), Err(Bad::Field));
    }

    #[test]
    fn messages_go_both_ways() {
        for (seq, message) in messages().into_iter().enumerate() {
            let bytes = message.encode(3, seq as u64);
            assert_eq!(Message::decode(&bytes, seq as u64), Ok((3, message)));
            assert_eq!(Message::decode(&bytes, seq as u64 + 1), Err(Bad::Sequence));
            assert_eq!(Message::decode(&bytes[..63], seq as u64), Err(Bad::Length));
        }
    }

    #[test]
    fn lies_about_length_and_kind() {
        for message in messages() {
            let good = message.encode(0, 0);
            for len in 0..=255u8 {
                let mut bytes = good;
                bytes[2] = len;
                let same = len == good[2];
                assert_eq!(
                    Message::decode(&bytes, 0).is_ok(),
                    same,
                    "{message:?} {len}"
                );
            }
            let mut bytes = good;
            bytes[0] = 200;
            assert_eq!(Message::decode(&bytes, 0), Err(Bad::Field));
        }
        let wide = Message::Open(QpAddress {
            qpn: 1 << 24,
            psn: 0,
            qkey: 0,
        });
        assert_eq!(Message::decode(&wide.encode(0, 0), 0), Err(Bad::Field));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut x = 88172645463325252u64;
        let mut bytes = [0u8; 64];
        for round in 0..200_000 {
            for byte in &mut bytes {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                *byte = x as u8;
            }
            // Half of them get past the head.
            if round % 2 == 0 {
                bytes[..8].copy_from_slice(&hellos()[0].encode()[..8]);
            }
            let _ = Hello::decode(&bytes);
            let _ = Welcome::decode(&bytes);
            let _ = Refused::decode(&bytes);
            bytes[..2].copy_from_slice(&(round as u16 % 13).to_le_bytes());
            let seq = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            let _ = Message::decode(&bytes, seq);
        }
    }
}
