//! What each job has done here.

use forebay_model::{Error, ErrorKind, Job, JobId, Result, Stamp};
use forebay_wire::JobStatus;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most jobs in one answer to a status request, so that it fits a frame.
const SHOWN: usize = 512;

/// All jobs that were seen lately. When the table is full, the one idle for longest makes room.
pub(crate) struct Jobs {
    table: Mutex<HashMap<JobId, Arc<Counts>>>,
    limit: usize,
}

struct Counts {
    job: Job,
    written: AtomicU64,
    read: AtomicU64,
    requests: AtomicU64,
    seen: AtomicU64,
    connections: AtomicU32,
}

/// One connection of a job.
pub(crate) struct Membership {
    id: JobId,
    counts: Arc<Counts>,
}

impl Jobs {
    pub(crate) fn new(limit: usize) -> Jobs {
        Jobs { table: Mutex::default(), limit }
    }

    /// Counts a new connection.
    pub(crate) fn join(&self, job: &Job, now: Stamp) -> Result<Membership> {
        let id = job.id();
        let mut table = self.lock();
        if !table.contains_key(&id) && table.len() >= self.limit {
            let idle = table.iter().filter(|(_, counts)| counts.connections.load(Ordering::Relaxed) == 0);
            let oldest =
                idle.min_by_key(|(_, counts)| counts.seen.load(Ordering::Relaxed)).map(|(&id, _)| id);
            let Some(oldest) = oldest else {
                let text = format!("{} jobs are connected already: try again when one has ended", self.limit);
                return Err(Error::new(ErrorKind::Busy, text));
            };
            table.remove(&oldest);
        }
        let counts = table.entry(id).or_insert_with(|| {
            Arc::new(Counts {
                job: job.clone(),
                written: AtomicU64::new(0),
                read: AtomicU64::new(0),
                requests: AtomicU64::new(0),
                seen: AtomicU64::new(0),
                connections: AtomicU32::new(0),
            })
        });
        counts.connections.fetch_add(1, Ordering::Relaxed);
        counts.seen.fetch_max(now.0, Ordering::Relaxed);
        Ok(Membership { id, counts: counts.clone() })
    }

    /// All jobs.
    pub(crate) fn all(&self) -> Vec<JobStatus> {
        self.lock().iter().map(|(&id, counts)| counts.status(id)).collect()
    }

    /// The busiest jobs, busiest first.
    pub(crate) fn status(&self) -> Vec<JobStatus> {
        let mut jobs = self.all();
        jobs.sort_by_key(|job| (u64::MAX - job.written.saturating_add(job.read), job.id));
        jobs.truncate(SHOWN);
        jobs
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Arc<Counts>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn status(&self, id: JobId) -> JobStatus {
        JobStatus {
            id,
            job: self.job.clone(),
            written: self.written.load(Ordering::Relaxed),
            read: self.read.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            seen: Stamp(self.seen.load(Ordering::Relaxed)),
            connections: self.connections.load(Ordering::Relaxed),
        }
    }
}

impl Membership {
    pub(crate) fn id(&self) -> JobId {
        self.id
    }

    /// Counts a request.
    pub(crate) fn request(&self, now: Stamp) {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.counts.seen.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Counts bytes that came.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.counts.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that went.
    pub(crate) fn read(&self, bytes: u64) {
        self.counts.read.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.counts.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(label: &str) -> Job {
        Job { label: label.into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 0 }
    }

    #[test]
    fn the_job_idle_for_longest_makes_room_and_a_connected_one_never() {
        let jobs = Jobs::new(2);
        let one = jobs.join(&job("1"), Stamp(10)).unwrap();
        drop(jobs.join(&job("2"), Stamp(20)).unwrap());
        let three = jobs.join(&job("3"), Stamp(30)).unwrap();
        assert_eq!(jobs.join(&job("4"), Stamp(40)).err().expect("refused").kind(), ErrorKind::Busy);
        one.wrote(5);
        three.read(7);
        drop(jobs.join(&job("1"), Stamp(50)).unwrap());
        let seen: Vec<_> = jobs.status().iter().map(|job| (job.id.0, job.written, job.connections)).collect();
        assert_eq!(seen, [(3, 0, 1), (1, 5, 1)]);
    }
}
