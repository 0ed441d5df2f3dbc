//! Turns: every request waits for one before it uses the store, and the policy decides which request is next.
//!
//! A turn covers the grant of space and the transfer, because jobs share the transfer. Large requests take a turn for
//! every slice, so that none holds the device while others wait. Each turn is requested while the previous one is still
//! in use (see [`Turns::ahead`]); otherwise a job with one large request in progress would look idle after every slice
//! and be passed over. A turn is held only while bytes move: see [`Pace`](crate::pace::Pace).
//!
//! A job is charged for what was actually done: see [`Turn::spare`].

use crate::device::Device;
use crate::per_user::{UserCounts, UserLimit};
use forebay_model::{Bytes, Error, ErrorKind, Job, JobId, Result, Uid};
use forebay_policy::share::{Discipline, Policy, Rate, Tariff};
use forebay_policy::{Cost, Next, Scheduler, Tick, Ticket};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Maximum bytes that move in one turn.
const SLICE: u32 = 1 << 20;
/// Minimum bytes per turn, on a slow device …
const THIN: u32 = 64 << 10;
/// … for which the scheduler should decide this many times a second.
const DECISIONS: u64 = 200;
/// Assumed rate of an unspecified device, for schedulers that need one.
const USUAL_RATE: u64 = 1 << 30;

/// How turns are scheduled.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    /// The scheduler that enforces the policy.
    pub(crate) discipline: Discipline,
    /// Bytes per second of a modelled device.
    pub(crate) device: Option<Bytes>,
    /// The cost of an operation in addition to its bytes.
    pub(crate) tariff: Tariff,
    /// Maximum number of concurrent turns.
    pub(crate) limit: usize,
    /// Maximum number of waiting requests.
    pub(crate) most_waiting: usize,
    /// Maximum number of waiting requests per user.
    pub(crate) users: UserLimit,
    /// For randomized schedulers.
    pub(crate) seed: u64,
}

impl Rules {
    /// Assumed bytes per second of the device.
    pub(crate) fn rate(&self) -> u64 {
        self.device.map_or(USUAL_RATE, |rate| rate.0)
    }

    /// Maximum bytes that move in one turn.
    fn slice(&self) -> u32 {
        let fits = self.device.map_or(u64::from(SLICE), |rate| rate.0 / DECISIONS);
        u32::try_from(fits).unwrap_or(SLICE).clamp(THIN, SLICE) & !4095
    }

    fn scheduler(&self, policy: &Policy) -> Box<dyn Scheduler> {
        self.discipline.scheduler(policy, self.seed, Rate(self.rate()))
    }
}

/// Schedules turns.
pub(crate) struct Turns {
    state: Mutex<State>,
    rules: Rules,
    /// Ticks are counted from this moment.
    start: Instant,
}

struct State {
    scheduler: Box<dyn Scheduler>,
    policy: Policy,
    /// Jobs known to the scheduler; a new scheduler gets them when the policy changes to or from `fifo`.
    jobs: HashMap<JobId, Job>,
    device: Option<Device>,
    waiters: HashMap<Ticket, Waiter>,
    /// Waiting requests per user.
    users: UserCounts,
    running: usize,
    tickets: u64,
    /// When the scheduler is polled again because no request may start before.
    alarm: Option<Tick>,
}

struct Waiter {
    notify: oneshot::Sender<Turn>,
    job: JobId,
    uid: Uid,
    cost: Cost,
    since: Tick,
    /// The slot of the preceding turn of the same request.
    place: Option<Weak<TurnSlot>>,
}

/// A slot for a turn. Two consecutive turns of one request may share it, because they are one transfer.
struct TurnSlot;

/// The right to use the store; returned on drop.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    job: JobId,
    uid: Uid,
    requested: Cost,
    actual: Cost,
    waited: Duration,
    /// Set if the next turn may share its slot.
    place: Option<Arc<TurnSlot>>,
    /// Whether dropping it starts the next turn; false if a loop does that already.
    passes: bool,
}

impl Turn {
    /// How long the request waited for it.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// `bytes` fewer were moved than requested.
    pub(crate) fn spare(&mut self, bytes: u64) {
        self.actual = Cost(self.actual.0.saturating_sub(bytes));
    }

    /// Nothing was done.
    fn forgo(mut self) {
        self.actual = Cost(0);
    }
}

/// The result of a request for a turn.
pub(crate) enum Entry {
    /// The turn begins now.
    Now(Turn),
    /// The turn begins later.
    Later(Promised),
}

/// A future turn. Dropping it costs nothing, even if the turn has just begun.
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
    pub(crate) async fn turn(self) -> Result<Turn> {
        match self {
            Entry::Now(turn) => Ok(turn),
            Entry::Later(mut soon) => (&mut soon.0).await.map_err(|_| ErrorKind::Busy.into()),
        }
    }

    /// The turn is no longer needed.
    pub(crate) fn forgo(self) {
        match self {
            Entry::Now(turn) => turn.forgo(),
            Entry::Later(promised) => drop(promised),
        }
    }
}

impl Turns {
    pub(crate) fn new(rules: Rules) -> Arc<Turns> {
        let state = State {
            scheduler: rules.scheduler(&rules.policy),
            policy: rules.policy.clone(),
            jobs: HashMap::new(),
            device: rules.device.map(Device::new),
            waiters: HashMap::new(),
            users: UserCounts::new(rules.users),
            running: 0,
            tickets: 0,
            alarm: None,
        };
        Arc::new(Turns { state: Mutex::new(state), rules, start: Instant::now() })
    }

    /// The initial rules; the policy may have changed since.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Adds a job, or updates its description.
    pub(crate) fn join(&self, job: &Job) -> Result<()> {
        let mut state = self.lock();
        state.scheduler.join(job)?;
        state.jobs.insert(job.id(), job.clone());
        Ok(())
    }

    /// Removes a job.
    pub(crate) fn leave(&self, job: JobId) {
        let mut state = self.lock();
        state.jobs.remove(&job);
        state.scheduler.leave(job);
    }

    /// The current policy.
    pub(crate) fn policy(&self) -> Policy {
        self.lock().policy.clone()
    }

    /// Changes the policy; waiting requests keep waiting under the new one.
    pub(crate) fn set_policy(self: &Arc<Turns>, policy: &Policy) {
        let mut state = self.lock();
        if state.policy.is_fifo() == policy.is_fifo() {
            state.scheduler.set_policy(policy);
        } else {
            let mut next = self.rules.scheduler(policy);
            for job in state.jobs.values() {
                // The previous scheduler knew them all; a job that does not fit shares with unknown ones.
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

    /// Sets the shares of this server that the servers agreed on; if empty, the policy's own apply.
    pub(crate) fn assign(&self, shares: &[(JobId, f64)]) {
        self.lock().scheduler.assign(shares);
    }

    /// Maximum bytes that move in one turn.
    pub(crate) fn slice(&self) -> u32 {
        self.rules.slice()
    }

    /// The price of an operation that moves `bytes` bytes.
    pub(crate) fn price(&self, bytes: u32) -> Cost {
        self.rules.tariff.of(Bytes(u64::from(bytes)))
    }

    /// Requests a turn; refused if too many requests wait, in total or of this user.
    pub(crate) fn enter(self: &Arc<Turns>, (job, uid): (JobId, Uid), cost: Cost) -> Result<Entry> {
        self.enqueue(self.lock(), (job, uid), cost, None)
    }

    /// Requests the next turn for the same request; `None` if no other request could be preferred.
    pub(crate) fn ahead(self: &Arc<Turns>, turn: &mut Turn, cost: Cost) -> Option<Entry> {
        let state = self.lock();
        if state.waiters.is_empty() && state.device.is_none() {
            return None;
        }
        let place = turn.place.get_or_insert_with(|| Arc::new(TurnSlot));
        // If the queue is full now, there may be space when this turn ends.
        self.enqueue(state, (turn.job, turn.uid), cost, Some(Arc::downgrade(place))).ok()
    }

    fn enqueue(
        self: &Arc<Turns>,
        mut state: MutexGuard<'_, State>,
        (job, uid): (JobId, Uid),
        cost: Cost,
        place: Option<Weak<TurnSlot>>,
    ) -> Result<Entry> {
        if state.scheduler.waiting() >= self.rules.most_waiting {
            let text =
                format!("too many requests ({}) wait for their turn: try again", self.rules.most_waiting);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        if !state.waiters.is_empty() {
            state.users.check(uid)?;
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
                    assert_eq!(next, ticket, "a single waiter is next");
                    let place = state.begin(now, cost, place.as_ref());
                    return Ok(Entry::Now(self.turn((job, uid), cost, Tick(0), place)));
                }
                Next::NotBefore(then) => self.set_alarm(&mut state, then),
                Next::Idle => {}
            }
        }
        let (notify, soon) = oneshot::channel();
        state.users.add(uid).expect("a user without waiters, or one that was checked");
        state.waiters.insert(ticket, Waiter { notify, job, uid, cost, since: now, place });
        let free = state.running < self.rules.limit;
        drop(state);
        if free {
            // Other requests wait although a slot is free: they may not start yet, but this one may.
            self.pass_on();
        }
        Ok(Entry::Later(Promised(soon)))
    }

    /// Number of waiting requests.
    pub(crate) fn waiting(&self) -> u64 {
        self.lock().scheduler.waiting() as u64
    }

    /// The next request, if a slot is free.
    fn pick(&self, state: &mut State, now: Tick) -> Next {
        if state.running >= self.rules.limit {
            return Next::Idle;
        }
        if let Some(then) = state.device.and_then(|device| device.busy(now)) {
            return Next::NotBefore(then);
        }
        let next = state.scheduler.next(now);
        if let (Next::NotBefore(then), Some(device)) = (next, &mut state.device) {
            // The device is idle because no request may start.
            device.want(then);
        }
        next
    }

    /// Starts waiting requests in free slots.
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
                    Next::NotBefore(then) => return self.set_alarm(&mut state, then),
                    Next::Idle => return,
                };
                let waiter = state.waiters.remove(&ticket).expect("waiters are in the table");
                state.users.remove(waiter.uid);
                let place = state.begin(now, waiter.cost, waiter.place.as_ref());
                let turn = self.turn((waiter.job, waiter.uid), waiter.cost, now.since(waiter.since), place);
                (waiter, turn)
            };
            // If the waiter is gone, this loop gives the slot to the next one, and the job pays nothing.
            if let Err(mut turn) = waiter.notify.send(turn) {
                turn.passes = false;
                turn.forgo();
            }
        }
    }

    fn turn(
        self: &Arc<Turns>,
        (job, uid): (JobId, Uid),
        cost: Cost,
        waited: Tick,
        place: Option<Arc<TurnSlot>>,
    ) -> Turn {
        let waited = Duration::from_nanos(waited.0);
        Turn { turns: self.clone(), job, uid, requested: cost, actual: cost, waited, place, passes: true }
    }

    /// Polls the scheduler again at `then`, unless an earlier poll is due.
    fn set_alarm(self: &Arc<Turns>, state: &mut State, then: Tick) {
        if state.alarm.is_some_and(|alarm| alarm <= then) {
            return;
        }
        state.alarm = Some(then);
        let turns = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(turns.start + Duration::from_nanos(then.0)).await;
            {
                let mut state = turns.lock();
                if state.alarm == Some(then) {
                    state.alarm = None;
                }
            }
            turns.pass_on();
        });
    }

    /// Time since the start.
    pub(crate) fn now(&self) -> Tick {
        Tick(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Begins a turn, in the slot of the preceding turn if that is still held.
    fn begin(&mut self, now: Tick, cost: Cost, place: Option<&Weak<TurnSlot>>) -> Option<Arc<TurnSlot>> {
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
            // Under the lock, so that the next turn either shares the slot or finds it free.
            let ends = self.place.take().is_none_or(|place| Arc::into_inner(place).is_some());
            state.running -= usize::from(ends);
            state.scheduler.done(self.job, self.requested, self.actual);
            if let Some(device) = &mut state.device {
                device.give_back(Cost(self.requested.0.saturating_sub(self.actual.0)));
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
    use crate::per_user::tests::UNPRIVILEGED;
    use forebay_policy::OPERATION;

    pub(crate) fn rules(policy: &str, limit: usize, most_waiting: usize) -> Rules {
        Rules {
            policy: policy.parse().unwrap(),
            discipline: Discipline::Stride,
            device: None,
            tariff: Tariff::default(),
            limit,
            most_waiting,
            users: UNPRIVILEGED,
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
            self.enter((job, Uid(5)), cost)?.turn().await
        }
    }

    #[tokio::test]
    async fn turns_are_given_in_order_and_the_queue_is_bounded() {
        let turns = Turns::new(rules("fifo", 2, 3));
        let first = turns.take(JobId(1), OPERATION).await.unwrap();
        let second = turns.take(JobId(1), OPERATION).await.unwrap();
        let mut queue: Vec<_> = (0..3).map(|_| turns.enter((JobId(2), Uid(5)), OPERATION).unwrap()).collect();
        assert_eq!(turns.waiting(), 3);
        assert_eq!(
            turns.enter((JobId(3), Uid(5)), OPERATION).err().expect("refused").kind(),
            ErrorKind::Busy
        );
        // The first request in the queue is dropped; its slot goes to the next.
        drop(queue.remove(0));
        drop(first);
        assert_eq!(turns.waiting(), 1);
        let third = queue.remove(0).turn().await.unwrap();
        drop((second, third));
        queue.remove(0).turn().await.unwrap();
        assert_eq!((turns.waiting(), turns.lock().running), (0, 0));
    }

    /// Serves two jobs that always wait, on a modelled device, and returns the first job's number of turns.
    async fn served(turns: &Arc<Turns>, rounds: u32) -> u32 {
        let (notify, mut finished) = tokio::sync::mpsc::unbounded_channel();
        for id in [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2] {
            let (turns, notify) = (turns.clone(), notify.clone());
            tokio::spawn(async move {
                while let Ok(turn) = turns.take(JobId(id), Cost(1000)).await {
                    drop(turn);
                    if notify.send(id).is_err() {
                        return;
                    }
                }
            });
        }
        let mut first = 0;
        for _ in 0..rounds {
            first += u32::from(finished.recv().await == Some(1));
        }
        first
    }

    #[tokio::test(start_paused = true)]
    async fn modelled_device_is_shared_by_policy_and_policy_can_change() {
        let turns = Turns::new(Rules { device: Some(Bytes(100_000)), ..rules("size-fair", 16, 64) });
        turns.join(&job(1, 4)).unwrap();
        turns.join(&job(2, 1)).unwrap();
        let begin = Instant::now();
        let first = served(&turns, 500).await;
        assert!((398..=402).contains(&first), "{first} of 500 turns for the job of 4 nodes");
        let rate = 500_000.0 / begin.elapsed().as_secs_f64();
        assert!((98_000.0..=102_000.0).contains(&rate), "a second of the device holds {rate}");
        // Each request of the previous round has one more turn.
        for (policy, low, high) in [("job-fair", 244, 256), ("fifo", 240, 260), ("size-fair", 392, 408)] {
            turns.set_policy(&policy.parse().unwrap());
            let first = served(&turns, 500).await;
            assert!((low..=high).contains(&first), "{policy}: {first} of 500");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_request_costs_its_job_nothing() {
        let turns = Turns::new(Rules { device: Some(Bytes(1_000)), ..rules("job-fair", 1, 64) });
        let held = turns.take(JobId(1), Cost(1)).await.unwrap();
        let gone: Vec<_> =
            (0..5).map(|_| turns.enter((JobId(2), Uid(5)), Cost(1_000_000)).unwrap()).collect();
        let stays = turns.enter((JobId(3), Uid(5)), Cost(1)).unwrap();
        drop(gone);
        let begin = Instant::now();
        drop(held);
        stays.turn().await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(1), "the device did no work for a dropped request");
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_turn_is_given_when_it_may_begin() {
        // With the default rate, the token bucket is empty after the first request.
        let turns = Turns::new(Rules { discipline: Discipline::Tbf, ..rules("job-fair", 4, 8) });
        let start = Instant::now();
        let mut entries: Vec<_> =
            (0..3).map(|_| turns.enter((JobId(1), Uid(5)), Cost(USUAL_RATE)).unwrap()).collect();
        for secs in 1..=3 {
            let turn = entries.remove(0).turn().await.unwrap();
            assert_eq!(start.elapsed().as_millis().div_ceil(1_000), secs, "a request a second");
            drop(turn);
        }
        assert_eq!((turns.waiting(), turns.lock().running), (0, 0));
    }

    #[tokio::test]
    async fn waiting_requests_per_user_are_limited() {
        let users =
            UserLimit { what: "requests that wait", key: "user_waiting", most: 2, owner: Some(Uid(1)) };
        let turns = Turns::new(Rules { users, ..rules("job-fair", 1, 9) });
        let enter = |uid| turns.enter((JobId(u64::from(uid)), Uid(uid)), OPERATION);
        let held = enter(5).unwrap().turn().await.unwrap();
        let mut waiting: Vec<Entry> = (0..2).map(|_| enter(5).unwrap()).collect();
        let refused = enter(5).err().expect("the third");
        assert!(refused.kind() == ErrorKind::Busy && refused.to_string().contains("limits.user_waiting"));
        waiting.extend([6, 1, 1, 1].map(|uid| enter(uid).unwrap()));
        drop(held);
        for entry in waiting {
            entry.turn().await.unwrap();
        }
        assert_eq!((turns.waiting(), turns.lock().users.of(Uid(5))), (0, 0));
        assert!(enter(5).is_ok());
    }
}
