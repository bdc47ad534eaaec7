// SPDX-License-Identifier: GPL-2.0

//! What travels in an exchange beside the payload: the client's request and the server's answer.
//! Pure: it is tested on the host too.
//!
//! All numbers are little-endian; bytes without a meaning are 0.
//!
//! ```text
//! request   0 number   8 address  16 rkey  20 length  24 op  25 zeros to 64
//! answer    0 number   8 zeros to 16
//! ```
//!
//! Of a request only address and rkey are news to the server, and these it hands to its device,
//! which has the client's check them. All else has to be what both ends agreed on when the session
//! began, or what comes next: no length of the peer is ever used.

use super::super::{
    params::Load,
    wire::{Bad, Reader, Writer},
};

/// Bytes of a request.
pub(crate) const REQUEST_LEN: usize = 64;
/// Bytes of an answer.
pub(crate) const ANSWER_LEN: usize = 16;

/// Names the client's buffer of one operation.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// Where it begins, in the client's terms.
    pub(crate) addr: u64,
    /// Its key.
    pub(crate) rkey: u32,
}

impl Request {
    /// To bytes: of operation `seq` of a load.
    pub(crate) fn encode(&self, load: &Load, seq: u64) -> [u8; REQUEST_LEN] {
        let mut w = Writer::new();
        w.put(seq.to_le_bytes());
        w.put(self.addr.to_le_bytes());
        w.put(self.rkey.to_le_bytes());
        w.put(load.size.to_le_bytes());
        w.put([load.op.to_wire()]);
        w.bytes
    }

    /// From bytes of the client, which must be the request of operation `seq` of this load.
    pub(crate) fn decode(bytes: &[u8; REQUEST_LEN], load: &Load, seq: u64) -> Result<Self, Bad> {
        let mut r = Reader(bytes);
        if r.u64()? != seq {
            return Err(Bad::Sequence);
        }
        let request = Self {
            addr: r.u64()?,
            rkey: r.u32()?,
        };
        if r.u32()? != load.size {
            return Err(Bad::Length);
        }
        if r.u8()? != load.op.to_wire() {
            return Err(Bad::Field);
        }
        r.zeros()?;
        Ok(request)
    }
}

/// The answer to operation `seq`: it is over, and the buffer is the client's again.
pub(crate) fn answer(seq: u64) -> [u8; ANSWER_LEN] {
    let mut w = Writer::new();
    w.put(seq.to_le_bytes());
    w.bytes
}

/// Checks bytes of the server, which must be the answer to operation `seq`.
pub(crate) fn check_answer(bytes: &[u8; ANSWER_LEN], seq: u64) -> Result<(), Bad> {
    let mut r = Reader(bytes);
    if r.u64()? != seq {
        return Err(Bad::Sequence);
    }
    r.zeros()
}

#[cfg(test)]
mod tests {
    use super::super::super::params::{Op, Transport};
    use super::*;

    fn load(op: Op) -> Load {
        Load {
            transport: Transport::Rc,
            op,
            size: 4096,
            depth: 4,
            connections: 1,
            verify: false,
        }
    }

    const REQUEST: Request = Request {
        addr: u64::MAX - 5,
        rkey: 0x89ab_cdef,
    };

    #[test]
    fn requests_go_both_ways() {
        for op in [Op::ExchangeOut, Op::ExchangeIn] {
            let load = load(op);
            for seq in [0, 1, u64::MAX] {
                let bytes = REQUEST.encode(&load, seq);
                assert_eq!(Request::decode(&bytes, &load, seq), Ok(REQUEST));
            }
        }
    }

    #[test]
    fn every_lie_in_a_request_shows() {
        let load = load(Op::ExchangeIn);
        let good = REQUEST.encode(&load, 7);
        for at in 0..REQUEST_LEN {
            for bit in 0..8 {
                let mut bytes = good;
                bytes[at] ^= 1 << bit;
                let decoded = Request::decode(&bytes, &load, 7);
                // Address and key are the client's own business.
                let free = (8..20).contains(&at);
                assert_eq!(decoded.is_ok(), free, "byte {at}, bit {bit}");
            }
        }
        assert_eq!(Request::decode(&good, &load, 8), Err(Bad::Sequence));
        let longer = Load { size: 4097, ..load };
        assert_eq!(Request::decode(&good, &longer, 7), Err(Bad::Length));
    }

    #[test]
    fn every_lie_in_an_answer_shows() {
        for seq in [0, 1, 1 << 40, u64::MAX] {
            let good = answer(seq);
            assert_eq!(check_answer(&good, seq), Ok(()));
            assert!(check_answer(&good, seq.wrapping_add(1)).is_err());
            assert!(check_answer(&good, seq.wrapping_sub(1)).is_err());
            for at in 0..ANSWER_LEN {
                let mut bytes = good;
                bytes[at] ^= 0x10;
                assert!(check_answer(&bytes, seq).is_err(), "byte {at}");
            }
        }
    }
}
