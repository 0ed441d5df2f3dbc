//! The jobs a scheduler knows, and their requests that wait.

use super::cost::{Cost, Ticket};
use super::scheduler::Request;
use forebay_model::{Error, ErrorKind, Job, JobId, Result};
use std::collections::{HashMap, VecDeque};

/// Most jobs that one scheduler knows at once.
pub const MAX_JOBS: usize = 65_536;

/// Among so many slots a job is looked for one by one.
const FEW: usize = 8;

/// Where requests of jobs go that were never announced.
pub(super) const STRANGERS: usize = 0;

/// Jobs by slot. A slot is a small number that other tables use as their index; it is used again after its job has
/// gone.
#[derive(Debug)]
pub(super) struct Book {
    slots: Vec<Slot>,
    /// By slot, apart from what every request touches; `None` while a slot is free.
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
    /// Whether it is in use, by a job that was announced.
    known: bool,
    leaving: bool,
}

impl Slot {
    fn of(id: JobId, known: bool) -> Slot {
        Slot { id, queue: VecDeque::new(), running: 0, known, leaving: false }
    }
}

/// What came of a job's being announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Joined {
    /// It is new and has this slot.
    New(usize),
    /// It was known and is now described otherwise.
    Changed(usize),
    /// It was known as it is.
    Same,
}

impl Book {
    pub(super) fn new() -> Book {
        let one = |text: &str| text.to_owned();
        let stranger = Job { label: one("?"), user: one("?"), group: one("?"), nodes: 1, priority: 1 };
        let slots = vec![Slot::of(JobId(u64::MAX), false)];
        Book { slots, jobs: vec![Some(stranger)], index: HashMap::new(), free: Vec::new(), waiting: 0 }
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
            let text =
                format!("{MAX_JOBS} jobs share this server already: job {} is one too many", job.label);
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

    /// A job has gone; its slot, if nothing keeps it.
    pub(super) fn leave(&mut self, id: JobId) -> Option<usize> {
        let slot = *self.index.get(&id)?;
        self.slots[slot].leaving = true;
        self.forget(slot)
    }

    /// Gives a slot back if its job has gone and nothing of it waits or runs.
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

    /// A request waits; its slot, and whether it is the only one of its job.
    pub(super) fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) -> (usize, bool) {
        let slot = self.slot(job);
        let entry = &mut self.slots[slot];
        entry.queue.push_back(Request { job, cost, ticket });
        self.waiting += 1;
        (slot, entry.queue.len() == 1)
    }

    /// Takes the first request of a job that has one; whether it was the last.
    pub(super) fn pop(&mut self, slot: usize) -> (Ticket, Cost, bool) {
        let entry = &mut self.slots[slot];
        let Request { ticket, cost, .. } =
            entry.queue.pop_front().expect("a request waits where one is served");
        entry.running += 1;
        self.waiting -= 1;
        (ticket, cost, entry.queue.is_empty())
    }

    /// A request is done: its slot, and whether its job is forgotten with it.
    pub(super) fn done(&mut self, job: JobId) -> (usize, bool) {
        let slot = match self.slot(job) {
            // It was announced while its request ran, which counts as the strangers' still.
            slot if self.slots[slot].running == 0 => STRANGERS,
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
        // What follows touches a slot anyway, and not the index.
        if self.slots.len() <= FEW {
            return self.slots.iter().rposition(|slot| slot.id == job && slot.known).unwrap_or(STRANGERS);
        }
        self.index.get(&job).copied().unwrap_or(STRANGERS)
    }

    /// Shares by slot, as parts of their sum: only of jobs that are known, and only such as make sense.
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
        self.jobs[slot].as_ref().expect("a slot in use")
    }

    /// The cost of a job's first request, if one waits.
    pub(super) fn head(&self, slot: usize) -> Option<Cost> {
        self.slots[slot].queue.front().map(|request| request.cost)
    }

    /// Reads what is read when something of a job comes or goes.
    pub(super) fn glance(&self, slot: usize, step: usize) -> usize {
        match step {
            1 => self.slots[slot].queue.len(),
            2 => self.head(slot).map_or(0, |cost| cost.0 as usize),
            _ => 0,
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many slots there are, used or not.
    pub(super) fn size(&self) -> usize {
        self.slots.len()
    }

    /// The slots in use; that of the strangers among them while one waits or runs.
    pub(super) fn members(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.slots.len()).filter(|&slot| {
            let entry = &self.slots[slot];
            if slot == STRANGERS {
                !entry.queue.is_empty() || entry.running > 0
            } else {
                self.jobs[slot].is_some()
            }
        })
    }
}
