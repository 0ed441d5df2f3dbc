//! Prefixes under which nothing was: a key that nobody has put there since need not be looked for.

use super::hash::{Hashed, Seeded};
use super::{HEAD, Head};
use std::collections::{HashMap, HashSet, VecDeque};

/// Most keys that are remembered, by their hashes.
const MOST: usize = 256 << 10;
/// A prefix counts for so many keys.
const EACH: usize = 16;

/// Such prefixes, and what was put there. Those that were told of first are the first to be forgotten.
#[derive(Default)]
pub(super) struct Fresh {
    under: HashMap<Head, HashSet<u64, Hashed>, Seeded>,
    order: VecDeque<Head>,
    count: usize,
}

impl Fresh {
    /// Nothing is under a prefix. One of another length is not remembered.
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

    /// A key may be there from now on.
    pub(super) fn put(&mut self, key: &[u8], hash: u64) {
        let Some(prefix) = key.first_chunk::<HEAD>() else { return };
        if let Some(there) = self.under.get_mut(prefix)
            && there.insert(hash)
        {
            self.count += 1;
            self.bound();
        }
    }

    /// Whether a key is not there, for sure.
    pub(super) fn lacks(&self, key: &[u8], hash: u64) -> bool {
        let Some(prefix) = key.first_chunk::<HEAD>() else { return false };
        self.under.get(prefix).is_some_and(|there| !there.contains(&hash))
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
    fn what_was_put_is_not_lacking_and_the_rest_is() {
        let mut fresh = Fresh::default();
        fresh.begins(&key(1, 0)[..HEAD]);
        fresh.put(&key(1, 5), 5);
        fresh.put(&key(2, 6), 6);
        assert!(!fresh.lacks(&key(1, 5), 5) && fresh.lacks(&key(1, 6), 6));
        assert!(!fresh.lacks(&key(2, 7), 7), "nobody said what was there");
        assert!(!fresh.lacks(b"e", 7));
        fresh.begins(b"e");
        assert!(!fresh.lacks(b"e", 7), "too short");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut fresh = Fresh::default();
        for number in 0..10 {
            fresh.begins(&key(number, 0)[..HEAD]);
            (0..MOST as u64 / 4).for_each(|rest| fresh.put(&key(number, rest), number << 32 | rest));
            assert!(fresh.count <= MOST);
            assert!(fresh.lacks(&key(number, 0), 1 << 60), "the last one is there");
        }
        assert!(!fresh.lacks(&key(0, 0), 1 << 60), "the first one is not");
        assert_eq!(fresh.under.len(), fresh.order.len());
        let hashes: usize = fresh.under.values().map(|there| there.len() + EACH).sum();
        assert_eq!(fresh.count, hashes);
        // One that is too large for all of it is forgotten.
        fresh.begins(&key(99, 0)[..HEAD]);
        (0..=MOST as u64).for_each(|rest| fresh.put(&key(99, rest), rest));
        assert!(fresh.under.is_empty() && fresh.order.is_empty() && fresh.count == 0);
    }
}
