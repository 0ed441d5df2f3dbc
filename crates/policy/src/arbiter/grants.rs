//! Granting and revoking places.

use super::rank::{Choice, Rank};
use super::state::{Arbiter, Grant, Holder, Member, Seat, Until};
use crate::drain::TargetId;
use crate::share::Tick;
use forebay_model::{Bytes, ServerId};
use std::collections::BTreeSet;

/// Up to this many waiting jobs, scan the target's jobs; beyond, scan all jobs by rank.
const FEW: usize = 64;
/// Slack of a log before it is compacted, in addition to twice its live entries.
const SPARE: usize = 1024;

impl Arbiter {
    /// Fills all free places, then serves these servers.
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
            let chosen = match self.rules.choice {
                Choice::Sjf => self.first_job(target),
                Choice::Fcfs => self.first_member(target),
            };
            let Some((job, part)) = chosen else { break };
            grants.push(self.grant(now, job, part, target));
        }
        grants
    }

    /// Grants an idle server a target with a free place: the least used of its targets, for the first of its
    /// jobs.
    pub(super) fn serve_server(&mut self, now: Tick, server: ServerId) -> Vec<Grant> {
        let mut grants = Vec::new();
        while !self.open.is_empty() && self.servers[usize::from(server.0)].held < self.rules.per_server {
            let seats = self.servers[usize::from(server.0)].seats.iter();
            let mut seats: Vec<Seat> = seats.copied().filter(|seat| self.job(seat.job).ready).collect();
            seats.sort_unstable_by_key(|seat| self.job(seat.job).rank);
            let found = seats.into_iter().find_map(|Seat { job, part, .. }| {
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

    /// Jobs that have waited too long come first, once.
    fn feed_hungry(&mut self, now: Tick) {
        while let Some(&(last, job)) = self.served.front()
            && now.since(last) > self.rules.patience
        {
            self.served.pop_front();
            if self.was_last_served(last, job) {
                self.job_mut(job).overdue = true;
                self.consider(job);
            }
        }
    }

    /// Records a grant to a job; compacts the log before it outgrows the number of jobs.
    pub(super) fn note_served(&mut self, now: Tick, job: usize) {
        if self.served.len() > 2 * self.jobs.len() + SPARE {
            let mut served = std::mem::take(&mut self.served);
            served.retain(|&(last, job)| self.was_last_served(last, job));
            self.served = served;
        }
        self.served.push_back((now, job));
    }

    fn was_last_served(&self, last: Tick, job: usize) -> bool {
        self.jobs[job].as_ref().is_some_and(|job| job.last_served == last && !job.overdue)
    }

    /// The first job by rank with an idle part that waits for a target, and that part.
    fn first_job(&self, target: u32) -> Option<(usize, usize)> {
        let candidate = |job: usize| {
            let state = self.job(job);
            let part = state.waiting.get(target as usize)?.first_of_both(&state.idle, state.cursor)?;
            Some((job, part))
        };
        let state = &self.targets[target as usize];
        if state.queue > FEW {
            return self.ready.iter().find_map(|&(_, job)| candidate(job));
        }
        let mut best: Option<(Rank, (usize, usize))> = None;
        for job in state.jobs.iter() {
            let rank = self.job(job).rank;
            if best.is_none_or(|(first, _)| rank < first)
                && let Some(found) = candidate(job)
            {
                best = Some((rank, found));
            }
        }
        best.map(|(_, found)| found)
    }

    /// The idle part with the oldest request, among those that wait for a target in the best-ranked jobs.
    fn first_member(&self, target: u32) -> Option<(usize, usize)> {
        let mut best: Option<(Rank, (usize, usize))> = None;
        for &(rank, job) in &self.ready {
            // No part is older than its job.
            if best.is_some_and(|(first, _)| first < rank) {
                break;
            }
            let state = self.job(job);
            let waiting = state.waiting.get(target as usize).into_iter();
            for part in waiting.flat_map(|waiting| waiting.both(&state.idle)) {
                let asked = state.parts[part].as_ref().expect("part is live").since;
                let rank = rank.of_member(asked);
                if best.is_none_or(|(first, _)| rank < first) {
                    best = Some((rank, (job, part)));
                }
            }
        }
        best.map(|(_, found)| found)
    }

    fn grant(&mut self, now: Tick, job: usize, part: usize, target: u32) -> Grant {
        self.wait(job, part, target, false);
        let lease = now.after(self.rules.lease);
        self.note_served(now, job);
        let state = self.jobs[job].as_mut().expect("job is live");
        (state.last_served, state.overdue) = (now, false);
        state.standing.starved = false;
        state.cursor = part + 1;
        let mine = state.parts[part].as_mut().expect("part is live");
        mine.held.push(target);
        let server = mine.server;
        let place = mine.place(target).expect("a waiting part has bytes");
        let all = mine.left[place].1;
        let member = Member { server, job: state.standing.job };
        self.targets[target as usize].holders.push(Holder { member, job, part, end: lease });
        self.held += 1;
        self.note_open(target);
        self.note_end(lease, target, member);
        self.servers[usize::from(server.0)].held += 1;
        self.consider_server(server);
        let bytes = match self.rules.until {
            Until::All => all,
            Until::Quantum(most) => all.min(most.0),
        };
        Grant { member, target: TargetId(target), bytes: Bytes(bytes) }
    }

    /// Records the end of a lease; compacts the log before it outgrows the number of places.
    fn note_end(&mut self, end: Tick, target: u32, member: Member) {
        if self.ends.len() > 2 * self.held + SPARE {
            let mut ends = std::mem::take(&mut self.ends);
            ends.retain(|&(end, target, member)| self.holds(target, member, end));
            self.ends = ends;
        }
        self.ends.push_back((end, target, member));
    }

    /// Whether the member holds the place with a lease that ends then.
    pub(super) fn holds(&self, target: u32, member: Member, end: Tick) -> bool {
        let holders = self.targets[target as usize].holders.iter();
        holders.into_iter().any(|holder| holder.member == member && holder.end == end)
    }

    /// Renews a lease; `None` if the place was not held.
    pub(super) fn renew(&mut self, now: Tick, target: u32, member: Member) -> Option<Holder> {
        let holders = &mut self.targets.get_mut(target as usize)?.holders;
        let holder = holders.iter_mut().find(|holder| holder.member == member)?;
        holder.end = now.after(self.rules.lease);
        let holder = *holder;
        self.note_end(holder.end, target, member);
        Some(holder)
    }

    /// Releases a place; `None` if it was not held.
    pub(super) fn release(&mut self, target: u32, member: Member) -> Option<Holder> {
        let holders = &mut self.targets.get_mut(target as usize)?.holders;
        let place = holders.iter().position(|holder| holder.member == member)?;
        let holder = holders.remove(place);
        self.held -= 1;
        self.note_open(target);
        self.servers[usize::from(member.server.0)].held -= 1;
        let mine = self.job_mut(holder.job).parts[holder.part].as_mut().expect("part is live");
        mine.held.retain(|&other| other != target);
        Some(holder)
    }
}
