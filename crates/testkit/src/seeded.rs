//! Seeded random numbers, and the number of rounds of random tests.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use std::time::Instant;

/// The seed of a run: `FOREBAY_SEED`, or a fixed default.
#[must_use]
pub fn seed() -> u64 {
    let text = std::env::var("FOREBAY_SEED").ok();
    text.map_or(1, |text| text.parse().unwrap_or_else(|error| panic!("FOREBAY_SEED={text}: {error}")))
}

/// The seed of a run, printed if the test fails.
#[derive(Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// The seed of this run.
    #[must_use]
    pub fn new() -> Seeded {
        Seeded(seed())
    }

    /// The generator for one part of a test: the same for the same part.
    #[must_use]
    pub fn rng(&self, part: u64) -> Rng {
        let mut rng = Rng::new(self.0 ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        rng.next();
        rng
    }
}

impl Default for Seeded {
    fn default() -> Seeded {
        Seeded::new()
    }
}

impl Drop for Seeded {
    #[expect(clippy::print_stderr, reason = "a failing test prints its seed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with FOREBAY_SEED={}", self.0);
        }
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// A generator; equal seeds give equal numbers.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(SplitMix64::seed_from_u64(seed))
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// An index into a collection of this length.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with probability 1/`times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// The given number of random bytes, none of them zero.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| 1 + self.below(255) as u8).collect()
    }

    /// A size below the bound, mostly small.
    pub fn size(&mut self, bound: u64) -> u64 {
        let cut = *self.pick(&[64, 5000, 70_000, bound]);
        self.below(cut.min(bound) + 1)
    }
}

/// The rounds of a random test: the default number, or as many as fit into the duration of a soak.
pub fn rounds(default: u64) -> impl Iterator<Item = u64> {
    let soak = std::env::var("FOREBAY_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let start = Instant::now();
    (0..).take_while(move |&round| match soak {
        Some(seconds) => start.elapsed().as_secs() < seconds,
        None => round < default,
    })
}

/// Bytes that depend on their offset and the seed.
#[must_use]
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    let mut rng = Rng::new(seed);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
