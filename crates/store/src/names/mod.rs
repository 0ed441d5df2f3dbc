//! The namespace of one server: which names lead to which files, and who may do what to them.
//!
//! **Invariant**: every operation is one atomic batch, so that after a crash at any point every entry leads to an
//! inode, every inode knows its names, and a directory is reachable from the root or gone. [`check`] verifies it.
//!
//! **Deliberately absent**: sizes and bytes (they live with the data: see [`Facts`]), open files, a clock: every
//! operation is told who asks and what time it is.
//!
//! # Records
//!
//! Numbers in keys are big-endian.
//!
//! | key | value |
//! |---|---|
//! | `i` file (8) | version byte 1, then [`Inode`] in postcard |
//! | `e` directory (8) hash (8) name | version byte 1, kind (0 file, 1 directory, 2 symbolic link), file (8) |
//! | `x` file (8) name | the value of the extended attribute, as it is |
//! | `o` file (8) | nothing: a file without a name that may still be open |
//! | `n` | version byte 1, server (2), count of the first id never handed out (8) |
//!
//! The hash of a name is XXH3-64 with seed 0, shifted right by one, and 1 instead of 0; it is also the entry's
//! cookie in [`Names::read_dir`], so a place in a directory stays valid whatever happens around it.
//!
//! # Locks
//!
//! Whoever changes an inode, or the entries of a directory, holds the stripe of its id. Stripes are taken together,
//! in order. Moving a directory to another parent takes the tree lock before any stripe: while it is held no other
//! directory changes its parent, so ancestry can be checked. Readers take no locks.

mod attr;
mod check;
mod edit;
mod ids;
mod inode;
mod key;
mod list;
mod locks;
mod make;
mod remove;
mod rename;
mod walk;
mod xattr;

pub use check::check;
pub use inode::{Body, Facts, Inode, MAX_LINKS};
pub use list::{Entry, MAX_LISTED};
pub use remove::{Fate, Unlinked};
pub use walk::Walked;
pub use xattr::{MAX_XATTR, MAX_XATTRS};

use crate::meta::{Batch, Kv};
use edit::Edit;
use forebay_model::{
    Access, Error, ErrorKind, FileId, FileKind, Gid, Identity, Name, Result, ServerId, Stamp, Uid, may,
};
use ids::Ids;
use key::Target;
use locks::Locks;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How often an operation starts again because what it had looked up changed before it held the locks.
const MAX_TRIES: u32 = 1000;
const STICKY: u16 = 0o1000;
const SET_GID: u16 = 0o2000;
const SET_UID: u16 = 0o4000;

/// The namespace of one server.
pub struct Names {
    kv: Arc<dyn Kv>,
    ids: Ids,
    locks: Locks,
    tree: Mutex<()>,
    count: AtomicU64,
}

impl Names {
    /// Makes a namespace with nothing but a root directory.
    pub fn format(kv: &dyn Kv, server: ServerId, owner: (Uid, Gid), mode: u16, now: Stamp) -> Result<()> {
        if kv.get(&key::ids())?.is_some() || kv.get(&key::inode(FileId::ROOT))?.is_some() {
            return Err(Error::new(
                ErrorKind::BadStore,
                "the store holds a namespace already: use an empty one",
            ));
        }
        let body = Body::Directory { subdirs: 0, epoch: 0 };
        let root = Inode::new(body, FileId::ROOT, mode & 0o7777, owner, now);
        let mut batch = Batch::default();
        batch.put(key::inode(FileId::ROOT), root.encode());
        batch.put(key::ids(), ids::Mark::first(server).encode());
        kv.commit(batch)?;
        kv.sync()
    }

    /// Opens the namespace that `server` has in this store.
    pub fn open(kv: Arc<dyn Kv>, server: ServerId) -> Result<Names> {
        let ids = Ids::open(&*kv, server)?;
        let mut count = 0;
        kv.scan(key::INODES, &[], &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        let names =
            Names { kv, ids, locks: Locks::default(), tree: Mutex::default(), count: AtomicU64::new(count) };
        match names.find_inode(FileId::ROOT)? {
            Some(root) if root.kind() == FileKind::Directory => Ok(names),
            _ => Err(damaged("the root directory is missing")),
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

    /// The inode of a file.
    pub fn inode(&self, id: FileId) -> Result<Inode> {
        self.find_inode(id)?.ok_or_else(|| no_file(id))
    }

    /// The file behind a name in a directory that `who` may search.
    pub fn lookup(&self, who: &Identity, dir: FileId, name: &Name) -> Result<(FileId, Inode)> {
        let inode = self.directory(dir)?;
        demand(who, dir, &inode, Access::EXECUTE)?;
        self.follow(dir, name)?.ok_or_else(|| no_entry(dir, name))
    }

    /// The file behind a name, read without locks.
    fn follow(&self, dir: FileId, name: &Name) -> Result<Option<(FileId, Inode)>> {
        for _ in 0..MAX_TRIES {
            let Some(target) = self.entry(dir, name)? else { return Ok(None) };
            if let Some(inode) = self.find_inode(target.file)? {
                return Ok(Some((target.file, inode)));
            }
            // The name may have gone between the two reads; if it still leads nowhere, it dangles.
            if self.entry(dir, name)? == Some(target) && self.find_inode(target.file)?.is_none() {
                return Err(damaged(format!("entry {name:?} of directory {dir} leads to no inode")));
            }
        }
        Err(contended(dir, name))
    }

    fn find_inode(&self, id: FileId) -> Result<Option<Inode>> {
        self.kv.get(&key::inode(id))?.map(|bytes| Inode::decode(id, &bytes)).transpose()
    }

    fn directory(&self, id: FileId) -> Result<Inode> {
        let inode = self.inode(id)?;
        match inode.kind() {
            FileKind::Directory => Ok(inode),
            _ => Err(Error::new(ErrorKind::NotDirectory, format!("file {id} is not a directory"))),
        }
    }

    fn entry(&self, dir: FileId, name: &Name) -> Result<Option<Target>> {
        self.kv.get(&key::entry(dir, name))?.map(|bytes| Target::decode(dir, name, &bytes)).transpose()
    }

    fn edit(&self) -> Edit<'_> {
        Edit::new(self)
    }
}

/// Fails unless `who` may have `access`.
fn demand(who: &Identity, id: FileId, inode: &Inode, access: Access) -> Result<()> {
    if may(who, &inode.attr(id, &Facts::default()), access) {
        return Ok(());
    }
    let mut wants = Vec::new();
    for (wanted, word) in [(access.read, "read"), (access.write, "write"), (access.execute, "execute")] {
        if wanted {
            wants.push(word);
        }
    }
    let text = format!(
        "user {} has no {} permission on {} {id} (mode {:04o}, owner {}, group {})",
        who.uid,
        wants.join(" and "),
        inode.noun(),
        inode.mode,
        inode.uid,
        inode.gid
    );
    Err(Error::new(ErrorKind::AccessDenied, text))
}

fn is_owner(who: &Identity, inode: &Inode) -> bool {
    who.is_root() || who.uid == inode.uid
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
