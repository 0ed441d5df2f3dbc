//! Bent input: good samples, mutated without looking at what they reach.

use crate::seeded::{Dice, Seeded, rounds};
use std::path::Path;

/// Changes bytes in a few places: bits, bytes, words that tempt, pieces cut out, doubled or put in from elsewhere.
pub fn mutate(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    const WORDS: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() as u64) as usize;
        let len = (1 + dice.below(32)) as usize;
        let end = bytes.len().min(at + len);
        match dice.below(9) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), dice.next() as u8),
            2 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            3 if at < bytes.len() => bytes[at] = dice.next() as u8,
            4 => drop(bytes.drain(at.min(end)..end)),
            5 => {
                let piece = bytes[at.min(end)..end].to_vec();
                bytes.splice(at.min(end)..at.min(end), piece);
            }
            6 => {
                let from = dice.below(other.len() as u64) as usize;
                let piece = &other[from.min(other.len())..other.len().min(from + len)];
                bytes.splice(at.min(end)..end, piece.iter().copied());
            }
            7 => {
                let word = dice.pick(&WORDS).to_le_bytes();
                let size = *dice.pick(&[1, 2, 4, 8]);
                let size = size.min(bytes.len() - at.min(bytes.len()));
                bytes[at.min(end)..at.min(end) + size].copy_from_slice(&word[..size]);
            }
            _ => bytes.extend((0..dice.below(64)).map(|_| dice.next() as u8)),
        }
    }
}

/// Samples to begin with, and how often they were taken and refused.
pub struct Corpus {
    samples: Vec<Vec<u8>>,
    seeded: Seeded,
}

impl Corpus {
    /// These samples, and every file of a directory: inputs that found something once are kept there.
    #[must_use]
    pub fn new(mut samples: Vec<Vec<u8>>, kept: &Path) -> Corpus {
        let list = std::fs::read_dir(kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display()));
        let mut paths: Vec<_> = list.map(|entry| entry.expect("an entry").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "bin"));
        paths.sort();
        samples.extend(paths.iter().map(|path| std::fs::read(path).expect("a sample can be read")));
        Corpus { samples, seeded: Seeded::new() }
    }

    /// Gives every sample to a target, and then as many mutations as usual, or for as long as a soak asks for. Returns
    /// how many the target took, and how many it refused.
    pub fn run(&self, usual: u64, mut target: impl FnMut(&[u8], &mut Dice) -> bool) -> (u64, u64) {
        let (mut taken, mut refused) = (0, 0);
        let mut dice = self.seeded.dice(0);
        for sample in &self.samples {
            target(sample, &mut dice);
        }
        // Looking at the clock costs more than a small case.
        const BATCH: u64 = 16;
        for round in rounds(usual.div_ceil(BATCH)) {
            let mut dice = self.seeded.dice(round + 1);
            for _ in 0..BATCH {
                let mut bytes = dice.pick(&self.samples).clone();
                let other = dice.pick(&self.samples);
                mutate(&mut bytes, other, &mut dice);
                match target(&bytes, &mut dice) {
                    true => taken += 1,
                    false => refused += 1,
                }
            }
        }
        (taken, refused)
    }
}
