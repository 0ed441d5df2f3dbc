//! The running machine.

use crate::drains::DrainQueue;
use crate::hops::Hops;
use crate::prefetch::Prefetch;
use crate::processes::{Process, Task};
use crate::queue::{Event, Queue, Slab};
use crate::report::{Ledger, Report, Series};
use crate::scenario::{Fault, Part, Scenario};
use crate::servers::{Request, Server};
use crate::targets::{TargetState, Write};
use forebay_model::ServerId;
use forebay_policy::arbiter::{Arbiter, Rules};
use forebay_policy::share::{Peers, Rng, Tick};

/// A machine in virtual time.
pub struct World {
    pub(crate) plan: Scenario,
    pub(crate) now: Tick,
    pub(crate) queue: Queue,
    /// The next events, as far as they were prefetched.
    near: Vec<Event>,
    prefetches: Vec<Prefetch>,
    pub(crate) rng: Rng,
    pub(crate) hops: Hops,
    pub(crate) processes: Vec<Process>,
    pub(crate) jobs: Vec<Task>,
    pub(crate) running: usize,
    pub(crate) requests: Slab<Request>,
    pub(crate) tickets: u64,
    pub(crate) servers: Vec<Server>,
    pub(crate) drain_queues: Vec<DrainQueue>,
    pub(crate) arbiter: Option<Arbiter>,
    pub(crate) peers: Option<(Peers, u64)>,
    pub(crate) target_states: Vec<TargetState>,
    pub(crate) writes: Slab<Write>,
    /// Scratch list of the writes that a target has just completed.
    pub(crate) ended: Vec<u32>,
    pub(crate) stamps: u64,
    pub(crate) ledger: Ledger,
    pub(crate) series: Series,
    pub(crate) events: u64,
}

/// Runs a scenario to its end.
pub fn simulate(plan: &Scenario, seed: u64) -> Result<Report, Fault> {
    let mut world = World::new(plan, seed)?;
    while world.step() {}
    Ok(world.report())
}

impl World {
    /// A machine before its first event.
    pub fn new(plan: &Scenario, seed: u64) -> Result<World, Fault> {
        plan.check()?;
        let hops = Hops::new(&plan.hops);
        let (processes, jobs) = crate::processes::all(plan, &hops, seed)?;
        let target_states = crate::targets::all(plan, &hops);
        let servers = crate::servers::all(plan, &hops, seed);
        let drain = plan.servers.as_ref().and_then(|servers| servers.drain);
        let arbiter = drain.filter(crate::drains::is_arbitrated).map(|drain| {
            let slots = drain.slots(plan.target_count(), servers.len() as u16);
            Arbiter::new(Rules { alpha: slots.members, per_server: slots.per_server, ..drain.rules })
        });
        let lambda = plan.servers.as_ref().and_then(|servers| servers.lambda);
        let peers = lambda.map(|lambda| {
            let members = (0..servers.len() as u16).map(ServerId);
            (Peers::new(members, Tick(3 * lambda.0)), 0)
        });
        let series = Series::new(plan.window, plan.jobs.len());
        let mut world = World {
            plan: plan.clone(),
            now: Tick(0),
            queue: Queue::default(),
            near: Vec::new(),
            prefetches: Vec::new(),
            rng: Rng::new(seed),
            hops,
            running: jobs.len(),
            processes,
            jobs,
            requests: Slab::default(),
            tickets: 0,
            servers,
            drain_queues: Vec::new(),
            arbiter,
            peers,
            target_states,
            writes: Slab::default(),
            ended: Vec::new(),
            stamps: 0,
            ledger: Ledger::default(),
            series,
            events: 0,
        };
        world.begin(lambda);
        Ok(world)
    }

    fn begin(&mut self, lambda: Option<Tick>) {
        for (number, job) in self.plan.jobs.iter().enumerate() {
            let number = number as u32;
            if job.after.is_none() {
                self.queue.plan(job.start, Event::Start(number));
            }
            if let Some(stop) = job.stop {
                self.queue.plan(stop, Event::Stop(number));
            }
        }
        for (number, failure) in self.plan.failures.iter().enumerate() {
            self.queue.plan(failure.at, Event::Fail(number as u32));
            self.queue.plan(failure.at.after(failure.lasts), Event::Mend(number as u32));
        }
        if let Some(lambda) = lambda {
            self.queue.plan(lambda, Event::Exchange);
        }
    }

    /// Handles the next event; false if there is none, or the time is up.
    pub fn step(&mut self) -> bool {
        if self.queue.is_due() {
            let mut near = std::mem::take(&mut self.near);
            near.clear();
            near.extend(self.queue.go_on().iter().map(|&(_, event)| event));
            let mut prefetches = std::mem::take(&mut self.prefetches);
            self.prefetch_events(&near, &mut prefetches);
            (self.near, self.prefetches) = (near, prefetches);
        }
        let Some((at, event)) = self.queue.pop() else { return false };
        if self.plan.until.is_some_and(|until| at > until) {
            self.now = self.plan.until.unwrap_or(at);
            return false;
        }
        assert!(at >= self.now, "time is monotonic");
        self.now = at;
        if let Event::End(target, plan) = event
            && self.target_states[target as usize].plan != plan
        {
            return true;
        }
        self.events += 1;
        self.handle(event);
        true
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start(job) => self.start_job(job),
            Event::Stop(job) => self.stop_job(job),
            Event::Wake(process) => self.phase_over(process),
            Event::Leave(request) => self.leave(request),
            Event::Approach(request) => self.approach(request),
            Event::Arrive(request) => self.arrive(request),
            Event::Served(request) => self.served(request),
            Event::Poll(server) => {
                self.servers[server as usize].poll_at = None;
                self.serve(server as usize);
            }
            Event::Offer(server) => self.offer_space(server as usize),
            Event::Consider(server) => self.consider(server as usize),
            Event::Depart(write) => self.depart(write),
            Event::Reach(write) => self.reach(write),
            Event::Taken(write) => self.finish(write),
            Event::End(target, _) => self.end(target as usize),
            Event::Exchange => self.exchange_tables(),
            Event::Fail(number) => match self.plan.failures[number as usize].part {
                Part::Server(server) => self.server_fails(server),
                Part::Target(target) => self.target_fails(target),
            },
            Event::Mend(number) => match self.plan.failures[number as usize].part {
                Part::Server(server) => self.server_is_back(server),
                Part::Target(target) => self.target_is_back(target),
            },
        }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.now
    }

    /// When a job ended, if it has.
    #[must_use]
    pub fn ended(&self, job: usize) -> Option<Tick> {
        self.jobs[job].ended
    }

    /// Location of all bytes.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let held = self.servers.iter().map(|server| server.held).sum();
        Ledger { held, ..self.ledger }
    }
}
