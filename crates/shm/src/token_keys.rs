//! A multiset of 64-bit keys in a mapped file, which survives a crash of the process.
//!
//! ```text
//! 0      KEYS words: a key, or 0
//! ```
//!
//! A key is stored in one of the [`REACH`] words that begin at the word selected by its low bits, so that no index is
//! needed. Evenly distributed keys are mostly found in the first word.
//!
//! **Invariant**: a key is found as often as it was inserted and not removed, also with concurrent callers.

use crate::map::Map;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of keys.
const KEYS: usize = 1 << 17;
/// Number of words in which a key may be stored.
const REACH: usize = 64;
/// Name of the file.
pub const TOKEN_KEYS_NAME: &str = "tokens.open";
/// Size of the file in bytes.
pub const TOKEN_KEYS_BYTES: u64 = KEYS as u64 * 8;

/// Keys in a mapped file, used by one process at a time.
pub struct TokenKeys {
    map: Map,
}

impl TokenKeys {
    /// Opens the keys in a file; a file of zeros is empty. Fails if the device of the file cannot read it.
    pub fn open(file: &File) -> io::Result<TokenKeys> {
        Ok(TokenKeys { map: Map::read_in(file, TOKEN_KEYS_BYTES as usize)? })
    }

    /// Inserts a key. False if no word is free, or if the key is 0, which is invalid.
    pub fn insert(&self, key: u64) -> bool {
        key != 0 && self.replace(key, 0, key)
    }

    /// Removes one copy of a key. False if it is absent.
    pub fn remove(&self, key: u64) -> bool {
        key != 0 && self.replace(key, key, 0)
    }

    /// All keys, with their multiplicity.
    #[must_use]
    pub fn all(&self) -> Vec<u64> {
        let words = (0..KEYS).map(|index| self.word(index).load(Ordering::Relaxed));
        words.filter(|&key| key != 0).collect()
    }

    /// Replaces `old` with `new` in one of the words of a key.
    fn replace(&self, key: u64, old: u64, new: u64) -> bool {
        let first = key as usize;
        (0..REACH).map(|step| self.word(first.wrapping_add(step) % KEYS)).any(|word| {
            word.load(Ordering::Relaxed) == old
                && word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: `at` checks the range; every word lies at a multiple of eight of a mapping that begins at a page,
        // lives as long as the borrow, and is accessed only through atomics.
        unsafe { AtomicU64::from_ptr(self.map.at(index * 8, 8).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn file() -> File {
        let file = File::from(memfd_create("keys", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(TOKEN_KEYS_BYTES).expect("room");
        file
    }

    #[test]
    fn keys_keep_their_multiplicity_across_processes() {
        let file = file();
        let keys = TokenKeys::open(&file).unwrap();
        assert!(!keys.insert(0) && !keys.remove(7) && keys.all().is_empty());
        assert!(keys.insert(7) && keys.insert(7) && keys.insert(7 + KEYS as u64) && keys.insert(u64::MAX));
        assert!(keys.remove(7));
        drop(keys);
        let keys = TokenKeys::open(&file).unwrap();
        let mut all = keys.all();
        all.sort_unstable();
        assert_eq!(all, [7, 7 + KEYS as u64, u64::MAX]);
        assert!(keys.remove(7) && !keys.remove(7) && keys.remove(u64::MAX));
        assert_eq!(keys.all(), [7 + KEYS as u64]);
    }

    #[test]
    fn key_without_a_free_word_is_refused() {
        let keys = TokenKeys::open(&file()).unwrap();
        let colliding = |number: u64| 5 + number * KEYS as u64;
        let stored: Vec<bool> = (0..=REACH as u64).map(|number| keys.insert(colliding(number))).collect();
        assert_eq!(stored.iter().filter(|stored| **stored).count(), REACH);
        assert!(!stored[REACH] && !keys.remove(colliding(REACH as u64)));
        assert!(keys.remove(colliding(3)) && keys.insert(colliding(REACH as u64)));
    }

    #[test]
    fn threads_that_insert_and_remove_at_once_lose_no_key() {
        let keys = TokenKeys::open(&file()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let keys = &keys;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let key = 1 + (round % 16) * 4 + thread;
                        assert!(keys.insert(key) && keys.remove(key));
                    }
                    assert!(keys.insert(1 + thread));
                });
            }
        });
        let mut all = keys.all();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4]);
    }
}
