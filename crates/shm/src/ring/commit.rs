//! The ring record that commits bytes of a slab.

use crate::ring::protocol::RECORD;
use crc32c::{crc32c, crc32c_append};

/// Random key of a ring's checksums, so that records of other rings do not pass as its own.
pub type Nonce = u128;

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Position of the record in the ring's sequence.
    pub sequence: u64,
    /// Index of the file binding of the ring.
    pub binding: u32,
    /// Index of the granted slab.
    pub slab: u32,
    /// Position of the bytes in the slab's region.
    pub position: u32,
    /// Number of bytes.
    pub len: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Time of the write, by [`monotonic`](crate::monotonic).
    pub stamp: u64,
    /// Whether the next record belongs to the same write.
    pub more: bool,
}

impl Commit {
    /// Encodes the record.
    #[must_use]
    pub fn encode(&self, nonce: Nonce) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[4..8].copy_from_slice(&self.binding.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.stamp.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.position.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.len.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.slab.to_le_bytes());
        bytes[44..48].copy_from_slice(&u32::from(self.more).to_le_bytes());
        let crc = checksum(nonce, &bytes);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a record; `None` if the bytes are not a complete record of this ring.
    #[must_use]
    pub fn decode(bytes: &[u8; RECORD], nonce: Nonce) -> Option<Commit> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let more = word(44);
        if word(0) != checksum(nonce, bytes) || more > 1 || bytes[48..] != [0; RECORD - 48] {
            return None;
        }
        Some(Commit {
            sequence: long(8),
            binding: word(4),
            slab: word(40),
            position: word(32),
            len: word(36),
            offset: long(16),
            stamp: long(24),
            more: more == 1,
        })
    }
}

fn checksum(nonce: Nonce, bytes: &[u8; RECORD]) -> u32 {
    crc32c_append(crc32c(&nonce.to_le_bytes()), &bytes[4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trips_and_every_bit_flip_is_detected() {
        let commit = Commit {
            sequence: 1 << 40,
            binding: 3,
            slab: 9,
            position: 4096,
            len: 77,
            offset: 1 << 50,
            stamp: 123_456_789_012,
            more: true,
        };
        let bytes = commit.encode(5);
        assert_eq!(Commit::decode(&bytes, 5), Some(commit));
        assert_eq!(Commit::decode(&bytes, 6), None, "another ring's");
        assert_eq!(Commit::decode(&[0; RECORD], 5), None);
        for bit in 0..RECORD * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Commit::decode(&bad, 5), None, "bit {bit}");
        }
    }
}
