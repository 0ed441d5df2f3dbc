//! Drains of the servers, with the daemon's index, orders and arbiter.

use crate::processes::owner;
use crate::queue::Event;
use crate::scenario::DrainPlan;
use crate::servers::{QueueRef, Request};
use crate::targets::{Owner, Write};
use crate::world::World;
use forebay_model::{Bytes, FileId, ServerId, Span, Stamp};
use forebay_policy::arbiter::{Grant, Member, Slots};
use forebay_policy::drain::{
    Arrivals, Batch, BatchId, Drain, LULL, Order, Pick, Piece, Pipeline, TargetId, View, WINDOW, burst, want,
};
use forebay_policy::share::Tick;
use std::hint::black_box;

/// A grant that a drain queue holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    target: TargetId,
    /// Bytes that may still be sent.
    left: u64,
    /// Writes in flight.
    out: u32,
}

/// Whether a burst that fills a server keeps its drain from the processors.
#[derive(Default)]
pub(crate) struct Filling {
    arrivals: Arrivals,
    is_burst: bool,
}

/// Data to drain from a server: of one job where targets are granted, of all jobs otherwise.
pub(crate) struct DrainQueue {
    pub(crate) server: u16,
    job: u32,
    pub(crate) drain: Drain,
    /// Pieces of a region that is not full yet, and their bytes.
    filling: Vec<(FileId, Span, Stamp)>,
    filled: u64,
    /// Bytes that wait in `drain`.
    waiting: u64,
    /// Writes in flight.
    out: u32,
    held: Vec<Held>,
    /// Bytes of the last request to the arbiter.
    pub(crate) requested: u64,
    /// Time of the last message to or from the arbiter.
    last_contact: Tick,
    /// Pieces for targets that are down.
    pub(crate) postponed: Vec<(TargetId, FileId, Piece)>,
}

impl DrainQueue {
    /// Prefetches the fields that every piece uses.
    pub(crate) fn prefetch(&self) {
        black_box((self.waiting, self.filled, self.requested, self.held.len()));
    }
}

/// Whether an arbiter grants the targets.
pub(crate) fn is_arbitrated(plan: &DrainPlan) -> bool {
    plan.order == Order::Trio
}

impl World {
    fn drain_plan(&self) -> Option<DrainPlan> {
        self.plan.servers.as_ref().and_then(|servers| servers.drain)
    }

    fn slots(&self, plan: &DrainPlan) -> Slots {
        plan.slots(self.target_states.len() as u32, self.servers.len() as u16)
    }

    /// A write is in the buffer of a server and must be drained.
    pub(crate) fn note(&mut self, server: usize, request: Request) {
        let Some(plan) = self.drain_plan() else { return };
        let job = self.processes[request.process as usize].job;
        let file = self.file(request.process);
        let drain_queue = self.queue_of(server, job, &plan);
        self.stamps += 1;
        let stamp = Stamp(self.stamps);
        if let Some(region) = plan.region {
            let state = &mut self.drain_queues[drain_queue as usize];
            state.filling.push((file, request.span, stamp));
            state.filled += request.span.len();
            if state.filled >= region.0 {
                self.seal(drain_queue);
            }
        } else {
            let layout = self.layout(file);
            let state = &mut self.drain_queues[drain_queue as usize];
            state.drain.insert(file, &layout, request.span, stamp);
            state.waiting += request.span.len();
        }
        self.drain_server(server);
    }

    /// Moves the gathered pieces to the drain.
    fn seal(&mut self, drain_queue: u32) {
        let gathered = std::mem::take(&mut self.drain_queues[drain_queue as usize].filling);
        for &(file, span, stamp) in &gathered {
            let layout = self.layout(file);
            self.drain_queues[drain_queue as usize].drain.insert(file, &layout, span, stamp);
        }
        let state = &mut self.drain_queues[drain_queue as usize];
        (state.waiting, state.filled) = (state.waiting + state.filled, 0);
    }

    fn queue_of(&mut self, server: usize, job: u32, plan: &DrainPlan) -> u32 {
        let job = if is_arbitrated(plan) { job } else { 0 };
        let drain_queues = &self.servers[server].drain_queues;
        if let Some(entry) = drain_queues.iter().find(|entry| entry.job == job) {
            return entry.drain_queue;
        }
        let drain_queue = self.drain_queues.len() as u32;
        self.drain_queues.push(DrainQueue {
            server: server as u16,
            job,
            drain: Drain::new(plan.order, plan.largest),
            filling: Vec::new(),
            filled: 0,
            waiting: 0,
            out: 0,
            held: Vec::new(),
            requested: 0,
            last_contact: Tick(0),
            postponed: Vec::new(),
        });
        let id = self.jobs[job as usize].id;
        self.servers[server].drain_queues.push(QueueRef { drain_queue, job, id });
        drain_queue
    }

    /// Whether a server drains now. When all jobs are over, it is drained to the end.
    fn is_active(&mut self, server: usize, plan: &DrainPlan) -> bool {
        let now = Stamp(self.now.0);
        let room = plan.trigger.room(self.capacity());
        let state = &mut self.servers[server];
        let arrived = state.ages.arrived();
        state.filling.is_burst =
            plan.shares_processors && state.filling.arrivals.is_burst(now, arrived, room);
        let state = &self.servers[server];
        let view = View {
            capacity: self.capacity(),
            live: state.held,
            waiting: self.waiting_writers(server),
            idle: plan.trigger.when_idle && self.is_at_rest(server),
            burst: burst(plan.pipeline, state.last.after(state.lag), self.now),
            filling: state.filling.is_burst,
            within_hours: true,
            now,
        };
        let want = want(&plan.trigger, view);
        let is_due = || state.ages.oldest().is_some_and(|oldest| want.takes(0, Stamp(oldest.0)));
        state.up && (self.running == 0 || is_due())
    }

    /// Has a server that does not drain look again when that may change without any event of its own.
    fn consider_later(&mut self, server: usize, plan: &DrainPlan) {
        let state = &self.servers[server];
        let Some(oldest) = state.ages.oldest().filter(|_| !state.will_check && state.up) else { return };
        let at = match plan.pipeline {
            _ if state.filling.is_burst => self.now.after(WINDOW),
            Pipeline::On => oldest.after(plan.trigger.age),
            Pipeline::Off => state.last.after(LULL).after(state.lag),
        };
        if at > self.now && at < Tick(u64::MAX) {
            self.servers[server].will_check = true;
            self.queue.plan(at, Event::Consider(server as u32));
        }
    }

    /// No more writes arrive: a server drains what it holds, without waiting for the end of a burst, but not in step
    /// with others.
    pub(crate) fn drain_to_the_end(&mut self, server: usize) {
        let lag = self.drain_plan().map_or(0, |plan| plan.lag.0);
        let begin = if lag > 0 { self.now.after(Tick(self.rng.below(lag))) } else { self.now };
        self.queue.plan(begin, Event::Consider(server as u32));
    }

    /// A server looks whether it drains.
    pub(crate) fn consider(&mut self, server: usize) {
        self.servers[server].will_check = false;
        self.drain_server(server);
    }

    /// A server sends all that it may.
    pub(crate) fn drain_server(&mut self, server: usize) {
        let Some(plan) = self.drain_plan() else { return };
        if !self.is_active(server, &plan) {
            return self.consider_later(server, &plan);
        }
        // No more writes can arrive: drain the partial region.
        let last = self.running == 0 || (self.has_waiters(server) && self.is_at_rest(server));
        for i in 0..self.servers[server].drain_queues.len() {
            let drain_queue = self.servers[server].drain_queues[i].drain_queue;
            if last && self.drain_queues[drain_queue as usize].filled > 0 {
                self.seal(drain_queue);
            }
            if is_arbitrated(&plan) {
                self.request_grants(drain_queue);
            } else {
                self.pump(drain_queue, &plan);
            }
        }
    }

    /// Whether a server has nothing in flight and nothing to send.
    fn is_at_rest(&self, server: usize) -> bool {
        let drain_queues = self.servers[server]
            .drain_queues
            .iter()
            .map(|entry| &self.drain_queues[entry.drain_queue as usize]);
        drain_queues.into_iter().all(|drain_queue| drain_queue.out == 0 && drain_queue.waiting == 0)
    }

    /// Sends writes in an order without grants.
    fn pump(&mut self, drain_queue: u32, plan: &DrainPlan) {
        let writers = self.slots(plan).writers;
        while self.drain_queues[drain_queue as usize].out < writers {
            let chance = self.rng.bits();
            let Some((id, batch)) = self.drain_queues[drain_queue as usize].drain.next(Pick::Any(chance))
            else {
                return;
            };
            self.ship(drain_queue, id, &batch);
        }
    }

    /// Sends a request to the arbiter, unless the queue is active or waits for a grant; later bytes are
    /// requested when its grants have ended.
    fn request_grants(&mut self, drain_queue: u32) {
        let state = &mut self.drain_queues[drain_queue as usize];
        if state.waiting == 0 || !state.held.is_empty() || state.requested > 0 {
            return;
        }
        state.requested = state.waiting;
        let bytes: Vec<(TargetId, Bytes)> = state.drain.targets().collect();
        let (server, job) = (usize::from(state.server), state.job as usize);
        let Some(plan) = &self.plan.servers else { return };
        let fill =
            (u128::from(self.servers[server].held) * 1000 / u128::from(plan.capacity.0)).min(1000) as u16;
        let (member, priority) = (self.member(drain_queue), self.plan.jobs[job].job.priority);
        let Some(arbiter) = &mut self.arbiter else { return };
        let grants = arbiter.request(self.now, member, priority, fill, &bytes).expect("targets were checked");
        self.granted(grants);
    }

    fn member(&self, drain_queue: u32) -> Member {
        let DrainQueue { server, job, .. } = self.drain_queues[drain_queue as usize];
        Member { server: ServerId(server), job: self.jobs[job as usize].id }
    }

    /// Uses grants, and the grants that follow from those that turn out to be empty.
    pub(crate) fn granted(&mut self, grants: Vec<Grant>) {
        let Some(plan) = self.drain_plan() else { return };
        let (mut open, mut spent) = (grants, Vec::new());
        while let Some(grant) = open.pop() {
            let server = usize::from(grant.member.server.0);
            let drain_queues = &self.servers[server].drain_queues;
            let mine = drain_queues.iter().find(|entry| entry.id == grant.member.job);
            let drain_queue = mine.expect("the requester has a drain queue").drain_queue;
            let state = &mut self.drain_queues[drain_queue as usize];
            state.last_contact = self.now;
            state.held.push(Held { target: grant.target, left: grant.bytes.0, out: 0 });
            open.extend(self.spend(drain_queue, grant.target, &plan));
            if self.drain_queues[drain_queue as usize].held.is_empty() {
                spent.push(server);
            }
        }
        // Servers that could not use a grant request what they have now.
        spent.into_iter().for_each(|server| self.drain_server(server));
    }

    /// Sends what a grant allows; releases the grant when nothing is left. Returns the grants that follow.
    fn spend(&mut self, drain_queue: u32, target: TargetId, plan: &DrainPlan) -> Vec<Grant> {
        let streams = self.slots(plan).streams_per_job;
        loop {
            let state = &mut self.drain_queues[drain_queue as usize];
            let Some(place) = state.held.iter().position(|held| held.target == target) else {
                return Vec::new();
            };
            let held = state.held[place];
            if held.out >= streams {
                return Vec::new();
            }
            let next = if held.left == 0 { None } else { state.drain.next(Pick::Granted(&[target])) };
            let Some((id, batch)) = next else {
                if held.out > 0 {
                    return Vec::new();
                }
                state.held.swap_remove(place);
                let left = state.drain.waiting(target);
                if state.held.is_empty() {
                    state.requested = 0;
                }
                let member = self.member(drain_queue);
                let Some(arbiter) = &mut self.arbiter else { return Vec::new() };
                return arbiter.done(self.now, member, target, left);
            };
            let held = &mut state.held[place];
            held.out += 1;
            held.left = held.left.saturating_sub(batch.span().len());
            self.ship(drain_queue, id, &batch);
        }
    }

    fn ship(&mut self, drain_queue: u32, id: BatchId, batch: &Batch) {
        let pause = self.drain_plan().map_or(Tick(0), |plan| plan.pause);
        let span = batch.span();
        let first = self.layout(batch.file).inside(span.start);
        let state = &mut self.drain_queues[drain_queue as usize];
        state.out += 1;
        state.waiting -= span.len();
        state.requested = state.requested.saturating_sub(span.len());
        let at = self.pause(pause);
        let inside = Span::new(first, first + span.len());
        let write = Write {
            owner: Owner::Drain(drain_queue, id),
            target: batch.target,
            file: batch.file,
            span: inside,
        };
        self.dispatch(write, at);
    }

    /// A write of a drain queue is on its target.
    pub(crate) fn drained(&mut self, drain_queue: u32, id: BatchId, target: TargetId) {
        let Some(plan) = self.drain_plan() else { return };
        let state = &mut self.drain_queues[drain_queue as usize];
        let batch = state.drain.done(id).expect("it was in flight");
        state.out -= 1;
        let server = usize::from(state.server);
        let (len, job) = (batch.span().len(), owner(batch.file));
        self.ledger.drained += len;
        self.servers[server].held -= len;
        self.servers[server].ages.remove(len);
        self.jobs[job].held -= len;
        self.note_drained(job);
        self.unpark(server);
        if is_arbitrated(&plan) {
            self.keep_alive(drain_queue, target);
            if let Some(held) =
                self.drain_queues[drain_queue as usize].held.iter_mut().find(|held| held.target == target)
            {
                held.out -= 1;
                let grants = self.spend(drain_queue, target, &plan);
                self.granted(grants);
            }
        }
        self.drain_server(server);
    }

    /// Renews the lease of a drain queue that is still writing.
    fn keep_alive(&mut self, drain_queue: u32, target: TargetId) {
        let state = &self.drain_queues[drain_queue as usize];
        let Some(plan) = self.plan.servers.as_ref().and_then(|servers| servers.drain) else { return };
        if self.now.since(state.last_contact).0 < plan.rules.lease.0 / 4 {
            return;
        }
        let (member, left) = (self.member(drain_queue), state.drain.waiting(target));
        if let Some(arbiter) = &mut self.arbiter {
            arbiter.progress(self.now, member, target, left);
        }
        self.drain_queues[drain_queue as usize].last_contact = self.now;
    }

    /// A write of a drain queue failed, because its target is down: keeps it until the target is back.
    pub(crate) fn undrained(&mut self, drain_queue: u32, id: BatchId, target: TargetId, len: u64) {
        let state = &mut self.drain_queues[drain_queue as usize];
        state.drain.failed(id);
        state.out -= 1;
        state.waiting += len;
        self.postpone(drain_queue, target);
        let Some(plan) = self.drain_plan() else { return };
        if let Some(held) =
            self.drain_queues[drain_queue as usize].held.iter_mut().find(|held| held.target == target)
        {
            held.out -= 1;
            let grants = self.spend(drain_queue, target, &plan);
            self.granted(grants);
        }
        let server = usize::from(self.drain_queues[drain_queue as usize].server);
        self.drain_server(server);
    }

    /// Moves the pieces of a target to the postponed.
    pub(crate) fn postpone(&mut self, drain_queue: u32, target: TargetId) {
        let state = &mut self.drain_queues[drain_queue as usize];
        for (file, piece) in state.drain.remove_target(target) {
            state.waiting -= piece.span.len();
            state.postponed.push((target, file, piece));
        }
        state.requested = state.requested.min(state.waiting);
    }

    /// Moves the pieces of a target back from the postponed.
    pub(crate) fn restore_postponed(&mut self, drain_queue: u32, target: TargetId) {
        let (back, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.drain_queues[drain_queue as usize].postponed)
                .into_iter()
                .partition(|(one, ..)| *one == target);
        self.drain_queues[drain_queue as usize].postponed = rest;
        for (_, file, piece) in back {
            let layout = self.layout(file);
            let state = &mut self.drain_queues[drain_queue as usize];
            state.drain.insert(file, &layout, piece.span, piece.stamp);
            state.waiting += piece.span.len();
        }
    }

    /// Drops the grants that a drain queue held.
    pub(crate) fn forget_grants(&mut self, drain_queue: u32) {
        let state = &mut self.drain_queues[drain_queue as usize];
        state.held.clear();
        state.requested = 0;
    }
}
