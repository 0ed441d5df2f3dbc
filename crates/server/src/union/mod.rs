//! The union with what is behind: one tree of names, whose files are here, there, or partly both.
//!
//! Whatever is met behind gets a name and a number here, and a *record* of where it is behind and what was seen there.
//! From then on all that is done to names is done here, by the rules of here, and behind as well before it is answered:
//! an *intent* is written down first, so that a server that dies in between finishes on its next start.
//!
//! **Invariant**: a path here is the path behind, for everything that is behind; whatever is behind lies in a directory
//! that is behind; bytes from behind are those of the version in the record, or nothing.
//!
//! **Locks**: those of the namespace, then `tree`; while a directory moves nobody uses a path, because every path
//! through it changes. No lock of the namespace is taken under `tree`.
//!
//! **Deliberately absent**: when bytes are written behind, and which (`drain`); hard links behind while the buffer is in use (each
//! name there is a file here); a cache of bytes, but of those that somebody asked to have near (`near`).

mod afar;
mod birth;
mod change;
mod claim;
mod extras;
mod ground;
mod intent;
mod meet;
mod near;
mod pen;
mod read;
mod record;
mod stage;

pub(crate) use change::{Spot, changed_behind};
pub(crate) use extras::Extras;
pub(crate) use meet::Order;
pub(crate) use near::Near;
pub(crate) use pen::Pen;
pub(crate) use read::Part;
pub(crate) use stage::Brought;

use claim::Claims;
use forebay_backend::{Backend, Found};
use forebay_model::{Error, ErrorKind, FileId, Name, Result};
use forebay_store::{Batch, Kv};
use forebay_wire::Place;
use record::{Home, Record};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// A directory at the root of the back end that nobody else sees: files without a name that are still open.
const PRIVATE: &[u8] = b".forebay";
/// For how long attributes of directories count without being looked at again behind.
const FRESH: Duration = Duration::from_secs(1);
/// Most files of which it is known when they were last looked at.
const MOST_SEEN: usize = 1 << 16;
/// Requests that wait for the back end at the same time.
const WAITING: usize = 32;
const LENGTHS: usize = 64;

/// What stands behind, and what is known of it.
pub(crate) struct Union {
    backend: Arc<dyn Backend>,
    kv: Arc<dyn Kv>,
    tree: RwLock<()>,
    lengths: Vec<Mutex<()>>,
    seen: Mutex<HashMap<FileId, Instant>>,
    claims: Claims,
    /// Names of files, as they were when they were last seen.
    hints: Mutex<HashMap<FileId, (FileId, Name)>>,
    /// Where files of other servers were last known to be.
    places: Mutex<HashMap<FileId, Arc<Place>>>,
    /// Whether what is written down here can outlive the machine's death.
    lasting: bool,
    /// What somebody asked to have near.
    pub(crate) near: Near,
    /// Bounds those who wait for the back end.
    pub(crate) waiting: Semaphore,
}

impl Union {
    pub(crate) fn new(backend: Arc<dyn Backend>, kv: Arc<dyn Kv>, lasting: bool, near: Near) -> Union {
        Union {
            lasting,
            near,
            claims: Claims::default(),
            hints: Mutex::default(),
            places: Mutex::default(),
            backend,
            kv,
            tree: RwLock::default(),
            lengths: (0..LENGTHS).map(|_| Mutex::default()).collect(),
            seen: Mutex::default(),
            waiting: Semaphore::new(WAITING),
        }
    }

    /// How people name what is behind.
    pub(crate) fn name(&self) -> String {
        self.backend.name()
    }

    /// Asks the back end, which may take its time.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&dyn Backend) -> T) -> T {
        tokio::task::block_in_place(|| ask(&*self.backend))
    }

    fn record(&self, file: FileId) -> Result<Option<Record>> {
        self.kv.get(&record::key(file))?.map(|bytes| Record::decode(file, &bytes)).transpose()
    }

    /// Whether something is behind.
    pub(crate) fn knows(&self, file: FileId) -> Result<bool> {
        self.record(file).map(|record| record.is_some())
    }

    /// Where a file is behind, if it is. The caller holds `tree`, or the locks of all names on the way.
    fn path(&self, file: FileId) -> Result<Option<Vec<Name>>> {
        let (mut path, mut at) = (Vec::new(), file);
        while at != FileId::ROOT {
            match self.record(at)?.map(|record| record.home) {
                Some(Home::Entry { dir, name }) => {
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
        Ok(Some(path))
    }

    /// What is at a file's place behind now, and where that is.
    fn find(&self, file: FileId) -> Result<Option<(Vec<Name>, Found)>> {
        let _still = self.still();
        let Some(path) = self.path(file)? else { return Ok(None) };
        Ok(self.ask(|backend| backend.find(&path))?.map(|found| (path, found)))
    }

    /// Whether something that should be behind is not there.
    pub(crate) fn has_vanished(&self, file: FileId) -> Result<bool> {
        Ok(self.record(file)?.is_some() && self.find(file)?.is_none())
    }

    /// The number by which a file is known that is at its place behind now, if any is.
    pub(crate) fn serial(&self, file: FileId) -> Result<Option<u64>> {
        Ok(self.find(file)?.map(|(_, found)| found.version.serial))
    }

    /// Something is not known to be behind any more, nor claimed.
    pub(crate) fn forget(file: FileId, batch: &mut Batch) {
        batch.remove(record::key(file));
        Union::end_claim(file, batch);
    }

    /// No directory moves while this is held.
    fn still(&self) -> RwLockReadGuard<'_, ()> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody uses a path while this is held.
    fn moving(&self) -> RwLockWriteGuard<'_, ()> {
        self.tree.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody cuts this file behind while this is held.
    fn length(&self, file: FileId) -> MutexGuard<'_, ()> {
        self.lengths[(file.0 % LENGTHS as u64) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a file was looked at behind a moment ago; from now on it was.
    fn was_just_seen(&self, file: FileId) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The last words on a file that nobody can reach any more: what is left of it behind goes.
    pub(crate) fn bury(&self, file: FileId, batch: &mut Batch) -> Result<()> {
        if self.record(file)?.is_some_and(|record| record.home == Home::Private) {
            self.ask(|backend| backend.unlink(&[private_dir(), private_name(file)]))?;
        }
        batch.remove(record::key(file));
        Union::end_claim(file, batch);
        self.unclaim(file);
        Ok(())
    }
}

fn private_dir() -> Name {
    Name::new(PRIVATE).expect("a name")
}

fn private_name(file: FileId) -> Name {
    Name::new(file.to_string()).expect("a number is a name")
}

/// Whether a name is one that nobody but the server sees.
fn is_private(dir: FileId, name: &Name) -> bool {
    dir == FileId::ROOT && name.as_bytes() == PRIVATE
}

pub(crate) fn gone_behind(file: FileId) -> Error {
    let text = format!("file {file} has vanished from the back end: put it back, or remove the file");
    Error::new(ErrorKind::Stale, text)
}
