//! The namespace: which names lead to which files, and who may do what to them. One server's part of it, or all.
//!
//! **Invariant**: every operation is one atomic batch, or on several servers an intent that all of them do or none, so
//! that after a crash at any point every entry leads to an inode, every inode knows its names, and a directory is
//! reachable from the root or gone. [`check`] and [`check_all`] verify it.
//!
//! **Deliberately absent**: sizes and bytes (they live with the data: see [`Facts`]), open files, a clock: every
//! operation is told who asks and what time it is. And the network: what other servers have to be asked is an
//! [`Obstacle`] or a step of a [`Task`], and whoever drives them does the asking.
//!
//! # Records
//!
//! Numbers in keys are big-endian.
//!
//! | key | value |
//! |---|---|
//! | `i` file (8) | version byte 3, then [`Inode`] in postcard |
//! | `e` directory (8) hash (8) name | version byte 1, kind (0 file, 1 directory, 2 symbolic link), file (8) |
//! | `d` directory (8) | version byte 1, directories among its entries here (4), stamp of their last change (8) |
//! | `x` file (8) name | the value of the extended attribute, as it is |
//! | `o` file (8) | nothing: a file without a name that may still be open |
//! | `n` | version byte 3, server (2), count of the first id never handed out (8) |
//! | `p` intent (8) | version byte 1, then what this server has prepared, in postcard |
//! | `t` intent (8) | version byte 1, then who has to hear that it is done, in postcard |
//!
//! The hash of a name is XXH3-64 with seed 0, shifted right by one, and 1 instead of 0; it is also the entry's
//! cookie in [`Names::read_dir`], so a place in a directory stays valid whatever happens around it.
//!
//! # Several servers
//!
//! An entry is on its home, an inode on the server that made it. Directories of other servers are known by copies on
//! lease (`copies`). What concerns several servers becomes a list of parts (`plan`, `parts`), which a task (`task`) has
//! prepared and finished (`intents`); what is prepared is locked (`holds`).
//!
//! # Locks
//!
//! Whoever changes an inode, or the entries of a directory, holds the stripe of its id, and so does whoever relies on
//! the copy of a directory while making an entry in it. Stripes are taken together, in order. Moving a directory to
//! another parent takes the tree lock before any stripe: while it is held no other directory changes its parent, so
//! ancestry can be checked. With several servers the first one's `moving` is that lock. Readers take no locks, but ask
//! what became of an intent that has locked what they read.

mod adorned;
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
mod parts;
mod plan;
mod remove;
mod rename;
mod share;
mod stopped;
mod survey;
mod talk;
mod task;
mod walk;
mod xattr;

pub use bring::Arrival;
pub use check::{Flaw, Kind, check, check_all, repair};
pub(crate) use check::{check_at_rest, repair_at_rest};
pub(crate) use concern::{Concern, concern};
pub use copies::{Heard, Leased, Question, Withdrawal};
pub use inode::{Body, Extent, Facts, Inode, MAX_LINKS};
pub use key::Target;
pub use list::{Entry, MAX_LISTED};
pub use remove::{Fate, Unlinked};
pub use rename::Renamed;
pub use share::Share;
pub use stopped::{Attempt, Obstacle, Stopped};
pub use talk::{Ask, Carried, DirCopy, InodePart, IntentId, Op, Part, Prepare, Sticky, Told, Verdict};
pub use task::{Next, Task};
pub use walk::{Found, Walked};
pub use xattr::{MAX_XATTR, MAX_XATTRS};

use crate::meta::{Batch, Kv};
use adorned::Adorned;
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
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// How often an operation starts again because what it had looked up changed before it held the locks.
const MAX_TRIES: u32 = 1000;
const STICKY: u16 = 0o1000;
const SET_GID: u16 = 0o2000;
const SET_UID: u16 = 0o4000;

/// The namespace of one server, or one server's part of it.
pub struct Names {
    kv: Arc<dyn Kv>,
    ids: Ids,
    locks: Locks,
    tree: Mutex<()>,
    count: AtomicU64,
    around: OnceLock<Around>,
    copies: Arc<Copies>,
    holds: Arc<Holds>,
    intents: Arc<Intents>,
    moving: Arc<AtomicBool>,
    adorned: Adorned,
}

/// The root directory as it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Who owns it.
    pub owner: (Uid, Gid),
    /// Its permission bits.
    pub mode: u16,
}

impl Names {
    /// Makes a namespace with nothing but a root directory; or, for all but the first of several servers, nothing.
    pub fn format(kv: &dyn Kv, server: ServerId, root: Option<Root>, now: Stamp) -> Result<()> {
        if kv.get(&key::ids())?.is_some() || kv.get(&key::inode(FileId::ROOT))?.is_some() {
            return Err(Error::new(
                ErrorKind::BadStore,
                "the store holds a namespace already: use an empty one",
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

    /// Opens the namespace that `server` has in this store. Until [`Names::join`] it is alone.
    pub fn open(kv: Arc<dyn Kv>, server: ServerId) -> Result<Names> {
        let ids = Ids::open(&*kv, server)?;
        let mut count = 0;
        kv.scan(key::INODES, &[], &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        let names = Names {
            adorned: Adorned::load(&*kv)?,
            kv,
            ids,
            locks: Locks::default(),
            tree: Mutex::default(),
            count: AtomicU64::new(count),
            around: OnceLock::new(),
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

    /// How many files, directories and symbolic links there are, orphans included.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Files made since the namespace was opened have this id or a larger one, all others a smaller one.
    #[must_use]
    pub fn first_id(&self) -> FileId {
        self.ids.first()
    }

    /// The first id that was not handed out.
    #[must_use]
    pub fn next_id(&self) -> FileId {
        self.ids.peek()
    }

    /// Ids below this count are never handed out from now on: a former store of this server may have used them.
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

    /// A directory, as it is or as its authority has lent it to us.
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

    /// Where a name leads, once that is settled.
    fn settled_entry(&self, dir: FileId, name: &Name) -> Attempt<Option<Target>> {
        self.holds.entry_is_settled(dir, name)?;
        Ok(self.entry(dir, name)?)
    }

    /// The inode of a file of ours, once it is settled which names it has.
    pub fn settled(&self, file: FileId) -> Attempt<Inode> {
        self.holds.file_is_free(file)?;
        Ok(self.inode(file)?)
    }

    /// This server.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.ids.server()
    }

    /// Whether there are other servers.
    fn is_several(&self) -> bool {
        self.around.get().is_some_and(|around| around.members.all().len() > 1)
    }

    /// The server that holds a file's inode.
    fn authority(&self, file: FileId) -> ServerId {
        self.around.get().map_or(self.server(), |around| around.members.authority(file))
    }

    /// Whether an inode is ours.
    fn is_here(&self, file: FileId) -> bool {
        self.authority(file) == self.server()
    }

    /// The server that holds an entry.
    fn home(&self, dir: FileId, name: &Name) -> ServerId {
        self.around.get().map_or(self.server(), |around| around.members.home(dir, name))
    }

    /// Fails unless an entry is ours to hold.
    fn demand_home(&self, dir: FileId, name: &Name) -> Result<()> {
        let home = self.home(dir, name);
        if home == self.server() {
            return Ok(());
        }
        let text = format!(
            "{name:?} in directory {dir} is at home on server {home}, and server {} was asked: are the lists of \
             servers the same?",
            self.server()
        );
        Err(Error::new(ErrorKind::Protocol, text))
    }

    fn edit(&self) -> Edit<'_> {
        Edit::new(self)
    }
}

/// What decides who may do what.
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

/// Fails unless `who` may have `access`.
fn demand(who: &Identity, id: FileId, rights: impl Into<Rights>, access: Access) -> Result<()> {
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
    Error::new(ErrorKind::NotFound, format!("no {name:?} in directory {dir}"))
}

fn no_file(id: FileId) -> Error {
    Error::new(ErrorKind::NotFound, format!("file {id} does not exist (any more)"))
}

fn taken(dir: FileId, name: &Name) -> Error {
    Error::new(ErrorKind::Exists, format!("{name:?} exists already in directory {dir}"))
}

fn contended(dir: FileId, name: &Name) -> Error {
    let text = format!("{name:?} in directory {dir} changed {MAX_TRIES} times while we looked: try again");
    Error::new(ErrorKind::Busy, text)
}

fn damaged(what: impl std::fmt::Display) -> Error {
    let text = format!("the namespace is damaged: {what}: restore the store's metadata from a copy");
    Error::new(ErrorKind::BadStore, text)
}
