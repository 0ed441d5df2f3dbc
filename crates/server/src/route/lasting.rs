//! What of all that went past the buffer is on its device, and what may not be.
//!
//! A file that is written past the buffer is noted down as long as somebody would have to sync it: a later life of the
//! server finds it *left over*, and does so before it says that the file is synced, or lets go of it. So is one that could
//! not be synced: that stays so, whoever starts again.
//!
//! **Invariant**: whoever is told that a file is synced finds on its device all of it that went past the buffer before, in
//! whatever life of the server.

use super::{Opened, Ways, lock};
use crate::service::Service;
use crate::union::gone_behind;
use forebay_backend::Object;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_store::Batch;
use std::ops::ControlFlow;

const NOTES: &[u8] = b"q";
/// How often a file is looked for that gets other names meanwhile.
const TRIES: u32 = 8;
/// Something of it may not be on its device.
const OPEN: u8 = 0;
/// Something of it could not be brought to its device.
const BROKEN: u8 = 1;

fn key(file: FileId) -> Vec<u8> {
    [NOTES, &file.0.to_be_bytes()].concat()
}

impl Ways {
    /// Whether an earlier life of the server may have written a file past the buffer, and nobody has synced it since.
    pub(crate) fn is_left_over(&self, file: FileId) -> bool {
        lock(&self.left_over).contains(&file)
    }

    /// It was synced.
    fn made_good(&self, file: FileId) -> bool {
        lock(&self.left_over).remove(&file)
    }
}

impl Service {
    /// Takes up what an earlier life of the server wrote down.
    pub(crate) fn take_up_past(&self) -> Result<()> {
        self.store.meta().scan(NOTES, &[], &mut |key, value| {
            if let Some(file) = key.strip_prefix(NOTES).and_then(|key| key.try_into().ok()) {
                let file = FileId(u64::from_be_bytes(file));
                match value {
                    [OPEN] => drop(lock(&self.ways.left_over).insert(file)),
                    _ => self.ways.lanes.break_off(file),
                }
            }
            ControlFlow::Continue(())
        })
    }

    /// A file is about to be written past the buffer by what it was opened with. What an earlier life of the server wrote
    /// of it, or cut of it behind, is on its device before that.
    pub(super) fn begin_past(&self, file: FileId, opened: &Opened, is_new: bool) -> Result<()> {
        if !is_new {
            let lost = |_: &Error| {
                if self.ways.is_left_over(file) {
                    self.break_past(file);
                }
            };
            opened.sync_one().inspect_err(lost)?;
        }
        self.ways.made_good(file);
        self.note_past(file, OPEN)
    }

    fn note_past(&self, file: FileId, note: u8) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(key(file), [note]);
        self.store.meta().commit(batch)
    }

    /// Everything of a file that went past the buffer is on its device, and it is not written so any more.
    pub(crate) fn forget_past(&self, file: FileId) {
        let noted = self.ways.lanes.is_open(file) | self.ways.made_good(file);
        self.ways.lanes.forget(file);
        if noted && !self.ways.lanes.is_broken(file) {
            self.unnote_past(file);
        }
    }

    fn unnote_past(&self, file: FileId) {
        let mut batch = Batch::default();
        batch.remove(key(file));
        if let Err(error) = self.store.meta().commit(batch) {
            tracing::warn!(%file, %error, "a file that is synced will be synced again");
        }
    }

    /// Sees that everything of a file that went past the buffer is on its device. Once that has failed it stays so.
    pub(crate) fn sync_past(&self, file: FileId) -> Result<()> {
        self.mend_past(file);
        if self.ways.lanes.is_broken(file) {
            let text =
                format!("what was written of file {file} could not be brought to its device: write it anew");
            return Err(Error::new(ErrorKind::Io, text));
        }
        if self.ways.is_left_over(file) {
            if let Some(object) = self.open_left_over(file)? {
                let synced = tokio::task::block_in_place(|| object.sync());
                synced.inspect_err(|_| self.break_past(file))?;
            }
            self.ways.made_good(file);
        }
        self.settle_past(file)
    }

    /// The same for all files.
    pub(crate) fn sync_all_past(&self) -> Result<()> {
        let left_over: Vec<FileId> = lock(&self.ways.left_over).iter().copied().collect();
        let open = self.ways.lanes.all_open().into_iter().map(|(file, _)| file);
        open.chain(left_over).try_for_each(|file| self.sync_past(file))
    }

    /// The same for whoever tries until it is done, of what this life of the server wrote.
    pub(crate) fn settle_past(&self, file: FileId) -> Result<()> {
        let synced = self.ways.lanes.opened(file).map_or(Ok(()), |opened| opened.sync());
        synced.inspect_err(|_| self.break_past(file))
    }

    /// Nobody knows what of a file is on its device.
    pub(super) fn break_past(&self, file: FileId) {
        self.ways.lanes.break_off(file);
        if let Err(error) = self.note_past(file, BROKEN) {
            tracing::warn!(%file, %error, "that a file could not be synced is forgotten with this life of the server");
        }
    }

    /// Nothing is left of a file that could not be synced, if that is so.
    pub(crate) fn mend_past(&self, file: FileId) {
        let is_empty = || self.store.data().facts(file).is_ok_and(|facts| facts.size == 0);
        if self.ways.lanes.is_broken(file) && is_empty() {
            self.ways.lanes.begin_anew(file);
            self.unnote_past(file);
        }
    }

    /// A file is removed, and nobody will ask for it any more.
    pub(crate) fn drop_past(&self, file: FileId) {
        let lanes = &self.ways.lanes;
        let noted = lanes.is_broken(file) | lanes.is_open(file) | self.ways.made_good(file);
        lanes.begin_anew(file);
        if noted {
            self.unnote_past(file);
        }
    }

    /// The same for all that are found to be gone.
    pub(super) fn drop_removed(&self) {
        let left_over: Vec<FileId> = lock(&self.ways.left_over).iter().copied().collect();
        for file in self.ways.lanes.all_broken().into_iter().chain(left_over) {
            let found = self.store.names().inode(file);
            match self.is_authority(file) && found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                true => self.drop_past(file),
                false => self.mend_past(file),
            }
        }
    }

    /// Opens what an earlier life of the server wrote to behind; nothing if it is not there.
    fn open_left_over(&self, file: FileId) -> Result<Option<Box<dyn Object>>> {
        let Some(union) = &self.union else { return Ok(None) };
        for _ in 0..TRIES {
            let found = tokio::task::block_in_place(|| self.await_unless_it_ends(self.whereabouts(file)))??;
            let Some(place) = found else { return Ok(None) };
            let object = match union.ask(|backend| backend.open(&place.path)) {
                // It may have another name by now.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => {
                    continue;
                }
                opened => opened?,
            };
            if union.ask(|_| object.version())?.serial == place.serial {
                return Ok(Some(object));
            }
        }
        Err(gone_behind(file))
    }

    /// A file was cut behind: that is on its device before anything more counts there that goes past the buffer.
    pub(crate) fn cut_past(&self, file: FileId, size: u64) -> Result<()> {
        if let Some(opened) = self.ways.lanes.opened(file) {
            opened.sync_one().inspect_err(|_| self.break_past(file))?;
            self.ways.lanes.unveil(file, size);
        }
        Ok(())
    }
}

impl Opened {
    /// Brings everything to its device that was done to the file before, by whomever.
    fn sync_one(&self) -> Result<()> {
        tokio::task::block_in_place(|| self.object().sync())
    }
}
