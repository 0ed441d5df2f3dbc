//! Shares as a tree for display.

use super::matrix::{label, transitions};
use super::policy::Policy;
use forebay_model::Job;

/// One line of the tree.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Depth: 0 at the top.
    pub depth: usize,
    /// `group astro`, `user ada`, `job 4711`.
    pub name: String,
    /// Share of the whole.
    pub share: f64,
}

/// The tree of a policy over these jobs, parents before their children, siblings in the order of the jobs.
#[must_use]
pub fn outline(policy: &Policy, jobs: &[Job]) -> Vec<Line> {
    let matrices = transitions(policy, jobs);
    let words: Vec<_> = policy.inner().chain([super::policy::Level::Job]).collect();
    let mut above = vec![1.0];
    let mut shares = Vec::new();
    for matrix in &matrices {
        above = matrix.apply(&above);
        shares.push(above.clone());
    }
    // The path of each job, from its ancestors; sorting puts siblings together.
    let mut paths: Vec<(Vec<usize>, &Job)> = jobs
        .iter()
        .enumerate()
        .map(|(column, job)| {
            let mut at = column;
            let mut path = vec![column];
            for matrix in matrices.iter().skip(1).rev() {
                at = matrix.columns()[at].0;
                path.insert(0, at);
            }
            (path, job)
        })
        .collect();
    paths.sort_by(|one, other| one.0.cmp(&other.0));
    let mut lines = Vec::new();
    let mut before: &[usize] = &[];
    for (path, job) in &paths {
        let same = before.iter().zip(path).take_while(|(a, b)| a == b).count();
        for depth in same..path.len() {
            let name = format!("{} {}", words[depth].word(), label(words[depth], job));
            lines.push(Line { depth, name, share: shares[depth][path[depth]] });
        }
        before = path;
    }
    lines
}
