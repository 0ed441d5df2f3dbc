//! Results of a simulation.

use crate::world::World;
use forebay_policy::share::Tick;
use serde::Serialize;

/// Most windows of a series.
const MOST_WINDOWS: usize = 4096;

/// Location of all bytes that processes have written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Ledger {
    /// Bytes of completed writes.
    pub taken: u64,
    /// Bytes written directly to targets.
    pub direct: u64,
    /// Bytes drained to targets.
    pub drained: u64,
    /// Bytes in buffers.
    pub held: u64,
    /// The most bytes in one server's buffer.
    pub most_held: u64,
}

impl Ledger {
    /// Whether no bytes were lost or invented.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.taken == self.direct + self.drained + self.held
    }
}

/// Bytes completed for each job, by window. When there are too many windows, their length doubles.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    window: Tick,
    counts: Vec<Vec<u64>>,
}

impl Series {
    pub(crate) fn new(window: Tick, jobs: usize) -> Series {
        Series { window, counts: vec![Vec::new(); jobs] }
    }

    pub(crate) fn count(&mut self, job: usize, now: Tick, bytes: u64) {
        // An operation that ends with a window belongs to it.
        while (now.0.saturating_sub(1) / self.window.0) as usize >= MOST_WINDOWS {
            self.window.0 *= 2;
            for counts in &mut self.counts {
                *counts = counts.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
        }
        let at = (now.0.saturating_sub(1) / self.window.0) as usize;
        let counts = &mut self.counts[job];
        if counts.len() <= at {
            counts.resize(at + 1, 0);
        }
        counts[at] += bytes;
    }

    /// Length of a window.
    #[must_use]
    pub fn window(&self) -> Tick {
        self.window
    }

    /// Bytes of a job in each window, up to its last activity.
    #[must_use]
    pub fn job(&self, job: usize) -> &[u64] {
        &self.counts[job]
    }

    /// Bytes of a job in whole windows between two times.
    #[must_use]
    pub fn between(&self, job: usize, from: Tick, to: Tick) -> u64 {
        let first = from.0.div_ceil(self.window.0) as usize;
        let last = (to.0 / self.window.0) as usize;
        let counts = &self.counts[job];
        counts.iter().take(last).skip(first).sum()
    }
}

/// Result of a job.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct JobReport {
    /// Its label.
    pub label: String,
    /// When it began, in seconds.
    pub started: Option<f64>,
    /// When its last process was done, in seconds.
    pub ended: Option<f64>,
    /// When all its bytes were on targets, in seconds.
    pub settled: Option<f64>,
    /// Bytes it wrote.
    pub written: u64,
    /// Bytes it read.
    pub read: u64,
    /// Mean seconds of a process in phases that read or write.
    pub moving: f64,
}

/// Result of a scenario.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// When all work was done, in seconds.
    pub ended: f64,
    /// Number of events.
    pub events: u64,
    /// Largest number of planned events.
    pub most_planned: usize,
    /// Largest number of requests in flight.
    pub most_requests: usize,
    /// Largest number of writes on their way to targets or in progress there.
    pub most_writes: usize,
    /// Location of all bytes.
    pub ledger: Ledger,
    /// Jobs, in the order of the scenario.
    pub jobs: Vec<JobReport>,
    /// Completed work over time.
    pub series: Series,
    /// Bytes and seeks of each target.
    pub targets: Vec<(u64, u64)>,
}

impl World {
    /// The results so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let secs = |at: Option<Tick>| at.map(Tick::secs);
        let jobs = self.jobs.iter().zip(&self.plan.jobs).map(|(task, plan)| JobReport {
            label: plan.job.label.clone(),
            started: secs(task.started),
            ended: secs(task.ended),
            settled: secs(task.drained),
            written: task.written,
            read: task.read,
            moving: task.moving as f64 / 1e9 / f64::from(plan.processes),
        });
        Report {
            ended: self.now.secs(),
            events: self.events,
            most_planned: self.queue.most(),
            most_requests: self.requests.most(),
            most_writes: self.writes.most(),
            ledger: self.ledger(),
            jobs: jobs.collect(),
            series: self.series.clone(),
            targets: self
                .target_states
                .iter()
                .map(|target_state| (target_state.bytes, target_state.seeks + target_state.target.seeks()))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_when_there_are_too_many() {
        let mut series = Series::new(Tick(10), 2);
        for at in 1..=100_000 {
            series.count(1, Tick(at), 2);
        }
        assert_eq!(series.window(), Tick(40));
        assert!(series.job(1).len() <= MOST_WINDOWS && series.job(0).is_empty());
        assert_eq!(series.job(1).iter().sum::<u64>(), 200_000);
        assert_eq!(series.between(1, Tick(40), Tick(120)), 160);
    }
}
