//! Turns: every request waits for one before it uses the store, and whose it is, is decided by policy.
//!
//! A turn covers the grant of space and the transfer, because the transfer is what is shared between jobs. Large
//! requests take a turn for every slice, so that none holds the device while others wait; each is asked for while the
//! one before it is still used (see [`Turns::ahead`]), because a job with one large request under way would otherwise
//! look idle after every slice, and be passed over. And a turn is held only while bytes move: see
//! [`Pace`](crate::pace::Pace).
//!
//! What was really done is what a job is charged for: see [`Turn::spare`].

use crate::device::Device;
use forebay_model::{Bytes, Error, ErrorKind, Job, JobId, Result};
use forebay_policy::share::{Discipline, Policy, Rate, Tariff};
use forebay_policy::{Cost, Next, Scheduler, Tick, Ticket};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Most bytes that move in one turn.
const SLICE: u32 = 1 << 20;
/// Fewest, on a slow device …
const THIN: u32 = 64 << 10;
/// … which is to be asked about so many times a second whose turn it is.
const DECISIONS: u64 = 200;
/// What a device is believed to do where nobody says: for the schedulers that plan with it.
const USUAL_RATE: u64 = 1 << 30;

/// How turns are handed out.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Who gets how much.
    pub(crate) policy: Policy,
    /// Who sees to it.
    pub(crate) discipline: Discipline,
    /// What a modelled device does in a second.
    pub(crate) device: Option<Bytes>,
    /// What an operation costs besides its bytes.
    pub(crate) tariff: Tariff,
    /// Most turns at once.
    pub(crate) limit: usize,
    /// Most requests that wait.
    pub(crate) most_waiting: usize,
    /// For schedulers that draw lots.
    pub(crate) seed: u64,
}

impl Rules {
    /// What the device is believed to do in a second.
    pub(crate) fn rate(&self) -> u64 {
        self.device.map_or(USUAL_RATE, |rate| rate.0)
    }

    /// Most bytes that move in one turn.
    fn slice(&self) -> u32 {
        let fits = self.device.map_or(u64::from(SLICE), |rate| rate.0 / DECISIONS);
        u32::try_from(fits).unwrap_or(SLICE).clamp(THIN, SLICE) & !4095
    }

    fn scheduler(&self, policy: &Policy) -> Box<dyn Scheduler> {
        self.discipline.scheduler(policy, self.seed, Rate(self.rate()))
    }
}

/// Hands out turns.
pub(crate) struct Turns {
    state: Mutex<State>,
    rules: Rules,
    /// The moment ticks are counted from.
    born: Instant,
}

struct State {
    scheduler: Box<dyn Scheduler>,
    policy: Policy,
    /// Whom the scheduler knows: told again to the next one when the policy becomes, or ceases to be, `fifo`.
    jobs: HashMap<JobId, Job>,
    device: Option<Device>,
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
    since: Tick,
    /// The place of the turn before it, where that is of the same request.
    place: Option<Weak<Place>>,
}

/// One of the places for turns, where two turns of a request may share it: the later one is not another transfer.
struct Place;

/// The right to use the store; given back when dropped.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    job: JobId,
    asked: Cost,
    actual: Cost,
    waited: Duration,
    /// Set where the turn after it may share its place.
    place: Option<Arc<Place>>,
    /// Whether its end gives the place to the next; not where a loop does that already.
    passes: bool,
}

impl Turn {
    /// How long it was waited for.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// So much less was done than was asked for.
    pub(crate) fn spare(&mut self, bytes: u64) {
        self.actual = Cost(self.actual.0.saturating_sub(bytes));
    }

    /// Nothing was done.
    fn forgo(mut self) {
        self.actual = Cost(0);
    }
}

/// What one gets who asks for a turn.
pub(crate) enum Entry {
    /// It is his turn.
    Now(Turn),
    /// It will be.
    Later(Promised),
}

/// A turn to come. Whoever drops it pays nothing, also if it has just come.
pub(crate) struct Promised(oneshot::Receiver<Turn>);

impl Drop for Promised {
    fn drop(&mut self) {
        self.0.close();
        if let Ok(turn) = self.0.try_recv() {
            turn.forgo();
        }
    }
}

impl Entry {
    /// Waits for the turn.
    pub(crate) async fn turn(self) -> Result<Turn> {
        match self {
            Entry::Now(turn) => Ok(turn),
            Entry::Later(mut soon) => (&mut soon.0).await.map_err(|_| ErrorKind::Busy.into()),
        }
    }

    /// The turn is not wanted any more.
    pub(crate) fn forgo(self) {
        match self {
            Entry::Now(turn) => turn.forgo(),
            Entry::Later(promised) => drop(promised),
        }
    }
}

impl Turns {
    /// Turns by these rules.
    pub(crate) fn new(rules: Rules) -> Arc<Turns> {
        let state = State {
            scheduler: rules.scheduler(&rules.policy),
            policy: rules.policy.clone(),
            jobs: HashMap::new(),
            device: rules.device.map(Device::new),
            waiters: HashMap::new(),
            running: 0,
            tickets: 0,
            alarm: None,
        };
        Arc::new(Turns { state: Mutex::new(state), rules, born: Instant::now() })
    }

    /// The rules it began with; the policy may be another by now.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// A job has come, or is described anew.
    pub(crate) fn join(&self, job: &Job) -> Result<()> {
        let mut state = self.lock();
        state.scheduler.join(job)?;
        state.jobs.insert(job.id(), job.clone());
        Ok(())
    }

    /// A job has gone.
    pub(crate) fn leave(&self, job: JobId) {
        let mut state = self.lock();
        state.jobs.remove(&job);
        state.scheduler.leave(job);
    }

    /// The policy that is followed.
    pub(crate) fn policy(&self) -> Policy {
        self.lock().policy.clone()
    }

    /// Follows another policy from now on; what waits goes on waiting, under the new one.
    pub(crate) fn set_policy(self: &Arc<Turns>, policy: &Policy) {
        let mut state = self.lock();
        if state.policy.is_fifo() == policy.is_fifo() {
            state.scheduler.set_policy(policy);
        } else {
            let mut next = self.rules.scheduler(policy);
            for job in state.jobs.values() {
                // It knew them all; should one not fit now, it shares with strangers.
                let _ = next.join(job);
            }
            for request in state.scheduler.take_all() {
                next.arrive(request.job, request.cost, request.ticket);
            }
            state.scheduler = next;
        }
        state.policy = policy.clone();
        drop(state);
        self.pass_on();
    }

    /// Shares of this server as the servers have agreed; none: the policy's own.
    pub(crate) fn assign(&self, shares: &[(JobId, f64)]) {
        self.lock().scheduler.assign(shares);
    }

    /// Most bytes that move in one turn.
    pub(crate) fn slice(&self) -> u32 {
        self.rules.slice()
    }

    /// The price of an operation that moves so many bytes.
    pub(crate) fn price(&self, bytes: u32) -> Cost {
        self.rules.tariff.of(Bytes(u64::from(bytes)))
    }

    /// Asks for a turn; refused when too many wait already.
    pub(crate) fn enter(self: &Arc<Turns>, job: JobId, cost: Cost) -> Result<Entry> {
        self.ask(self.lock(), job, cost, None)
    }

    /// Asks for the turn after this one, for the same request; nothing where nobody could be preferred.
    pub(crate) fn ahead(self: &Arc<Turns>, turn: &mut Turn, cost: Cost) -> Option<Entry> {
        let state = self.lock();
        if state.waiters.is_empty() && state.device.is_none() {
            return None;
        }
        let place = turn.place.get_or_insert_with(|| Arc::new(Place));
        // Where there is no room to wait now, there may be when this one has ended.
        self.ask(state, turn.job, cost, Some(Arc::downgrade(place))).ok()
    }

    fn ask(
        self: &Arc<Turns>,
        mut state: MutexGuard<'_, State>,
        job: JobId,
        cost: Cost,
        place: Option<Weak<Place>>,
    ) -> Result<Entry> {
        if state.scheduler.waiting() >= self.rules.most_waiting {
            let text = format!("{} requests wait for their turn already: try again", self.rules.most_waiting);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let now = self.now();
        state.tickets += 1;
        let ticket = Ticket(state.tickets);
        state.scheduler.arrive(job, cost, ticket);
        if state.waiters.is_empty() {
            if let Some(device) = &mut state.device {
                device.want(now);
            }
            match self.pick(&mut state, now) {
                Next::Turn(next) => {
                    assert_eq!(next, ticket, "who waits alone is next");
                    let place = state.begin(now, cost, place.as_ref());
                    return Ok(Entry::Now(self.turn(job, cost, Tick(0), place)));
                }
                Next::NotBefore(then) => self.ask_again(&mut state, then),
                Next::Nobody => {}
            }
        }
        let (tell, soon) = oneshot::channel();
        state.waiters.insert(ticket, Waiter { tell, job, cost, since: now, place });
        let free = state.running < self.rules.limit;
        drop(state);
        if free {
            // Others wait although there is room: they may not go yet, but this one may.
            self.pass_on();
        }
        Ok(Entry::Later(Promised(soon)))
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.lock().scheduler.waiting() as u64
    }

    /// Who is next, if there is room for anybody.
    fn pick(&self, state: &mut State, now: Tick) -> Next {
        if state.running >= self.rules.limit {
            return Next::Nobody;
        }
        if let Some(then) = state.device.and_then(|device| device.busy(now)) {
            return Next::NotBefore(then);
        }
        let next = state.scheduler.next(now);
        if let (Next::NotBefore(then), Some(device)) = (next, &mut state.device) {
            // It stands idle because nobody is let.
            device.want(then);
        }
        next
    }

    /// Gives free places to those whose turn it is.
    fn pass_on(self: &Arc<Turns>) {
        loop {
            let (waiter, turn) = {
                let mut state = self.lock();
                if state.waiters.is_empty() {
                    return;
                }
                let now = self.now();
                let ticket = match self.pick(&mut state, now) {
                    Next::Turn(ticket) => ticket,
                    Next::NotBefore(then) => return self.ask_again(&mut state, then),
                    Next::Nobody => return,
                };
                let waiter = state.waiters.remove(&ticket).expect("who waits is in the table");
                let place = state.begin(now, waiter.cost, waiter.place.as_ref());
                let turn = self.turn(waiter.job, waiter.cost, now.since(waiter.since), place);
                (waiter, turn)
            };
            // Who has gone away meanwhile leaves the place to the next, in this loop, and pays nothing.
            if let Err(mut turn) = waiter.tell.send(turn) {
                turn.passes = false;
                turn.forgo();
            }
        }
    }

    fn turn(self: &Arc<Turns>, job: JobId, cost: Cost, waited: Tick, place: Option<Arc<Place>>) -> Turn {
        let waited = Duration::from_nanos(waited.0);
        Turn { turns: self.clone(), job, asked: cost, actual: cost, waited, place, passes: true }
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

    /// The time since it began.
    pub(crate) fn now(&self) -> Tick {
        Tick(u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Begins a turn: in the place of the one before it, if that is still held.
    fn begin(&mut self, now: Tick, cost: Cost, place: Option<&Weak<Place>>) -> Option<Arc<Place>> {
        if let Some(device) = &mut self.device {
            device.occupy(now, cost);
        }
        let shared = place.and_then(Weak::upgrade);
        self.running += usize::from(shared.is_none());
        shared
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.lock();
            // Under the lock, so that the next turn either shares the place or finds it free.
            let ends = self.place.take().is_none_or(|place| Arc::into_inner(place).is_some());
            state.running -= usize::from(ends);
            state.scheduler.done(self.job, self.asked, self.actual);
            if let Some(device) = &mut state.device {
                device.give_back(Cost(self.asked.0.saturating_sub(self.actual.0)));
            }
        }
        if self.passes {
            self.turns.pass_on();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forebay_policy::OPERATION;

    pub(crate) fn rules(policy: &str, limit: usize, most_waiting: usize) -> Rules {
        Rules {
            policy: policy.parse().unwrap(),
            discipline: Discipline::Stride,
            device: None,
            tariff: Tariff::default(),
            limit,
            most_waiting,
            seed: 1,
        }
    }

    pub(crate) async fn one_turn() -> Turn {
        Turns::new(rules("fifo", 1, 1)).take(JobId(1), OPERATION).await.unwrap()
    }

    pub(crate) fn job(label: u64, nodes: u32) -> Job {
        Job { label: label.to_string(), user: "u".into(), group: "g".into(), nodes, priority: 1 }
    }

    impl Turns {
        pub(crate) fn running(&self) -> usize {
            self.lock().running
        }

        pub(crate) async fn take(self: &Arc<Turns>, job: JobId, cost: Cost) -> Result<Turn> {
            self.enter(job, cost)?.turn().await
        }
    }

    #[tokio::test]
    async fn turns_are_passed_on_in_order_and_the_queue_is_bounded() {
        let turns = Turns::new(rules("fifo", 2, 3));
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

    /// Serves two jobs that always wait, on a modelled device, and says how many of the turns were the first one's.
    async fn served(turns: &Arc<Turns>, rounds: u32) -> u32 {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for id in [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2] {
            let (turns, tell) = (turns.clone(), tell.clone());
            tokio::spawn(async move {
                while let Ok(turn) = turns.take(JobId(id), Cost(1000)).await {
                    drop(turn);
                    if tell.send(id).is_err() {
                        return;
                    }
                }
            });
        }
        let mut first = 0;
        for _ in 0..rounds {
            first += u32::from(told.recv().await == Some(1));
        }
        first
    }

    #[tokio::test(start_paused = true)]
    async fn a_modelled_device_is_shared_by_policy_and_the_policy_can_change() {
        let turns = Turns::new(Rules { device: Some(Bytes(100_000)), ..rules("size-fair", 16, 64) });
        turns.join(&job(1, 4)).unwrap();
        turns.join(&job(2, 1)).unwrap();
        let begin = Instant::now();
        let first = served(&turns, 500).await;
        assert!((398..=402).contains(&first), "{first} of 500 turns for the job of 4 nodes");
        let rate = 500_000.0 / begin.elapsed().as_secs_f64();
        assert!((98_000.0..=102_000.0).contains(&rate), "a second of the device holds {rate}");
        // Those of the round before have one more turn each.
        for (policy, low, high) in [("job-fair", 244, 256), ("fifo", 240, 260), ("size-fair", 392, 408)] {
            turns.set_policy(&policy.parse().unwrap());
            let first = served(&turns, 500).await;
            assert!((low..=high).contains(&first), "{policy}: {first} of 500");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_vanished_pays_nothing() {
        let turns = Turns::new(Rules { device: Some(Bytes(1_000)), ..rules("job-fair", 1, 64) });
        let held = turns.take(JobId(1), Cost(1)).await.unwrap();
        let gone: Vec<_> = (0..5).map(|_| turns.enter(JobId(2), Cost(1_000_000)).unwrap()).collect();
        let stays = turns.enter(JobId(3), Cost(1)).unwrap();
        drop(gone);
        let begin = Instant::now();
        drop(held);
        stays.turn().await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(1), "the device did nothing for who is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_may_not_begin_yet_is_given_when_it_may() {
        // Planned with the usual rate, a bucket is empty after the first request.
        let turns = Turns::new(Rules { discipline: Discipline::Tbf, ..rules("job-fair", 4, 8) });
        let start = Instant::now();
        let mut entries: Vec<_> = (0..3).map(|_| turns.enter(JobId(1), Cost(USUAL_RATE)).unwrap()).collect();
        for secs in 1..=3 {
            let turn = entries.remove(0).turn().await.unwrap();
            assert_eq!(start.elapsed().as_millis().div_ceil(1_000), secs, "a request a second");
            drop(turn);
        }
        assert_eq!((turns.waiting(), turns.lock().running), (0, 0));
    }
}
