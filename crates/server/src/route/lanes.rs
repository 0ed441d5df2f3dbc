//! What is being written behind, file by file, whoever writes it: the drain, or a writer past the buffer.
//!
//! Who wants to write a span has it *reserved* until it counts; only while its bytes move is it in the *air*. So whoever
//! wants quiet waits for no queue, and what was reserved before is not written afterwards.
//!
//! **Invariant**: no two spans that are reserved meet at a byte; while it is quiet nothing is in the air, and nothing of
//! before ever rises again; a file is written past the buffer only through what it was opened with last.

use super::Opened;
use forebay_model::{Error, ErrorKind, FileId, Result, Span};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most separate ranges that are remembered of what was written to a file.
const MOST: usize = 4096;
/// Most separate ranges under which old bytes are known to lie.
const MOST_VEILED: usize = 64;

#[derive(Default)]
pub(crate) struct Lanes {
    table: Mutex<HashMap<FileId, Lane>>,
    /// Rung when something has landed.
    landed: Condvar,
}

#[derive(Default)]
struct Lane {
    reserved: Vec<Span>,
    in_air: usize,
    /// How many want nothing to be in the air, and how many ever did.
    quiet: usize,
    calls: u64,
    ink: Option<Ink>,
    opened: Option<Arc<Opened>>,
    /// Something could not be brought to its device, and nobody knows what of it is there.
    broken: bool,
    /// Bytes were cut off or punched: what is blank may be bytes behind that somebody is still reading.
    hidden: bool,
    /// Where old bytes may lie behind that do not count any more: what is written over them has to be on its device before it
    /// counts, or a machine that dies finds the old ones instead.
    veil: Vec<Span>,
}

/// What was written behind since a file was opened there.
struct Ink {
    /// Below this, anything may be there.
    base: u64,
    /// In order, none next to another.
    written: Vec<Span>,
}

/// A span that one writer alone may write behind.
pub(crate) struct Flight {
    lanes: Arc<Lanes>,
    file: FileId,
    span: Span,
    calls: u64,
}

/// Bytes are moving behind, or are about to count.
pub(crate) struct Aloft<'a>(&'a Flight);

/// Nothing is written to a file behind while this is held.
pub(crate) struct Quiet {
    lanes: Arc<Lanes>,
    file: FileId,
}

/// Adds a span to others that are in order, none next to another.
fn join(spans: &mut Vec<Span>, span: Span) {
    let from = spans.partition_point(|one| one.end < span.start);
    let to = spans.partition_point(|one| one.start <= span.end);
    let met = &spans[from..to];
    let start = met.first().map_or(span.start, |one| one.start.min(span.start));
    let end = met.last().map_or(span.end, |one| one.end.max(span.end));
    spans.splice(from..to, [Span::new(start, end)]);
}

impl Lane {
    fn veil(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        join(&mut self.veil, span);
        if let (Some(first), Some(last)) = (self.veil.first(), self.veil.last())
            && self.veil.len() > MOST_VEILED
        {
            self.veil = vec![Span::new(first.start, last.end)];
        }
    }

    fn is_empty(&self) -> bool {
        let used = self.quiet > 0 || self.ink.is_some() || self.opened.is_some() || self.broken;
        self.reserved.is_empty() && !used
    }
}

impl Ink {
    fn add(&mut self, span: Span) {
        join(&mut self.written, span);
        // Of what is too much to be remembered it is known that it may have been written.
        if let (Some(first), Some(last)) = (self.written.first(), self.written.last())
            && self.written.len() > MOST
        {
            self.written = vec![Span::new(first.start, last.end)];
        }
    }

    /// What of a span may not be as it was made.
    fn within(&self, span: Span) -> Vec<Span> {
        let old = span.meet(Span::new(0, self.base));
        let new = self.written.iter().filter_map(|one| one.meet(span)?.meet(Span::from(self.base)));
        old.into_iter().chain(new).collect()
    }
}

impl Lanes {
    fn table(&self) -> MutexGuard<'_, HashMap<FileId, Lane>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a span to be written behind. Nothing if another has some of it, or somebody wants quiet, or the file is not
    /// open any more by what the caller wants to write past the buffer with, or what was written so could not be brought to
    /// its device.
    pub(crate) fn reserve(
        self: &Arc<Lanes>,
        file: FileId,
        span: Span,
        with: Option<&Arc<Opened>>,
    ) -> Option<Flight> {
        let mut table = self.table();
        let lane = table.entry(file).or_default();
        let meets = lane.reserved.iter().any(|other| other.meet(span).is_some());
        let same = |with: &Arc<Opened>| lane.opened.as_ref().is_some_and(|opened| Arc::ptr_eq(opened, with));
        let sound = |with| !lane.broken && same(with);
        if meets || lane.quiet > 0 || !with.is_none_or(sound) {
            return None;
        }
        lane.reserved.push(span);
        Some(Flight { lanes: self.clone(), file, span, calls: lane.calls })
    }

    /// Waits until nothing is written to a file behind, and keeps it so.
    pub(crate) fn quiet(self: &Arc<Lanes>, file: FileId) -> Quiet {
        tokio::task::block_in_place(|| {
            let quiet = self.hush(file);
            let busy =
                |table: &mut HashMap<FileId, Lane>| table.get(&file).is_some_and(|lane| lane.in_air > 0);
            drop(self.landed.wait_while(self.table(), busy).unwrap_or_else(PoisonError::into_inner));
            quiet
        })
    }

    /// The same for whoever does not wait for ever.
    pub(crate) fn quiet_within(self: &Arc<Lanes>, file: FileId, patience: Duration) -> Result<Quiet> {
        tokio::task::block_in_place(|| {
            let quiet = self.hush(file);
            let busy =
                |table: &mut HashMap<FileId, Lane>| table.get(&file).is_some_and(|lane| lane.in_air > 0);
            let waited = self.landed.wait_timeout_while(self.table(), patience, busy);
            let (table, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(table);
            match timeout.timed_out() {
                false => Ok(quiet),
                true => {
                    let text = format!("writes of file {file} past the buffer do not end");
                    Err(Error::new(ErrorKind::Busy, text))
                }
            }
        })
    }

    /// Nothing that was reserved before rises from now on.
    fn hush(self: &Arc<Lanes>, file: FileId) -> Quiet {
        let mut table = self.table();
        let lane = table.entry(file).or_default();
        (lane.quiet, lane.calls, lane.hidden) = (lane.quiet + 1, lane.calls + 1, true);
        Quiet { lanes: self.clone(), file }
    }

    /// Bytes of a file are about to be cut off or punched, and lie behind as they were.
    pub(crate) fn hide(&self, file: FileId, span: Span) {
        if let Some(lane) = self.table().get_mut(&file) {
            lane.hidden = true;
            lane.veil(span);
        }
    }

    /// A file was cut behind, and that is on its device: nothing lies there any more.
    pub(super) fn unveil(&self, file: FileId, size: u64) {
        if let Some(lane) = self.table().get_mut(&file) {
            let kept = lane.veil.iter().filter_map(|span| span.meet(Span::new(0, size)));
            lane.veil = kept.collect();
        }
    }

    /// Whether old bytes may lie behind under some of a span.
    pub(super) fn is_veiled(&self, file: FileId, span: Span) -> bool {
        self.table().get(&file).is_some_and(|lane| lane.veil.iter().any(|veil| veil.meet(span).is_some()))
    }

    /// Whether that has happened since the file was opened to be written past the buffer.
    pub(super) fn has_hidden(&self, file: FileId) -> bool {
        self.table().get(&file).is_some_and(|lane| lane.hidden)
    }

    /// A file behind is so long: what is written there from now on is remembered, until it is forgotten.
    pub(crate) fn begin(&self, file: FileId, size: u64) {
        let mut table = self.table();
        let lane = table.entry(file).or_default();
        if lane.ink.is_none() {
            lane.ink = Some(Ink { base: size, written: Vec::new() });
            lane.veil(Span::new(0, size));
        }
    }

    /// Of spans of a file behind, what may hold something else than zeros.
    pub(crate) fn soiled(&self, file: FileId, spans: Vec<Span>) -> Vec<Span> {
        match self.table().get(&file).and_then(|lane| lane.ink.as_ref()) {
            Some(ink) => spans.into_iter().flat_map(|span| ink.within(span)).collect(),
            None => spans,
        }
    }

    /// Whether a file is written past the buffer.
    pub(crate) fn is_open(&self, file: FileId) -> bool {
        self.table().get(&file).is_some_and(|lane| lane.opened.is_some())
    }

    /// What a file is written with past the buffer.
    pub(super) fn opened(&self, file: FileId) -> Option<Arc<Opened>> {
        self.table().get(&file)?.opened.clone()
    }

    /// A file is open to be written past the buffer, by this or by what somebody else opened a moment ago. Where it has
    /// holes old bytes may lie behind.
    pub(super) fn open(&self, file: FileId, opened: Opened, holes: &[Span]) -> Arc<Opened> {
        let mut table = self.table();
        let lane = table.entry(file).or_default();
        holes.iter().for_each(|&hole| lane.veil(hole));
        lane.opened.get_or_insert_with(|| Arc::new(opened)).clone()
    }

    /// All files that are open to be written past the buffer.
    pub(super) fn all_open(&self) -> Vec<(FileId, Arc<Opened>)> {
        let table = self.table();
        table.iter().filter_map(|(file, lane)| Some((*file, lane.opened.clone()?))).collect()
    }

    /// What was written to a file behind is known there, and it is not written any more.
    pub(crate) fn forget(&self, file: FileId) {
        if let Some(lane) = self.table().get_mut(&file) {
            (lane.ink, lane.opened, lane.hidden) = (None, None, false);
            lane.veil.clear();
        }
        self.tidy(file);
    }

    /// What was written could not be brought to its device: whoever wants to know is told so from now on.
    pub(super) fn break_off(&self, file: FileId) {
        self.table().entry(file).or_default().broken = true;
    }

    pub(super) fn is_broken(&self, file: FileId) -> bool {
        self.table().get(&file).is_some_and(|lane| lane.broken)
    }

    /// All files of which that is so.
    pub(super) fn all_broken(&self) -> Vec<FileId> {
        self.table().iter().filter(|(_, lane)| lane.broken).map(|(file, _)| *file).collect()
    }

    /// Nothing is left of what was written.
    pub(super) fn begin_anew(&self, file: FileId) {
        if let Some(lane) = self.table().get_mut(&file) {
            lane.broken = false;
        }
        self.tidy(file);
    }

    fn tidy(&self, file: FileId) {
        let mut table = self.table();
        if table.get(&file).is_some_and(Lane::is_empty) {
            table.remove(&file);
        }
    }
}

impl Flight {
    /// Begins to move bytes, or to let them count. Nothing if somebody wanted quiet since they were reserved.
    pub(crate) fn rise(&self) -> Option<Aloft<'_>> {
        let mut table = self.lanes.table();
        let lane = table.get_mut(&self.file).filter(|lane| lane.quiet == 0 && lane.calls == self.calls)?;
        lane.in_air += 1;
        if let Some(ink) = &mut lane.ink {
            ink.add(self.span);
        }
        Some(Aloft(self))
    }
}

impl Drop for Aloft<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.0.lanes.table().get_mut(&self.0.file) {
            lane.in_air -= 1;
        }
        self.0.lanes.landed.notify_all();
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(lane) = self.lanes.table().get_mut(&self.file)
            && let Some(at) = lane.reserved.iter().position(|span| *span == self.span)
        {
            lane.reserved.swap_remove(at);
        }
        self.lanes.tidy(self.file);
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(lane) = self.lanes.table().get_mut(&self.file) {
            lane.quiet -= 1;
        }
        self.lanes.tidy(self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(7);

    #[test]
    fn spans_that_meet_are_not_reserved_together() {
        let lanes = Arc::<Lanes>::default();
        let reserve = |from, to| lanes.reserve(FILE, Span::new(from, to), None);
        let first = reserve(0, 10).expect("nobody else");
        let second = reserve(10, 20).expect("a neighbour");
        assert!(reserve(5, 15).is_none() && reserve(0, 1).is_none() && reserve(19, 30).is_none());
        drop(first);
        assert!(reserve(0, 10).is_some() && reserve(0, 11).is_none());
        drop(second);
        assert!(lanes.table().is_empty(), "nothing is kept of what is over");
    }

    #[test]
    fn quiet_waits_for_what_is_in_the_air_and_lets_nothing_of_before_rise() {
        let lanes = Arc::<Lanes>::default();
        let reserve = |from, to| lanes.reserve(FILE, Span::new(from, to), None);
        let (flight, queued) = (reserve(0, 10).expect("nobody else"), reserve(10, 20).expect("nobody else"));
        let aloft = flight.rise().expect("nobody wants quiet");
        let waiter = {
            let lanes = lanes.clone();
            std::thread::spawn(move || lanes.quiet(FILE))
        };
        while lanes.table()[&FILE].quiet == 0 {
            std::thread::yield_now();
        }
        assert!(reserve(20, 30).is_none() && queued.rise().is_none());
        assert!(lanes.reserve(FileId(8), Span::new(0, 10), None).is_some(), "another file");
        assert!(!waiter.is_finished());
        drop(aloft);
        let quiet = waiter.join().expect("it is quiet");
        assert!(reserve(30, 40).is_none());
        drop(quiet);
        assert!(flight.rise().is_none() && queued.rise().is_none(), "they were reserved before");
        assert!(reserve(30, 40).expect("a later one").rise().is_some());
    }

    #[test]
    fn what_was_never_written_is_as_it_was_made() {
        let lanes = Arc::<Lanes>::default();
        let soiled = |spans: &[(u64, u64)]| {
            let spans = spans.iter().map(|&(from, to)| Span::new(from, to)).collect();
            lanes.soiled(FILE, spans).iter().map(|span| (span.start, span.end)).collect::<Vec<_>>()
        };
        assert_eq!(soiled(&[(0, 10)]), [(0, 10)], "of what nobody knows anything, everything");
        lanes.begin(FILE, 50);
        for (from, to) in [(60, 70), (70, 80), (100, 110), (40, 55), (75, 78)] {
            let flight = lanes.reserve(FILE, Span::new(from, to), None).expect("nobody else");
            assert!(flight.rise().is_some());
        }
        lanes.begin(FILE, 0);
        assert_eq!(soiled(&[(0, 1000)]), [(0, 50), (50, 55), (60, 80), (100, 110)]);
        assert_eq!(soiled(&[(45, 52), (56, 59), (79, 101)]), [(45, 50), (50, 52), (79, 80), (100, 101)]);
        lanes.forget(FILE);
        assert_eq!(soiled(&[(56, 59)]), [(56, 59)]);
        lanes.begin(FILE, 0);
        for number in 0..=MOST as u64 {
            let flight =
                lanes.reserve(FILE, Span::new(number * 2, number * 2 + 1), None).expect("nobody else");
            assert!(flight.rise().is_some());
        }
        assert_eq!(soiled(&[(1, 2)]), [(1, 2)], "too much to remember");
    }

    #[test]
    fn old_bytes_lie_where_something_was_before_and_was_not_cut() {
        let lanes = Arc::<Lanes>::default();
        let veiled = |from, to| lanes.is_veiled(FILE, Span::new(from, to));
        lanes.hide(FILE, Span::new(0, 10));
        assert!(!veiled(0, 10), "nobody writes it behind: whoever begins to looks how long it is");
        lanes.begin(FILE, 50);
        assert!(veiled(49, 60) && !veiled(50, 60));
        lanes.hide(FILE, Span::new(70, 80));
        assert!(veiled(60, 71) && !veiled(80, 90));
        lanes.unveil(FILE, 40);
        assert!(veiled(39, 40) && !veiled(40, 1000));
        for number in 0..=MOST_VEILED as u64 {
            lanes.hide(FILE, Span::new(100 + number * 2, 101 + number * 2));
        }
        assert!(veiled(101, 102), "too much to remember");
        lanes.forget(FILE);
        assert!(!veiled(0, 1000) && lanes.table().is_empty());
    }
}
