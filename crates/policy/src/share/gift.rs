//! GIFT: a budget per interval, and coupons for jobs that got too little.

use super::cost::{Cost, Rate, Tick, Ticket};
use super::flat::Flat;
use super::heap::Heap;
use super::job_table::{JobTable, Joined, UNANNOUNCED};
use super::policy::Policy;
use super::rng::Rng;
use super::scheduler::{Next, Request, Scheduler};
use super::tree::Pick;
use forebay_model::{Job, JobId, Result};

/// The published baseline GIFT, applied to one server. A job's budget for an interval is fixed at the start
/// of the interval, from the requests that wait then (a waiting job's demand is unlimited) and from the use
/// in the interval before.
///
/// The steps follow the paper. Every job with demand gets a fair part; on one server all requests of a job
/// progress alike, so "basic synchronous progress" is the fair part capped by demand. Then comes the linear
/// program "maximise the total, every job between its floor and its demand, the sum at most the device's
/// rate". That program has one capacity row and a box for every variable: a continuous knapsack whose items
/// have equal value. Any filling that ends at the device's rate or at the total demand is optimal, so the
/// filling can follow fairness: first the fair parts, then coupons (reward), then the rest by share. A job
/// that has requests left at the end of an interval and got less than its fair part was throttled, and gets a
/// coupon for the difference.
///
/// Shares count individual jobs (the original has no hierarchy): an idle job's share goes to all others.
/// Capacity that no job is expected to need forms a pool for jobs whose own budget is used up; new jobs use
/// it until the next interval.
///
/// **Bound.** A request is passed over for at most one interval more than its job's budgets need for the
/// requests before it.
#[derive(Debug)]
pub struct Gift {
    job_table: JobTable,
    flat: Flat,
    rate: Rate,
    interval: Tick,
    ends: Option<Tick>,
    accounts: Vec<Account>,
    pool: f64,
    /// Waiting jobs with budget left, and waiting jobs without; both by virtual time.
    within: Heap,
    beyond: Heap,
}

#[derive(Clone, Copy, Default, Debug)]
struct Account {
    budget: f64,
    fair: f64,
    used: f64,
    arrived: f64,
    coupons: f64,
    queue: Queue,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Queue {
    #[default]
    None,
    Within,
    Beyond,
}

impl Queue {
    /// The queue that a job belongs in.
    fn of(waits: bool, budget: f64) -> Queue {
        match waits {
            false => Queue::None,
            true if budget > 0.0 => Queue::Within,
            true => Queue::Beyond,
        }
    }
}

/// Demand of a job for an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) fair: f64,
    pub(super) demand: f64,
    pub(super) coupons: f64,
}

/// Divides `capacity` between the jobs: the optimum of the linear program that is nearest to fair.
pub(super) fn allot(capacity: f64, demands: &[Demand]) -> Vec<f64> {
    let mut got: Vec<f64> = demands.iter().map(|entry| entry.fair.min(entry.demand)).collect();
    let mut left = capacity - got.iter().sum::<f64>();
    for (got, entry) in got.iter_mut().zip(demands) {
        let reward = entry.coupons.min(entry.demand - *got).clamp(0.0, left.max(0.0));
        *got += reward;
        left -= reward;
    }
    // Divide by share among jobs with unmet demand, until all demand is met or nothing is left.
    while left > capacity * 1e-12 {
        let hungry: Vec<usize> = (0..demands.len()).filter(|&i| demands[i].demand > got[i]).collect();
        let weight: f64 = hungry.iter().map(|&i| demands[i].fair).sum();
        if hungry.is_empty() || weight <= 0.0 {
            break;
        }
        let before = left;
        for i in hungry {
            let more = (before * demands[i].fair / weight).min(demands[i].demand - got[i]);
            got[i] += more;
            left -= more;
        }
    }
    got
}

impl Gift {
    /// Follows the shares of `policy` on a device of this rate, with new budgets every `interval`.
    #[must_use]
    pub fn new(policy: &Policy, rate: Rate, interval: Tick) -> Gift {
        Gift {
            job_table: JobTable::new(),
            flat: Flat::new(policy),
            rate,
            interval: interval.max(Tick(1)),
            ends: None,
            accounts: vec![Account::default()],
            pool: 0.0,
            within: Heap::default(),
            beyond: Heap::default(),
        }
    }

    /// Starts the interval that contains `now`.
    fn begin(&mut self, now: Tick) {
        let idle = self.ends.is_none_or(|ends| now >= ends.after(self.interval));
        let start = match self.ends {
            Some(ends) if !idle => ends,
            _ => now,
        };
        self.ends = Some(start.after(self.interval));
        let capacity = self.rate.during(self.interval);
        let (who, demands) = self.demands(capacity, idle);
        let allotted = allot(capacity, &demands);
        self.pool = capacity - allotted.iter().sum::<f64>();
        let weight = self.newcomer();
        self.within.restart(self.accounts.len(), weight);
        self.beyond.restart(self.accounts.len(), weight);
        for account in &mut self.accounts {
            let Account { coupons, budget, .. } = *account;
            // Overuse is carried over, unless the device was idle in between.
            let budget = if idle { 0.0 } else { budget.min(0.0) };
            *account = Account { coupons, budget, ..Account::default() };
        }
        for ((&(slot, waits), entry), got) in who.iter().zip(&demands).zip(&allotted) {
            let account = &mut self.accounts[slot];
            account.coupons = (account.coupons - (got - entry.fair).max(0.0)).max(0.0);
            account.fair = entry.fair;
            account.budget += got;
            account.queue = Queue::of(waits, account.budget);
            self.within.set_child(slot, got.max(1.0), account.queue == Queue::Within);
            self.beyond.set_child(slot, entry.fair.max(1.0), account.queue == Queue::Beyond);
        }
    }

    /// Closes the previous interval. Returns every job's demand for the next one, and whether the job waits.
    fn demands(&mut self, capacity: f64, idle: bool) -> (Vec<(usize, bool)>, Vec<Demand>) {
        let mut active = 0.0;
        let parts = self.flat.parts(&self.job_table);
        let (mut who, mut demands) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for &(slot, fair) in parts {
            let account = &mut self.accounts[slot];
            let waits = self.job_table.head(slot).is_some();
            if waits && !idle {
                account.coupons = (account.coupons + (account.fair - account.used).max(0.0)).min(capacity);
            }
            let demand = match waits {
                // A waiting job could use the whole device; an idle one is expected to repeat its last use.
                true => capacity,
                false if idle => 0.0,
                false => account.arrived,
            };
            if demand > 0.0 {
                active += fair;
                who.push((slot, waits));
                demands.push(Demand { fair, demand, coupons: account.coupons });
            }
        }
        let whole = capacity / active;
        demands.iter_mut().for_each(|entry| entry.fair *= whole);
        (who, demands)
    }

    /// Moves a waiting job to the queue it belongs in.
    fn enqueue(&mut self, slot: usize) {
        let wanted = Queue::of(self.job_table.head(slot).is_some(), self.accounts[slot].budget);
        let old = std::mem::replace(&mut self.accounts[slot].queue, wanted);
        if old == wanted {
            return;
        }
        match old {
            Queue::Within => self.within.sleep(slot),
            Queue::Beyond => self.beyond.sleep(slot),
            Queue::None => {}
        }
        match wanted {
            Queue::Within => self.within.wake(slot),
            Queue::Beyond => self.beyond.wake(slot),
            Queue::None => {}
        }
    }

    /// Weight of jobs that arrived after the interval began.
    fn newcomer(&self) -> f64 {
        (self.rate.during(self.interval) / self.job_table.size() as f64).max(1.0)
    }

    fn open(&mut self, slot: usize) {
        let weight = self.newcomer();
        self.within.reset(slot, weight);
        self.beyond.reset(slot, weight);
    }
}

impl Scheduler for Gift {
    fn join(&mut self, job: &Job) -> Result<()> {
        match self.job_table.join(job)? {
            Joined::New(slot) => {
                self.accounts.resize(self.accounts.len().max(slot + 1), Account::default());
                self.accounts[slot] = Account::default();
                self.open(slot);
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
        self.accounts[slot].arrived += cost.amount();
        if first && slot == UNANNOUNCED && !self.flat.has_unannounced() {
            self.flat.touch();
        }
        if first && self.ends.is_some() {
            self.enqueue(slot);
        }
    }

    fn next(&mut self, now: Tick) -> Next {
        if self.job_table.waiting() == 0 {
            return Next::Idle;
        }
        if self.ends.is_none_or(|ends| now >= ends) {
            self.begin(now);
        }
        // The heaps do not use random numbers.
        let mut rng = Rng::new(0);
        let slot = if self.within.awake() > 0 {
            self.within.pick(&mut rng)
        } else if self.pool > 0.0 {
            self.beyond.pick(&mut rng)
        } else {
            return Next::NotBefore(self.ends.expect("an interval has begun"));
        };
        let (ticket, cost, _) = self.job_table.pop(slot);
        let cost = cost.amount();
        let account = &mut self.accounts[slot];
        account.used += cost;
        match account.queue {
            Queue::Within => {
                account.budget -= cost;
                self.within.charge(slot, cost);
            }
            Queue::Beyond => {
                self.pool -= cost;
                self.beyond.charge(slot, cost);
            }
            Queue::None => unreachable!("a served job was in a queue"),
        }
        self.enqueue(slot);
        Next::Turn(ticket)
    }

    fn done(&mut self, job: JobId, asked: Cost, actual: Cost) {
        let (slot, gone) = self.job_table.done(job);
        if gone {
            self.flat.touch();
        } else if asked != actual {
            let less = asked.amount() - actual.amount();
            let account = &mut self.accounts[slot];
            account.used -= less;
            account.budget += less;
            if self.ends.is_some() {
                self.enqueue(slot);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Solves the linear program by brute force: a vertex has at most one variable strictly inside its box,
    /// so trying every choice of bounds for the others finds the optimum.
    fn best(capacity: f64, demands: &[Demand]) -> f64 {
        let mut best = 0.0_f64;
        for bounds in 0..1_u32 << demands.len() {
            let floor = |entry: &Demand| entry.fair.min(entry.demand);
            let at = |i: usize| if bounds >> i & 1 == 1 { demands[i].demand } else { floor(&demands[i]) };
            for free in 0..demands.len() {
                let others: f64 = (0..demands.len()).filter(|&i| i != free).map(at).sum();
                let x = (capacity - others).clamp(floor(&demands[free]), demands[free].demand);
                if others + x <= capacity + 1e-9 {
                    best = best.max(others + x);
                }
            }
        }
        best
    }

    #[test]
    fn random_allotments_are_optimal_for_the_linear_program() {
        let seed = std::env::var("FOREBAY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(61);
        let mut rng = Rng::new(seed);
        for round in 0..2_000 {
            let count = 1 + rng.below(6) as usize;
            let weights: Vec<f64> = (0..count).map(|_| 0.1 + rng.unit()).collect();
            let total: f64 = weights.iter().sum();
            let demands: Vec<Demand> = weights
                .iter()
                .map(|weight| Demand {
                    fair: 100.0 * weight / total,
                    demand: 1.0 + 80.0 * rng.unit(),
                    coupons: if rng.below(2) == 0 { 0.0 } else { 30.0 * rng.unit() },
                })
                .collect();
            let got = allot(100.0, &demands);
            let sum: f64 = got.iter().sum();
            let wanted = best(100.0, &demands);
            assert!(
                (sum - wanted).abs() < 1e-6,
                "seed {seed} round {round}: {sum} of {wanted} for {demands:?}"
            );
            for (got, entry) in got.iter().zip(&demands) {
                assert!(
                    *got <= entry.demand + 1e-9 && *got >= entry.fair.min(entry.demand) - 1e-9,
                    "{demands:?}"
                );
            }
        }
    }

    #[test]
    fn coupons_are_paid_from_unused_capacity() {
        let demand_of = |fair, demand, coupons| Demand { fair, demand, coupons };
        // A needs little: B, which holds a coupon, is served from the rest before C.
        let got = allot(
            90.0,
            &[demand_of(30.0, 10.0, 0.0), demand_of(30.0, 90.0, 20.0), demand_of(30.0, 90.0, 0.0)],
        );
        assert_eq!(got, [10.0, 50.0, 30.0]);
        let got = allot(
            90.0,
            &[demand_of(30.0, 10.0, 0.0), demand_of(30.0, 90.0, 10.0), demand_of(30.0, 90.0, 0.0)],
        );
        assert_eq!(got, [10.0, 45.0, 35.0]);
    }
}
