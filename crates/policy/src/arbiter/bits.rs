//! Sets of small numbers.

/// A set of numbers below its length, which grows as needed.
#[derive(Clone, Default, Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
    count: u32,
}

impl Bits {
    /// Puts a number in or takes it out; true if that changed anything.
    pub(super) fn set(&mut self, number: usize, to: bool) -> bool {
        let (word, bit) = (number / 64, 1 << (number % 64));
        if word >= self.words.len() {
            if !to {
                return false;
            }
            self.words.resize(word + 1, 0);
        }
        let before = self.words[word] & bit != 0;
        if before == to {
            return false;
        }
        self.words[word] ^= bit;
        self.count = if to { self.count + 1 } else { self.count - 1 };
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn has(&self, number: usize) -> bool {
        self.words.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// The first number from a place on, and round again, that both sets have.
    pub(super) fn first_of_both(&self, other: &Bits, from: usize) -> Option<usize> {
        let words = self.words.len().min(other.words.len());
        if words == 0 {
            return None;
        }
        let from = if from / 64 < words { from } else { 0 };
        let start = from / 64;
        let both = |word: usize| self.words[word] & other.words[word];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_numbers_are_found_in_turn() {
        let (mut one, mut other) = (Bits::default(), Bits::default());
        for number in [3, 64, 70, 200] {
            assert!(one.set(number, true) && !one.set(number, true));
        }
        for number in [3, 70, 71] {
            other.set(number, true);
        }
        for (from, found) in [(0, 3), (3, 3), (4, 70), (70, 70), (71, 3), (500, 3)] {
            assert_eq!(one.first_of_both(&other, from), Some(found), "from {from}");
        }
        other.set(3, false);
        other.set(70, false);
        assert_eq!(one.first_of_both(&other, 0), None);
        assert!(!other.is_empty() && other.has(71) && !other.has(900) && !other.set(900, false));
    }
}
