//! Syncs of direct writes, also of those that an earlier run of the server made.

use super::DirectIo;
use crate::backing::missing_in_backing;
use forebay_backend::Object;
use forebay_model::{Error, ErrorKind, FileId, Result};

/// How often a file is looked up that is being renamed.
const TRIES: u32 = 8;

impl DirectIo {
    /// Syncs all direct writes of a file. A failed sync fails for ever.
    pub(crate) fn sync(&self, file: FileId) -> Result<()> {
        self.writers.clear_failed_direct(file);
        if self.writers.range_locks.is_broken(file) {
            let text = format!(
                "a sync of file {file} in the back end failed, and some of its data may be lost: write the file again"
            );
            return Err(Error::new(ErrorKind::Io, text));
        }
        if self.writers.is_left_over(file) {
            if let Some(object) = self.open_left_over(file)? {
                let synced = tokio::task::block_in_place(|| object.sync());
                synced.inspect_err(|_| self.writers.fail_direct(file))?;
            }
            self.writers.take_left_over(file);
        }
        self.writers.sync_direct_until_done(file)
    }

    /// The same for all files.
    pub(crate) fn sync_all(&self) -> Result<()> {
        let left_over = self.writers.all_left_over();
        let open = self.writers.range_locks.all_open().into_iter().map(|(file, _)| file);
        open.chain(left_over).try_for_each(|file| self.sync(file))
    }

    /// Drops what is recorded of files that are found to be removed.
    pub(super) fn drop_removed(&self) {
        let left_over = self.writers.all_left_over();
        for file in self.writers.range_locks.all_broken().into_iter().chain(left_over) {
            let found = self.store.names().inode(file);
            match self.homes.is_authority(file)
                && found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
            {
                true => self.writers.drop_direct(file),
                false => self.writers.clear_failed_direct(file),
            }
        }
    }

    /// Opens a file that an earlier run of the server wrote to; `None` if it is not in the back end.
    fn open_left_over(&self, file: FileId) -> Result<Option<Box<dyn Object>>> {
        let Some(backing) = &self.backing else { return Ok(None) };
        for _ in 0..TRIES {
            let found =
                tokio::task::block_in_place(|| self.life.await_unless_it_ends(self.layer.place_of(file)))??;
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
}
