//! Prefixes that were declared empty: a key that was not put there since need not be looked up.

use super::hash::{Hashed, Seeded};
use super::{HEAD, Head};
use std::collections::{HashMap, HashSet, VecDeque};

/// Largest number of remembered keys; each is a hash.
const MOST: usize = 256 << 10;
/// A prefix counts as this many keys.
const EACH: usize = 16;

/// The empty prefixes, and the keys put there since. The oldest prefixes are evicted first.
#[derive(Default)]
pub(super) struct EmptyPrefixes {
    under: HashMap<Head, HashSet<u64, Hashed>, Seeded>,
    order: VecDeque<Head>,
    count: usize,
}

impl EmptyPrefixes {
    /// Declares a prefix empty. Ignores prefixes of another length.
    pub(super) fn begins(&mut self, prefix: &[u8]) {
        let Ok(prefix) = Head::try_from(prefix) else { return };
        match self.under.insert(prefix, HashSet::default()) {
            Some(before) => self.count -= before.len(),
            None => {
                self.order.push_back(prefix);
                self.count += EACH;
            }
        }
        self.bound();
    }

    /// Records that a key may exist from now on.
    pub(super) fn put(&mut self, key: &[u8], hash: u64) {
        let Some(prefix) = key.first_chunk::<HEAD>() else { return };
        if let Some(keys) = self.under.get_mut(prefix)
            && keys.insert(hash)
        {
            self.count += 1;
            self.bound();
        }
    }

    /// Whether a key certainly does not exist.
    pub(super) fn lacks(&self, key: &[u8], hash: u64) -> bool {
        let Some(prefix) = key.first_chunk::<HEAD>() else { return false };
        self.under.get(prefix).is_some_and(|keys| !keys.contains(&hash))
    }

    fn bound(&mut self) {
        while self.count > MOST
            && let Some(first) = self.order.pop_front()
        {
            let gone = self.under.remove(&first);
            self.count -= gone.map_or(0, |gone| gone.len() + EACH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64, rest: u64) -> Vec<u8> {
        let mut key = vec![b'e'];
        key.extend(number.to_be_bytes());
        key.extend(rest.to_be_bytes());
        key
    }

    #[test]
    fn only_keys_put_below_an_empty_prefix_may_exist() {
        let mut empty_prefixes = EmptyPrefixes::default();
        empty_prefixes.begins(&key(1, 0)[..HEAD]);
        empty_prefixes.put(&key(1, 5), 5);
        empty_prefixes.put(&key(2, 6), 6);
        assert!(!empty_prefixes.lacks(&key(1, 5), 5) && empty_prefixes.lacks(&key(1, 6), 6));
        assert!(!empty_prefixes.lacks(&key(2, 7), 7), "that prefix was not declared empty");
        assert!(!empty_prefixes.lacks(b"e", 7));
        empty_prefixes.begins(b"e");
        assert!(!empty_prefixes.lacks(b"e", 7), "too short");
    }

    #[test]
    fn empty_prefixes_are_bounded_and_evicted_in_order() {
        let mut empty_prefixes = EmptyPrefixes::default();
        for number in 0..10 {
            empty_prefixes.begins(&key(number, 0)[..HEAD]);
            (0..MOST as u64 / 4).for_each(|rest| empty_prefixes.put(&key(number, rest), number << 32 | rest));
            assert!(empty_prefixes.count <= MOST);
            assert!(empty_prefixes.lacks(&key(number, 0), 1 << 60), "the last one is kept");
        }
        assert!(!empty_prefixes.lacks(&key(0, 0), 1 << 60), "the first one is not");
        assert_eq!(empty_prefixes.under.len(), empty_prefixes.order.len());
        let hashes: usize = empty_prefixes.under.values().map(|keys| keys.len() + EACH).sum();
        assert_eq!(empty_prefixes.count, hashes);
        // A prefix with more keys than the limit is evicted.
        empty_prefixes.begins(&key(99, 0)[..HEAD]);
        (0..=MOST as u64).for_each(|rest| empty_prefixes.put(&key(99, rest), rest));
        assert!(
            empty_prefixes.under.is_empty() && empty_prefixes.order.is_empty() && empty_prefixes.count == 0
        );
    }
}
