//! Bytes that every job wrote and read, per second, kept across restarts; planners fit profiles to it.
//!
//! **Invariant**: at most [`MOST`] entries are kept; the oldest are removed first.

use forebay_model::{Error, ErrorKind, JobId, Result, Stamp};
use forebay_store::{Batch, KeySpace, Kv};
use forebay_wire::{JobStatus, Sample};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Maximum number of entries.
const MOST: usize = 200_000;
/// Maximum number of entries in one answer.
const PAGE: usize = 4096;
const PREFIX: &[u8] = KeySpace::History.prefix();

#[derive(Serialize, Deserialize)]
struct Entry {
    label: String,
    written: u64,
    read: u64,
}

pub(crate) struct History {
    kv: Arc<dyn Kv>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Totals of each job at the last sample.
    before: HashMap<JobId, (u64, u64)>,
    /// The keys of all entries, oldest first.
    keys: VecDeque<[u8; 16]>,
}

fn key(bytes: [u8; 16]) -> Vec<u8> {
    [PREFIX, &bytes].concat()
}

impl History {
    /// Opens the history in a metadata store.
    pub(crate) fn open(kv: Arc<dyn Kv>) -> Result<History> {
        let mut keys = VecDeque::new();
        kv.scan(PREFIX, b"", &mut |key, _| {
            keys.extend(<[u8; 16]>::try_from(&key[PREFIX.len()..]));
            ControlFlow::Continue(())
        })?;
        Ok(History { kv, state: Mutex::new(State { keys, ..State::default() }) })
    }

    /// Records what the jobs did since the last call.
    pub(crate) fn note(&self, jobs: &[JobStatus], now: Stamp) -> Result<()> {
        let mut state = self.state.lock();
        let mut batch = Batch::default();
        // One entry per job and second: two calls within one second get different seconds.
        let last = state.keys.back().map_or(0, |key| (u128::from_be_bytes(*key) >> 64) as u64);
        let second = (now.0 / 1_000_000_000).max(last + 1);
        let mut seen = HashMap::with_capacity(jobs.len());
        for status in jobs {
            let totals = (status.written, status.read);
            seen.insert(status.id, totals);
            // The counts of a job that was evicted from the table and returned start at zero.
            let before = state.before.get(&status.id).copied().unwrap_or_default();
            let (written, read) = match totals.0 >= before.0 && totals.1 >= before.1 {
                true => (totals.0 - before.0, totals.1 - before.1),
                false => totals,
            };
            if (written, read) == (0, 0) {
                continue;
            }
            let entry = Entry { label: status.job.label.clone(), written, read };
            let name = u128::from(second) << 64 | u128::from(status.id.0);
            let value = postcard::to_stdvec(&entry).map_err(|error| {
                Error::new(ErrorKind::Io, format!("cannot encode the history entry of a job: {error}"))
            })?;
            batch.put(key(name.to_be_bytes()), value);
            state.keys.push_back(name.to_be_bytes());
        }
        state.before = seen;
        while state.keys.len() > MOST {
            batch.remove(key(state.keys.pop_front().expect("more than MOST entries")));
        }
        if batch.is_empty() { Ok(()) } else { self.kv.commit(batch) }
    }

    /// Entries from a cursor on (0: the first), and the cursor of the next page, if any.
    pub(crate) fn from(&self, cursor: u128) -> Result<(Vec<Sample>, Option<u128>)> {
        let mut samples: Vec<Sample> = Vec::new();
        let mut next = None;
        let mut fault = None;
        self.kv.scan(PREFIX, &key(cursor.to_be_bytes()), &mut |key, value| {
            let Ok(name) = <[u8; 16]>::try_from(&key[PREFIX.len()..]) else {
                return ControlFlow::Continue(());
            };
            let name = u128::from_be_bytes(name);
            if samples.len() >= PAGE {
                next = Some(name);
                return ControlFlow::Break(());
            }
            let second = (name >> 64) as u64;
            match postcard::from_bytes::<Entry>(value) {
                Ok(Entry { label, written, read }) => samples.push(Sample { second, label, written, read }),
                Err(error) => fault = Some(format!("an entry of the history is damaged: {error}")),
            }
            ControlFlow::Continue(())
        })?;
        match fault {
            Some(text) => Err(Error::new(ErrorKind::BadStore, text)),
            None => Ok((samples, next)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Job;
    use forebay_store::MemoryKv;
    use forebay_wire::JobState;

    fn status(label: &str, written: u64, read: u64) -> JobStatus {
        let job = Job { label: label.into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 0 };
        JobStatus {
            id: job.id(),
            job,
            written,
            direct: 0,
            read,
            requests: 0,
            seen: Stamp(0),
            connections: 1,
            state: JobState::Idle,
            operations: 0,
            waited: 0,
            waiting: 0,
            share: 0,
            recent: 0,
        }
    }

    #[test]
    fn job_activity_is_recorded_per_second_and_kept() {
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new());
        let history = History::open(Arc::clone(&kv)).unwrap();
        let at = |second: u64| Stamp(second * 1_000_000_000 + 5);
        history.note(&[status("7", 100, 0), status("idle", 0, 0)], at(10)).unwrap();
        history.note(&[status("7", 100, 0)], at(11)).unwrap();
        history.note(&[status("7", 150, 20), status("8", 9, 0)], at(12)).unwrap();
        history.note(&[status("7", 30, 0)], at(13)).unwrap();
        let again = History::open(kv).unwrap();
        let (samples, next) = again.from(11 << 64).unwrap();
        let seen: Vec<_> = samples.iter().map(|s| (s.second, s.label.as_str(), s.written, s.read)).collect();
        assert_eq!(seen, [(12, "7", 50, 20), (12, "8", 9, 0), (13, "7", 30, 0)]);
        assert_eq!(
            (next, again.from(0).unwrap().0.len(), again.from(99 << 64).unwrap().0.len()),
            (None, 4, 0)
        );
    }

    #[test]
    fn long_history_is_returned_in_pages() {
        let history = History::open(Arc::new(MemoryKv::new())).unwrap();
        for second in 0..5_u64 {
            let jobs: Vec<_> = (0..1500).map(|job| status(&job.to_string(), second + 1, 0)).collect();
            history.note(&jobs, Stamp(second * 1_000_000_000)).unwrap();
        }
        let (mut total, mut from, mut pages) = (0, Some(0), 0);
        while let Some(cursor) = from {
            let (samples, next) = history.from(cursor).unwrap();
            (total, from, pages) = (total + samples.len(), next, pages + 1);
        }
        assert_eq!((total, pages), (7500, 2));
    }
}
