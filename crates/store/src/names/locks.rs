//! Striped locks.

use forebay_model::FileId;
use parking_lot::{Mutex, MutexGuard};

const STRIPES: u64 = 1024;

/// One lock for many ids; unrelated ids rarely share one.
pub(super) struct Locks {
    stripes: Vec<Mutex<()>>,
}

/// Stripes held by a thread.
pub(super) struct Held<'a> {
    _stripes: Vec<MutexGuard<'a, ()>>,
}

impl Default for Locks {
    fn default() -> Locks {
        Locks { stripes: (0..STRIPES).map(|_| Mutex::new(())).collect() }
    }
}

impl Locks {
    /// Takes the stripes of these ids, all at once and in order, so that callers never deadlock.
    pub(super) fn hold(&self, ids: &[FileId]) -> Held<'_> {
        // Ids are sequential, so neighbours use different stripes.
        let mut wanted: Vec<_> = ids.iter().map(|id| (id.0 % STRIPES) as usize).collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.take(wanted)
    }

    /// Takes all stripes.
    pub(super) fn hold_all(&self) -> Held<'_> {
        self.take((0..STRIPES as usize).collect())
    }

    fn take(&self, wanted: Vec<usize>) -> Held<'_> {
        // The locks guard records in the store, which change in atomic batches: a panic leaves no partial change.
        let lock = |stripe: usize| self.stripes[stripe].lock();
        Held { _stripes: wanted.into_iter().map(lock).collect() }
    }
}
