//! Deterministic fair sharing in virtual time.

use super::cost::{Cost, Tick, Ticket};
use super::heap::Heap;
use super::job_table::{JobTable, Joined};
use super::policy::Policy;
use super::rng::Rng;
use super::scheduler::{Next, Request, Scheduler};
use super::tree::Tree;
use forebay_model::{Job, JobId, Result};

/// Always serves the job that is furthest below its share, at every level of the policy (hierarchical
/// start-time fair queueing). A decision costs O(levels · log jobs).
///
/// **Bound.** Let every request cost at most *c*, and let job *j* have share *s* of *n* jobs. While a request
/// of *j* is the first of its job, the scheduler serves less than *c*/*s* + *n*·*c* of other jobs per level
/// of the policy.
#[derive(Debug)]
pub struct Stride {
    job_table: JobTable,
    tree: Tree<Heap>,
    /// Unused: a heap needs no random numbers.
    rng: Rng,
}

impl Stride {
    /// Follows the shares of `policy`.
    #[must_use]
    pub fn new(policy: &Policy) -> Stride {
        Stride { job_table: JobTable::new(), tree: Tree::new(policy), rng: Rng::new(0) }
    }
}

impl Scheduler for Stride {
    fn join(&mut self, job: &Job) -> Result<()> {
        match self.job_table.join(job)? {
            Joined::New(slot) => self.tree.add(&self.job_table, slot),
            Joined::Changed(slot) => {
                self.tree.remove(slot, self.job_table.head(slot).is_some());
                self.tree.add(&self.job_table, slot);
            }
            Joined::Same => {}
        }
        Ok(())
    }

    fn leave(&mut self, job: JobId) {
        if let Some(slot) = self.job_table.leave(job) {
            self.tree.remove(slot, false);
        }
    }

    fn set_policy(&mut self, policy: &Policy) {
        let slots: Vec<usize> = self.job_table.members().collect();
        self.tree.rebuild(policy, &self.job_table, &slots);
    }

    fn assign(&mut self, shares: &[(JobId, f64)]) {
        let shares = self.job_table.by_slot(shares);
        self.tree.assign(&self.job_table, &shares);
    }

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) {
        let (slot, first) = self.job_table.arrive(job, cost, ticket);
        if !self.tree.has(slot) {
            self.tree.add(&self.job_table, slot);
        } else if first {
            self.tree.wake(slot);
        }
    }

    fn next(&mut self, _now: Tick) -> Next {
        let Some(slot) = self.tree.pick(&mut self.rng) else { return Next::Idle };
        let (ticket, cost, last) = self.job_table.pop(slot);
        self.tree.charge(slot, cost.amount());
        if last {
            self.tree.sleep(slot);
        }
        Next::Turn(ticket)
    }

    fn done(&mut self, job: JobId, asked: Cost, actual: Cost) {
        let (slot, gone) = self.job_table.done(job);
        if gone {
            self.tree.remove(slot, false);
        } else if asked != actual && self.tree.has(slot) {
            self.tree.charge(slot, actual.amount() - asked.amount());
        }
    }

    fn waiting(&self) -> usize {
        self.job_table.waiting()
    }

    fn prefetch(&self, job: JobId, step: usize) -> usize {
        if step == 0 {
            return self.job_table.waiting() + self.job_table.size() + self.tree.awake() + self.tree.size();
        }
        let slot = self.job_table.slot(job);
        self.job_table.prefetch(slot, step) + self.tree.prefetch(slot, step)
    }

    fn take_all(&mut self) -> Vec<Request> {
        for slot in self.job_table.members().collect::<Vec<_>>() {
            if self.job_table.head(slot).is_some() {
                self.tree.sleep(slot);
            }
        }
        self.job_table.take_all()
    }
}
