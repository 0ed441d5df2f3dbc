//! Which direct writes are synced, and which may not be.
//!
//! A file with direct writes is recorded in the store as long as it needs a sync: a later run of the server finds it
//! *left over*, and syncs it before it reports it as synced or finalizes it. A file whose sync failed is recorded, too,
//! and stays so across restarts.
//!
//! **Invariant**: when a sync of a file succeeds, all its earlier direct writes are on stable storage, whichever run of
//! the server made them.

use super::{DirectIo, Opened, lock};
use crate::backing::missing_in_backing;
use crate::service::Service;
use forebay_backend::Object;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_store::{Batch, KeySpace};
use std::ops::ControlFlow;

const NOTES: &[u8] = KeySpace::Unsynced.prefix();
/// How often a file is looked up that is being renamed.
const TRIES: u32 = 8;
/// Some of its direct writes may not be synced.
const OPEN: u8 = 0;
/// A sync of its direct writes failed.
const BROKEN: u8 = 1;

fn key(file: FileId) -> Vec<u8> {
    [NOTES, &file.0.to_be_bytes()].concat()
}

impl DirectIo {
    /// Whether an earlier run of the server may have written a file directly that was not synced since.
    pub(crate) fn is_left_over(&self, file: FileId) -> bool {
        lock(&self.left_over).contains(&file)
    }

    /// The file was synced.
    fn take_left_over(&self, file: FileId) -> bool {
        lock(&self.left_over).remove(&file)
    }
}

impl Service {
    /// Loads what an earlier run of the server recorded.
    pub(crate) fn recover_direct(&self) -> Result<()> {
        self.store.meta().scan(NOTES, &[], &mut |key, value| {
            if let Some(file) = key.strip_prefix(NOTES).and_then(|key| key.try_into().ok()) {
                let file = FileId(u64::from_be_bytes(file));
                match value {
                    [OPEN] => drop(lock(&self.direct.left_over).insert(file)),
                    _ => self.direct.range_locks.mark_broken(file),
                }
            }
            ControlFlow::Continue(())
        })
    }

    /// A file is about to be written directly through `opened`. First syncs what an earlier run of the server wrote to
    /// it or truncated of it in the back end.
    pub(super) fn begin_direct(&self, file: FileId, opened: &Opened, is_new: bool) -> Result<()> {
        if !is_new {
            let lost = |_: &Error| {
                if self.direct.is_left_over(file) {
                    self.fail_direct(file);
                }
            };
            opened.sync_one().inspect_err(lost)?;
        }
        self.direct.take_left_over(file);
        self.note_direct(file, OPEN)
    }

    fn note_direct(&self, file: FileId, note: u8) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(key(file), [note]);
        self.store.meta().commit(batch)
    }

    /// All direct writes of a file are synced, and it is no longer written directly.
    pub(crate) fn forget_direct(&self, file: FileId) {
        let noted = self.direct.range_locks.is_open(file) | self.direct.take_left_over(file);
        self.direct.range_locks.forget(file);
        if noted && !self.direct.range_locks.is_broken(file) {
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

    /// Syncs all direct writes of a file. A failed sync fails for ever.
    pub(crate) fn sync_direct(&self, file: FileId) -> Result<()> {
        self.clear_failed_direct(file);
        if self.direct.range_locks.is_broken(file) {
            let text = format!(
                "a sync of file {file} in the back end failed, and some of its data may be lost: write the file again"
            );
            return Err(Error::new(ErrorKind::Io, text));
        }
        if self.direct.is_left_over(file) {
            if let Some(object) = self.open_left_over(file)? {
                let synced = tokio::task::block_in_place(|| object.sync());
                synced.inspect_err(|_| self.fail_direct(file))?;
            }
            self.direct.take_left_over(file);
        }
        self.sync_direct_until_done(file)
    }

    /// The same for all files.
    pub(crate) fn sync_all_direct(&self) -> Result<()> {
        let left_over: Vec<FileId> = lock(&self.direct.left_over).iter().copied().collect();
        let open = self.direct.range_locks.all_open().into_iter().map(|(file, _)| file);
        open.chain(left_over).try_for_each(|file| self.sync_direct(file))
    }

    /// The same for callers that retry, for direct writes of this run of the server only.
    pub(crate) fn sync_direct_until_done(&self, file: FileId) -> Result<()> {
        let synced = self.direct.range_locks.opened(file).map_or(Ok(()), |opened| opened.sync());
        synced.inspect_err(|_| self.fail_direct(file))
    }

    /// A sync failed: it is unknown which bytes of the file are on stable storage.
    pub(super) fn fail_direct(&self, file: FileId) {
        self.direct.range_locks.mark_broken(file);
        if let Err(error) = self.note_direct(file, BROKEN) {
            tracing::warn!(%file, %error, "cannot record that the sync of a file failed; a restart forgets it");
        }
    }

    /// Clears a failed sync, if the file is empty by now.
    pub(crate) fn clear_failed_direct(&self, file: FileId) {
        let is_empty = || self.store.data().facts(file).is_ok_and(|facts| facts.size == 0);
        if self.direct.range_locks.is_broken(file) && is_empty() {
            self.direct.range_locks.clear_broken(file);
            self.unnote_direct(file);
        }
    }

    /// A file was removed and is no longer needed.
    pub(crate) fn drop_direct(&self, file: FileId) {
        let range_locks = &self.direct.range_locks;
        let noted =
            range_locks.is_broken(file) | range_locks.is_open(file) | self.direct.take_left_over(file);
        range_locks.clear_broken(file);
        if noted {
            self.unnote_direct(file);
        }
    }

    /// The same for all files that are found to be removed.
    pub(super) fn drop_removed(&self) {
        let left_over: Vec<FileId> = lock(&self.direct.left_over).iter().copied().collect();
        for file in self.direct.range_locks.all_broken().into_iter().chain(left_over) {
            let found = self.store.names().inode(file);
            match self.homes.is_authority(file)
                && found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
            {
                true => self.drop_direct(file),
                false => self.clear_failed_direct(file),
            }
        }
    }

    /// Opens a file that an earlier run of the server wrote to; `None` if it is not in the back end.
    fn open_left_over(&self, file: FileId) -> Result<Option<Box<dyn Object>>> {
        let Some(backing) = &self.backing else { return Ok(None) };
        for _ in 0..TRIES {
            let found = tokio::task::block_in_place(|| self.life.await_unless_it_ends(self.place_of(file)))??;
            let Some(place) = found else { return Ok(None) };
            let object = match backing.ask(|backend| backend.open(&place.path)) {
                // It may have been renamed.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => {
                    continue;
                }
                opened => opened?,
            };
            if backing.ask(|_| object.version())?.serial == place.serial {
                return Ok(Some(object));
            }
        }
        Err(missing_in_backing(file))
    }

    /// A file was truncated in the back end: syncs that before any further direct write counts.
    pub(crate) fn cut_direct(&self, file: FileId, size: u64) -> Result<()> {
        if let Some(opened) = self.direct.range_locks.opened(file) {
            opened.sync_one().inspect_err(|_| self.fail_direct(file))?;
            self.direct.range_locks.clear_stale(file, size);
        }
        Ok(())
    }
}

impl Opened {
    /// Syncs all earlier changes of the file, also those of other programs.
    fn sync_one(&self) -> Result<()> {
        tokio::task::block_in_place(|| self.object().sync())
    }
}
