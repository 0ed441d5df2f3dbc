//! Statistical tokens: draws over segments of [0, 1).

use super::book::{Book, Joined};
use super::cost::{Cost, Tick, Ticket};
use super::dice::Dice;
use super::policy::Policy;
use super::scheduler::{Next, Request, Scheduler};
use super::sums::Sums;
use super::tree::Tree;
use forebay_model::{Job, JobId, Result};
use std::collections::VecDeque;

/// What one draw of [`Tokens`] is worth.
pub const SLICE: Cost = Cost(256 << 10);

/// A job that has waited for so many times the draws that its share should take is served without one: by chance
/// that happens less than once in a million times (e⁻¹⁶).
const PATIENCE: f64 = 16.0;

/// The jobs of both drawing schedulers.
#[derive(Debug)]
struct Urn {
    book: Book,
    tree: Tree<Sums>,
    dice: Dice,
}

impl Urn {
    fn new(policy: &Policy, seed: u64) -> Urn {
        Urn { book: Book::new(), tree: Tree::new(policy), dice: Dice::new(seed) }
    }

    fn join(&mut self, job: &Job) -> Result<Joined> {
        let joined = self.book.join(job)?;
        match joined {
            Joined::New(slot) => self.tree.add(&self.book, slot),
            Joined::Changed(slot) => {
                self.tree.remove(slot, self.book.head(slot).is_some());
                self.tree.add(&self.book, slot);
            }
            Joined::Same => {}
        }
        Ok(joined)
    }

    fn leave(&mut self, job: JobId) {
        if let Some(slot) = self.book.leave(job) {
            self.tree.remove(slot, false);
        }
    }

    fn set_policy(&mut self, policy: &Policy) {
        let slots: Vec<usize> = self.book.members().collect();
        self.tree.rebuild(policy, &self.book, &slots);
    }

    fn assign(&mut self, shares: &[(JobId, f64)]) {
        let shares = self.book.by_slot(shares);
        self.tree.assign(&self.book, &shares);
    }

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) -> (usize, bool) {
        let (slot, first) = self.book.arrive(job, cost, ticket);
        if !self.tree.has(slot) {
            self.tree.add(&self.book, slot);
        } else if first {
            self.tree.wake(slot);
        }
        (slot, first)
    }

    fn draw(&mut self) -> Option<usize> {
        self.tree.pick(&mut self.dice)
    }

    fn pop(&mut self, slot: usize) -> (Ticket, Cost) {
        let (ticket, cost, last) = self.book.pop(slot);
        if last {
            self.tree.sleep(slot);
        }
        (ticket, cost)
    }

    /// The slot of the request, unless its job is gone with it.
    fn done(&mut self, job: JobId) -> Option<usize> {
        let (slot, gone) = self.book.done(job);
        if gone {
            self.tree.remove(slot, false);
        }
        (!gone).then_some(slot)
    }

    fn take_all(&mut self) -> Vec<Request> {
        for slot in self.book.members().collect::<Vec<_>>() {
            if self.book.head(slot).is_some() {
                self.tree.sleep(slot);
            }
        }
        self.book.take_all()
    }
}

/// The draw as published: every request is drawn for, whatever it costs, so a job with small requests gets less
/// than its share. For comparison only.
///
/// **Bound.** None that is certain: a job with share *s* of those that wait is passed over by *k* requests with
/// probability (1 − *s*)ᵏ.
#[derive(Debug)]
pub struct Draws {
    urn: Urn,
}

impl Draws {
    /// Shares as this policy says, lots from this seed.
    #[must_use]
    pub fn new(policy: &Policy, seed: u64) -> Draws {
        Draws { urn: Urn::new(policy, seed) }
    }
}

impl Scheduler for Draws {
    fn join(&mut self, job: &Job) -> Result<()> {
        self.urn.join(job).map(|_| ())
    }

    fn leave(&mut self, job: JobId) {
        self.urn.leave(job);
    }

    fn set_policy(&mut self, policy: &Policy) {
        self.urn.set_policy(policy);
    }

    fn assign(&mut self, shares: &[(JobId, f64)]) {
        self.urn.assign(shares);
    }

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) {
        self.urn.arrive(job, cost, ticket);
    }

    fn next(&mut self, _now: Tick) -> Next {
        self.urn.draw().map_or(Next::Nobody, |slot| Next::Turn(self.urn.pop(slot).0))
    }

    fn done(&mut self, job: JobId, _asked: Cost, _actual: Cost) {
        self.urn.done(job);
    }

    fn waiting(&self) -> usize {
        self.urn.book.waiting()
    }

    fn take_all(&mut self) -> Vec<Request> {
        self.urn.take_all()
    }
}

/// Draws lots for slices of work instead of requests, so that what is *done* follows the shares.
///
/// Who is drawn gets credit for one [`SLICE`] and is served while any of it is left. The last request may overdraw
/// it; the debt is paid with later slices before the job is served again. A job that stops asking keeps what is
/// left of its slice, and is served from it when it comes back: a client with one request at a time gets its share
/// too.
///
/// **Bound.** Of *n* jobs that wait, one with share *s* is given a slice at least once in 16/*s* + *n* draws: every
/// draw looks at one waiting job in turn, and gives the slice to it if chance has not for that long. A job owes at
/// most its largest request, *c*, so it is served again after ⌈*c*/slice⌉ + 1 slices at the latest.
#[derive(Debug)]
pub struct Tokens {
    urn: Urn,
    /// By slot.
    purses: Vec<Purse>,
    /// Jobs with credit and requests, in the order in which they got them. May hold some that have none any more.
    ready: VecDeque<usize>,
    /// Jobs to look after, in turn. May hold some that no longer wait.
    round: VecDeque<usize>,
    drawn: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Purse {
    credit: f64,
    /// The draw that was its last, or at which it began to wait.
    last: u64,
    ready: bool,
    in_round: bool,
}

impl Tokens {
    /// Shares as this policy says, lots from this seed.
    #[must_use]
    pub fn new(policy: &Policy, seed: u64) -> Tokens {
        Tokens {
            urn: Urn::new(policy, seed),
            purses: Vec::new(),
            ready: VecDeque::new(),
            round: VecDeque::new(),
            drawn: 0,
        }
    }

    fn make_ready(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.purses[slot].ready, true) {
            self.ready.push_back(slot);
        }
    }

    /// The first job with credit and requests.
    fn first_ready(&mut self) -> Option<usize> {
        while let Some(&slot) = self.ready.front() {
            if self.purses[slot].credit > 0.0 && self.urn.book.head(slot).is_some() {
                return Some(slot);
            }
            self.purses[slot].ready = false;
            self.ready.pop_front();
        }
        None
    }

    /// Looks at the next waiting job; it, if it has waited too long.
    fn neglected(&mut self) -> Option<usize> {
        while let Some(slot) = self.round.pop_front() {
            if self.urn.book.head(slot).is_none() {
                self.purses[slot].in_round = false;
                continue;
            }
            self.round.push_back(slot);
            let waited = (self.drawn - self.purses[slot].last) as f64;
            // Most have not waited long: no need to know their share.
            let long = waited > PATIENCE && waited > PATIENCE / self.urn.tree.share(slot);
            return long.then_some(slot);
        }
        None
    }

    /// Gives out slices until somebody can be served with his.
    fn deal(&mut self) -> Option<usize> {
        let most = 64 + self.urn.tree.awake();
        for _ in 0..most {
            let slot = match self.neglected() {
                Some(slot) => slot,
                None => self.urn.draw()?,
            };
            self.drawn += 1;
            let purse = &mut self.purses[slot];
            purse.last = self.drawn;
            purse.credit += SLICE.amount();
            if self.urn.tree.awake() == 1 {
                // Nobody else wants it: the debt is of no interest to anyone.
                purse.credit = SLICE.amount();
            }
            if purse.credit > 0.0 {
                return Some(slot);
            }
        }
        self.forgive()
    }

    /// When everybody owes so much that draws lead nowhere soon: pays to all, by share, what that many draws would on
    /// average, until the first owes nothing.
    fn forgive(&mut self) -> Option<usize> {
        let waiting: Vec<(usize, f64)> = self
            .round
            .iter()
            .filter(|&&slot| self.urn.book.head(slot).is_some())
            .map(|&slot| (slot, self.urn.tree.share(slot)))
            .collect();
        let draws = |&(slot, share): &(usize, f64)| -self.purses[slot].credit / share;
        let first = waiting.iter().copied().min_by(|one, other| draws(one).total_cmp(&draws(other)))?;
        let paid = draws(&first);
        for (slot, share) in waiting {
            self.purses[slot].credit += paid * share;
        }
        self.purses[first.0].credit = SLICE.amount();
        self.purses[first.0].last = self.drawn;
        Some(first.0)
    }
}

impl Scheduler for Tokens {
    fn join(&mut self, job: &Job) -> Result<()> {
        let joined = self.urn.join(job)?;
        self.purses.resize(self.urn.book.size(), Purse::default());
        if let Joined::New(slot) = joined {
            let purse = &mut self.purses[slot];
            (purse.credit, purse.last) = (0.0, self.drawn);
        }
        Ok(())
    }

    fn leave(&mut self, job: JobId) {
        self.urn.leave(job);
    }

    fn set_policy(&mut self, policy: &Policy) {
        self.urn.set_policy(policy);
    }

    fn assign(&mut self, shares: &[(JobId, f64)]) {
        self.urn.assign(shares);
    }

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) {
        let (slot, first) = self.urn.arrive(job, cost, ticket);
        if slot >= self.purses.len() {
            self.purses.resize(slot + 1, Purse::default());
        }
        if !first {
            return;
        }
        let purse = &mut self.purses[slot];
        purse.last = self.drawn;
        if !std::mem::replace(&mut purse.in_round, true) {
            self.round.push_back(slot);
        }
        if purse.credit > 0.0 {
            self.make_ready(slot);
        }
    }

    fn next(&mut self, _now: Tick) -> Next {
        let slot = match self.first_ready() {
            Some(slot) => slot,
            None => match self.deal() {
                Some(slot) => {
                    self.make_ready(slot);
                    slot
                }
                None => return Next::Nobody,
            },
        };
        let (ticket, cost) = self.urn.pop(slot);
        self.purses[slot].credit -= cost.amount();
        Next::Turn(ticket)
    }

    fn done(&mut self, job: JobId, asked: Cost, actual: Cost) {
        if let Some(slot) = self.urn.done(job).filter(|&slot| slot < self.purses.len()) {
            let purse = &mut self.purses[slot];
            // Never more than a slice: what came back from many requests at once is not a burst to come.
            purse.credit = (purse.credit + asked.amount() - actual.amount()).min(SLICE.amount());
            if purse.credit > 0.0 && self.urn.book.head(slot).is_some() {
                self.make_ready(slot);
            }
        }
    }

    fn waiting(&self) -> usize {
        self.urn.book.waiting()
    }

    fn take_all(&mut self) -> Vec<Request> {
        self.urn.take_all()
    }
}
