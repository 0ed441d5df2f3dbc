//! A metadata store in memory that simulates crashes and failures of a disk.

use super::{Batch, Kv, Visit};
use forebay_model::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// An ordered map that remembers which commits were synced, for tests of crashes.
#[derive(Default)]
pub struct MemoryKv {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What readers see.
    now: Map,
    /// The minimum that a crash leaves.
    durable: Map,
    /// Commits since the last sync, oldest first.
    unsynced: Vec<Batch>,
    faults: Vec<(Fault, u64, Error)>,
}

/// The call that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// [`Kv::commit`]; nothing of the batch is applied.
    Commit,
    /// [`Kv::sync`]; nothing becomes durable.
    Sync,
}

impl MemoryKv {
    /// An empty store.
    #[must_use]
    pub fn new() -> MemoryKv {
        MemoryKv::default()
    }

    /// How many commits a crash could lose.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.state().unsynced.len()
    }

    /// The store after a crash of the machine: everything synced and the first `keep` commits after it.
    #[must_use]
    pub fn crash(&self, keep: usize) -> MemoryKv {
        let state = self.state();
        let mut durable = state.durable.clone();
        for batch in state.unsynced.iter().take(keep) {
            apply(&mut durable, batch);
        }
        let state = State { now: durable.clone(), durable, ..State::default() };
        MemoryKv { state: Mutex::new(state) }
    }

    /// Makes the `nth` such call from now on fail with `error`; 1 is the next one.
    pub fn fail(&self, fault: Fault, nth: u64, error: Error) {
        self.state().faults.push((fault, nth, error));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Kv for MemoryKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.state().now.get(key).cloned())
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<()> {
        let start = prefix.max(from).to_vec();
        // Copied, so that the visitor may use the store.
        let pairs: Vec<_> = self
            .state()
            .now
            .range(start..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        // A break only ends the scan.
        let _ = pairs.iter().try_for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        let mut state = self.state();
        state.strike(Fault::Commit)?;
        apply(&mut state.now, &batch);
        state.unsynced.push(batch);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state();
        state.strike(Fault::Sync)?;
        state.unsynced.clear();
        state.durable = state.now.clone();
        Ok(())
    }
}

impl State {
    /// Counts a call, and fails it if a fault is due.
    fn strike(&mut self, call: Fault) -> Result<()> {
        for (_, left, _) in self.faults.iter_mut().filter(|(fault, ..)| *fault == call) {
            *left = left.saturating_sub(1);
        }
        match self.faults.iter().position(|(fault, left, _)| *fault == call && *left == 0) {
            Some(index) => Err(self.faults.remove(index).2),
            None => Ok(()),
        }
    }
}

fn apply(map: &mut Map, batch: &Batch) {
    for (key, value) in &batch.changes {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}
