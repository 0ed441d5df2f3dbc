//! A hash for keys: fast for short ones, and seeded per process, so that no user can choose colliding keys.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Builds hashers with one seed.
#[derive(Clone)]
pub(super) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Seeded {
        Seeded(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Hashing;

    fn build_hasher(&self) -> Hashing {
        Hashing(self.0)
    }
}

/// A hasher for one key.
pub(super) struct Hashing(u64);

impl Hasher for Hashing {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_usize(&mut self, number: usize) {
        // The length prefix: each key is a single byte string, whose hash covers its length anyway.
        self.0 ^= number as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// For keys that are already hashes.
pub(super) type Hashed = BuildHasherDefault<Already>;

/// A hasher that returns its input.
#[derive(Default)]
pub(super) struct Already(u64);

impl Hasher for Already {
    fn write(&mut self, _: &[u8]) {
        unreachable!("all keys of this map are hashes");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_hash_differently_and_consistently() {
        let (one, other) = (Seeded::default(), Seeded::default());
        let keys: Vec<Vec<u8>> = (0..10_000_u32).map(|number| number.to_be_bytes().repeat(3)).collect();
        let hashes: HashSet<u64> = keys.iter().map(|key| one.hash_one(key)).collect();
        assert_eq!(hashes.len(), keys.len());
        assert!(keys.iter().all(|key| one.hash_one(key) == one.hash_one(key.as_slice())));
        assert!(keys.iter().any(|key| one.hash_one(key) != other.hash_one(key)));
    }
}
