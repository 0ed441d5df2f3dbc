//! The log ahead of the metadata store: batches that are committed but not in the tree yet.
//!
//! A batch is committed when its record is in the log, a mapped file: the death of the process loses nothing of it.
//! When the log is full, or the tree must be current, everything in the log goes into the tree as one batch, together
//! with the number of the last record; then the log starts over. Opening the store applies the records that the tree
//! does not have.
//!
//! ```text
//! record   checksum (4, CRC32C of all that follows), length (4), number (8), run (8), batch in postcard
//! key KEY  run (8), number of the last record that is in the tree (8), big-endian
//! ```
//!
//! **Invariant**: the applied records follow the tree's mark without a gap. After the death of the machine, which may
//! lose any part of the log or of the tree's last changes, the store is as after some earlier batch, and no synced
//! batch is lost. A run is one opening of the store, with a random id, so that records of another run are never
//! accepted.

use super::Batch;
use crc32c::{crc32c, crc32c_append};
use forebay_shm::RwMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of the log.
const SIZE: usize = 2 << 20;
/// A larger batch goes into the tree at once.
const LARGEST: usize = SIZE / 8;
const HEAD: usize = 24;
/// The key of the tree's mark. No other record has such a key, and scans skip it.
pub(super) const KEY: &[u8] = b"\0ahead";
const NAME: &str = "ahead.log";

/// How much of the log the tree has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    run: u64,
    number: u64,
}

impl Mark {
    pub(super) fn encode(self) -> [u8; 16] {
        (u128::from(self.run) << 64 | u128::from(self.number)).to_be_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Mark> {
        let both = u128::from_be_bytes(bytes.try_into().ok()?);
        Some(Mark { run: (both >> 64) as u64, number: both as u64 })
    }
}

/// The log of one run.
pub(super) struct Log {
    window: RwMap,
    used: usize,
    mark: Mark,
}

impl Log {
    /// Starts the log of a new run in the store's directory, replacing an earlier log.
    pub(super) fn begin(dir: &Path, run: u64) -> io::Result<Log> {
        let path = dir.join(NAME);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if file.metadata()?.len() != SIZE as u64 {
            file.set_len(0)?;
            // Written in full: touching a hole on a full disk would kill the process.
            file.write_all(&vec![0; SIZE])?;
        }
        let window = RwMap::new(&file, SIZE as u32)?;
        // If the pages cannot be populated ahead of time, the first access does it.
        let _ = window.populate(0..SIZE as u32);
        Ok(Log { window, used: 0, mark: Mark { run, number: 0 } })
    }

    /// The mark of a tree that has everything in the log.
    pub(super) fn mark(&self) -> Mark {
        self.mark
    }

    /// Whether it holds enough to empty it while the store is idle.
    pub(super) fn is_worth_emptying(&self) -> bool {
        self.used > SIZE / 32
    }

    /// Whether a batch is too large for any log.
    pub(super) fn is_too_large(batch: &[u8]) -> bool {
        batch.len() > LARGEST
    }

    /// Whether an encoded batch fits.
    pub(super) fn has_room(&self, batch: &[u8]) -> bool {
        self.used + HEAD + batch.len() <= SIZE
    }

    /// Appends an encoded batch, which must fit. It is committed from then on.
    pub(super) fn append(&mut self, batch: &[u8]) {
        self.mark.number += 1;
        let mut head = [0; HEAD];
        head[4..8].copy_from_slice(&(batch.len() as u32).to_le_bytes());
        head[8..16].copy_from_slice(&self.mark.number.to_le_bytes());
        head[16..].copy_from_slice(&self.mark.run.to_le_bytes());
        let crc = crc32c_append(crc32c(&head[4..]), batch);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        self.window.put(self.used as u32, &head);
        self.window.put((self.used + HEAD) as u32, batch);
        self.used += HEAD + batch.len();
    }

    /// The mark of a tree that also has the next batch, which is too large for the log.
    pub(super) fn next(&self) -> Mark {
        Mark { number: self.mark.number + 1, ..self.mark }
    }

    /// Records that this batch is in the tree: later records apply only to a tree that has it.
    pub(super) fn pass(&mut self) {
        self.mark = self.next();
    }

    /// Empties the log when everything in it is in the tree.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }
}

/// The batches in a store's log that follow the tree's mark, in order.
pub(super) fn unapplied(dir: &Path, has: Mark) -> io::Result<Vec<Batch>> {
    let bytes = match std::fs::read(dir.join(NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes?,
    };
    Ok(follow(&bytes, has))
}

fn follow(bytes: &[u8], has: Mark) -> Vec<Batch> {
    let (mut rest, mut before, mut batches) = (bytes, None, Vec::new());
    while let Some((number, batch, tail)) = record(rest, has.run) {
        let follows = match before {
            // A log starts with the record after the tree's mark at that time; the tree may have more by now, never
            // less.
            None => number <= has.number + 1,
            Some(before) => number == before + 1,
        };
        if !follows {
            break;
        }
        if number > has.number {
            match postcard::from_bytes(batch) {
                Ok(batch) => batches.push(batch),
                Err(_) => break,
            }
        }
        (before, rest) = (Some(number), tail);
    }
    batches
}

/// Decodes the first record of this run: its number, its batch, and the bytes after it.
fn record(bytes: &[u8], run: u64) -> Option<(u64, &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (batch, tail) = rest.split_at_checked(word(4) as usize)?;
    let whole = crc32c(&bytes[4..HEAD + batch.len()]) == word(0);
    (whole && long(16) == run).then_some((long(8), batch, tail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::{Seeded, rounds};
    use std::os::unix::fs::FileExt;

    fn batch(number: u64) -> Vec<u8> {
        let mut batch = Batch::default();
        batch.put(b"n".to_vec(), number.to_be_bytes().to_vec());
        postcard::to_stdvec(&batch).unwrap()
    }

    fn numbers(dir: &Path, has: Mark) -> Vec<u64> {
        let number = |batch: Batch| {
            let (_, value) = batch.changes.into_iter().next().expect("one change");
            u64::from_be_bytes(value.expect("a value").try_into().expect("eight bytes"))
        };
        unapplied(dir, has).unwrap().into_iter().map(number).collect()
    }

    #[test]
    fn only_log_records_that_follow_the_tree_are_applied() {
        let dir = tempfile::tempdir().unwrap();
        let at = |run, number| Mark { run, number };
        assert!(numbers(dir.path(), at(1, 0)).is_empty(), "no log");
        let mut log = Log::begin(dir.path(), 1).unwrap();
        assert!(numbers(dir.path(), at(1, 0)).is_empty(), "an empty log");
        (1..=5).for_each(|number| log.append(&batch(number)));
        assert_eq!(Mark::decode(&log.mark().encode()), Some(at(1, 5)));
        for (has, expected) in [
            (at(1, 0), vec![1, 2, 3, 4, 5]),
            (at(1, 3), vec![4, 5]),
            (at(1, 5), vec![]),
            (at(1, 9), vec![]),
            (at(2, 0), vec![]),
        ] {
            assert_eq!(numbers(dir.path(), has), expected, "{has:?}");
        }
        log.clear();
        (6..=7).for_each(|number| log.append(&batch(number)));
        assert_eq!(numbers(dir.path(), at(1, 5)), [6, 7]);
        assert!(numbers(dir.path(), at(1, 4)).is_empty(), "the tree has lost what came before");
        log.clear();
        assert_eq!(log.next(), at(1, 8));
        log.pass();
        log.append(&batch(9));
        assert_eq!(numbers(dir.path(), at(1, 8)), [9]);
        assert!(
            numbers(dir.path(), at(1, 7)).is_empty(),
            "the tree has lost a batch that was never in the log"
        );
        drop(log);
        let mut next = Log::begin(dir.path(), 2).unwrap();
        assert!(numbers(dir.path(), at(2, 0)).is_empty(), "records of another run");
        next.append(&batch(1));
        assert_eq!(numbers(dir.path(), at(2, 0)), [1]);
    }

    #[test]
    fn random_damage_leaves_a_prefix_of_the_log() {
        let seeded = Seeded::new();
        for round in rounds(40) {
            let mut rng = seeded.rng(round);
            let dir = tempfile::tempdir().unwrap();
            let mut log = Log::begin(dir.path(), 9).unwrap();
            let (first, count) = (rng.below(30), 1 + rng.below(40));
            (1..=first).for_each(|number| log.append(&batch(number)));
            log.clear();
            (first + 1..=first + count).for_each(|number| log.append(&batch(number)));
            let used = log.used as u64;
            drop(log);
            let file = OpenOptions::new().write(true).open(dir.path().join(NAME)).unwrap();
            for _ in 0..1 + rng.below(3) {
                let len = 1 + rng.index(40);
                file.write_all_at(&rng.bytes(len), rng.below(used + 100)).unwrap();
            }
            let found = numbers(dir.path(), Mark { run: 9, number: first });
            let whole: Vec<u64> = (first + 1..=first + count).collect();
            assert!(whole.starts_with(&found), "{found:?} of {whole:?}");
        }
    }

    #[test]
    fn log_is_full_when_no_batch_fits() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::begin(dir.path(), 1).unwrap();
        let large = vec![0; LARGEST];
        assert!(!Log::is_too_large(&large) && Log::is_too_large(&vec![0; LARGEST + 1]));
        let mut fit = 0;
        while log.has_room(&large) {
            log.append(&large);
            fit += 1;
        }
        assert_eq!(fit, SIZE / (LARGEST + HEAD));
        log.clear();
        assert!(log.has_room(&large));
    }
}
