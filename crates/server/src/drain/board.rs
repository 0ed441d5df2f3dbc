//! Everything that is to leave, is leaving, or could not: what the workers and the scout share.

use super::alpha::Learner;
use super::failures::Failures;
use super::gauge::{Gauge, Side, Valve};
use super::places::{PAST, Places};
use super::ticket::Ticket;
use forebay_model::{Bytes, Error, FileId, JobId, ServerId, Span, Stamp, Uid};
use forebay_policy::Tick;
use forebay_policy::drain::{Batch, BatchId, Drain, Layout, Order, Pick, TargetId};
use forebay_store::Dirty;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Instant;

/// As much waits in the index before more files are prepared, at least: the arbiter can put only those jobs in order that
/// it knows of.
const AHEAD: u64 = 1 << 30;
/// Where orders that do not look at jobs keep everything.
const ALL: JobId = JobId(0);

/// Where a file stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// To be made or found behind.
    Chosen,
    /// Its bytes are in the index, or on their way.
    Queued,
    /// Everything of it is out; it is given its looks.
    Finishing,
}

/// A file that is to leave, or is leaving.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) phase: Phase,
    pub(super) queue: JobId,
    pub(super) user: Uid,
    pub(super) path: String,
}

/// A write to be done.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    pub(super) queue: JobId,
    pub(super) id: BatchId,
    pub(super) batch: Batch,
}

/// What a worker does next.
#[derive(Debug)]
pub(super) enum Task {
    /// Make or find this behind.
    Prepare(FileId),
    /// Write this.
    Write(Assignment),
    /// See that everything written is on its device.
    Settle,
    /// Let go of this.
    Finish(FileId),
}

pub(super) struct Board {
    pub(super) order: Order,
    largest: Bytes,
    queues: BTreeMap<JobId, Drain>,
    pub(super) files: HashMap<FileId, Entry>,
    prepare: VecDeque<FileId>,
    finish: VecDeque<FileId>,
    /// Directories whose time of change behind is our doing.
    dirs: BTreeSet<FileId>,
    pub(super) places: Places,
    pub(super) failures: Failures,
    pub(super) tickets: BTreeMap<u64, Ticket>,
    pub(super) last_ticket: u64,
    pub(super) gauges: Vec<Gauge>,
    pub(super) valve: Option<Valve>,
    pub(super) learner: Option<Learner>,
    /// Writers past the buffer that wait for a place.
    pub(super) at_door: usize,
    /// Workers that do something.
    pub(super) busy: usize,
    /// How many of them write where, and for which job.
    writing: HashMap<(JobId, TargetId), u32>,
    /// How many make files behind, and how many may while others could write.
    pub(super) preparing: usize,
    pub(super) preparers: usize,
    /// How many may write, where the order asks no arbiter.
    pub(super) unasked: u32,
    /// How full the buffer is, in thousandths.
    pub(super) fill: u16,
    priorities: HashMap<JobId, u32>,
    /// What waits to be written past the buffer, target by target.
    past: BTreeMap<TargetId, u64>,
    dice: u64,
}

impl Board {
    pub(super) fn new(order: Order, largest: Bytes, places: Places, gauges: Vec<Gauge>) -> Board {
        Board {
            order,
            largest,
            queues: BTreeMap::new(),
            files: HashMap::new(),
            prepare: VecDeque::new(),
            finish: VecDeque::new(),
            dirs: BTreeSet::new(),
            places,
            failures: Failures::default(),
            tickets: BTreeMap::new(),
            last_ticket: 0,
            gauges,
            valve: None,
            learner: None,
            at_door: 0,
            busy: 0,
            writing: HashMap::new(),
            preparing: 0,
            preparers: usize::MAX,
            unasked: u32::MAX,
            fill: 0,
            priorities: HashMap::new(),
            past: BTreeMap::new(),
            dice: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Chooses a file to leave, if it is not leaving already.
    pub(super) fn choose(&mut self, now: Instant, file: FileId) -> bool {
        if self.files.contains_key(&file) || !self.failures.may_try(now, file) {
            return false;
        }
        let entry = Entry { phase: Phase::Chosen, queue: ALL, user: Uid(0), path: format!("file {file}") };
        self.files.insert(file, entry);
        self.prepare.push_back(file);
        true
    }

    /// Something was claimed by an earlier life of the server: it is looked at again, and let go of.
    pub(super) fn take_up(&mut self, file: FileId) {
        self.files.entry(file).or_insert_with(|| {
            self.finish.push_back(file);
            Entry { phase: Phase::Finishing, queue: ALL, user: Uid(0), path: format!("file {file}") }
        });
    }

    /// Whether something that nobody is at could be looked at again now.
    pub(super) fn may_take_up(&self, now: Instant, file: FileId) -> bool {
        !self.files.contains_key(&file) && self.failures.may_try(now, file)
    }

    /// Directories whose time of change behind is our doing: they get theirs later.
    pub(super) fn touch_dirs(&mut self, dirs: &[FileId]) {
        self.dirs.extend(dirs);
        for ticket in self.tickets.values_mut().filter(|ticket| !ticket.is_done()) {
            ticket.dirs.extend(dirs);
        }
    }

    /// Whether things could leave in this order from now on.
    pub(super) fn can_order(&self, order: Order) -> bool {
        order == self.order || (self.files.is_empty() && self.queues.values().all(Drain::is_done))
    }

    /// From now on things leave in this order; false if something is leaving in another.
    pub(super) fn set_order(&mut self, order: Order) -> bool {
        if !self.can_order(order) {
            return false;
        }
        if order != self.order {
            self.queues.clear();
            self.order = order;
        }
        true
    }

    /// A file was prepared: its bytes wait for their targets.
    pub(super) fn enqueue(
        &mut self,
        now: Tick,
        (file, path, user): (FileId, String, Uid),
        layout: &Layout,
        dirty: &[Dirty],
        priority: u32,
    ) {
        let newest = dirty.iter().max_by_key(|piece| piece.stamp);
        let queue = match (self.order, newest) {
            (Order::Trio, Some(piece)) => piece.job,
            _ => ALL,
        };
        self.files.insert(file, Entry { phase: Phase::Queued, queue, user, path });
        let (order, largest) = (self.order, self.largest);
        let drain = self.queues.entry(queue).or_insert_with(|| Drain::new(order, largest));
        let mut pieces: Vec<(Stamp, Span)> = dirty.iter().map(|piece| (piece.stamp, piece.span)).collect();
        pieces.sort_unstable();
        pieces.into_iter().for_each(|(stamp, span)| drain.insert(file, layout, span, stamp));
        self.priorities.insert(queue, priority);
        self.tell(now, queue);
    }

    /// Tells the arbiter what there is to write for a job.
    fn tell(&mut self, now: Tick, queue: JobId) {
        if self.order != Order::Trio {
            return;
        }
        let standing = (self.priorities.get(&queue).copied().unwrap_or(0), self.fill);
        let left = self.waiting(queue);
        self.places.tell(now, queue, standing, &left);
    }

    /// What waits in a queue, target by target.
    fn waiting(&self, queue: JobId) -> Vec<(TargetId, Bytes)> {
        if queue == PAST {
            return self.past.iter().map(|(target, bytes)| (*target, Bytes(*bytes))).collect();
        }
        self.queues.get(&queue).map_or_else(Vec::new, |drain| drain.targets().collect())
    }

    fn waiting_at(&self, queue: JobId, target: TargetId) -> Bytes {
        if queue == PAST {
            return Bytes(self.past.get(&target).copied().unwrap_or(0));
        }
        self.queues.get(&queue).map_or(Bytes(0), |drain| drain.waiting(target))
    }

    /// All bytes that wait for a target.
    pub(super) fn queued_at(&self, target: TargetId) -> u64 {
        self.queues.values().map(|drain| drain.waiting(target).0).sum()
    }

    pub(super) fn queued(&self) -> u64 {
        self.queues.values().flat_map(|drain| drain.targets().map(|(_, bytes)| bytes.0)).sum()
    }

    /// Bytes of a file that workers write, or have written and not settled.
    pub(super) fn under_way(&self, file: FileId) -> u64 {
        let queue = self.files.get(&file).and_then(|entry| self.queues.get(&entry.queue));
        queue.map_or(0, |drain| drain.under_way(file).0)
    }

    /// Whether of one of these queues everything has been given to workers: what they wrote should be settled, because a
    /// small job is not out before that, however much others have left.
    pub(super) fn has_given_all_of(&self, queues: &BTreeSet<JobId>) -> bool {
        queues.iter().any(|queue| self.queues.get(queue).is_none_or(|drain| drain.targets().next().is_none()))
    }

    /// Whether more files should be chosen.
    pub(super) fn hungers(&self) -> bool {
        self.prepare.len() < 64 && self.queued() < AHEAD
    }

    /// Whether there is something to do.
    pub(super) fn has_something(&self) -> bool {
        !(self.prepare.is_empty() && self.finish.is_empty() && self.dirs.is_empty()) || self.queued() > 0
    }

    /// Whether nothing is to be done, and nobody does anything.
    pub(super) fn is_idle(&self) -> bool {
        self.busy == 0 && self.prepare.is_empty() && self.finish.is_empty() && self.queued() == 0
    }

    /// What to do next, for a worker that has written something it has not settled, or has not.
    pub(super) fn task(&mut self, now: (Tick, Instant), unsettled: bool) -> Option<Task> {
        if self.failures.rests(now.1) {
            return unsettled.then_some(Task::Settle);
        }
        if let Some(file) = self.finish.pop_front() {
            return Some(Task::Finish(file));
        }
        let ahead = self.queued() < AHEAD && self.preparing < self.preparers;
        if let Some(file) = ahead.then(|| self.prepare.pop_front()).flatten() {
            self.preparing += 1;
            return Some(Task::Prepare(file));
        }
        if let Some(assignment) = self.next_write(now) {
            return Some(Task::Write(assignment));
        }
        if let Some(file) = self.prepare.pop_front() {
            self.preparing += 1;
            return Some(Task::Prepare(file));
        }
        if unsettled {
            return Some(Task::Settle);
        }
        let wanted = self.busy == 0 || self.tickets.values().any(Ticket::waits_for_dirs);
        let dir = self.dirs.iter().copied().find(|&dir| self.failures.may_try(now.1, dir));
        match dir.filter(|_| wanted) {
            Some(dir) => {
                self.dirs.remove(&dir);
                Some(Task::Finish(dir))
            }
            None => None,
        }
    }

    fn next_write(&mut self, now: (Tick, Instant)) -> Option<Assignment> {
        if self.order != Order::Trio {
            if self.writing.values().sum::<u32>() >= self.unasked || self.leaves_the_last_place(now.1) {
                return None;
            }
            self.dice =
                self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (id, batch) = self.queues.get_mut(&ALL)?.next(Pick::Any(self.dice >> 33))?;
            return Some(self.begin(ALL, id, batch));
        }
        loop {
            let mut given_back = false;
            for (queue, target) in self.places.granted() {
                if queue == PAST {
                    continue;
                }
                let streams = self.places.streams(target);
                let is_full =
                    self.gauge(target).is_some_and(|gauge| !gauge.may_begin(Side::Drain, streams, now.1));
                let writers = self.writing.get(&(queue, target)).copied().unwrap_or(0);
                if is_full || writers >= self.places.of_each(target) {
                    continue;
                }
                let next = self.queues.get_mut(&queue).and_then(|drain| drain.next(Pick::Granted(&[target])));
                if let Some((id, batch)) = next {
                    return Some(self.begin(queue, id, batch));
                }
                if self.waiting_at(queue, target).0 == 0 {
                    self.places.give_back(now.0, (queue, target), Bytes(0));
                    given_back = true;
                }
            }
            if !given_back {
                return None;
            }
        }
    }

    fn gauge(&mut self, target: TargetId) -> Option<&mut Gauge> {
        self.gauges.get_mut(target.0 as usize)
    }

    /// Whether writers past the buffer wait for the last place at some target, and it is their turn: an order that asks
    /// nobody for places does not know before which target it writes to.
    fn leaves_the_last_place(&mut self, now: Instant) -> bool {
        let places = &self.places;
        let mut waited_for = (0..).map(TargetId).zip(&mut self.gauges).filter(|(_, gauge)| gauge.callers > 0);
        waited_for.any(|(target, gauge)| !gauge.may_begin(Side::Drain, places.streams(target), now))
    }

    fn begin(&mut self, queue: JobId, id: BatchId, batch: Batch) -> Assignment {
        let streams = self.places.streams(batch.target);
        if let Some(gauge) = self.gauge(batch.target) {
            gauge.begin(Side::Drain, streams, gauge.callers > 0);
        }
        *self.writing.entry((queue, batch.target)).or_default() += 1;
        Assignment { queue, id, batch }
    }

    /// Most writers at any target at once.
    pub(super) fn streams(&self) -> u32 {
        let targets = 0..u32::try_from(self.gauges.len()).unwrap_or(u32::MAX);
        targets.map(|target| self.places.streams(TargetId(target))).max().unwrap_or(1)
    }

    /// Gives a writer past the buffer a place at a target, if there is one. The last place goes to it and to the drain
    /// in turn.
    pub(super) fn enter(&mut self, target: TargetId, now: Instant) -> bool {
        if self.is_arbitrated() && !self.places.may_write(target) {
            return false;
        }
        let (streams, waits) = (self.places.streams(target), self.queued_at(target) > 0);
        let Some(gauge) = self.gauge(target) else { return true };
        if !waits {
            gauge.turn = None;
        }
        let may = gauge.may_begin(Side::Past, streams, now);
        if may {
            gauge.begin(Side::Past, streams, waits);
        }
        may
    }

    /// One writer more or less past the buffer waits for a place at a target.
    pub(super) fn call(&mut self, target: TargetId, waits: bool) {
        self.at_door = if waits { self.at_door + 1 } else { self.at_door.saturating_sub(1) };
        if let Some(gauge) = self.gauge(target) {
            gauge.callers = if waits { gauge.callers + 1 } else { gauge.callers.saturating_sub(1) };
            if gauge.callers == 0 && matches!(gauge.turn, Some((Side::Past, _))) {
                gauge.turn = None;
            }
        }
    }

    /// So much waits for a target to be written past the buffer.
    pub(super) fn wait_past(&mut self, now: Tick, target: TargetId, bytes: u64) {
        let before = match bytes {
            0 => self.past.remove(&target),
            _ => self.past.insert(target, bytes),
        };
        if self.is_arbitrated() && before.is_none() != (bytes == 0) {
            self.tell(now, PAST);
        }
    }

    /// A writer past the buffer has left a target, where it wrote so much.
    pub(super) fn leave(&mut self, now: Tick, target: TargetId, bytes: u64) {
        if let Some(gauge) = self.gauge(target) {
            gauge.writers = gauge.writers.saturating_sub(1);
            gauge.written += bytes;
        }
        if self.is_arbitrated() {
            let left = self.waiting_at(PAST, target);
            self.places.wrote(now, (PAST, target), bytes, left);
        }
    }

    /// Whether other servers write to the same targets, in turns that arbiters give.
    fn is_arbitrated(&self) -> bool {
        self.order == Order::Trio && !self.places.is_alone()
    }

    /// Whether somebody waits for a file to be behind.
    pub(super) fn is_wanted(&self, file: FileId) -> bool {
        self.tickets.values().any(|ticket| ticket.pending.contains(&file))
    }

    /// A worker has left a target, where it wrote so much.
    pub(super) fn wrote(&mut self, now: Tick, queue: JobId, target: TargetId, bytes: u64) {
        if let Some(gauge) = self.gauge(target) {
            gauge.writers = gauge.writers.saturating_sub(1);
            gauge.written += bytes;
            if gauge.callers > 0 {
                gauge.turn.get_or_insert((Side::Past, None));
            }
        }
        if let Some(writers) = self.writing.get_mut(&(queue, target)) {
            *writers -= 1;
            if *writers == 0 {
                self.writing.remove(&(queue, target));
            }
        }
        let full = match self.places.is_alone() {
            true => self.queued_at(target) > 0,
            false => self.places.is_full(target),
        };
        let learner = self.learner.as_mut().filter(|_| self.places.is_own(target));
        if let Some(alpha) = learner.and_then(|learner| learner.wrote(now, target, bytes, full)) {
            self.places.set_alpha(now, target, alpha);
        }
        let left = self.waiting_at(queue, target);
        self.places.wrote(now, (queue, target), bytes, left);
    }

    /// Another server has written so much to targets of ours since it began.
    pub(super) fn heard(&mut self, now: Tick, from: ServerId, written: &[(u32, u64)]) {
        let Some(learner) = &mut self.learner else { return };
        for &(target, written) in written {
            let target = TargetId(target);
            if !self.places.is_own(target) {
                continue;
            }
            let full = self.places.is_full(target);
            if let Some(alpha) = learner.heard(now, (from, target), written, full) {
                self.places.set_alpha(now, target, alpha);
            }
        }
    }

    /// How many may write to a target, as far as this server knows: what is learnt is known to whoever gives it out.
    pub(super) fn alpha(&self, target: TargetId) -> u32 {
        match self.learner.is_none() || self.places.is_own(target) {
            true => self.places.alpha(target),
            false => 0,
        }
    }

    /// What this server has written to the targets that another gives out, if that is asked for.
    pub(super) fn written_at(&self, arbiter: ServerId) -> Vec<(u32, u64)> {
        if self.learner.is_none() {
            return Vec::new();
        }
        let of = |target: TargetId| Some((target.0, self.gauges.get(target.0 as usize)?.written));
        self.places.given_by(arbiter).filter_map(of).collect()
    }

    /// Writes are on their device, and what of them still counts is let go of here. True if that was all of the file.
    pub(super) fn settled(&mut self, file: FileId, writes: &[(JobId, BatchId)]) -> bool {
        for &(queue, id) in writes {
            let Some(drain) = self.queues.get_mut(&queue) else { continue };
            drop(drain.done(id));
            if drain.is_done() {
                self.queues.remove(&queue);
                self.priorities.remove(&queue);
            }
        }
        let Some(entry) = self.files.get_mut(&file) else { return false };
        let out = self.queues.get(&entry.queue).is_none_or(|drain| !drain.knows(file));
        if out && entry.phase == Phase::Queued {
            entry.phase = Phase::Finishing;
            return true;
        }
        false
    }

    /// A file is out, as far as it was chosen.
    pub(super) fn finished(&mut self, file: FileId) {
        self.files.remove(&file);
        self.failures.made_good(file);
    }

    /// A file has gone: there is nothing to drain.
    pub(super) fn gone(&mut self, file: FileId) {
        self.drop_file(file);
        self.failures.forget(file);
        self.tickets.values_mut().for_each(|ticket| ticket.gone(file));
    }

    /// A file could not be drained; it is tried again later. A directory that is behind is still to get its time.
    pub(super) fn failed(&mut self, now: Instant, file: FileId, is_dir: bool, error: Error) {
        let entry = self.drop_file(file);
        let about = entry.map_or((format!("file {file}"), Uid(0)), |entry| (entry.path, entry.user));
        let hopeless = error.kind() == forebay_model::ErrorKind::Unsupported;
        let tries = self.failures.note(now, file, about, error);
        if is_dir {
            self.dirs.insert(file);
        }
        self.tickets.values_mut().for_each(|ticket| ticket.failed(file, tries, hopeless));
    }

    fn drop_file(&mut self, file: FileId) -> Option<Entry> {
        let entry = self.files.remove(&file)?;
        if let Some(drain) = self.queues.get_mut(&entry.queue) {
            drain.remove(file, Span::from(0));
        }
        Some(entry)
    }

    /// Whether this directory waits to be given its time.
    pub(super) fn waits_for(&self, dir: FileId) -> bool {
        self.dirs.contains(&dir)
    }

    /// Time has passed.
    pub(super) fn beat(&mut self, now: (Tick, Instant), fill: u16) {
        self.fill = fill;
        self.gauges.iter_mut().for_each(|gauge| gauge.look(now.1));
        let past = (self.is_arbitrated() && !self.past.is_empty()).then_some(PAST);
        let all: Vec<JobId> = self.queues.keys().copied().chain(past).collect();
        all.into_iter().for_each(|queue| self.tell(now.0, queue));
        let (queues, past) = (&self.queues, &self.past);
        self.places.beat(now.0, |queue, target| match queue {
            PAST => Bytes(past.get(&target).copied().unwrap_or(0)),
            queue => queues.get(&queue).map_or(Bytes(0), |drain| drain.waiting(target)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::Terms;
    use super::*;
    use std::time::Duration;

    #[test]
    fn writes_of_a_file_that_changed_its_job_are_each_settled_where_they_were_given_out() {
        let (server, now) = (ServerId(0), Instant::now());
        let terms = Terms::usual(vec![server], vec![2]);
        let mut board = Board::new(Order::Trio, Bytes::mib(1), Places::new(terms), vec![Gauge::new(now)]);
        let layout = Layout::whole(TargetId(0));
        let dirty = |start: u64, job| Dirty {
            span: Span::new(start, start + 10),
            stamp: Stamp(1),
            job: JobId(job),
            uid: Uid(0),
        };
        let next = |board: &mut Board, file, pieces: &[Dirty]| {
            board.choose(now + Duration::from_secs(99), file);
            board.enqueue(Tick(0), (file, "/f".to_owned(), Uid(0)), &layout, pieces, 1);
            match board.task((Tick(0), now), false) {
                Some(Task::Prepare(_)) => board.task((Tick(0), now), false),
                task => task,
            }
        };
        let (one, other) = (FileId(1), FileId(2));
        let Some(Task::Write(first)) = next(&mut board, one, &[dirty(0, 1)]) else { panic!("a write") };
        board.wrote(Tick(0), first.queue, TargetId(0), 10);
        // It fails elsewhere, and is chosen again when another job has written to it.
        board.failed(now, one, false, forebay_model::ErrorKind::Io.into());
        let Some(Task::Write(second)) = next(&mut board, one, &[dirty(20, 2)]) else { panic!("another") };
        board.wrote(Tick(0), second.queue, TargetId(0), 10);
        let Some(Task::Write(third)) = next(&mut board, other, &[dirty(0, 1)]) else { panic!("a third") };
        assert_eq!((first.queue, second.queue, third.queue), (JobId(1), JobId(2), JobId(1)));
        assert!(board.settled(one, &[(first.queue, first.id), (second.queue, second.id)]));
        assert!(board.files.contains_key(&other) && !board.can_order(Order::Offset));
        assert!(board.settled(other, &[(third.queue, third.id)]));
        assert_eq!(board.queues.len(), 0);
    }
}
