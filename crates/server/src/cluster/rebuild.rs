//! Striped files that another program changes or removes in the back end: all holders take over the change, or none
//! does.
//!
//! **Invariant**: while only some holders have taken over a change, the inode says that the size is pending.

use super::StripedFiles;
use crate::file_homes::is_striped;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_store::{Batch, Body, Extent, changed_here_too};
use forebay_wire::{FilePart, PeerRequest};
use tokio::sync::MutexGuard;
use tokio::time::timeout;

impl StripedFiles {
    /// The file's order lock; `None` if it is not available within a timeout. For threads that may block.
    pub(crate) fn await_order(&self, file: FileId) -> Result<Option<MutexGuard<'_, ()>>> {
        let patience = self.patience;
        let order = async { timeout(patience, self.order(file).lock()).await.ok() };
        tokio::task::block_in_place(|| self.life.await_unless_it_ends(order))
    }

    /// Another program changed a striped file in the back end: all holders take over the change, or none does. Fails
    /// with *stale* if the file was changed in a buffer too. The caller holds the file's order lock.
    pub(crate) fn renew_shared(&self, file: FileId, size: u64) -> Result<()> {
        let notify = |size: Option<u64>| {
            self.life.await_unless_it_ends(self.notify_holders(file, &PeerRequest::Reread { file, size }))?
        };
        tokio::task::block_in_place(|| {
            let holds = self.holds_some(file)?;
            if holds && !self.store.data().matches_backing(file)? {
                return Err(changed_here_too(file));
            }
            // From now on there are other holders of its bytes, even if there were none before.
            let (before, writers) = self.mark_size_pending(file)?;
            if let Err(error) = notify(None) {
                self.clear_size_pending(file, writers, before)?;
                return Err(error);
            }
            notify(Some(size))?;
            self.adopt_own_version(file, size, holds)?;
            self.clear_size_pending(file, writers, Extent { least: size, elsewhere: Some(0), ..before })
        })
    }

    /// With `None`, checks that this server's bytes of a file match the back end; with a size, takes over the version
    /// there.
    pub(crate) fn adopt_version(&self, file: FileId, size: Option<u64>) -> Result<()> {
        let data = self.store.data();
        match size {
            None if data.matches_backing(file)? => Ok(()),
            None => Err(changed_here_too(file)),
            Some(size) => data.found_anew(file, size, Batch::default()),
        }
    }

    fn adopt_own_version(&self, file: FileId, size: u64, holds: bool) -> Result<()> {
        let data = self.store.data();
        match holds {
            true => data.found_anew(file, size, Batch::default()),
            // An authority without bytes may have recorded an earlier size.
            false if data.facts(file)?.size > size => data.truncate(file, size, Batch::default()),
            false => Ok(()),
        }
    }

    /// Whether this server is one of the holders of a file of this authority.
    fn holds_some(&self, file: FileId) -> Result<bool> {
        let inode = self.store.names().inode(file)?;
        Ok(matches!(inode.body, Body::File { layout, .. } if layout.servers.contains(&self.own)))
    }

    /// Marks the size of a file as pending; returns its extent before, and the number of vouched write accesses.
    fn mark_size_pending(&self, file: FileId) -> Result<(Extent, u64)> {
        let writers = self.homes.extent_lock(file);
        let before = self.homes.extent(file)?;
        self.store.names().note_extent(file, Extent { size_pending: true, ..before })?;
        Ok((before, *writers))
    }

    /// Sets the extent of a file; its size stays pending if a write access was vouched for meanwhile.
    fn clear_size_pending(&self, file: FileId, writers: u64, extent: Extent) -> Result<()> {
        let now = self.homes.extent_lock(file);
        let size_pending = extent.size_pending || *now != writers;
        self.store.names().note_extent(file, Extent { size_pending, ..extent })
    }

    /// What other servers hold of a file of this authority, and how much of it is only in their buffers; queries them
    /// if that is not recorded. Fails if one of them does not answer, or has lost its part. For threads that may block.
    pub(crate) fn held_by_others(&self, file: FileId) -> Result<FilePart> {
        let extent = self.homes.extent(file)?;
        if !is_striped(&extent) {
            return Ok(FilePart::default());
        }
        if let (false, Some(buffered)) = (extent.size_pending, extent.elsewhere) {
            return Ok(FilePart { size: extent.least, touched: extent.touched, buffered });
        }
        let holders = self.homes.holders(file)?;
        for &server in &holders {
            if self.homes.lost_below(file, server)? > 0 {
                let text = format!("server {server} has lost its part of file {file}");
                return Err(Error::new(ErrorKind::Io, text));
            }
        }
        let gathered = async {
            self.notify_reshaped(file).await?;
            self.gather(file, &holders).await
        };
        let held = tokio::task::block_in_place(|| self.life.await_unless_it_ends(gathered))??;
        let touched = held.touched.max(extent.touched);
        Ok(FilePart { size: held.size.max(extent.least), touched, buffered: held.buffered })
    }
}
