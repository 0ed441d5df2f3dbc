//! The difference of two large sets, computed without sending either (an invertible Bloom lookup table).
//!
//! Each side adds its pairs to a sieve of fixed size. Subtracting one sieve from the other leaves the pairs
//! that only one side has. If they are few they can be decoded: a cell with a single pair reveals it, and
//! removing that pair isolates others.
//!
//! **Invariant**: every decoded pair was added; pairs that cannot be decoded are counted.

use crate::FileId;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Each pair is in one cell of each row.
const ROWS: usize = 3;
const CELLS: usize = 1365;
/// Number of different pairs that can be decoded with near certainty.
const READABLE: u64 = 2000;
const CHECK: u64 = 0x5eed;

/// Pairs of a directory and a file that has a name in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Sieve {
    /// One of 2^`sample` pairs is stored in the cells; all are counted.
    sample: u8,
    total: i64,
    cells: Vec<Cell>,
}

/// The sum of all pairs that hash to it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
struct Cell {
    count: i64,
    dirs: i128,
    files: i128,
    checks: u64,
}

/// A sieve before it is checked.
#[derive(Deserialize)]
struct Unchecked {
    sample: u8,
    total: i64,
    cells: Vec<Cell>,
}

impl TryFrom<Unchecked> for Sieve {
    type Error = String;

    fn try_from(sent: Unchecked) -> Result<Sieve, String> {
        let Unchecked { sample, total, cells } = sent;
        match cells.len() == ROWS * CELLS {
            true => Ok(Sieve { sample, total, cells }),
            false => Err(format!("a sieve has {} cells, not {}", ROWS * CELLS, cells.len())),
        }
    }
}

/// The decoded contents of a sieve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sifted {
    /// Pairs with their counts; negative if a pair was removed more often than added.
    pub pairs: Vec<((FileId, FileId), i64)>,
    /// The sum of all counts.
    pub total: i64,
    /// Whether all stored pairs could be decoded.
    pub all: bool,
}

impl Sieve {
    /// A sieve that stores one of `2^sample` pairs.
    #[must_use]
    pub fn new(sample: u8) -> Sieve {
        Sieve { sample, total: 0, cells: vec![Cell::default(); ROWS * CELLS] }
    }

    /// The sample at which the given number of pairs can be decoded.
    #[must_use]
    pub fn sample_for(total: u64) -> u8 {
        (0..64).find(|&sample| total >> sample <= READABLE).unwrap_or(63)
    }

    /// Adds a pair.
    pub fn put(&mut self, dir: FileId, file: FileId) {
        self.change(dir, file, 1);
    }

    /// Removes a pair, even one that was never added.
    pub fn take(&mut self, dir: FileId, file: FileId) {
        self.change(dir, file, -1);
    }

    /// Subtracts another sieve.
    pub fn take_all(&mut self, other: &Sieve) {
        self.total = self.total.wrapping_sub(other.total);
        for (own, other) in self.cells.iter_mut().zip(&other.cells) {
            own.count = own.count.wrapping_sub(other.count);
            own.dirs = own.dirs.wrapping_sub(other.dirs);
            own.files = own.files.wrapping_sub(other.files);
            own.checks = own.checks.wrapping_sub(other.checks);
        }
    }

    /// Decodes the contents.
    #[must_use]
    pub fn sifted(mut self) -> Sifted {
        let (total, mut pairs) = (self.total, Vec::new());
        let mut alone: Vec<usize> = (0..self.cells.len()).collect();
        while let Some(index) = alone.pop() {
            let Some((dir, file, times)) = self.alone(index) else { continue };
            pairs.push(((dir, file), times));
            self.change(dir, file, -times);
            alone.extend(places(dir, file));
        }
        pairs.sort_unstable();
        let all = self.cells.iter().all(|cell| *cell == Cell::default());
        Sifted { pairs, total, all }
    }

    fn change(&mut self, dir: FileId, file: FileId, by: i64) {
        self.total = self.total.wrapping_add(by);
        let check = hash(dir, file, CHECK);
        if check.trailing_zeros() < u32::from(self.sample) {
            return;
        }
        for index in places(dir, file) {
            let cell = &mut self.cells[index];
            cell.count = cell.count.wrapping_add(by);
            cell.dirs = cell.dirs.wrapping_add(i128::from(dir.0).wrapping_mul(by.into()));
            cell.files = cell.files.wrapping_add(i128::from(file.0).wrapping_mul(by.into()));
            cell.checks = cell.checks.wrapping_add(check.wrapping_mul(by.cast_unsigned()));
        }
    }

    /// The pair in a cell, if it holds exactly one.
    fn alone(&self, index: usize) -> Option<(FileId, FileId, i64)> {
        let Cell { count, dirs, files, checks } = self.cells[index];
        let one = |sum: i128| {
            let id = sum.checked_div(count.into())?;
            Some(FileId(u64::try_from(id).ok()?))
        };
        let (dir, file) = (one(dirs)?, one(files)?);
        let holds = hash(dir, file, CHECK).wrapping_mul(count.cast_unsigned()) == checks
            && i128::from(dir.0) * i128::from(count) == dirs
            && i128::from(file.0) * i128::from(count) == files
            && places(dir, file).contains(&index);
        holds.then_some((dir, file, count))
    }
}

fn places(dir: FileId, file: FileId) -> [usize; ROWS] {
    std::array::from_fn(|row| row * CELLS + (hash(dir, file, row as u64) % CELLS as u64) as usize)
}

fn hash(dir: FileId, file: FileId, seed: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&dir.0.to_be_bytes());
    bytes[8..].copy_from_slice(&file.0.to_be_bytes());
    xxh3_64_with_seed(&bytes, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Pairs that are different for different numbers.
    fn pair(number: u64) -> (FileId, FileId) {
        (FileId(number % 97), FileId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    #[test]
    fn difference_is_found_whatever_the_common_part() {
        for (same, here, there) in [(0, 0, 0), (0, 1, 0), (100_000, 1, 2), (50_000, 2000, 0), (7, 700, 700)] {
            let (mut own, mut other) = (Sieve::new(0), Sieve::new(0));
            let put = |sieve: &mut Sieve, numbers: std::ops::Range<u64>| {
                numbers.map(pair).for_each(|(dir, file)| sieve.put(dir, file));
            };
            put(&mut own, 0..same + here);
            put(&mut other, 0..same);
            put(&mut other, same + here..same + here + there);
            own.take_all(&other);
            let expected = (same..same + here).map(|number| (pair(number), 1));
            let expected =
                expected.chain((same + here..same + here + there).map(|number| (pair(number), -1)));
            let expected: BTreeMap<_, _> = expected.collect();
            let sifted = own.sifted();
            assert!(sifted.all && sifted.total == here as i64 - there as i64);
            assert_eq!(sifted.pairs, expected.into_iter().collect::<Vec<_>>(), "{same} {here} {there}");
        }
    }

    #[test]
    fn repeated_pair_is_decoded_once_with_its_count() {
        let mut sieve = Sieve::new(0);
        for _ in 0..5 {
            sieve.put(FileId(1), FileId(u64::MAX));
        }
        sieve.take(FileId(1), FileId(u64::MAX));
        sieve.take(FileId::ROOT, FileId(9));
        let expected = vec![((FileId::ROOT, FileId(9)), -1), ((FileId(1), FileId(u64::MAX)), 4)];
        let mut found = sieve.sifted();
        found.pairs.sort_unstable_by_key(|&((_, file), _)| file);
        assert_eq!(found, Sifted { pairs: expected, total: 3, all: true });
    }

    #[test]
    fn excess_pairs_are_counted_and_a_sample_is_decoded() {
        const MANY: u64 = 60_000;
        let fill = |sample| {
            let mut sieve = Sieve::new(sample);
            (0..MANY).map(pair).for_each(|(dir, file)| sieve.put(dir, file));
            sieve.sifted()
        };
        let all = fill(0);
        assert!(!all.all && all.total == MANY as i64);
        let some = fill(Sieve::sample_for(MANY));
        assert!(some.all && some.total == MANY as i64 && (500..3000).contains(&some.pairs.len()));
        let known: Vec<_> = (0..MANY).map(pair).collect();
        assert!(some.pairs.iter().all(|(pair, times)| *times == 1 && known.contains(pair)));
    }
}
