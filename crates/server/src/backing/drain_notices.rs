//! What the drain has to do because of changes that others make in the back end.
//!
//! It lies here until the drain takes its lock, which is before any thread can see what is queued there: a drain request
//! cannot look done before the directories that it changed are known.

use super::Backing;
use forebay_model::FileId;
use parking_lot::MutexGuard;
use std::collections::BTreeSet;

/// Work for the drain.
#[derive(Default)]
pub(crate) struct DrainNotices {
    /// Directories whose modification time was changed in the back end: their own time is restored later.
    pub(crate) dirs: BTreeSet<FileId>,
    /// Files with writeback marks that are to be finalized.
    pub(crate) finish: BTreeSet<FileId>,
}

impl Backing {
    fn drain_notices(&self) -> MutexGuard<'_, DrainNotices> {
        self.drain_notices.lock()
    }

    /// Directories got new modification times in the back end.
    pub(super) fn touched(&self, dirs: &[FileId]) {
        if !dirs.is_empty() {
            self.drain_notices().dirs.extend(dirs);
        }
    }

    /// A file with a writeback mark is to be finalized.
    pub(super) fn finish_later(&self, file: FileId) {
        self.drain_notices().finish.insert(file);
    }

    /// Empties the drain_notices.
    pub(crate) fn take_drain_notices(&self) -> DrainNotices {
        std::mem::take(&mut *self.drain_notices())
    }
}
