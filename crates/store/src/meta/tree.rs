//! The tree of the metadata store: one fjall database with one keyspace, reopened when it refuses writes.
//!
//! fjall refuses every write after one that failed, until it is reopened: a disk that was full for a moment would stop
//! the server until a restart. Everything that is not in the tree is in the log ahead, so reopening loses nothing,
//! unless a flush failed: then the state of the device is unknown.

use super::quiet::{self, Opening};
use super::reserve::Reserve;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use forebay_model::{Bytes, Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEYSPACE: &str = "meta";
/// fjall writes this file last when it creates a database.
pub(super) const MARKER: &str = "version";
/// The share of the cache argument that goes to one memtable; fjall keeps up to five.
const MEMTABLE_SHARE: u64 = 8;
const MIN_MEMTABLE: u64 = 1 << 20;
const MAX_JOURNALS: u64 = 256 << 20;
const OPEN_TABLES: usize = 64;
/// How long reopening the tree waits for threads that read from it.
const READERS: Duration = Duration::from_secs(1);
/// Pause between two looks at the readers.
const POLL: Duration = Duration::from_millis(1);

/// A key and its new value; `None` removes it.
pub(super) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// The tree in a directory.
pub(super) struct Tree {
    dir: PathBuf,
    cache: Bytes,
    /// `None` while reopening fails.
    open: RwLock<Option<Arc<Open>>>,
    reserve: Mutex<Reserve>,
    /// A flush has failed: the state of the device is unknown.
    flush_failed: AtomicBool,
}

struct Open {
    // Declared before the database, so that it is dropped first: it keeps the database's lock.
    keyspace: Keyspace,
    database: Database,
    opening: Opening,
}

/// Pairs of the tree, in order.
pub(super) struct Pairs {
    pairs: fjall::Iter,
    dir: PathBuf,
    /// Keeps the tree from being reopened meanwhile.
    open: Arc<Open>,
}

impl Pairs {
    pub(super) fn next(&mut self) -> Result<Option<(fjall::UserKey, fjall::UserValue)>> {
        let next = || self.pairs.next().map(fjall::Guard::into_inner).transpose();
        guarded((self.dir.as_path(), self.open.opening), "read", next).map_err(|failure| failure.error)
    }
}

/// An error, and whether reopening the tree may help.
struct Failure {
    error: Error,
    transient: bool,
    /// The tree refuses writes because an earlier write failed.
    refused: bool,
}

impl Tree {
    /// Opens the tree, or creates it.
    pub(super) fn open(dir: &Path, cache: Bytes) -> Result<Tree> {
        let open = open(dir, cache).map_err(|failure| failure.error)?;
        Ok(Tree {
            dir: dir.to_owned(),
            cache,
            open: RwLock::new(Some(Arc::new(open))),
            reserve: Mutex::new(Reserve::new(dir)),
            flush_failed: AtomicBool::new(false),
        })
    }

    fn tree(&self) -> Result<Arc<Open>> {
        let open = self.open.read().clone();
        open.map_or_else(|| self.open_again(None), Ok)
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.read(|open| {
            let value = open.database.snapshot().get(&open.keyspace, key)?;
            Ok(value.map(|value| value.to_vec()))
        })
    }

    /// The largest key that begins with a byte.
    pub(super) fn last(&self, letter: u8) -> Result<Option<Vec<u8>>> {
        self.read(|open| {
            let last = open.database.snapshot().prefix(&open.keyspace, [letter]).next_back();
            Ok(last.map(fjall::Guard::into_inner).transpose()?.map(|(key, _)| key.to_vec()))
        })
    }

    /// The pairs between two keys, as they are now.
    pub(super) fn pairs(&self, range: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Result<Pairs> {
        let open = self.tree()?;
        let pairs =
            self.read_from(&open, |open| Ok(open.database.snapshot().range(&open.keyspace, range.clone())))?;
        Ok(Pairs { pairs, dir: self.dir.clone(), open })
    }

    /// Runs a read. If descriptors run out, releases the reserve and tries once more.
    fn read<T>(&self, run: impl Fn(&Open) -> fjall::Result<T>) -> Result<T> {
        self.read_from(&*self.tree()?, run)
    }

    fn read_from<T>(&self, open: &Open, run: impl Fn(&Open) -> fjall::Result<T>) -> Result<T> {
        let site = (&*self.dir, open.opening);
        match guarded(site, "read", || run(open)) {
            Err(failure) if failure.transient => {
                let mut reserve = self.reserve.lock();
                reserve.release();
                let again = guarded(site, "read", || run(open));
                // The next write needs the reserve, and fails if it is missing.
                let _ = reserve.restore();
                again.map_err(|failure| failure.error)
            }
            done => done.map_err(|failure| failure.error),
        }
    }

    /// Applies changes of distinct keys, all or none. Reopens the tree if it refuses writes.
    pub(super) fn put(&self, changes: &[Change<'_>]) -> Result<()> {
        self.demand_reserve()?;
        let open = self.tree()?;
        let failure = match self.try_to_put(&open, changes) {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        let failed = open.opening;
        drop(open);
        if !failure.transient || self.flush_failed.load(Ordering::Acquire) {
            return Err(failure.error);
        }
        let open = self.open_again(Some(failed))?;
        let done = self.try_to_put(&open, changes).map_err(|failure| failure.error);
        drop(open);
        // Restored now if there is space again, or else before the next write.
        let _ = self.demand_reserve();
        done
    }

    fn try_to_put(&self, open: &Open, changes: &[Change<'_>]) -> Result<(), Failure> {
        guarded((self.dir.as_path(), open.opening), "write", || {
            let mut writes = open.database.batch().durability(Some(PersistMode::Buffer));
            for (key, value) in changes {
                match value {
                    Some(value) => writes.insert(&open.keyspace, *key, *value),
                    None => writes.remove(&open.keyspace, *key),
                }
            }
            writes.commit()
        })
    }

    /// Makes everything that was put durable.
    pub(super) fn persist(&self) -> Result<()> {
        if self.flush_failed.load(Ordering::Acquire) {
            let why = "an earlier flush failed, so the state of the device is unknown: restart the server";
            return Err(Error::new(ErrorKind::Io, failed(self.dir.as_path(), "flush", why)));
        }
        let flush = |open: &Open| {
            let persist = || open.database.persist(PersistMode::SyncAll);
            guarded((self.dir.as_path(), open.opening), "flush", persist)
        };
        let open = self.tree()?;
        let (mut done, refusing) = (flush(&open), open.opening);
        drop(open);
        // A tree that refuses because of an earlier write has not failed to flush.
        if done.as_ref().is_err_and(|failure| failure.refused) {
            done = flush(&*self.open_again(Some(refusing))?);
        }
        done.map_err(|failure| {
            self.flush_failed.store(true, Ordering::Release);
            failure.error
        })
    }

    fn demand_reserve(&self) -> Result<()> {
        let mut reserve = self.reserve.lock();
        match reserve.restore() {
            Err(cause) if reserve.is_spent() => {
                let (kind, why) = explain_io(&cause);
                Err(Error::new(kind, failed(self.dir.as_path(), "write", &why)))
            }
            _ => Ok(()),
        }
    }

    /// Reopens the tree after the opening that refused, with the reserve released for it. New readers wait, and the
    /// present ones are awaited; fails if one of them takes longer than [`READERS`].
    fn open_again(&self, refused: Option<Opening>) -> Result<Arc<Open>> {
        let mut place = self.open.write();
        // Another thread may have reopened it meanwhile.
        if let Some(open) = place.as_ref().filter(|open| Some(open.opening) != refused) {
            return Ok(open.clone());
        }
        let begin = Instant::now();
        while place.as_ref().is_some_and(|open| Arc::strong_count(open) > 1) {
            if begin.elapsed() > READERS {
                let why = "an earlier write failed, and it is being read: try again";
                return Err(Error::new(ErrorKind::Busy, failed(self.dir.as_path(), "open", why)));
            }
            std::thread::sleep(POLL);
        }
        // fjall may panic when it drops data that it could not write.
        if let Some(open) = place.take() {
            let _ = quiet::run(open.opening, || drop(open));
        }
        self.reserve.lock().release();
        let open = Arc::new(open(self.dir.as_path(), self.cache).map_err(|failure| failure.error)?);
        *place = Some(open.clone());
        Ok(open)
    }
}

fn open(dir: &Path, cache: Bytes) -> Result<Open, Failure> {
    let opening = Opening::new();
    guarded((dir, opening), "open", || {
        let database = Database::builder(dir)
            .cache_size(cache.0)
            .max_cached_files(Some(OPEN_TABLES))
            .max_journaling_size(MAX_JOURNALS)
            // Two workers hand a compaction to each other in a busy loop; one is enough.
            .worker_threads(1)
            .open()?;
        let memtable = (cache.0 / MEMTABLE_SHARE).max(MIN_MEMTABLE);
        let options = || KeyspaceCreateOptions::default().max_memtable_size(memtable);
        let keyspace = database.keyspace(KEYSPACE, options)?;
        Ok(Open { keyspace, database, opening })
    })
}

/// Whether fjall would recover a database in this directory rather than create one.
pub(super) fn holds_database(dir: &Path) -> Result<bool> {
    dir.join(MARKER).try_exists().map_err(|cause| io_failed(dir, &cause))
}

/// An error of the file system that holds the tree.
pub(super) fn io_failed(dir: &Path, cause: &io::Error) -> Error {
    let (kind, why) = explain_io(cause);
    Error::new(kind, failed(dir, "open", &why))
}

/// An error of a tree whose files are damaged.
pub(super) fn damaged_tree(dir: &Path, how: &str) -> Error {
    Error::new(ErrorKind::BadStore, failed(dir, "open", &damaged(how)))
}

/// Calls fjall and turns a panic into an error. fjall's locks refuse further writes after a panic.
fn guarded<T>(
    (dir, opening): (&Path, Opening),
    doing: &str,
    run: impl FnOnce() -> fjall::Result<T>,
) -> Result<T, Failure> {
    match quiet::run(opening, run) {
        Ok(result) => result.map_err(|cause| explain((dir, opening), doing, &cause)),
        Err(panic) => {
            let error = Error::new(ErrorKind::BadStore, failed(dir, doing, &damaged(&panic)));
            Err(Failure { error, transient: false, refused: false })
        }
    }
}

fn damaged(how: &str) -> String {
    format!("its files are damaged ({how}): restore them from a copy, or create a new store")
}

fn failed(dir: &Path, doing: &str, why: &str) -> String {
    format!("cannot {doing} the metadata store in {}: {why}", dir.display())
}

fn explain((dir, opening): (&Path, Opening), doing: &str, cause: &fjall::Error) -> Failure {
    let (mut transient, mut refused) = (false, false);
    let (kind, why) = match cause {
        fjall::Error::Io(cause) | fjall::Error::Storage(fjall::LsmError::Io(cause)) => {
            transient = is_shortage(cause);
            explain_io(cause)
        }
        fjall::Error::Locked => {
            (ErrorKind::BadStore, "another process has it open: stop that server first".to_owned())
        }
        // A worker thread of fjall may have found the damage and panicked.
        fjall::Error::Poisoned => match opening.last_panic() {
            Some(panic) => (ErrorKind::BadStore, damaged(&panic)),
            None => {
                (transient, refused) = (true, true);
                (ErrorKind::Io, "an earlier write failed: the server reopens it".to_owned())
            }
        },
        fjall::Error::InvalidVersion(_) => (
            ErrorKind::BadStore,
            "its format is of another version: use the program that created it".to_owned(),
        ),
        other => (ErrorKind::BadStore, damaged(&other.to_string())),
    };
    Failure { error: Error::new(kind, failed(dir, doing, &why)), transient, refused }
}

/// Whether a resource ran out that may become available again.
fn is_shortage(cause: &io::Error) -> bool {
    let errno = Errno::from_io_error(cause);
    let full = matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    full || matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

fn explain_io(cause: &io::Error) -> (ErrorKind, String) {
    use io::ErrorKind as Io;
    match cause.kind() {
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => (
            ErrorKind::NoSpace,
            format!("{cause}: free space on that file system; the server then continues by itself"),
        ),
        Io::PermissionDenied | Io::ReadOnlyFilesystem | Io::NotFound | Io::NotADirectory => {
            (ErrorKind::BadStore, format!("{cause}: check the directory and its owner"))
        }
        Io::AlreadyExists | Io::UnexpectedEof | Io::InvalidData | Io::InvalidInput => (
            ErrorKind::BadStore,
            format!("its files are damaged or incomplete ({cause}): restore them, or create a new store"),
        ),
        _ if is_shortage(cause) => {
            (ErrorKind::Io, format!("{cause}: the server continues by itself when there are some"))
        }
        _ => (ErrorKind::Io, format!("{cause}: check the disk")),
    }
}
