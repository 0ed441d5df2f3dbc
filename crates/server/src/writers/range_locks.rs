//! Ranges that are being written in the back end, by file, by the drain or by direct writers.
//!
//! A writer *reserves* a range until its bytes count, and the range is *in flight* only while its bytes are
//! transferred. So quiescing a file does not wait for queues, and ranges reserved before are not written afterwards.
//!
//! **Invariant**: no two reserved ranges overlap; while a file is quiesced nothing is in flight, and no earlier
//! reservation can start its I/O later; a file is written directly only through the object that was opened last.

use super::Opened;
use forebay_model::{Error, ErrorKind, FileId, Result, Span};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Most separate written ranges that are remembered of a file.
const MOST: usize = 4096;
/// Most separate stale ranges that are remembered of a file.
const MAX_STALE: usize = 64;

#[derive(Default)]
pub(crate) struct RangeLocks {
    table: Mutex<HashMap<FileId, FileRanges>>,
    /// Notified when an I/O has ended.
    io_ended: Condvar,
}

#[derive(Default)]
struct FileRanges {
    reserved: Vec<Span>,
    in_flight: usize,
    /// How many holders of `Quiesced` there are, and how many there ever were.
    quiesce: usize,
    quiesce_count: u64,
    written_ranges: Option<WrittenRanges>,
    opened: Option<Arc<Opened>>,
    /// A sync failed, and it is unknown which bytes are on stable storage.
    broken: bool,
    /// Bytes were truncated or punched: an unwritten range may be bytes in the back end that a reader is still reading.
    hidden: bool,
    /// Ranges where the back end may hold old bytes that do not count any more. A write over them has to be synced
    /// before it counts, or a crash would bring back the old bytes.
    stale: Vec<Span>,
}

/// Ranges that were written in the back end since a file was opened there.
struct WrittenRanges {
    /// Below this offset, anything may have been there before.
    base: u64,
    /// Sorted, without adjacent ranges.
    written: Vec<Span>,
}

/// A range that only one writer may write in the back end.
pub(crate) struct RangeReservation {
    range_locks: Arc<RangeLocks>,
    file: FileId,
    span: Span,
    quiesce_count: u64,
}

/// Bytes are being transferred, or are about to count.
pub(crate) struct InFlight<'a>(&'a RangeReservation);

/// Nothing is written to a file in the back end while this is held.
pub(crate) struct Quiesced {
    range_locks: Arc<RangeLocks>,
    file: FileId,
}

/// Adds a span to a sorted list without adjacent spans.
fn join(spans: &mut Vec<Span>, span: Span) {
    let from = spans.partition_point(|one| one.end < span.start);
    let to = spans.partition_point(|one| one.start <= span.end);
    let joined = &spans[from..to];
    let start = joined.first().map_or(span.start, |one| one.start.min(span.start));
    let end = joined.last().map_or(span.end, |one| one.end.max(span.end));
    spans.splice(from..to, [Span::new(start, end)]);
}

impl FileRanges {
    fn stale(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        join(&mut self.stale, span);
        if let (Some(first), Some(last)) = (self.stale.first(), self.stale.last())
            && self.stale.len() > MAX_STALE
        {
            self.stale = vec![Span::new(first.start, last.end)];
        }
    }

    fn is_empty(&self) -> bool {
        let used = self.quiesce > 0 || self.written_ranges.is_some() || self.opened.is_some() || self.broken;
        self.reserved.is_empty() && !used
    }
}

impl WrittenRanges {
    fn add(&mut self, span: Span) {
        join(&mut self.written, span);
        // Too many ranges are merged: everything in between may have been written.
        if let (Some(first), Some(last)) = (self.written.first(), self.written.last())
            && self.written.len() > MOST
        {
            self.written = vec![Span::new(first.start, last.end)];
        }
    }

    /// The part of a span that may not be zero.
    fn within(&self, span: Span) -> Vec<Span> {
        let old = span.intersect(Span::new(0, self.base));
        let new = self.written.iter().filter_map(|one| one.intersect(span)?.intersect(Span::from(self.base)));
        old.into_iter().chain(new).collect()
    }
}

impl RangeLocks {
    fn table(&self) -> MutexGuard<'_, HashMap<FileId, FileRanges>> {
        self.table.lock()
    }

    /// Reserves a range for writing in the back end. `None` if it overlaps another reservation, if the file is
    /// quiesced, if the file is no longer open through `with`, or if a sync of its direct writes failed.
    pub(crate) fn reserve(
        self: &Arc<RangeLocks>,
        file: FileId,
        span: Span,
        with: Option<&Arc<Opened>>,
    ) -> Option<RangeReservation> {
        let mut table = self.table();
        let ranges = table.entry(file).or_default();
        let overlaps = ranges.reserved.iter().any(|other| other.intersect(span).is_some());
        let same =
            |with: &Arc<Opened>| ranges.opened.as_ref().is_some_and(|opened| Arc::ptr_eq(opened, with));
        let usable = |with| !ranges.broken && same(with);
        if overlaps || ranges.quiesce > 0 || !with.is_none_or(usable) {
            return None;
        }
        ranges.reserved.push(span);
        Some(RangeReservation { range_locks: self.clone(), file, span, quiesce_count: ranges.quiesce_count })
    }

    /// Waits until nothing is being written to a file in the back end, and keeps it so.
    pub(crate) fn quiesce(self: &Arc<RangeLocks>, file: FileId) -> Quiesced {
        tokio::task::block_in_place(|| {
            let quiesce = self.start_quiesce(file);
            let busy = |table: &mut HashMap<FileId, FileRanges>| {
                table.get(&file).is_some_and(|ranges| ranges.in_flight > 0)
            };
            self.io_ended.wait_while(&mut self.table(), busy);
            quiesce
        })
    }

    /// The same with a timeout.
    pub(crate) fn quiesce_within(
        self: &Arc<RangeLocks>,
        file: FileId,
        patience: Duration,
    ) -> Result<Quiesced> {
        tokio::task::block_in_place(|| {
            let quiesce = self.start_quiesce(file);
            let busy = |table: &mut HashMap<FileId, FileRanges>| {
                table.get(&file).is_some_and(|ranges| ranges.in_flight > 0)
            };
            let waited = self.io_ended.wait_while_for(&mut self.table(), busy, patience);
            match waited.timed_out() {
                false => Ok(quiesce),
                true => {
                    let text = format!("timed out waiting for direct writes of file {file}");
                    Err(Error::new(ErrorKind::Busy, text))
                }
            }
        })
    }

    /// From now on no earlier reservation starts its I/O.
    fn start_quiesce(self: &Arc<RangeLocks>, file: FileId) -> Quiesced {
        let mut table = self.table();
        let ranges = table.entry(file).or_default();
        (ranges.quiesce, ranges.quiesce_count, ranges.hidden) =
            (ranges.quiesce + 1, ranges.quiesce_count + 1, true);
        Quiesced { range_locks: self.clone(), file }
    }

    /// Bytes of a file are about to be truncated or punched, and stay in the back end for now.
    pub(crate) fn hide(&self, file: FileId, span: Span) {
        if let Some(ranges) = self.table().get_mut(&file) {
            ranges.hidden = true;
            ranges.stale(span);
        }
    }

    /// A file was truncated in the back end and synced: nothing is stale beyond its size.
    pub(crate) fn clear_stale(&self, file: FileId, size: u64) {
        if let Some(ranges) = self.table().get_mut(&file) {
            let kept = ranges.stale.iter().filter_map(|span| span.intersect(Span::new(0, size)));
            ranges.stale = kept.collect();
        }
    }

    /// Whether a range overlaps stale bytes in the back end.
    pub(crate) fn is_stale(&self, file: FileId, span: Span) -> bool {
        self.table()
            .get(&file)
            .is_some_and(|ranges| ranges.stale.iter().any(|stale| stale.intersect(span).is_some()))
    }

    /// Whether `hide` or `quiesce` was called since the file was opened for direct writes.
    pub(crate) fn has_hidden(&self, file: FileId) -> bool {
        self.table().get(&file).is_some_and(|ranges| ranges.hidden)
    }

    /// Records writes to a file in the back end, which has this size now, until `forget`.
    pub(crate) fn begin(&self, file: FileId, size: u64) {
        let mut table = self.table();
        let ranges = table.entry(file).or_default();
        if ranges.written_ranges.is_none() {
            ranges.written_ranges = Some(WrittenRanges { base: size, written: Vec::new() });
            ranges.stale(Span::new(0, size));
        }
    }

    /// The parts of these spans that may be nonzero in the back end.
    pub(crate) fn nonzero_ranges(&self, file: FileId, spans: Vec<Span>) -> Vec<Span> {
        match self.table().get(&file).and_then(|ranges| ranges.written_ranges.as_ref()) {
            Some(written_ranges) => spans.into_iter().flat_map(|span| written_ranges.within(span)).collect(),
            None => spans,
        }
    }

    /// Whether a file is open for direct writes.
    pub(crate) fn is_open(&self, file: FileId) -> bool {
        self.table().get(&file).is_some_and(|ranges| ranges.opened.is_some())
    }

    /// The object through which a file is written directly.
    pub(crate) fn opened(&self, file: FileId) -> Option<Arc<Opened>> {
        self.table().get(&file)?.opened.clone()
    }

    /// Opens a file for direct writes through `opened`, or returns the one that was opened a moment ago. Old bytes in
    /// its holes are stale.
    pub(crate) fn open(&self, file: FileId, opened: Opened, holes: &[Span]) -> Arc<Opened> {
        let mut table = self.table();
        let ranges = table.entry(file).or_default();
        holes.iter().for_each(|&hole| ranges.stale(hole));
        ranges.opened.get_or_insert_with(|| Arc::new(opened)).clone()
    }

    /// All files that are open for direct writes.
    pub(crate) fn all_open(&self) -> Vec<(FileId, Arc<Opened>)> {
        let table = self.table();
        table.iter().filter_map(|(file, ranges)| Some((*file, ranges.opened.clone()?))).collect()
    }

    /// A file is finalized: drops all its state but a failed sync.
    pub(crate) fn forget(&self, file: FileId) {
        if let Some(ranges) = self.table().get_mut(&file) {
            (ranges.written_ranges, ranges.opened, ranges.hidden) = (None, None, false);
            ranges.stale.clear();
        }
        self.tidy(file);
    }

    /// A sync of direct writes failed: later syncs report the failure.
    pub(crate) fn mark_broken(&self, file: FileId) {
        self.table().entry(file).or_default().broken = true;
    }

    pub(crate) fn is_broken(&self, file: FileId) -> bool {
        self.table().get(&file).is_some_and(|ranges| ranges.broken)
    }

    /// All files with failed syncs.
    pub(crate) fn all_broken(&self) -> Vec<FileId> {
        self.table().iter().filter(|(_, ranges)| ranges.broken).map(|(file, _)| *file).collect()
    }

    /// No byte of the failed writes is left.
    pub(crate) fn clear_broken(&self, file: FileId) {
        if let Some(ranges) = self.table().get_mut(&file) {
            ranges.broken = false;
        }
        self.tidy(file);
    }

    fn tidy(&self, file: FileId) {
        let mut table = self.table();
        if table.get(&file).is_some_and(FileRanges::is_empty) {
            table.remove(&file);
        }
    }
}

impl RangeReservation {
    /// Starts to transfer bytes, or to make them count. `None` if the file was quiesced since the reservation.
    pub(crate) fn start_io(&self) -> Option<InFlight<'_>> {
        let mut table = self.range_locks.table();
        let ranges = table
            .get_mut(&self.file)
            .filter(|ranges| ranges.quiesce == 0 && ranges.quiesce_count == self.quiesce_count)?;
        ranges.in_flight += 1;
        if let Some(written_ranges) = &mut ranges.written_ranges {
            written_ranges.add(self.span);
        }
        Some(InFlight(self))
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(ranges) = self.0.range_locks.table().get_mut(&self.0.file) {
            ranges.in_flight -= 1;
        }
        self.0.range_locks.io_ended.notify_all();
    }
}

impl Drop for RangeReservation {
    fn drop(&mut self) {
        if let Some(ranges) = self.range_locks.table().get_mut(&self.file)
            && let Some(at) = ranges.reserved.iter().position(|span| *span == self.span)
        {
            ranges.reserved.swap_remove(at);
        }
        self.range_locks.tidy(self.file);
    }
}

impl Drop for Quiesced {
    fn drop(&mut self) {
        if let Some(ranges) = self.range_locks.table().get_mut(&self.file) {
            ranges.quiesce -= 1;
        }
        self.range_locks.tidy(self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(7);

    #[test]
    fn overlapping_ranges_are_not_reserved_together() {
        let range_locks = Arc::<RangeLocks>::default();
        let reserve = |from, to| range_locks.reserve(FILE, Span::new(from, to), None);
        let first = reserve(0, 10).expect("no other writer");
        let second = reserve(10, 20).expect("a neighbour");
        assert!(reserve(5, 15).is_none() && reserve(0, 1).is_none() && reserve(19, 30).is_none());
        drop(first);
        assert!(reserve(0, 10).is_some() && reserve(0, 11).is_none());
        drop(second);
        assert!(range_locks.table().is_empty(), "the entry is removed");
    }

    #[test]
    fn quiesce_waits_for_io_in_flight_and_voids_earlier_reservations() {
        let range_locks = Arc::<RangeLocks>::default();
        let reserve = |from, to| range_locks.reserve(FILE, Span::new(from, to), None);
        let (reservation, queued) =
            (reserve(0, 10).expect("no other writer"), reserve(10, 20).expect("no other writer"));
        let in_flight = reservation.start_io().expect("the file is not quiesced");
        let waiter = {
            let range_locks = range_locks.clone();
            std::thread::spawn(move || range_locks.quiesce(FILE))
        };
        while range_locks.table()[&FILE].quiesce == 0 {
            std::thread::yield_now();
        }
        assert!(reserve(20, 30).is_none() && queued.start_io().is_none());
        assert!(range_locks.reserve(FileId(8), Span::new(0, 10), None).is_some(), "another file");
        assert!(!waiter.is_finished());
        drop(in_flight);
        let quiesce = waiter.join().expect("the thread ends");
        assert!(reserve(30, 40).is_none());
        drop(quiesce);
        assert!(
            reservation.start_io().is_none() && queued.start_io().is_none(),
            "they were reserved before the quiesce"
        );
        assert!(reserve(30, 40).expect("a later one").start_io().is_some());
    }

    #[test]
    fn unwritten_ranges_are_known_to_be_zero() {
        let range_locks = Arc::<RangeLocks>::default();
        let nonzero_ranges = |spans: &[(u64, u64)]| {
            let spans = spans.iter().map(|&(from, to)| Span::new(from, to)).collect();
            range_locks
                .nonzero_ranges(FILE, spans)
                .iter()
                .map(|span| (span.start, span.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(nonzero_ranges(&[(0, 10)]), [(0, 10)], "everything of an unknown file");
        range_locks.begin(FILE, 50);
        for (from, to) in [(60, 70), (70, 80), (100, 110), (40, 55), (75, 78)] {
            let reservation = range_locks.reserve(FILE, Span::new(from, to), None).expect("no other writer");
            assert!(reservation.start_io().is_some());
        }
        range_locks.begin(FILE, 0);
        assert_eq!(nonzero_ranges(&[(0, 1000)]), [(0, 50), (50, 55), (60, 80), (100, 110)]);
        assert_eq!(
            nonzero_ranges(&[(45, 52), (56, 59), (79, 101)]),
            [(45, 50), (50, 52), (79, 80), (100, 101)]
        );
        range_locks.forget(FILE);
        assert_eq!(nonzero_ranges(&[(56, 59)]), [(56, 59)]);
        range_locks.begin(FILE, 0);
        for number in 0..=MOST as u64 {
            let reservation = range_locks
                .reserve(FILE, Span::new(number * 2, number * 2 + 1), None)
                .expect("no other writer");
            assert!(reservation.start_io().is_some());
        }
        assert_eq!(nonzero_ranges(&[(1, 2)]), [(1, 2)], "too many ranges to remember");
    }

    #[test]
    fn old_ranges_are_stale_until_they_are_truncated() {
        let range_locks = Arc::<RangeLocks>::default();
        let is_stale = |from, to| range_locks.is_stale(FILE, Span::new(from, to));
        range_locks.hide(FILE, Span::new(0, 10));
        assert!(!is_stale(0, 10), "it is not open in the back end: its size is read when it is opened");
        range_locks.begin(FILE, 50);
        assert!(is_stale(49, 60) && !is_stale(50, 60));
        range_locks.hide(FILE, Span::new(70, 80));
        assert!(is_stale(60, 71) && !is_stale(80, 90));
        range_locks.clear_stale(FILE, 40);
        assert!(is_stale(39, 40) && !is_stale(40, 1000));
        for number in 0..=MAX_STALE as u64 {
            range_locks.hide(FILE, Span::new(100 + number * 2, 101 + number * 2));
        }
        assert!(is_stale(101, 102), "too many ranges to remember");
        range_locks.forget(FILE);
        assert!(!is_stale(0, 1000) && range_locks.table().is_empty());
    }
}
