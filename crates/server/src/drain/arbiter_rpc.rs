//! The arbiter of this server's targets, as other servers see it.
//!
//! A server repeatedly sends a statement: the bytes it has for those targets and the grants it holds. A statement
//! replaces the one before, so that a lost message does no harm. Every grant has a serial number. A grant that a
//! statement does not list counts as returned only if the server had received it when it sent the statement.
//!
//! **Invariant**: every reply lists all grants of the server that are neither returned nor expired.

use forebay_model::{Bytes, JobId, ServerId};
use forebay_policy::Tick;
use forebay_policy::arbiter::{Arbiter, Grant, Member, Rules};
use forebay_policy::drain::TargetId;
use forebay_wire::{Granted, Wanted};
use std::collections::{BTreeMap, BTreeSet};

/// Grants write slots at targets.
pub(crate) struct ArbiterService {
    arbiter: Arbiter,
    /// A server that sends nothing for this long loses its grants and its requests.
    lease: Tick,
    grants: BTreeMap<(ServerId, JobId, TargetId), Granted>,
    /// The serial number of the last grant.
    last: u64,
    /// When each server sent its last statement, and the jobs it has bytes of.
    jobs: BTreeMap<ServerId, (Tick, BTreeSet<JobId>)>,
}

/// What a server states to an arbiter.
#[derive(Clone, Copy)]
pub(crate) struct Statement<'a> {
    /// The latest grant of the arbiter that it has received.
    pub(crate) last_received: u64,
    /// Its fill level, in thousandths.
    pub(crate) fill: u16,
    /// Its demand for each job.
    pub(crate) wanted: &'a [Wanted],
}

/// How urgent it is to drain a job's bytes from a server.
#[derive(Clone, Copy, Default)]
pub(super) struct Urgency {
    /// The job's priority.
    pub(super) priority: u32,
    /// The server's fill level, in thousandths.
    pub(super) fill: u16,
}

impl ArbiterService {
    pub(super) fn new(rules: Rules) -> ArbiterService {
        let (lease, arbiter) = (rules.lease, Arbiter::new(rules));
        ArbiterService { arbiter, lease, grants: BTreeMap::new(), last: 0, jobs: BTreeMap::new() }
    }

    /// Handles a server's statement; returns its grants, and the other servers that got new ones.
    pub(super) fn handle_statement(
        &mut self,
        now: Tick,
        server: ServerId,
        Statement { last_received, fill, wanted }: Statement<'_>,
    ) -> (Vec<Granted>, BTreeSet<ServerId>) {
        if let Some((last_statement, _)) = self.jobs.get_mut(&server) {
            *last_statement = now;
        }
        let mut others = self.drop_silent(now);
        let holds = |granted: &Granted| {
            granted.serial > last_received
                || wanted.iter().any(|one| one.job == granted.job && one.holds.contains(&granted.target))
        };
        let returned: Vec<Granted> = self.of(server).filter(|granted| !holds(granted)).collect();
        for Granted { job, target, .. } in returned {
            let left = left(wanted, job, target);
            others.extend(self.give_back(now, server, job, TargetId(target), left));
        }
        for one in wanted {
            let bytes: Vec<_> =
                one.left.iter().map(|&(target, bytes)| (TargetId(target), Bytes(bytes))).collect();
            others.extend(self.request(
                now,
                Member { server, job: one.job },
                Urgency { priority: one.priority, fill },
                &bytes,
            ));
        }
        let named = wanted.iter().map(|one| one.job).collect();
        let before = self.jobs.insert(server, (now, named));
        for job in before.into_iter().flat_map(|(_, jobs)| jobs) {
            if !wanted.iter().any(|one| one.job == job) {
                others.extend(self.request(now, Member { server, job }, Urgency::default(), &[]));
            }
        }
        let held: Vec<Granted> = self.of(server).collect();
        for granted in &held {
            let member = Member { server, job: granted.job };
            let left = left(wanted, granted.job, granted.target);
            self.arbiter.progress(now, member, TargetId(granted.target), left);
        }
        others.extend(self.expire(now));
        others.remove(&server);
        (self.of(server).collect(), others)
    }

    /// Sets the bytes that a job of a server has for each target; returns the servers that got grants.
    pub(super) fn request(
        &mut self,
        now: Tick,
        member: Member,
        urgency: Urgency,
        bytes: &[(TargetId, Bytes)],
    ) -> BTreeSet<ServerId> {
        // A job without bytes for these targets does not count, however full its server is.
        let fill = if bytes.is_empty() { 0 } else { urgency.fill };
        match self.arbiter.request(now, member, urgency.priority, fill, bytes) {
            Ok(grants) => self.record(grants),
            Err(error) => {
                // The next statement repeats it.
                tracing::debug!(%error, "the arbiter refused a request");
                BTreeSet::new()
            }
        }
    }

    /// A server has made progress, with `left` bytes remaining.
    pub(super) fn progress(&mut self, now: Tick, member: Member, target: TargetId, left: Bytes) {
        self.arbiter.progress(now, member, target, left);
    }

    /// A grant is returned; returns the servers that got grants.
    pub(super) fn give_back(
        &mut self,
        now: Tick,
        server: ServerId,
        job: JobId,
        target: TargetId,
        left: Bytes,
    ) -> BTreeSet<ServerId> {
        self.grants.remove(&(server, job, target));
        let grants = self.arbiter.done(now, Member { server, job }, target, left);
        self.record(grants)
    }

    /// Sets the number of writers of a target; returns the servers that got grants.
    pub(super) fn set_alpha(&mut self, now: Tick, target: TargetId, alpha: u32) -> BTreeSet<ServerId> {
        match self.arbiter.set_alpha(now, target, alpha) {
            Ok(grants) => self.record(grants),
            Err(error) => {
                tracing::warn!(%error, "cannot change the number of writers of a target");
                BTreeSet::new()
            }
        }
    }

    /// Drops the requests of silent servers; returns the servers that got grants.
    fn drop_silent(&mut self, now: Tick) -> BTreeSet<ServerId> {
        let is_silent = |last_statement: Tick| now.0.saturating_sub(last_statement.0) > self.lease.0;
        let silent = self
            .jobs
            .iter()
            .filter(|(_, (last_statement, _))| is_silent(*last_statement))
            .map(|(&server, _)| server);
        let mut given = BTreeSet::new();
        for server in silent.collect::<Vec<ServerId>>() {
            self.jobs.remove(&server);
            let grants = self.arbiter.leave(now, server);
            given.extend(self.record(grants));
        }
        given
    }

    /// Revokes the grants of silent servers; returns the servers that got grants.
    pub(super) fn expire(&mut self, now: Tick) -> BTreeSet<ServerId> {
        let mut given = self.drop_silent(now);
        let grants = self.arbiter.expire(now);
        given.extend(self.record(grants));
        let arbiter = &self.arbiter;
        self.grants.retain(|&(server, job, target), _| {
            arbiter.holders(target).any(|holder| holder == Member { server, job })
        });
        given
    }

    /// How many grants a target has.
    pub(super) fn holders(&self, target: TargetId) -> usize {
        self.arbiter.holders(target).count()
    }

    /// The grants of a server.
    pub(super) fn of(&self, server: ServerId) -> impl Iterator<Item = Granted> + '_ {
        let all = (server, JobId(0), TargetId(0))..=(server, JobId(u64::MAX), TargetId(u32::MAX));
        self.grants.range(all).map(|(_, granted)| *granted)
    }

    fn record(&mut self, grants: Vec<Grant>) -> BTreeSet<ServerId> {
        let mut given = BTreeSet::new();
        for Grant { member, target, bytes } in grants {
            self.last += 1;
            let granted = Granted { serial: self.last, job: member.job, target: target.0, bytes: bytes.0 };
            self.grants.insert((member.server, member.job, target), granted);
            given.insert(member.server);
        }
        given
    }
}

fn left(wanted: &[Wanted], job: JobId, target: u32) -> Bytes {
    let of_job = wanted.iter().filter(|one| one.job == job).flat_map(|one| &one.left);
    Bytes(of_job.filter(|(at, _)| *at == target).map(|(_, bytes)| *bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::arbiter::{Choice, Until};

    const ONE: ServerId = ServerId(1);
    const TWO: ServerId = ServerId(2);

    fn arbiter_service() -> ArbiterService {
        let rules =
            Rules { alpha: 1, per_server: 4, until: Until::All, choice: Choice::Sjf, ..Rules::default() };
        ArbiterService::new(rules)
    }

    fn wants(job: u64, bytes: u64, holds: &[u32]) -> Vec<Wanted> {
        vec![Wanted { job: JobId(job), priority: 0, left: vec![(0, bytes)], holds: holds.to_vec() }]
    }

    fn states(last_received: u64, fill: u16, wanted: &[Wanted]) -> Statement<'_> {
        Statement { last_received, fill, wanted }
    }

    fn targets(granted: &[Granted]) -> Vec<u32> {
        granted.iter().map(|granted| granted.target).collect()
    }

    #[test]
    fn returned_grant_passes_to_the_waiting_server() {
        let mut arbiter_service = arbiter_service();
        let (one, none) = arbiter_service.handle_statement(Tick(0), ONE, states(0, 0, &wants(1, 10, &[])));
        assert_eq!((targets(&one), none.len()), (vec![0], 0));
        let (two, _) = arbiter_service.handle_statement(Tick(1), TWO, states(0, 0, &wants(2, 3, &[])));
        assert!(targets(&two).is_empty());
        let received = one[0].serial;
        // It holds the grant, and reports so.
        let (still, _) =
            arbiter_service.handle_statement(Tick(2), ONE, states(received, 0, &wants(1, 4, &[0])));
        assert_eq!(still, one);
        let (given_back, others) =
            arbiter_service.handle_statement(Tick(3), ONE, states(received, 0, &wants(1, 4, &[])));
        assert_eq!((targets(&given_back), others.into_iter().collect::<Vec<_>>()), (vec![], vec![TWO]));
        let (two, _) = arbiter_service.handle_statement(Tick(4), TWO, states(0, 0, &wants(2, 3, &[])));
        assert_eq!(targets(&two), [0], "every reply lists the grant");
    }

    #[test]
    fn grant_in_a_lost_reply_does_not_count_as_returned() {
        let mut arbiter_service = arbiter_service();
        let (first, _) = arbiter_service.handle_statement(Tick(0), ONE, states(0, 0, &wants(1, 10, &[])));
        // The reply was lost.
        let (again, _) = arbiter_service.handle_statement(Tick(1), ONE, states(0, 0, &wants(1, 10, &[])));
        assert_eq!(again, first);
    }

    #[test]
    fn silent_servers_lose_grants_and_servers_without_bytes_leave() {
        let mut arbiter_service = arbiter_service();
        arbiter_service.handle_statement(Tick(0), ONE, states(0, 0, &wants(1, 10, &[])));
        let late = Tick(Rules::default().lease.0 + 1);
        let (two, _) = arbiter_service.handle_statement(late, TWO, states(0, 0, &wants(2, 5, &[])));
        assert_eq!(targets(&two), [0]);
        let (none, _) = arbiter_service.handle_statement(late, TWO, states(two[0].serial, 0, &[]));
        assert!(targets(&none).is_empty());
        let (one, _) = arbiter_service.handle_statement(late, ONE, states(9, 0, &wants(1, 10, &[])));
        assert_eq!(targets(&one), [0]);
    }

    #[test]
    fn silent_waiting_server_does_not_hold_up_others() {
        let mut arbiter_service = arbiter_service();
        let lease = Rules::default().lease.0;
        arbiter_service.handle_statement(Tick(0), ONE, states(0, 0, &wants(1, 10, &[])));
        arbiter_service.handle_statement(Tick(0), TWO, states(0, 900, &wants(2, 5, &[])));
        let (one, _) = arbiter_service.handle_statement(Tick(lease), ONE, states(1, 0, &wants(1, 10, &[0])));
        assert_eq!(targets(&one), [0]);
        // The other server is dead by now: its turn does not come.
        let (none, others) = arbiter_service.handle_statement(Tick(lease + 1), ONE, states(1, 0, &[]));
        assert!(none.is_empty() && others.is_empty() && arbiter_service.holders(TargetId(0)) == 0);
    }

    #[test]
    fn full_server_without_bytes_is_forgotten() {
        let mut arbiter_service = arbiter_service();
        arbiter_service.handle_statement(Tick(0), ONE, states(0, 900, &wants(1, 10, &[])));
        arbiter_service.handle_statement(Tick(1), ONE, states(1, 900, &[]));
        assert_eq!(arbiter_service.arbiter.members(), 0);
    }
}
