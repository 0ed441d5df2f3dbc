//! Which servers hold a file: its authority, and those that hold its bytes.

use crate::cluster::JoinState;
use crate::members::Membership;
use forebay_model::{
    Error, ErrorKind, FileId, FileKind, Homes, Incarnation, Layout, Name, Reshape, Result, ServerId, Striping,
};
use forebay_store::{Body, Extent, Opening, Store};
use forebay_wire::FilePart;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// Maximum number of servers that a file is striped over.
const MOST_SERVERS: usize = 64;
/// Number of locks that serialize changes of extents.
const LOCKS: usize = 64;

/// Whether other servers may hold bytes of a file.
pub(crate) fn is_striped(extent: &Extent) -> bool {
    *extent != Extent::default()
}

/// Where files lie, as the names on this server and the list of servers say.
pub(crate) struct FileHomes {
    own: ServerId,
    members: Arc<dyn Membership>,
    store: Arc<Store>,
    join_state: Arc<JoinState>,
    /// Held while the extent in an inode is changed; counts write accesses that were vouched for.
    extent_lock: Vec<Mutex<u64>>,
    /// Whether this is the only server of its service.
    alone: bool,
}

impl FileHomes {
    pub(crate) fn new(
        own: ServerId,
        members: Arc<dyn Membership>,
        store: Arc<Store>,
        join_state: Arc<JoinState>,
    ) -> FileHomes {
        let alone = members.members().is_single();
        let extent_lock = (0..LOCKS).map(|_| Mutex::default()).collect();
        FileHomes { own, members, store, join_state, extent_lock, alone }
    }

    /// The authority of a file.
    pub(crate) fn authority(&self, file: FileId) -> ServerId {
        self.members.members().authority(file)
    }

    pub(crate) fn extent_lock(&self, file: FileId) -> MutexGuard<'_, u64> {
        self.extent_lock[(file.0 % LOCKS as u64) as usize].lock()
    }

    /// Whether this server is the home of all names of its service.
    pub(crate) fn has_all_names(&self) -> bool {
        self.alone || self.members.members().homes() == Homes::First
    }

    /// Whether an open file is a directory.
    pub(crate) fn is_directory(&self, file: FileId) -> bool {
        self.store.names().inode(file).is_ok_and(|inode| inode.kind() == FileKind::Directory)
    }

    /// Whether this server is the authority of a file.
    pub(crate) fn is_authority(&self, file: FileId) -> bool {
        self.alone || self.members.members().authority(file) == self.own
    }

    /// Whether other servers may hold bytes of a file, or its name.
    pub(crate) fn is_shared(&self, file: FileId) -> bool {
        !self.is_authority(file) || self.shared_layout(file).is_ok_and(|layout| layout.is_some())
    }

    /// The layout of a file of this authority, if other servers hold bytes of it.
    pub(crate) fn shared_layout(&self, file: FileId) -> Result<Option<Layout>> {
        if self.alone || self.members.members().authority(file) != self.own {
            return Ok(None);
        }
        match self.store.names().inode(file)?.body {
            Body::File { layout, .. } if layout.only() != Some(self.own) => Ok(Some(layout)),
            _ => Ok(None),
        }
    }

    /// The other servers that may hold bytes of a file of this authority.
    pub(crate) fn holders(&self, file: FileId) -> Result<Vec<ServerId>> {
        match self.store.names().inode(file)?.body {
            Body::File { layout, extent, .. } if is_striped(&extent) => Ok(self.others_of(&layout)),
            _ => Ok(Vec::new()),
        }
    }

    pub(crate) fn others_of(&self, layout: &Layout) -> Vec<ServerId> {
        layout.servers.iter().copied().filter(|&server| server != self.own).collect()
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

    /// What this server holds of a file's bytes.
    pub(crate) fn held(&self, file: FileId) -> Result<FilePart> {
        let facts = self.store.data().facts(file)?;
        Ok(FilePart { size: facts.size, touched: facts.touched, buffered: facts.buffered })
    }

    pub(crate) fn extent(&self, file: FileId) -> Result<Extent> {
        match self.store.names().inode(file)?.body {
            Body::File { extent, .. } => Ok(extent),
            _ => Err(Error::new(ErrorKind::Invalid, format!("file {file} has no bytes"))),
        }
    }

    /// Changes the extent in a file's inode.
    pub(crate) fn note_extent(&self, file: FileId, change: impl FnOnce(&mut Extent)) -> Result<()> {
        let _extent_lock = self.extent_lock(file);
        let mut extent = self.extent(file)?;
        change(&mut extent);
        self.store.names().note_extent(file, extent)
    }

    /// Another server may write bytes of a file from now on.
    pub(crate) fn allow_write(&self, file: FileId) -> Result<()> {
        let mut writers = self.extent_lock(file);
        *writers += 1;
        let extent = Extent { size_pending: true, ..self.extent(file)? };
        self.store.names().note_extent(file, extent)
    }

    /// Decides a change of a file's bytes that all others have prepared, unless it was decided already.
    pub(crate) fn decide_reshape(&self, file: FileId, opening: &Opening) -> Result<()> {
        let others = self.holders(file)?;
        let _extent_lock = self.extent_lock(file);
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

    /// The servers of a file with the given striping, and the incarnations of their stores.
    pub(crate) fn laid_out(
        &self,
        striping: Striping,
        (dir, name): (FileId, &Name),
    ) -> (Layout, Vec<Incarnation>) {
        let (own, here) = (self.own, self.store.incarnation());
        let width = if striping.width == 0 { MOST_SERVERS } else { usize::from(striping.width) };
        let members = self.members.members();
        // If all servers are homes of names, this is the home of the name.
        let place = members.place(dir, name);
        let first = members.servers().position(|server| server == place).unwrap_or(0);
        let in_turn = members.servers().skip(first).chain(members.servers().take(first));
        let known = in_turn.filter_map(|server| match server == own {
            true => Some((own, here)),
            false => self.join_state.known(server).map(|(incarnation, _)| (server, incarnation)),
        });
        let (servers, incarnations) = known.take(width.min(MOST_SERVERS)).unzip();
        (Layout { servers, stripe: striping.stripe }, incarnations)
    }

    /// Fails unless this server may serve.
    pub(crate) fn demand_joined(&self) -> Result<()> {
        if self.join_state.has_joined() {
            return Ok(());
        }
        self.join_state.demand(&self.members.members())
    }
}
