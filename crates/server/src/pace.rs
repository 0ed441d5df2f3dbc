//! The pace of a transfer: a turn is held only while bytes move.
//!
//! A transfer that stalls for longer than the configured time gives back its turn and the turn requested ahead, and
//! continues without them. However many clients stop in mid-payload, others wait for them at most that long, once. Such
//! a client holds only its reservation, until that is voided.

use crate::turns::{Entry, Turn};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// A turn that is given back when its transfer stalls or has moved its slice.
pub(crate) struct Pace {
    turn: Option<Turn>,
    /// The turn for the next slice, already requested.
    ahead: Option<Entry>,
    stall: Duration,
    deadline: Instant,
    /// Bytes of the slice that have not moved yet.
    left: u32,
}

impl Pace {
    /// Holds `turn` while `slice` bytes move, and gives up at `deadline`.
    pub(crate) fn new(
        turn: Turn,
        ahead: Option<Entry>,
        slice: u32,
        stall: Duration,
        deadline: Instant,
    ) -> Pace {
        Pace { turn: Some(turn), ahead, stall, deadline, left: slice }
    }

    /// Bytes that may still move in this slice.
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// The turn for the next slice, if it was requested and the transfer has not stalled since.
    pub(crate) fn next(&mut self) -> Option<Entry> {
        self.ahead.take()
    }

    fn forgo(&mut self) {
        if let Some(entry) = self.next() {
            entry.forgo();
        }
    }

    /// `bytes` bytes have moved. The turn ends with its slice.
    pub(crate) fn moved(&mut self, bytes: u32) {
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            self.turn = None;
        }
    }

    /// The transfer must pause: gives the turn back, and the next slice needs another one.
    pub(crate) fn rest(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.spare(u64::from(self.left));
        }
        (self.turn, self.left) = (None, 0);
        self.forgo();
    }

    pub(crate) async fn step<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        let mut step = pin!(step);
        if self.turn.is_some() {
            if let Ok(done) = timeout(self.stall, &mut step).await {
                return Some(done);
            }
            self.turn = None;
            self.forgo();
        }
        timeout_at(self.deadline, step).await.ok()
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        // Bytes that did not move are not charged.
        if let Some(turn) = &mut self.turn {
            turn.spare(u64::from(self.left));
        }
        self.forgo();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::Turns;
    use crate::turns::tests::rules;
    use forebay_model::JobId;
    use forebay_policy::OPERATION;

    const STALL: Duration = Duration::from_millis(20);

    #[tokio::test(start_paused = true)]
    async fn stalled_transfer_gives_its_turns_back() {
        let turns = Turns::new(rules("size-fair", 1, 8));
        let mut turn = turns.take(JobId(1), OPERATION).await.unwrap();
        let other = turns.enter((JobId(2), forebay_model::Uid(5)), OPERATION).unwrap();
        let ahead = turns.ahead(&mut turn, OPERATION);
        assert!(ahead.is_some() && turns.waiting() == 2);
        let mut pace = Pace::new(turn, ahead, 1 << 20, STALL, Instant::now() + Duration::from_secs(30));
        assert_eq!(pace.step(async { 1 }).await, Some(1));
        assert_eq!(turns.running(), 1);
        assert_eq!(pace.step(tokio::time::sleep(Duration::from_secs(1))).await, Some(()));
        drop(other.turn().await.unwrap());
        assert_eq!((turns.running(), turns.waiting()), (0, 0), "the turn requested ahead was given back too");
        assert!(pace.next().is_none());
        assert_eq!(pace.step(std::future::pending::<()>()).await, None, "the deadline ends it");
    }
}
