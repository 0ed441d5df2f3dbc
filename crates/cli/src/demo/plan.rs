//! The jobs of the demo. Pure, except that it reads the machine's free memory.

use forebay_model::Bytes;
use forebay_store::available_memory;

/// Writers of one job.
pub(super) const WRITERS: u64 = 3;
const MOST: Bytes = Bytes::mib(3072);
/// The largest block: a multiple of all others.
const GRAIN: u64 = 4 << 20;

/// How a job divides its data between files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Shape {
    /// All writers share one file, block by block in turn.
    Shared,
    /// Every writer has a file of its own.
    Own,
}

/// A job of the demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobPlan {
    pub(super) label: &'static str,
    pub(super) shape: Shape,
    pub(super) block: u64,
    /// Bytes of one writer.
    pub(super) share: u64,
}

impl JobPlan {
    pub(super) fn total(&self) -> u64 {
        self.share * WRITERS
    }

    /// A short description.
    pub(super) fn story(&self) -> String {
        let block = Bytes(self.block);
        match self.shape {
            Shape::Shared => format!("{WRITERS} writers, one file, {block} in turn"),
            Shape::Own => format!("{WRITERS} writers, a file each, {block}"),
        }
    }
}

/// The jobs and the capacity of the buffer.
pub(super) struct Plan {
    pub(super) jobs: Vec<JobPlan>,
    pub(super) capacity: Bytes,
}

impl Plan {
    /// Divides about `total` bytes evenly between the jobs.
    pub(super) fn new(total: Bytes) -> Plan {
        let kinds = [
            ("climate", Shape::Shared, 1 << 20),
            ("fusion", Shape::Own, 4 << 20),
            ("genome", Shape::Own, 256 << 10),
            ("training", Shape::Shared, 2 << 20),
        ];
        let share = (total.0 / (kinds.len() as u64 * WRITERS) / GRAIN).max(1) * GRAIN;
        let jobs = kinds.map(|(label, shape, block)| JobPlan { label, shape, block, share });
        let written: u64 = jobs.iter().map(JobPlan::total).sum();
        // Extra space for regions that are still filling, and for the cleaner.
        let capacity = Bytes(written + written / 4 + (128 << 20));
        Plan { jobs: jobs.to_vec(), capacity }
    }

    pub(super) fn total(&self) -> u64 {
        self.jobs.iter().map(JobPlan::total).sum()
    }
}

/// The amount of data that fits this machine's free memory.
pub(super) fn fitting() -> Bytes {
    let shared = rustix::fs::statvfs("/dev/shm").ok().map(|facts| facts.f_bavail * facts.f_frsize);
    let spare = available_memory().map_or(MOST.0, |memory| memory.0 / 4);
    Bytes(spare.min(shared.map_or(u64::MAX, |free| free / 2)).min(MOST.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_blocks_and_fit() {
        for total in [0, 1, 48 << 20, 100_000_000, 3 << 30] {
            let plan = Plan::new(Bytes(total));
            assert!(plan.jobs.iter().all(|job| job.share % job.block == 0 && job.share > 0));
            assert!(plan.total() <= total.max(48 << 20) && plan.capacity.0 > plan.total());
        }
    }
}
