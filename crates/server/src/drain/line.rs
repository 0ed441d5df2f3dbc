//! Who gets room next: of the jobs whose writers wait for it, the one that has got least of it for its share.

use forebay_model::JobId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A job that nobody gives a share is not forgotten either.
const LEAST: f64 = 1e-6;

/// The jobs that wait for room.
#[derive(Default)]
pub(super) struct Line {
    jobs: Mutex<HashMap<JobId, Stand>>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Stand {
    writers: u32,
    /// Bytes that it got since it came, each as much as its share is small.
    got: f64,
}

impl Line {
    fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, Stand>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A writer of a job waits from now on. A job that comes late has missed nothing.
    pub(super) fn stand(&self, job: JobId) {
        let mut jobs = self.jobs();
        let least = jobs.values().map(|stand| stand.got).fold(f64::INFINITY, f64::min);
        let got = if least.is_finite() { least } else { 0.0 };
        jobs.entry(job).or_insert(Stand { writers: 0, got }).writers += 1;
    }

    /// It waits no more.
    pub(super) fn leave(&self, job: JobId) {
        let mut jobs = self.jobs();
        if let Some(stand) = jobs.get_mut(&job) {
            stand.writers -= 1;
            if stand.writers == 0 {
                jobs.remove(&job);
            }
        }
    }

    /// Whether the next room is for this job.
    pub(super) fn is_next(&self, job: JobId) -> bool {
        let jobs = self.jobs();
        let first = jobs.iter().min_by(|one, other| {
            one.1.got.partial_cmp(&other.1.got).unwrap_or(std::cmp::Ordering::Equal).then(one.0.cmp(other.0))
        });
        first.is_none_or(|(first, _)| *first == job)
    }

    /// All jobs that wait.
    pub(super) fn waiting(&self) -> Vec<JobId> {
        self.jobs().keys().copied().collect()
    }

    /// A job has got so much, and is due such a share.
    pub(super) fn got(&self, job: JobId, bytes: u32, share: f64) {
        if let Some(stand) = self.jobs().get_mut(&job) {
            stand.got += f64::from(bytes) / share.max(LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room for so many pieces goes to whom? Every job has two writers that wait.
    fn given(shares: &[(u64, f64)], pieces: usize) -> Vec<usize> {
        let line = Line::default();
        let jobs: Vec<(JobId, f64)> = shares.iter().map(|&(job, share)| (JobId(job), share)).collect();
        jobs.iter().for_each(|(job, _)| (0..2).for_each(|_| line.stand(*job)));
        let mut given = vec![0; jobs.len()];
        for _ in 0..pieces {
            let next: Vec<usize> = (0..jobs.len()).filter(|&at| line.is_next(jobs[at].0)).collect();
            assert_eq!(next.len(), 1, "there is one next");
            line.got(jobs[next[0]].0, 1000, jobs[next[0]].1);
            given[next[0]] += 1;
        }
        given
    }

    #[test]
    fn room_goes_to_jobs_by_their_shares() {
        assert_eq!(given(&[(1, 0.5), (2, 0.5)], 100), [50, 50]);
        assert_eq!(given(&[(1, 0.75), (2, 0.25)], 100), [75, 25]);
        assert_eq!(given(&[(1, 0.6), (2, 0.3), (3, 0.1)], 100), [60, 30, 10]);
        assert_eq!(
            given(&[(1, 1.0), (2, 0.0)], 1000),
            [999, 1],
            "whoever is due nothing gets next to nothing"
        );
    }

    #[test]
    fn who_comes_late_has_missed_nothing_and_who_goes_is_not_waited_for() {
        let line = Line::default();
        let (old, new) = (JobId(1), JobId(2));
        line.stand(old);
        line.got(old, 1_000_000, 0.5);
        line.stand(new);
        for _ in 0..10 {
            let next = if line.is_next(old) { old } else { new };
            line.got(next, 10, 0.5);
        }
        line.got(new, 10, 0.5);
        assert!(line.is_next(old), "they took turns");
        line.leave(new);
        assert!(line.is_next(old));
        line.leave(old);
        assert!(line.jobs().is_empty() && line.is_next(new));
    }
}
