//! The drain queue, shared by the workers and the scanner: files to drain, files being drained, and failures.

use super::alpha::Learner;
use super::arbiter_rpc::Urgency;
use super::failures::Failures;
use super::gauge::{Gauge, Valve};
use super::grants::{DIRECT, Grants};
use super::ticket::Ticket;
use forebay_model::{Bytes, Error, FileId, JobId, ServerId, Span, Stamp, Uid};
use forebay_policy::Tick;
use forebay_policy::drain::{Batch, BatchId, Drain, Layout, Order, Pick, Side, TargetId};
use forebay_store::Dirty;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Instant;

/// No more files are prepared while this many bytes wait in the index. It is large because the arbiter can order only
/// those jobs that it knows.
const AHEAD: u64 = 1 << 30;
/// The queue of orders that ignore jobs.
const ALL: JobId = JobId(0);

/// Progress of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// To be created or found in the back end.
    Chosen,
    /// Its bytes are in the index, or being written.
    Queued,
    /// All its bytes are written; it is being finalized.
    Finishing,
}

/// A file that is queued or being drained.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) phase: Phase,
    pub(super) queue: JobId,
    pub(super) user: Uid,
    pub(super) path: String,
}

/// A write for a worker.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    pub(super) queue: JobId,
    pub(super) id: BatchId,
    pub(super) batch: Batch,
}

/// A worker's next task.
#[derive(Debug)]
pub(super) enum Task {
    /// Create or find this file in the back end.
    Prepare(FileId),
    /// Write this batch.
    Write(Assignment),
    /// Sync everything that the worker has written.
    Sync,
    /// Finalize this file.
    Finish(FileId),
}

pub(super) struct DrainQueue {
    pub(super) order: Order,
    largest: Bytes,
    queues: BTreeMap<JobId, Drain>,
    pub(super) files: HashMap<FileId, Entry>,
    prepare: VecDeque<FileId>,
    finish: VecDeque<FileId>,
    /// Directories whose modification time the drain changed in the back end.
    dirs: BTreeSet<FileId>,
    /// Files that workers are finalizing, and whether a drain request has found changes of the file since then.
    finalizing: HashMap<FileId, bool>,
    pub(super) grants: Grants,
    pub(super) failures: Failures,
    pub(super) tickets: BTreeMap<u64, Ticket>,
    pub(super) last_ticket: u64,
    pub(super) gauges: Vec<Gauge>,
    pub(super) valve: Option<Valve>,
    pub(super) learner: Option<Learner>,
    /// Direct writers that wait for a slot.
    pub(super) direct_waiters: usize,
    /// Workers that run a task.
    pub(super) busy: usize,
    /// Number of workers by job and target.
    writing: HashMap<(JobId, TargetId), u32>,
    /// Workers that prepare files, and how many may do so while there is something to write.
    pub(super) preparing: usize,
    pub(super) preparers: usize,
    /// Most writers, for orders that do not use an arbiter.
    pub(super) max_writers: u32,
    /// Fill level of the buffer, in thousandths.
    pub(super) fill: u16,
    priorities: HashMap<JobId, u32>,
    /// Bytes that wait to be written directly, by target.
    direct_bytes: BTreeMap<TargetId, u64>,
    rng: SplitMix64,
}

impl DrainQueue {
    pub(super) fn new(order: Order, largest: Bytes, grants: Grants, gauges: Vec<Gauge>) -> DrainQueue {
        DrainQueue {
            order,
            largest,
            queues: BTreeMap::new(),
            files: HashMap::new(),
            prepare: VecDeque::new(),
            finish: VecDeque::new(),
            dirs: BTreeSet::new(),
            finalizing: HashMap::new(),
            grants,
            failures: Failures::default(),
            tickets: BTreeMap::new(),
            last_ticket: 0,
            gauges,
            valve: None,
            learner: None,
            direct_waiters: 0,
            busy: 0,
            writing: HashMap::new(),
            preparing: 0,
            preparers: usize::MAX,
            max_writers: u32::MAX,
            fill: 0,
            priorities: HashMap::new(),
            direct_bytes: BTreeMap::new(),
            rng: SplitMix64::seed_from_u64(0),
        }
    }

    /// Queues a file, unless it is queued already or its retry is not due.
    pub(super) fn choose(&mut self, now: Instant, file: FileId) -> bool {
        if self.files.contains_key(&file) || !self.failures.may_try(now, file) {
            return false;
        }
        let entry = Entry { phase: Phase::Chosen, queue: ALL, user: Uid(0), path: format!("file {file}") };
        self.files.insert(file, entry);
        self.prepare.push_back(file);
        true
    }

    /// Queues a file that a drain request has found changed. A worker that is finalizing the file may have read its
    /// attributes before the change.
    pub(super) fn want(&mut self, now: Instant, file: FileId) {
        self.choose(now, file);
        if let Some(changed) = self.finalizing.get_mut(&file) {
            *changed = true;
        }
    }

    /// A worker begins to finalize a file.
    pub(super) fn begin_finalizing(&mut self, file: FileId) {
        self.finalizing.insert(file, false);
    }

    /// A worker has stopped finalizing a file before its end.
    pub(super) fn stop_finalizing(&mut self, file: FileId) {
        self.finalizing.remove(&file);
    }

    /// A worker has finalized a file. Returns false if a drain request has found changes of the file meanwhile: it is
    /// queued again.
    pub(super) fn finalized(&mut self, now: Instant, file: FileId) -> bool {
        let changed = self.finalizing.remove(&file) == Some(true);
        if !(changed && self.prepare.contains(&file)) {
            self.finished(file);
        }
        if changed {
            self.choose(now, file);
        }
        !changed
    }

    /// Queues a file that an earlier run of the server left with a writeback mark: it is finalized.
    pub(super) fn resume(&mut self, file: FileId) {
        self.files.entry(file).or_insert_with(|| {
            self.finish.push_back(file);
            Entry { phase: Phase::Finishing, queue: ALL, user: Uid(0), path: format!("file {file}") }
        });
    }

    /// Whether a file is not queued and could be retried now.
    pub(super) fn may_resume(&self, now: Instant, file: FileId) -> bool {
        !self.files.contains_key(&file) && self.failures.may_try(now, file)
    }

    /// Adds directories whose modification time the drain changed in the back end: their own time is restored later.
    pub(super) fn touch_dirs(&mut self, dirs: &[FileId]) {
        self.dirs.extend(dirs);
        for ticket in self.tickets.values_mut().filter(|ticket| !ticket.is_done()) {
            ticket.dirs.extend(dirs);
        }
    }

    /// Whether the order can be changed to this one now.
    pub(super) fn can_order(&self, order: Order) -> bool {
        order == self.order || (self.files.is_empty() && self.queues.values().all(Drain::is_done))
    }

    /// Sets the order; false if files are being drained in another order.
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

    /// A file is prepared: queues its bytes for their targets.
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
        self.notify(now, queue);
    }

    /// Requests grants from the arbiter for the bytes that a job has queued.
    fn notify(&mut self, now: Tick, queue: JobId) {
        if self.order != Order::Trio {
            return;
        }
        let priority = self.priorities.get(&queue).copied().unwrap_or(0);
        let urgency = Urgency { priority, fill: self.fill };
        let left = self.waiting(queue);
        self.grants.notify(now, queue, urgency, &left);
    }

    /// The bytes that wait in a queue, by target.
    fn waiting(&self, queue: JobId) -> Vec<(TargetId, Bytes)> {
        if queue == DIRECT {
            return self.direct_bytes.iter().map(|(target, bytes)| (*target, Bytes(*bytes))).collect();
        }
        self.queues.get(&queue).map_or_else(Vec::new, |drain| drain.targets().collect())
    }

    fn waiting_at(&self, queue: JobId, target: TargetId) -> Bytes {
        if queue == DIRECT {
            return Bytes(self.direct_bytes.get(&target).copied().unwrap_or(0));
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

    /// Bytes of a file that workers write, or have written and not synced.
    pub(super) fn under_way(&self, file: FileId) -> u64 {
        let queue = self.files.get(&file).and_then(|entry| self.queues.get(&entry.queue));
        queue.map_or(0, |drain| drain.under_way(file).0)
    }

    /// Whether all bytes of one of these queues are assigned to workers. Their writes should then be synced, so that a
    /// small job finishes however much other jobs have left.
    pub(super) fn has_given_all_of(&self, queues: &BTreeSet<JobId>) -> bool {
        queues.iter().any(|queue| self.queues.get(queue).is_none_or(|drain| drain.targets().next().is_none()))
    }

    /// Whether the scanner should choose more files.
    pub(super) fn wants_files(&self) -> bool {
        self.prepare.len() < 64 && self.queued() < AHEAD
    }

    /// Whether there is something to do.
    pub(super) fn has_work(&self) -> bool {
        !(self.prepare.is_empty() && self.finish.is_empty() && self.dirs.is_empty()) || self.queued() > 0
    }

    /// Whether nothing is queued and no worker is busy.
    pub(super) fn is_idle(&self) -> bool {
        self.busy == 0 && self.prepare.is_empty() && self.finish.is_empty() && self.queued() == 0
    }

    /// The next task for a worker; `unsynced` tells whether its batch should be synced if there is nothing else to do.
    pub(super) fn task(&mut self, now: (Tick, Instant), unsynced: bool) -> Option<Task> {
        if self.failures.is_paused(now.1) {
            return unsynced.then_some(Task::Sync);
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
        if unsynced {
            return Some(Task::Sync);
        }
        let is_due = self.busy == 0 || self.tickets.values().any(Ticket::waits_for_dirs);
        let dir = self.dirs.iter().copied().find(|&dir| self.failures.may_try(now.1, dir));
        match dir.filter(|_| is_due) {
            Some(dir) => {
                self.dirs.remove(&dir);
                Some(Task::Finish(dir))
            }
            None => None,
        }
    }

    fn next_write(&mut self, now: (Tick, Instant)) -> Option<Assignment> {
        if self.order != Order::Trio {
            if self.writing.values().sum::<u32>() >= self.max_writers || self.leaves_last_slot(now.1) {
                return None;
            }
            let random = self.rng.next_u64();
            let (id, batch) = self.queues.get_mut(&ALL)?.next(Pick::Any(random >> 33))?;
            return Some(self.begin(ALL, id, batch));
        }
        loop {
            let mut given_back = false;
            for (queue, target) in self.grants.granted() {
                if queue == DIRECT {
                    continue;
                }
                let streams = self.grants.streams(target);
                let is_full =
                    self.gauge(target).is_some_and(|gauge| !gauge.may_begin(Side::Drain, streams, now.1));
                let writers = self.writing.get(&(queue, target)).copied().unwrap_or(0);
                if is_full || writers >= self.grants.streams_per_job(target) {
                    continue;
                }
                let next = self.queues.get_mut(&queue).and_then(|drain| drain.next(Pick::Granted(&[target])));
                if let Some((id, batch)) = next {
                    return Some(self.begin(queue, id, batch));
                }
                if self.waiting_at(queue, target).0 == 0 {
                    self.grants.give_back(now.0, (queue, target), Bytes(0));
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

    /// Whether direct writers wait for the last slot of some target, and it is their turn. An order without an arbiter
    /// does not know in advance to which target it writes.
    fn leaves_last_slot(&mut self, now: Instant) -> bool {
        let grants = &self.grants;
        let mut awaited =
            (0..).map(TargetId).zip(&mut self.gauges).filter(|(_, gauge)| gauge.direct_waiters > 0);
        awaited.any(|(target, gauge)| !gauge.may_begin(Side::Drain, grants.streams(target), now))
    }

    fn begin(&mut self, queue: JobId, id: BatchId, batch: Batch) -> Assignment {
        let streams = self.grants.streams(batch.target);
        if let Some(gauge) = self.gauge(batch.target) {
            gauge.slots.begin(Side::Drain, streams, gauge.direct_waiters > 0);
        }
        *self.writing.entry((queue, batch.target)).or_default() += 1;
        Assignment { queue, id, batch }
    }

    /// Most writers at any target at once.
    pub(super) fn streams(&self) -> u32 {
        let targets = 0..u32::try_from(self.gauges.len()).unwrap_or(u32::MAX);
        targets.map(|target| self.grants.streams(TargetId(target))).max().unwrap_or(1)
    }

    /// Gives a direct writer a slot at a target, if one is free. Direct writers and the drain take turns for the last
    /// slot.
    pub(super) fn enter(&mut self, target: TargetId, now: Instant) -> bool {
        if self.is_arbitrated() && !self.grants.may_write(target) {
            return false;
        }
        let (streams, waits) = (self.grants.streams(target), self.queued_at(target) > 0);
        let Some(gauge) = self.gauge(target) else { return true };
        if !waits {
            gauge.slots.leave(Side::Drain);
            gauge.slots.leave(Side::Direct);
        }
        let may = gauge.may_begin(Side::Direct, streams, now);
        if may {
            gauge.slots.begin(Side::Direct, streams, waits);
        }
        may
    }

    /// One direct writer more or less waits for a slot at a target.
    pub(super) fn set_waiting(&mut self, target: TargetId, waits: bool) {
        self.direct_waiters =
            if waits { self.direct_waiters + 1 } else { self.direct_waiters.saturating_sub(1) };
        if let Some(gauge) = self.gauge(target) {
            gauge.direct_waiters =
                if waits { gauge.direct_waiters + 1 } else { gauge.direct_waiters.saturating_sub(1) };
            if gauge.direct_waiters == 0 {
                gauge.slots.leave(Side::Direct);
            }
        }
    }

    /// Sets how many bytes wait to be written directly to a target.
    pub(super) fn wait_direct(&mut self, now: Tick, target: TargetId, bytes: u64) {
        let before = match bytes {
            0 => self.direct_bytes.remove(&target),
            _ => self.direct_bytes.insert(target, bytes),
        };
        if self.is_arbitrated() && before.is_none() != (bytes == 0) {
            self.notify(now, DIRECT);
        }
    }

    /// A direct writer releases its slot at a target after writing `bytes`.
    pub(super) fn leave(&mut self, now: Tick, target: TargetId, bytes: u64) {
        if let Some(gauge) = self.gauge(target) {
            gauge.slots.end();
            gauge.written += bytes;
        }
        if self.is_arbitrated() {
            let left = self.waiting_at(DIRECT, target);
            self.grants.wrote(now, (DIRECT, target), bytes, left);
        }
    }

    /// Whether other servers write to the same targets, with grants from arbiters.
    fn is_arbitrated(&self) -> bool {
        self.order == Order::Trio && !self.grants.is_alone()
    }

    /// Whether a drain request waits for a file.
    pub(super) fn is_wanted(&self, file: FileId) -> bool {
        self.tickets.values().any(|ticket| ticket.pending.contains(&file))
    }

    /// A worker releases its slot at a target after writing `bytes`.
    pub(super) fn wrote(&mut self, now: Tick, queue: JobId, target: TargetId, bytes: u64) {
        if let Some(gauge) = self.gauge(target) {
            gauge.slots.end();
            gauge.written += bytes;
            if gauge.direct_waiters > 0 {
                gauge.slots.wait(Side::Direct);
            }
        }
        if let Some(writers) = self.writing.get_mut(&(queue, target)) {
            *writers -= 1;
            if *writers == 0 {
                self.writing.remove(&(queue, target));
            }
        }
        let full = match self.grants.is_alone() {
            true => self.queued_at(target) > 0,
            false => self.grants.is_full(target),
        };
        let learner = self.learner.as_mut().filter(|_| self.grants.is_own(target));
        if let Some(alpha) = learner.and_then(|learner| learner.wrote(now, target, bytes, full)) {
            self.grants.set_alpha(now, target, alpha);
        }
        let left = self.waiting_at(queue, target);
        self.grants.wrote(now, (queue, target), bytes, left);
    }

    /// Records how many bytes another server has written to targets of this server since it started.
    pub(super) fn note_remote_writes(&mut self, now: Tick, from: ServerId, written: &[(u32, u64)]) {
        let Some(learner) = &mut self.learner else { return };
        for &(target, written) in written {
            let target = TargetId(target);
            if !self.grants.is_own(target) {
                continue;
            }
            let full = self.grants.is_full(target);
            if let Some(alpha) = learner.remote_wrote(now, (from, target), written, full) {
                self.grants.set_alpha(now, target, alpha);
            }
        }
    }

    /// The number of writers a target may have, or 0 if only its arbiter knows the learnt number.
    pub(super) fn alpha(&self, target: TargetId) -> u32 {
        match self.learner.is_none() || self.grants.is_own(target) {
            true => self.grants.alpha(target),
            false => 0,
        }
    }

    /// The bytes that this server has written to the targets of another arbiter, if that arbiter learns α from them.
    pub(super) fn written_at(&self, arbiter: ServerId) -> Vec<(u32, u64)> {
        if self.learner.is_none() {
            return Vec::new();
        }
        let of = |target: TargetId| Some((target.0, self.gauges.get(target.0 as usize)?.written));
        self.grants.given_by(arbiter).filter_map(of).collect()
    }

    /// Writes are synced and their bytes freed. True if these were the last bytes of the file.
    pub(super) fn synced(&mut self, file: FileId, writes: &[(JobId, BatchId)]) -> bool {
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

    /// A file is drained, as far as it was queued.
    pub(super) fn finished(&mut self, file: FileId) {
        self.files.remove(&file);
        self.failures.resolved(file);
    }

    /// A file was removed: there is nothing to drain.
    pub(super) fn gone(&mut self, file: FileId) {
        self.drop_file(file);
        self.failures.forget(file);
        self.tickets.values_mut().for_each(|ticket| ticket.gone(file));
    }

    /// A file could not be drained; it is retried later. A directory that exists in the back end still gets its time.
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

    /// Whether this directory waits for its time to be set.
    pub(super) fn waits_for(&self, dir: FileId) -> bool {
        self.dirs.contains(&dir)
    }

    /// Called periodically: updates rates and renews the requests for grants.
    pub(super) fn tick(&mut self, now: (Tick, Instant), fill: u16) {
        self.fill = fill;
        self.gauges.iter_mut().for_each(|gauge| gauge.update(now.1));
        let direct_bytes = (self.is_arbitrated() && !self.direct_bytes.is_empty()).then_some(DIRECT);
        let all: Vec<JobId> = self.queues.keys().copied().chain(direct_bytes).collect();
        all.into_iter().for_each(|queue| self.notify(now.0, queue));
        let (queues, direct_bytes) = (&self.queues, &self.direct_bytes);
        self.grants.tick(now.0, |queue, target| match queue {
            DIRECT => Bytes(direct_bytes.get(&target).copied().unwrap_or(0)),
            queue => queues.get(&queue).map_or(Bytes(0), |drain| drain.waiting(target)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::grants::Terms;
    use super::*;
    use std::time::Duration;

    #[test]
    fn file_changed_while_it_is_finalized_is_drained_again() {
        let (server, now, dir, file) = (ServerId(0), Instant::now(), FileId(1), FileId(2));
        let terms = Terms::usual(vec![server], vec![2]);
        let mut drain_queue =
            DrainQueue::new(Order::Trio, Bytes::mib(1), Grants::new(terms), vec![Gauge::new(now)]);
        // A directory gets its attributes without an entry of its own, a file has one.
        drain_queue.touch_dirs(&[dir]);
        assert!(matches!(drain_queue.task((Tick(0), now), false), Some(Task::Finish(found)) if found == dir));
        assert!(drain_queue.choose(now, file));
        assert!(
            matches!(drain_queue.task((Tick(0), now), false), Some(Task::Prepare(found)) if found == file)
        );
        for one in [dir, file] {
            drain_queue.begin_finalizing(one);
            drain_queue.want(now, one);
            assert!(!drain_queue.finalized(now, one), "a change came meanwhile");
            assert!(drain_queue.files.contains_key(&one));
            let task = drain_queue.task((Tick(0), now), false);
            assert!(matches!(task, Some(Task::Prepare(found)) if found == one), "{task:?}");
            drain_queue.begin_finalizing(one);
            assert!(drain_queue.finalized(now, one) && !drain_queue.files.contains_key(&one));
        }
        assert!(drain_queue.task((Tick(0), now), false).is_none());
    }

    #[test]
    fn writes_of_a_file_that_changed_jobs_complete_in_their_own_queues() {
        let (server, now) = (ServerId(0), Instant::now());
        let terms = Terms::usual(vec![server], vec![2]);
        let mut drain_queue =
            DrainQueue::new(Order::Trio, Bytes::mib(1), Grants::new(terms), vec![Gauge::new(now)]);
        let layout = Layout::whole(TargetId(0));
        let dirty = |start: u64, job| Dirty {
            span: Span::new(start, start + 10),
            stamp: Stamp(1),
            job: JobId(job),
            uid: Uid(0),
        };
        let next = |drain_queue: &mut DrainQueue, file, pieces: &[Dirty]| {
            drain_queue.choose(now + Duration::from_secs(99), file);
            drain_queue.enqueue(Tick(0), (file, "/f".to_owned(), Uid(0)), &layout, pieces, 1);
            match drain_queue.task((Tick(0), now), false) {
                Some(Task::Prepare(_)) => drain_queue.task((Tick(0), now), false),
                task => task,
            }
        };
        let (one, other) = (FileId(1), FileId(2));
        let Some(Task::Write(first)) = next(&mut drain_queue, one, &[dirty(0, 1)]) else { panic!("a write") };
        drain_queue.wrote(Tick(0), first.queue, TargetId(0), 10);
        // The write fails, and the file is queued again after another job has written to it.
        drain_queue.failed(now, one, false, forebay_model::ErrorKind::Io.into());
        let Some(Task::Write(second)) = next(&mut drain_queue, one, &[dirty(20, 2)]) else {
            panic!("another")
        };
        drain_queue.wrote(Tick(0), second.queue, TargetId(0), 10);
        let Some(Task::Write(third)) = next(&mut drain_queue, other, &[dirty(0, 1)]) else {
            panic!("a third")
        };
        assert_eq!((first.queue, second.queue, third.queue), (JobId(1), JobId(2), JobId(1)));
        assert!(drain_queue.synced(one, &[(first.queue, first.id), (second.queue, second.id)]));
        assert!(drain_queue.files.contains_key(&other) && !drain_queue.can_order(Order::Offset));
        assert!(drain_queue.synced(other, &[(third.queue, third.id)]));
        assert_eq!(drain_queue.queues.len(), 0);
    }
}
