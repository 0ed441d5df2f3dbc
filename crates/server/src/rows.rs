//! Numbers that follow each other, for those who want to share something without knowing each other.
//!
//! Processes of a job that place their files each take the next number of the job's row, wherever they run, and so each its
//! own target.
//!
//! **Deliberately absent**: durability. After a start all rows begin anew; whoever uses them must get on with that.

use forebay_model::Uid;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Most rows at once: then the one that was used least recently is forgotten.
const ROWS: usize = 4096;

/// Rows of numbers.
#[derive(Default)]
pub(crate) struct Rows(Mutex<State>);

#[derive(Default)]
struct State {
    /// By whose they are and what they are called: the next number, and when it was last asked for.
    rows: BTreeMap<(Uid, u64), (u64, u64)>,
    asked: u64,
}

impl Rows {
    /// The next number of a row.
    pub(crate) fn next(&self, uid: Uid, row: u64) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked += 1;
        let asked = state.asked;
        if state.rows.len() >= ROWS && !state.rows.contains_key(&(uid, row)) {
            let oldest = state.rows.iter().min_by_key(|(_, (_, asked))| *asked).map(|(&key, _)| key);
            oldest.and_then(|key| state.rows.remove(&key));
        }
        let (next, last) = state.rows.entry((uid, row)).or_default();
        *last = asked;
        *next += 1;
        *next - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_apart_and_the_oldest_is_forgotten() {
        let rows = Rows::default();
        let next = |uid, row| rows.next(Uid(uid), row);
        assert_eq!([next(1, 7), next(1, 7), next(2, 7), next(1, 8), next(1, 7)], [0, 1, 0, 0, 2]);
        for row in 0..ROWS as u64 - 2 {
            next(3, row);
        }
        assert_eq!(next(1, 7), 3, "it was used after the one of user 2");
        assert_eq!(next(2, 7), 0, "that is forgotten");
        assert_eq!(rows.0.lock().unwrap().rows.len(), ROWS);
    }
}
