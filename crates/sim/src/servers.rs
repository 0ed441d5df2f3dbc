//! Buffer servers: the daemon's scheduler, buffer space, and the exchange of job tables.

use crate::drains::Filling;
use crate::hops::Hops;
use crate::queue::Event;
use crate::scenario::{Scenario, Spread, Way};
use crate::world::World;
use forebay_model::{Bytes, Job, JobId, ServerId, Span};
use forebay_policy::drain::LULL;
use forebay_policy::route::{Full, Route, Space, Write, WriteRouter, decide, local};
use forebay_policy::share::{
    Cost, Next, Scheduler, SpaceQueue, Table, Tick, Ticket, divide, due_among, is_roomy,
};
use std::collections::{BTreeMap, VecDeque};
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
    /// Whether it bypasses the buffer.
    pub(crate) is_direct: bool,
    /// Writes in flight for it, if it bypasses the buffer.
    pub(crate) parts: u32,
}

/// When the bytes that a server holds arrived, to a part of the age at which they are drained. They leave in the order
/// of their arrival, as far as this is concerned.
#[derive(Default)]
pub(crate) struct Ages {
    /// The time of the first of some bytes, and the sum of all bytes that had arrived after the last of them.
    runs: VecDeque<(Tick, u64)>,
    arrived: u64,
    left: u64,
}

impl Ages {
    /// Adds bytes; those that arrive within `grain` count as equally old.
    fn add(&mut self, now: Tick, bytes: u64, grain: Tick) {
        self.arrived += bytes;
        match self.runs.back_mut() {
            Some((first, sum)) if now.since(*first) <= grain => *sum = self.arrived,
            _ => self.runs.push_back((now, self.arrived)),
        }
    }

    /// Removes the oldest bytes.
    pub(crate) fn remove(&mut self, bytes: u64) {
        self.left += bytes;
        while self.runs.front().is_some_and(|(_, sum)| *sum <= self.left) {
            self.runs.pop_front();
        }
    }

    /// All bytes that ever arrived.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// When the oldest bytes arrived.
    pub(crate) fn oldest(&self) -> Option<Tick> {
        self.runs.front().map(|(first, _)| *first)
    }
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
    /// Writes that wait for space, and since when, by job.
    parked: BTreeMap<JobId, VecDeque<(u32, Tick)>>,
    space_queue: SpaceQueue,
    /// Whether free space is offered again soon, because the job that it is due to may not come back for it.
    offers: bool,
    /// When its last bytes arrived, and the times at which the bytes that it holds did.
    pub(crate) last: Tick,
    pub(crate) ages: Ages,
    pub(crate) filling: Filling,
    /// How much later than others it notices that a burst is over.
    pub(crate) lag: Tick,
    /// Whether it will look again whether it drains.
    pub(crate) will_check: bool,
    /// Jobs that use it.
    jobs: Vec<u32>,
    /// Its drain queues, one per job where targets are granted.
    pub(crate) drain_queues: Vec<QueueRef>,
}

impl Server {
    /// Prefetches the fields that every request uses.
    pub(crate) fn prefetch(&self) {
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
            parked: BTreeMap::new(),
            space_queue: SpaceQueue::default(),
            offers: false,
            last: Tick(0),
            ages: Ages::default(),
            filling: Filling::default(),
            lag: Tick(0),
            will_check: false,
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
        if at == self.now { self.approach(number) } else { self.queue.plan(at, Event::Approach(number)) }
    }

    /// A request has passed the hops of its process. It enters those of its server only now: they may be the same, which
    /// others enter meanwhile.
    pub(crate) fn approach(&mut self, number: u32) {
        let request = *self.requests.get(number);
        let (entry, bytes) = (self.servers[usize::from(request.server)].entry, request.span.len());
        let at = self.hops.pass(entry, bytes, self.now, &mut self.rng);
        if at == self.now { self.arrive(number) } else { self.queue.plan(at, Event::Arrive(number)) }
    }

    /// A request has reached its server: it is queued or waits for space. A write that bypasses the buffer waits for its
    /// turn as every other.
    pub(crate) fn arrive(&mut self, number: u32) {
        let request = *self.requests.get(number);
        let server = usize::from(request.server);
        if request.writes {
            let write = self.as_seen(request);
            let chosen = self.servers[server].router.route(self.now, &write);
            let is_free = self.finds_space(server, request.span.len());
            let space = if is_free { Space::Free } else { Space::Full };
            let full = self.plan.servers.as_ref().map_or(Full::Wait, |servers| servers.full);
            match decide(chosen, space, full) {
                Route::Direct => self.requests.get_mut(number).is_direct = true,
                Route::Buffer if !is_free => return self.park(server, number),
                Route::Buffer => self.servers[server].reserved += request.span.len(),
            }
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

    pub(crate) fn capacity(&self) -> u64 {
        self.plan.servers.as_ref().map_or(0, |servers| servers.capacity.0)
    }

    fn has_space(&self, server: usize, len: u64) -> bool {
        let state = &self.servers[server];
        // A request larger than the whole buffer is accepted into an empty buffer.
        state.held + state.reserved + len <= self.capacity() || state.held + state.reserved == 0
    }

    fn is_roomy(&self, server: usize) -> bool {
        let (state, capacity) = (&self.servers[server], self.capacity());
        is_roomy(capacity.saturating_sub(state.held + state.reserved), capacity)
    }

    /// Whether a write that arrives now may take space.
    fn finds_space(&self, server: usize, len: u64) -> bool {
        let is_uncontested =
            self.servers[server].space_queue.is_uncontested(self.now, || self.is_roomy(server));
        is_uncontested && self.has_space(server, len)
    }

    /// A write waits for space.
    fn park(&mut self, server: usize, number: u32) {
        let job = self.job_of(number);
        let state = &mut self.servers[server];
        state.space_queue.join(job);
        state.parked.entry(job).or_default().push_back((number, self.now));
        self.drain_server(server);
        self.unpark(server);
    }

    fn job_of(&self, number: u32) -> JobId {
        self.jobs[self.processes[self.requests.get(number).process as usize].job as usize].id
    }

    fn enqueue(&mut self, server: usize, number: u32) {
        let request = self.requests.get(number);
        let (cost, job) = (Cost::of(Bytes(request.span.len())), self.job_of(number));
        assert!(number >> SLOT == 0, "too many requests at once");
        self.tickets += 1;
        let ticket = Ticket(self.tickets << SLOT | u64::from(number));
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

    /// Bytes have arrived at a server.
    fn note_arrival(&mut self, server: usize) {
        let lag = self.plan.servers.as_ref().and_then(|servers| servers.drain).map_or(0, |drain| drain.lag.0);
        let state = &mut self.servers[server];
        if lag > 0 && self.now.since(state.last) >= LULL {
            state.lag = Tick(self.rng.below(lag));
        }
        state.last = self.now;
    }

    /// A server has completed a request.
    pub(crate) fn served(&mut self, number: u32) {
        let request = *self.requests.get(number);
        let (server, len) = (usize::from(request.server), request.span.len());
        let job = self.processes[request.process as usize].job as usize;
        let cost = Cost::of(Bytes(len));
        let state = &mut self.servers[server];
        state.running -= 1;
        state.scheduler.done(self.jobs[job].id, cost, cost);
        if request.writes {
            self.note_arrival(server);
        }
        if request.is_direct {
            self.direct(number, self.now);
            return self.serve(server);
        }
        self.requests.take(number);
        if request.writes {
            let state = &mut self.servers[server];
            state.reserved -= len;
            state.held += len;
            self.jobs[job].held += len;
            let age = self
                .plan
                .servers
                .as_ref()
                .and_then(|servers| servers.drain)
                .map_or(0, |drain| drain.trigger.age.0);
            self.servers[server].ages.add(self.now, len, Tick(age / 64));
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
        while let Some((job, number)) = self.next_parked(server) {
            let len = self.requests.get(number).span.len();
            if !self.has_space(server, len) {
                break;
            }
            self.give_space(server, job, len);
            self.enqueue(server, number);
            came = true;
        }
        if came {
            self.serve(server);
        }
    }

    /// The waiting write that the next space goes to. If its job does not wait but is expected back, space is offered
    /// again later.
    fn next_parked(&mut self, server: usize) -> Option<(JobId, u32)> {
        let is_roomy = self.is_roomy(server);
        let state = &mut self.servers[server];
        let next = if is_roomy {
            state.parked.keys().next().copied()
        } else {
            state.space_queue.next_job(self.now, |job| state.parked[&job][0].1)
        };
        if next.is_none() && !state.parked.is_empty() && !state.offers {
            state.offers = true;
            self.queue.plan(self.now.after(SpaceQueue::POLL), Event::Offer(server as u32));
        }
        next.map(|job| (job, state.parked[&job][0].0))
    }

    /// Free space is offered again to the writes that wait.
    pub(crate) fn offer_space(&mut self, server: usize) {
        self.servers[server].offers = false;
        self.unpark(server);
    }

    /// The first waiting write of a job gets space.
    fn give_space(&mut self, server: usize, job: JobId, len: u64) {
        let all = self.servers[server].space_queue.all();
        let jobs = self.servers[server].jobs.iter().map(|&job| &self.plan.jobs[job as usize].job);
        let waiting: Vec<Job> = jobs.filter(|job| all.contains(&job.id())).cloned().collect();
        let policy = self.plan.servers.as_ref().map(|servers| &servers.policy);
        let share = policy.map_or(1.0, |policy| due_among(policy, &waiting, job));
        let state = &mut self.servers[server];
        state.space_queue.got(job, len, share, self.now);
        state.space_queue.leave(job, self.now);
        state.reserved += len;
        let writes = state.parked.get_mut(&job).expect("a job that is next waits");
        writes.pop_front();
        if writes.is_empty() {
            state.parked.remove(&job);
        }
    }

    /// How many writes wait for space at a server.
    pub(crate) fn waiting_writers(&self, server: usize) -> usize {
        self.servers[server].parked.values().map(VecDeque::len).sum()
    }

    /// Whether writes wait for space at a server.
    pub(crate) fn has_waiters(&self, server: usize) -> bool {
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
