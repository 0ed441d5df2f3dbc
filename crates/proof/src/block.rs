//! Writes that describe themselves: who wrote them, where, and for the how manieth time.

use forebay_dice::pattern;

/// Bytes at the start of a block that say what it is.
pub const HEAD: usize = 40;

const MAGIC: u64 = 0x6b63_6f6c_4279_6246;

/// What a block says about itself. No two blocks have the same bytes, and every byte of one follows from this.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Block {
    /// Who wrote it.
    pub writer: u64,
    /// Where it belongs.
    pub slot: u64,
    /// For the how manieth time; never 0.
    pub version: u64,
    /// How long it is, head included.
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

    /// What the first bytes say, if they are the head of a block.
    #[must_use]
    pub fn head(bytes: &[u8]) -> Option<Block> {
        let word = |index: usize| {
            let bytes = bytes.get(index * 8..index * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let block = Block { writer: word(1)?, slot: word(2)?, version: word(3)?, len: word(4)? };
        (word(0)? == MAGIC && block.len >= HEAD as u64).then_some(block)
    }

    /// The one block that these bytes are, all of them; `Ok(None)` for nothing but zeros.
    pub fn read(bytes: &[u8]) -> Result<Option<Block>, String> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let Some(block) = Block::head(bytes) else {
            return Err(format!("{} bytes that begin with {:02x?} are no block", bytes.len(), &bytes[..8]));
        };
        let expected = block.bytes();
        match bytes.iter().zip(&expected).position(|(one, other)| one != other) {
            _ if block.len != bytes.len() as u64 => {
                Err(format!("{block:?} where {} bytes were written", bytes.len()))
            }
            Some(at) => Err(format!("{block:?} is not whole: byte {at} is of something else")),
            None => Ok(Some(block)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_by_its_bytes_and_a_mixture_is_not() {
        let (one, two) = (Block { writer: 1, slot: 2, version: 3, len: 4096 }, 4);
        let two = Block { version: two, ..one };
        assert_eq!(Block::read(&one.bytes()), Ok(Some(one)));
        assert_eq!(Block::read(&[0; 64]), Ok(None));
        let mixture = [&one.bytes()[..2048], &two.bytes()[2048..]].concat();
        assert!(Block::read(&mixture).is_err());
        assert!(Block::read(&one.bytes()[..4000]).is_err());
    }
}
