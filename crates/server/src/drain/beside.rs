//! Beside the drain: writers past the buffer have places at the same targets, and what they made gets its looks.

use super::Engine;
use crate::service::Service;
use crate::union::Union;
use forebay_model::FileId;
use forebay_policy::Tick;
use forebay_policy::drain::TargetId;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long whoever waits for a place sleeps at most.
const NAP: Duration = Duration::from_millis(100);
/// After so long without a place bytes are buffered after all.
const PATIENCE: Duration = Duration::from_secs(1);

impl Engine {
    /// Most writers at any target at once.
    pub(crate) fn streams(&self) -> usize {
        self.board().streams() as usize
    }

    /// Waits for a place at a target. False if there is none for a long time, because others write there and do not get
    /// on; at the end of the server nobody waits.
    pub(crate) fn enter(&self, service: &Service, target: TargetId) -> bool {
        let (stopping, begin) = (service.stopping(), Instant::now());
        let mut board = self.board();
        if board.enter(target, begin) {
            return true;
        }
        board.call(target, true);
        let entered = loop {
            let waited = self.door.wait_timeout(board, NAP);
            board = waited.unwrap_or_else(PoisonError::into_inner).0;
            if board.enter(target, Instant::now()) {
                break true;
            }
            if begin.elapsed() >= PATIENCE || *stopping.borrow() {
                break false;
            }
        };
        board.call(target, false);
        drop(board);
        if !entered {
            // The drain may have left a place to it.
            self.bell.notify_one();
        }
        entered
    }

    /// Nanoseconds that went into putting in order what leaves.
    pub(crate) fn indexed(&self) -> u64 {
        self.indexed.load(Ordering::Relaxed)
    }

    /// So much waits for a target to be written past the buffer.
    pub(crate) fn wait_past(&self, service: &Service, target: TargetId, bytes: u64) {
        let now = Tick(service.store.data().now().0);
        self.tell(|board| board.wait_past(now, target, bytes));
    }

    /// Gives a place back at which so much was written.
    pub(crate) fn leave(&self, service: &Service, target: TargetId, bytes: u64) {
        let now = Tick(service.store.data().now().0);
        self.tell(|board| board.leave(now, target, bytes));
    }

    /// Directories whose time of change behind is our doing.
    pub(crate) fn touched(&self, dirs: &[FileId]) {
        self.board().touch_dirs(dirs);
    }

    /// Files that lie in parts behind are put together when all of them is there and nobody has them open.
    pub(super) fn take_up_kept(&self, service: &Service, union: &Union) {
        for file in union.all_kept() {
            if !service.has_more_of(file) && self.board().may_take_up(Instant::now(), file) {
                self.finish_later(file);
            }
        }
    }

    /// A file behind that nobody writes any more is given its looks.
    pub(crate) fn finish_later(&self, file: FileId) {
        self.tell(|board| board.take_up(file));
    }
}

impl Service {
    /// Whether there is more of a file than is behind, or may be soon.
    pub(super) fn has_more_of(&self, file: FileId) -> bool {
        self.opens.is_held(file) || !matches!(self.store.data().backlog(file), Ok(None))
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::{Board, Task};
    use super::super::gauge::{COURTESY, Gauge};
    use super::super::places::{Places, Terms};
    use super::*;
    use forebay_model::{Bytes, JobId, ServerId, Span, Stamp, Uid};
    use forebay_policy::drain::{Layout, Order};
    use forebay_store::Dirty;

    fn board(alpha: u32, now: Instant) -> Board {
        let terms = Terms::usual(vec![ServerId(0)], vec![alpha; 2]);
        Board::new(Order::Offset, Bytes::mib(1), Places::new(terms), vec![Gauge::new(now); 2])
    }

    #[test]
    fn writers_past_the_buffer_and_the_drain_share_the_places_of_a_target() {
        let now = Instant::now();
        let (one, other) = (TargetId(0), TargetId(1));
        let mut board = board(2, now);
        assert!(board.enter(one, now) && board.enter(one, now), "nobody else is there");
        assert!(!board.enter(one, now) && board.enter(other, now));
        board.leave(Tick(0), one, 10);
        assert_eq!((board.gauges[0].writers, board.gauges[0].written), (1, 10));
        // From now on the drain has something to write there.
        let dirty = [Dirty { span: Span::new(0, 10), stamp: Stamp(1), job: JobId(1), uid: Uid(0) }];
        let about = (FileId(7), "/f".to_owned(), Uid(0));
        board.enqueue(Tick(0), about, &Layout::whole(one), &dirty, 1);
        assert!(board.enter(one, now), "the last place is free");
        board.leave(Tick(0), one, 0);
        assert!(!board.enter(one, now), "now it is the drain's turn");
        assert!(board.enter(one, now + COURTESY), "which it does not take for ever");
        board.leave(Tick(0), one, 0);
        board.leave(Tick(0), one, 0);
        assert!(board.enter(one, now), "the first place is nobody's turn");
    }

    #[test]
    fn the_last_place_goes_to_the_drain_and_to_writers_past_the_buffer_in_turn() {
        for order in [Order::Trio, Order::Offset] {
            let (now, target) = (Instant::now(), TargetId(0));
            let mut board = board(1, now);
            assert!(board.set_order(order));
            board.unasked = 1;
            let dirty: Vec<Dirty> = (0..9)
                .map(|at| Dirty {
                    span: Span::new(at << 20, (at + 1) << 20),
                    stamp: Stamp(at + 1),
                    job: JobId(1),
                    uid: Uid(0),
                })
                .collect();
            board.enqueue(Tick(0), (FileId(7), "/f".to_owned(), Uid(0)), &Layout::whole(target), &dirty, 1);
            let begins = |board: &mut Board, now| match board.task((Tick(0), now), false) {
                Some(Task::Write(assignment)) => Some(assignment.queue),
                _ => None,
            };
            let queue = begins(&mut board, now).expect("nobody else is there");
            for round in 0..3 {
                assert!(!board.enter(target, now), "{order:?} {round}: the place is taken");
                board.call(target, true);
                board.wrote(Tick(0), queue, target, 1 << 20);
                assert!(begins(&mut board, now).is_none(), "{order:?} {round}: it is the other's turn");
                assert!(board.enter(target, now));
                board.call(target, false);
                board.leave(Tick(0), target, 10);
                assert!(!board.enter(target, now), "{order:?} {round}: now it is the drain's");
                assert!(begins(&mut board, now).is_some());
            }
            board.call(target, true);
            board.wrote(Tick(0), queue, target, 1 << 20);
            assert!(begins(&mut board, now).is_none());
            assert!(begins(&mut board, now + COURTESY).is_some(), "whoever does not come is not waited for");
        }
    }
}
