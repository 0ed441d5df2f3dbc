//! A striped file that another program removed from the back end while it was drained: it is created again if its
//! holders still have all of it.

use super::DrainEngine;
use crate::backing::Backing;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_wire::{BackingFile, PeerRequest};

impl DrainEngine {
    /// Has all holders forget that a file of this authority was in the back end, if it is missing there and they have
    /// all of it. The caller holds the file's order lock.
    pub(super) async fn forget_vanished(&self, file: FileId) -> Result<()> {
        let Some(layout) = self.homes.shared_layout(file)? else { return Ok(()) };
        if !tokio::task::block_in_place(|| self.backing.has_vanished(file))? {
            return Ok(());
        }
        for dry_run in [true, false] {
            self.striped
                .notify_holders(
                    file,
                    &PeerRequest::MissingInBacking { file, layout: layout.clone(), dry_run },
                )
                .await?;
            tokio::task::block_in_place(|| {
                let _suspended = self.be_still(file)?;
                self.layer.forget_part(file, &layout, dry_run)
            })?;
        }
        Ok(())
    }

    /// Checks that a file in the back end is still the one that was written to. Bytes written to another file, or to
    /// one without a name, are not freed.
    pub(super) fn check_same_file(
        backing: &Backing,
        file: FileId,
        serial: u64,
        backing_file: Option<&BackingFile>,
    ) -> Result<()> {
        let now = match backing_file {
            Some(backing_file) => backing
                .ask(|backend| backend.find(&backing_file.place.path))?
                .map(|found| found.version.serial),
            None => backing.serial(file)?,
        };
        match now == Some(serial) {
            true => Ok(()),
            false => Err(replaced_in_backing(file)),
        }
    }
}

pub(super) fn replaced_in_backing(file: FileId) -> Error {
    let text = format!("file {file} was replaced in the back end: it is drained again");
    Error::new(ErrorKind::Busy, text)
}
