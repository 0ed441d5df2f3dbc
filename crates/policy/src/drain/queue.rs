//! Bytes waiting to be written, bytes in flight, and the next write.

use super::few::Few;
use super::layout::{Layout, TargetId};
use super::pieces::Pieces;
use super::stack::{Changed, Layer, Piece, Ranges, StackLevel};
use forebay_model::{Bytes, FileId, Span, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Drain order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Order of arrival.
    Arrival,
    /// By file and offset, whatever the target.
    Offset,
    /// One target after the other in random order, and per target by file and offset.
    Target,
    /// The same, at granted targets.
    Trio,
}

/// Targets that the next write may choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick<'a> {
    /// All targets; the number is the random input of [`Order::Target`].
    Any(u64),
    /// Only these targets, the first that has bytes to write.
    Granted(&'a [TargetId]),
}

/// A write in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchId(u64);

/// Pieces without a gap within a stripe, written together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// The target.
    pub target: TargetId,
    /// The file.
    pub file: FileId,
    /// The pieces, in order. Pieces that are cut while the write is in flight leave gaps.
    pub pieces: Pieces,
}

impl Batch {
    /// From the first byte to the last.
    #[must_use]
    pub fn span(&self) -> Span {
        match (self.pieces.first(), self.pieces.last()) {
            (Some(first), Some(last)) => Span::new(first.span.start, last.span.end),
            _ => Span::new(0, 0),
        }
    }

    fn cut(&mut self, span: Span) {
        let rest = self.pieces.iter().flat_map(|&piece| {
            let sides = [
                (piece.span.start, piece.span.end.min(span.start)),
                (piece.span.start.max(span.end), piece.span.end),
            ];
            let sides = sides.into_iter().filter(|(start, end)| start < end);
            sides.map(move |(start, end)| Piece { span: Span::new(start, end), ..piece })
        });
        self.pieces = rest.collect();
    }
}

/// A write in flight: its original span, and the bytes that still count.
struct InFlight {
    span: Span,
    batch: Batch,
}

/// Sort key of a piece: by arrival or by file, then by offset.
type Place = (u64, u64, FileId, TargetId);

/// All bytes to drain.
pub struct Drain {
    order: Order,
    largest: u64,
    index: StackLevel<TargetId, StackLevel<FileId, Ranges>>,
    layouts: Few<FileId, Layout>,
    /// All pieces in order, for orders that differ from the index.
    sequence: BTreeSet<Place>,
    /// The target that is being drained.
    current: Option<TargetId>,
    in_flight: Few<BatchId, InFlight>,
    /// Start and end of each write in flight, by file; writes of a file do not overlap.
    spans: Few<(FileId, u64), (FileId, u64)>,
    batches: u64,
}

impl Drain {
    /// An empty queue; `largest` is the maximum size of a write.
    #[must_use]
    pub fn new(order: Order, largest: Bytes) -> Drain {
        assert!(largest.0 > 0, "a write has bytes");
        Drain {
            order,
            largest: largest.0,
            index: StackLevel::default(),
            layouts: Few::default(),
            sequence: BTreeSet::new(),
            current: None,
            in_flight: Few::default(),
            spans: Few::default(),
            batches: 0,
        }
    }

    /// Adds bytes to drain. A file keeps the layout of its first bytes as long as it has any bytes here.
    pub fn insert(&mut self, file: FileId, layout: &Layout, span: Span, stamp: Stamp) {
        let layout = self.layouts.or_insert_with(file, || layout.clone());
        for (target, span) in layout.cut(span) {
            let mut notify =
                |changed: Changed| update_sequence(&mut self.sequence, self.order, target, file, changed);
            self.index.insert((target, (file, ())), Piece { span, stamp }, &mut notify);
        }
    }

    /// Removes bytes that were truncated, punched, or deleted with their file. A write in flight continues,
    /// but these bytes are not retried if it fails.
    pub fn remove(&mut self, file: FileId, span: Span) {
        for write in self.in_flight.values_mut().filter(|write| write.batch.file == file) {
            write.batch.cut(span);
        }
        let targets: Vec<TargetId> = self.targets_of(file).collect();
        for target in targets {
            let (sequence, order) = (&mut self.sequence, self.order);
            let mut notify = |changed: Changed| update_sequence(sequence, order, target, file, changed);
            self.index.remove((target, (file, ())), span, &mut notify);
        }
        self.forget_if_done(file);
    }

    /// Removes all bytes of a target. The caller inserts them again when the target is back.
    pub fn remove_target(&mut self, target: TargetId) -> Vec<(FileId, Piece)> {
        let Some(files) = self.index.take(target) else { return Vec::new() };
        let all: Vec<(FileId, Piece)> =
            files.iter().flat_map(|(file, ranges)| ranges.iter().map(move |&piece| (file, piece))).collect();
        for &(file, piece) in &all {
            update_sequence(&mut self.sequence, self.order, target, file, Changed { piece, came: false });
        }
        all
    }

    /// Whether bytes of a file wait or are in flight.
    #[must_use]
    pub fn knows(&self, file: FileId) -> bool {
        self.layouts.contains(file)
    }

    /// Whether nothing waits and nothing is in flight.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.in_flight.is_empty() && self.index.bytes() == 0
    }

    /// Bytes of a file in flight.
    #[must_use]
    pub fn under_way(&self, file: FileId) -> Bytes {
        let flights = self.in_flight.values().filter(|write| write.batch.file == file);
        Bytes(flights.map(|write| write.batch.pieces.iter().map(|piece| piece.span.len()).sum::<u64>()).sum())
    }

    /// Bytes that wait for a target.
    #[must_use]
    pub fn waiting(&self, target: TargetId) -> Bytes {
        Bytes(self.index.get(target).map_or(0, Layer::bytes))
    }

    /// Waiting bytes by target.
    pub fn targets(&self) -> impl Iterator<Item = (TargetId, Bytes)> + '_ {
        self.index.iter().map(|(target, files)| (target, Bytes(files.bytes())))
    }

    /// Prefetches the memory that an insertion or removal of a file's bytes reads, and changes nothing. A
    /// caller with thousands of queues runs each step over all queues it needs next, so that the cache misses
    /// overlap. Steps are 0 to 3; each reads memory that the one before has found. The result has no meaning.
    #[must_use]
    pub fn prefetch(&self, target: TargetId, file: FileId, step: usize) -> usize {
        let files = || self.index.get(target);
        let seen = match step {
            0 => return self.batches as usize + self.index.bytes() as usize + self.in_flight.prefetch(),
            1 => {
                let in_flight = self.in_flight.values().next().map_or(0, |write| write.span.start as usize);
                let spans = self.spans.values().next().map_or(0, |&(_, end)| end as usize);
                return in_flight
                    + spans
                    + usize::from(self.layouts.contains(file))
                    + usize::from(files().is_some());
            }
            2 => files().and_then(|files| files.get(file)).map(Layer::bytes),
            _ => files().and_then(|files| files.get(file)).map(Ranges::prefetch),
        };
        seen.unwrap_or(0) as usize
    }

    /// Takes the next write; it is in flight from now on.
    pub fn next(&mut self, pick: Pick<'_>) -> Option<(BatchId, Batch)> {
        let batch = match (self.order, pick) {
            (Order::Arrival | Order::Offset, _) => self.first_in_sequence()?,
            (_, Pick::Granted(targets)) => targets.iter().find_map(|&target| self.first_at(target))?,
            (_, Pick::Any(chance)) => self.first_by_chance(chance)?,
        };
        let (target, file, span) = (batch.target, batch.file, batch.span());
        let (sequence, order) = (&mut self.sequence, self.order);
        let mut notify = |changed: Changed| update_sequence(sequence, order, target, file, changed);
        self.index.remove((target, (file, ())), span, &mut notify);
        self.batches += 1;
        let id = BatchId(self.batches);
        self.in_flight.insert(id, InFlight { span, batch: batch.clone() });
        self.spans.insert((file, span.start), (file, span.end));
        Some((id, batch))
    }

    /// A write succeeded. Returns the part that still counts; `None` for an unknown write.
    pub fn done(&mut self, id: BatchId) -> Option<Batch> {
        let batch = self.take_in_flight(id)?;
        self.forget_if_done(batch.file);
        Some(batch)
    }

    /// A write failed: the part that still counts waits again.
    pub fn failed(&mut self, id: BatchId) {
        if let Some(batch) = self.take_in_flight(id) {
            batch.pieces.iter().for_each(|&piece| self.put(batch.target, batch.file, piece));
            self.forget_if_done(batch.file);
        }
    }

    /// Removes a write from those in flight.
    fn take_in_flight(&mut self, id: BatchId) -> Option<Batch> {
        let InFlight { span, batch } = self.in_flight.remove(id)?;
        self.spans.remove((batch.file, span.start));
        Some(batch)
    }

    /// Removes a file without waiting bytes and writes in flight.
    fn forget_if_done(&mut self, file: FileId) {
        let in_flight = self.spans.before((file, u64::MAX)).is_some_and(|(of, _)| *of == file);
        if self.targets_of(file).next().is_none() && !in_flight {
            self.layouts.remove(file);
        }
    }

    fn put(&mut self, target: TargetId, file: FileId, piece: Piece) {
        let (sequence, order) = (&mut self.sequence, self.order);
        let mut notify = |changed: Changed| update_sequence(sequence, order, target, file, changed);
        self.index.insert((target, (file, ())), piece, &mut notify);
    }

    /// The targets that have waiting bytes of a file; only targets of its layout can.
    fn targets_of(&self, file: FileId) -> impl Iterator<Item = TargetId> + '_ {
        let targets = self.layouts.get(file).map_or(&[][..], Layout::targets);
        let waits = move |target| self.index.get(target).is_some_and(|files| files.get(file).is_some());
        targets.iter().copied().filter(move |&target| waits(target))
    }

    fn first_in_sequence(&self) -> Option<Batch> {
        self.sequence.iter().find_map(|&(_, start, file, target)| self.batch_from(target, file, start))
    }

    fn first_by_chance(&mut self, chance: u64) -> Option<Batch> {
        if let Some(batch) = self.current.and_then(|target| self.first_at(target)) {
            return Some(batch);
        }
        let targets: Vec<TargetId> = self.index.iter().map(|(target, _)| target).collect();
        let start = (chance % targets.len().max(1) as u64) as usize;
        let round = targets[start..].iter().chain(&targets[..start]);
        let (target, batch) = round.into_iter().find_map(|&target| Some((target, self.first_at(target)?)))?;
        self.current = Some(target);
        Some(batch)
    }

    fn first_at(&self, target: TargetId) -> Option<Batch> {
        let files = self.index.get(target)?;
        files.iter().find_map(|(file, ranges)| {
            ranges.iter().find_map(|piece| self.batch_from(target, file, piece.span.start))
        })
    }

    /// The pieces from an offset on that can be written together; none if the first is in flight.
    fn batch_from(&self, target: TargetId, file: FileId, start: u64) -> Option<Batch> {
        let ranges = self.index.get(target)?.get(file)?;
        let stripe = self.layouts.get(file)?.cut(Span::from(start)).next()?.1;
        let most = stripe.end.min(start.saturating_add(self.largest));
        let (mut pieces, mut at) = (Pieces::default(), start);
        for piece in ranges.from(start).take_while(|piece| piece.span.start < most) {
            let span = Span::new(piece.span.start.max(start), piece.span.end.min(most));
            let joins = pieces.first().is_none_or(|first: &Piece| self.joins(first, piece));
            if span.start != at || !joins || self.is_in_flight(file, span) {
                break;
            }
            at = span.end;
            pieces.push(Piece { span, ..*piece });
        }
        (!pieces.is_empty()).then_some(Batch { target, file, pieces })
    }

    /// Whether two neighbours are written together: in order of arrival only with the same stamp.
    fn joins(&self, first: &Piece, next: &Piece) -> bool {
        self.order != Order::Arrival || first.stamp == next.stamp
    }

    /// Whether any of these bytes are in flight: an older version must reach the back end first. Bytes that
    /// were cut while in flight count too.
    fn is_in_flight(&self, file: FileId, span: Span) -> bool {
        self.spans.before((file, span.end)).is_some_and(|&(of, end)| of == file && end > span.start)
    }
}

fn update_sequence(
    sequence: &mut BTreeSet<Place>,
    order: Order,
    target: TargetId,
    file: FileId,
    changed: Changed,
) {
    let Piece { span, stamp, .. } = changed.piece;
    let place = match order {
        Order::Arrival => (stamp.0, span.start, file, target),
        Order::Offset => (file.0, span.start, file, target),
        Order::Target | Order::Trio => return,
    };
    if changed.came {
        sequence.insert(place);
    } else {
        sequence.remove(&place);
    }
}
