//! Striped files, whose bytes are on several servers.
//!
//! The *authority* of a file has its inode, and decides who may write it: a server that receives a token for a file of
//! another authority has the authority vouch for it, once per session. After the first vouched write access the size of
//! the file is pending (recorded durably in its inode), and it has to be gathered from all holders; after the last
//! close the authority gathers it once more and persists it. A file without names and openers is first deleted by the
//! other holders; until then the authority keeps the orphan.
//!
//! **Invariant**: as long as the inode of a file says that no other server holds bytes of it, none does.

use super::transaction::and;
use super::{Blocked, nonsense};
use crate::caller::Caller;
use crate::handle::SET_ID;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, FileId, Incarnation, Layout, Reshape, Result, ServerId};
use forebay_store::{Body, Extent, Opening};
use forebay_wire::{Held, PeerReply, PeerRequest, Token, Vouched};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Number of locks that serialize changes of files.
const ORDERS: usize = 64;

/// The locks and the pending work of striped files.
pub(crate) struct StripedFiles {
    orders: Vec<tokio::sync::Mutex<()>>,
    ends: Vec<tokio::sync::Mutex<()>>,
    /// Held while the extent in an inode is changed; counts write accesses that were vouched for.
    extent_lock: Vec<Mutex<u64>>,
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

/// Whether other servers may hold bytes of a file.
pub(crate) fn is_striped(extent: &Extent) -> bool {
    *extent != Extent::default()
}

impl Default for StripedFiles {
    fn default() -> StripedFiles {
        StripedFiles {
            orders: (0..ORDERS).map(|_| tokio::sync::Mutex::default()).collect(),
            ends: (0..ORDERS).map(|_| tokio::sync::Mutex::default()).collect(),
            extent_lock: (0..ORDERS).map(|_| Mutex::default()).collect(),
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

    pub(super) fn extent_lock(&self, file: FileId) -> MutexGuard<'_, u64> {
        self.extent_lock[(file.0 % ORDERS as u64) as usize].lock().unwrap_or_else(PoisonError::into_inner)
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
    /// What this server holds of a file's bytes.
    pub(crate) fn held(&self, file: FileId) -> Result<Held> {
        let facts = self.store.data().facts(file)?;
        Ok(Held { size: facts.size, touched: facts.touched, buffered: facts.buffered })
    }

    /// Changes the extent in a file's inode.
    pub(crate) fn note_extent(&self, file: FileId, change: impl FnOnce(&mut Extent)) -> Result<()> {
        let _extent_lock = self.striped.extent_lock(file);
        let mut extent = self.extent(file)?;
        change(&mut extent);
        self.store.names().note_extent(file, extent)
    }

    /// Another server may write bytes of a file from now on.
    fn allow_write(&self, file: FileId) -> Result<()> {
        let mut writers = self.striped.extent_lock(file);
        *writers += 1;
        let extent = Extent { size_pending: true, ..self.extent(file)? };
        self.store.names().note_extent(file, extent)
    }

    pub(super) fn extent(&self, file: FileId) -> Result<Extent> {
        match self.store.names().inode(file)?.body {
            Body::File { extent, .. } => Ok(extent),
            _ => Err(Error::new(ErrorKind::Invalid, format!("file {file} has no bytes"))),
        }
    }

    /// Decides a change of a file's bytes that all others have prepared, unless it was decided already.
    pub(crate) fn decide_reshape(&self, file: FileId, opening: &Opening) -> Result<()> {
        let others = self.holders(file)?;
        let _extent_lock = self.striped.extent_lock(file);
        let mut extent = self.extent(file)?;
        if let Reshape::Cut(size) = opening.change() {
            extent.least = extent.least.min(size);
        }
        extent.elsewhere = None;
        // Otherwise the extent of an empty file would equal that of a file without other holders.
        extent.touched = extent.touched.max(Some(opening.serial()));
        let (reshapes, data) = (self.store.reshapes(), self.store.data());
        self.store
            .names()
            .note_extent_via(file, extent, |batch| reshapes.decide(data, opening, others, batch))
    }

    /// The size of a file of this authority, with the bytes of all holders. The caller holds the file's order lock.
    pub(crate) async fn length(self: &Arc<Service>, file: FileId) -> Result<u64> {
        let held = match self.extent(file)?.size_pending {
            true => self.gather_others(file).await?,
            false => Held::default(),
        };
        Ok(self.extent(file)?.least.max(self.held(file)?.size).max(held.size))
    }

    /// Vouches for a token of a file of this authority; returns what the other server has to know.
    pub(super) fn vouch(&self, from: ServerId, token: &Token) -> Result<Vouched, Blocked> {
        let file = token.file;
        let stale = |text: String| Blocked::Failed(Error::new(ErrorKind::Stale, text));
        if !token.is_sealed_by(&self.seal) {
            return Err(stale(format!("the token for file {file} was not made by this service")));
        }
        let is_known = self.sessions.knows(token);
        if !is_known && !self.tokens.is_left_open(token) {
            return Err(stale(format!("file {file} is no longer open: open it again")));
        }
        let hold = self.opens.hold(file)?;
        let inode = self.store.names().inode(file)?;
        let lost_below = self.lost_below(file, from)?;
        if token.access.write {
            self.allow_write(file)?;
        }
        if !is_known {
            self.grace.vouched(token, hold);
        }
        Ok(Vouched { lost_below, set_id: inode.mode & SET_ID != 0, stripes: self.stripes(file)? })
    }

    /// Stripe size of a file of this authority, and the number of servers of its stripes.
    pub(crate) fn stripes(&self, file: FileId) -> Result<(u64, u16)> {
        match self.store.names().inode(file)?.body {
            Body::File { layout, .. } => {
                Ok((layout.stripe, u16::try_from(layout.servers.len()).unwrap_or(u16::MAX)))
            }
            _ => Err(Error::new(ErrorKind::Invalid, format!("file {file} has no bytes"))),
        }
    }

    /// The offset below which bytes of a file of this authority were lost with an earlier store of a server.
    pub(crate) fn lost_below(&self, file: FileId, server: ServerId) -> Result<u64> {
        let Body::File { layout, incarnations, extent } = self.store.names().inode(file)?.body else {
            return Err(ErrorKind::IsDirectory.into());
        };
        let Some(index) = layout.servers.iter().position(|&other| other == server) else {
            let text = format!("server {server} holds no bytes of file {file}");
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let now = self.join_state.known(server).map(|(incarnation, _)| incarnation);
        let lost = now != incarnations.get(index).copied();
        match (lost && is_striped(&extent), extent.size_pending) {
            (false, _) => Ok(0),
            // It is unknown how far its bytes reached.
            (true, true) => Ok(u64::MAX),
            (true, false) => Ok(extent.least.max(self.held(file)?.size)),
        }
    }

    /// Holders that lost their part of a file of this authority, all of which is in the back end.
    pub(super) fn to_recover(&self, file: FileId) -> Result<Vec<(ServerId, Incarnation)>> {
        let (Some(backing), Body::File { layout, incarnations, extent }) =
            (&self.backing, self.store.names().inode(file)?.body)
        else {
            return Ok(Vec::new());
        };
        let out = is_striped(&extent) && !extent.is_open() && extent.elsewhere == Some(0);
        if !out || !backing.knows(file)? || backing.mark(file).is_some() {
            return Ok(Vec::new());
        }
        let held =
            layout.servers.iter().zip(incarnations).filter(|(server, _)| **server != self.config.server);
        let replaced = held.filter_map(|(&server, then)| {
            let (now, _) = self.join_state.known(server)?;
            (now != then).then_some((server, now))
        });
        Ok(replaced.collect())
    }

    /// Has holders that lost their part of a file of this authority read it from the back end, if all of it is there.
    /// The caller holds the file's order lock.
    pub(crate) async fn recover_from_backing(self: &Arc<Service>, file: FileId) -> Result<()> {
        for (server, incarnation) in self.to_recover(file)? {
            let size = self.extent(file)?.least.max(self.held(file)?.size);
            self.ask(server, PeerRequest::Anew { file, size: Some(size) }).await?;
            self.store.names().note_incarnation(file, server, incarnation)?;
        }
        Ok(())
    }

    /// Has the authority of a file vouch for a token, and adds it to the caller's session.
    pub(crate) async fn have_vouched(&self, caller: &Caller, token: &Token) -> Result<()> {
        let authority = self.members.members().authority(token.file);
        // Held before the request, so that the authority does not take the file for closed.
        let hold = Arc::new(self.opens.open(token.file, token.uid)?);
        let vouched = match self.ask(authority, PeerRequest::Vouch { token: *token }).await? {
            PeerReply::Vouched(vouched) => vouched,
            other => return Err(nonsense(&other)),
        };
        if vouched.lost_below > 0 {
            self.store.data().lose(token.file, vouched.lost_below)?;
        }
        if vouched.set_id {
            hold.has_set_id();
        }
        self.direct.laid(token.file, vouched.stripes);
        caller.session.insert(*token, hold)
    }

    /// What other servers hold of a file of this authority whose size is pending.
    pub(super) async fn gather_others(self: &Arc<Service>, file: FileId) -> Result<Held> {
        let gathered = async {
            self.notify_reshaped(file).await?;
            self.gather(file, &self.holders(file)?).await
        };
        let held = match gathered.await {
            // Its size is known; only the number of buffered bytes is not.
            Err(_) if !self.extent(file)?.size_pending => return Ok(Held::default()),
            gathered => gathered?,
        };
        if !self.opens.is_held(file) && !self.grace.lasts() {
            self.striped.persist_size_later(file);
        }
        Ok(held)
    }

    /// The other servers that may hold bytes of a file of this authority.
    pub(crate) fn holders(&self, file: FileId) -> Result<Vec<ServerId>> {
        match self.store.names().inode(file)?.body {
            Body::File { layout, extent, .. } if is_striped(&extent) => Ok(self.others_of(&layout)),
            _ => Ok(Vec::new()),
        }
    }

    fn others_of(&self, layout: &Layout) -> Vec<ServerId> {
        layout.servers.iter().copied().filter(|&server| server != self.config.server).collect()
    }

    /// Sends a request to all other holders of a file; all have to answer.
    pub(crate) async fn notify_holders(self: &Arc<Service>, file: FileId, what: &PeerRequest) -> Result<()> {
        let list = self.holders(file)?.into_iter().map(|server| (server, what.clone())).collect();
        for answer in self.request_all(list).await {
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
        let writers = *self.striped.extent_lock(file);
        let ask = |server| (server, PeerRequest::Facts { file, closed: true });
        let mut total = Held::default();
        for answer in self.request_all(self.others_of(&layout).into_iter().map(ask).collect()).await {
            match answer? {
                PeerReply::Facts(held) => total = and(total, held),
                other => return Err(nonsense(&other)),
            }
        }
        // A client may have opened it meanwhile: its close persists the size.
        if self.opens.is_held(file) {
            return Ok(());
        }
        let now = self.striped.extent_lock(file);
        if *now != writers {
            // Or a client of an earlier run of this server got a voucher to write.
            self.striped.persist_size_later(file);
            return Ok(());
        }
        let mut extent = self.extent(file)?;
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
