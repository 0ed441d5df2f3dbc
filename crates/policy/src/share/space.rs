//! Fair sharing of free space: the next space goes to the waiting job that has got least for its share.
//!
//! A job with one writer does not wait in the moment after it got space: it is filling that space. If another job were
//! served meanwhile, two such jobs would get the same amount whatever their shares are. So a job that got space is
//! expected back for a while and keeps its turn. No time is lost, as the drain goes on.

use super::cost::Tick;
use super::matrix::shares;
use super::policy::Policy;
use forebay_model::{Job, JobId};
use std::collections::BTreeMap;

/// Smallest share, so that a job without a share gets something.
const LEAST: f64 = 1e-6;

/// How long a job that got space is expected back.
const BACK: Tick = Tick::ms(1000);

/// Most jobs that are remembered when they do not wait.
const MOST: usize = 1024;

/// A job's share of a resource for which these jobs wait, including itself.
#[must_use]
pub fn due_among(policy: &Policy, waiting: &[Job], job: JobId) -> f64 {
    if policy.is_fifo() {
        return 1.0;
    }
    let parts = shares(policy, waiting);
    waiting.iter().zip(parts).find(|(one, _)| one.id() == job).map_or(0.0, |(_, share)| share)
}

/// Whether so much of a buffer is free that no writer has to wait for its turn.
#[must_use]
pub fn is_roomy(free: u64, capacity: u64) -> bool {
    free > capacity / 2
}

/// The jobs that wait for space.
#[derive(Default, Debug)]
pub struct SpaceQueue {
    /// Jobs that wait or are expected back, and jobs that have got more than the job that was served last.
    jobs: BTreeMap<JobId, Waiter>,
    /// The weighted amount that the job served last had got before.
    now: f64,
    /// Until when any job is expected back.
    until: Option<Tick>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Waiter {
    writers: u32,
    /// Bytes that it got, divided by its share.
    got: f64,
    /// Until when it is expected back.
    back: Option<Tick>,
}

impl Waiter {
    fn is_expected(&self, at: Tick) -> bool {
        self.back.is_some_and(|back| at < back)
    }
}

impl SpaceQueue {
    /// Free space whose job has not come back for it is offered again after this time.
    pub const POLL: Tick = Tick::ms(50);

    /// A writer of a job begins to wait. A new job starts level with the job served last; a returning job keeps what it
    /// has got.
    pub fn join(&mut self, job: JobId) {
        let waiter = self.jobs.entry(job).or_default();
        waiter.got = waiter.got.max(self.now);
        waiter.writers += 1;
    }

    /// The writer stops waiting.
    pub fn leave(&mut self, job: JobId, at: Tick) {
        if let Some(waiter) = self.jobs.get_mut(&job) {
            waiter.writers -= 1;
        }
        let (now, is_full) = (self.now, self.jobs.len() > MOST);
        self.jobs.retain(|_, waiter| {
            waiter.writers > 0 || ((waiter.got > now || waiter.is_expected(at)) && !is_full)
        });
    }

    /// The job that gets the next space; `None` if that job does not wait, but is expected back. `since` tells when a
    /// job's writer began to wait: a writer waits at most a second for jobs that are expected back.
    #[must_use]
    pub fn next_job(&self, at: Tick, since: impl FnOnce(JobId) -> Tick) -> Option<JobId> {
        let least = |one: &(&JobId, &Waiter), other: &(&JobId, &Waiter)| one.1.got.total_cmp(&other.1.got);
        let (first, waiter) = self.waiting().min_by(least)?;
        let is_before =
            |other: &Waiter| other.writers == 0 && other.is_expected(at) && other.got < waiter.got;
        let is_awaited = at < since(*first).after(BACK) && self.jobs.values().any(is_before);
        (!is_awaited).then_some(*first)
    }

    fn waiting(&self) -> impl Iterator<Item = (&JobId, &Waiter)> {
        self.jobs.iter().filter(|(_, waiter)| waiter.writers > 0)
    }

    /// Whether a writer may take the space it finds: no writer waits for space, and none did a moment ago unless the
    /// buffer is roomy.
    #[must_use]
    pub fn is_uncontested(&self, at: Tick, is_roomy: impl FnOnce() -> bool) -> bool {
        self.waiting().next().is_none() && (self.until.is_none_or(|until| at >= until) || is_roomy())
    }

    /// All jobs that share the space: those that wait, and those that did a moment ago.
    #[must_use]
    pub fn all(&self) -> Vec<JobId> {
        self.jobs.keys().copied().collect()
    }

    /// The jobs that wait, with their numbers of waiting writers, sorted.
    #[must_use]
    pub fn writers(&self) -> Vec<(JobId, u32)> {
        self.waiting().map(|(job, waiter)| (*job, waiter.writers)).collect()
    }

    /// A job with this share got `bytes` of space.
    pub fn got(&mut self, job: JobId, bytes: u64, share: f64, at: Tick) {
        if let Some(waiter) = self.jobs.get_mut(&job) {
            let before = waiter.got;
            waiter.got += bytes as f64 / share.max(LEAST);
            waiter.back = Some(at.after(BACK));
            self.until = waiter.back;
            self.now = self.now.max(before);
        }
    }

    /// `bytes` of a job's space were reclaimed.
    pub fn reclaimed(&mut self, job: JobId, bytes: u64, share: f64) {
        if let Some(waiter) = self.jobs.get_mut(&job) {
            waiter.got = (waiter.got - bytes as f64 / share.max(LEAST)).max(self.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_next(queue: &SpaceQueue, job: JobId, since: Tick, at: Tick) -> bool {
        queue.next_job(at, |_| since) == Some(job)
    }

    /// How many of `pieces` each job gets. Every job has two writers that wait.
    fn given(shares: &[(u64, f64)], pieces: usize) -> Vec<usize> {
        let (mut queue, now) = (SpaceQueue::default(), Tick(0));
        let jobs: Vec<(JobId, f64)> = shares.iter().map(|&(job, share)| (JobId(job), share)).collect();
        jobs.iter().for_each(|(job, _)| (0..2).for_each(|_| queue.join(*job)));
        let mut given = vec![0; jobs.len()];
        for _ in 0..pieces {
            let next: Vec<usize> =
                (0..jobs.len()).filter(|&at| is_next(&queue, jobs[at].0, now, now)).collect();
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
        let (mut queue, begin) = (SpaceQueue::default(), Tick::ms(10_000));
        let (old, new) = (JobId(1), JobId(2));
        queue.join(old);
        (0..1000).for_each(|_| queue.got(old, 10, 0.5, begin));
        queue.join(new);
        for _ in 0..10 {
            let next = if is_next(&queue, old, begin, begin) { old } else { new };
            queue.got(next, 10, 0.5, begin);
        }
        queue.got(old, 10, 0.5, begin);
        queue.leave(new, begin);
        assert!(!is_next(&queue, old, begin, begin), "the other job may come back, and has got less");
        let later = begin.after(BACK);
        assert!(is_next(&queue, old, later, later));
        queue.leave(old, later);
        assert!(queue.writers().is_empty() && queue.is_uncontested(later, || false));
    }

    /// Every job has one writer, which waits again `away` after it was served; the job that is next is served
    /// meanwhile.
    fn given_to_lone_writers(away: Tick, pieces: usize) -> [usize; 2] {
        let (mut queue, mut now) = (SpaceQueue::default(), Tick(0));
        let jobs = [(JobId(1), 0.75), (JobId(2), 0.25)];
        let mut due = [Some(now); 2];
        let mut given = [0, 0];
        while given[0] + given[1] < pieces {
            for at in 0..2 {
                if due[at].take_if(|due| *due <= now).is_some() {
                    queue.join(jobs[at].0);
                }
            }
            match (0..2).find(|&at| due[at].is_none() && is_next(&queue, jobs[at].0, now, now)) {
                Some(at) => {
                    queue.got(jobs[at].0, 1000, jobs[at].1, now);
                    queue.leave(jobs[at].0, now);
                    (due[at], given[at]) = (Some(now.after(away)), given[at] + 1);
                }
                None => now = now.after(Tick::ms(1)),
            }
        }
        given
    }

    #[test]
    fn job_filling_its_space_keeps_its_turn_for_a_while() {
        assert_eq!(given_to_lone_writers(Tick(0), 100), [75, 25]);
        assert_eq!(given_to_lone_writers(Tick::ms(20), 100), [75, 25]);
        let (mut queue, now) = (SpaceQueue::default(), Tick(0));
        let jobs = [(JobId(1), 0.75), (JobId(2), 0.25)];
        for (job, share) in jobs {
            queue.join(job);
            queue.got(job, 1000, share, now);
        }
        queue.leave(JobId(1), now);
        assert!(!is_next(&queue, JobId(2), now, now));
        // Alone it gets all the space.
        let later = now.after(BACK);
        for _ in 0..10 {
            assert!(is_next(&queue, JobId(2), later, later));
            queue.got(JobId(2), 1000, 0.25, later);
        }
        queue.join(JobId(1));
        assert!(is_next(&queue, JobId(1), later, later), "it has no debt");
    }

    #[test]
    fn reclaimed_space_is_credited_to_the_job() {
        let (mut queue, now) = (SpaceQueue::default(), Tick(0));
        let (one, other) = (JobId(1), JobId(2));
        [one, other].into_iter().for_each(|job| queue.join(job));
        queue.got(one, 1000, 0.5, now);
        assert!(is_next(&queue, other, now, now));
        queue.reclaimed(one, 1000, 0.5);
        assert!(is_next(&queue, one, now, now));
        queue.got(one, 1000, 0.5, now);
        queue.got(other, 1000, 0.5, now);
        queue.got(one, 1000, 0.5, now);
        queue.reclaimed(one, 1 << 30, 0.5);
        assert!(is_next(&queue, one, now, now));
        queue.got(one, 1000, 0.5, now);
        assert!(is_next(&queue, other, now, now), "no job is credited more than it was ahead");
    }

    #[test]
    fn occasional_small_writer_does_not_delay_others_for_long() {
        let (mut queue, begin) = (SpaceQueue::default(), Tick::ms(10_000));
        let (busy, slow) = (JobId(1), JobId(2));
        queue.join(busy);
        queue.got(busy, 1 << 20, 0.5, begin);
        for now in (0..5).map(|step| begin.after(Tick(BACK.0 * 9 / 10 * step))) {
            queue.join(slow);
            queue.got(slow, 4096, 0.5, now);
            queue.leave(slow, now);
            assert!(!is_next(&queue, busy, now, now), "a new writer waits for jobs that may come back");
            assert!(
                is_next(&queue, busy, Tick(now.0 - BACK.0), now),
                "a writer that has waited long does not"
            );
        }
    }

    #[test]
    fn space_queue_remembers_a_bounded_number_of_jobs() {
        let (mut queue, now) = (SpaceQueue::default(), Tick(0));
        for job in 100..100 + 2 * MOST as u64 {
            queue.join(JobId(job));
            queue.got(JobId(job), 1000, 1e-3, now);
            queue.leave(JobId(job), now);
        }
        assert!(queue.jobs.len() <= MOST + 1);
    }
}
