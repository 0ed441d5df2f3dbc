//! Which direct writes are synced, and which may not be.
//!
//! A file with direct writes is recorded in the store as long as it needs a sync: a later run of the server finds it
//! *left over*, and syncs it before it reports it as synced or finalizes it. A file whose sync failed is recorded, too,
//! and stays so across restarts.
//!
//! **Invariant**: when a sync of a file succeeds, all its earlier direct writes are on stable storage, whichever run of
//! the server made them.

use super::{Opened, Writers};
use forebay_model::{Error, FileId, Result};
use forebay_store::{Batch, KeySpace};
use std::ops::ControlFlow;
use std::time::Duration;

/// A file without direct writes for this long is finalized; one that a client has open, after a longer time.
const IDLE: Duration = Duration::from_secs(1);
const IDLE_AND_OPEN: Duration = Duration::from_secs(30);
const NOTES: &[u8] = KeySpace::Unsynced.prefix();
/// Some of its direct writes may not be synced.
const OPEN: u8 = 0;
/// A sync of its direct writes failed.
const BROKEN: u8 = 1;

fn key(file: FileId) -> Vec<u8> {
    [NOTES, &file.0.to_be_bytes()].concat()
}

impl Writers {
    /// Whether an earlier run of the server may have written a file directly that was not synced since.
    pub(crate) fn is_left_over(&self, file: FileId) -> bool {
        self.left_over.lock().contains(&file)
    }

    /// The file was synced.
    pub(crate) fn take_left_over(&self, file: FileId) -> bool {
        self.left_over.lock().remove(&file)
    }

    /// All files of which an earlier run of the server may have left direct writes that are not synced.
    pub(crate) fn all_left_over(&self) -> Vec<FileId> {
        self.left_over.lock().iter().copied().collect()
    }

    /// Loads what an earlier run of the server recorded.
    pub(crate) fn recover_direct(&self) -> Result<()> {
        self.store.meta().scan(NOTES, &[], &mut |key, value| {
            if let Some(file) = key.strip_prefix(NOTES).and_then(|key| key.try_into().ok()) {
                let file = FileId(u64::from_be_bytes(file));
                match value {
                    [OPEN] => drop(self.left_over.lock().insert(file)),
                    _ => self.range_locks.mark_broken(file),
                }
            }
            ControlFlow::Continue(())
        })
    }

    /// A file is about to be written directly through `opened`. First syncs what an earlier run of the server wrote to
    /// it or truncated of it in the back end.
    pub(crate) fn begin_direct(&self, file: FileId, opened: &Opened, is_new: bool) -> Result<()> {
        if !is_new {
            let lost = |_: &Error| {
                if self.is_left_over(file) {
                    self.fail_direct(file);
                }
            };
            opened.sync_one().inspect_err(lost)?;
        }
        self.take_left_over(file);
        self.note_direct(file, OPEN)
    }

    fn note_direct(&self, file: FileId, note: u8) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(key(file), [note]);
        self.store.meta().commit(batch)
    }

    /// All direct writes of a file are synced, and it is no longer written directly.
    pub(crate) fn forget_direct(&self, file: FileId) {
        let noted = self.range_locks.is_open(file) | self.take_left_over(file);
        self.range_locks.forget(file);
        if noted && !self.range_locks.is_broken(file) {
            self.unnote_direct(file);
        }
    }

    fn unnote_direct(&self, file: FileId) {
        let mut batch = Batch::default();
        batch.remove(key(file));
        if let Err(error) = self.store.meta().commit(batch) {
            tracing::warn!(%file, %error, "cannot record that a file is synced; it is synced again");
        }
    }

    /// The same for callers that retry, for direct writes of this run of the server only.
    pub(crate) fn sync_direct_until_done(&self, file: FileId) -> Result<()> {
        let synced = self.range_locks.opened(file).map_or(Ok(()), |opened| opened.sync());
        synced.inspect_err(|_| self.fail_direct(file))
    }

    /// A sync failed: it is unknown which bytes of the file are on stable storage.
    pub(crate) fn fail_direct(&self, file: FileId) {
        self.range_locks.mark_broken(file);
        if let Err(error) = self.note_direct(file, BROKEN) {
            tracing::warn!(%file, %error, "cannot record that the sync of a file failed; a restart forgets it");
        }
    }

    /// Clears a failed sync, if the file is empty by now.
    pub(crate) fn clear_failed_direct(&self, file: FileId) {
        let is_empty = || self.store.data().facts(file).is_ok_and(|facts| facts.size == 0);
        if self.range_locks.is_broken(file) && is_empty() {
            self.range_locks.clear_broken(file);
            self.unnote_direct(file);
        }
    }

    /// A file was removed and is no longer needed.
    pub(crate) fn drop_direct(&self, file: FileId) {
        let range_locks = &self.range_locks;
        let noted = range_locks.is_broken(file) | range_locks.is_open(file) | self.take_left_over(file);
        range_locks.clear_broken(file);
        if noted {
            self.unnote_direct(file);
        }
    }

    /// A file was truncated in the back end: syncs that before any further direct write counts.
    pub(crate) fn cut_direct(&self, file: FileId, size: u64) -> Result<()> {
        if let Some(opened) = self.range_locks.opened(file) {
            opened.sync_one().inspect_err(|_| self.fail_direct(file))?;
            self.range_locks.clear_stale(file, size);
        }
        Ok(())
    }

    /// Closes a file for direct writes after syncing it.
    pub(crate) fn close_direct(&self, file: FileId) -> Result<()> {
        let range_locks = &self.range_locks;
        if range_locks.opened(file).is_none() {
            return Ok(());
        }
        let _quiet = range_locks.quiesce(file);
        self.sync_direct_until_done(file)?;
        self.forget_direct(file);
        Ok(())
    }

    /// Whether a file has direct writers.
    pub(crate) fn is_written_directly(&self, file: FileId) -> bool {
        self.range_locks.opened(file).is_some_and(|opened| self.is_in_use(file, &opened))
    }

    pub(crate) fn is_in_use(&self, file: FileId, opened: &Opened) -> bool {
        let limit = if self.opens.is_held(file) { IDLE_AND_OPEN } else { IDLE };
        opened.used.lock().elapsed() < limit
    }
}
