//! Truncations and holes of one file that several stores apply atomically: two-phase commit.
//!
//! The server that owns the file's inode is the coordinator. It begins a change, makes every other server *prepare* it
//! (record it durably), applies it in its own store together with the list of servers that must finish, and notifies
//! them. A change that the coordinator has no record of was aborted. A server that finds a prepared file requests the
//! verdict first.
//!
//! **Invariant**: all stores apply a change or none does, whichever process dies in between.
//!
//! **Deliberately absent**: messages; the order of two changes of one file, which the coordinator begins one after the
//! other.

use crate::data::Data;
use crate::meta::{Batch, KeySpace, Kv};
use crate::names::Verdict;
use forebay_model::{Error, ErrorKind, FileId, Reshape, Result, ServerId, Stamp};
use parking_lot::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const VERSION: u8 = 1;
const PREPARED: &[u8] = KeySpace::PreparedReshape.prefix();
const DECIDED: &[u8] = KeySpace::DecidedReshape.prefix();
/// Largest number of files prepared at the same time.
const MOST: usize = 1024;

/// A change that another server coordinates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Prepared {
    serial: Stamp,
    change: Reshape,
}

/// A change that this server coordinated and applied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Decided {
    serial: Stamp,
    /// Servers that have not finished yet.
    left: Vec<ServerId>,
}

/// The distributed changes that a store has a record of.
pub struct Reshapes {
    kv: Arc<dyn Kv>,
    /// Number of prepared changes, so that the common case of none is cheap.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    prepared: HashMap<FileId, Prepared>,
    /// Begun by this server, and not decided.
    open: HashMap<FileId, Stamp>,
    decided: HashMap<FileId, Decided>,
}

/// A change that has begun. Dropping it before it is decided aborts it.
pub struct Opening {
    file: FileId,
    serial: Stamp,
    change: Reshape,
    shapes: Arc<Reshapes>,
}

impl Opening {
    /// The file that is changed.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.file
    }

    /// The sequence number of the change among all changes of the file.
    #[must_use]
    pub fn serial(&self) -> Stamp {
        self.serial
    }

    /// The change itself.
    #[must_use]
    pub fn change(&self) -> Reshape {
        self.change
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut state = self.shapes.state();
        if state.open.get(&self.file) == Some(&self.serial) {
            state.open.remove(&self.file);
        }
    }
}

impl Reshapes {
    /// Loads prepared and decided changes.
    pub fn open(kv: Arc<dyn Kv>) -> Result<Arc<Reshapes>> {
        let mut state = State::default();
        for (file, value) in scan(&*kv, PREPARED)? {
            state.prepared.insert(file, decode(file, &value)?);
        }
        for (file, value) in scan(&*kv, DECIDED)? {
            state.decided.insert(file, decode(file, &value)?);
        }
        let count = AtomicUsize::new(state.prepared.len());
        Ok(Arc::new(Reshapes { kv, count, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Records a change that another server coordinates, replacing one that the coordinator aborted.
    pub fn prepare(&self, file: FileId, serial: Stamp, change: Reshape) -> Result<()> {
        {
            let mut state = self.state();
            let known = state.prepared.get(&file).map(|known| known.serial);
            if known.is_some_and(|known| known > serial) {
                let text = format!("a later change of file {file} is already prepared");
                return Err(Error::new(ErrorKind::Stale, text));
            }
            if known.is_none() && state.prepared.len() >= MOST {
                let text = format!("{MOST} files have prepared changes without a verdict: try again");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            let prepared = Prepared { serial, change };
            let mut batch = Batch::default();
            batch.put(key(PREPARED, file), encode(&prepared));
            self.kv.commit(batch)?;
            state.prepared.insert(file, prepared);
            self.count.store(state.prepared.len(), Ordering::SeqCst);
        }
        self.kv.sync()
    }

    /// The prepared change of a file whose verdict is not known on this server.
    #[must_use]
    pub fn pending(&self, file: FileId) -> Option<Stamp> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.state().prepared.get(&file).map(|prepared| prepared.serial)
    }

    /// All pending changes. The server requests their verdicts after a start and periodically.
    #[must_use]
    pub fn all_pending(&self) -> Vec<(FileId, Stamp)> {
        self.state().prepared.iter().map(|(&file, prepared)| (file, prepared.serial)).collect()
    }

    /// Applies or discards a prepared change, if it is still prepared.
    pub fn finish(&self, data: &Data, file: FileId, serial: Stamp, verdict: Verdict) -> Result<()> {
        {
            let mut state = self.state();
            let Some(prepared) = state.prepared.get(&file).filter(|known| known.serial == serial).copied()
            else {
                return Ok(());
            };
            let mut batch = Batch::default();
            batch.remove(key(PREPARED, file));
            match verdict {
                Verdict::Done => apply(prepared.change, data, file, batch)?,
                Verdict::Undone => self.kv.commit(batch)?,
            }
            state.prepared.remove(&file);
            self.count.store(state.prepared.len(), Ordering::SeqCst);
        }
        // The coordinator forgets the change when all servers have applied it.
        self.kv.sync()
    }

    /// Begins a change. All servers must have finished the one before.
    pub fn begin(self: &Arc<Reshapes>, file: FileId, serial: Stamp, change: Reshape) -> Result<Opening> {
        let mut state = self.state();
        if state.open.contains_key(&file) || state.decided.contains_key(&file) {
            return Err(Error::new(ErrorKind::Busy, format!("file {file} is being changed: try again")));
        }
        state.open.insert(file, serial);
        Ok(Opening { file, serial, change, shapes: Arc::clone(self) })
    }

    /// Applies a change on this server together with the changes in `with`, and records which servers must finish it.
    /// Does nothing if it was already decided.
    pub fn decide(
        &self,
        data: &Data,
        opening: &Opening,
        others: Vec<ServerId>,
        mut with: Batch,
    ) -> Result<()> {
        let &Opening { file, serial, change, .. } = opening;
        if self.state().open.get(&file) != Some(&serial) {
            return Ok(());
        }
        let decided = Decided { serial, left: others };
        if !decided.left.is_empty() {
            with.put(key(DECIDED, file), encode(&decided));
        }
        apply(change, data, file, with)?;
        {
            let mut state = self.state();
            state.open.remove(&file);
            if !decided.left.is_empty() {
                state.decided.insert(file, decided);
            }
        }
        self.kv.sync()
    }

    /// The verdict on a change that this server began; `None` if it is still undecided.
    pub fn verdict(&self, file: FileId, serial: Stamp) -> Result<Option<Verdict>> {
        let verdict = {
            let state = self.state();
            match (state.open.get(&file), state.decided.get(&file)) {
                (Some(open), _) if *open == serial => return Ok(None),
                (_, Some(decided)) if decided.serial == serial => Verdict::Done,
                _ => Verdict::Undone,
            }
        };
        // Other servers may learn that a change is done only when that survives the death of the machine.
        if verdict == Verdict::Done {
            self.kv.sync()?;
        }
        Ok(Some(verdict))
    }

    /// The last decided change of a file, and the servers that have not finished it.
    pub fn untold(&self, file: FileId) -> Result<Option<(Stamp, Vec<ServerId>)>> {
        let untold = self.state().decided.get(&file).map(|decided| (decided.serial, decided.left.clone()));
        if untold.is_some() {
            self.kv.sync()?;
        }
        Ok(untold)
    }

    /// The files with a decided change that some servers have not finished.
    #[must_use]
    pub fn all_untold(&self) -> Vec<FileId> {
        self.state().decided.keys().copied().collect()
    }

    /// Records that a server has finished a change.
    pub fn acknowledged(&self, file: FileId, serial: Stamp, server: ServerId) -> Result<()> {
        let mut state = self.state();
        let Some(decided) = state.decided.get_mut(&file).filter(|decided| decided.serial == serial) else {
            return Ok(());
        };
        decided.left.retain(|&other| other != server);
        if !decided.left.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.remove(key(DECIDED, file));
        self.kv.commit(batch)?;
        state.decided.remove(&file);
        Ok(())
    }

    /// Deletes a file's bytes and all records of its changes. The changes in `with` are committed together with it.
    pub fn delete(&self, data: &Data, file: FileId, mut with: Batch) -> Result<()> {
        let mut state = self.state();
        if state.prepared.contains_key(&file) {
            with.remove(key(PREPARED, file));
        }
        if state.decided.contains_key(&file) {
            with.remove(key(DECIDED, file));
        }
        data.delete(file, with)?;
        state.prepared.remove(&file);
        state.decided.remove(&file);
        self.count.store(state.prepared.len(), Ordering::SeqCst);
        Ok(())
    }
}

fn apply(change: Reshape, data: &Data, file: FileId, with: Batch) -> Result<()> {
    match change {
        Reshape::Cut(size) => data.truncate(file, size, with),
        Reshape::Punch(span) => data.punch(file, span, with),
    }
}

fn key(kind: &[u8], file: FileId) -> Vec<u8> {
    [kind, &file.0.to_be_bytes()].concat()
}

fn scan(kv: &dyn Kv, kind: &[u8]) -> Result<Vec<(FileId, Vec<u8>)>> {
    let mut found = Vec::new();
    let mut strange = None;
    kv.scan(kind, &[], &mut |key, value| {
        match key.get(1..).and_then(|id| <[u8; 8]>::try_from(id).ok()) {
            Some(id) => found.push((FileId(u64::from_be_bytes(id)), value.to_vec())),
            None => strange = Some(key.escape_ascii().to_string()),
        }
        ControlFlow::Continue(())
    })?;
    match strange {
        Some(key) => Err(Error::new(ErrorKind::BadStore, format!("\"{key}\" is not the key of a file"))),
        None => Ok(found),
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION]).expect("a record can always be encoded")
}

fn decode<T: DeserializeOwned>(file: FileId, bytes: &[u8]) -> Result<T> {
    let note = match bytes {
        [VERSION, rest @ ..] => postcard::from_bytes(rest).ok(),
        _ => None,
    };
    let text = || format!("the record of a change of file {file} is damaged");
    note.ok_or_else(|| Error::new(ErrorKind::BadStore, text()))
}
