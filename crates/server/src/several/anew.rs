//! Files of several servers that somebody else changes or removes behind: all who hold bytes of them take that over, or none.
//!
//! **Invariant**: as long as some have taken it over and others have not, the inode says that its length has to be asked for.

use super::afar::is_afar;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_store::{Batch, Body, Extent, changed_here_too};
use forebay_wire::{Held, PeerRequest};
use tokio::sync::MutexGuard;
use tokio::time::timeout;

impl Service {
    /// Nobody else changes the order of a file's bytes while this is held. Nothing if somebody does for too long. For threads
    /// that may wait.
    pub(crate) fn await_order(&self, file: FileId) -> Result<Option<MutexGuard<'_, ()>>> {
        let patience = self.config.times.peer / 4;
        let order = async { timeout(patience, self.afar.order(file).lock()).await.ok() };
        tokio::task::block_in_place(|| self.await_unless_it_ends(order))
    }

    /// Somebody else changed a file behind that others hold bytes of: all take it as it is there, or none does. Fails with
    /// *stale* if any of it was changed here too. The caller keeps the file's order.
    pub(crate) fn renew_shared(&self, file: FileId, size: u64) -> Result<()> {
        let service = self.me().ok_or_else(|| Error::from(ErrorKind::Busy))?;
        let tell = |size: Option<u64>| {
            self.await_unless_it_ends(service.tell_holders(file, &PeerRequest::Anew { file, size }))?
        };
        tokio::task::block_in_place(|| {
            let holds = self.holds_some(file)?;
            if holds && !self.store.data().is_as_behind(file)? {
                return Err(changed_here_too(file));
            }
            // From now on there are others who hold bytes of it, also if there were none before.
            let (before, writers) = self.unsettle(file)?;
            if let Err(error) = tell(None) {
                self.resettle(file, writers, before)?;
                return Err(error);
            }
            tell(Some(size))?;
            self.take_own_anew(file, size, holds)?;
            self.resettle(file, writers, Extent { least: size, elsewhere: Some(0), ..before })
        })
    }

    /// Whether what is here of a file of another server is what is behind; from now on it has this length there.
    pub(crate) fn take_anew(&self, file: FileId, size: Option<u64>) -> Result<()> {
        let data = self.store.data();
        match size {
            None if data.is_as_behind(file)? => Ok(()),
            None => Err(changed_here_too(file)),
            Some(size) => data.found_anew(file, size, Batch::default()),
        }
    }

    fn take_own_anew(&self, file: FileId, size: u64, holds: bool) -> Result<()> {
        let data = self.store.data();
        match holds {
            true => data.found_anew(file, size, Batch::default()),
            // Who has only the name may have noted how long it was once.
            false if data.facts(file)?.size > size => data.truncate(file, size, Batch::default()),
            false => Ok(()),
        }
    }

    /// Whether bytes of a file of ours are to be here.
    fn holds_some(&self, file: FileId) -> Result<bool> {
        let inode = self.store.names().inode(file)?;
        Ok(matches!(inode.body, Body::File { layout, .. } if layout.servers.contains(&self.config.server)))
    }

    /// The length of a file has to be asked for; returns what was said of it, and how many were let write.
    fn unsettle(&self, file: FileId) -> Result<(Extent, u64)> {
        let writers = self.afar.noting(file);
        let before = self.extent(file)?;
        self.store.names().note_extent(file, Extent { unsettled: true, ..before })?;
        Ok((before, *writers))
    }

    /// This is said of the length of a file from now on; if somebody was let write meanwhile it has to be asked for as well.
    fn resettle(&self, file: FileId, writers: u64, extent: Extent) -> Result<()> {
        let now = self.afar.noting(file);
        let unsettled = extent.unsettled || *now != writers;
        self.store.names().note_extent(file, Extent { unsettled, ..extent })
    }

    /// What others hold of a file of ours, and whether any of it is only in their buffers; they are asked if that is not
    /// noted. Fails if one of them cannot say, or has lost it. For threads that may wait.
    pub(crate) fn held_by_others(&self, file: FileId) -> Result<Held> {
        let extent = self.extent(file)?;
        if !is_afar(&extent) {
            return Ok(Held::default());
        }
        if let (false, Some(buffered)) = (extent.unsettled, extent.elsewhere) {
            return Ok(Held { size: extent.least, touched: extent.touched, buffered });
        }
        let holders = self.holders(file)?;
        for &server in &holders {
            if self.lost_below(file, server)? > 0 {
                let text = format!("server {server} has lost what it held of file {file}");
                return Err(Error::new(ErrorKind::Io, text));
            }
        }
        let service = self.me().ok_or_else(|| Error::from(ErrorKind::Busy))?;
        let asked = async {
            service.tell_reshaped(file).await?;
            service.gather(file, &holders).await
        };
        let held = tokio::task::block_in_place(|| self.await_unless_it_ends(asked))??;
        let touched = held.touched.max(extent.touched);
        Ok(Held { size: held.size.max(extent.least), touched, buffered: held.buffered })
    }
}
