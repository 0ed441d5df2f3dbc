//! TBF: a token bucket per job.

use super::cost::{Cost, Rate, Tick, Ticket};
use super::flat::Flat;
use super::job_table::{JobTable, Joined, UNANNOUNCED};
use super::policy::Policy;
use super::scheduler::{Next, Request, Scheduler};
use forebay_model::{Job, JobId, Result};
use std::collections::BTreeSet;

/// Time in which an empty bucket fills up.
const DEPTH: Tick = Tick::ms(50);
/// Most time for which a waiting job can accumulate tokens beyond the bucket's depth.
const COMPENSATION: Tick = Tick::ms(1_000);
/// How often spare rate is redistributed.
const PERIOD: Tick = Tick::ms(100);

/// The published baseline TBF: each job has a bucket that fills at its share of the device's rate, and a
/// request starts when its bucket holds its cost, earliest deadline first.
///
/// *Hard compensation*: while a job waits, its bucket may fill beyond its depth, so tokens that the device
/// was too slow to honour are not lost, up to one second of them. *Proportional sharing of spare bandwidth*:
/// every 100 ms the rate that idle jobs left unused is added to the rates of the others, by share. Shares
/// count individual jobs, as in the original.
///
/// **Bound.** A request waits at most until its bucket has filled (with the cost of itself and of its job's
/// earlier requests, at the job's rate), plus one second of compensation that other jobs may hold, plus one
/// request of every job.
#[derive(Debug)]
pub struct Tbf {
    job_table: JobTable,
    flat: Flat,
    rate: Rate,
    buckets: Vec<Bucket>,
    /// Waiting jobs by the instant at which their bucket holds the cost of their first request.
    order: BTreeSet<(Tick, usize)>,
    /// End of the current period; `None` before the first request.
    ends: Option<Tick>,
    /// The number of the period.
    period: u64,
    /// Whether all jobs waited when the rates were set and still do: the rates need no change.
    steady: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    level: f64,
    at: Tick,
    /// Tokens per second by its share, and including spare rate.
    own: f64,
    rate: f64,
    /// Tokens used, and the period in which.
    used: f64,
    period: u64,
    deadline: Option<Tick>,
    /// Whether it was idle until its first request arrived.
    slept: bool,
}

impl Bucket {
    /// Fills the bucket up to `now`; `head` is the cost of the first waiting request.
    fn fill(&mut self, now: Tick, head: Option<Cost>) {
        let waited = head.is_some() && !std::mem::take(&mut self.slept);
        let most = if waited { COMPENSATION } else { DEPTH };
        // A request larger than the bucket must be able to start too.
        let full = self.level.max(self.rate * most.secs()).max(head.map_or(0.0, Cost::amount));
        self.level = (self.level + self.rate * now.since(self.at).secs()).min(full);
        self.at = self.at.max(now);
    }

    fn used_in(&self, period: u64) -> f64 {
        if self.period == period { self.used } else { 0.0 }
    }

    fn uses(&mut self, amount: f64, period: u64) {
        self.used = self.used_in(period) + amount;
        self.period = period;
    }

    /// When it holds the given cost.
    fn ready(&self, cost: Cost) -> Tick {
        let missing = cost.amount() - self.level;
        if missing <= 0.0 {
            // The bucket that has been full longest is served first.
            let ahead = (-missing / self.rate.max(1e-9)).min(COMPENSATION.secs());
            return Tick(self.at.0.saturating_sub((ahead * 1e9) as u64));
        }
        // A century stands for never.
        let wait = (missing / self.rate.max(1e-9)).min(3e9);
        self.at.after(Tick((wait * 1e9).ceil() as u64))
    }
}

impl Tbf {
    /// Follows the shares of `policy` on a device of this rate.
    #[must_use]
    pub fn new(policy: &Policy, rate: Rate) -> Tbf {
        Tbf {
            job_table: JobTable::new(),
            flat: Flat::new(policy),
            rate: rate.max(Rate(1)),
            buckets: vec![Bucket::default()],
            order: BTreeSet::new(),
            ends: None,
            period: 0,
            steady: false,
        }
    }

    /// Sets every job's rate by its share, plus spare rate.
    fn set_rates(&mut self, now: Tick) {
        let stale = self.flat.is_stale();
        if !stale && self.steady {
            return;
        }
        let parts = self.flat.parts(&self.job_table);
        let (mut spare, mut wanted, mut idle) = (0.0, 0.0, false);
        for &(slot, part) in parts {
            let bucket = &mut self.buckets[slot];
            if stale {
                bucket.own = part * self.rate.0 as f64;
            }
            // Only jobs with waiting requests have a deadline.
            if bucket.deadline.is_some() {
                wanted += part;
            } else {
                idle = true;
                spare += (bucket.own - bucket.used_in(self.period) / PERIOD.secs()).max(0.0);
            }
        }
        let mut changed = Vec::new();
        for &(slot, part) in parts {
            let bucket = &mut self.buckets[slot];
            let more = if bucket.deadline.is_some() { spare * part / wanted } else { 0.0 };
            let rate = bucket.own + more;
            if rate != bucket.rate {
                bucket.fill(now, self.job_table.head(slot));
                bucket.rate = rate;
                changed.push(slot);
            }
        }
        changed.into_iter().for_each(|slot| self.enqueue(slot));
        self.steady = !idle;
    }

    /// Queues a job by the deadline of its first request.
    fn enqueue(&mut self, slot: usize) {
        let bucket = &mut self.buckets[slot];
        let deadline = self.job_table.head(slot).map(|cost| bucket.ready(cost));
        let old = std::mem::replace(&mut bucket.deadline, deadline);
        self.steady &= old.is_some() == deadline.is_some();
        if let Some(old) = old {
            self.order.remove(&(old, slot));
        }
        if let Some(new) = deadline {
            self.order.insert((new, slot));
        }
    }
}

impl Scheduler for Tbf {
    fn join(&mut self, job: &Job) -> Result<()> {
        match self.job_table.join(job)? {
            Joined::New(slot) => {
                self.buckets.resize(self.buckets.len().max(slot + 1), Bucket::default());
                self.buckets[slot] = Bucket::default();
                self.flat.touch();
            }
            Joined::Changed(_) => self.flat.touch(),
            Joined::Same => {}
        }
        Ok(())
    }

    fn leave(&mut self, job: JobId) {
        if self.job_table.leave(job).is_some() {
            self.flat.touch();
        }
    }

    fn set_policy(&mut self, policy: &Policy) {
        self.flat.set_policy(policy);
    }

    fn assign(&mut self, shares: &[(JobId, f64)]) {
        self.flat.assign(shares);
    }

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) {
        let (slot, first) = self.job_table.arrive(job, cost, ticket);
        if first {
            if slot == UNANNOUNCED && !self.flat.has_unannounced() {
                self.flat.touch();
            }
            self.buckets[slot].slept = true;
            self.enqueue(slot);
        }
    }

    fn next(&mut self, now: Tick) -> Next {
        if self.job_table.waiting() == 0 {
            return Next::Idle;
        }
        let over = self.ends.is_none_or(|ends| now >= ends);
        if over || self.flat.is_stale() {
            self.set_rates(now);
        }
        if over {
            self.ends = Some(now.after(PERIOD));
            self.period += 1;
        }
        loop {
            let &(ready, slot) = self.order.first().expect("a waiting job has a deadline");
            if ready > now {
                let ends = self.ends.expect("a period has begun");
                return Next::NotBefore(ready.min(ends));
            }
            let bucket = &mut self.buckets[slot];
            let head = self.job_table.head(slot).expect("a job in the order has a waiting request");
            // The deadline may date from before the job was idle: refill and check again.
            bucket.fill(now, Some(head));
            let cost = head.amount();
            if bucket.level + 1.0 < cost {
                self.enqueue(slot);
                continue;
            }
            bucket.level -= cost;
            bucket.uses(cost, self.period);
            let (ticket, _, _) = self.job_table.pop(slot);
            self.enqueue(slot);
            return Next::Turn(ticket);
        }
    }

    fn done(&mut self, job: JobId, asked: Cost, actual: Cost) {
        let (slot, gone) = self.job_table.done(job);
        if gone {
            self.flat.touch();
        } else if asked != actual {
            let less = asked.amount() - actual.amount();
            self.buckets[slot].level += less;
            self.buckets[slot].uses(-less, self.period);
            self.enqueue(slot);
        }
    }

    fn waiting(&self) -> usize {
        self.job_table.waiting()
    }

    fn take_all(&mut self) -> Vec<Request> {
        let all = self.job_table.take_all();
        for slot in 0..self.job_table.size() {
            self.enqueue(slot);
        }
        all
    }
}
