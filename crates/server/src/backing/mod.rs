//! The back end as the lower layer of the buffer: one tree of names, whose files are in the buffer, in the back end, or
//! partly in both.
//!
//! A file found in the back end gets a name and a number in the buffer, and a *record* of its place and version in the
//! back end. From then on every change of names is done in the buffer, by the buffer's rules, and in the back end
//! before the request is answered: an *intent* is persisted first, so that a server that crashes in between finishes
//! the change on its next start.
//!
//! **Invariant**: every file in the back end has the same path in the buffer; its parent directory is in the back end,
//! too; bytes read from the back end belong to the version in the record, or the read fails.
//!
//! **Locks**: those of the namespace, then `tree`. While a directory is moved no other thread uses a path, because
//! every path through it changes. No lock of the namespace is taken under `tree`.
//!
//! **Deliberately absent**: when and which bytes are written back (`drain`); hard links in the back end while the
//! buffer is in use (each name in the back end is a separate file in the buffer); a cache of bytes, except for those
//! that were staged (`read_cache`).

mod buffered;
mod create;
mod drain_notices;
mod extras;
mod ground;
mod intent;
mod layer;
mod leased;
mod lookup;
mod marks;
mod mounts;
mod mutate;
mod read;
mod read_cache;
mod record;
mod recover;
mod remote;
mod root;
mod stage;
mod writeback;

pub(crate) use extras::Extras;
pub(crate) use leased::follow_leased_dirs;
pub(crate) use lookup::Order;
pub(crate) use mutate::{Spot, changed_in_backing};
pub(crate) use read::{Part, bytes_of};
pub(crate) use read_cache::ReadCache;
pub(crate) use stage::Brought;
pub(crate) use writeback::BackingWriter;

use crate::working;
pub(crate) use drain_notices::DrainNotices;
use forebay_backend::{Backend, Found, Slot};
use forebay_model::{Error, ErrorKind, FileId, FileKind, Gid, Name, Result, Uid};
use forebay_store::{Batch, Inode, Kv};
use forebay_wire::Place;
pub(crate) use layer::BackingLayer;
use leased::LeasedDirs;
use marks::WritebackMarks;
use mounts::Mounts;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use record::{BackingSpot, Home, Record};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// A directory at the root of the back end that only the server sees: unlinked files that are still open.
const PRIVATE: &[u8] = b".forebay";
/// How long attributes of directories count before the back end is queried again.
pub(crate) const FRESH: Duration = Duration::from_secs(1);
/// Most files whose last refresh is remembered.
const MOST_SEEN: usize = 1 << 16;
const SIZE_LOCKS: usize = 64;
/// Locks of directories, by number.
const DIR_LOCKS: usize = 64;

/// The back end, and what is known of it.
pub(crate) struct Backing {
    backend: Arc<dyn Backend>,
    kv: Arc<dyn Kv>,
    tree: RwLock<()>,
    /// Held while the attributes of the root directory and of the back end's root are synchronized.
    root: Mutex<()>,
    size_locks: Vec<Mutex<()>>,
    creation_locks: Vec<Mutex<()>>,
    filling_locks: Vec<RwLock<()>>,
    seen: Mutex<HashMap<FileId, Instant>>,
    leased_dirs: LeasedDirs,
    writeback_marks: WritebackMarks,
    mounts: Mounts,
    /// Last known names of files.
    hints: Mutex<HashMap<FileId, (FileId, Name)>>,
    /// Last known places of files whose authority is another server.
    places: Mutex<HashMap<FileId, Arc<Place>>>,
    /// Whether the store survives a crash of the machine.
    durable: bool,
    /// Work for the drain.
    drain_notices: Mutex<DrainNotices>,
    /// Staged bytes.
    pub(crate) read_cache: ReadCache,
    /// Bounds the requests that wait for the back end.
    pub(crate) waiting: Semaphore,
    /// Bounds the requests that need the buffer alone: they never wait for requests that wait for the back end.
    pub(crate) here: Semaphore,
}

impl Backing {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        kv: Arc<dyn Kv>,
        durable: bool,
        read_cache: ReadCache,
        places: usize,
    ) -> Backing {
        Backing {
            durable,
            read_cache,
            writeback_marks: WritebackMarks::default(),
            mounts: Mounts::default(),
            hints: Mutex::default(),
            places: Mutex::default(),
            drain_notices: Mutex::default(),
            backend,
            kv,
            tree: RwLock::default(),
            root: Mutex::default(),
            size_locks: (0..SIZE_LOCKS).map(|_| Mutex::default()).collect(),
            creation_locks: (0..DIR_LOCKS).map(|_| Mutex::default()).collect(),
            filling_locks: (0..DIR_LOCKS).map(|_| RwLock::default()).collect(),
            seen: Mutex::default(),
            leased_dirs: LeasedDirs::default(),
            waiting: Semaphore::new(places),
            here: Semaphore::new(places),
        }
    }

    /// The name of the back end in messages.
    pub(crate) fn name(&self) -> String {
        self.backend.name()
    }

    /// Calls the back end, which may block.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&dyn Backend) -> T) -> T {
        working::away(|| tokio::task::block_in_place(|| ask(&*self.backend)))
    }

    fn record(&self, file: FileId) -> Result<Option<Record>> {
        self.kv.get(&record::key(file))?.map(|bytes| Record::decode(file, &bytes)).transpose()
    }

    /// Whether a file is known to be in the back end.
    pub(crate) fn knows(&self, file: FileId) -> Result<bool> {
        let mut knows = false;
        self.kv.view(&record::key(file), &mut |value| knows = value.is_some())?;
        Ok(knows)
    }

    /// Whether entries of a directory may be in the back end: only if the directory is there, too.
    fn may_hold(&self, dir: FileId) -> Result<bool> {
        Ok(dir == FileId::ROOT || self.knows(dir)?)
    }

    /// The path of a file in the back end, if it is there; an error if a file system on the path is no longer mounted.
    /// The caller holds `tree`, or the locks of all names on the path.
    fn path(&self, file: FileId) -> Result<Option<Vec<Name>>> {
        let (mut path, mut at, mut mounts) = (Vec::new(), file, Vec::new());
        while at != FileId::ROOT {
            match self.record(at)?.map(|record| record.home) {
                Some(Home::Entry { dir, name }) => {
                    mounts.extend(self.mounted_at(at).map(|serial| (path.len(), serial)));
                    path.push(name);
                    at = dir;
                }
                Some(Home::Private) => {
                    path.extend([private_name(at), private_dir()]);
                    at = FileId::ROOT;
                }
                None => return Ok(None),
            }
        }
        path.reverse();
        // Converts the number of names below a mount point to the number of names above it.
        mounts.iter_mut().for_each(|(below, _)| *below = path.len() - *below);
        self.demand_mounted(&path, &mounts)?;
        Ok(Some(path))
    }

    /// The same, with the serial number of its directory: calls that are given both do nothing in another directory
    /// that has the path by now, possibly one that its owner has closed to all others.
    fn spot_of(&self, file: FileId) -> Result<Option<BackingSpot>> {
        let Some(path) = self.path(file)? else { return Ok(None) };
        let dir = match self.record(file)?.map(|record| record.home) {
            Some(Home::Entry { dir, .. }) => self.serial_of_dir(dir)?,
            Some(Home::Private) | None => 0,
        };
        Ok(Some(BackingSpot { path, dir }))
    }

    /// The place of a name in the back end, if its directory is there.
    fn spot(&self, dir: FileId, name: &Name) -> Result<Option<BackingSpot>> {
        let Some(mut path) = self.path(dir)? else { return Ok(None) };
        path.push(name.clone());
        Ok(Some(BackingSpot { path, dir: self.serial_of_dir(dir)? }))
    }

    /// The serial number of a directory when it was last seen; 0, any, for the root, which cannot be replaced.
    fn serial_of_dir(&self, dir: FileId) -> Result<u64> {
        let Some(record) = self.record(dir)? else { return Ok(0) };
        match record.version.serial {
            0 => self.learn_serial(dir, record),
            serial => Ok(serial),
        }
    }

    /// Records the serial number of a directory that an earlier version created without asking for it.
    fn learn_serial(&self, dir: FileId, record: Record) -> Result<u64> {
        let Some(path) = self.path(dir)? else { return Ok(0) };
        let found = self.ask(|backend| backend.find(&path))?.filter(|found| {
            let given = (found.uid, found.gid) == (record.uid, record.gid);
            found.kind == FileKind::Directory && found.mode == record.mode && (given || !can_chown())
        });
        let found = found.ok_or_else(|| changed_in_backing(dir))?;
        let mut batch = Batch::default();
        batch.put(record::key(dir), Record { version: found.version, ..record }.encode());
        self.kv.commit(batch)?;
        Ok(found.version.serial)
    }

    /// What is at a place in the back end; fails as stale if its directory was replaced.
    fn look(&self, at: &BackingSpot) -> Result<Option<Found>> {
        self.ask(|backend| backend.find_at(at.slot()))
    }

    /// The path of a file in the back end, and what is there now.
    fn find(&self, file: FileId) -> Result<Option<(Vec<Name>, Found)>> {
        let _tree = self.lock_tree();
        let Some(at) = self.spot_of(file)? else { return Ok(None) };
        Ok(self.look(&at)?.map(|found| (at.path, found)))
    }

    /// Whether a file that should be in the back end is missing there.
    pub(crate) fn has_vanished(&self, file: FileId) -> Result<bool> {
        Ok(self.record(file)?.is_some() && self.find(file)?.is_none())
    }

    /// The serial number of the file at a file's path in the back end, if there is one.
    pub(crate) fn serial(&self, file: FileId) -> Result<Option<u64>> {
        Ok(self.find(file)?.map(|(_, found)| found.version.serial))
    }

    /// Removes the record and the writeback mark of a file.
    pub(crate) fn forget(file: FileId, batch: &mut Batch) {
        batch.remove(record::key(file));
        Backing::end_mark(file, batch);
    }

    /// No directory is moved while this is held.
    fn lock_tree(&self) -> RwLockReadGuard<'_, ()> {
        self.tree.read()
    }

    /// No other thread uses a path while this is held.
    fn lock_tree_exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.tree.write()
    }

    /// No other thread synchronizes the root directory while this is held.
    fn lock_root(&self) -> MutexGuard<'_, ()> {
        self.root.lock()
    }

    /// No other thread truncates this file in the back end while this is held.
    fn lock_size(&self, file: FileId) -> MutexGuard<'_, ()> {
        self.size_locks[(file.0 % SIZE_LOCKS as u64) as usize].lock()
    }

    /// No other thread creates this directory in the back end while this is held. A file in it and the directory itself
    /// may be drained at the same time. Locked before a filling lock, for one directory at a time.
    fn lock_creation(&self, dir: FileId) -> MutexGuard<'_, ()> {
        let locks = &self.creation_locks;
        locks[(dir.0 % DIR_LOCKS as u64) as usize].lock()
    }

    /// The attributes of this directory are not restored while this is held: from its writeback mark until a change in
    /// it is done. Locked after all others, for one directory at a time.
    fn lock_filling(&self, dir: FileId) -> RwLockReadGuard<'_, ()> {
        self.filling_lock(dir).read()
    }

    /// Nothing changes in this directory while this is held: from the restoration of its attributes until its writeback
    /// mark has ended.
    fn lock_finishing(&self, dir: FileId) -> RwLockWriteGuard<'_, ()> {
        self.filling_lock(dir).write()
    }

    fn filling_lock(&self, dir: FileId) -> &RwLock<()> {
        &self.filling_locks[(dir.0 % DIR_LOCKS as u64) as usize]
    }

    /// Whether a file was refreshed a moment ago; marks it as refreshed.
    fn was_just_seen(&self, file: FileId) -> bool {
        let mut seen = self.seen.lock();
        let now = Instant::now();
        if seen.get(&file).is_some_and(|&then| now.duration_since(then) < FRESH) {
            return true;
        }
        if seen.len() >= MOST_SEEN {
            seen.clear();
        }
        seen.insert(file, now);
        false
    }

    /// Removes an unlinked file from the server's own directory in the back end.
    pub(crate) fn remove_private(&self, file: FileId) -> Result<()> {
        if let Some(record) = self.record(file)?.filter(|record| record.home == Home::Private) {
            let path = [private_dir(), private_name(file)];
            self.ask(|backend| backend.unlink_of(Slot::any(&path).seen(record.version.serial)))?;
        }
        Ok(())
    }

    /// The place of a file in the server's own directory, which is created if it is missing.
    fn private_spot(&self, file: FileId) -> Result<BackingSpot> {
        let dir = self.ask(|backend| make_private(backend))?;
        Ok(BackingSpot { path: vec![private_dir(), private_name(file)], dir })
    }

    /// Removes the record and the writeback mark of an unlinked file.
    pub(crate) fn reap(&self, file: FileId, batch: &mut Batch) {
        batch.remove(record::key(file));
        Backing::end_mark(file, batch);
        self.drop_mark(file);
    }
}

/// Whether this server can change owners in the back end. A server that does not run as root has the rights of its user
/// only.
fn can_chown() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a directory in the back end may be merged with the directory of the same name in the buffer. Another user's
/// directory would change its owner, or receive files from users who may not write to it.
fn may_merge(inode: &Inode, found: &Found) -> bool {
    !can_chown() || inode.uid == found.uid
}

/// Whether a directory that has appeared in the back end may be merged with the one in the buffer: only if the users who may use
/// the one may use the other. Another user can put a private directory of the same owner there. One that the server did
/// not finish also has its owner's rights.
fn may_adopt(inode: &Inode, found: &Found) -> bool {
    let same = found.gid == inode.gid && (found.mode == inode.mode || found.mode == inode.mode | 0o700);
    found.kind == FileKind::Directory && may_merge(inode, found) && (same || !can_chown())
}

/// A path for messages.
fn shown(path: &[Name]) -> String {
    path.iter().map(ToString::to_string).collect::<Vec<_>>().join("/")
}

fn private_dir() -> Name {
    Name::new(PRIVATE).expect("a name")
}

/// Creates the server's own directory and returns its serial number. Fails if it belongs to another user or is
/// accessible to others: the unlinked files in it must be accessible to the server only.
fn make_private(backend: &dyn Backend) -> Result<u64> {
    let (at, me) = ([private_dir()], rustix::process::geteuid().as_raw());
    backend.make_dir(&at, (Uid(me), Gid(rustix::process::getegid().as_raw())), 0o700)?;
    let found = backend.find(&at)?.ok_or_else(|| Error::from(ErrorKind::NotFound))?;
    if found.kind == FileKind::Directory && found.uid.0 == me && found.mode & 0o077 == 0 {
        return Ok(found.version.serial);
    }
    let text = format!(
        "\".forebay\" at the root of {} does not belong to this server (owner {}, mode {:o}; it has to be a directory of user {me} \
         with mode 700): remove it there",
        backend.name(),
        found.uid,
        found.mode
    );
    Err(Error::new(ErrorKind::NotPermitted, text))
}

fn private_name(file: FileId) -> Name {
    Name::new(file.to_string()).expect("a number is a name")
}

/// Whether a name is reserved for the server.
fn is_private(dir: FileId, name: &Name) -> bool {
    dir == FileId::ROOT && name.as_bytes() == PRIVATE
}

pub(crate) fn missing_in_backing(file: FileId) -> Error {
    let text = format!("file {file} has vanished from the back end: put it back, or remove the file");
    Error::new(ErrorKind::Stale, text)
}
