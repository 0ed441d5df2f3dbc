//! Fuzzing by mutation of valid samples, without coverage feedback.

use crate::seeded::{Rng, Seeded, rounds};
use std::path::Path;

/// Mutates bytes in a few places: flips bits, replaces bytes and boundary values, cuts, duplicates and
/// splices ranges.
pub fn mutate(bytes: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    const WORDS: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        let len = (1 + rng.below(32)) as usize;
        let end = bytes.len().min(at + len);
        match rng.below(9) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), rng.next() as u8),
            2 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            3 if at < bytes.len() => bytes[at] = rng.next() as u8,
            4 => drop(bytes.drain(at.min(end)..end)),
            5 => {
                let piece = bytes[at.min(end)..end].to_vec();
                bytes.splice(at.min(end)..at.min(end), piece);
            }
            6 => {
                let from = rng.below(other.len() as u64) as usize;
                let piece = &other[from.min(other.len())..other.len().min(from + len)];
                bytes.splice(at.min(end)..end, piece.iter().copied());
            }
            7 => {
                let word = rng.pick(&WORDS).to_le_bytes();
                let size = *rng.pick(&[1, 2, 4, 8]);
                let size = size.min(bytes.len() - at.min(bytes.len()));
                bytes[at.min(end)..at.min(end) + size].copy_from_slice(&word[..size]);
            }
            _ => bytes.extend((0..rng.below(64)).map(|_| rng.next() as u8)),
        }
    }
}

/// Samples to mutate.
pub struct Corpus {
    samples: Vec<Vec<u8>>,
    seeded: Seeded,
}

impl Corpus {
    /// These samples, and every file of a directory: inputs that once found a bug are kept there.
    #[must_use]
    pub fn new(mut samples: Vec<Vec<u8>>, kept: &Path) -> Corpus {
        let list = std::fs::read_dir(kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display()));
        let mut paths: Vec<_> = list.map(|entry| entry.expect("an entry").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "bin"));
        paths.sort();
        samples.extend(paths.iter().map(|path| std::fs::read(path).expect("a sample can be read")));
        Corpus { samples, seeded: Seeded::new() }
    }

    /// Runs a target on every sample, then on the given number of mutations, or for the duration of a soak.
    /// Returns how many inputs the target accepted, and how many it refused.
    pub fn run(&self, default: u64, mut target: impl FnMut(&[u8], &mut Rng) -> bool) -> (u64, u64) {
        let (mut taken, mut refused) = (0, 0);
        let mut rng = self.seeded.rng(0);
        for sample in &self.samples {
            target(sample, &mut rng);
        }
        // Reading the clock costs more than a small case.
        const BATCH: u64 = 16;
        for round in rounds(default.div_ceil(BATCH)) {
            let mut rng = self.seeded.rng(round + 1);
            for _ in 0..BATCH {
                let mut bytes = rng.pick(&self.samples).clone();
                let other = rng.pick(&self.samples);
                mutate(&mut bytes, other, &mut rng);
                match target(&bytes, &mut rng) {
                    true => taken += 1,
                    false => refused += 1,
                }
            }
        }
        (taken, refused)
    }
}
