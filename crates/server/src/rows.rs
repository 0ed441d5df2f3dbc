//! Sequences of numbers, for processes that divide something among them without knowing each other.
//!
//! Processes of a job that place their files each take the next number of the job's sequence, wherever they run, and
//! thus each a different target.
//!
//! **Deliberately absent**: durability. All sequences start anew with the server; users of them must cope with that.

use forebay_model::Uid;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Maximum number of sequences; beyond it the least recently used one is removed.
const ROWS: usize = 4096;
/// Maximum number of sequences of one user; beyond it the user's least recently used one is removed.
const ROWS_OF_USER: usize = 256;

#[derive(Default)]
pub(crate) struct Rows(Mutex<State>);

#[derive(Default)]
struct State {
    /// By user and name: the next number, and when it was last used.
    rows: BTreeMap<(Uid, u64), (u64, u64)>,
    used: u64,
}

impl Rows {
    /// The next number of a sequence.
    pub(crate) fn next(&self, uid: Uid, row: u64) -> u64 {
        let mut state = self.0.lock();
        state.used += 1;
        let used = state.used;
        let (own, all) = ((uid, 0)..=(uid, u64::MAX), (Uid(0), 0)..=(Uid(u32::MAX), u64::MAX));
        let full = match state.rows.contains_key(&(uid, row)) {
            true => None,
            false if state.rows.range(own.clone()).count() >= ROWS_OF_USER => Some(own),
            false => (state.rows.len() >= ROWS).then_some(all),
        };
        if let Some(range) = full {
            let oldest = state.rows.range(range).min_by_key(|(_, (_, used))| *used).map(|(&key, _)| key);
            oldest.and_then(|key| state.rows.remove(&key));
        }
        let (next, last) = state.rows.entry((uid, row)).or_default();
        *last = used;
        *next += 1;
        *next - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_independent_and_the_oldest_is_evicted() {
        let rows = Rows::default();
        let next = |uid, row| rows.next(Uid(uid), row);
        assert_eq!([next(1, 7), next(1, 7), next(2, 7), next(1, 8), next(1, 7)], [0, 1, 0, 0, 2]);
        for row in 0..ROWS as u64 - 2 {
            next(100 + row as u32, row);
        }
        assert_eq!(next(1, 7), 3, "it was used after the one of user 2");
        assert_eq!(next(2, 7), 0, "that was evicted");
        assert_eq!(rows.0.lock().rows.len(), ROWS);
    }

    #[test]
    fn user_with_many_sequences_evicts_only_its_own() {
        let rows = Rows::default();
        assert_eq!(rows.next(Uid(1), 7), 0);
        for row in 0..2 * ROWS as u64 {
            rows.next(Uid(2), row);
        }
        assert_eq!(rows.next(Uid(1), 7), 1);
        assert_eq!(rows.0.lock().rows.len(), 1 + ROWS_OF_USER);
    }
}
