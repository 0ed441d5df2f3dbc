//! Direct writers in the drain: they share the write slots of targets, and their files are finalized by the drain.

use super::DrainEngine;
use crate::backing::Backing;
use forebay_model::FileId;
use forebay_policy::Tick;
use forebay_policy::drain::TargetId;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a writer that waits for a slot sleeps at most.
const NAP: Duration = Duration::from_millis(100);
/// A writer that gets no slot for this long buffers its bytes after all.
const PATIENCE: Duration = Duration::from_secs(1);

impl DrainEngine {
    /// Most writers at any target at once.
    pub(crate) fn streams(&self) -> usize {
        self.drain_queue().streams() as usize
    }

    /// Waits for a slot at a target. False if none becomes free for a long time, or if the server stops.
    pub(crate) fn enter(&self, target: TargetId) -> bool {
        let (stopping, begin) = (self.life.stopping(), Instant::now());
        let mut drain_queue = self.drain_queue();
        if drain_queue.enter(target, begin) {
            return true;
        }
        drain_queue.set_waiting(target, true);
        let entered = loop {
            self.slot_freed.wait_for(&mut drain_queue, NAP);
            if drain_queue.enter(target, Instant::now()) {
                break true;
            }
            if begin.elapsed() >= PATIENCE || *stopping.borrow() {
                break false;
            }
        };
        drain_queue.set_waiting(target, false);
        drop(drain_queue);
        if !entered {
            // The drain may have left a slot to this writer.
            self.doorbell.notify_one();
        }
        entered
    }

    /// Nanoseconds spent on building the index.
    pub(crate) fn indexed(&self) -> u64 {
        self.indexed.load(Ordering::Relaxed)
    }

    /// Sets how many bytes wait to be written directly to a target.
    pub(crate) fn wait_direct(&self, target: TargetId, bytes: u64) {
        let now = Tick(self.store.data().now().0);
        self.notify(|drain_queue| drain_queue.wait_direct(now, target, bytes));
    }

    /// Releases a slot after writing `bytes`.
    pub(crate) fn leave(&self, target: TargetId, bytes: u64) {
        let now = Tick(self.store.data().now().0);
        self.notify(|drain_queue| drain_queue.leave(now, target, bytes));
    }

    /// Queues files that lie in parts in the back end, when all their bytes are there and no client has them open: they
    /// are assembled.
    pub(super) fn resume_closed(&self, backing: &Backing) {
        for file in backing.all_held_open() {
            if !self.has_more_of(file) && self.drain_queue().may_resume(Instant::now(), file) {
                self.finish_later(file);
            }
        }
    }

    /// Queues a file that has no direct writer any more: it is finalized.
    pub(crate) fn finish_later(&self, file: FileId) {
        self.notify(|drain_queue| drain_queue.resume(file));
    }

    /// Whether a file has bytes that are not in the back end, or may soon have some.
    pub(super) fn has_more_of(&self, file: FileId) -> bool {
        self.opens.is_held(file) || !matches!(self.store.data().backlog(file), Ok(None))
    }
}

#[cfg(test)]
mod tests {
    use super::super::gauge::Gauge;
    use super::super::grants::{Grants, Terms};
    use super::super::queue::{DrainQueue, Task};
    use super::*;
    use forebay_model::{Bytes, JobId, ServerId, Span, Stamp, Uid};
    use forebay_policy::drain::{Layout, Order, TURN_TIMEOUT};
    use forebay_store::Dirty;

    fn drain_queue(alpha: u32, now: Instant) -> DrainQueue {
        let terms = Terms::usual(vec![ServerId(0)], vec![alpha; 2]);
        DrainQueue::new(Order::Offset, Bytes::mib(1), Grants::new(terms), vec![Gauge::new(now); 2])
    }

    #[test]
    fn direct_writers_and_the_drain_share_the_slots_of_a_target() {
        let now = Instant::now();
        let (one, other) = (TargetId(0), TargetId(1));
        let mut drain_queue = drain_queue(2, now);
        assert!(drain_queue.enter(one, now) && drain_queue.enter(one, now), "there is no other writer");
        assert!(!drain_queue.enter(one, now) && drain_queue.enter(other, now));
        drain_queue.leave(Tick(0), one, 10);
        assert_eq!((drain_queue.gauges[0].slots.writers(), drain_queue.gauges[0].written), (1, 10));
        // The drain gets something to write there.
        let dirty = [Dirty { span: Span::new(0, 10), stamp: Stamp(1), job: JobId(1), uid: Uid(0) }];
        let about = (FileId(7), "/f".to_owned(), Uid(0));
        drain_queue.enqueue(Tick(0), about, &Layout::whole(one), &dirty, 1);
        assert!(drain_queue.enter(one, now), "the last slot is free");
        drain_queue.leave(Tick(0), one, 0);
        assert!(!drain_queue.enter(one, now), "now it is the drain's turn");
        assert!(
            drain_queue.enter(one, now + Duration::from_nanos(TURN_TIMEOUT.0)),
            "the drain does not use its turn"
        );
        drain_queue.leave(Tick(0), one, 0);
        drain_queue.leave(Tick(0), one, 0);
        assert!(drain_queue.enter(one, now), "turns concern the last slot only");
    }

    #[test]
    fn drain_and_direct_writers_take_turns_for_the_last_slot() {
        for order in [Order::Trio, Order::Offset] {
            let (now, target) = (Instant::now(), TargetId(0));
            let mut drain_queue = drain_queue(1, now);
            assert!(drain_queue.set_order(order));
            drain_queue.max_writers = 1;
            let dirty: Vec<Dirty> = (0..9)
                .map(|at| Dirty {
                    span: Span::new(at << 20, (at + 1) << 20),
                    stamp: Stamp(at + 1),
                    job: JobId(1),
                    uid: Uid(0),
                })
                .collect();
            drain_queue.enqueue(
                Tick(0),
                (FileId(7), "/f".to_owned(), Uid(0)),
                &Layout::whole(target),
                &dirty,
                1,
            );
            let begins = |drain_queue: &mut DrainQueue, now| match drain_queue.task((Tick(0), now), false) {
                Some(Task::Write(assignment)) => Some(assignment.queue),
                _ => None,
            };
            let queue = begins(&mut drain_queue, now).expect("there is no other writer");
            for round in 0..3 {
                assert!(!drain_queue.enter(target, now), "{order:?} {round}: the slot is taken");
                drain_queue.set_waiting(target, true);
                drain_queue.wrote(Tick(0), queue, target, 1 << 20);
                assert!(
                    begins(&mut drain_queue, now).is_none(),
                    "{order:?} {round}: it is the direct writer's turn"
                );
                assert!(drain_queue.enter(target, now));
                drain_queue.set_waiting(target, false);
                drain_queue.leave(Tick(0), target, 10);
                assert!(!drain_queue.enter(target, now), "{order:?} {round}: now it is the drain's");
                assert!(begins(&mut drain_queue, now).is_some());
            }
            drain_queue.set_waiting(target, true);
            drain_queue.wrote(Tick(0), queue, target, 1 << 20);
            assert!(begins(&mut drain_queue, now).is_none());
            assert!(
                begins(&mut drain_queue, now + Duration::from_nanos(TURN_TIMEOUT.0)).is_some(),
                "an unused turn expires"
            );
        }
    }
}
