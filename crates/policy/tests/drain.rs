//! Compares the drain queue with a model that tracks every byte.

use forebay_model::{Bytes, FileId, Span, Stamp};
use forebay_policy::drain::{Batch, BatchId, Drain, Layout, Order, Pick, TargetId};
use forebay_testkit::{Rng, seed};
use std::collections::BTreeMap;

const FILES: u64 = 3;
const LENGTH: u64 = 60;
const STRIPE: u64 = 16;
const LARGEST: u64 = 10;
const TARGETS: u32 = 3;

fn layout() -> Layout {
    Layout::new((0..TARGETS).map(TargetId).collect(), STRIPE)
}

/// Every waiting byte and every byte in flight, with its stamp.
#[derive(Default)]
struct Model {
    waits: BTreeMap<(u64, u64), u64>,
    in_flight: BTreeMap<BatchId, (FileId, Span, BTreeMap<u64, u64>)>,
}

impl Model {
    fn insert(&mut self, file: u64, span: Span, stamp: u64) {
        for at in span.start..span.end {
            let byte = self.waits.entry((file, at)).or_default();
            *byte = stamp.max(*byte);
        }
    }

    fn remove(&mut self, file: u64, span: Span) {
        self.waits.retain(|&(of, at), _| of != file || at < span.start || at >= span.end);
        for (of, _, bytes) in self.in_flight.values_mut().filter(|(of, ..)| of.0 == file) {
            assert_eq!(of.0, file);
            bytes.retain(|&at, _| at < span.start || at >= span.end);
        }
    }

    /// A batch holds waiting bytes of one stripe and target, and none of them is in flight.
    fn begin(&mut self, id: BatchId, batch: &Batch, context: &str) {
        let (file, span) = (batch.file, batch.span());
        assert!(span.len() <= LARGEST && !span.is_empty(), "{context}: {batch:?}");
        assert_eq!(span.start / STRIPE, (span.end - 1) / STRIPE, "{context}: over a boundary: {batch:?}");
        assert_eq!(u64::from(batch.target.0), span.start / STRIPE % u64::from(TARGETS), "{context}");
        for (of, other, _) in self.in_flight.values() {
            assert!(
                *of != file || other.intersect(span).is_none(),
                "{context}: {span} is in flight: {other}"
            );
        }
        let mut bytes = BTreeMap::new();
        for piece in &batch.pieces {
            for at in piece.span.start..piece.span.end {
                assert_eq!(self.waits.remove(&(file.0, at)), Some(piece.stamp.0), "{context}: byte {at}");
                bytes.insert(at, piece.stamp.0);
            }
        }
        assert_eq!(bytes.len() as u64, span.len(), "{context}: a gap: {batch:?}");
        self.in_flight.insert(id, (file, span, bytes));
    }

    fn fail(&mut self, id: BatchId) {
        let (file, _, bytes) = self.in_flight.remove(&id).expect("it was in flight");
        for (at, stamp) in bytes {
            let byte = self.waits.entry((file.0, at)).or_default();
            *byte = stamp.max(*byte);
        }
    }

    fn check(&self, drain: &Drain, context: &str) {
        let mut by_target = BTreeMap::<u64, u64>::new();
        for &(_, at) in self.waits.keys() {
            *by_target.entry(at / STRIPE % u64::from(TARGETS)).or_default() += 1;
        }
        let found: BTreeMap<u64, u64> =
            drain.targets().map(|(target, bytes)| (u64::from(target.0), bytes.0)).collect();
        assert_eq!(found, by_target, "{context}");
    }
}

fn play(order: Order, seed: u64) {
    let mut random = Rng::new(seed);
    let (mut drain, mut model, layout) = (Drain::new(order, Bytes(LARGEST)), Model::default(), layout());
    let mut stamps: Vec<u64> = (1..=400).collect();
    for step in 0..400 {
        let context = format!("{order:?}, seed {seed}, step {step}");
        let file = random.below(FILES);
        let start = random.below(LENGTH);
        let span = Span::new(start, start + 1 + random.below(LENGTH - start));
        match random.below(10) {
            0..4 => {
                // Stamps arrive in any order.
                let stamp = stamps.swap_remove(random.below(stamps.len() as u64) as usize);
                drain.insert(FileId(file), &layout, span, Stamp(stamp));
                model.insert(file, span, stamp);
            }
            4 => {
                let span = if random.below(3) == 0 { Span::from(0) } else { span };
                drain.remove(FileId(file), span);
                model.remove(file, span);
            }
            5..8 => {
                let granted: Vec<TargetId> =
                    (0..TARGETS).filter(|_| random.below(2) == 0).map(TargetId).collect();
                let pick =
                    if order == Order::Trio { Pick::Granted(&granted) } else { Pick::Any(random.below(99)) };
                if let Some((id, batch)) = drain.next(pick) {
                    assert!(order != Order::Trio || granted.contains(&batch.target), "{context}");
                    model.begin(id, &batch, &context);
                }
            }
            choice => {
                let under_way: Vec<BatchId> = model.in_flight.keys().copied().collect();
                if under_way.is_empty() {
                    continue;
                }
                let id = under_way[random.below(under_way.len() as u64) as usize];
                if choice == 8 {
                    let (_, _, bytes) = model.in_flight.remove(&id).expect("it is in flight");
                    let left = drain.done(id).expect("it is in flight");
                    let left: u64 = left.pieces.iter().map(|piece| piece.span.len()).sum();
                    assert_eq!(left, bytes.len() as u64, "{context}: cut bytes do not count");
                } else {
                    drain.failed(id);
                    model.fail(id);
                }
            }
        }
        model.check(&drain, &context);
    }
    // In the end all bytes leave the queue.
    for id in model.in_flight.keys().copied().collect::<Vec<_>>() {
        drain.failed(id);
        model.fail(id);
    }
    let all: Vec<TargetId> = (0..TARGETS).map(TargetId).collect();
    let pick = |chance| if order == Order::Trio { Pick::Granted(&all) } else { Pick::Any(chance) };
    while let Some((id, batch)) = drain.next(pick(random.below(99))) {
        model.begin(id, &batch, "the end");
        model.in_flight.remove(&id);
        drain.done(id);
    }
    assert!(model.waits.is_empty(), "{order:?}, seed {seed}: {} bytes are left", model.waits.len());
}

#[test]
fn random_queues_hand_out_every_byte_once_and_the_newest() {
    let seed = seed();
    for order in [Order::Arrival, Order::Offset, Order::Target, Order::Trio] {
        (0..50).for_each(|round| play(order, seed.wrapping_mul(1000).wrapping_add(round)));
    }
}

/// The batches in the order they leave, as `target:file:start+len`.
fn leaving(order: Order, writes: &[(u64, u64, u64)]) -> String {
    let mut drain = Drain::new(order, Bytes(8));
    let layout = Layout::new(vec![TargetId(0), TargetId(1)], 4);
    for (stamp, &(file, start, len)) in writes.iter().enumerate() {
        drain.insert(FileId(file), &layout, Span::new(start, start + len), Stamp(stamp as u64 + 1));
    }
    let mut batches = Vec::new();
    let granted = [TargetId(1), TargetId(0)];
    let pick = if order == Order::Trio { Pick::Granted(&granted) } else { Pick::Any(0) };
    while let Some((id, batch)) = drain.next(pick) {
        let span = batch.span();
        batches.push(format!("{}:{}:{}+{}", batch.target, batch.file, span.start, span.len()));
        drain.done(id);
    }
    batches.join(" ")
}

#[test]
fn batches_leave_in_each_configured_order() {
    // Two files over two targets in stripes of 4, written backwards and interleaved.
    let writes = [(2, 8, 4), (1, 8, 4), (2, 2, 4), (1, 0, 2), (1, 2, 2)];
    assert_eq!(leaving(Order::Arrival, &writes), "0:2:8+4 0:1:8+4 0:2:2+2 1:2:4+2 0:1:0+2 0:1:2+2");
    assert_eq!(leaving(Order::Offset, &writes), "0:1:0+4 0:1:8+4 0:2:2+2 1:2:4+2 0:2:8+4");
    assert_eq!(leaving(Order::Target, &writes), "0:1:0+4 0:1:8+4 0:2:2+2 0:2:8+4 1:2:4+2");
    assert_eq!(leaving(Order::Trio, &writes), "1:2:4+2 0:1:0+4 0:1:8+4 0:2:2+2 0:2:8+4");
}

/// The index gets one file after the other; the order follows the stamps of the writes.
#[test]
fn arrival_order_follows_write_stamps_not_insertions() {
    let mut drain = Drain::new(Order::Arrival, Bytes(8));
    let layout = Layout::new(vec![TargetId(0)], 4);
    for (file, start, stamp) in [(1, 0, 1), (1, 4, 3), (2, 0, 2), (2, 4, 4)] {
        drain.insert(FileId(file), &layout, Span::new(start, start + 4), Stamp(stamp));
    }
    let mut batches = Vec::new();
    while let Some((id, batch)) = drain.next(Pick::Any(0)) {
        batches.push((batch.file.0, batch.span().start));
        drain.done(id);
    }
    assert_eq!(batches, [(1, 0), (2, 0), (1, 4), (2, 4)]);
}

/// Ten checkpoints at the same offsets, nine of them overwritten or deleted before the drain: only live bytes
/// leave.
#[test]
fn superseded_checkpoints_are_never_drained() {
    let layout = Layout::new(vec![TargetId(0), TargetId(1)], 1 << 20);
    let mut drain = Drain::new(Order::Trio, Bytes::mib(8));
    let size = 10 << 20;
    for stamp in 1..=10 {
        drain.insert(FileId(1), &layout, Span::new(0, size), Stamp(stamp));
        drain.insert(FileId(100 + stamp), &layout, Span::new(0, size), Stamp(stamp));
        if stamp > 1 {
            drain.remove(FileId(100 + stamp - 1), Span::from(0));
        }
    }
    let mut bytes = BTreeMap::<FileId, u64>::new();
    while let Some((id, batch)) = drain.next(Pick::Granted(&[TargetId(0), TargetId(1)])) {
        *bytes.entry(batch.file).or_default() += batch.span().len();
        drain.done(id);
    }
    assert_eq!(bytes, BTreeMap::from([(FileId(1), size), (FileId(110), size)]));
}

#[test]
fn bytes_in_flight_are_known_for_each_file() {
    let mut drain = Drain::new(Order::Offset, Bytes(10));
    let (one, other) = (FileId(1), FileId(2));
    drain.insert(one, &Layout::whole(TargetId(0)), Span::new(0, 25), Stamp(1));
    drain.insert(other, &Layout::whole(TargetId(0)), Span::new(0, 5), Stamp(2));
    assert_eq!(drain.under_way(one), Bytes(0));
    let (first, _) = drain.next(Pick::Any(0)).unwrap();
    drain.next(Pick::Any(0)).unwrap();
    assert_eq!((drain.under_way(one), drain.under_way(other)), (Bytes(20), Bytes(0)));
    drain.done(first);
    assert_eq!(drain.under_way(one), Bytes(10));
}
