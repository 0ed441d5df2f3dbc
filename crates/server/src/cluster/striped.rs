//! Striped files, whose bytes are on several servers.
//!
//! The *authority* of a file has its inode, and decides who may write it: a server that receives a token for a file of
//! another authority has the authority vouch for it, once per session. After the first vouched write access the size of
//! the file is pending (recorded durably in its inode), and it has to be gathered from all holders; after the last
//! close the authority gathers it once more and persists it. A file without names and openers is first deleted by the
//! other holders; until then the authority keeps the orphan.
//!
//! **Invariant**: as long as the inode of a file says that no other server holds bytes of it, none does.

use super::nonsense;
use super::transaction::and;
use crate::file_homes::is_striped;
use crate::service::Service;
use forebay_model::{ErrorKind, FileId, Result};
use forebay_store::Body;
use forebay_wire::{Held, PeerReply, PeerRequest};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Number of locks that serialize changes of files.
const ORDERS: usize = 64;

/// The locks and the pending work of striped files.
pub(crate) struct StripedFiles {
    orders: Vec<tokio::sync::Mutex<()>>,
    ends: Vec<tokio::sync::Mutex<()>>,
    pending_work: Mutex<PendingWork>,
    pub(super) wake: Notify,
}

#[derive(Default)]
pub(super) struct PendingWork {
    /// No client has them open any more: their size has to be persisted.
    pub(super) persist_size: BTreeSet<FileId>,
    /// They have neither names nor openers.
    pub(super) reap: BTreeSet<FileId>,
}

impl Default for StripedFiles {
    fn default() -> StripedFiles {
        StripedFiles {
            orders: (0..ORDERS).map(|_| tokio::sync::Mutex::default()).collect(),
            ends: (0..ORDERS).map(|_| tokio::sync::Mutex::default()).collect(),
            pending_work: Mutex::default(),
            wake: Notify::new(),
        }
    }
}

impl StripedFiles {
    /// The order lock, which serializes changes of a file.
    pub(crate) fn order(&self, file: FileId) -> &tokio::sync::Mutex<()> {
        &self.orders[(file.0 % ORDERS as u64) as usize]
    }

    /// The end lock, for operations that move a file's end, also while they wait for space. Taken before the order
    /// lock, which the drain needs to free space.
    pub(super) fn end(&self, file: FileId) -> &tokio::sync::Mutex<()> {
        &self.ends[(file.0 % ORDERS as u64) as usize]
    }

    /// No client has the file open any more.
    pub(crate) fn persist_size_later(&self, file: FileId) {
        self.pending_work().persist_size.insert(file);
        self.wake.notify_one();
    }

    /// The file has neither names nor openers.
    pub(crate) fn reap_later(&self, file: FileId) {
        self.pending_work().reap.insert(file);
        self.wake.notify_one();
    }

    pub(super) fn pending_work(&self) -> MutexGuard<'_, PendingWork> {
        self.pending_work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// The size of a file of this authority, with the bytes of all holders. The caller holds the file's order lock.
    pub(crate) async fn length(self: &Arc<Service>, file: FileId) -> Result<u64> {
        let held = match self.homes.extent(file)?.size_pending {
            true => self.gather_others(file).await?,
            false => Held::default(),
        };
        Ok(self.homes.extent(file)?.least.max(self.homes.held(file)?.size).max(held.size))
    }

    /// What other servers hold of a file of this authority whose size is pending.
    pub(super) async fn gather_others(self: &Arc<Service>, file: FileId) -> Result<Held> {
        let gathered = async {
            self.notify_reshaped(file).await?;
            self.gather(file, &self.homes.holders(file)?).await
        };
        let held = match gathered.await {
            // Its size is known; only the number of buffered bytes is not.
            Err(_) if !self.homes.extent(file)?.size_pending => return Ok(Held::default()),
            gathered => gathered?,
        };
        if !self.opens.is_held(file) && !self.grace.lasts() {
            self.striped.persist_size_later(file);
        }
        Ok(held)
    }

    /// Sends a request to all other holders of a file; all have to answer.
    pub(crate) async fn notify_holders(self: &Arc<Service>, file: FileId, what: &PeerRequest) -> Result<()> {
        let list = self.homes.holders(file)?.into_iter().map(|server| (server, what.clone())).collect();
        for answer in self.peers.request_all(list).await {
            answer?;
        }
        Ok(())
    }

    /// Persists the size of a file that is not open any more. A client that opened it in an earlier run of this server,
    /// and is unknown now, needs a new voucher to write: then the size is pending again.
    pub(crate) async fn persist_size(self: &Arc<Service>, file: FileId) -> Result<()> {
        let _order = self.striped.order(file).lock().await;
        let inode = match self.store.names().inode(file) {
            Ok(inode) => inode,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let Body::File { layout, extent, .. } = inode.body else { return Ok(()) };
        if !(is_striped(&extent) && extent.is_open()) || self.opens.is_held(file) {
            return Ok(());
        }
        self.notify_reshaped(file).await?;
        let writers = *self.homes.extent_lock(file);
        let ask = |server| (server, PeerRequest::Facts { file, closed: true });
        let mut total = Held::default();
        for answer in
            self.peers.request_all(self.homes.others_of(&layout).into_iter().map(ask).collect()).await
        {
            match answer? {
                PeerReply::Facts(held) => total = and(total, held),
                other => return Err(nonsense(&other)),
            }
        }
        // A client may have opened it meanwhile: its close persists the size.
        if self.opens.is_held(file) {
            return Ok(());
        }
        let now = self.homes.extent_lock(file);
        if *now != writers {
            // Or a client of an earlier run of this server got a voucher to write.
            self.striped.persist_size_later(file);
            return Ok(());
        }
        let mut extent = self.homes.extent(file)?;
        extent.least = extent.least.max(total.size);
        extent.touched = extent.touched.max(total.touched);
        (extent.size_pending, extent.elsewhere) = (false, Some(total.buffered));
        self.store.names().note_extent(file, extent)
    }

    /// Has all other holders delete a file, then deletes it. All earlier requests for it have ended by then, or they
    /// would come after.
    pub(super) async fn reap(self: &Arc<Service>, file: FileId) -> Result<()> {
        let _order = self.striped.order(file).lock().await;
        self.notify_holders(file, &PeerRequest::Forget { file }).await?;
        if let Some(backing) = &self.backing {
            backing.remove_private(file)?;
        }
        self.store.names().reap(file, |mut batch| {
            self.backing.iter().for_each(|backing| backing.reap(file, &mut batch));
            self.store.reshapes().delete(self.store.data(), file, batch)
        })?;
        self.opens.reaped(file);
        Ok(())
    }
}
