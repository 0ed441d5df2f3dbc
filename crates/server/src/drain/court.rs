//! The arbiter of the targets that are this server's to give, as other servers see it.
//!
//! A server says again and again what it has for those targets and which places it holds; that stands in place of whatever
//! it said before, so that nothing is lost with a message. Every grant has a number: one that a server does not name is
//! given back only if it had heard of it when it spoke.
//!
//! **Invariant**: what was granted and is neither given back nor expired is told again with every answer.

use forebay_model::{Bytes, JobId, ServerId};
use forebay_policy::Tick;
use forebay_policy::arbiter::{Arbiter, Grant, Member, Rules};
use forebay_policy::drain::TargetId;
use forebay_wire::{Granted, Wanted};
use std::collections::{BTreeMap, BTreeSet};

/// Gives out places at targets.
pub(crate) struct Court {
    arbiter: Arbiter,
    /// A server that says nothing for so long has no places, and wants none.
    lease: Tick,
    grants: BTreeMap<(ServerId, JobId, TargetId), Granted>,
    /// The number of the last grant.
    last: u64,
    /// When each server spoke last, and what it has bytes of.
    jobs: BTreeMap<ServerId, (Tick, BTreeSet<JobId>)>,
}

impl Court {
    pub(super) fn new(rules: Rules) -> Court {
        let (lease, arbiter) = (rules.lease, Arbiter::new(rules));
        Court { arbiter, lease, grants: BTreeMap::new(), last: 0, jobs: BTreeMap::new() }
    }

    /// A server says what it has; returns what it may write where, and who else was given something.
    pub(super) fn hear(
        &mut self,
        now: Tick,
        server: ServerId,
        (heard, fill): (u64, u16),
        wanted: &[Wanted],
    ) -> (Vec<Granted>, BTreeSet<ServerId>) {
        if let Some((spoke, _)) = self.jobs.get_mut(&server) {
            *spoke = now;
        }
        let mut others = self.dismiss(now);
        let holds = |granted: &Granted| {
            granted.serial > heard
                || wanted.iter().any(|one| one.job == granted.job && one.holds.contains(&granted.target))
        };
        let back: Vec<Granted> = self.of(server).filter(|granted| !holds(granted)).collect();
        for Granted { job, target, .. } in back {
            let left = left(wanted, job, target);
            others.extend(self.give_back(now, server, job, TargetId(target), left));
        }
        for one in wanted {
            let bytes: Vec<_> =
                one.left.iter().map(|&(target, bytes)| (TargetId(target), Bytes(bytes))).collect();
            others.extend(self.request(now, server, (one.job, one.priority, fill), &bytes));
        }
        let named = wanted.iter().map(|one| one.job).collect();
        let before = self.jobs.insert(server, (now, named));
        for job in before.into_iter().flat_map(|(_, jobs)| jobs) {
            if !wanted.iter().any(|one| one.job == job) {
                others.extend(self.request(now, server, (job, 0, 0), &[]));
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

    /// What there is to write for a job of a server, target by target; returns who was given something.
    pub(super) fn request(
        &mut self,
        now: Tick,
        server: ServerId,
        (job, priority, fill): (JobId, u32, u16),
        bytes: &[(TargetId, Bytes)],
    ) -> BTreeSet<ServerId> {
        // However full the server is, a job without bytes for these targets is in nobody's way.
        let fill = if bytes.is_empty() { 0 } else { fill };
        match self.arbiter.request(now, Member { server, job }, priority, fill, bytes) {
            Ok(grants) => self.note(grants),
            Err(error) => {
                // It is told again with the next beat.
                tracing::debug!(%error, "the arbiter does not take a request");
                BTreeSet::new()
            }
        }
    }

    /// A server goes on, with so much left.
    pub(super) fn progress(&mut self, now: Tick, member: Member, target: TargetId, left: Bytes) {
        self.arbiter.progress(now, member, target, left);
    }

    /// A place is given back; returns who was given something.
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
        self.note(grants)
    }

    /// So many may write to a target from now on; returns who was given something.
    pub(super) fn set_alpha(&mut self, now: Tick, target: TargetId, alpha: u32) -> BTreeSet<ServerId> {
        match self.arbiter.set_alpha(now, target, alpha) {
            Ok(grants) => self.note(grants),
            Err(error) => {
                tracing::warn!(%error, "a target keeps the number of writers it has");
                BTreeSet::new()
            }
        }
    }

    /// Forgets what servers want that are silent; returns who was given something.
    fn dismiss(&mut self, now: Tick) -> BTreeSet<ServerId> {
        let is_silent = |spoke: Tick| now.0.saturating_sub(spoke.0) > self.lease.0;
        let silent = self.jobs.iter().filter(|(_, (spoke, _))| is_silent(*spoke)).map(|(&server, _)| server);
        let mut given = BTreeSet::new();
        for server in silent.collect::<Vec<ServerId>>() {
            self.jobs.remove(&server);
            let grants = self.arbiter.leave(now, server);
            given.extend(self.note(grants));
        }
        given
    }

    /// Takes back what silent servers have; returns who was given something.
    pub(super) fn expire(&mut self, now: Tick) -> BTreeSet<ServerId> {
        let mut given = self.dismiss(now);
        let grants = self.arbiter.expire(now);
        given.extend(self.note(grants));
        let arbiter = &self.arbiter;
        self.grants.retain(|&(server, job, target), _| {
            arbiter.holders(target).any(|holder| holder == Member { server, job })
        });
        given
    }

    /// How many write to a target.
    pub(super) fn holders(&self, target: TargetId) -> usize {
        self.arbiter.holders(target).count()
    }

    /// What a server may write where.
    pub(super) fn of(&self, server: ServerId) -> impl Iterator<Item = Granted> + '_ {
        let all = (server, JobId(0), TargetId(0))..=(server, JobId(u64::MAX), TargetId(u32::MAX));
        self.grants.range(all).map(|(_, granted)| *granted)
    }

    fn note(&mut self, grants: Vec<Grant>) -> BTreeSet<ServerId> {
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

    fn court() -> Court {
        let rules =
            Rules { alpha: 1, per_server: 4, until: Until::All, choice: Choice::Sjf, ..Rules::default() };
        Court::new(rules)
    }

    fn wants(job: u64, bytes: u64, holds: &[u32]) -> Vec<Wanted> {
        vec![Wanted { job: JobId(job), priority: 0, left: vec![(0, bytes)], holds: holds.to_vec() }]
    }

    fn targets(granted: &[Granted]) -> Vec<u32> {
        granted.iter().map(|granted| granted.target).collect()
    }

    #[test]
    fn a_place_passes_to_who_waits_when_it_is_given_back() {
        let mut court = court();
        let (one, none) = court.hear(Tick(0), ONE, (0, 0), &wants(1, 10, &[]));
        assert_eq!((targets(&one), none.len()), (vec![0], 0));
        let (two, _) = court.hear(Tick(1), TWO, (0, 0), &wants(2, 3, &[]));
        assert!(targets(&two).is_empty());
        let heard = one[0].serial;
        // It holds it, and says so.
        let (still, _) = court.hear(Tick(2), ONE, (heard, 0), &wants(1, 4, &[0]));
        assert_eq!(still, one);
        let (given_back, others) = court.hear(Tick(3), ONE, (heard, 0), &wants(1, 4, &[]));
        assert_eq!((targets(&given_back), others.into_iter().collect::<Vec<_>>()), (vec![], vec![TWO]));
        let (two, _) = court.hear(Tick(4), TWO, (0, 0), &wants(2, 3, &[]));
        assert_eq!(targets(&two), [0], "told with every answer");
    }

    #[test]
    fn a_grant_that_was_not_heard_of_is_not_given_back() {
        let mut court = court();
        let (first, _) = court.hear(Tick(0), ONE, (0, 0), &wants(1, 10, &[]));
        // The answer was lost.
        let (again, _) = court.hear(Tick(1), ONE, (0, 0), &wants(1, 10, &[]));
        assert_eq!(again, first);
    }

    #[test]
    fn who_says_nothing_loses_its_place_and_who_has_nothing_leaves() {
        let mut court = court();
        court.hear(Tick(0), ONE, (0, 0), &wants(1, 10, &[]));
        let late = Tick(Rules::default().lease.0 + 1);
        let (two, _) = court.hear(late, TWO, (0, 0), &wants(2, 5, &[]));
        assert_eq!(targets(&two), [0]);
        let (none, _) = court.hear(late, TWO, (two[0].serial, 0), &[]);
        assert!(targets(&none).is_empty());
        let (one, _) = court.hear(late, ONE, (9, 0), &wants(1, 10, &[]));
        assert_eq!(targets(&one), [0]);
    }

    #[test]
    fn who_waits_and_says_nothing_is_not_waited_for() {
        let mut court = court();
        let lease = Rules::default().lease.0;
        court.hear(Tick(0), ONE, (0, 0), &wants(1, 10, &[]));
        court.hear(Tick(0), TWO, (0, 900), &wants(2, 5, &[]));
        let (one, _) = court.hear(Tick(lease), ONE, (1, 0), &wants(1, 10, &[0]));
        assert_eq!(targets(&one), [0]);
        // The other one is dead by now: its turn does not come.
        let (none, others) = court.hear(Tick(lease + 1), ONE, (1, 0), &[]);
        assert!(none.is_empty() && others.is_empty() && court.holders(TargetId(0)) == 0);
    }

    #[test]
    fn a_full_server_without_bytes_leaves_nothing_behind() {
        let mut court = court();
        court.hear(Tick(0), ONE, (0, 900), &wants(1, 10, &[]));
        court.hear(Tick(1), ONE, (1, 900), &[]);
        assert_eq!(court.arbiter.members(), 0);
    }
}
