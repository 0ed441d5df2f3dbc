//! Shares of jobs one by one, for schedulers that know no hierarchy; computed when something has changed.

use super::book::{Book, STRANGERS};
use super::matrix::shares;
use super::policy::Policy;
use forebay_model::{Job, JobId};
use std::collections::HashMap;

/// Every job's part of the whole.
#[derive(Debug)]
pub(super) struct Flat {
    policy: Policy,
    assigned: Vec<(JobId, f64)>,
    parts: Vec<(usize, f64)>,
    stale: bool,
}

impl Flat {
    pub(super) fn new(policy: &Policy) -> Flat {
        Flat { policy: policy.clone(), assigned: Vec::new(), parts: Vec::new(), stale: true }
    }

    pub(super) fn set_policy(&mut self, policy: &Policy) {
        self.policy = policy.clone();
        self.stale = true;
    }

    pub(super) fn assign(&mut self, shares: &[(JobId, f64)]) {
        self.assigned = shares.to_vec();
        self.stale = true;
    }

    /// Jobs have come, gone or changed.
    pub(super) fn touch(&mut self) {
        self.stale = true;
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether strangers have a part.
    pub(super) fn has_strangers(&self) -> bool {
        self.parts.first().is_some_and(|(slot, _)| *slot == STRANGERS)
    }

    /// Slots in use, in order, and their parts, which sum to one.
    pub(super) fn parts(&mut self, book: &Book) -> &[(usize, f64)] {
        if std::mem::take(&mut self.stale) {
            self.parts = self.compute(book);
        }
        &self.parts
    }

    fn compute(&self, book: &Book) -> Vec<(usize, f64)> {
        let slots: Vec<usize> = book.members().collect();
        let assigned: HashMap<usize, f64> = book.by_slot(&self.assigned).into_iter().collect();
        if assigned.is_empty() {
            let jobs: Vec<Job> = slots.iter().map(|&slot| book.job(slot).clone()).collect();
            let parts = shares(&self.policy, &jobs);
            return slots.into_iter().zip(parts).collect();
        }
        let average = 1.0 / assigned.len() as f64;
        let weight = |slot: usize| assigned.get(&slot).copied().unwrap_or(average).max(average / 1_000.0);
        let total: f64 = slots.iter().map(|&slot| weight(slot)).sum();
        slots.into_iter().map(|slot| (slot, weight(slot) / total)).collect()
    }
}
