//! Copying one file: a small one by one worker, a large one by several.

use super::pool::Queue;
use super::tally::Tally;
use super::{LARGE, PIECE};
use crate::failure::Outcome;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Two open files, one local and one of the service.
pub(super) trait Passage: Send + Sync {
    /// Copies the piece at an offset; shorter than the buffer only at the end of the file.
    fn piece(&self, tally: &Tally, offset: u64, buffer: &mut [u8]) -> Outcome<usize>;

    /// Closes both.
    fn close(self, tally: &Tally) -> Outcome;
}

/// A large file, shared by the tasks that copy its pieces.
struct Shared<P> {
    passage: P,
    failed: AtomicBool,
}

/// Queues the copy of a file of this size.
pub(super) fn pass<'a, P: Passage + 'a>(
    queue: &Queue<'a>,
    tally: &'a Tally,
    size: u64,
    open: impl FnOnce() -> Outcome<P> + Send + 'a,
) -> Outcome {
    tally.expect(size);
    if size <= LARGE {
        queue.add(move |buffer| {
            let passage = open()?;
            copy_all(&passage, tally, buffer)?;
            close(passage, tally)
        });
        return Ok(());
    }
    let shared = Arc::new(Shared { passage: open()?, failed: AtomicBool::new(false) });
    for start in (0..size).step_by(PIECE) {
        let (shared, len) = (shared.clone(), (size - start).min(PIECE as u64) as usize);
        queue.add(move |buffer| {
            let copied = shared.passage.piece(tally, start, &mut buffer[..len]);
            shared.failed.fetch_or(copied.is_err(), Relaxed);
            let ended = release(shared, tally);
            copied.and(ended)
        });
    }
    release(shared, tally)
}

/// Closes the file after the last piece.
fn release<P: Passage>(shared: Arc<Shared<P>>, tally: &Tally) -> Outcome {
    match Arc::into_inner(shared) {
        Some(shared) if !shared.failed.load(Relaxed) => close(shared.passage, tally),
        _ => Ok(()),
    }
}

fn close(passage: impl Passage, tally: &Tally) -> Outcome {
    passage.close(tally)?;
    tally.file();
    Ok(())
}

/// Copies until the end of the file, even if its size has changed.
fn copy_all(passage: &impl Passage, tally: &Tally, buffer: &mut [u8]) -> Outcome {
    let mut offset = 0;
    loop {
        let count = passage.piece(tally, offset, buffer)?;
        offset += count as u64;
        if count < buffer.len() {
            return Ok(());
        }
    }
}
