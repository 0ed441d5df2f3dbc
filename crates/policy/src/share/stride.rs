//! Deterministic fair sharing in virtual time.

use super::book::{Book, Joined};
use super::cost::{Cost, Tick, Ticket};
use super::dice::Dice;
use super::heap::Heap;
use super::policy::Policy;
use super::scheduler::{Next, Request, Scheduler};
use super::tree::Tree;
use forebay_model::{Job, JobId, Result};

/// Always serves the job that is furthest behind its share, at every level of the policy (hierarchical start-time
/// fair queueing). A decision costs O(levels · log jobs).
///
/// **Bound.** Let every request cost at most *c*, and let job *j* have share *s* of *n* jobs. While a request of *j*
/// is first of its job, less than *c*/*s* + *n*·*c* is served of others per level of the policy, whatever they do.
#[derive(Debug)]
pub struct Stride {
    book: Book,
    tree: Tree<Heap>,
    /// Never thrown: a heap does not draw lots.
    dice: Dice,
}

impl Stride {
    /// Shares as this policy says.
    #[must_use]
    pub fn new(policy: &Policy) -> Stride {
        Stride { book: Book::new(), tree: Tree::new(policy), dice: Dice::new(0) }
    }
}

impl Scheduler for Stride {
    fn join(&mut self, job: &Job) -> Result<()> {
        match self.book.join(job)? {
            Joined::New(slot) => self.tree.add(&self.book, slot),
            Joined::Changed(slot) => {
                self.tree.remove(slot, self.book.head(slot).is_some());
                self.tree.add(&self.book, slot);
            }
            Joined::Same => {}
        }
        Ok(())
    }

    fn leave(&mut self, job: JobId) {
        if let Some(slot) = self.book.leave(job) {
            self.tree.remove(slot, false);
        }
    }

    fn set_policy(&mut self, policy: &Policy) {
        let slots: Vec<usize> = self.book.members().collect();
        self.tree.rebuild(policy, &self.book, &slots);
    }

    fn assign(&mut self, shares: &[(JobId, f64)]) {
        let shares = self.book.by_slot(shares);
        self.tree.assign(&self.book, &shares);
    }

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) {
        let (slot, first) = self.book.arrive(job, cost, ticket);
        if !self.tree.has(slot) {
            self.tree.add(&self.book, slot);
        } else if first {
            self.tree.wake(slot);
        }
    }

    fn next(&mut self, _now: Tick) -> Next {
        let Some(slot) = self.tree.pick(&mut self.dice) else { return Next::Nobody };
        let (ticket, cost, last) = self.book.pop(slot);
        self.tree.charge(slot, cost.amount());
        if last {
            self.tree.sleep(slot);
        }
        Next::Turn(ticket)
    }

    fn done(&mut self, job: JobId, asked: Cost, actual: Cost) {
        let (slot, gone) = self.book.done(job);
        if gone {
            self.tree.remove(slot, false);
        } else if asked != actual && self.tree.has(slot) {
            self.tree.charge(slot, actual.amount() - asked.amount());
        }
    }

    fn waiting(&self) -> usize {
        self.book.waiting()
    }

    fn glance(&self, job: JobId, step: usize) -> usize {
        if step == 0 {
            return self.book.waiting() + self.book.size() + self.tree.awake() + self.tree.size();
        }
        let slot = self.book.slot(job);
        self.book.glance(slot, step) + self.tree.glance(slot, step)
    }

    fn take_all(&mut self) -> Vec<Request> {
        for slot in self.book.members().collect::<Vec<_>>() {
            if self.book.head(slot).is_some() {
                self.tree.sleep(slot);
            }
        }
        self.book.take_all()
    }
}
