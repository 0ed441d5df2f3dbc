//! Giving places and taking them back.

use super::book::{Arbiter, Grant, Member, Until};
use super::rank::Rank;
use crate::drain::TargetId;
use crate::share::Tick;
use forebay_model::{Bytes, ServerId};
use std::collections::BTreeSet;

/// A target with at most so many jobs is asked for its jobs; for others jobs are asked in their order.
const FEW: usize = 64;

impl Arbiter {
    /// Fills all free places, and then gives these servers what they can have.
    pub(super) fn serve_all(&mut self, now: Tick, servers: BTreeSet<ServerId>) -> Vec<Grant> {
        let open: Vec<u32> =
            (0..self.targets.len() as u32).filter(|&target| self.open.has(target as usize)).collect();
        let mut grants: Vec<Grant> =
            open.into_iter().flat_map(|target| self.serve_target(now, target)).collect();
        for server in servers {
            grants.extend(self.serve_server(now, server));
        }
        grants
    }

    /// Fills the free places of a target.
    pub(super) fn serve_target(&mut self, now: Tick, target: u32) -> Vec<Grant> {
        let mut grants = Vec::new();
        loop {
            let state = &self.targets[target as usize];
            if state.holders.len() >= state.alpha as usize {
                break;
            }
            self.feed_hungry(now);
            let Some((job, part)) = self.choose(target) else { break };
            grants.push(self.grant(now, job, part, target));
        }
        grants
    }

    /// Gives an idle server what has a free place: the least used of its targets, for the first of its jobs.
    pub(super) fn serve_server(&mut self, now: Tick, server: ServerId) -> Vec<Grant> {
        let mut grants = Vec::new();
        while !self.open.is_empty() && self.servers[usize::from(server.0)].held < self.rules.per_server {
            let jobs = self.servers[usize::from(server.0)].jobs.iter().copied();
            let mut jobs: Vec<usize> = jobs.filter(|&job| self.job(job).ready).collect();
            jobs.sort_unstable_by_key(|&job| self.job(job).rank);
            let found = jobs.into_iter().find_map(|job| {
                let part = self.job(job).places[&server];
                self.least_used(job, part).map(|target| (job, part, target))
            });
            let Some((job, part, target)) = found else { break };
            grants.push(self.grant(now, job, part, target));
        }
        grants
    }

    fn least_used(&self, job: usize, part: usize) -> Option<u32> {
        let state = self.job(job);
        let mine = state.parts[part].as_ref()?;
        let waits = |target: u32| state.waiting.get(target as usize).is_some_and(|bits| bits.has(part));
        let open = mine
            .left
            .iter()
            .map(|one| one.0)
            .filter(|target| self.open.has(*target as usize) && waits(*target));
        open.min_by_key(|&target| self.targets[target as usize].holders.len())
    }

    /// The job that has gone without for too long comes first, once.
    fn feed_hungry(&mut self, now: Tick) {
        while let Some(&(last, job)) = self.hungry.first()
            && now.since(last) > self.rules.patience
        {
            self.job_mut(job).standing.starved = true;
            self.consider(job);
        }
    }

    /// The first job with an idle part that waits for a target, and that part.
    fn choose(&self, target: u32) -> Option<(usize, usize)> {
        let candidate = |job: usize| {
            let state = self.job(job);
            let part = state.waiting.get(target as usize)?.first_of_both(&state.idle, state.cursor)?;
            Some((job, part))
        };
        let jobs = &self.targets[target as usize].jobs;
        if jobs.len() > FEW {
            return self.ready.iter().find_map(|&(_, job)| candidate(job));
        }
        let mut best: Option<(Rank, (usize, usize))> = None;
        for &job in jobs {
            let rank = self.job(job).rank;
            if best.is_none_or(|(first, _)| rank < first)
                && let Some(found) = candidate(job)
            {
                best = Some((rank, found));
            }
        }
        best.map(|(_, found)| found)
    }

    fn grant(&mut self, now: Tick, job: usize, part: usize, target: u32) -> Grant {
        self.wait(job, part, target, false);
        let lease = now.after(self.rules.lease);
        let state = self.jobs[job].as_mut().expect("only live jobs are named");
        if state.hungry {
            self.hungry.remove(&(state.last_served, job));
            self.hungry.insert((now, job));
        }
        state.last_served = now;
        state.standing.starved = false;
        state.cursor = part + 1;
        let mine = state.parts[part].as_mut().expect("a live part");
        mine.held.push(target);
        let server = mine.server;
        let place = mine.left.binary_search_by_key(&target, |one| one.0).expect("who waits has bytes");
        let all = mine.left[place].1;
        let member = Member { server, job: state.standing.job };
        self.targets[target as usize].holders.push(member);
        self.note_open(target);
        self.leases.insert((target, member), lease);
        self.ends.insert((lease, target, member));
        self.servers[usize::from(server.0)].held += 1;
        self.consider_server(server);
        let bytes = match self.rules.until {
            Until::All => all,
            Until::Quantum(most) => all.min(most.0),
        };
        Grant { member, target: TargetId(target), bytes: Bytes(bytes) }
    }

    pub(super) fn renew(&mut self, now: Tick, target: u32, member: Member) -> bool {
        let Some(end) = self.leases.get_mut(&(target, member)) else { return false };
        let next = now.after(self.rules.lease);
        self.ends.remove(&(*end, target, member));
        self.ends.insert((next, target, member));
        *end = next;
        true
    }

    /// Takes a place back; false if it was not held.
    pub(super) fn release(&mut self, target: u32, member: Member) -> bool {
        let Some(end) = self.leases.remove(&(target, member)) else { return false };
        self.ends.remove(&(end, target, member));
        self.targets[target as usize].holders.retain(|holder| *holder != member);
        self.note_open(target);
        self.servers[usize::from(member.server.0)].held -= 1;
        if let Some((job, part)) = self.find(member) {
            let mine = self.job_mut(job).parts[part].as_mut().expect("a live part");
            mine.held.retain(|&other| other != target);
        }
        true
    }
}
