//! A small random number generator with a given seed (SplitMix64).

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// A deterministic generator: equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// A generator; every seed is valid.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(SplitMix64::seed_from_u64(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A whole number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "nothing is below zero");
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_match_the_reference_implementation() {
        let mut rng = Rng::new(1_477_776_061_723_855_037);
        assert_eq!([rng.bits(), rng.bits()], [1_985_237_415_132_408_290, 2_979_275_885_539_914_483]);
    }
}
