//! Files whose bytes are on several servers.
//!
//! The *authority* of a file has its inode, and says who may write it: a server that meets a token for a file of
//! another one has it vouched for there, once per session. From the first such voucher on the file's length is open
//! (its inode is *unsettled*, durably), and whoever asks for it has to gather it; after the last close the authority
//! gathers it once more and notes it. A file that lost its last name and its last opener is forgotten by the others
//! first, and the authority keeps the orphan until all have.
//!
//! **Invariant**: as long as the inode of a file says that nobody else holds bytes of it, nobody does.

use super::deal::and;
use super::{Stop, nonsense};
use crate::handle::SET_ID;
use crate::service::{Caller, Service};
use forebay_model::{Error, ErrorKind, FileId, Incarnation, Layout, Reshape, Result, ServerId};
use forebay_store::{Body, Extent, Opening};
use forebay_wire::{Held, PeerReply, PeerRequest, Token, Vouched};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Locks that put the changes of files in order.
const ORDERS: usize = 64;

/// What is to be done about files whose bytes others hold too.
pub(crate) struct Afar {
    orders: Vec<tokio::sync::Mutex<()>>,
    ends: Vec<tokio::sync::Mutex<()>>,
    /// Held while what an inode says of a file's length is changed; how often somebody was let write since.
    noting: Vec<Mutex<u64>>,
    chores: Mutex<Chores>,
    pub(super) wake: Notify,
}

#[derive(Default)]
pub(super) struct Chores {
    /// Nobody has them open any more: their length is to be noted.
    pub(super) settle: BTreeSet<FileId>,
    /// They have no name left, and nobody has them open.
    pub(super) bury: BTreeSet<FileId>,
}

/// Whether others may hold bytes of a file.
pub(crate) fn is_afar(extent: &Extent) -> bool {
    *extent != Extent::default()
}

impl Default for Afar {
    fn default() -> Afar {
        Afar {
            orders: (0..ORDERS).map(|_| tokio::sync::Mutex::default()).collect(),
            ends: (0..ORDERS).map(|_| tokio::sync::Mutex::default()).collect(),
            noting: (0..ORDERS).map(|_| Mutex::default()).collect(),
            chores: Mutex::default(),
            wake: Notify::new(),
        }
    }
}

impl Afar {
    /// What puts the changes of a file in order.
    pub(crate) fn order(&self, file: FileId) -> &tokio::sync::Mutex<()> {
        &self.orders[(file.0 % ORDERS as u64) as usize]
    }

    /// Who moves a file's end on purpose has it to itself, also while it waits for room; taken before the order, which
    /// those need who make room.
    pub(super) fn end(&self, file: FileId) -> &tokio::sync::Mutex<()> {
        &self.ends[(file.0 % ORDERS as u64) as usize]
    }

    pub(super) fn noting(&self, file: FileId) -> MutexGuard<'_, u64> {
        self.noting[(file.0 % ORDERS as u64) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody has the file open any more.
    pub(crate) fn settle_later(&self, file: FileId) {
        self.chores().settle.insert(file);
        self.wake.notify_one();
    }

    /// The file has neither a name nor an opener.
    pub(crate) fn bury_later(&self, file: FileId) {
        self.chores().bury.insert(file);
        self.wake.notify_one();
    }

    pub(super) fn chores(&self) -> MutexGuard<'_, Chores> {
        self.chores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// What this server holds of a file's bytes.
    pub(crate) fn held(&self, file: FileId) -> Result<Held> {
        let facts = self.store.data().facts(file)?;
        Ok(Held { size: facts.size, touched: facts.touched, buffered: facts.buffered })
    }

    /// Changes what the inode of a file says of its length.
    pub(crate) fn note_extent(&self, file: FileId, change: impl FnOnce(&mut Extent)) -> Result<()> {
        let _noting = self.afar.noting(file);
        let mut extent = self.extent(file)?;
        change(&mut extent);
        self.store.names().note_extent(file, extent)
    }

    /// Somebody else may write bytes of a file from now on.
    fn let_write(&self, file: FileId) -> Result<()> {
        let mut writers = self.afar.noting(file);
        *writers += 1;
        let extent = Extent { unsettled: true, ..self.extent(file)? };
        self.store.names().note_extent(file, extent)
    }

    pub(super) fn extent(&self, file: FileId) -> Result<Extent> {
        match self.store.names().inode(file)?.body {
            Body::File { extent, .. } => Ok(extent),
            _ => Err(Error::new(ErrorKind::Invalid, format!("file {file} has no bytes"))),
        }
    }

    /// Makes a change of a file's bytes that all others have prepared, unless that was done.
    pub(crate) fn decide_reshape(&self, file: FileId, opening: &Opening) -> Result<()> {
        let others = self.holders(file)?;
        let _noting = self.afar.noting(file);
        let mut extent = self.extent(file)?;
        if let Reshape::Cut(size) = opening.change() {
            extent.least = extent.least.min(size);
        }
        extent.elsewhere = None;
        // Otherwise what is said of an empty file would be what is said of one that nobody else holds.
        extent.touched = extent.touched.max(Some(opening.serial()));
        let (reshapes, data) = (self.store.reshapes(), self.store.data());
        self.store
            .names()
            .note_extent_via(file, extent, |batch| reshapes.decide(data, opening, others, batch))
    }

    /// How long a file of ours is, whoever holds its bytes. Whoever asks keeps others from changing that.
    pub(crate) async fn length(self: &Arc<Service>, file: FileId) -> Result<u64> {
        let held = match self.extent(file)?.unsettled {
            true => self.gather_others(file).await?,
            false => Held::default(),
        };
        Ok(self.extent(file)?.least.max(self.held(file)?.size).max(held.size))
    }

    /// Whether a token of a file of ours is good, and what the server that asks has to know.
    pub(super) fn vouch(&self, from: ServerId, token: &Token) -> Result<Vouched, Stop> {
        let file = token.file;
        let stale = |text: String| Stop::Failed(Error::new(ErrorKind::Stale, text));
        if !token.is_sealed_by(&self.seal) {
            return Err(stale(format!("the token for file {file} was not made by this service")));
        }
        let of_earlier_life = token.serial < self.began.0 && self.grace.lasts();
        let is_known = self.sessions.knows(token);
        if !of_earlier_life && !is_known {
            return Err(stale(format!("file {file} is not open any more: open it again")));
        }
        let hold = self.opens.hold(file)?;
        let inode = self.store.names().inode(file)?;
        let lost_below = self.lost_below(file, from)?;
        if token.access.write {
            self.let_write(file)?;
        }
        if !is_known {
            self.grace.vouched(token, hold);
        }
        Ok(Vouched { lost_below, set_id: inode.mode & SET_ID != 0, stripes: self.stripes(file)? })
    }

    /// Bytes of a stripe of a file of ours, and over how many servers its stripes go round.
    pub(crate) fn stripes(&self, file: FileId) -> Result<(u64, u16)> {
        match self.store.names().inode(file)?.body {
            Body::File { layout, .. } => {
                Ok((layout.stripe, u16::try_from(layout.servers.len()).unwrap_or(u16::MAX)))
            }
            _ => Err(Error::new(ErrorKind::Invalid, format!("file {file} has no bytes"))),
        }
    }

    /// The offset below which bytes of a file of ours were lost with an earlier store of a server.
    pub(crate) fn lost_below(&self, file: FileId, server: ServerId) -> Result<u64> {
        let Body::File { layout, incarnations, extent } = self.store.names().inode(file)?.body else {
            return Err(ErrorKind::IsDirectory.into());
        };
        let Some(index) = layout.servers.iter().position(|&other| other == server) else {
            let text = format!("server {server} holds no bytes of file {file}");
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let now = self.joining.known(server).map(|(incarnation, _)| incarnation);
        let lost = now != incarnations.get(index).copied();
        match (lost && is_afar(&extent), extent.unsettled) {
            (false, _) => Ok(0),
            // Nobody knows how far its bytes reached.
            (true, true) => Ok(u64::MAX),
            (true, false) => Ok(extent.least.max(self.held(file)?.size)),
        }
    }

    /// Servers that lost what they held of a file of ours, all of which is behind.
    pub(super) fn to_recover(&self, file: FileId) -> Result<Vec<(ServerId, Incarnation)>> {
        let (Some(union), Body::File { layout, incarnations, extent }) =
            (&self.union, self.store.names().inode(file)?.body)
        else {
            return Ok(Vec::new());
        };
        let out = is_afar(&extent) && !extent.is_open() && extent.elsewhere == Some(0);
        if !out || !union.knows(file)? || union.claimed(file).is_some() {
            return Ok(Vec::new());
        }
        let held =
            layout.servers.iter().zip(incarnations).filter(|(server, _)| **server != self.config.server);
        let replaced = held.filter_map(|(&server, then)| {
            let (now, _) = self.joining.known(server)?;
            (now != then).then_some((server, now))
        });
        Ok(replaced.collect())
    }

    /// Has servers that lost what they held of a file of ours read it from behind, where all of it is. Whoever asks keeps
    /// the file's order.
    pub(crate) async fn recover_from_behind(self: &Arc<Service>, file: FileId) -> Result<()> {
        for (server, life) in self.to_recover(file)? {
            let size = self.extent(file)?.least.max(self.held(file)?.size);
            self.ask(server, PeerRequest::Anew { file, size: Some(size) }).await?;
            self.store.names().note_incarnation(file, server, life)?;
        }
        Ok(())
    }

    /// Has the authority of a file vouch for a token, and takes it into the caller's session.
    pub(crate) async fn have_vouched(&self, caller: &Caller, token: &Token) -> Result<()> {
        let authority = self.members.members().authority(token.file);
        // Held before it is asked: the authority does not take for closed what it has just vouched for.
        let hold = Arc::new(self.opens.hold(token.file)?);
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
        self.ways.laid(token.file, vouched.stripes);
        caller.session.insert(*token, hold)
    }

    /// What others hold of a file of ours that is not settled.
    pub(super) async fn gather_others(self: &Arc<Service>, file: FileId) -> Result<Held> {
        let gathered = async {
            self.tell_reshaped(file).await?;
            self.gather(file, &self.holders(file)?).await
        };
        let held = match gathered.await {
            // Its length is known all the same: only how much of it is buffered is not.
            Err(_) if !self.extent(file)?.unsettled => return Ok(Held::default()),
            gathered => gathered?,
        };
        if !self.opens.is_held(file) && !self.grace.lasts() {
            self.afar.settle_later(file);
        }
        Ok(held)
    }

    /// The other servers that may hold bytes of a file of ours.
    pub(crate) fn holders(&self, file: FileId) -> Result<Vec<ServerId>> {
        match self.store.names().inode(file)?.body {
            Body::File { layout, extent, .. } if is_afar(&extent) => Ok(self.others_of(&layout)),
            _ => Ok(Vec::new()),
        }
    }

    fn others_of(&self, layout: &Layout) -> Vec<ServerId> {
        layout.servers.iter().copied().filter(|&server| server != self.config.server).collect()
    }

    /// Tells all others that may hold bytes of a file something; all have to hear it.
    pub(crate) async fn tell_holders(self: &Arc<Service>, file: FileId, what: &PeerRequest) -> Result<()> {
        let list = self.holders(file)?.into_iter().map(|server| (server, what.clone())).collect();
        for answer in self.ask_all(list).await {
            answer?;
        }
        Ok(())
    }

    /// Notes the length of a file that nobody has open any more. Whoever opened it in an earlier life of this server, and
    /// is not known here yet, has to be vouched for again wherever he writes to it: then it is not settled any more.
    pub(crate) async fn settle(self: &Arc<Service>, file: FileId) -> Result<()> {
        let _order = self.afar.order(file).lock().await;
        let inode = match self.store.names().inode(file) {
            Ok(inode) => inode,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let Body::File { layout, extent, .. } = inode.body else { return Ok(()) };
        if !(is_afar(&extent) && extent.is_open()) || self.opens.is_held(file) {
            return Ok(());
        }
        self.tell_reshaped(file).await?;
        let writers = *self.afar.noting(file);
        let ask = |server| (server, PeerRequest::Facts { file, closed: true });
        let mut total = Held::default();
        for answer in self.ask_all(self.others_of(&layout).into_iter().map(ask).collect()).await {
            match answer? {
                PeerReply::Facts(held) => total = and(total, held),
                other => return Err(nonsense(&other)),
            }
        }
        // Somebody may have opened it meanwhile: then his close settles it.
        if self.opens.is_held(file) {
            return Ok(());
        }
        let now = self.afar.noting(file);
        if *now != writers {
            // Or been let write by who opened it from an earlier life of this server, and has not said so yet.
            self.afar.settle_later(file);
            return Ok(());
        }
        let mut extent = self.extent(file)?;
        extent.least = extent.least.max(total.size);
        extent.touched = extent.touched.max(total.touched);
        (extent.unsettled, extent.elsewhere) = (false, Some(total.buffered));
        self.store.names().note_extent(file, extent)
    }

    /// Has a file forgotten by all others, and then forgets it.
    pub(super) async fn bury(self: &Arc<Service>, file: FileId) -> Result<()> {
        self.tell_holders(file, &PeerRequest::Forget { file }).await?;
        let mut batch = self.store.names().bury(file)?;
        if let Some(union) = &self.union {
            union.bury(file, &mut batch)?;
        }
        self.store.reshapes().delete(self.store.data(), file, batch)?;
        self.opens.buried(file);
        Ok(())
    }
}
