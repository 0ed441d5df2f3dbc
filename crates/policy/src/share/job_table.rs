//! The jobs a scheduler knows, with their waiting requests.

use super::cost::{Cost, Ticket};
use super::scheduler::Request;
use forebay_model::{Error, ErrorKind, Job, JobId, Result};
use std::collections::{HashMap, VecDeque};

/// Most jobs that one scheduler tracks at once.
pub const MAX_JOBS: usize = 65_536;

/// Up to this many slots, a linear search finds a job faster than the hash index.
const FEW: usize = 8;

/// Slot for the requests of jobs that were never announced.
pub(super) const UNANNOUNCED: usize = 0;

/// Jobs by slot. A slot is a small number that other tables use as their index. It is reused after its job is
/// gone.
#[derive(Debug)]
pub(super) struct JobTable {
    slots: Vec<Slot>,
    /// By slot, kept apart from the fields that every request touches; `None` while a slot is free.
    jobs: Vec<Option<Job>>,
    index: HashMap<JobId, usize>,
    free: Vec<usize>,
    waiting: usize,
}

#[derive(Debug)]
struct Slot {
    id: JobId,
    queue: VecDeque<Request>,
    running: u32,
    /// Whether an announced job uses the slot.
    known: bool,
    leaving: bool,
}

impl Slot {
    fn of(id: JobId, known: bool) -> Slot {
        Slot { id, queue: VecDeque::new(), running: 0, known, leaving: false }
    }
}

/// Result of announcing a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Joined {
    /// The job is new and has this slot.
    New(usize),
    /// The job was known and its description changed.
    Changed(usize),
    /// The job was known with the same description.
    Same,
}

impl JobTable {
    pub(super) fn new() -> JobTable {
        let one = |text: &str| text.to_owned();
        let unannounced = Job { label: one("?"), user: one("?"), group: one("?"), nodes: 1, priority: 1 };
        let slots = vec![Slot::of(JobId(u64::MAX), false)];
        JobTable { slots, jobs: vec![Some(unannounced)], index: HashMap::new(), free: Vec::new(), waiting: 0 }
    }

    pub(super) fn join(&mut self, job: &Job) -> Result<Joined> {
        let id = job.id();
        if let Some(&slot) = self.index.get(&id) {
            self.slots[slot].leaving = false;
            if self.jobs[slot].as_ref() == Some(job) {
                return Ok(Joined::Same);
            }
            self.jobs[slot] = Some(job.clone());
            return Ok(Joined::Changed(slot));
        }
        if self.index.len() >= MAX_JOBS {
            let text = format!(
                "job {}: this server already has the most jobs it can schedule, {MAX_JOBS}",
                job.label
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::of(id, true));
            self.jobs.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Slot::of(id, true);
        self.jobs[slot] = Some(job.clone());
        self.index.insert(id, slot);
        Ok(Joined::New(slot))
    }

    /// Marks a job as gone. Returns its slot if no request keeps it.
    pub(super) fn leave(&mut self, id: JobId) -> Option<usize> {
        let slot = *self.index.get(&id)?;
        self.slots[slot].leaving = true;
        self.forget(slot)
    }

    /// Frees a slot if its job is gone and no request of it waits or runs.
    fn forget(&mut self, slot: usize) -> Option<usize> {
        let gone = &mut self.slots[slot];
        if !gone.leaving || !gone.queue.is_empty() || gone.running > 0 {
            return None;
        }
        gone.known = false;
        self.index.remove(&gone.id);
        self.jobs[slot] = None;
        self.free.push(slot);
        Some(slot)
    }

    /// Queues a request. Returns its slot, and whether it is the only waiting request of its job.
    pub(super) fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) -> (usize, bool) {
        let slot = self.slot(job);
        let entry = &mut self.slots[slot];
        entry.queue.push_back(Request { job, cost, ticket });
        self.waiting += 1;
        (slot, entry.queue.len() == 1)
    }

    /// Takes the first request of a job that has one. Returns whether it was the last.
    pub(super) fn pop(&mut self, slot: usize) -> (Ticket, Cost, bool) {
        let entry = &mut self.slots[slot];
        let Request { ticket, cost, .. } =
            entry.queue.pop_front().expect("a served job has a waiting request");
        entry.running += 1;
        self.waiting -= 1;
        (ticket, cost, entry.queue.is_empty())
    }

    /// Completes a request. Returns its slot, and whether the job was removed with it.
    pub(super) fn done(&mut self, job: JobId) -> (usize, bool) {
        let slot = match self.slot(job) {
            // The job was announced while its request ran; that request still counts in the unannounced slot.
            slot if self.slots[slot].running == 0 => UNANNOUNCED,
            slot => slot,
        };
        self.slots[slot].running = self.slots[slot].running.saturating_sub(1);
        (slot, self.forget(slot).is_some())
    }

    pub(super) fn take_all(&mut self) -> Vec<Request> {
        let mut all: Vec<Request> = Vec::with_capacity(self.waiting);
        for slot in &mut self.slots {
            all.extend(slot.queue.drain(..));
        }
        self.waiting = 0;
        all.sort_by_key(|request| request.ticket);
        all
    }

    pub(super) fn slot(&self, job: JobId) -> usize {
        // The caller touches the slot next anyway, but not the index.
        if self.slots.len() <= FEW {
            return self.slots.iter().rposition(|slot| slot.id == job && slot.known).unwrap_or(UNANNOUNCED);
        }
        self.index.get(&job).copied().unwrap_or(UNANNOUNCED)
    }

    /// Shares by slot, normalised to sum to one. Skips unknown jobs and shares that are negative or not
    /// finite.
    pub(super) fn by_slot(&self, shares: &[(JobId, f64)]) -> Vec<(usize, f64)> {
        let sane = |share: f64| share.is_finite() && share >= 0.0;
        let known = shares.iter().filter(|(_, share)| sane(*share));
        let mut known: Vec<(usize, f64)> =
            known.filter_map(|(job, share)| Some((*self.index.get(job)?, *share))).collect();
        let total: f64 = known.iter().map(|(_, share)| share).sum();
        if !(total.is_finite() && total > 0.0) {
            return Vec::new();
        }
        known.iter_mut().for_each(|(_, share)| *share /= total);
        known
    }

    pub(super) fn job(&self, slot: usize) -> &Job {
        self.jobs[slot].as_ref().expect("slot is in use")
    }

    /// The cost of a job's first request, if one waits.
    pub(super) fn head(&self, slot: usize) -> Option<Cost> {
        self.slots[slot].queue.front().map(|request| request.cost)
    }

    /// Prefetches the memory that an arrival or completion of this job reads.
    pub(super) fn prefetch(&self, slot: usize, step: usize) -> usize {
        match step {
            1 => self.slots[slot].queue.len(),
            2 => self.head(slot).map_or(0, |cost| cost.0 as usize),
            _ => 0,
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many slots there are, used or free.
    pub(super) fn size(&self) -> usize {
        self.slots.len()
    }

    /// The slots in use. The unannounced slot is among them while one of its requests waits or runs.
    pub(super) fn members(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.slots.len()).filter(|&slot| {
            let entry = &self.slots[slot];
            if slot == UNANNOUNCED {
                !entry.queue.is_empty() || entry.running > 0
            } else {
                self.jobs[slot].is_some()
            }
        })
    }
}
