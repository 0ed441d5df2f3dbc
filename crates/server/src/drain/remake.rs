//! A file of several servers that somebody removed behind while it was drained: made again if they still have all of it.

use super::Engine;
use crate::service::Service;
use crate::union::{Union, gone_behind};
use forebay_model::{Error, ErrorKind, FileId, Layout, Result, Span};
use forebay_store::Batch;
use forebay_wire::{Born, PeerRequest};
use std::sync::Arc;

impl Service {
    /// Has all holders forget that a file of ours was behind, if it is not there any more and they have all of it. The caller
    /// keeps the file's order.
    pub(super) async fn forget_vanished(self: &Arc<Service>, file: FileId) -> Result<()> {
        let Some(union) = &self.union else { return Ok(()) };
        let Some(layout) = self.shared_layout(file)? else { return Ok(()) };
        if !tokio::task::block_in_place(|| union.has_vanished(file))? {
            return Ok(());
        }
        for ask in [true, false] {
            self.tell_holders(file, &PeerRequest::Vanished { file, layout: layout.clone(), ask }).await?;
            tokio::task::block_in_place(|| {
                let _still = self.be_still(file)?;
                self.forget_part(file, &layout, ask)
            })?;
        }
        Ok(())
    }

    /// Forgets that this server's part of a file was behind, or says whether it could. It is still.
    pub(crate) fn forget_part(&self, file: FileId, layout: &Layout, ask: bool) -> Result<()> {
        let (data, own) = (self.store.data(), self.config.server);
        let counts = |span: Span| layout.pieces(span).any(|(server, _)| server == own);
        let mut batch = Batch::default();
        let ours = self.union.as_ref().filter(|_| !ask && self.is_authority(file));
        if ours.is_some() {
            Union::forget(file, &mut batch);
        }
        let forgotten = match ask {
            true => data.is_here(file, counts)?,
            false => data.forget_behind(file, batch, counts)?,
        };
        if let Some(union) = ours.filter(|_| forgotten) {
            union.unclaim(file);
        }
        if forgotten { Ok(()) } else { Err(gone_behind(file)) }
    }
}

impl Engine {
    /// Whether a file behind is still the one that was written to: what was written to another, or to one that has no name any
    /// more, is not let go of here.
    pub(super) fn is_there(union: &Union, file: FileId, serial: u64, born: Option<&Born>) -> Result<()> {
        let now = match born {
            Some(born) => {
                union.ask(|backend| backend.find(&born.place.path))?.map(|found| found.version.serial)
            }
            None => union.serial(file)?,
        };
        match now == Some(serial) {
            true => Ok(()),
            false => Err(other_by_now(file)),
        }
    }
}

pub(super) fn other_by_now(file: FileId) -> Error {
    let text = format!("file {file} is not the one behind any more that it was: it is drained again");
    Error::new(ErrorKind::Busy, text)
}
