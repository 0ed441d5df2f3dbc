//! Reproducible random numbers from a seed: xoshiro256++.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// A generator. Equal seeds give equal sequences on every machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The generator of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in [low, high).
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_give_the_same_numbers_for_ever() {
        let mut rng = Rng::new(7);
        let first: Vec<u64> = (0..2).map(|_| rng.bits()).collect();
        assert_eq!(first, [1_021_219_803_524_665_661, 3_174_977_118_032_272_916]);
    }
}
