//! Self-describing writes: the writer, the position and the version.

use forebay_testkit::pattern;

/// Length of the head of a block.
pub const HEAD: usize = 40;

const MAGIC: u64 = 0x6b63_6f6c_4279_6246;

/// The description of a block. No two blocks have the same bytes, and every byte of a block follows from its
/// description.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Block {
    /// Its writer.
    pub writer: u64,
    /// Its position.
    pub slot: u64,
    /// Its version; never 0.
    pub version: u64,
    /// Its length, head included.
    pub len: u64,
}

impl Block {
    /// All of its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let seed = self.writer.wrapping_mul(31) ^ self.slot.wrapping_mul(0xff51) ^ self.version << 20;
        let mut bytes = pattern(seed, self.len as usize);
        for (place, word) in
            bytes.chunks_exact_mut(8).zip([MAGIC, self.writer, self.slot, self.version, self.len])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Parses the head of a block.
    #[must_use]
    pub fn head(bytes: &[u8]) -> Option<Block> {
        let word = |index: usize| {
            let bytes = bytes.get(index * 8..index * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let block = Block { writer: word(1)?, slot: word(2)?, version: word(3)?, len: word(4)? };
        (word(0)? == MAGIC && block.len >= HEAD as u64).then_some(block)
    }

    /// Parses exactly one block; `Ok(None)` if all bytes are zero.
    pub fn read(bytes: &[u8]) -> Result<Option<Block>, String> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let Some(block) = Block::head(bytes) else {
            return Err(format!(
                "{} bytes that begin with {:02x?} are not a block",
                bytes.len(),
                &bytes[..8]
            ));
        };
        let expected = block.bytes();
        match bytes.iter().zip(&expected).position(|(one, other)| one != other) {
            _ if block.len != bytes.len() as u64 => {
                Err(format!("{block:?} where {} bytes were written", bytes.len()))
            }
            Some(at) => Err(format!("{block:?} is torn: byte {at} differs")),
            None => Ok(Some(block)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_round_trips_and_a_mixture_is_detected() {
        let (one, two) = (Block { writer: 1, slot: 2, version: 3, len: 4096 }, 4);
        let two = Block { version: two, ..one };
        assert_eq!(Block::read(&one.bytes()), Ok(Some(one)));
        assert_eq!(Block::read(&[0; 64]), Ok(None));
        let mixture = [&one.bytes()[..2048], &two.bytes()[2048..]].concat();
        assert!(Block::read(&mixture).is_err());
        assert!(Block::read(&one.bytes()[..4000]).is_err());
    }
}
