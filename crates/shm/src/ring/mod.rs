//! Rings: mapped files through which a writer process passes records to a consumer process without requests.
//!
//! ```text
//! 0      magic, nonce; on separate cache lines: taken, epoch, lease    the consumer's page
//! 4096   on separate cache lines: head, busy, reading                  the writer's page
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

/// Number of records in a ring.
pub const RING_RECORDS: u64 = 1024;
/// Size of a ring file in bytes.
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
        // lives as long as the borrow, and is accessed only through atomics.
        unsafe { AtomicU64::from_ptr(self.0.at(at, 8).cast()) }
    }

    fn nonce(&self) -> Nonce {
        let half = |at| u128::from(self.word(at).load(Ordering::Relaxed));
        half(NONCE_AT) | half(NONCE_AT + 8) << 64
    }

    /// The words of a record. Both sides access them as atomics: a misbehaving peer can only corrupt a record, and its
    /// checksum detects that.
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

/// The writer side. It is for one thread at a time; threads that share it use a lock.
pub struct Writer {
    cells: Arc<Mapped>,
    nonce: Nonce,
    head: Cell<u64>,
}

/// While it exists, the grants of the writer are not revoked.
pub struct Filling<'a>(&'a Mapped);

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        protocol::leave(self.0);
    }
}

impl Writer {
    /// Opens the ring with this nonce. A file with another nonce is refused.
    pub fn open(file: &File, nonce: Nonce) -> io::Result<Writer> {
        let cells = Mapped(Map::new(file, RING_BYTES as usize)?);
        if cells.word(0).load(Ordering::Relaxed) != MAGIC || cells.nonce() != nonce {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the ring file has another magic number or nonce",
            ));
        }
        let head = cells.load(Word::Head, Ordering::Acquire);
        Ok(Writer { cells: Arc::new(cells), nonce, head: Cell::new(head) })
    }

    /// Number of records written.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head.get()
    }

    /// Number of records that can be written now.
    #[must_use]
    pub fn room(&self) -> u64 {
        protocol::free_slots(&*self.cells, self.head.get())
    }

    /// Begins to fill space that was granted in `epoch`; `None` if the grant was revoked.
    #[must_use]
    pub fn enter(&self, epoch: u64) -> Option<Filling<'_>> {
        protocol::enter(&*self.cells, epoch).then(|| Filling(&self.cells))
    }

    /// Writes records, which become visible together. Refused if the ring is full or the sequence has a gap.
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

    /// A reader of the space leased to the client of this ring.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(self.cells.clone())
    }
}

/// Reads leased space, in any number of threads.
#[derive(Clone)]
pub struct Reader(Arc<Mapped>);

impl Reader {
    /// Runs `copy`; `None` if the lease was not valid throughout, in which case the caller must discard the copy.
    pub fn read<T>(&self, lease: u64, copy: impl FnOnce() -> T) -> Option<T> {
        if !protocol::begin_read(&*self.0, lease) {
            return None;
        }
        let copied = copy();
        protocol::end_read(&*self.0, lease).then_some(copied)
    }
}

/// Content of a record slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A complete record.
    Commit(Commit),
    /// No valid record.
    Torn,
}

/// The consumer side, which does not trust the file.
pub struct Taker {
    cells: Mapped,
    nonce: Nonce,
}

impl Taker {
    /// Creates a ring in a file of zeros.
    pub fn create(file: &File, nonce: Nonce) -> io::Result<Taker> {
        let cells = Mapped(Map::new(file, RING_BYTES as usize)?);
        cells.word(NONCE_AT).store(nonce as u64, Ordering::Relaxed);
        cells.word(NONCE_AT + 8).store((nonce >> 64) as u64, Ordering::Relaxed);
        cells.word(0).store(MAGIC, Ordering::Release);
        Ok(Taker { cells, nonce })
    }

    /// Opens a ring of an earlier boot. The nonce comes from the caller, because the file is not trusted. Fails if the
    /// device of the file cannot read it.
    pub fn open(file: &File, nonce: Nonce) -> io::Result<Taker> {
        Ok(Taker { cells: Mapped(Map::read_in(file, RING_BYTES as usize)?), nonce })
    }

    /// The nonce of its records.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// The epoch that the writer must present. A writer that modifies it harms only itself.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.cells.load(Word::Epoch, Ordering::Acquire)
    }

    /// Number of records after the first `taken`; `None` if the writer's head is impossible.
    #[must_use]
    pub fn waiting(&self, taken: u64) -> Option<u64> {
        protocol::waiting(&self.cells, taken)
    }

    /// The record with this sequence number. It is copied once, so that it cannot change during validation.
    #[must_use]
    pub fn read(&self, sequence: u64) -> Found {
        let bytes = self.cells.read(sequence % RING_RECORDS);
        match Commit::decode(&bytes, self.nonce) {
            Some(commit) if commit.sequence == sequence => Found::Commit(commit),
            _ => Found::Torn,
        }
    }

    /// Releases the slots of the first `taken` records.
    pub fn take(&self, taken: u64) {
        protocol::take(&self.cells, taken);
    }

    /// Sets the epoch that the writer must present.
    pub fn set_epoch(&self, epoch: u64) {
        self.cells.store(Word::Epoch, epoch, Ordering::Release);
    }

    /// The current lease; valid if odd.
    #[must_use]
    pub fn lease(&self) -> u64 {
        self.cells.load(Word::Lease, Ordering::Acquire)
    }

    /// Sets the current lease to an odd number, or ends it with an even one. Changes after this call are not covered by
    /// an older lease.
    pub fn set_lease(&self, lease: u64) {
        protocol::set_lease(&self.cells, lease);
    }

    /// Whether a reader may still be copying under an earlier lease. A client that modifies this word delays only
    /// requests for its own user's space.
    #[must_use]
    pub fn is_read(&self) -> bool {
        protocol::is_read(&self.cells)
    }

    /// Revokes the grants with a new epoch; false while the writer is still filling them.
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
    fn ring_wraps_many_times_and_refuses_records_when_full() {
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
        assert_eq!(taker.waiting(taken + 1), None, "an impossible head");
    }

    #[test]
    fn recalled_space_cannot_be_entered_nor_entered_space_recalled() {
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
    fn leased_bytes_are_copied_while_the_lease_is_valid() {
        let file = file();
        let taker = Taker::create(&file, 1).unwrap();
        let reader = Writer::open(&file, 1).unwrap().reader();
        assert_eq!((reader.read(1, || 5), taker.lease()), (None, 0), "there is no lease yet");
        taker.set_lease(1);
        assert_eq!(reader.read(1, || taker.is_read()), Some(true));
        assert_eq!(reader.read(1, || taker.set_lease(2)), None, "the lease ended during the copy");
        assert!(!taker.is_read());
    }
}
