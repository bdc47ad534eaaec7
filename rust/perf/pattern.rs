// SPDX-License-Identifier: GPL-2.0

//! The payload with `verify`: each byte depends on the connection, the sequence number and its
//! offset, so bytes that were lost, swapped, stale or of somebody else show. Pure: it is tested on
//! the host too.

/// Names one payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pattern(u64);

/// The finalizer of SplitMix64: each bit of the input changes half of the output's.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Pattern {
    /// The payload of operation `seq` on connection `connection`; `answer` for what comes back.
    pub(crate) fn new(connection: u32, seq: u64, answer: bool) -> Self {
        let who = (u64::from(connection) << 1) | u64::from(answer);
        Self(mix(mix(who.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ seq))
    }

    fn word(self, index: usize) -> [u8; 8] {
        mix(self.0.wrapping_add(index as u64)).to_le_bytes()
    }

    /// Writes the bytes that belong at `offset` of the payload. `offset` is a multiple of 8.
    pub(crate) fn fill(self, offset: usize, to: &mut [u8]) {
        for (i, chunk) in to.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&self.word(offset / 8 + i)[..chunk.len()]);
        }
    }

    /// Whether `bytes` are what belongs at `offset` of the payload. `offset` is a multiple of 8.
    pub(crate) fn matches(self, offset: usize, bytes: &[u8]) -> bool {
        let mut chunks = bytes.chunks(8).enumerate();
        chunks.all(|(i, chunk)| *chunk == self.word(offset / 8 + i)[..chunk.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_whole() {
        let p = Pattern::new(3, 99, false);
        let mut whole = [0; 1000];
        p.fill(0, &mut whole);
        let mut pieces = [0; 1000];
        for at in (0..1000).step_by(256) {
            let end = (at + 256).min(1000);
            p.fill(at, &mut pieces[at..end]);
        }
        assert_eq!(whole, pieces);
        assert!(p.matches(0, &whole));
        assert!(p.matches(256, &whole[256..777]));
    }

    #[test]
    fn every_wrong_byte_shows() {
        let p = Pattern::new(0, 0, false);
        let mut bytes = [0; 77];
        p.fill(0, &mut bytes);
        for i in 0..bytes.len() {
            bytes[i] ^= 0x10;
            assert!(!p.matches(0, &bytes));
            bytes[i] ^= 0x10;
        }
        assert!(p.matches(0, &bytes));
    }

    #[test]
    fn payloads_of_others_differ() {
        let mut seen = std::collections::HashSet::new();
        for connection in 0..64 {
            for seq in 0..256 {
                for answer in [false, true] {
                    let mut bytes = [0; 8];
                    Pattern::new(connection, seq, answer).fill(0, &mut bytes);
                    assert!(seen.insert(bytes));
                }
            }
        }
    }
}
