//! Who gets room next: of the jobs whose writers wait for it, the one that has got least of it for its share.

use forebay_model::JobId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A job that nobody gives a share is not forgotten either.
const LEAST: f64 = 1e-6;

/// Most jobs that are remembered while nobody waits.
const MOST: usize = 1024;

/// The jobs that wait for room.
#[derive(Default)]
pub(super) struct Line {
    stands: Mutex<Stands>,
}

#[derive(Default)]
struct Stands {
    /// Those that wait, and those that do not and have got more than whoever was served last.
    jobs: HashMap<JobId, Stand>,
    /// What whoever was served last had got before.
    now: f64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Stand {
    writers: u32,
    /// Bytes that it got, each as much as its share is small.
    got: f64,
}

impl Stands {
    fn waiting(&self) -> impl Iterator<Item = (&JobId, &Stand)> {
        self.jobs.iter().filter(|(_, stand)| stand.writers > 0)
    }
}

impl Line {
    fn stands(&self) -> MutexGuard<'_, Stands> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A writer of a job waits from now on. A job that comes late has missed nothing, and one that comes back has not
    /// forgotten what it got.
    pub(super) fn stand(&self, job: JobId) {
        let mut stands = self.stands();
        let now = stands.now;
        let stand = stands.jobs.entry(job).or_default();
        stand.got = stand.got.max(now);
        stand.writers += 1;
    }

    /// It waits no more.
    pub(super) fn leave(&self, job: JobId) {
        let mut stands = self.stands();
        if let Some(stand) = stands.jobs.get_mut(&job) {
            stand.writers -= 1;
        }
        let (now, crowded) = (stands.now, stands.jobs.len() > MOST);
        stands.jobs.retain(|_, stand| stand.writers > 0 || (stand.got > now && !crowded));
    }

    /// Whether the next room is for this job.
    pub(super) fn is_next(&self, job: JobId) -> bool {
        let stands = self.stands();
        let first = stands.waiting().min_by(|one, other| {
            one.1.got.partial_cmp(&other.1.got).unwrap_or(std::cmp::Ordering::Equal).then(one.0.cmp(other.0))
        });
        first.is_none_or(|(first, _)| *first == job)
    }

    /// All jobs that share what room there is: those that wait, and those that did a moment ago.
    pub(super) fn all(&self) -> Vec<JobId> {
        self.stands().jobs.keys().copied().collect()
    }

    /// Those that wait, each with how many of its writers do, in order.
    pub(super) fn writers(&self) -> Vec<(JobId, u32)> {
        let mut all: Vec<(JobId, u32)> =
            self.stands().waiting().map(|(job, stand)| (*job, stand.writers)).collect();
        all.sort_unstable();
        all
    }

    /// A job has got so much, and is due such a share.
    pub(super) fn got(&self, job: JobId, bytes: u32, share: f64) {
        let mut stands = self.stands();
        if let Some(stand) = stands.jobs.get_mut(&job) {
            let before = stand.got;
            stand.got += f64::from(bytes) / share.max(LEAST);
            stands.now = stands.now.max(before);
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
        (0..1000).for_each(|_| line.got(old, 10, 0.5));
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
        assert!(line.writers().is_empty() && line.is_next(new));
    }

    /// Every job has one writer, which comes back when it was served.
    #[test]
    fn who_comes_back_has_not_forgotten_what_it_got() {
        let line = Line::default();
        let jobs = [(JobId(1), 0.75), (JobId(2), 0.25)];
        jobs.iter().for_each(|(job, _)| line.stand(*job));
        let mut given = [0, 0];
        for _ in 0..100 {
            let at = (0..2).find(|&at| line.is_next(jobs[at].0)).expect("somebody is next");
            line.got(jobs[at].0, 1000, jobs[at].1);
            line.leave(jobs[at].0);
            given[at] += 1;
            line.stand(jobs[at].0);
        }
        assert_eq!(given, [75, 25]);
        jobs.iter().for_each(|(job, _)| line.leave(*job));
        for job in 100..100 + 2 * MOST as u64 {
            line.stand(JobId(job));
            line.got(JobId(job), 1000, 1e-3);
            line.leave(JobId(job));
        }
        assert!(line.stands().jobs.len() <= MOST + 1, "not everybody is remembered");
    }
}
