//! A striped file that another program removed from the back end while it was drained: it is created again if its
//! holders still have all of it.

use super::DrainEngine;
use crate::backing::{Backing, missing_in_backing};
use crate::service::Service;
use forebay_model::{Error, ErrorKind, FileId, Layout, Result, Span};
use forebay_store::Batch;
use forebay_wire::{BackingFile, PeerRequest};
use std::sync::Arc;

impl Service {
    /// Has all holders forget that a file of this authority was in the back end, if it is missing there and they have
    /// all of it. The caller holds the file's order lock.
    pub(super) async fn forget_vanished(self: &Arc<Service>, file: FileId) -> Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let Some(layout) = self.homes.shared_layout(file)? else { return Ok(()) };
        if !tokio::task::block_in_place(|| backing.has_vanished(file))? {
            return Ok(());
        }
        for ask in [true, false] {
            self.striped
                .notify_holders(file, &PeerRequest::Vanished { file, layout: layout.clone(), ask })
                .await?;
            tokio::task::block_in_place(|| {
                let _suspended = self.be_still(file)?;
                self.forget_part(file, &layout, ask)
            })?;
        }
        Ok(())
    }

    /// Forgets that this server's part of a file was in the back end, or with `ask` only checks whether it could. The
    /// caller has suspended writes.
    pub(crate) fn forget_part(&self, file: FileId, layout: &Layout, ask: bool) -> Result<()> {
        let (data, own) = (self.store.data(), self.config.server);
        let counts = |span: Span| layout.pieces(span).any(|(server, _)| server == own);
        let mut batch = Batch::default();
        let ours = self.backing.as_ref().filter(|_| !ask && self.homes.is_authority(file));
        if ours.is_some() {
            Backing::forget(file, &mut batch);
        }
        let forgotten = match ask {
            true => data.is_here(file, counts)?,
            false => data.forget_backing(file, batch, counts)?,
        };
        if let Some(backing) = ours.filter(|_| forgotten) {
            backing.drop_mark(file);
        }
        if forgotten { Ok(()) } else { Err(missing_in_backing(file)) }
    }
}

impl DrainEngine {
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
