//! What was copied so far, and whether to go on.

use super::progress::Progress;
use crate::failure::{Failure, Outcome};
use crate::view::{Direction, Summary};
use forebay_model::ErrorKind;
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

    /// So many bytes are to be copied.
    pub(super) fn expect(&self, bytes: u64) {
        self.progress.expect(bytes);
    }

    /// So many bytes are copied.
    pub(super) fn copied(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.progress.copied(bytes);
    }

    /// A file is complete.
    pub(super) fn file(&self) {
        self.files.fetch_add(1, Relaxed);
    }

    /// A directory is made.
    pub(super) fn directory(&self) {
        self.directories.fetch_add(1, Relaxed);
    }

    /// Says what failed, and counts it.
    pub(super) fn fail(&self, failure: &Failure) {
        self.failed.fetch_add(1, Relaxed);
        self.progress.complain(failure);
    }

    /// What the service answered. Where it does not answer any more there is no point in going on.
    pub(super) fn heard<T>(&self, answer: forebay_model::Result<T>) -> Outcome<T> {
        answer.map_err(|error| {
            if error.kind() == ErrorKind::Unreachable {
                self.halted.store(true, Relaxed);
            }
            error.into()
        })
    }

    /// Whether to stop.
    pub(super) fn is_halted(&self) -> bool {
        self.halted.load(Relaxed)
    }

    /// All is over.
    pub(super) fn finish(&self, direction: Direction) -> Summary {
        self.progress.finish();
        let counts =
            [&self.files, &self.directories, &self.bytes, &self.failed].map(|count| count.load(Relaxed));
        Summary::new(direction, counts, self.begin.elapsed())
    }

    /// Whether everything was copied.
    pub(super) fn verdict(&self) -> Outcome {
        if self.failed.load(Relaxed) == 0 { Ok(()) } else { Err(Failure::Reported) }
    }
}
