//! Shares of individual jobs, for schedulers without a hierarchy; recomputed lazily after a change.

use super::job_table::{JobTable, UNANNOUNCED};
use super::matrix::shares;
use super::policy::Policy;
use forebay_model::{Job, JobId};
use std::collections::HashMap;

/// Every job's part of the device.
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

    /// Marks the parts stale after jobs joined, left or changed.
    pub(super) fn touch(&mut self) {
        self.stale = true;
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether unannounced jobs have a part.
    pub(super) fn has_unannounced(&self) -> bool {
        self.parts.first().is_some_and(|(slot, _)| *slot == UNANNOUNCED)
    }

    /// Slots in use, in order, with their parts, which sum to one.
    pub(super) fn parts(&mut self, job_table: &JobTable) -> &[(usize, f64)] {
        if std::mem::take(&mut self.stale) {
            self.parts = self.compute(job_table);
        }
        &self.parts
    }

    fn compute(&self, job_table: &JobTable) -> Vec<(usize, f64)> {
        let slots: Vec<usize> = job_table.members().collect();
        let assigned: HashMap<usize, f64> = job_table.by_slot(&self.assigned).into_iter().collect();
        if assigned.is_empty() {
            let jobs: Vec<Job> = slots.iter().map(|&slot| job_table.job(slot).clone()).collect();
            let parts = shares(&self.policy, &jobs);
            return slots.into_iter().zip(parts).collect();
        }
        let average = 1.0 / assigned.len() as f64;
        let weight = |slot: usize| assigned.get(&slot).copied().unwrap_or(average).max(average / 1_000.0);
        let total: f64 = slots.iter().map(|&slot| weight(slot)).sum();
        slots.into_iter().map(|slot| (slot, weight(slot) / total)).collect()
    }
}
