//! The table of files with state in memory.

use super::file::{File, FileState};
use super::rings::Watch;
use forebay_model::{FileId, Result};
use forebay_shm::Epochs;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

const SHARDS: usize = 64;

/// The state of a file if it is in memory, or else as recorded in the metadata store.
pub(super) enum Looked {
    InMemory(FileState),
    Noted(File),
}

/// File states by id, sharded over many locks.
pub(super) struct Table {
    shards: Vec<Mutex<HashMap<FileId, FileState>>>,
    /// The epochs to advance when a file changes.
    epochs: Arc<OnceLock<Arc<Epochs>>>,
}

impl Table {
    pub(super) fn new() -> Table {
        Table { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), epochs: Arc::default() }
    }

    /// Sets the epochs to advance when a file changes.
    pub(super) fn notify(&self, epochs: Arc<Epochs>) {
        self.epochs.get_or_init(|| epochs);
    }

    fn shard(&self, id: FileId) -> &Mutex<HashMap<FileId, FileState>> {
        &self.shards[(id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS]
    }

    /// The state of a file, loaded if necessary.
    pub(super) fn get(&self, id: FileId, load: impl FnOnce() -> Result<File>) -> Result<FileState> {
        let mut shard = self.shard(id).lock();
        if let Some(state) = shard.get(&id) {
            return Ok(Arc::clone(state));
        }
        let mut file = load()?;
        file.index.leases.watch(Watch { file: id, epochs: self.epochs.clone() });
        let state = Arc::new(Mutex::new(file));
        shard.insert(id, Arc::clone(&state));
        Ok(state)
    }

    /// The state of a file in memory, or the record of a file that is not. The shard lock excludes changes meanwhile: a
    /// change loads the file into memory first.
    pub(super) fn look(&self, id: FileId, load: impl FnOnce() -> Result<File>) -> Result<Looked> {
        let shard = self.shard(id).lock();
        match shard.get(&id) {
            Some(state) => Ok(Looked::InMemory(Arc::clone(state))),
            None => load().map(Looked::Noted),
        }
    }

    /// The state of a file if it is in memory.
    pub(super) fn resident(&self, id: FileId) -> Option<FileState> {
        self.shard(id).lock().get(&id).cloned()
    }

    /// Removes a deleted file.
    pub(super) fn forget(&self, id: FileId) {
        self.shard(id).lock().remove(&id);
    }

    /// Removes a file from memory if it has no bytes in regions, no thread uses it, and no region holds a record of it:
    /// a truncation must know those regions.
    pub(super) fn evict(&self, id: FileId, is_held: impl Fn(&mut File) -> bool) {
        let mut shard = self.shard(id).lock();
        let idle = |state: &FileState| {
            Arc::strong_count(state) == 1 && {
                let mut file = state.lock();
                file.index.is_all_in_backing()
                    && !file.size_pending
                    && file.mapped.is_none()
                    && !is_held(&mut file)
            }
        };
        if shard.get(&id).is_some_and(idle) {
            shard.remove(&id);
        }
    }

    /// All files in memory.
    pub(super) fn ids(&self) -> Vec<FileId> {
        self.shards.iter().flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>()).collect()
    }
}
