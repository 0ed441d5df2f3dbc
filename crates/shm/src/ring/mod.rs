//! Rings: mapped files through which one process hands records to another without asking it.
//!
//! ```text
//! 0      magic, nonce; on lines of their own: taken, epoch, lease    the taker's page
//! 4096   on lines of their own: head, busy, reading                  the writer's page
//! 8192   SLOTS records of 64 bytes
//! ```

mod commit;
mod protocol;

pub use commit::{Commit, Nonce};
pub use protocol::RECORD;

use crate::map::Map;
use protocol::{Cells, Word};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Records in a ring.
pub const RING_RECORDS: u64 = 1024;
/// Bytes of a ring's file.
pub const RING_BYTES: u64 = RECORDS_AT as u64 + RING_RECORDS * RECORD as u64;

const MAGIC: u64 = u64::from_le_bytes(*b"fbring01");
const NONCE_AT: usize = 16;
const TAKEN_AT: usize = 64;
const EPOCH_AT: usize = 128;
const LEASE_AT: usize = 192;
const HEAD_AT: usize = 4096;
const BUSY_AT: usize = 4160;
const READING_AT: usize = 4224;
const RECORDS_AT: usize = 8192;

struct Mapped(Map);

impl Mapped {
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` checks the range; every word lies at a multiple of eight of a mapping that begins at a page,
        // lives as long as the borrow, and is never used but as an atomic.
        unsafe { AtomicU64::from_ptr(self.0.at(at, 8).cast()) }
    }

    fn nonce(&self) -> Nonce {
        let half = |at| u128::from(self.word(at).load(Ordering::Relaxed));
        half(NONCE_AT) | half(NONCE_AT + 8) << 64
    }

    /// The words of a record. Both sides use them as atomics: a peer that breaks the rules spoils a record, which its
    /// checksum tells, and nothing else.
    fn record(&self, slot: u64) -> impl Iterator<Item = &AtomicU64> {
        let at = RECORDS_AT + slot as usize * RECORD;
        (0..RECORD / 8).map(move |word| self.word(at + word * 8))
    }
}

impl Cells for Mapped {
    fn slots(&self) -> u64 {
        RING_RECORDS
    }

    fn load(&self, word: Word, order: Ordering) -> u64 {
        self.word(place(word)).load(order)
    }

    fn store(&self, word: Word, value: u64, order: Ordering) {
        self.word(place(word)).store(value, order);
    }

    fn add(&self, word: Word, value: u64) {
        self.word(place(word)).fetch_add(value, Ordering::AcqRel);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, slot: u64) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        for (to, from) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.record(slot)) {
            *to = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        bytes
    }

    fn write(&self, slot: u64, record: &[u8; RECORD]) {
        for (from, to) in record.as_chunks::<8>().0.iter().zip(self.record(slot)) {
            to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }
}

fn place(word: Word) -> usize {
    match word {
        Word::Head => HEAD_AT,
        Word::Taken => TAKEN_AT,
        Word::Busy => BUSY_AT,
        Word::Epoch => EPOCH_AT,
        Word::Lease => LEASE_AT,
        Word::Reading => READING_AT,
    }
}

/// The side that writes records. One at a time: who shares it locks it.
pub struct Writer {
    cells: Arc<Mapped>,
    nonce: Nonce,
    head: Cell<u64>,
}

/// While it lives, what the writer was granted is not taken back.
pub struct Filling<'a>(&'a Mapped);

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        protocol::leave(self.0);
    }
}

impl Writer {
    /// Opens a ring that has this nonce; a file with another is not the ring that was meant.
    pub fn open(file: &File, nonce: Nonce) -> io::Result<Writer> {
        let cells = Mapped(Map::new(file, RING_BYTES as usize)?);
        if cells.word(0).load(Ordering::Relaxed) != MAGIC || cells.nonce() != nonce {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the ring that was meant"));
        }
        let head = cells.load(Word::Head, Ordering::Acquire);
        Ok(Writer { cells: Arc::new(cells), nonce, head: Cell::new(head) })
    }

    /// How many records were written.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head.get()
    }

    /// How many more can be written now.
    #[must_use]
    pub fn room(&self) -> u64 {
        protocol::room(&*self.cells, self.head.get())
    }

    /// Begins to fill space that was granted in an epoch; `None` if it was taken back.
    #[must_use]
    pub fn enter(&self, epoch: u64) -> Option<Filling<'_>> {
        protocol::enter(&*self.cells, epoch).then(|| Filling(&self.cells))
    }

    /// Writes records, which appear at once. Refused where there is no room, or they do not follow the last.
    #[must_use]
    pub fn push(&self, commits: &[Commit]) -> bool {
        let mut head = self.head.get();
        let follows = |(at, commit): (usize, &Commit)| commit.sequence == head + at as u64;
        if commits.len() as u64 > self.room() || !commits.iter().enumerate().all(follows) {
            return false;
        }
        match commits {
            [one] => protocol::push(&*self.cells, &mut head, &[one.encode(self.nonce)]),
            all => {
                let records: Vec<_> = all.iter().map(|commit| commit.encode(self.nonce)).collect();
                protocol::push(&*self.cells, &mut head, &records);
            }
        }
        self.head.set(head);
        true
    }

    /// Reads what the ring's client was leased.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(self.cells.clone())
    }
}

/// The side that reads what was leased, in any number of threads.
#[derive(Clone)]
pub struct Reader(Arc<Mapped>);

impl Reader {
    /// Copies by `copy`; `None` if the lease did not stand until that was done: what was copied is worth nothing then.
    pub fn read<T>(&self, lease: u64, copy: impl FnOnce() -> T) -> Option<T> {
        if !protocol::begin_read(&*self.0, lease) {
            return None;
        }
        let copied = copy();
        protocol::end_read(&*self.0, lease).then_some(copied)
    }
}

/// What the taker finds in a place of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A whole record.
    Commit(Commit),
    /// Something else.
    Torn,
}

/// The side that takes records, and believes nothing.
pub struct Taker {
    cells: Mapped,
    nonce: Nonce,
}

impl Taker {
    /// Makes a ring in a file of zeros.
    pub fn create(file: &File, nonce: Nonce) -> io::Result<Taker> {
        let cells = Mapped(Map::new(file, RING_BYTES as usize)?);
        cells.word(NONCE_AT).store(nonce as u64, Ordering::Relaxed);
        cells.word(NONCE_AT + 8).store((nonce >> 64) as u64, Ordering::Relaxed);
        cells.word(0).store(MAGIC, Ordering::Release);
        Ok(Taker { cells, nonce })
    }

    /// Opens a ring of an earlier life. What it says of itself is not believed: the nonce comes from elsewhere.
    pub fn open(file: &File, nonce: Nonce) -> io::Result<Taker> {
        Ok(Taker { cells: Mapped(Map::new(file, RING_BYTES as usize)?), nonce })
    }

    /// What its records are checked with.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// The epoch that a writer has to name; what a writer made of it harms only itself.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.cells.load(Word::Epoch, Ordering::Acquire)
    }

    /// How many records follow the first `taken`; `None` if the writer says what cannot be.
    #[must_use]
    pub fn waiting(&self, taken: u64) -> Option<u64> {
        protocol::waiting(&self.cells, taken)
    }

    /// The record with this number. It is read once, so that nobody changes it while it is judged.
    #[must_use]
    pub fn read(&self, sequence: u64) -> Found {
        let bytes = self.cells.read(sequence % RING_RECORDS);
        match Commit::decode(&bytes, self.nonce) {
            Some(commit) if commit.sequence == sequence => Found::Commit(commit),
            _ => Found::Torn,
        }
    }

    /// The first `taken` records are done with.
    pub fn take(&self, taken: u64) {
        protocol::take(&self.cells, taken);
    }

    /// The epoch that a writer has to name.
    pub fn set_epoch(&self, epoch: u64) {
        self.cells.store(Word::Epoch, epoch, Ordering::Release);
    }

    /// The lease that stands, if it is an odd number.
    #[must_use]
    pub fn lease(&self) -> u64 {
        self.cells.load(Word::Lease, Ordering::Acquire)
    }

    /// Sets the lease that stands, by an odd number, or ends it. Whatever happens after that is not what was leased.
    pub fn set_lease(&self, lease: u64) {
        protocol::set_lease(&self.cells, lease);
    }

    /// Whether somebody may still be copying what was leased before; what a client made of it harms those alone who
    /// wait for its user's space.
    #[must_use]
    pub fn is_read(&self) -> bool {
        protocol::is_read(&self.cells)
    }

    /// Takes back what was granted, by a new epoch; false while the writer is still filling it.
    #[must_use]
    pub fn recall(&self, epoch: u64) -> bool {
        protocol::recall(&self.cells, epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file() -> File {
        let file = File::from(memfd_create("ring", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, RING_BYTES).unwrap();
        file
    }

    fn commit(sequence: u64) -> Commit {
        let (position, offset, stamp) = (sequence as u32, sequence * 7, sequence + 1);
        Commit { sequence, binding: 1, slab: 2, position, len: 1, offset, stamp, more: false }
    }

    #[test]
    fn records_pass_around_many_times_and_a_full_ring_refuses() {
        let file = file();
        let taker = Taker::create(&file, 99).unwrap();
        assert!(Writer::open(&file, 98).is_err(), "another ring");
        let writer = Writer::open(&file, 99).unwrap();
        let mut taken = 0;
        for lap in 0..3 {
            let batch: Vec<Commit> = (taken..taken + RING_RECORDS).map(commit).collect();
            assert!(!writer.push(&[commit(taken + 1)]), "one that does not follow");
            assert!(writer.push(&batch[..1]) && writer.push(&batch[1..]));
            assert!(writer.room() == 0 && !writer.push(&[commit(writer.head())]), "lap {lap}");
            assert_eq!(taker.waiting(taken), Some(RING_RECORDS));
            for expected in batch {
                assert_eq!(taker.read(expected.sequence), Found::Commit(expected));
            }
            assert_eq!(taker.read(taken + RING_RECORDS), Found::Torn, "a record of the lap before");
            taken += RING_RECORDS;
            taker.take(taken);
        }
        assert_eq!(taker.waiting(taken + 1), None, "a head that cannot be");
    }

    #[test]
    fn what_was_recalled_cannot_be_entered_and_what_was_entered_is_not_recalled() {
        let file = file();
        let taker = Taker::create(&file, 1).unwrap();
        taker.set_epoch(4);
        let writer = Writer::open(&file, 1).unwrap();
        let filling = writer.enter(4).unwrap();
        assert!(!taker.recall(5));
        drop(filling);
        assert!(writer.enter(4).is_none());
        assert!(taker.recall(6));
    }

    #[test]
    fn what_was_leased_is_copied_while_the_lease_stands() {
        let file = file();
        let taker = Taker::create(&file, 1).unwrap();
        let reader = Writer::open(&file, 1).unwrap().reader();
        assert_eq!((reader.read(1, || 5), taker.lease()), (None, 0), "there is none yet");
        taker.set_lease(1);
        assert_eq!(reader.read(1, || taker.is_read()), Some(true));
        assert_eq!(reader.read(1, || taker.set_lease(2)), None, "it ended meanwhile");
        assert!(!taker.is_read());
    }
}
