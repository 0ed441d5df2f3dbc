//! Shared test code: seeds, jobs in one line, and a device in virtual time.

#![allow(dead_code, unreachable_pub)]

use forebay_model::{Job, JobId};
use forebay_policy::share::{Cost, Next, Policy, Rng, Scheduler, Tick, Ticket};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The seed from the environment, or the given default.
pub fn seed(default: u64) -> u64 {
    std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// `id user group nodes priority`
pub fn job(words: &str) -> Job {
    let words: Vec<&str> = words.split_whitespace().collect();
    let word = |i: usize| words[i].to_owned();
    let number = |i: usize| words[i].parse().expect("a number");
    Job { label: word(0), user: word(1), group: word(2), nodes: number(3), priority: number(4) }
}

/// Any policy except `fifo`.
pub fn random_policy(rng: &mut Rng) -> Policy {
    let inner = ["", "group-", "user-", "group-then-user-", "user-group-"][rng.below(5) as usize];
    let leaf = ["", "job-", "size-", "priority-"][rng.below(4) as usize];
    let name = if inner.is_empty() && leaf.is_empty() {
        "job-fair".to_owned()
    } else {
        format!("{inner}{leaf}fair")
    };
    name.parse().expect("a policy")
}

/// Jobs of a few users in a few groups.
pub fn random_jobs(rng: &mut Rng, count: usize) -> Vec<Job> {
    (0..count)
        .map(|id| Job {
            label: id.to_string(),
            user: format!("u{}", rng.below(6)),
            group: format!("g{}", rng.below(4)),
            nodes: rng.below(65) as u32,
            priority: rng.below(11) as u32,
        })
        .collect()
}

/// Load of a job: `depth` requests of `size` outstanding from `from` until `to`; each is sent again `think`
/// after it was done.
#[derive(Clone, Debug)]
pub struct Load {
    pub job: Job,
    pub size: Cost,
    pub depth: usize,
    pub from: Tick,
    pub to: Tick,
    pub think: Tick,
}

impl Load {
    pub fn new(words: &str, size: u64) -> Load {
        Load {
            job: job(words),
            size: Cost(size),
            depth: 16,
            from: Tick(0),
            to: Tick(u64::MAX),
            think: Tick(0),
        }
    }

    pub fn during(self, from: u64, to: u64) -> Load {
        Load { from: Tick::ms(from), to: Tick::ms(to), ..self }
    }

    pub fn depth(self, depth: usize) -> Load {
        Load { depth, ..self }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A request of a job with this cost is done.
    Done(usize, u64),
    Join(usize),
    Leave(usize),
    Send(usize),
    /// The instant of an earlier [`Next::NotBefore`].
    Ask,
}

/// A device that serves up to `turns` requests at once, at `rate` per second in total, with a scheduler in
/// front.
pub struct World {
    pub scheduler: Box<dyn Scheduler>,
    pub now: Tick,
    pub rate: u64,
    pub turns: usize,
    loads: Vec<Load>,
    events: BinaryHeap<Reverse<(Tick, u64, Event)>>,
    count: u64,
    running: usize,
    tickets: u64,
    of: HashMap<Ticket, usize>,
    /// Completed work of each load, with times.
    pub done: Vec<Vec<(Tick, u64)>>,
    served: u64,
    /// Per load: total work when its oldest request became the first of its queue, and the most work since.
    passed: Vec<(u64, u64)>,
    sent: Vec<usize>,
}

impl World {
    pub fn new(scheduler: Box<dyn Scheduler>, rate: u64, loads: &[Load]) -> World {
        let mut world = World {
            scheduler,
            now: Tick(0),
            rate,
            turns: 1,
            loads: loads.to_vec(),
            events: BinaryHeap::new(),
            count: 0,
            running: 0,
            tickets: 0,
            of: HashMap::new(),
            done: vec![Vec::new(); loads.len()],
            served: 0,
            passed: vec![(0, 0); loads.len()],
            sent: vec![0; loads.len()],
        };
        for (i, load) in loads.iter().enumerate() {
            world.at(load.from, Event::Join(i));
            if load.to < Tick(u64::MAX) {
                world.at(load.to, Event::Leave(i));
            }
        }
        world
    }

    fn at(&mut self, when: Tick, event: Event) {
        self.count += 1;
        self.events.push(Reverse((when, self.count, event)));
    }

    fn send(&mut self, i: usize) {
        if self.now >= self.loads[i].to {
            return;
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.of.insert(ticket, i);
        if self.sent[i] == 0 {
            self.passed[i].0 = self.served;
        }
        self.sent[i] += 1;
        let load = &self.loads[i];
        self.scheduler.arrive(load.job.id(), load.size, ticket);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Join(i) => {
                self.scheduler.join(&self.loads[i].job).expect("room for a job");
                for _ in 0..self.loads[i].depth {
                    self.send(i);
                }
            }
            Event::Leave(i) => self.scheduler.leave(self.loads[i].job.id()),
            Event::Send(i) => self.send(i),
            Event::Done(i, cost) => {
                self.running -= 1;
                self.done[i].push((self.now, cost));
                self.scheduler.done(self.loads[i].job.id(), Cost(cost), Cost(cost));
                match self.loads[i].think {
                    Tick(0) => self.send(i),
                    think => self.at(self.now.after(think), Event::Send(i)),
                }
            }
            Event::Ask => {}
        }
    }

    fn serve(&mut self) {
        while self.running < self.turns {
            match self.scheduler.next(self.now) {
                Next::Idle => return,
                Next::NotBefore(then) => {
                    assert!(then > self.now, "an instant in the future");
                    return self.at(then, Event::Ask);
                }
                Next::Turn(ticket) => {
                    let i = self.of.remove(&ticket).expect("a ticket that waits");
                    let cost = self.loads[i].size.0;
                    self.running += 1;
                    self.passed[i].1 = self.passed_over(i);
                    self.served += cost;
                    self.passed[i].0 = self.served;
                    self.sent[i] -= 1;
                    let takes = (cost as f64 * self.turns as f64 / self.rate as f64 * 1e9) as u64;
                    self.at(self.now.after(Tick(takes.max(1))), Event::Done(i, cost));
                }
            }
        }
    }

    /// Runs until this instant.
    pub fn run(&mut self, until: Tick) {
        while let Some(&Reverse((when, _, _))) = self.events.peek()
            && when <= until
        {
            self.now = when;
            while let Some(&Reverse((also, _, event))) = self.events.peek()
                && also == when
            {
                self.events.pop();
                self.handle(event);
            }
            self.serve();
        }
        self.now = until;
    }

    /// Completed work of a load in a span of time.
    pub fn work(&self, i: usize, from: Tick, to: Tick) -> u64 {
        let start = self.done[i].partition_point(|(when, _)| *when <= from);
        self.done[i][start..].iter().take_while(|(when, _)| *when <= to).map(|(_, cost)| cost).sum()
    }

    /// Each load's part of the work in a span of time.
    pub fn parts(&self, from: Tick, to: Tick) -> Vec<f64> {
        let work: Vec<u64> = (0..self.loads.len()).map(|i| self.work(i, from, to)).collect();
        let total: u64 = work.iter().sum();
        work.iter().map(|work| *work as f64 / total.max(1) as f64).collect()
    }

    /// The standard deviation of a load's work per window, over its mean.
    pub fn variation(&self, i: usize, from: Tick, to: Tick, window: Tick) -> f64 {
        let mut counts = Vec::new();
        let mut start = from;
        while start.after(window) <= to {
            counts.push(self.work(i, start, start.after(window)) as f64);
            start = start.after(window);
        }
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        (counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64).sqrt() / mean
    }

    /// The most work of others while a request of this load was the first of its job.
    pub fn passed_over(&self, i: usize) -> u64 {
        let (since, most) = self.passed[i];
        if self.sent[i] > 0 { most.max(self.served - since) } else { most }
    }

    pub fn id(&self, i: usize) -> JobId {
        self.loads[i].job.id()
    }

    /// The jobs that are active now.
    pub fn jobs(&self) -> Vec<Job> {
        let here = |load: &&Load| load.from <= self.now && self.now < load.to;
        self.loads.iter().filter(here).map(|load| load.job.clone()).collect()
    }

    /// Completed work of a job in a span of time.
    pub fn work_of(&self, job: JobId, from: Tick, to: Tick) -> u64 {
        (0..self.loads.len()).filter(|&i| self.id(i) == job).map(|i| self.work(i, from, to)).sum()
    }
}
