//! How many servers and writers use the targets.

/// The fewest and the most workers of a server.
const WORKERS: std::ops::RangeInclusive<u32> = 2..=128;

/// How the writers that the targets may have (α each) are divided between jobs and servers.
///
/// A server that is alone needs no turns with others: one job at a time has all writers of a target, so that jobs
/// finish in order. With several servers a grant is for one writer, and a target is granted to α of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// Members (a job of a server) that a target is granted to at once.
    pub members: u32,
    /// Writers of one job of a server at a target.
    pub streams_per_job: u32,
    /// Targets that a job of a server may be granted at once.
    pub per_server: u32,
    /// Writers of a server at all targets together, where no arbiter grants them.
    pub writers: u32,
    /// Workers of a server: one for each writer, plus some that write while others sync. With several servers there
    /// are twice as many as its share of all writers, since other servers may have little to write.
    pub workers: u32,
    is_alone: bool,
    alpha: u32,
}

/// Divides the writers of this many targets, with at most `alpha` writers each, between this many servers.
#[must_use]
pub fn slots(alpha: u32, targets: u32, servers: u32) -> Slots {
    let is_alone = servers < 2;
    let writers = targets.saturating_mul(alpha).div_ceil(servers.max(1));
    let own = writers.saturating_mul(if is_alone { 1 } else { 2 });
    let workers = own.saturating_add(targets.min(own).max(2)).clamp(*WORKERS.start(), *WORKERS.end());
    let (members, streams_per_job) = if is_alone { (1, alpha) } else { (alpha, 1) };
    Slots { members, streams_per_job, per_server: targets.max(1), writers, workers, is_alone, alpha }
}

impl Slots {
    /// Writers of a server at a target for which it holds this many grants.
    #[must_use]
    pub fn streams(&self, grants: u32) -> u32 {
        if self.is_alone { self.alpha } else { grants.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_server_gives_all_writers_of_a_target_to_one_job() {
        let one = slots(4, 8, 1);
        assert_eq!((one.members, one.streams_per_job, one.per_server), (1, 4, 8));
        assert_eq!((one.writers, one.workers, one.streams(0), one.streams(3)), (32, 40, 4, 4));
    }

    #[test]
    fn several_servers_have_one_writer_a_grant() {
        let many = slots(4, 8, 16);
        assert_eq!((many.members, many.streams_per_job, many.per_server), (4, 1, 8));
        assert_eq!((many.writers, many.workers, many.streams(0), many.streams(3)), (2, 8, 1, 3));
    }

    #[test]
    fn number_of_workers_is_bounded() {
        assert_eq!(slots(1, 0, 1).workers, 2);
        assert_eq!(slots(16, 1000, 1).workers, 128);
        assert_eq!(slots(u32::MAX, u32::MAX, 0).workers, 128);
    }
}
