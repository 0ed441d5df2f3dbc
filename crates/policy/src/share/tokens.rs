//! Statistical tokens: a lottery over segments of [0, 1).

use super::cost::{Cost, Tick, Ticket};
use super::job_table::{JobTable, Joined};
use super::policy::Policy;
use super::rng::Rng;
use super::scheduler::{Next, Request, Scheduler};
use super::sums::Sums;
use super::tree::Tree;
use forebay_model::{Job, JobId, Result};
use std::collections::VecDeque;

/// Work that one draw of [`Tokens`] grants.
pub const SLICE: Cost = Cost(256 << 10);

/// A job that has waited for this many times the expected number of draws is served without one: by chance
/// that happens less than once in a million times (e⁻¹⁶).
const PATIENCE: f64 = 16.0;

/// State shared by both lottery schedulers.
#[derive(Debug)]
struct Lottery {
    job_table: JobTable,
    tree: Tree<Sums>,
    rng: Rng,
}

impl Lottery {
    fn new(policy: &Policy, seed: u64) -> Lottery {
        Lottery { job_table: JobTable::new(), tree: Tree::new(policy), rng: Rng::new(seed) }
    }

    fn join(&mut self, job: &Job) -> Result<Joined> {
        let joined = self.job_table.join(job)?;
        match joined {
            Joined::New(slot) => self.tree.add(&self.job_table, slot),
            Joined::Changed(slot) => {
                self.tree.remove(slot, self.job_table.head(slot).is_some());
                self.tree.add(&self.job_table, slot);
            }
            Joined::Same => {}
        }
        Ok(joined)
    }

    fn leave(&mut self, job: JobId) {
        if let Some(slot) = self.job_table.leave(job) {
            self.tree.remove(slot, false);
        }
    }

    fn set_policy(&mut self, policy: &Policy) {
        let slots: Vec<usize> = self.job_table.members().collect();
        self.tree.rebuild(policy, &self.job_table, &slots);
    }

    fn assign(&mut self, shares: &[(JobId, f64)]) {
        let shares = self.job_table.by_slot(shares);
        self.tree.assign(&self.job_table, &shares);
    }

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) -> (usize, bool) {
        let (slot, first) = self.job_table.arrive(job, cost, ticket);
        if !self.tree.has(slot) {
            self.tree.add(&self.job_table, slot);
        } else if first {
            self.tree.wake(slot);
        }
        (slot, first)
    }

    fn draw(&mut self) -> Option<usize> {
        self.tree.pick(&mut self.rng)
    }

    fn pop(&mut self, slot: usize) -> (Ticket, Cost) {
        let (ticket, cost, last) = self.job_table.pop(slot);
        if last {
            self.tree.sleep(slot);
        }
        (ticket, cost)
    }

    /// The slot of the request, unless its job was removed with it.
    fn done(&mut self, job: JobId) -> Option<usize> {
        let (slot, gone) = self.job_table.done(job);
        if gone {
            self.tree.remove(slot, false);
        }
        (!gone).then_some(slot)
    }

    fn take_all(&mut self) -> Vec<Request> {
        for slot in self.job_table.members().collect::<Vec<_>>() {
            if self.job_table.head(slot).is_some() {
                self.tree.sleep(slot);
            }
        }
        self.job_table.take_all()
    }
}

/// The lottery as published: one draw per request, whatever its cost, so a job with small requests gets less
/// than its share. For comparison only.
///
/// **Bound.** No certain one: a job with share *s* of the waiting jobs is passed over by *k* requests with
/// probability (1 − *s*)ᵏ.
#[derive(Debug)]
pub struct Draws {
    lottery: Lottery,
}

impl Draws {
    /// Follows the shares of `policy`, with random numbers from `seed`.
    #[must_use]
    pub fn new(policy: &Policy, seed: u64) -> Draws {
        Draws { lottery: Lottery::new(policy, seed) }
    }
}

impl Scheduler for Draws {
    fn join(&mut self, job: &Job) -> Result<()> {
        self.lottery.join(job).map(|_| ())
    }

    fn leave(&mut self, job: JobId) {
        self.lottery.leave(job);
    }

    fn set_policy(&mut self, policy: &Policy) {
        self.lottery.set_policy(policy);
    }

    fn assign(&mut self, shares: &[(JobId, f64)]) {
        self.lottery.assign(shares);
    }

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) {
        self.lottery.arrive(job, cost, ticket);
    }

    fn next(&mut self, _now: Tick) -> Next {
        self.lottery.draw().map_or(Next::Idle, |slot| Next::Turn(self.lottery.pop(slot).0))
    }

    fn done(&mut self, job: JobId, _asked: Cost, _actual: Cost) {
        self.lottery.done(job);
    }

    fn waiting(&self) -> usize {
        self.lottery.job_table.waiting()
    }

    fn take_all(&mut self) -> Vec<Request> {
        self.lottery.take_all()
    }
}

/// A lottery for slices of work instead of requests, so that the work done follows the shares.
///
/// A drawn job gets credit for one [`SLICE`] and is served while any credit is left. The last request may
/// overdraw it; later slices pay the debt before the job is served again. A job that becomes idle keeps the
/// rest of its slice and is served from it when it returns: a client with one request at a time gets its
/// share too.
///
/// **Bound.** Of *n* waiting jobs, one with share *s* gets a slice at least once in 16/*s* + *n* draws: every
/// draw checks one waiting job in turn, and gives it the slice if chance has not for that long. A job owes at
/// most its largest request, *c*, so it is served again after ⌈*c*/slice⌉ + 1 slices at the latest.
#[derive(Debug)]
pub struct Tokens {
    lottery: Lottery,
    /// By slot.
    accounts: Vec<Account>,
    /// Jobs with credit and requests, in the order in which they got credit. May hold stale entries.
    ready: VecDeque<usize>,
    /// Jobs to check for starvation, in turn. May hold jobs that no longer wait.
    round: VecDeque<usize>,
    drawn: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Account {
    credit: f64,
    /// Its last draw, or the draw at which it began to wait.
    last: u64,
    ready: bool,
    in_round: bool,
}

impl Tokens {
    /// Follows the shares of `policy`, with random numbers from `seed`.
    #[must_use]
    pub fn new(policy: &Policy, seed: u64) -> Tokens {
        Tokens {
            lottery: Lottery::new(policy, seed),
            accounts: Vec::new(),
            ready: VecDeque::new(),
            round: VecDeque::new(),
            drawn: 0,
        }
    }

    fn make_ready(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.accounts[slot].ready, true) {
            self.ready.push_back(slot);
        }
    }

    /// The first job with credit and requests.
    fn first_ready(&mut self) -> Option<usize> {
        while let Some(&slot) = self.ready.front() {
            if self.accounts[slot].credit > 0.0 && self.lottery.job_table.head(slot).is_some() {
                return Some(slot);
            }
            self.accounts[slot].ready = false;
            self.ready.pop_front();
        }
        None
    }

    /// Checks the next waiting job. Returns it if it has waited too long.
    fn starved(&mut self) -> Option<usize> {
        while let Some(slot) = self.round.pop_front() {
            if self.lottery.job_table.head(slot).is_none() {
                self.accounts[slot].in_round = false;
                continue;
            }
            self.round.push_back(slot);
            let waited = (self.drawn - self.accounts[slot].last) as f64;
            // Most have not waited long, so their share need not be computed.
            let long = waited > PATIENCE && waited > PATIENCE / self.lottery.tree.share(slot);
            return long.then_some(slot);
        }
        None
    }

    /// Grants slices until a job can be served.
    fn grant_slices(&mut self) -> Option<usize> {
        let most = 64 + self.lottery.tree.awake();
        for _ in 0..most {
            let slot = match self.starved() {
                Some(slot) => slot,
                None => self.lottery.draw()?,
            };
            self.drawn += 1;
            let account = &mut self.accounts[slot];
            account.last = self.drawn;
            account.credit += SLICE.amount();
            if self.lottery.tree.awake() == 1 {
                // No other job waits, so the debt does not matter.
                account.credit = SLICE.amount();
            }
            if account.credit > 0.0 {
                return Some(slot);
            }
        }
        self.pay_debts()
    }

    /// When all jobs owe so much that draws take too long: pays every job, by share, the average of that many
    /// draws, until the first owes nothing.
    fn pay_debts(&mut self) -> Option<usize> {
        let waiting: Vec<(usize, f64)> = self
            .round
            .iter()
            .filter(|&&slot| self.lottery.job_table.head(slot).is_some())
            .map(|&slot| (slot, self.lottery.tree.share(slot)))
            .collect();
        let draws = |&(slot, share): &(usize, f64)| -self.accounts[slot].credit / share;
        let first = waiting.iter().copied().min_by(|one, other| draws(one).total_cmp(&draws(other)))?;
        let paid = draws(&first);
        for (slot, share) in waiting {
            self.accounts[slot].credit += paid * share;
        }
        self.accounts[first.0].credit = SLICE.amount();
        self.accounts[first.0].last = self.drawn;
        Some(first.0)
    }
}

impl Scheduler for Tokens {
    fn join(&mut self, job: &Job) -> Result<()> {
        let joined = self.lottery.join(job)?;
        self.accounts.resize(self.lottery.job_table.size(), Account::default());
        if let Joined::New(slot) = joined {
            let account = &mut self.accounts[slot];
            (account.credit, account.last) = (0.0, self.drawn);
        }
        Ok(())
    }

    fn leave(&mut self, job: JobId) {
        self.lottery.leave(job);
    }

    fn set_policy(&mut self, policy: &Policy) {
        self.lottery.set_policy(policy);
    }

    fn assign(&mut self, shares: &[(JobId, f64)]) {
        self.lottery.assign(shares);
    }

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) {
        let (slot, first) = self.lottery.arrive(job, cost, ticket);
        if slot >= self.accounts.len() {
            self.accounts.resize(slot + 1, Account::default());
        }
        if !first {
            return;
        }
        let account = &mut self.accounts[slot];
        account.last = self.drawn;
        if !std::mem::replace(&mut account.in_round, true) {
            self.round.push_back(slot);
        }
        if account.credit > 0.0 {
            self.make_ready(slot);
        }
    }

    fn next(&mut self, _now: Tick) -> Next {
        let slot = match self.first_ready() {
            Some(slot) => slot,
            None => match self.grant_slices() {
                Some(slot) => {
                    self.make_ready(slot);
                    slot
                }
                None => return Next::Idle,
            },
        };
        let (ticket, cost) = self.lottery.pop(slot);
        self.accounts[slot].credit -= cost.amount();
        Next::Turn(ticket)
    }

    fn done(&mut self, job: JobId, asked: Cost, actual: Cost) {
        if let Some(slot) = self.lottery.done(job).filter(|&slot| slot < self.accounts.len()) {
            let account = &mut self.accounts[slot];
            // Capped at one slice, so that refunds of many requests do not add up to a burst.
            account.credit = (account.credit + asked.amount() - actual.amount()).min(SLICE.amount());
            if account.credit > 0.0 && self.lottery.job_table.head(slot).is_some() {
                self.make_ready(slot);
            }
        }
    }

    fn waiting(&self) -> usize {
        self.lottery.job_table.waiting()
    }

    fn take_all(&mut self) -> Vec<Request> {
        self.lottery.take_all()
    }
}
