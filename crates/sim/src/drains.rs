//! Servers that empty themselves: the real index and orders, the real arbiter.

use crate::processes::owner;
use crate::scenario::{DrainPlan, When};
use crate::servers::{Berth, Request};
use crate::targets::{Owner, Write};
use crate::world::World;
use forebay_model::{Bytes, FileId, ServerId, Span, Stamp};
use forebay_policy::arbiter::{Grant, Member};
use forebay_policy::drain::{Batch, BatchId, Drain, Order, Pick, Piece, TargetId};
use forebay_policy::share::Tick;
use std::hint::black_box;

/// A place at a target that a lane holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    target: TargetId,
    /// Bytes that may still be sent.
    left: u64,
    /// Writes under way.
    out: u32,
}

/// Data on its way out of a server: of one job where targets are granted, of all otherwise.
pub(crate) struct Lane {
    pub(crate) server: u16,
    job: u32,
    pub(crate) drain: Drain,
    /// What is gathered in a region that is not full yet, and how much.
    filling: Vec<(FileId, Span, Stamp)>,
    filled: u64,
    /// Bytes that wait in it.
    waiting: u64,
    /// Writes under way.
    out: u32,
    held: Vec<Held>,
    /// What the arbiter was told, in bytes.
    pub(crate) told: u64,
    /// When the arbiter last heard of it.
    heard: Tick,
    /// What waits for targets that are down.
    pub(crate) stash: Vec<(TargetId, FileId, Piece)>,
}

impl Lane {
    /// Reads what every piece meets here.
    pub(crate) fn glance(&self) {
        black_box((self.waiting, self.filled, self.told, self.held.len()));
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

    /// A write is in the buffer of a server, and is to go behind.
    pub(crate) fn note(&mut self, server: usize, request: Request) {
        let Some(plan) = self.drain_plan() else { return };
        let job = self.processes[request.process as usize].job;
        let file = self.file(request.process);
        let lane = self.lane_of(server, job, &plan);
        self.stamps += 1;
        let stamp = Stamp(self.stamps);
        if let Some(region) = plan.region {
            let state = &mut self.lanes[lane as usize];
            state.filling.push((file, request.span, stamp));
            state.filled += request.span.len();
            if state.filled >= region.0 {
                self.seal(lane);
            }
        } else {
            let layout = self.layout(file);
            let state = &mut self.lanes[lane as usize];
            state.drain.insert(file, &layout, request.span, stamp);
            state.waiting += request.span.len();
        }
        self.empty(server);
    }

    /// What was gathered may leave.
    fn seal(&mut self, lane: u32) {
        let gathered = std::mem::take(&mut self.lanes[lane as usize].filling);
        for &(file, span, stamp) in &gathered {
            let layout = self.layout(file);
            self.lanes[lane as usize].drain.insert(file, &layout, span, stamp);
        }
        let state = &mut self.lanes[lane as usize];
        (state.waiting, state.filled) = (state.waiting + state.filled, 0);
    }

    fn lane_of(&mut self, server: usize, job: u32, plan: &DrainPlan) -> u32 {
        let job = if is_arbitrated(plan) { job } else { 0 };
        let lanes = &self.servers[server].lanes;
        if let Some(berth) = lanes.iter().find(|berth| berth.job == job) {
            return berth.lane;
        }
        let lane = self.lanes.len() as u32;
        self.lanes.push(Lane {
            server: server as u16,
            job,
            drain: Drain::new(plan.order, plan.largest),
            filling: Vec::new(),
            filled: 0,
            waiting: 0,
            out: 0,
            held: Vec::new(),
            told: 0,
            heard: Tick(0),
            stash: Vec::new(),
        });
        let id = self.jobs[job as usize].id;
        self.servers[server].lanes.push(Berth { lane, job, id });
        lane
    }

    fn is_active(&self, server: usize, plan: &DrainPlan) -> bool {
        let capacity = self.plan.servers.as_ref().map_or(1, |servers| servers.capacity.0);
        let state = &self.servers[server];
        let due = match plan.when {
            _ if self.running == 0 || self.is_short(server) => true,
            When::Above(share) => state.held as f64 > share * capacity as f64,
            When::Between => state.released,
        };
        due && state.up
    }

    /// A server sends what it may.
    pub(crate) fn empty(&mut self, server: usize) {
        let Some(plan) = self.drain_plan() else { return };
        if !self.is_active(server, &plan) {
            return;
        }
        // Nothing more comes, or nothing can: what is gathered leaves as it is.
        let last = self.running == 0 || (self.is_short(server) && self.is_at_rest(server));
        for i in 0..self.servers[server].lanes.len() {
            let lane = self.servers[server].lanes[i].lane;
            if last && self.lanes[lane as usize].filled > 0 {
                self.seal(lane);
            }
            if is_arbitrated(&plan) { self.ask(lane) } else { self.pump(lane, &plan) }
        }
    }

    /// Whether a server has nothing under way and nothing to send.
    fn is_at_rest(&self, server: usize) -> bool {
        let lanes = self.servers[server].lanes.iter().map(|berth| &self.lanes[berth.lane as usize]);
        lanes.into_iter().all(|lane| lane.out == 0 && lane.waiting == 0)
    }

    /// Sends writes in an order that knows no grants.
    fn pump(&mut self, lane: u32, plan: &DrainPlan) {
        while self.lanes[lane as usize].out < plan.streams {
            let chance = self.dice.bits();
            let Some((id, batch)) = self.lanes[lane as usize].drain.next(Pick::Any(chance)) else { return };
            self.ship(lane, id, &batch);
        }
    }

    /// Tells the arbiter what a lane has, unless the lane is at work or waits for a grant: what has come since is told
    /// when its grants have ended.
    fn ask(&mut self, lane: u32) {
        let state = &mut self.lanes[lane as usize];
        if state.waiting == 0 || !state.held.is_empty() || state.told > 0 {
            return;
        }
        state.told = state.waiting;
        let bytes: Vec<(TargetId, Bytes)> = state.drain.targets().collect();
        let (server, job) = (usize::from(state.server), state.job as usize);
        let Some(plan) = &self.plan.servers else { return };
        let fill =
            (u128::from(self.servers[server].held) * 1000 / u128::from(plan.capacity.0)).min(1000) as u16;
        let (member, priority) = (self.member(lane), self.plan.jobs[job].job.priority);
        let Some(arbiter) = &mut self.arbiter else { return };
        let grants = arbiter.request(self.now, member, priority, fill, &bytes).expect("targets were checked");
        self.granted(grants);
    }

    fn member(&self, lane: u32) -> Member {
        let Lane { server, job, .. } = self.lanes[lane as usize];
        Member { server: ServerId(server), job: self.jobs[job as usize].id }
    }

    /// Uses what was granted, and what is granted in its place when it turns out to be nothing.
    pub(crate) fn granted(&mut self, grants: Vec<Grant>) {
        let Some(plan) = self.drain_plan() else { return };
        let (mut open, mut spent) = (grants, Vec::new());
        while let Some(grant) = open.pop() {
            let server = usize::from(grant.member.server.0);
            let lanes = &self.servers[server].lanes;
            let mine = lanes.iter().find(|berth| berth.id == grant.member.job);
            let lane = mine.expect("who asked has a lane").lane;
            let state = &mut self.lanes[lane as usize];
            state.heard = self.now;
            state.held.push(Held { target: grant.target, left: grant.bytes.0, out: 0 });
            open.extend(self.spend(lane, grant.target, &plan));
            if self.lanes[lane as usize].held.is_empty() {
                spent.push(server);
            }
        }
        // Who could do nothing with its grant asks for what it has now.
        spent.into_iter().for_each(|server| self.empty(server));
    }

    /// Sends what a grant allows; lets go of it when nothing is left. Returns who is granted what then.
    fn spend(&mut self, lane: u32, target: TargetId, plan: &DrainPlan) -> Vec<Grant> {
        loop {
            let state = &mut self.lanes[lane as usize];
            let Some(place) = state.held.iter().position(|held| held.target == target) else {
                return Vec::new();
            };
            let held = state.held[place];
            if held.out >= plan.streams {
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
                    state.told = 0;
                }
                let member = self.member(lane);
                let Some(arbiter) = &mut self.arbiter else { return Vec::new() };
                return arbiter.done(self.now, member, target, left);
            };
            let held = &mut state.held[place];
            held.out += 1;
            held.left = held.left.saturating_sub(batch.span().len());
            self.ship(lane, id, &batch);
        }
    }

    fn ship(&mut self, lane: u32, id: BatchId, batch: &Batch) {
        let pause = self.drain_plan().map_or(Tick(0), |plan| plan.pause);
        let span = batch.span();
        let first = self.layout(batch.file).inside(span.start);
        let state = &mut self.lanes[lane as usize];
        state.out += 1;
        state.waiting -= span.len();
        state.told = state.told.saturating_sub(span.len());
        let at = self.pause(pause);
        let inside = Span::new(first, first + span.len());
        let write =
            Write { owner: Owner::Lane(lane, id), target: batch.target, file: batch.file, span: inside };
        self.dispatch(write, at);
    }

    /// A target has what a lane sent it.
    pub(crate) fn drained(&mut self, lane: u32, id: BatchId, target: TargetId) {
        let Some(plan) = self.drain_plan() else { return };
        let state = &mut self.lanes[lane as usize];
        let batch = state.drain.done(id).expect("it was under way");
        state.out -= 1;
        let server = usize::from(state.server);
        let (len, job) = (batch.span().len(), owner(batch.file));
        self.ledger.drained += len;
        self.servers[server].held -= len;
        self.jobs[job].held -= len;
        self.note_settled(job);
        self.unpark(server);
        if is_arbitrated(&plan) {
            self.keep_alive(lane, target);
            if let Some(held) = self.lanes[lane as usize].held.iter_mut().find(|held| held.target == target) {
                held.out -= 1;
                let grants = self.spend(lane, target, &plan);
                self.granted(grants);
            }
        }
        self.empty(server);
    }

    /// Says that a lane is still writing, often enough for its lease.
    fn keep_alive(&mut self, lane: u32, target: TargetId) {
        let state = &self.lanes[lane as usize];
        let Some(plan) = self.plan.servers.as_ref().and_then(|servers| servers.drain) else { return };
        if self.now.since(state.heard).0 < plan.rules.lease.0 / 4 {
            return;
        }
        let (member, left) = (self.member(lane), state.drain.waiting(target));
        if let Some(arbiter) = &mut self.arbiter {
            arbiter.progress(self.now, member, target, left);
        }
        self.lanes[lane as usize].heard = self.now;
    }

    /// A write of a lane could not be done, because its target is down: it is kept until the target is back.
    pub(crate) fn undrained(&mut self, lane: u32, id: BatchId, target: TargetId, len: u64) {
        let state = &mut self.lanes[lane as usize];
        state.drain.failed(id);
        state.out -= 1;
        state.waiting += len;
        self.put_by(lane, target);
        let Some(plan) = self.drain_plan() else { return };
        if let Some(held) = self.lanes[lane as usize].held.iter_mut().find(|held| held.target == target) {
            held.out -= 1;
            let grants = self.spend(lane, target, &plan);
            self.granted(grants);
        }
        let server = usize::from(self.lanes[lane as usize].server);
        self.empty(server);
    }

    /// Takes what is for a target out of a lane's way.
    pub(crate) fn put_by(&mut self, lane: u32, target: TargetId) {
        let state = &mut self.lanes[lane as usize];
        for (file, piece) in state.drain.remove_target(target) {
            state.waiting -= piece.span.len();
            state.stash.push((target, file, piece));
        }
        state.told = state.told.min(state.waiting);
    }

    /// Puts what was for a target back in line.
    pub(crate) fn put_back(&mut self, lane: u32, target: TargetId) {
        let (back, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.lanes[lane as usize].stash)
            .into_iter()
            .partition(|(one, ..)| *one == target);
        self.lanes[lane as usize].stash = rest;
        for (_, file, piece) in back {
            let layout = self.layout(file);
            let state = &mut self.lanes[lane as usize];
            state.drain.insert(file, &layout, piece.span, piece.stamp);
            state.waiting += piece.span.len();
        }
    }

    /// Forgets the places that a lane's server held.
    pub(crate) fn forget_grants(&mut self, lane: u32) {
        let state = &mut self.lanes[lane as usize];
        state.held.clear();
        state.told = 0;
    }
}
