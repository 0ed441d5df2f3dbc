//! Changes of one file's bytes that several stores make, or none of them: truncations and holes.
//!
//! The server that has the file's inode decides. It begins, has every other one *prepare* (note the change, durably),
//! makes it in its own store together with a note of who has to hear of it, and tells the others to finish. What it does
//! not know never was. Whoever meets a prepared file asks first what became of the change.
//!
//! **Invariant**: all stores make a change or none does, whoever dies in between.
//!
//! **Deliberately absent**: messages; the order of two changes of one file, which the one that decides begins one after
//! the other.

use crate::data::Data;
use crate::meta::{Batch, Kv};
use crate::names::Verdict;
use forebay_model::{Error, ErrorKind, FileId, Reshape, Result, ServerId, Stamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const VERSION: u8 = 1;
const PREPARED: &[u8] = b"r";
const DECIDED: &[u8] = b"u";
/// Most files that are prepared at the same time.
const MOST: usize = 1024;

/// A change that another server decides about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Prepared {
    serial: Stamp,
    change: Reshape,
}

/// A change that was made here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Decided {
    serial: Stamp,
    /// Those that have to hear of it.
    left: Vec<ServerId>,
}

/// The changes that a store knows of.
pub struct Reshapes {
    kv: Arc<dyn Kv>,
    /// How many are prepared, so that nobody pays for what is rarely there.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    prepared: HashMap<FileId, Prepared>,
    /// Begun here, and not decided.
    open: HashMap<FileId, Stamp>,
    decided: HashMap<FileId, Decided>,
}

/// A change in the making. Dropped before it is decided, it never was.
pub struct Opening {
    file: FileId,
    serial: Stamp,
    change: Reshape,
    shapes: Arc<Reshapes>,
}

impl Opening {
    /// Which of all changes of the file this is.
    #[must_use]
    pub fn serial(&self) -> Stamp {
        self.serial
    }

    /// What changes.
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
    /// Brings back what was prepared and what was decided.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a change that another server decides about, in place of one that it has given up.
    pub fn prepare(&self, file: FileId, serial: Stamp, change: Reshape) -> Result<()> {
        {
            let mut state = self.state();
            let known = state.prepared.get(&file).map(|known| known.serial);
            if known.is_some_and(|known| known > serial) {
                let text = format!("a later change of file {file} was prepared already");
                return Err(Error::new(ErrorKind::Stale, text));
            }
            if known.is_none() && state.prepared.len() >= MOST {
                let text = format!("{MOST} files wait for what becomes of their changes: try again");
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

    /// The change of a file of which it is not known here what became of it.
    #[must_use]
    pub fn pending(&self, file: FileId) -> Option<Stamp> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.state().prepared.get(&file).map(|prepared| prepared.serial)
    }

    /// All of them. After a start, and now and then, those who decide are to be asked.
    #[must_use]
    pub fn all_pending(&self) -> Vec<(FileId, Stamp)> {
        self.state().prepared.iter().map(|(&file, prepared)| (file, prepared.serial)).collect()
    }

    /// Makes or forgets a change that was prepared, if it still is.
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
        // The one that decided forgets the change when all have made it.
        self.kv.sync()
    }

    /// Begins a change. All that was decided before has to be told first.
    pub fn begin(self: &Arc<Reshapes>, file: FileId, serial: Stamp, change: Reshape) -> Result<Opening> {
        let mut state = self.state();
        if state.open.contains_key(&file) || state.decided.contains_key(&file) {
            return Err(Error::new(ErrorKind::Busy, format!("file {file} is being changed: try again")));
        }
        state.open.insert(file, serial);
        Ok(Opening { file, serial, change, shapes: Arc::clone(self) })
    }

    /// Makes a change here and with it the changes in `with`, and notes who has to hear of it. Nothing happens if that
    /// was done before.
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

    /// What became of a change that was begun here; nothing if that is open.
    pub fn verdict(&self, file: FileId, serial: Stamp) -> Result<Option<Verdict>> {
        let verdict = {
            let state = self.state();
            match (state.open.get(&file), state.decided.get(&file)) {
                (Some(open), _) if *open == serial => return Ok(None),
                (_, Some(decided)) if decided.serial == serial => Verdict::Done,
                _ => Verdict::Undone,
            }
        };
        // Others may hear of what is done only when that survives the death of the machine.
        if verdict == Verdict::Done {
            self.kv.sync()?;
        }
        Ok(Some(verdict))
    }

    /// The last change of a file, and who has still to hear that it was made.
    pub fn untold(&self, file: FileId) -> Result<Option<(Stamp, Vec<ServerId>)>> {
        let untold = self.state().decided.get(&file).map(|decided| (decided.serial, decided.left.clone()));
        if untold.is_some() {
            self.kv.sync()?;
        }
        Ok(untold)
    }

    /// The files of which some have still to hear.
    #[must_use]
    pub fn all_untold(&self) -> Vec<FileId> {
        self.state().decided.keys().copied().collect()
    }

    /// A server has finished a change.
    pub fn told(&self, file: FileId, serial: Stamp, server: ServerId) -> Result<()> {
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

    /// Removes a file's bytes for ever, and what is known of its changes. The changes in `with` happen together with it.
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
    postcard::to_extend(value, vec![VERSION]).expect("a note can always be written to memory")
}

fn decode<T: DeserializeOwned>(file: FileId, bytes: &[u8]) -> Result<T> {
    let note = match bytes {
        [VERSION, rest @ ..] => postcard::from_bytes(rest).ok(),
        _ => None,
    };
    let text = || format!("the note of a change of file {file} cannot be read");
    note.ok_or_else(|| Error::new(ErrorKind::BadStore, text()))
}
