//! Who gets room next: of the jobs whose writers wait for it, the one that has got least of it for its share.
//!
//! A job with one writer never waits in the moment after it was served: it is filling what it got. If whoever else waits
//! were served meanwhile, two such jobs would get the same, whatever they are due. So a job that got room is expected back
//! for a while, and not passed by; nothing is lost, as the drain goes on.

use forebay_model::JobId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A job that nobody gives a share is not forgotten either.
const LEAST: f64 = 1e-6;

/// How long a job that got room is expected to come for more.
const BACK: Duration = Duration::from_secs(1);

/// Most jobs that are remembered while nobody waits.
const MOST: usize = 1024;

/// The jobs that wait for room.
#[derive(Default)]
pub(super) struct Line {
    stands: Mutex<Stands>,
}

#[derive(Default)]
struct Stands {
    /// Those that wait or are expected back, and those that are not and have got more than whoever was served last.
    jobs: HashMap<JobId, Stand>,
    /// What whoever was served last had got before.
    now: f64,
    /// Until when anybody is expected back.
    until: Option<Instant>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Stand {
    writers: u32,
    /// Bytes that it got, each as much as its share is small.
    got: f64,
    /// Until when it is expected back.
    back: Option<Instant>,
}

impl Stand {
    fn counts(&self, now: Instant) -> bool {
        self.writers > 0 || self.back.is_some_and(|back| now < back)
    }
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
    pub(super) fn leave(&self, job: JobId, at: Instant) {
        let mut stands = self.stands();
        if let Some(stand) = stands.jobs.get_mut(&job) {
            stand.writers -= 1;
        }
        let (now, crowded) = (stands.now, stands.jobs.len() > MOST);
        stands
            .jobs
            .retain(|_, stand| stand.writers > 0 || ((stand.got > now || stand.counts(at)) && !crowded));
    }

    /// Whether the next room is for this job, of which somebody has waited since `begin`: nobody waits for long for those
    /// that are not there.
    pub(super) fn is_next(&self, job: JobId, begin: Instant, at: Instant) -> bool {
        let stands = self.stands();
        let awaited = at < begin + BACK;
        let counts = |(_, stand): &(&JobId, &Stand)| stand.writers > 0 || (awaited && stand.counts(at));
        let first = stands.jobs.iter().filter(counts).min_by(|one, other| {
            let away = |stand: &Stand| stand.writers == 0;
            one.1.got.total_cmp(&other.1.got).then(away(one.1).cmp(&away(other.1))).then(one.0.cmp(other.0))
        });
        first.is_none_or(|(first, _)| *first == job)
    }

    /// Whether a job is expected back.
    pub(super) fn is_expecting(&self, at: Instant) -> bool {
        self.stands().until.is_some_and(|until| at < until)
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
    pub(super) fn got(&self, job: JobId, bytes: u32, share: f64, at: Instant) {
        let mut stands = self.stands();
        if let Some(stand) = stands.jobs.get_mut(&job) {
            let before = stand.got;
            stand.got += f64::from(bytes) / share.max(LEAST);
            stand.back = Some(at + BACK);
            stands.until = stand.back;
            stands.now = stands.now.max(before);
        }
    }

    /// So much of what a job got was taken back.
    pub(super) fn gave_back(&self, job: JobId, bytes: u64, share: f64) {
        let mut stands = self.stands();
        let now = stands.now;
        if let Some(stand) = stands.jobs.get_mut(&job) {
            stand.got = (stand.got - bytes as f64 / share.max(LEAST)).max(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room for so many pieces goes to whom? Every job has two writers that wait.
    fn given(shares: &[(u64, f64)], pieces: usize) -> Vec<usize> {
        let (line, now) = (Line::default(), Instant::now());
        let jobs: Vec<(JobId, f64)> = shares.iter().map(|&(job, share)| (JobId(job), share)).collect();
        jobs.iter().for_each(|(job, _)| (0..2).for_each(|_| line.stand(*job)));
        let mut given = vec![0; jobs.len()];
        for _ in 0..pieces {
            let next: Vec<usize> = (0..jobs.len()).filter(|&at| line.is_next(jobs[at].0, now, now)).collect();
            assert_eq!(next.len(), 1, "there is one next");
            line.got(jobs[next[0]].0, 1000, jobs[next[0]].1, now);
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
        let (line, begin) = (Line::default(), Instant::now());
        let (old, new) = (JobId(1), JobId(2));
        line.stand(old);
        (0..1000).for_each(|_| line.got(old, 10, 0.5, begin));
        line.stand(new);
        for _ in 0..10 {
            let next = if line.is_next(old, begin, begin) { old } else { new };
            line.got(next, 10, 0.5, begin);
        }
        line.got(old, 10, 0.5, begin);
        line.leave(new, begin);
        assert!(!line.is_next(old, begin, begin), "the other may come back, and has got less");
        let later = begin + BACK;
        assert!(line.is_next(old, later, later) && !line.is_expecting(later));
        line.leave(old, later);
        assert!(line.writers().is_empty() && line.is_next(new, later, later));
    }

    /// Every job has one writer, which comes back when it was served, `away` later; whoever is next meanwhile is served.
    fn given_to_lone_writers(away: Duration, pieces: usize) -> [usize; 2] {
        let (line, mut now) = (Line::default(), Instant::now());
        let jobs = [(JobId(1), 0.75), (JobId(2), 0.25)];
        let mut due = [Some(now); 2];
        let mut given = [0, 0];
        while given[0] + given[1] < pieces {
            for at in 0..2 {
                if due[at].take_if(|due| *due <= now).is_some() {
                    line.stand(jobs[at].0);
                }
            }
            match (0..2).find(|&at| due[at].is_none() && line.is_next(jobs[at].0, now, now)) {
                Some(at) => {
                    line.got(jobs[at].0, 1000, jobs[at].1, now);
                    line.leave(jobs[at].0, now);
                    (due[at], given[at]) = (Some(now + away), given[at] + 1);
                }
                None => now += Duration::from_millis(1),
            }
        }
        given
    }

    #[test]
    fn who_fills_what_he_got_is_not_passed_by_and_who_stays_away_is() {
        assert_eq!(given_to_lone_writers(Duration::ZERO, 100), [75, 25]);
        assert_eq!(given_to_lone_writers(Duration::from_millis(20), 100), [75, 25]);
        let (line, now) = (Line::default(), Instant::now());
        let jobs = [(JobId(1), 0.75), (JobId(2), 0.25)];
        for (job, share) in jobs {
            line.stand(job);
            line.got(job, 1000, share, now);
        }
        line.leave(JobId(1), now);
        assert!(!line.is_next(JobId(2), now, now));
        // Alone it gets all there is.
        let later = now + BACK;
        for _ in 0..10 {
            assert!(line.is_next(JobId(2), later, later));
            line.got(JobId(2), 1000, 0.25, later);
        }
        line.stand(JobId(1));
        assert!(line.is_next(JobId(1), later, later), "it has missed nothing");
    }

    #[test]
    fn what_was_taken_back_is_not_paid_for() {
        let (line, now) = (Line::default(), Instant::now());
        let (one, other) = (JobId(1), JobId(2));
        [one, other].into_iter().for_each(|job| line.stand(job));
        line.got(one, 1000, 0.5, now);
        assert!(line.is_next(other, now, now));
        line.gave_back(one, 1000, 0.5);
        assert!(line.is_next(one, now, now));
        line.got(one, 1000, 0.5, now);
        line.got(other, 1000, 0.5, now);
        line.got(one, 1000, 0.5, now);
        line.gave_back(one, 1 << 30, 0.5);
        assert!(line.is_next(one, now, now));
        line.got(one, 1000, 0.5, now);
        assert!(line.is_next(other, now, now), "nobody gets more back than it was ahead");
    }

    #[test]
    fn who_comes_for_little_now_and_then_holds_nobody_back_for_long() {
        let (line, begin) = (Line::default(), Instant::now());
        let (busy, slow) = (JobId(1), JobId(2));
        line.stand(busy);
        line.got(busy, 1 << 20, 0.5, begin);
        for now in (0..5).map(|step| begin + BACK * 9 / 10 * step) {
            line.stand(slow);
            line.got(slow, 4096, 0.5, now);
            line.leave(slow, now);
            assert!(!line.is_next(busy, now, now), "who has just come waits for those who may come back");
            assert!(line.is_next(busy, now - BACK, now), "who has waited does not");
        }
    }

    #[test]
    fn not_everybody_is_remembered() {
        let (line, now) = (Line::default(), Instant::now());
        for job in 100..100 + 2 * MOST as u64 {
            line.stand(JobId(job));
            line.got(JobId(job), 1000, 1e-3, now);
            line.leave(JobId(job), now);
        }
        assert!(line.stands().jobs.len() <= MOST + 1);
    }
}
