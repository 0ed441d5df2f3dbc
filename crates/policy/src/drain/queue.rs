//! What is to be written, what is being written, and what comes next.

use super::few::Few;
use super::layout::{Layout, TargetId};
use super::pieces::Pieces;
use super::stack::{Changed, Layer, Level, Piece, Ranges};
use forebay_model::{Bytes, FileId, Span, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// In which order things leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// As they came.
    Arrival,
    /// File by file, by offset, wherever they go.
    Offset,
    /// One target after the other, by chance, and there file by file.
    Target,
    /// The same, at targets that were granted.
    Trio,
}

/// What an order may choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick<'a> {
    /// All targets; where chance decides, this does.
    Any(u64),
    /// These targets only, the first that has anything to write.
    Granted(&'a [TargetId]),
}

/// A write that is under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchId(u64);

/// Pieces that follow each other without a gap within a stripe, to be written at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Where to.
    pub target: TargetId,
    /// Of which file.
    pub file: FileId,
    /// The pieces, in order. Once the write is under way, pieces that are cut leave gaps.
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

/// A write that is under way: all the bytes it began with, and what of it still counts.
struct Flight {
    span: Span,
    batch: Batch,
}

/// The order of a piece among all: by arrival or by file, then by offset.
type Place = (u64, u64, FileId, TargetId);

/// Everything that is to leave.
pub struct Drain {
    order: Order,
    largest: u64,
    index: Level<TargetId, Level<FileId, Ranges>>,
    layouts: Few<FileId, Layout>,
    /// All pieces in order, where the order is not that of the index.
    sequence: BTreeSet<Place>,
    /// The target that is being emptied.
    current: Option<TargetId>,
    flying: Few<BatchId, Flight>,
    /// Where each write that is under way begins, in which file, where it ends; no two of a file meet.
    spans: Few<(FileId, u64), (FileId, u64)>,
    batches: u64,
}

impl Drain {
    /// Nothing to do yet; writes have at most so many bytes.
    #[must_use]
    pub fn new(order: Order, largest: Bytes) -> Drain {
        assert!(largest.0 > 0, "a write has bytes");
        Drain {
            order,
            largest: largest.0,
            index: Level::default(),
            layouts: Few::default(),
            sequence: BTreeSet::new(),
            current: None,
            flying: Few::default(),
            spans: Few::default(),
            batches: 0,
        }
    }

    /// Bytes were written here that are to go behind. A file's layout is that of its first bytes as long as it has any.
    pub fn insert(&mut self, file: FileId, layout: &Layout, span: Span, stamp: Stamp) {
        let layout = self.layouts.or_insert_with(file, || layout.clone());
        for (target, span) in layout.cut(span) {
            let mut tell = |changed: Changed| note(&mut self.sequence, self.order, target, file, changed);
            self.index.insert((target, (file, ())), Piece { span, stamp }, &mut tell);
        }
    }

    /// These bytes are not to go any more: cut, punched, or gone with their file. What is under way is not stopped, but
    /// it will not come back.
    pub fn remove(&mut self, file: FileId, span: Span) {
        for flight in self.flying.values_mut().filter(|flight| flight.batch.file == file) {
            flight.batch.cut(span);
        }
        let targets: Vec<TargetId> = self.targets_of(file).collect();
        for target in targets {
            let (sequence, order) = (&mut self.sequence, self.order);
            let mut tell = |changed: Changed| note(sequence, order, target, file, changed);
            self.index.remove((target, (file, ())), span, &mut tell);
        }
        self.forget_if_done(file);
    }

    /// Takes everything for a target out, to be told of again when the target is back.
    pub fn remove_target(&mut self, target: TargetId) -> Vec<(FileId, Piece)> {
        let Some(files) = self.index.take(target) else { return Vec::new() };
        let all: Vec<(FileId, Piece)> =
            files.iter().flat_map(|(file, ranges)| ranges.iter().map(move |&piece| (file, piece))).collect();
        for &(file, piece) in &all {
            note(&mut self.sequence, self.order, target, file, Changed { piece, came: false });
        }
        all
    }

    /// Whether anything of a file waits or is under way.
    #[must_use]
    pub fn knows(&self, file: FileId) -> bool {
        self.layouts.contains(file)
    }

    /// Whether nothing waits and nothing is under way.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.flying.is_empty() && self.index.bytes() == 0
    }

    /// Bytes of a file that were given out and are not done.
    #[must_use]
    pub fn under_way(&self, file: FileId) -> Bytes {
        let flights = self.flying.values().filter(|flight| flight.batch.file == file);
        Bytes(
            flights.map(|flight| flight.batch.pieces.iter().map(|piece| piece.span.len()).sum::<u64>()).sum(),
        )
    }

    /// Bytes that wait for a target.
    #[must_use]
    pub fn waiting(&self, target: TargetId) -> Bytes {
        Bytes(self.index.get(target).map_or(0, Layer::bytes))
    }

    /// Bytes that wait, target by target.
    pub fn targets(&self) -> impl Iterator<Item = (TargetId, Bytes)> + '_ {
        self.index.iter().map(|(target, files)| (target, Bytes(files.bytes())))
    }

    /// Reads what is read when bytes of a file come or go, and changes nothing: who has thousands of these looks at those
    /// it will need next, one step with all of them and then another, and waits for memory once for all. Each step, from 0
    /// to 3, reads what the one before has found. Says nothing of meaning.
    #[must_use]
    pub fn glance(&self, target: TargetId, file: FileId, step: usize) -> usize {
        let files = || self.index.get(target);
        let seen = match step {
            0 => return self.batches as usize + self.index.bytes() as usize + self.flying.glance(),
            1 => {
                let flies = self.flying.values().next().map_or(0, |flight| flight.span.start as usize);
                let spans = self.spans.values().next().map_or(0, |&(_, end)| end as usize);
                return flies
                    + spans
                    + usize::from(self.layouts.contains(file))
                    + usize::from(files().is_some());
            }
            2 => files().and_then(|files| files.get(file)).map(Layer::bytes),
            _ => files().and_then(|files| files.get(file)).map(Ranges::glance),
        };
        seen.unwrap_or(0) as usize
    }

    /// What is to be written next; it is under way from now on.
    pub fn next(&mut self, pick: Pick<'_>) -> Option<(BatchId, Batch)> {
        let batch = match (self.order, pick) {
            (Order::Arrival | Order::Offset, _) => self.first_in_sequence()?,
            (_, Pick::Granted(targets)) => targets.iter().find_map(|&target| self.first_at(target))?,
            (_, Pick::Any(chance)) => self.first_by_chance(chance)?,
        };
        let (target, file, span) = (batch.target, batch.file, batch.span());
        let (sequence, order) = (&mut self.sequence, self.order);
        let mut tell = |changed: Changed| note(sequence, order, target, file, changed);
        self.index.remove((target, (file, ())), span, &mut tell);
        self.batches += 1;
        let id = BatchId(self.batches);
        self.flying.insert(id, Flight { span, batch: batch.clone() });
        self.spans.insert((file, span.start), (file, span.end));
        Some((id, batch))
    }

    /// A write has ended well: what of it still counts. `None` if nobody knows of it.
    pub fn done(&mut self, id: BatchId) -> Option<Batch> {
        let batch = self.landed(id)?;
        self.forget_if_done(batch.file);
        Some(batch)
    }

    /// A write has failed: what of it still counts is to be written again.
    pub fn failed(&mut self, id: BatchId) {
        if let Some(batch) = self.landed(id) {
            batch.pieces.iter().for_each(|&piece| self.put(batch.target, batch.file, piece));
            self.forget_if_done(batch.file);
        }
    }

    /// A write is not under way any more.
    fn landed(&mut self, id: BatchId) -> Option<Batch> {
        let Flight { span, batch } = self.flying.remove(id)?;
        self.spans.remove((batch.file, span.start));
        Some(batch)
    }

    /// Lets go of a file of which nothing waits and nothing is under way.
    fn forget_if_done(&mut self, file: FileId) {
        let flies = self.spans.before((file, u64::MAX)).is_some_and(|(of, _)| *of == file);
        if self.targets_of(file).next().is_none() && !flies {
            self.layouts.remove(file);
        }
    }

    fn put(&mut self, target: TargetId, file: FileId, piece: Piece) {
        let (sequence, order) = (&mut self.sequence, self.order);
        let mut tell = |changed: Changed| note(sequence, order, target, file, changed);
        self.index.insert((target, (file, ())), piece, &mut tell);
    }

    /// The targets that wait for bytes of a file; only those of its layout can.
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

    /// The pieces from an offset on that can go together; none if the first is still being written.
    fn batch_from(&self, target: TargetId, file: FileId, start: u64) -> Option<Batch> {
        let ranges = self.index.get(target)?.get(file)?;
        let stripe = self.layouts.get(file)?.cut(Span::from(start)).next()?.1;
        let most = stripe.end.min(start.saturating_add(self.largest));
        let (mut pieces, mut at) = (Pieces::default(), start);
        for piece in ranges.from(start).take_while(|piece| piece.span.start < most) {
            let span = Span::new(piece.span.start.max(start), piece.span.end.min(most));
            let joins = pieces.first().is_none_or(|first: &Piece| self.joins(first, piece));
            if span.start != at || !joins || self.is_flying(file, span) {
                break;
            }
            at = span.end;
            pieces.push(Piece { span, ..*piece });
        }
        (!pieces.is_empty()).then_some(Batch { target, file, pieces })
    }

    /// Whether two neighbours go together: not where things leave just as they came.
    fn joins(&self, first: &Piece, next: &Piece) -> bool {
        self.order != Order::Arrival || first.stamp == next.stamp
    }

    /// Whether any of these bytes are being written: an older version of them must be behind first. Bytes that were cut
    /// while they were written count too.
    fn is_flying(&self, file: FileId, span: Span) -> bool {
        self.spans.before((file, span.end)).is_some_and(|&(of, end)| of == file && end > span.start)
    }
}

fn note(sequence: &mut BTreeSet<Place>, order: Order, target: TargetId, file: FileId, changed: Changed) {
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
