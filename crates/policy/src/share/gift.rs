//! GIFT: budgets for every interval, and coupons for those who got too little.

use super::book::{Book, Joined, STRANGERS};
use super::cost::{Cost, Rate, Tick, Ticket};
use super::dice::Dice;
use super::flat::Flat;
use super::heap::Heap;
use super::policy::Policy;
use super::scheduler::{Next, Request, Scheduler};
use super::tree::Pick;
use forebay_model::{Job, JobId, Result};

/// The published baseline GIFT, brought to one server: what a job may do in an interval is fixed at its start, from
/// the requests that wait then (a job that has some wants all it can get) and those of the interval before.
///
/// Its steps are those of the paper: a fair part for every job with demand (on one server all requests of a job
/// progress alike, so "basic synchronous progress" is the fair part capped by demand); then the linear program
/// "largest total, everybody between his floor and his demand, together at most the device". That program has one
/// capacity row and a box for every variable: a continuous knapsack whose items are worth the same. Any filling
/// that ends at the device's rate or at everybody's demand is optimal, so filling in the order that fairness wants is
/// too: first the fair parts, then what coupons ask for (reward), then the rest by share. Who had requests left at the
/// end of an interval and got less than his fair part was throttled, and gets a coupon for the difference.
///
/// Shares count jobs one by one (the original knows no hierarchy): an idle job's share goes to all others. What no job
/// is expected to need is kept in a pool that anyone may use whose own budget is used up; newcomers live on it until
/// the next interval.
///
/// **Bound.** A request is passed over for at most one interval more than its job's budgets need for what waits
/// before it.
#[derive(Debug)]
pub struct Gift {
    book: Book,
    flat: Flat,
    rate: Rate,
    interval: Tick,
    ends: Option<Tick>,
    accounts: Vec<Account>,
    pool: f64,
    /// Waiting jobs with budget left, and those without; both by virtual time.
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
    /// Where a job belongs.
    fn of(waits: bool, budget: f64) -> Queue {
        match waits {
            false => Queue::None,
            true if budget > 0.0 => Queue::Within,
            true => Queue::Beyond,
        }
    }
}

/// What a job asks of an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) fair: f64,
    pub(super) demand: f64,
    pub(super) coupons: f64,
}

/// What each gets of `capacity`: the linear program's optimum that is nearest to fair.
pub(super) fn allot(capacity: f64, asks: &[Ask]) -> Vec<f64> {
    let mut got: Vec<f64> = asks.iter().map(|ask| ask.fair.min(ask.demand)).collect();
    let mut left = capacity - got.iter().sum::<f64>();
    for (got, ask) in got.iter_mut().zip(asks) {
        let reward = ask.coupons.min(ask.demand - *got).clamp(0.0, left.max(0.0));
        *got += reward;
        left -= reward;
    }
    // By share among those who want more, until nobody does or nothing is left.
    while left > capacity * 1e-12 {
        let hungry: Vec<usize> = (0..asks.len()).filter(|&i| asks[i].demand > got[i]).collect();
        let weight: f64 = hungry.iter().map(|&i| asks[i].fair).sum();
        if hungry.is_empty() || weight <= 0.0 {
            break;
        }
        let before = left;
        for i in hungry {
            let more = (before * asks[i].fair / weight).min(asks[i].demand - got[i]);
            got[i] += more;
            left -= more;
        }
    }
    got
}

impl Gift {
    /// Shares as this policy says, of a device of this rate, decided anew every `interval`.
    #[must_use]
    pub fn new(policy: &Policy, rate: Rate, interval: Tick) -> Gift {
        Gift {
            book: Book::new(),
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

    /// Starts the interval that `now` lies in.
    fn begin(&mut self, now: Tick) {
        let idle = self.ends.is_none_or(|ends| now >= ends.after(self.interval));
        let start = match self.ends {
            Some(ends) if !idle => ends,
            _ => now,
        };
        self.ends = Some(start.after(self.interval));
        let capacity = self.rate.during(self.interval);
        let (who, asks) = self.asks(capacity, idle);
        let allotted = allot(capacity, &asks);
        self.pool = capacity - allotted.iter().sum::<f64>();
        let weight = self.newcomer();
        self.within.restart(self.accounts.len(), weight);
        self.beyond.restart(self.accounts.len(), weight);
        for account in &mut self.accounts {
            let Account { coupons, budget, .. } = *account;
            // What was used too much is missing now, unless nobody has wanted the device meanwhile.
            let budget = if idle { 0.0 } else { budget.min(0.0) };
            *account = Account { coupons, budget, ..Account::default() };
        }
        for ((&(slot, waits), ask), got) in who.iter().zip(&asks).zip(&allotted) {
            let account = &mut self.accounts[slot];
            account.coupons = (account.coupons - (got - ask.fair).max(0.0)).max(0.0);
            account.fair = ask.fair;
            account.budget += got;
            account.queue = Queue::of(waits, account.budget);
            self.within.seat(slot, got.max(1.0), account.queue == Queue::Within);
            self.beyond.seat(slot, ask.fair.max(1.0), account.queue == Queue::Beyond);
        }
    }

    /// Closes the books of the interval that ended and says what each job asks of the next, and whether it waits.
    fn asks(&mut self, capacity: f64, idle: bool) -> (Vec<(usize, bool)>, Vec<Ask>) {
        let mut active = 0.0;
        let parts = self.flat.parts(&self.book);
        let (mut who, mut asks) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for &(slot, fair) in parts {
            let account = &mut self.accounts[slot];
            let waits = self.book.head(slot).is_some();
            if waits && !idle {
                account.coupons = (account.coupons + (account.fair - account.used).max(0.0)).min(capacity);
            }
            let demand = match waits {
                // Who has requests waiting might do anything with more; who has none will do what it did.
                true => capacity,
                false if idle => 0.0,
                false => account.arrived,
            };
            if demand > 0.0 {
                active += fair;
                who.push((slot, waits));
                asks.push(Ask { fair, demand, coupons: account.coupons });
            }
        }
        let whole = capacity / active;
        asks.iter_mut().for_each(|ask| ask.fair *= whole);
        (who, asks)
    }

    /// Puts a waiting job where it belongs.
    fn enlist(&mut self, slot: usize) {
        let wanted = Queue::of(self.book.head(slot).is_some(), self.accounts[slot].budget);
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

    /// What those weigh that the interval began without.
    fn newcomer(&self) -> f64 {
        (self.rate.during(self.interval) / self.book.size() as f64).max(1.0)
    }

    fn open(&mut self, slot: usize) {
        let weight = self.newcomer();
        self.within.reset(slot, weight);
        self.beyond.reset(slot, weight);
    }
}

impl Scheduler for Gift {
    fn join(&mut self, job: &Job) -> Result<()> {
        match self.book.join(job)? {
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
        self.accounts[slot].arrived += cost.amount();
        if first && slot == STRANGERS && !self.flat.has_strangers() {
            self.flat.touch();
        }
        if first && self.ends.is_some() {
            self.enlist(slot);
        }
    }

    fn next(&mut self, now: Tick) -> Next {
        if self.book.waiting() == 0 {
            return Next::Nobody;
        }
        if self.ends.is_none_or(|ends| now >= ends) {
            self.begin(now);
        }
        // Neither heap draws lots.
        let mut dice = Dice::new(0);
        let slot = if self.within.awake() > 0 {
            self.within.pick(&mut dice)
        } else if self.pool > 0.0 {
            self.beyond.pick(&mut dice)
        } else {
            return Next::NotBefore(self.ends.expect("an interval has begun"));
        };
        let (ticket, cost, _) = self.book.pop(slot);
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
            Queue::None => unreachable!("who is served was in a queue"),
        }
        self.enlist(slot);
        Next::Turn(ticket)
    }

    fn done(&mut self, job: JobId, asked: Cost, actual: Cost) {
        let (slot, gone) = self.book.done(job);
        if gone {
            self.flat.touch();
        } else if asked != actual {
            let less = asked.amount() - actual.amount();
            let account = &mut self.accounts[slot];
            account.used -= less;
            account.budget += less;
            if self.ends.is_some() {
                self.enlist(slot);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The linear program solved the other way: a vertex of it has at most one variable strictly inside its box, so
    /// trying every choice of bounds for the others finds the optimum.
    fn best(capacity: f64, asks: &[Ask]) -> f64 {
        let mut best = 0.0_f64;
        for bounds in 0..1_u32 << asks.len() {
            let floor = |ask: &Ask| ask.fair.min(ask.demand);
            let at = |i: usize| if bounds >> i & 1 == 1 { asks[i].demand } else { floor(&asks[i]) };
            for free in 0..asks.len() {
                let others: f64 = (0..asks.len()).filter(|&i| i != free).map(at).sum();
                let x = (capacity - others).clamp(floor(&asks[free]), asks[free].demand);
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
        let mut dice = Dice::new(seed);
        for round in 0..2_000 {
            let count = 1 + dice.below(6) as usize;
            let weights: Vec<f64> = (0..count).map(|_| 0.1 + dice.unit()).collect();
            let total: f64 = weights.iter().sum();
            let asks: Vec<Ask> = weights
                .iter()
                .map(|weight| Ask {
                    fair: 100.0 * weight / total,
                    demand: 1.0 + 80.0 * dice.unit(),
                    coupons: if dice.below(2) == 0 { 0.0 } else { 30.0 * dice.unit() },
                })
                .collect();
            let got = allot(100.0, &asks);
            let sum: f64 = got.iter().sum();
            let wanted = best(100.0, &asks);
            assert!((sum - wanted).abs() < 1e-6, "seed {seed} round {round}: {sum} of {wanted} for {asks:?}");
            for (got, ask) in got.iter().zip(&asks) {
                assert!(*got <= ask.demand + 1e-9 && *got >= ask.fair.min(ask.demand) - 1e-9, "{asks:?}");
            }
        }
    }

    #[test]
    fn coupons_are_paid_from_what_others_leave() {
        let ask = |fair, demand, coupons| Ask { fair, demand, coupons };
        // A needs little: B, who holds a coupon, is served from that before C.
        let got = allot(90.0, &[ask(30.0, 10.0, 0.0), ask(30.0, 90.0, 20.0), ask(30.0, 90.0, 0.0)]);
        assert_eq!(got, [10.0, 50.0, 30.0]);
        let got = allot(90.0, &[ask(30.0, 10.0, 0.0), ask(30.0, 90.0, 10.0), ask(30.0, 90.0, 0.0)]);
        assert_eq!(got, [10.0, 45.0, 35.0]);
    }
}
