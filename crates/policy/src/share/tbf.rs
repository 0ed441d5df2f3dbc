//! TBF: a bucket of tokens for every job.

use super::book::{Book, Joined, STRANGERS};
use super::cost::{Cost, Rate, Tick, Ticket};
use super::flat::Flat;
use super::policy::Policy;
use super::scheduler::{Next, Request, Scheduler};
use forebay_model::{Job, JobId, Result};
use std::collections::BTreeSet;

/// How long a bucket fills until it is full.
const DEPTH: Tick = Tick::ms(50);
/// How long a job can be owed tokens that came while its requests waited.
const COMPENSATION: Tick = Tick::ms(1_000);
/// How often spare rate is found and handed out.
const PERIOD: Tick = Tick::ms(100);

/// The published baseline TBF: each job has a bucket that fills at its share of the device's rate, and a request goes
/// when its bucket holds its cost, earliest deadline first.
///
/// *Hard compensation*: while a job waits its bucket may fill beyond its depth, so tokens that the device was too
/// slow to honour in time are not lost, up to one second of them. *Proportional sharing of spare bandwidth*: every
/// 100 ms the rate that jobs without waiting requests left unused is added to those of the others, by share. Shares
/// count jobs one by one, as in the original.
///
/// **Bound.** A request waits at most until its bucket has filled (its cost and all before it of its job, at the job's
/// rate), one second of compensation that others may hold, and one request of every job.
#[derive(Debug)]
pub struct Tbf {
    book: Book,
    flat: Flat,
    rate: Rate,
    buckets: Vec<Bucket>,
    /// Waiting jobs by the moment their bucket holds their first request's cost.
    order: BTreeSet<(Tick, usize)>,
    /// The end of the period; nothing before the first request.
    ends: Option<Tick>,
    /// The number of the period.
    period: u64,
    /// Whether all jobs waited when rates were set, and all the same ones have since: rates stay as they are.
    settled: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    level: f64,
    at: Tick,
    /// Tokens a second by its share, and with what others leave.
    own: f64,
    rate: f64,
    /// What it used, in which period.
    used: f64,
    period: u64,
    deadline: Option<Tick>,
    /// Whether it slept until its first request came.
    slept: bool,
}

impl Bucket {
    /// Brings it to this moment; `head` is what the first request that waits will need.
    fn fill(&mut self, now: Tick, head: Option<Cost>) {
        let waited = head.is_some() && !std::mem::take(&mut self.slept);
        let most = if waited { COMPENSATION } else { DEPTH };
        // A request that needs more than a full bucket must be able to go too.
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

    /// When it holds this much.
    fn ready(&self, cost: Cost) -> Tick {
        let missing = cost.amount() - self.level;
        if missing <= 0.0 {
            // Longest full, first served.
            let ahead = (-missing / self.rate.max(1e-9)).min(COMPENSATION.secs());
            return Tick(self.at.0.saturating_sub((ahead * 1e9) as u64));
        }
        // A century stands for never.
        let wait = (missing / self.rate.max(1e-9)).min(3e9);
        self.at.after(Tick((wait * 1e9).ceil() as u64))
    }
}

impl Tbf {
    /// Shares as this policy says, of a device of this rate.
    #[must_use]
    pub fn new(policy: &Policy, rate: Rate) -> Tbf {
        Tbf {
            book: Book::new(),
            flat: Flat::new(policy),
            rate: rate.max(Rate(1)),
            buckets: vec![Bucket::default()],
            order: BTreeSet::new(),
            ends: None,
            period: 0,
            settled: false,
        }
    }

    /// Sets every job's rate by its share, and spare rate on top.
    fn set_rates(&mut self, now: Tick) {
        let stale = self.flat.is_stale();
        if !stale && self.settled {
            return;
        }
        let parts = self.flat.parts(&self.book);
        let (mut spare, mut wanted, mut idle) = (0.0, 0.0, false);
        for &(slot, part) in parts {
            let bucket = &mut self.buckets[slot];
            if stale {
                bucket.own = part * self.rate.0 as f64;
            }
            // Who has a deadline has a request that waits.
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
                bucket.fill(now, self.book.head(slot));
                bucket.rate = rate;
                changed.push(slot);
            }
        }
        changed.into_iter().for_each(|slot| self.enlist(slot));
        self.settled = !idle;
    }

    /// Puts a job where its first request's deadline belongs.
    fn enlist(&mut self, slot: usize) {
        let bucket = &mut self.buckets[slot];
        let deadline = self.book.head(slot).map(|cost| bucket.ready(cost));
        let old = std::mem::replace(&mut bucket.deadline, deadline);
        self.settled &= old.is_some() == deadline.is_some();
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
        match self.book.join(job)? {
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
        if self.book.leave(job).is_some() {
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
        let (slot, first) = self.book.arrive(job, cost, ticket);
        if first {
            if slot == STRANGERS && !self.flat.has_strangers() {
                self.flat.touch();
            }
            self.buckets[slot].slept = true;
            self.enlist(slot);
        }
    }

    fn next(&mut self, now: Tick) -> Next {
        if self.book.waiting() == 0 {
            return Next::Nobody;
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
            let &(ready, slot) = self.order.first().expect("who waits has a deadline");
            if ready > now {
                let ends = self.ends.expect("a period has begun");
                return Next::NotBefore(ready.min(ends));
            }
            let bucket = &mut self.buckets[slot];
            let head = self.book.head(slot).expect("who is in the order waits");
            // Its deadline may be from before it slept: what it has now is what counts.
            bucket.fill(now, Some(head));
            let cost = head.amount();
            if bucket.level + 1.0 < cost {
                self.enlist(slot);
                continue;
            }
            bucket.level -= cost;
            bucket.uses(cost, self.period);
            let (ticket, _, _) = self.book.pop(slot);
            self.enlist(slot);
            return Next::Turn(ticket);
        }
    }

    fn done(&mut self, job: JobId, asked: Cost, actual: Cost) {
        let (slot, gone) = self.book.done(job);
        if gone {
            self.flat.touch();
        } else if asked != actual {
            let less = asked.amount() - actual.amount();
            self.buckets[slot].level += less;
            self.buckets[slot].uses(-less, self.period);
            self.enlist(slot);
        }
    }

    fn waiting(&self) -> usize {
        self.book.waiting()
    }

    fn take_all(&mut self) -> Vec<Request> {
        let all = self.book.take_all();
        for slot in 0..self.book.size() {
            self.enlist(slot);
        }
        all
    }
}
