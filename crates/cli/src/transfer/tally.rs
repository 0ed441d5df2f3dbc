//! Counters of a copy, and whether to continue.

use super::progress::Progress;
use crate::failure::{Failure, Outcome};
use crate::view::{Direction, Summary};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Counters that walker and workers share.
pub(super) struct Tally {
    files: AtomicU64,
    directories: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    halted: AtomicBool,
    progress: Progress,
    begin: Instant,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally {
            files: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            halted: AtomicBool::new(false),
            progress: Progress::new(),
            begin: Instant::now(),
        }
    }

    /// Adds to the bytes to copy.
    pub(super) fn expect(&self, bytes: u64) {
        self.progress.expect(bytes);
    }

    /// Adds to the copied bytes.
    pub(super) fn copied(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.progress.copied(bytes);
    }

    /// Counts a complete file.
    pub(super) fn file(&self) {
        self.files.fetch_add(1, Relaxed);
    }

    /// Counts a created directory.
    pub(super) fn directory(&self) {
        self.directories.fetch_add(1, Relaxed);
    }

    /// Reports a failure and counts it.
    pub(super) fn fail(&self, failure: &Failure) {
        self.failed.fetch_add(1, Relaxed);
        self.progress.complain(failure);
    }

    /// Checks a reply of the service. If the service does not answer any more, the copy is aborted.
    pub(super) fn checked<T>(&self, answer: forebay_model::Result<T>) -> Outcome<T> {
        answer.map_err(|error| {
            if error.kind().is_no_answer() {
                self.halted.store(true, Relaxed);
            }
            error.into()
        })
    }

    /// Whether the copy is aborted.
    pub(super) fn is_halted(&self) -> bool {
        self.halted.load(Relaxed)
    }

    /// Ends the copy and returns its summary.
    pub(super) fn finish(&self, direction: Direction) -> Summary {
        self.progress.finish();
        let counts =
            [&self.files, &self.directories, &self.bytes, &self.failed].map(|count| count.load(Relaxed));
        Summary::new(direction, counts, self.begin.elapsed())
    }

    /// Fails if something was not copied.
    pub(super) fn verdict(&self) -> Outcome {
        if self.failed.load(Relaxed) == 0 { Ok(()) } else { Err(Failure::Reported) }
    }
}
