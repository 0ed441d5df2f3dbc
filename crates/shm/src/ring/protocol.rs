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
//! ```
//!
//! **Invariant**: a record below `head` was written as a whole; a slot is written again only after it was taken; of a
//! writer that enters and a taker that recalls at the same moment, at least one sees the other.

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
}

/// Where words and slots live.
pub(crate) trait Cells {
    /// How many slots there are.
    fn slots(&self) -> u64;
    fn load(&self, word: Word, order: Ordering) -> u64;
    fn store(&self, word: Word, value: u64, order: Ordering);
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

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};

    /// Two slots in the model's memory, which notices when a slot is read and written at the same time.
    struct Model {
        words: [AtomicU64; 4],
        slots: [UnsafeCell<u8>; 2],
        space: UnsafeCell<u8>,
    }

    // SAFETY: whether the accesses are ordered is what the model finds out.
    unsafe impl Sync for Model {}
    // SAFETY: as above.
    unsafe impl Send for Model {}

    impl Model {
        fn new() -> Arc<Model> {
            Arc::new(Model {
                words: [const { 0 }; 4].map(AtomicU64::new),
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
}
