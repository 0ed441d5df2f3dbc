//! Shares as a product of transition matrices.
//!
//! Level *i* of a policy is a matrix with one row per entity of the level above and one column per entity of
//! that level; an entry is the column's part of its row. Every row sums to one. Every column has one entry,
//! because an entity has one parent. So a matrix is stored as one (row, part) per column, and multiplying by
//! it costs one multiplication per column instead of rows × columns.

use super::policy::{Level, Policy};
use forebay_model::Job;
use std::collections::HashMap;

/// The matrix of one level.
#[derive(Clone, PartialEq, Debug)]
pub struct Transition {
    rows: usize,
    columns: Vec<(usize, f64)>,
}

impl Transition {
    /// Builds it from each column's row and weight: a part is the weight divided by the row's sum.
    fn from_weights(rows: usize, mut columns: Vec<(usize, f64)>) -> Transition {
        let mut sums = vec![0.0; rows];
        for &(row, weight) in &columns {
            sums[row] += weight;
        }
        for (row, weight) in &mut columns {
            *weight /= sums[*row];
        }
        Transition { rows, columns }
    }

    /// The shares of this level's entities, given the shares of the level above.
    #[must_use]
    pub fn apply(&self, above: &[f64]) -> Vec<f64> {
        assert_eq!(above.len(), self.rows, "rows match the level above");
        self.columns.iter().map(|&(row, part)| above[row] * part).collect()
    }

    /// Each column's row (its parent in the level above) and its part of that row.
    #[must_use]
    pub fn columns(&self) -> &[(usize, f64)] {
        &self.columns
    }

    /// The dense matrix, row by row.
    #[must_use]
    pub fn dense(&self) -> Vec<Vec<f64>> {
        let mut rows = vec![vec![0.0; self.columns.len()]; self.rows];
        for (column, &(row, part)) in self.columns.iter().enumerate() {
            rows[row][column] = part;
        }
        rows
    }
}

/// The matrices of a policy over these jobs, top down; the columns of the last one are the jobs in the given
/// order. For `fifo`, which defines no shares, they are those of `job-fair`.
#[must_use]
pub fn transitions(policy: &Policy, jobs: &[Job]) -> Vec<Transition> {
    let mut parents = vec![0; jobs.len()];
    let mut rows = 1;
    let mut matrices = Vec::new();
    for level in policy.inner() {
        let mut names = HashMap::new();
        let mut columns = Vec::new();
        for (job, parent) in jobs.iter().zip(&mut parents) {
            let column = *names.entry((*parent, label(level, job))).or_insert_with(|| {
                columns.push((*parent, 1.0));
                columns.len() - 1
            });
            *parent = column;
        }
        let count = columns.len();
        matrices.push(Transition::from_weights(rows, columns));
        rows = count;
    }
    let leaf = policy.leaf();
    let columns = jobs.iter().zip(parents).map(|(job, parent)| (parent, leaf.weight(job))).collect();
    matrices.push(Transition::from_weights(rows, columns));
    matrices
}

/// The name that siblings share at a level above jobs.
pub(super) fn label(level: Level, job: &Job) -> &str {
    match level {
        Level::Group => &job.group,
        Level::User => &job.user,
        Level::Job | Level::Size | Level::Priority => &job.label,
    }
}

/// Every job's share of the whole, in the given order; they sum to one.
#[must_use]
pub fn shares(policy: &Policy, jobs: &[Job]) -> Vec<f64> {
    if jobs.is_empty() {
        return Vec::new();
    }
    transitions(policy, jobs).iter().fold(vec![1.0], |above, matrix| matrix.apply(&above))
}
