//! Turns: every request waits for one before it uses the store, and whose it is, is decided by policy.
//!
//! A turn covers the grant of space and the transfer, because the transfer is what is shared between jobs. But a
//! turn is held only while bytes move: a transfer that stands still for longer than the configured stall gives its
//! turn back and goes on without one (see [`Pace`]). So however many clients stop in mid-payload, others wait for
//! them at most that long, once; what such a client still holds is its reservation, until that is voided.

use forebay_model::{Error, ErrorKind, JobId, Result};
use forebay_policy::{Cost, Next, Scheduler, Tick, Ticket};
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

/// Hands out turns.
pub(crate) struct Turns {
    state: Mutex<State>,
    limit: usize,
    most_waiting: usize,
    /// The moment ticks are counted from.
    born: Instant,
}

struct State {
    scheduler: Box<dyn Scheduler>,
    waiters: HashMap<Ticket, Waiter>,
    running: usize,
    tickets: u64,
    /// When somebody will ask again because nobody may go before.
    alarm: Option<Tick>,
}

struct Waiter {
    tell: oneshot::Sender<Turn>,
    job: JobId,
    cost: Cost,
}

/// The right to use the store; given back when dropped.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    job: JobId,
    cost: Cost,
    /// Whether its end gives the place to the next; not where a loop does that already.
    passes: bool,
}

/// What one gets who asks for a turn.
pub(crate) enum Entry {
    /// It is his turn.
    Now(Turn),
    /// It will be.
    Later(oneshot::Receiver<Turn>),
}

impl Entry {
    /// Waits for the turn.
    pub(crate) async fn turn(self) -> Result<Turn> {
        match self {
            Entry::Now(turn) => Ok(turn),
            Entry::Later(soon) => soon.await.map_err(|_| ErrorKind::Busy.into()),
        }
    }
}

impl Turns {
    /// At most `limit` turns at once, at most `most_waiting` requests in the queue.
    pub(crate) fn new(scheduler: Box<dyn Scheduler>, limit: usize, most_waiting: usize) -> Arc<Turns> {
        let state = State { scheduler, waiters: HashMap::new(), running: 0, tickets: 0, alarm: None };
        Arc::new(Turns { state: Mutex::new(state), limit, most_waiting, born: Instant::now() })
    }

    /// Asks for a turn; refused when too many wait already.
    pub(crate) fn enter(self: &Arc<Turns>, job: JobId, cost: Cost) -> Result<Entry> {
        let mut state = self.lock();
        if state.scheduler.waiting() >= self.most_waiting {
            let text = format!("{} requests wait for their turn already: try again", self.most_waiting);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        state.tickets += 1;
        let ticket = Ticket(state.tickets);
        state.scheduler.arrive(job, cost, ticket);
        if state.running < self.limit && state.waiters.is_empty() {
            match state.scheduler.next(self.now()) {
                Next::Turn(next) => {
                    assert_eq!(next, ticket, "who waits alone is next");
                    state.running += 1;
                    return Ok(Entry::Now(Turn { turns: self.clone(), job, cost, passes: true }));
                }
                Next::NotBefore(then) => self.ask_again(&mut state, then),
                Next::Nobody => unreachable!("a request waits"),
            }
        }
        let (tell, soon) = oneshot::channel();
        state.waiters.insert(ticket, Waiter { tell, job, cost });
        let free = state.running < self.limit;
        drop(state);
        if free {
            // Others wait although there is room: they may not go yet, but this one may.
            self.pass_on();
        }
        Ok(Entry::Later(soon))
    }

    /// Waits for a turn.
    pub(crate) async fn take(self: &Arc<Turns>, job: JobId, cost: Cost) -> Result<Turn> {
        self.enter(job, cost)?.turn().await
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.lock().scheduler.waiting() as u64
    }

    /// Gives free places to those whose turn it is.
    fn pass_on(self: &Arc<Turns>) {
        loop {
            let (waiter, turn) = {
                let mut state = self.lock();
                if state.running >= self.limit {
                    return;
                }
                let ticket = match state.scheduler.next(self.now()) {
                    Next::Turn(ticket) => ticket,
                    Next::NotBefore(then) => return self.ask_again(&mut state, then),
                    Next::Nobody => return,
                };
                let waiter = state.waiters.remove(&ticket).expect("who waits is in the table");
                state.running += 1;
                let turn = Turn { turns: self.clone(), job: waiter.job, cost: waiter.cost, passes: true };
                (waiter, turn)
            };
            // Who has gone away meanwhile leaves the place to the next, in this loop.
            if let Err(mut turn) = waiter.tell.send(turn) {
                turn.passes = false;
            }
        }
    }

    /// Sees to it that somebody asks again at `then`, unless somebody will earlier.
    fn ask_again(self: &Arc<Turns>, state: &mut State, then: Tick) {
        if state.alarm.is_some_and(|alarm| alarm <= then) {
            return;
        }
        state.alarm = Some(then);
        let turns = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(turns.born + Duration::from_nanos(then.0)).await;
            {
                let mut state = turns.lock();
                if state.alarm == Some(then) {
                    state.alarm = None;
                }
            }
            turns.pass_on();
        });
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.lock();
            state.running -= 1;
            state.scheduler.done(self.job, self.cost, self.cost);
        }
        if self.passes {
            self.turns.pass_on();
        }
    }
}

/// A turn that is given back when the transfer it covers stands still.
pub(crate) struct Pace {
    turn: Option<Turn>,
    stall: Duration,
    deadline: Instant,
}

impl Pace {
    /// Holds `turn` while bytes move, and gives up at `deadline`.
    pub(crate) fn new(turn: Turn, stall: Duration, deadline: Instant) -> Pace {
        Pace { turn: Some(turn), stall, deadline }
    }

    /// Performs one step of the transfer; `None` if the deadline passed.
    pub(crate) async fn step<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        let mut step = pin!(step);
        if self.turn.is_some() {
            if let Ok(done) = timeout(self.stall, &mut step).await {
                return Some(done);
            }
            self.turn = None;
        }
        timeout_at(self.deadline, step).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::share::{Rate, Tbf};
    use forebay_policy::{Fifo, OPERATION};

    fn turns(limit: usize, waiting: usize) -> Arc<Turns> {
        Turns::new(Box::new(Fifo::default()), limit, waiting)
    }

    #[tokio::test]
    async fn turns_are_passed_on_in_order_and_the_queue_is_bounded() {
        let turns = turns(2, 3);
        let first = turns.take(JobId(1), OPERATION).await.unwrap();
        let second = turns.take(JobId(1), OPERATION).await.unwrap();
        let mut queue: Vec<_> = (0..3).map(|_| turns.enter(JobId(2), OPERATION).unwrap()).collect();
        assert_eq!(turns.waiting(), 3);
        assert_eq!(turns.enter(JobId(3), OPERATION).err().expect("refused").kind(), ErrorKind::Busy);
        // The first in the queue loses interest: its place goes to the next.
        drop(queue.remove(0));
        drop(first);
        assert_eq!(turns.waiting(), 1);
        let third = queue.remove(0).turn().await.unwrap();
        drop((second, third));
        queue.remove(0).turn().await.unwrap();
        assert_eq!((turns.waiting(), turns.lock().running), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_transfer_that_stands_still_gives_its_turn_back() {
        let turns = turns(1, 8);
        let turn = turns.take(JobId(1), OPERATION).await.unwrap();
        let stall = Duration::from_millis(20);
        let mut pace = Pace::new(turn, stall, Instant::now() + Duration::from_secs(30));
        assert_eq!(pace.step(async { 1 }).await, Some(1));
        assert_eq!(turns.lock().running, 1);
        assert_eq!(pace.step(tokio::time::sleep(Duration::from_secs(1))).await, Some(()));
        assert_eq!(turns.lock().running, 0);
        assert_eq!(pace.step(std::future::pending::<()>()).await, None, "the deadline ends it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_may_not_begin_yet_is_given_when_it_may() {
        // A device of 1 MiB/s: the bucket of two jobs' worth is empty after the first request.
        let policy = "job-fair".parse().unwrap();
        let turns = Turns::new(Box::new(Tbf::new(&policy, Rate(1 << 20))), 4, 8);
        let start = Instant::now();
        let mut entries: Vec<_> = (0..3).map(|_| turns.enter(JobId(1), Cost(1 << 20)).unwrap()).collect();
        for secs in 1..=3 {
            let turn = entries.remove(0).turn().await.unwrap();
            assert_eq!(start.elapsed().as_millis().div_ceil(1_000), secs, "a request a second");
            drop(turn);
        }
        assert_eq!((turns.waiting(), turns.lock().running), (0, 0));
    }
}
