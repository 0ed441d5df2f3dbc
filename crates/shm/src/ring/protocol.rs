//! The words of a ring and the order in which they are read and written, apart from where they live: the same code
//! runs on mapped memory and in the model.
//!
//! ```text
//! writer                                   taker
//! slots[head % n] ← record                 h ← head (acquire)
//! head ← head + 1 (release)                record ← slots[taken % n], for taken < h
//! t ← taken (acquire): room to write       taken ← h (release)
//!
//! busy ← 1; fence; e ← epoch               epoch ← epoch + 1; fence; b ← busy (acquire)
//! e as known: the space may be filled      b = 0: whoever enters from now on sees the new epoch
//! busy ← 0 (release)
//!
//! reader                                   taker
//! reading ← reading + 1; fence; l ← lease  lease ← lease + 1; fence
//! l as known: copy what was leased         what was leased may change from here on
//! fence; l ← lease, as known: it is that   fence; reading = 0: nobody who had the lease is copying any more
//! reading ← reading - 1 (release)
//! ```
//!
//! **Invariant**: a record below `head` was written as a whole; a slot is written again only after it was taken; of a
//! writer that enters and a taker that recalls at the same moment, at least one sees the other; what a reader copied
//! between two looks at the same lease did not change in between.

use std::sync::atomic::Ordering;

/// Bytes in a record.
pub const RECORD: usize = 64;

/// The words that both sides share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// How many records were written. The writer's.
    Head,
    /// How many were taken. The taker's.
    Taken,
    /// Whether the writer is filling space that it was granted. The writer's.
    Busy,
    /// Changes when what the writer was granted is taken back. The taker's.
    Epoch,
    /// The lease that stands, an odd number; an even one where none does. The taker's.
    Lease,
    /// How many readers are copying. The writer's side.
    Reading,
}

/// Where words and slots live.
pub(crate) trait Cells {
    /// How many slots there are.
    fn slots(&self) -> u64;
    fn load(&self, word: Word, order: Ordering) -> u64;
    fn store(&self, word: Word, value: u64, order: Ordering);
    /// Adds to a word, around its end.
    fn add(&self, word: Word, value: u64);
    /// A sequentially consistent fence.
    fn fence(&self);
    fn read(&self, slot: u64) -> [u8; RECORD];
    fn write(&self, slot: u64, record: &[u8; RECORD]);
}

/// Whether the writer may fill what it was granted in this epoch. If so, it has to [`leave`].
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

/// How many records can be written, of a writer that has written `head`.
pub(crate) fn room(cells: &impl Cells, head: u64) -> u64 {
    let waiting = head.wrapping_sub(cells.load(Word::Taken, Ordering::Acquire));
    cells.slots().saturating_sub(waiting)
}

/// Writes records, all of which appear at once; the caller has made sure that there is room.
pub(crate) fn push(cells: &impl Cells, head: &mut u64, records: &[[u8; RECORD]]) {
    for record in records {
        cells.write(*head % cells.slots(), record);
        *head += 1;
    }
    cells.store(Word::Head, *head, Ordering::Release);
}

/// How many records wait to be taken; `None` if the writer says what cannot be.
pub(crate) fn waiting(cells: &impl Cells, taken: u64) -> Option<u64> {
    let waiting = cells.load(Word::Head, Ordering::Acquire).wrapping_sub(taken);
    (waiting <= cells.slots()).then_some(waiting)
}

/// Lets the writer use the slots of all records before this one again.
pub(crate) fn take(cells: &impl Cells, taken: u64) {
    cells.store(Word::Taken, taken, Ordering::Release);
}

/// Takes back what was granted; false while the writer is still filling it.
pub(crate) fn recall(cells: &impl Cells, epoch: u64) -> bool {
    cells.store(Word::Epoch, epoch, Ordering::Release);
    cells.fence();
    cells.load(Word::Busy, Ordering::Acquire) == 0
}

/// Whether what was leased may be copied. If so, it has to [`end_read`].
pub(crate) fn begin_read(cells: &impl Cells, lease: u64) -> bool {
    cells.add(Word::Reading, 1);
    cells.fence();
    let valid = cells.load(Word::Lease, Ordering::Acquire) == lease;
    if !valid {
        cells.add(Word::Reading, u64::MAX);
    }
    valid
}

/// Whether what was copied since [`begin_read`] is what was leased.
pub(crate) fn end_read(cells: &impl Cells, lease: u64) -> bool {
    cells.fence();
    let valid = cells.load(Word::Lease, Ordering::Acquire) == lease;
    cells.add(Word::Reading, u64::MAX);
    valid
}

/// Sets the lease that stands, or ends it.
pub(crate) fn set_lease(cells: &impl Cells, lease: u64) {
    cells.store(Word::Lease, lease, Ordering::Release);
    cells.fence();
}

/// Whether somebody may still be copying what was leased before.
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

    /// Two slots in the model's memory, which notices when a slot is read and written at the same time.
    struct Model {
        words: [AtomicU64; 6],
        slots: [UnsafeCell<u8>; 2],
        space: UnsafeCell<u8>,
        /// Space that may be read while it is changed.
        bytes: AtomicU64,
    }

    // SAFETY: whether the accesses are ordered is what the model finds out.
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
    fn every_record_is_taken_once_and_whole_whatever_happens_when() {
        loom::model(|| {
            let cells = Model::new();
            let writer = cells.clone();
            let writing = loom::thread::spawn(move || {
                let mut head = 0;
                for batch in [&[[1; RECORD], [2; RECORD]][..], &[[3; RECORD]]] {
                    while room(&*writer, head) < batch.len() as u64 {
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
    fn space_that_was_taken_back_is_never_filled_by_both() {
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
    fn what_was_copied_under_a_lease_is_what_was_leased() {
        loom::model(|| {
            let cells = Model::new();
            cells.store(Word::Lease, 1, Ordering::Relaxed);
            let reader = cells.clone();
            let reading = loom::thread::spawn(move || {
                if begin_read(&*reader, 1) {
                    let seen = reader.bytes.load(Ordering::Relaxed);
                    assert!(!end_read(&*reader, 1) || seen == 0, "bytes of later");
                }
            });
            set_lease(&*cells, 2);
            cells.bytes.store(7, Ordering::Relaxed);
            reading.join().unwrap();
            assert!(!is_read(&*cells));
        });
    }

    #[test]
    fn what_nobody_reads_any_more_can_be_taken_away() {
        loom::model(|| {
            let cells = Model::new();
            cells.store(Word::Lease, 1, Ordering::Relaxed);
            let reader = cells.clone();
            let reading = loom::thread::spawn(move || {
                if begin_read(&*reader, 1) {
                    // SAFETY: whether the accesses are ordered is what the model finds out.
                    let seen = reader.space.with(|space| unsafe { *space });
                    assert!(!end_read(&*reader, 1) || seen == 0, "bytes of later");
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
