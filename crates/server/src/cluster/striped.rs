//! Striped files, whose bytes are on several servers.
//!
//! The *authority* of a file has its inode, and decides who may write it: a server that receives a token for a file of
//! another authority has the authority vouch for it, once per session. After the first vouched write access the size of
//! the file is pending (recorded durably in its inode), and it has to be gathered from all holders; after the last
//! close the authority gathers it once more and persists it. A file without names and openers is first deleted by the
//! other holders; until then the authority keeps the orphan.
//!
//! **Invariant**: as long as the inode of a file says that no other server holds bytes of it, none does.

use super::{Peers, nonsense};
use crate::file_homes::{FileHomes, is_striped};
use crate::lifecycle::Lifecycle;
use crate::opens::Opens;
use crate::orphans::OrphanGrace;
use forebay_model::{ErrorKind, FileId, Result, ServerId};
use forebay_store::{Body, Store};
use forebay_wire::{FilePart, PeerReply, PeerRequest};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Number of locks that serialize changes of files.
const ORDERS: usize = 64;

/// What has to be done for striped files, as soon as the other servers can be asked.
#[derive(Default)]
pub(crate) struct StripedQueue {
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

impl StripedQueue {
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
        self.pending_work.lock()
    }
}

/// Files whose bytes are on several servers.
pub(crate) struct StripedFiles {
    orders: Vec<tokio::sync::Mutex<()>>,
    ends: Vec<tokio::sync::Mutex<()>>,
    pub(super) queue: Arc<StripedQueue>,
    pub(super) own: ServerId,
    pub(super) store: Arc<Store>,
    pub(super) homes: Arc<FileHomes>,
    pub(super) peers: Arc<Peers>,
    pub(super) opens: Arc<Opens>,
    pub(super) grace: Arc<OrphanGrace>,
    pub(super) life: Arc<Lifecycle>,
    /// How long a thread waits for a file's order lock.
    pub(super) patience: Duration,
}

/// What striped files need beside their own locks.
pub(crate) struct StripedParts {
    pub(crate) own: ServerId,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) grace: Arc<OrphanGrace>,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) patience: Duration,
}

impl StripedFiles {
    pub(crate) fn new(queue: Arc<StripedQueue>, parts: StripedParts) -> StripedFiles {
        let StripedParts { own, store, homes, peers, opens, grace, life, patience } = parts;
        let locks = || (0..ORDERS).map(|_| tokio::sync::Mutex::default()).collect();
        let (orders, ends) = (locks(), locks());
        StripedFiles { orders, ends, queue, own, store, homes, peers, opens, grace, life, patience }
    }

    /// The order lock, which serializes changes of a file.
    pub(crate) fn order(&self, file: FileId) -> &tokio::sync::Mutex<()> {
        &self.orders[(file.0 % ORDERS as u64) as usize]
    }

    /// The end lock, for operations that move a file's end, also while they wait for space. Taken before the order
    /// lock, which the drain needs to free space.
    pub(crate) fn end(&self, file: FileId) -> &tokio::sync::Mutex<()> {
        &self.ends[(file.0 % ORDERS as u64) as usize]
    }

    /// The size of a file of this authority, with the bytes of all holders. The caller holds the file's order lock.
    pub(crate) async fn length(&self, file: FileId) -> Result<u64> {
        let held = match self.homes.extent(file)?.size_pending {
            true => self.gather_others(file).await?,
            false => FilePart::default(),
        };
        Ok(self.homes.extent(file)?.least.max(self.homes.held(file)?.size).max(held.size))
    }

    /// What other servers hold of a file of this authority whose size is pending.
    pub(crate) async fn gather_others(&self, file: FileId) -> Result<FilePart> {
        let gathered = async {
            self.notify_reshaped(file).await?;
            self.gather(file, &self.homes.holders(file)?).await
        };
        let held = match gathered.await {
            // Its size is known; only the number of buffered bytes is not.
            Err(_) if !self.homes.extent(file)?.size_pending => return Ok(FilePart::default()),
            gathered => gathered?,
        };
        if !self.opens.is_held(file) && !self.grace.lasts() {
            self.queue.persist_size_later(file);
        }
        Ok(held)
    }

    /// Sends a request to all other holders of a file; all have to answer.
    pub(crate) async fn notify_holders(&self, file: FileId, what: &PeerRequest) -> Result<()> {
        let list = self.homes.holders(file)?.into_iter().map(|server| (server, what.clone())).collect();
        for answer in self.peers.request_all(list).await {
            answer?;
        }
        Ok(())
    }

    /// Persists the size of a file that is not open any more. A client that opened it in an earlier run of this server,
    /// and is unknown now, needs a new voucher to write: then the size is pending again.
    pub(crate) async fn persist_size(&self, file: FileId) -> Result<()> {
        let _order = self.order(file).lock().await;
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
        let mut total = FilePart::default();
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
            self.queue.persist_size_later(file);
            return Ok(());
        }
        let mut extent = self.homes.extent(file)?;
        extent.least = extent.least.max(total.size);
        extent.touched = extent.touched.max(total.touched);
        (extent.size_pending, extent.elsewhere) = (false, Some(total.buffered));
        self.store.names().note_extent(file, extent)
    }

    /// What these servers hold of a file altogether; this server may be among them.
    pub(crate) async fn gather(&self, file: FileId, servers: &[ServerId]) -> Result<FilePart> {
        let mut total = FilePart::default();
        if servers.contains(&self.own) {
            total = self.homes.held(file)?;
        }
        let others = servers.iter().filter(|&&server| server != self.own);
        let list = others.map(|&server| (server, PeerRequest::Facts { file, closed: false })).collect();
        for answer in self.peers.request_all(list).await {
            match answer? {
                PeerReply::Facts(held) => total = and(total, held),
                other => return Err(nonsense(&other)),
            }
        }
        Ok(total)
    }
}

/// What two servers hold of a file together.
pub(crate) fn and(one: FilePart, other: FilePart) -> FilePart {
    FilePart {
        size: one.size.max(other.size),
        touched: one.touched.max(other.touched),
        buffered: one.buffered.saturating_add(other.buffered),
    }
}
