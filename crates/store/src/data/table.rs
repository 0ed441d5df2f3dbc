//! The files that have something in memory.

use super::file::{File, FileState};
use super::lock;
use super::rings::Watch;
use forebay_model::{FileId, Result};
use forebay_shm::Epochs;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

const SHARDS: usize = 64;

/// What is found of a file.
pub(super) enum Looked {
    InMemory(FileState),
    Noted(File),
}

/// File states by id, spread over locks of their own.
pub(super) struct Table {
    shards: Vec<Mutex<HashMap<FileId, FileState>>>,
    /// Who is told of changes.
    epochs: Arc<OnceLock<Arc<Epochs>>>,
}

impl Table {
    pub(super) fn new() -> Table {
        Table { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), epochs: Arc::default() }
    }

    /// Changes of files are told from now on.
    pub(super) fn tell(&self, epochs: Arc<Epochs>) {
        self.epochs.get_or_init(|| epochs);
    }

    fn shard(&self, id: FileId) -> &Mutex<HashMap<FileId, FileState>> {
        &self.shards[(id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS]
    }

    /// The state of a file, loaded if need be.
    pub(super) fn get(&self, id: FileId, load: impl FnOnce() -> Result<File>) -> Result<FileState> {
        let mut shard = lock(self.shard(id));
        if let Some(state) = shard.get(&id) {
            return Ok(Arc::clone(state));
        }
        let mut file = load()?;
        file.index.leases.watch(Watch { file: id, epochs: self.epochs.clone() });
        let state = Arc::new(Mutex::new(file));
        shard.insert(id, Arc::clone(&state));
        Ok(state)
    }

    /// The state of a file, or what is noted of one that is not in memory. Nobody can change it in between: whoever does
    /// brings it into memory first.
    pub(super) fn look(&self, id: FileId, load: impl FnOnce() -> Result<File>) -> Result<Looked> {
        let shard = lock(self.shard(id));
        match shard.get(&id) {
            Some(state) => Ok(Looked::InMemory(Arc::clone(state))),
            None => load().map(Looked::Noted),
        }
    }

    /// The state of a file if it is in memory.
    pub(super) fn resident(&self, id: FileId) -> Option<FileState> {
        lock(self.shard(id)).get(&id).cloned()
    }

    /// Lets go of a deleted file.
    pub(super) fn forget(&self, id: FileId) {
        lock(self.shard(id)).remove(&id);
    }

    /// Lets go of a file that has no bytes in regions, if nobody is using it, and no region holds a record of it: whoever
    /// cuts it must know of those.
    pub(super) fn evict(&self, id: FileId, is_held: impl Fn(&mut File) -> bool) {
        let mut shard = lock(self.shard(id));
        let idle = |state: &FileState| {
            Arc::strong_count(state) == 1 && {
                let mut file = lock(state);
                file.index.is_all_behind() && !file.unsettled && !is_held(&mut file)
            }
        };
        if shard.get(&id).is_some_and(idle) {
            shard.remove(&id);
        }
    }

    /// All files in memory.
    pub(super) fn ids(&self) -> Vec<FileId> {
        self.shards.iter().flat_map(|shard| lock(shard).keys().copied().collect::<Vec<_>>()).collect()
    }
}
