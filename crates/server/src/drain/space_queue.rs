//! Fair sharing of free space: the next space goes to the waiting job that has got least for its share.
//!
//! A job with one writer does not wait in the moment after it got space: it is filling that space. If another job were
//! served meanwhile, two such jobs would get the same amount whatever their shares are. So a job that got space is
//! expected back for a while and keeps its turn. No time is lost, as the drain goes on.

use forebay_model::JobId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Smallest share, so that a job without a share gets something.
const LEAST: f64 = 1e-6;

/// How long a job that got space is expected back.
const BACK: Duration = Duration::from_secs(1);

/// Most jobs that are remembered when they do not wait.
const MOST: usize = 1024;

/// The jobs that wait for space.
#[derive(Default)]
pub(super) struct SpaceQueue {
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    /// Jobs that wait or are expected back, and jobs that have got more than the job that was served last.
    jobs: HashMap<JobId, Waiter>,
    /// The weighted amount that the job served last had got before.
    now: f64,
    /// Until when any job is expected back.
    until: Option<Instant>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Waiter {
    writers: u32,
    /// Bytes that it got, divided by its share.
    got: f64,
    /// Until when it is expected back.
    back: Option<Instant>,
}

impl Waiter {
    fn counts(&self, now: Instant) -> bool {
        self.writers > 0 || self.back.is_some_and(|back| now < back)
    }
}

impl Waiters {
    fn waiting(&self) -> impl Iterator<Item = (&JobId, &Waiter)> {
        self.jobs.iter().filter(|(_, waiter)| waiter.writers > 0)
    }
}

impl SpaceQueue {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A writer of a job begins to wait. A new job starts level with the job served last; a returning job keeps what it
    /// has got.
    pub(super) fn join(&self, job: JobId) {
        let mut waiters = self.waiters();
        let now = waiters.now;
        let waiter = waiters.jobs.entry(job).or_default();
        waiter.got = waiter.got.max(now);
        waiter.writers += 1;
    }

    /// The writer stops waiting.
    pub(super) fn leave(&self, job: JobId, at: Instant) {
        let mut waiters = self.waiters();
        if let Some(waiter) = waiters.jobs.get_mut(&job) {
            waiter.writers -= 1;
        }
        let (now, is_full) = (waiters.now, waiters.jobs.len() > MOST);
        waiters
            .jobs
            .retain(|_, waiter| waiter.writers > 0 || ((waiter.got > now || waiter.counts(at)) && !is_full));
    }

    /// Whether the next space is for this job, one of whose writers has waited since `begin`. A writer waits at most
    /// `BACK` for jobs that are expected back.
    pub(super) fn is_next(&self, job: JobId, begin: Instant, at: Instant) -> bool {
        let waiters = self.waiters();
        let awaited = at < begin + BACK;
        let counts = |(_, waiter): &(&JobId, &Waiter)| waiter.writers > 0 || (awaited && waiter.counts(at));
        let first = waiters.jobs.iter().filter(counts).min_by(|one, other| {
            let away = |waiter: &Waiter| waiter.writers == 0;
            one.1.got.total_cmp(&other.1.got).then(away(one.1).cmp(&away(other.1))).then(one.0.cmp(other.0))
        });
        first.is_none_or(|(first, _)| *first == job)
    }

    /// Whether a job is expected back.
    pub(super) fn is_expecting(&self, at: Instant) -> bool {
        self.waiters().until.is_some_and(|until| at < until)
    }

    /// All jobs that share the space: those that wait, and those that did a moment ago.
    pub(super) fn all(&self) -> Vec<JobId> {
        self.waiters().jobs.keys().copied().collect()
    }

    /// The jobs that wait, with their numbers of waiting writers, sorted.
    pub(super) fn writers(&self) -> Vec<(JobId, u32)> {
        let mut all: Vec<(JobId, u32)> =
            self.waiters().waiting().map(|(job, waiter)| (*job, waiter.writers)).collect();
        all.sort_unstable();
        all
    }

    /// A job with this share got `bytes` of space.
    pub(super) fn got(&self, job: JobId, bytes: u32, share: f64, at: Instant) {
        let mut waiters = self.waiters();
        if let Some(waiter) = waiters.jobs.get_mut(&job) {
            let before = waiter.got;
            waiter.got += f64::from(bytes) / share.max(LEAST);
            waiter.back = Some(at + BACK);
            waiters.until = waiter.back;
            waiters.now = waiters.now.max(before);
        }
    }

    /// `bytes` of a job's space were reclaimed.
    pub(super) fn reclaimed(&self, job: JobId, bytes: u64, share: f64) {
        let mut waiters = self.waiters();
        let now = waiters.now;
        if let Some(waiter) = waiters.jobs.get_mut(&job) {
            waiter.got = (waiter.got - bytes as f64 / share.max(LEAST)).max(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `pieces` each job gets. Every job has two writers that wait.
    fn given(shares: &[(u64, f64)], pieces: usize) -> Vec<usize> {
        let (queue, now) = (SpaceQueue::default(), Instant::now());
        let jobs: Vec<(JobId, f64)> = shares.iter().map(|&(job, share)| (JobId(job), share)).collect();
        jobs.iter().for_each(|(job, _)| (0..2).for_each(|_| queue.join(*job)));
        let mut given = vec![0; jobs.len()];
        for _ in 0..pieces {
            let next: Vec<usize> =
                (0..jobs.len()).filter(|&at| queue.is_next(jobs[at].0, now, now)).collect();
            assert_eq!(next.len(), 1, "there is one next");
            queue.got(jobs[next[0]].0, 1000, jobs[next[0]].1, now);
            given[next[0]] += 1;
        }
        given
    }

    #[test]
    fn space_is_shared_by_job_shares() {
        assert_eq!(given(&[(1, 0.5), (2, 0.5)], 100), [50, 50]);
        assert_eq!(given(&[(1, 0.75), (2, 0.25)], 100), [75, 25]);
        assert_eq!(given(&[(1, 0.6), (2, 0.3), (3, 0.1)], 100), [60, 30, 10]);
        assert_eq!(
            given(&[(1, 1.0), (2, 0.0)], 1000),
            [999, 1],
            "a job without a share gets next to nothing"
        );
    }

    #[test]
    fn late_jobs_get_no_credit_and_departed_jobs_are_not_awaited() {
        let (queue, begin) = (SpaceQueue::default(), Instant::now());
        let (old, new) = (JobId(1), JobId(2));
        queue.join(old);
        (0..1000).for_each(|_| queue.got(old, 10, 0.5, begin));
        queue.join(new);
        for _ in 0..10 {
            let next = if queue.is_next(old, begin, begin) { old } else { new };
            queue.got(next, 10, 0.5, begin);
        }
        queue.got(old, 10, 0.5, begin);
        queue.leave(new, begin);
        assert!(!queue.is_next(old, begin, begin), "the other job may come back, and has got less");
        let later = begin + BACK;
        assert!(queue.is_next(old, later, later) && !queue.is_expecting(later));
        queue.leave(old, later);
        assert!(queue.writers().is_empty() && queue.is_next(new, later, later));
    }

    /// Every job has one writer, which waits again `away` after it was served; the job that is next is served
    /// meanwhile.
    fn given_to_lone_writers(away: Duration, pieces: usize) -> [usize; 2] {
        let (queue, mut now) = (SpaceQueue::default(), Instant::now());
        let jobs = [(JobId(1), 0.75), (JobId(2), 0.25)];
        let mut due = [Some(now); 2];
        let mut given = [0, 0];
        while given[0] + given[1] < pieces {
            for at in 0..2 {
                if due[at].take_if(|due| *due <= now).is_some() {
                    queue.join(jobs[at].0);
                }
            }
            match (0..2).find(|&at| due[at].is_none() && queue.is_next(jobs[at].0, now, now)) {
                Some(at) => {
                    queue.got(jobs[at].0, 1000, jobs[at].1, now);
                    queue.leave(jobs[at].0, now);
                    (due[at], given[at]) = (Some(now + away), given[at] + 1);
                }
                None => now += Duration::from_millis(1),
            }
        }
        given
    }

    #[test]
    fn job_filling_its_space_keeps_its_turn_for_a_while() {
        assert_eq!(given_to_lone_writers(Duration::ZERO, 100), [75, 25]);
        assert_eq!(given_to_lone_writers(Duration::from_millis(20), 100), [75, 25]);
        let (queue, now) = (SpaceQueue::default(), Instant::now());
        let jobs = [(JobId(1), 0.75), (JobId(2), 0.25)];
        for (job, share) in jobs {
            queue.join(job);
            queue.got(job, 1000, share, now);
        }
        queue.leave(JobId(1), now);
        assert!(!queue.is_next(JobId(2), now, now));
        // Alone it gets all the space.
        let later = now + BACK;
        for _ in 0..10 {
            assert!(queue.is_next(JobId(2), later, later));
            queue.got(JobId(2), 1000, 0.25, later);
        }
        queue.join(JobId(1));
        assert!(queue.is_next(JobId(1), later, later), "it has no debt");
    }

    #[test]
    fn reclaimed_space_is_credited_to_the_job() {
        let (queue, now) = (SpaceQueue::default(), Instant::now());
        let (one, other) = (JobId(1), JobId(2));
        [one, other].into_iter().for_each(|job| queue.join(job));
        queue.got(one, 1000, 0.5, now);
        assert!(queue.is_next(other, now, now));
        queue.reclaimed(one, 1000, 0.5);
        assert!(queue.is_next(one, now, now));
        queue.got(one, 1000, 0.5, now);
        queue.got(other, 1000, 0.5, now);
        queue.got(one, 1000, 0.5, now);
        queue.reclaimed(one, 1 << 30, 0.5);
        assert!(queue.is_next(one, now, now));
        queue.got(one, 1000, 0.5, now);
        assert!(queue.is_next(other, now, now), "no job is credited more than it was ahead");
    }

    #[test]
    fn occasional_small_writer_does_not_delay_others_for_long() {
        let (queue, begin) = (SpaceQueue::default(), Instant::now());
        let (busy, slow) = (JobId(1), JobId(2));
        queue.join(busy);
        queue.got(busy, 1 << 20, 0.5, begin);
        for now in (0..5).map(|step| begin + BACK * 9 / 10 * step) {
            queue.join(slow);
            queue.got(slow, 4096, 0.5, now);
            queue.leave(slow, now);
            assert!(!queue.is_next(busy, now, now), "a new writer waits for jobs that may come back");
            assert!(queue.is_next(busy, now - BACK, now), "a writer that has waited long does not");
        }
    }

    #[test]
    fn space_queue_remembers_a_bounded_number_of_jobs() {
        let (queue, now) = (SpaceQueue::default(), Instant::now());
        for job in 100..100 + 2 * MOST as u64 {
            queue.join(JobId(job));
            queue.got(JobId(job), 1000, 1e-3, now);
            queue.leave(JobId(job), now);
        }
        assert!(queue.waiters().jobs.len() <= MOST + 1);
    }
}
