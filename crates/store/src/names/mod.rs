//! The namespace: directory entries, inodes and permission checks, of a single server or of one server of a cluster.
//!
//! **Invariant**: every operation is one atomic batch, or, on several servers, an intent that all of them carry out or
//! none. After a crash at any point, every entry leads to an inode, every inode knows its names, and a directory is
//! reachable from the root or removed. [`check`] and [`check_all`] verify this.
//!
//! **Deliberately absent**: sizes and bytes (they are stored with the data: see [`Facts`]), open files, and a clock:
//! the caller passes the identity and the time to every operation. The network is absent too: a request to another
//! server is an [`Obstacle`] or a step of a [`Task`], and the caller sends it.
//!
//! # Records
//!
//! Numbers in keys are big-endian.
//!
//! | key | value |
//! |---|---|
//! | `i` file (8) | version byte 3, then [`Inode`] in postcard |
//! | `e` directory (8) hash (8) name | version byte 1, kind (0 file, 1 directory, 2 symbolic link), file (8) |
//! | `d` directory (8) | version byte 1, subdirectories on this server (4), stamp of their last change (8) |
//! | `x` file (8) name | the value of the extended attribute, as it is |
//! | `o` file (8) | nothing: a file without a name that may still be open |
//! | `n` | version byte 3, server (2), count of the first unallocated id (8) |
//! | `p` intent (8) | version byte 1, then the parts that this server prepared, in postcard |
//! | `t` intent (8) | version byte 1, then the servers to notify that it is done, in postcard |
//!
//! The hash of a name is XXH3-64 with seed 0, shifted right by one, with 0 replaced by 1. It is also the entry's cookie
//! in [`Names::read_dir`], so a position in a directory stays valid when other entries change.
//!
//! # Several servers
//!
//! An entry is stored on its home server, an inode on the server that created it. A server holds leased copies of other
//! servers' directories (`copies`). An operation on several servers becomes a list of parts (`plan`, `parts`), which a
//! task (`task`) prepares and finishes (`intents`); prepared parts are locked (`holds`).
//!
//! # Locks
//!
//! A thread that changes an inode or the entries of a directory holds the stripe of its id. So does a thread that
//! relies on the copy of a directory while it creates an entry in it. Stripes are taken together, in order. Moving a
//! directory to another parent takes the tree lock before any stripe: while it is held, no other directory changes its
//! parent, so ancestry can be checked. With several servers, `moving` on the first server is that lock. Readers take no
//! locks, but query the outcome of an intent that has locked what they read.

mod attr;
mod bring;
mod check;
mod climb;
mod concern;
mod copies;
mod edit;
mod holds;
mod ids;
mod inode;
mod intents;
mod key;
mod list;
mod locks;
mod make;
mod messages;
mod parts;
mod plan;
mod remove;
mod rename;
mod rescue;
mod share;
mod stopped;
mod survey;
mod task;
mod walk;
mod xattr;
mod xattr_filter;

pub use bring::Arrival;
pub use check::{Flaw, Kind, check, check_all, repair};
pub(crate) use check::{check_at_rest, repair_at_rest};
pub(crate) use concern::{Concern, concern};
pub use copies::{AfterReply, Leased, Question, Withdrawal};
pub use inode::{Body, Extent, Facts, Inode, MAX_LINKS};
pub use key::Target;
pub use list::{Entry, MAX_LISTED};
pub use messages::{
    Carried, DirCopy, InodePart, IntentId, NameReply, NameRequest, Op, Part, Prepare, Sticky, Verdict,
};
pub use remove::{Fate, Unlinked};
pub use rename::Renamed;
pub use share::Share;
pub use stopped::{Attempt, Obstacle, Stopped};
pub use task::{Next, Task};
pub use walk::{Found, Walked};
pub use xattr::{MAX_XATTR, MAX_XATTRS};

use crate::meta::{Batch, Kv};
use crate::timeline::Timeline;
use copies::{Around, Copies};
use edit::Edit;
use forebay_model::{
    Access, Attr, Error, ErrorKind, FileId, FileKind, Gid, Identity, Name, Result, ServerId, Stamp, Time,
    Uid, may,
};
use holds::Holds;
use ids::Ids;
use intents::Intents;
use locks::Locks;
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use xattr_filter::XattrFilter;

/// Maximum number of attempts of an operation whose lookup results change before it holds the locks.
const MAX_TRIES: u32 = 1000;
const STICKY: u16 = 0o1000;
const SET_GID: u16 = 0o2000;
const SET_UID: u16 = 0o4000;

/// The namespace of a single server, or of one server of a cluster.
pub struct Names {
    kv: Arc<dyn Kv>,
    ids: Ids,
    locks: Locks,
    tree: Mutex<()>,
    count: AtomicU64,
    around: OnceLock<Around>,
    times: Arc<Timeline>,
    copies: Arc<Copies>,
    holds: Arc<Holds>,
    intents: Arc<Intents>,
    moving: Arc<AtomicBool>,
    xattr_filter: XattrFilter,
}

/// Initial attributes of the root directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Owner and group.
    pub owner: (Uid, Gid),
    /// Permission bits.
    pub mode: u16,
}

impl Names {
    /// Creates a namespace with only a root directory; with `root` `None`, as on all but the first server, an empty
    /// one.
    pub fn format(kv: &dyn Kv, server: ServerId, root: Option<Root>, now: Stamp) -> Result<()> {
        if kv.get(&key::ids())?.is_some() || kv.get(&key::inode(FileId::ROOT))?.is_some() {
            return Err(Error::new(
                ErrorKind::BadStore,
                "the store already contains a namespace: use an empty store",
            ));
        }
        let mut batch = Batch::default();
        if let Some(Root { owner, mode }) = root {
            let body = Body::Directory { epoch: 0, name: None, striping: None };
            let inode = Inode::new(body, FileId::ROOT, mode & 0o7777, owner, now);
            batch.put(key::inode(FileId::ROOT), inode.encode());
        }
        batch.put(key::ids(), ids::Mark::first(server).encode());
        kv.commit(batch)?;
        kv.sync()
    }

    /// The same with times as the store's stamps show them.
    #[must_use]
    pub fn with_times(self, times: Arc<Timeline>) -> Names {
        Names { times, ..self }
    }

    fn times(&self) -> &Timeline {
        &self.times
    }

    /// Opens the namespace that `server` has in this store. Until [`Names::join`] it is alone.
    pub fn open(kv: Arc<dyn Kv>, server: ServerId) -> Result<Names> {
        let ids = Ids::open(&*kv, server)?;
        let mut count = 0;
        kv.scan(key::INODES, &[], &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        let names = Names {
            xattr_filter: XattrFilter::load(&*kv)?,
            kv,
            ids,
            locks: Locks::default(),
            tree: Mutex::default(),
            count: AtomicU64::new(count),
            around: OnceLock::new(),
            times: Arc::default(),
            copies: Arc::default(),
            holds: Arc::default(),
            intents: Arc::default(),
            moving: Arc::default(),
        };
        names.load_intents()?;
        match names.find_inode(FileId::ROOT)? {
            Some(root) if root.kind() != FileKind::Directory => Err(damaged("the root is not a directory")),
            _ => Ok(names),
        }
    }

    /// Number of files, directories and symbolic links, including orphans.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The first id of this run: files created since the namespace was opened have this id or a larger one.
    #[must_use]
    pub fn first_id(&self) -> FileId {
        self.ids.first()
    }

    /// The first unallocated id.
    #[must_use]
    pub fn next_id(&self) -> FileId {
        self.ids.peek()
    }

    /// Never allocates ids below this count again: a former store of this server may have used them.
    pub fn skip_ids(&self, count: u64) -> Result<()> {
        self.ids.skip(&*self.kv, count)
    }

    /// The inode of a file.
    pub fn inode(&self, id: FileId) -> Result<Inode> {
        self.find_inode(id)?.ok_or_else(|| no_file(id))
    }

    fn find_inode(&self, id: FileId) -> Result<Option<Inode>> {
        let mut found = None;
        self.kv.view(&key::inode(id), &mut |bytes| found = bytes.map(|bytes| Inode::decode(id, bytes)))?;
        found.transpose()
    }

    fn directory(&self, id: FileId) -> Result<Inode> {
        let inode = self.inode(id)?;
        match inode.kind() {
            FileKind::Directory => Ok(inode),
            _ => Err(Error::new(ErrorKind::NotDirectory, format!("file {id} is not a directory"))),
        }
    }

    /// A directory: our own, or a leased copy from its server.
    pub fn dir(&self, id: FileId) -> Attempt<DirCopy> {
        let Some(around) = self.around.get().filter(|_| !self.is_here(id)) else {
            return Ok(self.directory(id)?.copy());
        };
        let authority = around.members.authority(id);
        if !around.members.contains(authority) {
            return Err(no_file(id).into());
        }
        match self.copies.get(id) {
            Some(copy) if (around.leased)(authority) => Ok(copy),
            _ => Err(Obstacle::Directory(id).into()),
        }
    }

    fn entry(&self, dir: FileId, name: &Name) -> Result<Option<Target>> {
        let mut found = None;
        let key = key::entry(dir, name);
        self.kv.view(&key, &mut |bytes| found = bytes.map(|bytes| Target::decode(dir, name, bytes)))?;
        found.transpose()
    }

    /// The target of an entry, once no intent has it locked.
    fn settled_entry(&self, dir: FileId, name: &Name) -> Attempt<Option<Target>> {
        self.holds.entry_is_settled(dir, name)?;
        Ok(self.entry(dir, name)?)
    }

    /// The inode of a file on this server, once no intent has it locked.
    pub fn settled(&self, file: FileId) -> Attempt<Inode> {
        self.holds.file_is_free(file)?;
        Ok(self.inode(file)?)
    }

    /// The id of this server.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.ids.server()
    }

    /// Whether there are other servers.
    fn is_cluster(&self) -> bool {
        self.around.get().is_some_and(|around| around.members.all().len() > 1)
    }

    /// The server that holds a file's inode.
    fn authority(&self, file: FileId) -> ServerId {
        self.around.get().map_or(self.server(), |around| around.members.authority(file))
    }

    /// Whether this server holds the inode.
    fn is_here(&self, file: FileId) -> bool {
        self.authority(file) == self.server()
    }

    /// The server that holds an entry.
    fn home(&self, dir: FileId, name: &Name) -> ServerId {
        self.around.get().map_or(self.server(), |around| around.members.home(dir, name))
    }

    /// Fails unless this server is the home of an entry.
    fn check_home(&self, dir: FileId, name: &Name) -> Result<()> {
        let home = self.home(dir, name);
        if home == self.server() {
            return Ok(());
        }
        let text = format!(
            "{name} in directory {dir} is at home on server {home}, and server {} was asked: are the lists of \
             servers the same?",
            self.server(),
            name = name.quoted()
        );
        Err(Error::new(ErrorKind::Protocol, text))
    }

    fn edit(&self) -> Edit<'_> {
        Edit::new(self)
    }
}

/// The attributes that determine permissions.
#[derive(Clone, Copy)]
struct Rights {
    kind: FileKind,
    mode: u16,
    uid: Uid,
    gid: Gid,
}

impl From<&Inode> for Rights {
    fn from(inode: &Inode) -> Rights {
        Rights { kind: inode.kind(), mode: inode.mode, uid: inode.uid, gid: inode.gid }
    }
}

impl From<&DirCopy> for Rights {
    fn from(dir: &DirCopy) -> Rights {
        Rights { kind: FileKind::Directory, mode: dir.mode, uid: dir.uid, gid: dir.gid }
    }
}

/// Fails unless `who` has `access`.
fn check_access(who: &Identity, id: FileId, rights: impl Into<Rights>, access: Access) -> Result<()> {
    let Rights { kind, mode, uid, gid } = rights.into();
    let time = Time::default();
    let (links, size, buffered) = (0, 0, 0);
    let attr =
        Attr { id, kind, mode, links, uid, gid, size, buffered, atime: time, mtime: time, ctime: time };
    if may(who, &attr, access) {
        return Ok(());
    }
    let mut wants = Vec::new();
    for (wanted, word) in [(access.read, "read"), (access.write, "write"), (access.execute, "execute")] {
        if wanted {
            wants.push(word);
        }
    }
    let text = format!(
        "user {} has no {} permission on {} {id} (mode {mode:04o}, owner {uid}, group {gid})",
        who.uid,
        wants.join(" and "),
        inode::noun(kind),
    );
    Err(Error::new(ErrorKind::AccessDenied, text))
}

fn is_owner(who: &Identity, rights: impl Into<Rights>) -> bool {
    who.is_root() || who.uid == rights.into().uid
}

fn no_entry(dir: FileId, name: &Name) -> Error {
    Error::new(ErrorKind::NotFound, format!("no {name} in directory {dir}", name = name.quoted()))
}

fn no_file(id: FileId) -> Error {
    Error::new(ErrorKind::NotFound, format!("file {id} does not exist"))
}

fn taken(dir: FileId, name: &Name) -> Error {
    Error::new(ErrorKind::Exists, format!("{name} already exists in directory {dir}", name = name.quoted()))
}

fn contended(dir: FileId, name: &Name) -> Error {
    let text = format!(
        "{name} in directory {dir} changed {MAX_TRIES} times during the operation: try again",
        name = name.quoted()
    );
    Error::new(ErrorKind::Busy, text)
}

fn damaged(what: impl std::fmt::Display) -> Error {
    let text = format!("the namespace is damaged: {what}: restore the store's metadata from a copy");
    Error::new(ErrorKind::BadStore, text)
}
