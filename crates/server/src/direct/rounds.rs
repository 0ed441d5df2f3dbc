//! Pieces that wait for a target, in rounds: sorted as suits a disk, without starving pieces that sort last.

use forebay_model::FileId;
use std::collections::VecDeque;

/// Most pieces and bytes of one turn.
const BATCH: usize = 32;
const BATCH_BYTES: u64 = 16 << 20;

/// Something that waits to be written.
pub(super) trait Waits {
    /// File and offset.
    fn place(&self) -> (FileId, u64);

    fn bytes(&self) -> u64;
}

/// All pieces that wait.
pub(super) struct Rounds<T> {
    /// The rest of the current round, sorted.
    round: VecDeque<T>,
    /// What has arrived since the round began.
    later: Vec<T>,
}

impl<T> Default for Rounds<T> {
    fn default() -> Rounds<T> {
        Rounds { round: VecDeque::new(), later: Vec::new() }
    }
}

impl<T: Waits> Rounds<T> {
    pub(super) fn push(&mut self, one: T) {
        self.later.push(one);
    }

    pub(super) fn len(&self) -> usize {
        self.round.len() + self.later.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.round.iter().chain(&self.later).map(Waits::bytes).sum()
    }

    /// The next pieces, ordered by file and offset; empty if there are none.
    pub(super) fn take(&mut self) -> Vec<T> {
        if self.round.is_empty() {
            self.later.sort_by_key(Waits::place);
            self.round = std::mem::take(&mut self.later).into();
        }
        let mut bytes = 0;
        let fits = |one: &&T| {
            bytes += one.bytes();
            bytes <= BATCH_BYTES
        };
        let count = self.round.iter().take(BATCH).take_while(fits).count().max(1).min(self.round.len());
        self.round.drain(..count).collect()
    }

    /// All pieces.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        self.round.drain(..).chain(self.later.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Waits for (u64, u64, u64) {
        fn place(&self) -> (FileId, u64) {
            (FileId(self.0), self.1)
        }

        fn bytes(&self) -> u64 {
            self.2
        }
    }

    #[test]
    fn turns_are_in_order_and_bounded() {
        let mut rounds = Rounds::default();
        for at in (0..40).rev() {
            rounds.push((7, at, 1000));
        }
        rounds.push((3, 5, 1));
        assert_eq!((rounds.len(), rounds.bytes()), (41, 40_001));
        let first = rounds.take();
        assert_eq!((first.len(), first[0], first[1]), (BATCH, (3, 5, 1), (7, 0, 1000)));
        assert_eq!(rounds.take().len(), 41 - BATCH);
        assert_eq!(rounds.take(), []);
        [(1, 0, BATCH_BYTES * 2), (1, 1, 1)].into_iter().for_each(|one| rounds.push(one));
        assert_eq!(rounds.take(), [(1, 0, BATCH_BYTES * 2)], "a larger piece is written alone");
        assert_eq!(rounds.take_all(), [(1, 1, 1)]);
    }

    #[test]
    fn pieces_that_sort_first_do_not_starve_others() {
        let mut rounds = Rounds::default();
        rounds.push((9, 0, 1));
        // More writers than fit in one turn, of a file that sorts before it; each returns at once.
        (0..2 * BATCH as u64).for_each(|at| rounds.push((1, at, 1)));
        let mut turns = 0;
        loop {
            turns += 1;
            let taken = rounds.take();
            if taken.contains(&(9, 0, 1)) {
                break;
            }
            assert!(turns < 10, "it waits for ever");
            taken.into_iter().for_each(|(file, at, bytes)| rounds.push((file, at + 1000, bytes)));
        }
        assert_eq!(turns, 3, "it is the last of its round");
    }
}
