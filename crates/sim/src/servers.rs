//! Buffer servers: the daemon's scheduler, buffer space, and the exchange of job tables.

use crate::hops::Hops;
use crate::queue::Event;
use crate::scenario::{Full, Scenario, Spread, Way, When};
use crate::world::World;
use forebay_model::{Bytes, JobId, ServerId, Span};
use forebay_policy::route::{Route, Write, WriteRouter, local};
use forebay_policy::share::{Cost, Next, Scheduler, Table, Tick, Ticket, divide};
use std::collections::VecDeque;
use std::hint::black_box;

/// Bits of a ticket for the index of its request.
const SLOT: u32 = 24;

/// A request of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) process: u32,
    pub(crate) span: Span,
    pub(crate) writes: bool,
    pub(crate) server: u16,
    /// Writes in flight for it, if it bypasses the buffer.
    pub(crate) parts: u32,
}

/// One server.
pub(crate) struct Server {
    pub(crate) scheduler: Box<dyn Scheduler>,
    router: WriteRouter,
    pub(crate) entry: u32,
    pub(crate) up: bool,
    /// Requests in progress.
    running: u32,
    /// When to poll the scheduler again.
    pub(crate) poll_at: Option<Tick>,
    /// Bytes in the buffer, and bytes of reserved space.
    pub(crate) held: u64,
    reserved: u64,
    /// Writes that wait for space.
    parked: VecDeque<u32>,
    /// Its processes that are in a write phase.
    pub(crate) busy: u32,
    /// Whether it may drain because none is.
    pub(crate) released: bool,
    /// Jobs that use it.
    jobs: Vec<u32>,
    /// Its drain queues, one per job where targets are granted.
    pub(crate) drain_queues: Vec<QueueRef>,
}

impl Server {
    /// Prefetches the fields that every request uses.
    pub(crate) fn glance(&self) {
        black_box((self.held, self.running, self.parked.len(), self.drain_queues.len()));
    }
}

/// A drain queue of a server, with the fields that are needed most often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRef {
    pub(crate) drain_queue: u32,
    pub(crate) job: u32,
    pub(crate) id: JobId,
}

/// All servers, idle.
pub(crate) fn all(plan: &Scenario, hops: &Hops, seed: u64) -> Vec<Server> {
    let Some(servers) = &plan.servers else { return Vec::new() };
    let target_rate: f64 =
        plan.targets.iter().map(|group| f64::from(group.count) * group.device.curve.best().1).sum();
    let mut router = WriteRouter::new(servers.mode, servers.streams);
    router.measured(Tick(0), Bytes((target_rate / f64::from(servers.count)) as u64));
    (0..servers.count)
        .map(|number| Server {
            scheduler: servers.discipline.scheduler(&servers.policy, seed ^ u64::from(number), servers.rate),
            router: router.clone(),
            entry: hops.entry(servers.via, u32::from(number), u32::from(servers.count)),
            up: true,
            running: 0,
            poll_at: None,
            held: 0,
            reserved: 0,
            parked: VecDeque::new(),
            busy: 0,
            released: false,
            jobs: Vec::new(),
            drain_queues: Vec::new(),
        })
        .collect()
}

impl World {
    pub(crate) fn join_servers(&mut self, job: usize) {
        for i in 0..self.jobs[job].servers.len() {
            let server = &mut self.servers[usize::from(self.jobs[job].servers[i])];
            server.scheduler.join(&self.plan.jobs[job].job).expect("the number of jobs was checked");
            server.jobs.push(job as u32);
        }
    }

    pub(crate) fn leave_servers(&mut self, job: usize) {
        for i in 0..self.jobs[job].servers.len() {
            let server = &mut self.servers[usize::from(self.jobs[job].servers[i])];
            server.scheduler.leave(self.jobs[job].id);
            server.jobs.retain(|&one| one != job as u32);
        }
    }

    /// A process begins or ends a write phase.
    pub(crate) fn busy(&mut self, process: u32, begins: bool) {
        let drain = self.plan.servers.as_ref().and_then(|servers| servers.drain);
        let Some(drain) = drain.filter(|drain| drain.when == When::Between) else { return };
        if self.processes[process as usize].writing == begins {
            return;
        }
        self.processes[process as usize].writing = begins;
        for server in self.servers_of(process) {
            let state = &mut self.servers[server];
            if begins {
                (state.busy, state.released) = (state.busy + 1, false);
                continue;
            }
            state.busy -= 1;
            if state.busy == 0 && drain.lag.0 > 0 {
                let lag = Tick(self.rng.below(drain.lag.0));
                self.queue.plan(self.now.after(lag), Event::Release(server as u32));
            } else if state.busy == 0 {
                self.release(server);
            }
        }
    }

    /// A server starts to drain if still none of its processes is in a write phase.
    pub(crate) fn release(&mut self, server: usize) {
        self.servers[server].released = self.servers[server].busy == 0;
        self.drain_server(server);
    }

    /// A random instant, later by `mean` on average.
    pub(crate) fn pause(&mut self, mean: Tick) -> Tick {
        if mean.0 == 0 { self.now } else { self.now.after(Tick(self.rng.below(2 * mean.0))) }
    }

    /// A process is about to send a request.
    pub(crate) fn launch(&mut self, request: Request) {
        let start = self.pause(self.job_plan(request.process).pause);
        let number = self.requests.put(request);
        if start == self.now { self.leave(number) } else { self.queue.plan(start, Event::Leave(number)) }
    }

    /// A request leaves its process.
    pub(crate) fn leave(&mut self, number: u32) {
        let request = *self.requests.get(number);
        let bytes = request.span.len();
        let at =
            self.hops.pass(self.processes[request.process as usize].entry, bytes, self.now, &mut self.rng);
        if self.job_plan(request.process).way == Way::Direct {
            return self.direct(number, at);
        }
        let at = self.hops.pass(self.servers[usize::from(request.server)].entry, bytes, at, &mut self.rng);
        if at == self.now { self.arrive(number) } else { self.queue.plan(at, Event::Arrive(number)) }
    }

    /// A request has reached its server: it is queued, waits for space, or goes direct.
    pub(crate) fn arrive(&mut self, number: u32) {
        let request = *self.requests.get(number);
        let server = usize::from(request.server);
        if request.writes {
            let write = self.as_seen(request);
            if self.servers[server].router.route(self.now, &write) == Route::Direct {
                return self.direct(number, self.now);
            }
            if !self.has_space(server, request.span.len()) {
                let full = self.plan.servers.as_ref().map_or(Full::Wait, |servers| servers.full);
                return match full {
                    Full::Direct => self.direct(number, self.now),
                    Full::Wait => {
                        self.servers[server].parked.push_back(number);
                        self.drain_server(server);
                    }
                };
            }
            self.servers[server].reserved += request.span.len();
        }
        self.enqueue(server, number);
        self.serve(server);
    }

    /// A write as its server sees it: at its offset in the server's own part of the file.
    fn as_seen(&self, request: Request) -> Write {
        let plan = self.job_plan(request.process);
        let servers = self.jobs[self.processes[request.process as usize].job as usize].servers.len() as u64;
        let offset = match plan.spread {
            Spread::Stripes(size) => local(request.span.start, size.0, servers),
            Spread::Home | Spread::Chance => request.span.start,
        };
        Write { file: self.file(request.process), offset, len: Bytes(request.span.len()), sync: false }
    }

    fn has_space(&self, server: usize, len: u64) -> bool {
        let Some(plan) = &self.plan.servers else { return false };
        let state = &self.servers[server];
        // A request larger than the whole buffer is accepted into an empty buffer.
        state.held + state.reserved + len <= plan.capacity.0 || state.held + state.reserved == 0
    }

    fn enqueue(&mut self, server: usize, number: u32) {
        let request = self.requests.get(number);
        let (cost, process) = (Cost::of(Bytes(request.span.len())), request.process);
        assert!(number >> SLOT == 0, "too many requests at once");
        self.tickets += 1;
        let ticket = Ticket(self.tickets << SLOT | u64::from(number));
        let job = self.jobs[self.processes[process as usize].job as usize].id;
        self.servers[server].scheduler.arrive(job, cost, ticket);
    }

    /// Starts requests.
    pub(crate) fn serve(&mut self, server: usize) {
        let Some(plan) = &self.plan.servers else { return };
        let (turns, rate) = (plan.turns, plan.rate.0 as f64);
        let state = &mut self.servers[server];
        while state.up && state.running < turns {
            match state.scheduler.next(self.now) {
                Next::Idle => return,
                Next::NotBefore(then) => {
                    if state.poll_at.is_none_or(|poll_at| poll_at > then) {
                        state.poll_at = Some(then);
                        self.queue.plan(then, Event::Poll(server as u32));
                    }
                    return;
                }
                Next::Turn(Ticket(ticket)) => {
                    let number = (ticket & ((1 << SLOT) - 1)) as u32;
                    let bytes = self.requests.get(number).span.len();
                    state.running += 1;
                    let takes = (bytes as f64 * f64::from(turns) / rate * 1e9).ceil() as u64;
                    self.queue.plan(self.now.after(Tick(takes.max(1))), Event::Served(number));
                }
            }
        }
    }

    /// A server has completed a request.
    pub(crate) fn served(&mut self, number: u32) {
        let request = self.requests.take(number);
        let (server, len) = (usize::from(request.server), request.span.len());
        let job = self.processes[request.process as usize].job as usize;
        let cost = Cost::of(Bytes(len));
        let state = &mut self.servers[server];
        state.running -= 1;
        state.scheduler.done(self.jobs[job].id, cost, cost);
        if request.writes {
            state.reserved -= len;
            state.held += len;
            self.jobs[job].held += len;
            self.ledger.taken += len;
            self.ledger.most_held = self.ledger.most_held.max(self.servers[server].held);
            self.note(server, request);
        }
        self.completed(request);
        self.serve(server);
    }

    /// Buffer space was freed.
    pub(crate) fn unpark(&mut self, server: usize) {
        let mut came = false;
        while let Some(&number) = self.servers[server].parked.front() {
            let len = self.requests.get(number).span.len();
            if !self.has_space(server, len) {
                break;
            }
            self.servers[server].parked.pop_front();
            self.servers[server].reserved += len;
            self.enqueue(server, number);
            came = true;
        }
        if came {
            self.serve(server);
        }
    }

    /// Whether writes wait for space at a server.
    pub(crate) fn is_full(&self, server: usize) -> bool {
        !self.servers[server].parked.is_empty()
    }

    /// Servers exchange their job tables and update their shares.
    pub(crate) fn exchange_tables(&mut self) {
        let (Some((peers, version)), Some(plan)) = (&mut self.peers, &self.plan.servers) else { return };
        *version += 1;
        for (number, server) in self.servers.iter().enumerate().filter(|(_, server)| server.up) {
            let jobs = server.jobs.iter().map(|&job| self.plan.jobs[job as usize].job.clone()).collect();
            let table = Table { server: ServerId(number as u16), version: *version, capacity: 1.0, jobs };
            peers.offer(table, self.now).expect("own tables are valid");
        }
        let allotment = divide(&plan.policy, &peers.capacities(self.now), &peers.jobs(self.now));
        for (number, server) in self.servers.iter_mut().enumerate() {
            let shares = allotment.servers.get(&ServerId(number as u16));
            server.scheduler.assign(shares.map_or(&[][..], Vec::as_slice));
        }
        if self.running > 0 {
            let lambda = plan.lambda.unwrap_or(Tick::ms(500));
            self.queue.plan(self.now.after(lambda), Event::Exchange);
        }
    }
}
