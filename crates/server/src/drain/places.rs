//! This server's places at targets, as the arbiter gives them.

use forebay_model::{Bytes, JobId, Result, ServerId};
use forebay_policy::Tick;
use forebay_policy::arbiter::{Arbiter, Choice, Grant, Member, Rules, Until};
use forebay_policy::drain::TargetId;
use std::collections::BTreeMap;

/// How places are given.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) server: ServerId,
    /// Writers at each target.
    pub(super) alpha: Vec<u32>,
    pub(super) choice: Choice,
    pub(super) quantum: Option<Bytes>,
}

/// What this server may write where. Alone it asks an arbiter of its own, and may fill all places.
pub(super) struct Places {
    terms: Terms,
    arbiter: Arbiter,
    /// Bytes that may still be written under each grant.
    held: BTreeMap<(JobId, TargetId), u64>,
}

impl Places {
    pub(super) fn new(terms: Terms) -> Places {
        let Terms { choice, quantum, .. } = terms;
        let until = quantum.map_or(Until::All, Until::Quantum);
        let targets = u32::try_from(terms.alpha.len()).unwrap_or(u32::MAX).max(1);
        let arbiter = Arbiter::new(Rules { per_server: targets, until, choice, ..Rules::default() });
        let mut places = Places { terms, arbiter, held: BTreeMap::new() };
        for (target, alpha) in (0..).map(TargetId).zip(places.terms.alpha.clone()) {
            places.set_alpha(Tick(0), target, alpha);
        }
        places
    }

    /// So many may write to a target from now on.
    pub(super) fn set_alpha(&mut self, now: Tick, target: TargetId, alpha: u32) {
        let Some(known) = self.terms.alpha.get_mut(target.0 as usize) else { return };
        *known = alpha;
        match self.arbiter.set_alpha(now, target, alpha) {
            Ok(grants) => self.take(grants),
            Err(error) => tracing::warn!(%error, "a target keeps the number of writers it has"),
        }
    }

    fn member(&self, job: JobId) -> Member {
        Member { server: self.terms.server, job }
    }

    fn take(&mut self, grants: Vec<Grant>) {
        for Grant { member, target, bytes } in grants {
            let bytes = if self.terms.quantum.is_some() { bytes.0 } else { u64::MAX };
            self.held.insert((member.job, target), bytes);
        }
    }

    /// Says what there is to write for a job.
    pub(super) fn tell(
        &mut self,
        now: Tick,
        job: JobId,
        (priority, fill): (u32, u16),
        left: &[(TargetId, Bytes)],
    ) -> Result<()> {
        let grants = self.arbiter.request(now, self.member(job), priority, fill, left)?;
        self.take(grants);
        Ok(())
    }

    /// Where this server may write now, and for which job.
    pub(super) fn granted(&self) -> Vec<(JobId, TargetId)> {
        self.held.keys().copied().collect()
    }

    /// Most writers of this server at a target.
    pub(super) fn streams(&self, target: TargetId) -> u32 {
        self.terms.alpha.get(target.0 as usize).copied().unwrap_or(1)
    }

    /// Bytes were written under a grant, and so many are left: it goes on, or is given back.
    pub(super) fn wrote(&mut self, now: Tick, (job, target): (JobId, TargetId), bytes: u64, left: Bytes) {
        let Some(quantum) = self.held.get_mut(&(job, target)) else { return };
        *quantum = quantum.saturating_sub(bytes);
        if *quantum == 0 || left.0 == 0 {
            self.give_back(now, (job, target), left);
        } else {
            self.arbiter.progress(now, self.member(job), target, left);
        }
    }

    /// A grant is given back, with so much left for its target.
    pub(super) fn give_back(&mut self, now: Tick, (job, target): (JobId, TargetId), left: Bytes) {
        if self.held.remove(&(job, target)).is_some() {
            let grants = self.arbiter.done(now, self.member(job), target, left);
            self.take(grants);
        }
    }

    /// Time has passed: whoever is at work says so.
    pub(super) fn beat(&mut self, now: Tick, left: impl Fn(JobId, TargetId) -> Bytes) {
        for (job, target) in self.granted() {
            self.arbiter.progress(now, self.member(job), target, left(job, target));
        }
        let grants = self.arbiter.expire(now);
        self.take(grants);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(alpha: u32, quantum: Option<u64>) -> Places {
        let quantum = quantum.map(Bytes);
        Places::new(Terms { server: ServerId(0), alpha: vec![alpha; 2], choice: Choice::Sjf, quantum })
    }

    #[test]
    fn the_smallest_job_has_the_place_until_its_bytes_are_out() {
        let mut places = places(1, None);
        let (large, small) = (JobId(1), JobId(2));
        let left = |bytes| [(TargetId(0), Bytes(bytes))];
        places.tell(Tick(0), large, (1, 0), &left(100)).unwrap();
        assert_eq!(places.granted(), [(large, TargetId(0))]);
        places.tell(Tick(1), small, (1, 0), &left(10)).unwrap();
        assert_eq!(places.granted(), [(large, TargetId(0))], "a grant is not taken back");
        places.wrote(Tick(2), (large, TargetId(0)), 60, Bytes(40));
        assert_eq!(places.granted(), [(large, TargetId(0))]);
        places.wrote(Tick(3), (large, TargetId(0)), 40, Bytes(0));
        assert_eq!(places.granted(), [(small, TargetId(0))]);
    }

    #[test]
    fn a_quantum_ends_a_grant_and_the_smaller_job_is_next() {
        let mut places = places(1, Some(50));
        let (large, small) = (JobId(1), JobId(2));
        places.tell(Tick(0), large, (1, 0), &[(TargetId(0), Bytes(100))]).unwrap();
        places.tell(Tick(1), small, (1, 0), &[(TargetId(0), Bytes(10))]).unwrap();
        places.wrote(Tick(2), (large, TargetId(0)), 50, Bytes(50));
        assert_eq!(places.granted(), [(small, TargetId(0))]);
        places.give_back(Tick(3), (small, TargetId(0)), Bytes(0));
        assert_eq!(places.granted(), [(large, TargetId(0))]);
    }
}
