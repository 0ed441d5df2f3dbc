//! The words of a ring and the order in which they are read and written, independent of where they are stored: the same
//! code runs on mapped memory and in the loom model.
//!
//! ```text
//! writer                                   consumer
//! slots[head % n] ← record                 h ← head (acquire)
//! head ← head + 1 (release)                record ← slots[taken % n], for taken < h
//! t ← taken (acquire): free slots          taken ← h (release)
//!
//! busy ← 1; fence; e ← epoch               epoch ← epoch + 1; fence; b ← busy (acquire)
//! e unchanged: the space may be filled     b = 0: a writer that enters later sees the new epoch
//! busy ← 0 (release)
//!
//! reader                                   consumer
//! reading ← reading + 1; fence; l ← lease  lease ← lease + 1; fence
//! l unchanged: copy the leased bytes       the leased bytes may change from here on
//! fence; l ← lease, unchanged: copy valid  fence; reading = 0: no reader of the old lease copies any more
//! reading ← reading - 1 (release)
//! ```
//!
//! **Invariant**: a record below `head` was written completely. A slot is reused only after its record was taken. If a
//! writer enters while the consumer recalls, at least one of them sees the other. Bytes that a reader copied between
//! two reads of the same lease did not change in between.

use std::sync::atomic::Ordering;

/// Size of a record in bytes.
pub const RECORD: usize = 64;

/// The shared words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// Number of records written. Set by the writer.
    Head,
    /// Number of records taken. Set by the consumer.
    Taken,
    /// Whether the writer is filling granted space. Set by the writer.
    Busy,
    /// Changes when the grants are revoked. Set by the consumer.
    Epoch,
    /// The current lease: valid if odd. Set by the consumer.
    Lease,
    /// Number of readers that are copying. Set by the writer's process.
    Reading,
}

/// Storage of words and slots.
pub(crate) trait Cells {
    /// Number of slots.
    fn slots(&self) -> u64;
    fn load(&self, word: Word, order: Ordering) -> u64;
    fn store(&self, word: Word, value: u64, order: Ordering);
    /// Adds to a word, wrapping around.
    fn add(&self, word: Word, value: u64);
    /// A sequentially consistent fence.
    fn fence(&self);
    fn read(&self, slot: u64) -> [u8; RECORD];
    fn write(&self, slot: u64, record: &[u8; RECORD]);
}

/// Whether the writer may fill space granted in this epoch. If so, it must call [`leave`].
pub(crate) fn enter(cells: &impl Cells, epoch: u64) -> bool {
    cells.store(Word::Busy, 1, Ordering::Relaxed);
    cells.fence();
    let valid = cells.load(Word::Epoch, Ordering::Acquire) == epoch;
    if !valid {
        leave(cells);
    }
    valid
}

pub(crate) fn leave(cells: &impl Cells) {
    cells.store(Word::Busy, 0, Ordering::Release);
}

/// Number of records that a writer with this `head` can write.
pub(crate) fn free_slots(cells: &impl Cells, head: u64) -> u64 {
    let waiting = head.wrapping_sub(cells.load(Word::Taken, Ordering::Acquire));
    cells.slots().saturating_sub(waiting)
}

/// Writes records, which become visible together. The caller has checked that there are enough free slots.
pub(crate) fn push(cells: &impl Cells, head: &mut u64, records: &[[u8; RECORD]]) {
    for record in records {
        cells.write(*head % cells.slots(), record);
        *head += 1;
    }
    cells.store(Word::Head, *head, Ordering::Release);
}

/// Number of records to take; `None` if the writer's head is impossible.
pub(crate) fn waiting(cells: &impl Cells, taken: u64) -> Option<u64> {
    let waiting = cells.load(Word::Head, Ordering::Acquire).wrapping_sub(taken);
    (waiting <= cells.slots()).then_some(waiting)
}

/// Releases the slots of all records before this one.
pub(crate) fn take(cells: &impl Cells, taken: u64) {
    cells.store(Word::Taken, taken, Ordering::Release);
}

/// Revokes the grants; false while the writer is still filling them.
pub(crate) fn recall(cells: &impl Cells, epoch: u64) -> bool {
    cells.store(Word::Epoch, epoch, Ordering::Release);
    cells.fence();
    cells.load(Word::Busy, Ordering::Acquire) == 0
}

/// Whether leased bytes may be copied. If so, the reader must call [`end_read`].
pub(crate) fn begin_read(cells: &impl Cells, lease: u64) -> bool {
    cells.add(Word::Reading, 1);
    cells.fence();
    let valid = cells.load(Word::Lease, Ordering::Acquire) == lease;
    if !valid {
        cells.add(Word::Reading, u64::MAX);
    }
    valid
}

/// Whether the bytes copied since [`begin_read`] are the leased ones.
pub(crate) fn end_read(cells: &impl Cells, lease: u64) -> bool {
    cells.fence();
    let valid = cells.load(Word::Lease, Ordering::Acquire) == lease;
    cells.add(Word::Reading, u64::MAX);
    valid
}

/// Sets or ends the current lease.
pub(crate) fn set_lease(cells: &impl Cells, lease: u64) {
    cells.store(Word::Lease, lease, Ordering::Release);
    cells.fence();
}

/// Whether a reader may still be copying under an earlier lease.
pub(crate) fn is_read(cells: &impl Cells) -> bool {
    cells.fence();
    cells.load(Word::Reading, Ordering::Acquire) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};

    /// Two slots in the model's memory, which detects concurrent reads and writes of a slot.
    struct Model {
        words: [AtomicU64; 6],
        slots: [UnsafeCell<u8>; 2],
        space: UnsafeCell<u8>,
        /// Space that may be read while it changes.
        bytes: AtomicU64,
    }

    // SAFETY: the model verifies that the accesses are ordered.
    unsafe impl Sync for Model {}
    // SAFETY: as above.
    unsafe impl Send for Model {}

    impl Model {
        fn new() -> Arc<Model> {
            Arc::new(Model {
                words: [const { 0 }; 6].map(AtomicU64::new),
                bytes: AtomicU64::new(0),
                slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
                space: UnsafeCell::new(0),
            })
        }

        fn fill(&self, byte: u8) {
            // SAFETY: as above.
            self.space.with_mut(|space| unsafe { *space = byte });
        }
    }

    impl Cells for Model {
        fn slots(&self) -> u64 {
            2
        }

        fn load(&self, word: Word, order: Ordering) -> u64 {
            self.words[word as usize].load(order)
        }

        fn store(&self, word: Word, value: u64, order: Ordering) {
            self.words[word as usize].store(value, order);
        }

        fn add(&self, word: Word, value: u64) {
            self.words[word as usize].fetch_add(value, Ordering::AcqRel);
        }

        fn fence(&self) {
            fence(Ordering::SeqCst);
        }

        fn read(&self, slot: u64) -> [u8; RECORD] {
            // SAFETY: as above.
            [self.slots[slot as usize].with(|byte| unsafe { *byte }); RECORD]
        }

        fn write(&self, slot: u64, record: &[u8; RECORD]) {
            // SAFETY: as above.
            self.slots[slot as usize].with_mut(|byte| unsafe { *byte = record[0] });
        }
    }

    #[test]
    fn every_record_is_taken_once_and_completely() {
        loom::model(|| {
            let cells = Model::new();
            let writer = cells.clone();
            let writing = loom::thread::spawn(move || {
                let mut head = 0;
                for batch in [&[[1; RECORD], [2; RECORD]][..], &[[3; RECORD]]] {
                    while free_slots(&*writer, head) < batch.len() as u64 {
                        loom::thread::yield_now();
                    }
                    push(&*writer, &mut head, batch);
                }
            });
            let mut seen = Vec::new();
            while seen.len() < 3 {
                let taken = seen.len() as u64;
                match waiting(&*cells, taken).expect("an honest writer") {
                    0 => loom::thread::yield_now(),
                    count => {
                        assert!(taken > 0 || count == 2, "a batch appears at once");
                        seen.extend((taken..taken + count).map(|at| cells.read(at % 2)[0]));
                        take(&*cells, taken + count);
                    }
                }
            }
            writing.join().unwrap();
            assert_eq!(seen, [1, 2, 3]);
        });
    }

    #[test]
    fn recalled_space_is_never_filled_by_both_sides() {
        loom::model(|| {
            let cells = Model::new();
            let writer = cells.clone();
            let writing = loom::thread::spawn(move || {
                if enter(&*writer, 0) {
                    writer.fill(1);
                    leave(&*writer);
                }
            });
            if recall(&*cells, 1) {
                cells.fill(2);
            }
            writing.join().unwrap();
        });
    }

    #[test]
    fn bytes_copied_under_a_lease_are_the_leased_ones() {
        loom::model(|| {
            let cells = Model::new();
            cells.store(Word::Lease, 1, Ordering::Relaxed);
            let reader = cells.clone();
            let reading = loom::thread::spawn(move || {
                if begin_read(&*reader, 1) {
                    let seen = reader.bytes.load(Ordering::Relaxed);
                    assert!(!end_read(&*reader, 1) || seen == 0, "bytes of a later lease");
                }
            });
            set_lease(&*cells, 2);
            cells.bytes.store(7, Ordering::Relaxed);
            reading.join().unwrap();
            assert!(!is_read(&*cells));
        });
    }

    #[test]
    fn space_without_readers_can_be_reclaimed() {
        loom::model(|| {
            let cells = Model::new();
            cells.store(Word::Lease, 1, Ordering::Relaxed);
            let reader = cells.clone();
            let reading = loom::thread::spawn(move || {
                if begin_read(&*reader, 1) {
                    // SAFETY: the model verifies that the accesses are ordered.
                    let seen = reader.space.with(|space| unsafe { *space });
                    assert!(!end_read(&*reader, 1) || seen == 0, "bytes of a later lease");
                }
            });
            set_lease(&*cells, 2);
            if !is_read(&*cells) {
                cells.fill(9);
            }
            reading.join().unwrap();
        });
    }
}
