//! Which job comes first.

use crate::share::Tick;
use forebay_model::JobId;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// How jobs of one priority are put in order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The smallest first: least bytes left on all servers.
    #[default]
    Sjf,
    /// The first server to ask first, whatever its job.
    Fcfs,
}

/// A job's place among all: less is earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank {
    /// Has waited too long for anything: comes before all others, once.
    starved: Reverse<bool>,
    priority: Reverse<u32>,
    /// One of its servers is about to be full.
    critical: Reverse<bool>,
    /// Bytes left, where that counts.
    size: u64,
    since: Tick,
    job: JobId,
}

impl Rank {
    /// The place of one server of the job that asked then.
    pub(super) fn of_member(self, since: Tick) -> Rank {
        Rank { since, ..self }
    }
}

/// What a rank is made of.
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
        assert!(old < small, "who asks first is served first, whatever his size");
    }
}
