//! Bit sets.

/// Words stored inline.
const NEAR: usize = 4;

/// A growable bit set; small sets need no heap memory.
#[derive(Clone, Default, Debug)]
pub(super) struct Bits {
    near: [u64; NEAR],
    more: Vec<u64>,
}

impl Bits {
    fn word(&self, word: usize) -> u64 {
        match self.near.get(word) {
            Some(&near) => near,
            None => self.more.get(word - NEAR).copied().unwrap_or(0),
        }
    }

    /// Inserts or removes a number. Returns whether the set changed.
    pub(super) fn set(&mut self, number: usize, to: bool) -> bool {
        if self.has(number) == to {
            return false;
        }
        let (word, bit) = (number / 64, 1 << (number % 64));
        if word < NEAR {
            self.near[word] ^= bit;
        } else {
            self.more.resize(self.more.len().max(word + 1 - NEAR), 0);
            self.more[word - NEAR] ^= bit;
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.near == [0; NEAR] && self.more.iter().all(|&word| word == 0)
    }

    pub(super) fn has(&self, number: usize) -> bool {
        self.word(number / 64) >> (number % 64) & 1 == 1
    }

    /// All numbers, in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..NEAR + self.more.len()).flat_map(|word| ones(word, self.word(word)))
    }

    /// The intersection, in ascending order.
    pub(super) fn both<'a>(&'a self, other: &'a Bits) -> impl Iterator<Item = usize> + 'a {
        (0..NEAR + self.more.len()).flat_map(|word| ones(word, self.word(word) & other.word(word)))
    }

    /// The first common number at or after `from`, wrapping around.
    pub(super) fn first_of_both(&self, other: &Bits, from: usize) -> Option<usize> {
        let words = NEAR + self.more.len().min(other.more.len());
        let from = if from / 64 < words { from } else { 0 };
        let start = from / 64;
        let both = |word: usize| self.word(word) & other.word(word);
        let late = !0 << (from % 64);
        let first = |word: usize, mask: u64| {
            let bits = both(word) & mask;
            (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
        };
        first(start, late)
            .or_else(|| (start + 1..words).chain(0..start).find_map(|word| first(word, !0)))
            .or_else(|| first(start, !late))
    }
}

/// The numbers of one word of a set.
fn ones(word: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(word * 64 + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_numbers_are_found_in_turn() {
        let (mut one, mut other) = (Bits::default(), Bits::default());
        for number in [3, 64, 70, 700] {
            assert!(one.set(number, true) && !one.set(number, true));
        }
        for number in [3, 70, 71] {
            other.set(number, true);
        }
        for (from, found) in [(0, 3), (3, 3), (4, 70), (70, 70), (71, 3), (5000, 3)] {
            assert_eq!(one.first_of_both(&other, from), Some(found), "from {from}");
        }
        assert_eq!(one.iter().collect::<Vec<_>>(), [3, 64, 70, 700]);
        assert_eq!(one.both(&other).collect::<Vec<_>>(), [3, 70]);
        other.set(3, false);
        other.set(70, false);
        assert_eq!(one.first_of_both(&other, 0), None);
        assert!(!other.is_empty() && other.has(71) && !other.has(900) && !other.set(900, false));
    }
}
