//! The order of jobs.

use crate::share::Tick;
use forebay_model::JobId;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Order of jobs with the same priority.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The smallest first: least bytes left on all servers.
    #[default]
    Sjf,
    /// First come, first served by server, whatever its job.
    Fcfs,
}

/// A job's position among all: less is earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank {
    /// Has waited too long: comes before all others, once.
    starved: Reverse<bool>,
    priority: Reverse<u32>,
    /// One of its servers is almost full.
    critical: Reverse<bool>,
    /// Remaining bytes, where these count.
    size: u64,
    since: Tick,
    job: JobId,
}

impl Rank {
    /// The rank of one server of the job, with the time of its first request.
    pub(super) fn of_member(self, since: Tick) -> Rank {
        Rank { since, ..self }
    }
}

/// Inputs of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) job: JobId,
    pub(super) starved: bool,
    pub(super) priority: u32,
    pub(super) critical: bool,
    pub(super) size: u64,
    pub(super) since: Tick,
}

impl Standing {
    pub(super) fn rank(self, choice: Choice) -> Rank {
        let Standing { job, starved, priority, critical, size, since } = self;
        let size = if choice == Choice::Sjf { size } else { 0 };
        Rank {
            starved: Reverse(starved),
            priority: Reverse(priority),
            critical: Reverse(critical),
            size,
            since,
            job,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starved_then_priority_then_critical_then_small_then_old() {
        let plain = Standing {
            job: JobId(5),
            starved: false,
            priority: 1,
            critical: false,
            size: 100,
            since: Tick(50),
        };
        let order = [
            Standing { starved: true, priority: 0, size: 900, ..plain },
            Standing { priority: 2, size: 900, ..plain },
            Standing { critical: true, size: 900, ..plain },
            Standing { size: 10, since: Tick(90), ..plain },
            Standing { since: Tick(10), ..plain },
            Standing { job: JobId(4), ..plain },
            plain,
            Standing { priority: 0, size: 0, ..plain },
        ];
        assert!(order.iter().map(|one| one.rank(Choice::Sjf)).is_sorted());
        let (small, old) = (order[3].rank(Choice::Fcfs), order[4].rank(Choice::Fcfs));
        assert!(old < small, "the older request is served first, whatever its size");
    }
}
