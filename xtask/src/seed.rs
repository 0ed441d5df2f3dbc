//! Seeds: one fixed for the suite, a fresh sequence for soaking. The drivers read them from the environment.

use crate::args;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use std::hash::{BuildHasher, Hasher, RandomState};

/// What every random driver starts from.
pub(crate) const SEED: &str = "FOREBAY_SEED";
/// How long a random driver goes on; when unset it does its fixed number of steps.
pub(crate) const SOAK_SECONDS: &str = "FOREBAY_SOAK_SECONDS";
/// Property tests take theirs from here.
pub(crate) const PROPTEST_SEED: &str = "PROPTEST_RNG_SEED";

/// The suite's own seed: every run is the same.
const FIXED: u64 = 1;

/// The command line wins, then the environment, then the fixed seed.
pub(crate) fn for_suite(asked: Option<u64>, environment: Option<&String>) -> Result<u64, String> {
    match (asked, environment) {
        (Some(seed), _) => Ok(seed),
        (None, Some(_)) => args::number(SEED, environment),
        (None, None) => Ok(FIXED),
    }
}

/// A fresh seed.
pub(crate) fn fresh() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The seeds of a soak: the first as given, each next one the first number of a generator of the one before.
pub(crate) fn sequence(first: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(first), |seed| Some(SplitMix64::seed_from_u64(*seed).next_u64()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_command_line_wins_over_the_environment() {
        let nine = "9".to_owned();
        assert_eq!(for_suite(Some(5), Some(&nine)), Ok(5));
        assert_eq!(for_suite(None, Some(&nine)), Ok(9));
        assert_eq!(for_suite(None, None), Ok(FIXED));
        assert!(for_suite(None, Some(&"many".to_owned())).is_err());
    }

    #[test]
    fn a_sequence_starts_as_asked_and_does_not_repeat() {
        let seeds: Vec<u64> = sequence(42).take(10_000).collect();
        assert_eq!(seeds[0], 42);
        assert_eq!(seeds.iter().collect::<HashSet<_>>().len(), seeds.len());
    }
}
