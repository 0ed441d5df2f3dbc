//! Test data: each word depends on its file and its offset. Pure.

const WORD: usize = 8;

fn word(seed: u64, index: u64) -> u64 {
    let mixed = (seed ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

/// The seed of a file's data.
pub(super) fn seed(path: &str) -> u64 {
    path.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Fills a buffer with the data of an offset; both are multiples of eight.
pub(super) fn fill(buffer: &mut [u8], seed: u64, offset: u64) {
    assert!(buffer.len().is_multiple_of(WORD) && offset.is_multiple_of(WORD as u64));
    let first = offset / WORD as u64;
    for (index, place) in buffer.chunks_exact_mut(WORD).enumerate() {
        place.copy_from_slice(&word(seed, first + index as u64).to_le_bytes());
    }
}

/// The number of bytes that differ from the data of an offset, and the first of them.
pub(super) fn differences(buffer: &[u8], seed: u64, offset: u64) -> (u64, Option<u64>) {
    let first = offset / WORD as u64;
    let (mut wrong, mut at) = (0, None);
    for (index, found) in buffer.chunks(WORD).enumerate() {
        let expected = word(seed, first + index as u64).to_le_bytes();
        if found == expected {
            continue;
        }
        wrong += found.iter().zip(expected).filter(|(found, expected)| **found != *expected).count() as u64;
        at = at.or(Some(offset + (index * WORD) as u64));
    }
    (wrong, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_found() {
        let (seed_a, seed_b) = (seed("/a"), seed("/b"));
        let mut buffer = vec![0; 4096];
        fill(&mut buffer, seed_a, 8192);
        assert_eq!(differences(&buffer, seed_a, 8192), (0, None));
        buffer[1003] ^= 1;
        assert_eq!(differences(&buffer, seed_a, 8192), (1, Some(8192 + 1000)));
        fill(&mut buffer, seed_a, 8192);
        for (what, seed, offset) in [("another file", seed_b, 8192), ("another place", seed_a, 8200)] {
            assert!(differences(&buffer, seed, offset).0 > 4000, "{what}");
        }
        assert!(differences(&[0; 4096], seed_a, 0).0 > 4000, "zeros");
    }
}
