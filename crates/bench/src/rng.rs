//! A repeatable random generator: SplitMix64.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// A random generator; the same seed gives the same numbers.
pub(crate) struct Rng(SplitMix64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(SplitMix64::seed_from_u64(seed))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (self.bits() % u64::from(bound.max(1))) as u32
    }

    /// `count` distinct numbers below `of`.
    pub(crate) fn some(&mut self, count: usize, of: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..of).collect();
        for place in 0..count.min(all.len()) {
            let other = place + self.below(of - place as u32) as usize;
            all.swap(place, other);
        }
        all.truncate(count);
        all
    }
}
