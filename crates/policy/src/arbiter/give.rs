//! Giving places and taking them back.

use super::book::{Arbiter, Grant, Holder, Member, Seat, Until};
use super::rank::{Choice, Rank};
use crate::drain::TargetId;
use crate::share::Tick;
use forebay_model::{Bytes, ServerId};
use std::collections::BTreeSet;

/// A target with at most so many jobs is asked for its jobs; for others jobs are asked in their order.
const FEW: usize = 64;
/// What may be written down besides twice as much as there is.
const SPARE: usize = 1024;

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
            let chosen = match self.rules.choice {
                Choice::Sjf => self.first_job(target),
                Choice::Fcfs => self.first_member(target),
            };
            let Some((job, part)) = chosen else { break };
            grants.push(self.grant(now, job, part, target));
        }
        grants
    }

    /// Gives an idle server what has a free place: the least used of its targets, for the first of its jobs.
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

    /// Jobs that have gone without for too long come first, once.
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

    /// Writes down when a job got something; forgets what was written down of earlier before it becomes more than jobs.
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

    /// The first job with an idle part that waits for a target, and that part.
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

    /// The idle part that asked first, of those that wait for a target and whose jobs come first otherwise.
    fn first_member(&self, target: u32) -> Option<(usize, usize)> {
        let mut best: Option<(Rank, (usize, usize))> = None;
        for &(rank, job) in &self.ready {
            // No part has asked before its job did.
            if best.is_some_and(|(first, _)| first < rank) {
                break;
            }
            let state = self.job(job);
            let waiting = state.waiting.get(target as usize).into_iter();
            for part in waiting.flat_map(|waiting| waiting.both(&state.idle)) {
                let asked = state.parts[part].as_ref().expect("a live part").since;
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
        let state = self.jobs[job].as_mut().expect("only live jobs are named");
        (state.last_served, state.overdue) = (now, false);
        state.standing.starved = false;
        state.cursor = part + 1;
        let mine = state.parts[part].as_mut().expect("a live part");
        mine.held.push(target);
        let server = mine.server;
        let place = mine.place(target).expect("who waits has bytes");
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

    /// Writes down when a place ends; forgets what was written down of others before it becomes more than they are.
    fn note_end(&mut self, end: Tick, target: u32, member: Member) {
        if self.ends.len() > 2 * self.held + SPARE {
            let mut ends = std::mem::take(&mut self.ends);
            ends.retain(|&(end, target, member)| self.holds(target, member, end));
            self.ends = ends;
        }
        self.ends.push_back((end, target, member));
    }

    /// Whether a place is held until then.
    pub(super) fn holds(&self, target: u32, member: Member, end: Tick) -> bool {
        let holders = self.targets[target as usize].holders.iter();
        holders.into_iter().any(|holder| holder.member == member && holder.end == end)
    }

    /// Who holds a place goes on holding it; nothing if it was not held.
    pub(super) fn renew(&mut self, now: Tick, target: u32, member: Member) -> Option<Holder> {
        let holders = &mut self.targets.get_mut(target as usize)?.holders;
        let holder = holders.iter_mut().find(|holder| holder.member == member)?;
        holder.end = now.after(self.rules.lease);
        let holder = *holder;
        self.note_end(holder.end, target, member);
        Some(holder)
    }

    /// Takes a place back; nothing if it was not held.
    pub(super) fn release(&mut self, target: u32, member: Member) -> Option<Holder> {
        let holders = &mut self.targets.get_mut(target as usize)?.holders;
        let place = holders.iter().position(|holder| holder.member == member)?;
        let holder = holders.remove(place);
        self.held -= 1;
        self.note_open(target);
        self.servers[usize::from(member.server.0)].held -= 1;
        let mine = self.job_mut(holder.job).parts[holder.part].as_mut().expect("a live part");
        mine.held.retain(|&other| other != target);
        Some(holder)
    }
}
