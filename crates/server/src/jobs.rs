//! The job monitor: which jobs are connected, what each has done, and whether it is active.
//!
//! A job appears with its first connection, with those parts of its description that the server trusts ([`Trust`]). It
//! is *active* while it requests turns (within the last [`LATELY`]) or waits for one, *idle* while it is connected, and
//! *gone* with its last connection. A clean exit closes that connection. If a machine dies silently, the heartbeats on
//! the client's control connection stop, and the server closes it after `times.session`. An idle job's share is
//! redistributed at once, and a job that is gone leaves the scheduler; its counts stay until the table needs the space.

use crate::log_limit::{LogLimit, about_peer};
use crate::turns::{Entry, Turn, Turns};
use forebay_model::{Error, ErrorKind, Job, JobId, Result, Stamp, Uid};
use forebay_policy::Cost;
use forebay_policy::share::{Caller, Doubt, Trust, due_among, shares};
use forebay_wire::{JobState, JobStatus};
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum number of jobs in one status answer, so that it fits a frame.
const SHOWN: usize = 512;
/// A job that requested a turn within this time is active.
pub(crate) const LATELY: Duration = Duration::from_secs(1);

/// Maximum number of requests of one connection that wait for space beside others; far fewer than may be in flight.
const PLACES: usize = 16;

/// All recently seen jobs. When the table is full, the job that has been gone for longest is evicted.
pub(crate) struct Jobs {
    shared: Arc<Shared>,
    /// The shares of this server per job, once the servers have agreed.
    agreed: Mutex<Option<HashMap<JobId, f64>>>,
    limit: usize,
    trust: Trust,
    log: Arc<LogLimit>,
}

struct Shared {
    table: Mutex<HashMap<JobId, Arc<Counts>>>,
    turns: Arc<Turns>,
}

struct Counts {
    described: Mutex<Described>,
    written: AtomicU64,
    /// Bytes of `written` that bypassed the buffer.
    direct: AtomicU64,
    read: AtomicU64,
    requests: AtomicU64,
    seen: AtomicU64,
    connections: AtomicU32,
    operations: AtomicU64,
    waited: AtomicU64,
    waiting: AtomicU32,
    /// When it last requested a turn.
    last_enter: AtomicU64,
    recent: Mutex<Recent>,
}

struct Described {
    job: Job,
    /// Whether a privileged user has vouched for it.
    vouched: bool,
}

#[derive(Default)]
struct Recent {
    before: u64,
    moved: u64,
}

/// One connection of a job.
pub(crate) struct Membership {
    id: JobId,
    /// The user of the connection.
    uid: Uid,
    counts: Arc<Counts>,
    shared: Arc<Shared>,
    /// Permits for requests that wait for space beside others on the same connection.
    places: Semaphore,
}

impl Jobs {
    pub(crate) fn new(limit: usize, trust: Trust, turns: Arc<Turns>, log: Arc<LogLimit>) -> Jobs {
        Jobs {
            shared: Arc::new(Shared { table: Mutex::default(), turns }),
            agreed: Mutex::default(),
            limit,
            trust,
            log,
        }
    }

    /// Counts a new connection of a job, as far as the server trusts its claim.
    pub(crate) fn join(&self, claim: &Job, (uid, caller): (Uid, &Caller), now: Stamp) -> Result<Membership> {
        let mut table = self.shared.lock();
        let (job, doubts) = self.believe(&table, claim, caller);
        if !doubts.is_empty() {
            let user = &caller.user;
            about_peer!(self.log, %user, claimed = ?claim, believed = ?job, ?doubts, "did not trust all claims of a job");
        }
        let id = job.id();
        if !table.contains_key(&id) && table.len() >= self.limit {
            make_room(&mut table, self.limit)?;
        }
        self.shared.turns.join(&job)?;
        let counts = table.entry(id).or_insert_with(|| Arc::new(Counts::new(&job)));
        let vouched = caller.vouches || counts.described().vouched;
        *counts.described() = Described { job, vouched };
        counts.connections.fetch_add(1, Ordering::Relaxed);
        counts.seen.fetch_max(now.0, Ordering::Relaxed);
        let places = Semaphore::new(PLACES);
        Ok(Membership { id, uid, counts: counts.clone(), shared: self.shared.clone(), places })
    }

    fn believe(
        &self,
        table: &HashMap<JobId, Arc<Counts>>,
        claim: &Job,
        caller: &Caller,
    ) -> (Job, Vec<Doubt>) {
        let known = |id: JobId| {
            let counts = table.get(&id)?;
            let described = counts.described();
            // Job numbers are reused: a job that is gone keeps its name only if a privileged user vouched for it.
            let holds = described.vouched || counts.connections.load(Ordering::Relaxed) > 0;
            holds.then(|| described.job.clone())
        };
        let (job, doubts) = self.trust.believe(claim, caller, known(claim.id()).as_ref());
        if !doubts.contains(&Doubt::Name) {
            return (job, doubts);
        }
        // The job may also be known under its other name.
        let (job, more) = self.trust.believe(&job, caller, known(job.id()).as_ref());
        (job, [doubts, more].concat())
    }

    /// All jobs, with the share each is due.
    pub(crate) fn all(&self, now: Stamp, due: &HashMap<JobId, f64>) -> Vec<JobStatus> {
        self.shared.lock().iter().map(|(&id, counts)| counts.status(id, now, due)).collect()
    }

    /// The busiest jobs, by their cost, so that jobs with metadata operations only are shown too.
    pub(crate) fn status(&self, now: Stamp, due: &HashMap<JobId, f64>) -> Vec<JobStatus> {
        let price = self.shared.turns.price(0).0;
        let cost = |job: &JobStatus| {
            let bytes = job.written.saturating_add(job.read);
            bytes.saturating_add(job.operations.saturating_mul(price))
        };
        let mut jobs = self.all(now, due);
        jobs.sort_by_key(|job| (Reverse(cost(job)), job.id));
        jobs.truncate(SHOWN);
        jobs
    }

    /// The known ones of these jobs.
    pub(crate) fn some(&self, ids: &[JobId]) -> Vec<Job> {
        let table = self.shared.lock();
        ids.iter().filter_map(|id| Some(table.get(id)?.described().job.clone())).collect()
    }

    /// Display names of the known ones of these jobs, with the given numbers.
    pub(crate) fn named(&self, ids: &[(JobId, u32)]) -> Vec<(String, u32)> {
        let table = self.shared.lock();
        let named =
            |&(id, number): &(JobId, u32)| Some((table.get(&id)?.described().job.label.clone(), number));
        ids.iter().filter_map(named).collect()
    }

    /// The priority of a job; 0 if unknown.
    pub(crate) fn priority(&self, job: JobId) -> u32 {
        self.shared.lock().get(&job).map_or(0, |counts| counts.described().job.priority)
    }

    /// The jobs that requested a turn within this time, or wait for one.
    pub(crate) fn active(&self, now: Stamp, within: Duration) -> Vec<Job> {
        let table = self.shared.lock();
        let active = table.values().filter(|counts| counts.is_active(now, within));
        active.map(|counts| counts.described().job.clone()).collect()
    }

    /// The share of this server that every job is due now.
    pub(crate) fn due(&self, now: Stamp) -> HashMap<JobId, f64> {
        if let Some(agreed) = &*self.lock_agreed() {
            return agreed.clone();
        }
        let policy = self.shared.turns.policy();
        if policy.is_fifo() {
            return HashMap::new();
        }
        let jobs = self.active(now, LATELY);
        let parts = shares(&policy, &jobs);
        jobs.iter().zip(parts).map(|(job, share)| (job.id(), share)).collect()
    }

    /// The servers have agreed on the shares of this one, or agree no longer.
    pub(crate) fn agree(&self, shares: Option<HashMap<JobId, f64>>) {
        *self.lock_agreed() = shares;
    }

    fn lock_agreed(&self) -> MutexGuard<'_, Option<HashMap<JobId, f64>>> {
        self.agreed.lock()
    }

    /// A job's share of a resource for which these jobs wait, including itself.
    pub(crate) fn due_among(&self, job: JobId, waiting: &[JobId]) -> f64 {
        let policy = self.shared.turns.policy();
        due_among(&policy, &self.some(waiting), job)
    }

    /// Called once a second.
    pub(crate) fn second(&self) {
        for counts in self.shared.lock().values() {
            let total = counts.written.load(Ordering::Relaxed) + counts.read.load(Ordering::Relaxed);
            let mut recent = counts.recent.lock();
            *recent = Recent { before: total, moved: total.saturating_sub(recent.before) };
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Arc<Counts>>> {
        self.table.lock()
    }
}

/// Evicts the job that has been gone for longest.
fn make_room(table: &mut HashMap<JobId, Arc<Counts>>, limit: usize) -> Result<()> {
    let gone = table.iter().filter(|(_, counts)| counts.connections.load(Ordering::Relaxed) == 0);
    let oldest = gone.min_by_key(|(_, counts)| counts.seen.load(Ordering::Relaxed)).map(|(&id, _)| id);
    let Some(oldest) = oldest else {
        let text = format!("{limit} jobs are connected already: try again when one has ended");
        return Err(Error::new(ErrorKind::Busy, text));
    };
    table.remove(&oldest);
    Ok(())
}

impl Counts {
    fn new(job: &Job) -> Counts {
        Counts {
            described: Mutex::new(Described { job: job.clone(), vouched: false }),
            written: AtomicU64::new(0),
            direct: AtomicU64::new(0),
            read: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            connections: AtomicU32::new(0),
            operations: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            last_enter: AtomicU64::new(0),
            recent: Mutex::default(),
        }
    }

    fn described(&self) -> MutexGuard<'_, Described> {
        self.described.lock()
    }

    fn is_active(&self, now: Stamp, within: Duration) -> bool {
        let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let last_enter = self.last_enter.load(Ordering::Relaxed);
        self.waiting.load(Ordering::Relaxed) > 0
            || last_enter > 0 && now.0.saturating_sub(last_enter) <= within
    }

    fn status(&self, id: JobId, now: Stamp, due: &HashMap<JobId, f64>) -> JobStatus {
        let connections = self.connections.load(Ordering::Relaxed);
        let state = match connections {
            0 => JobState::Gone,
            _ if self.is_active(now, LATELY) => JobState::Active,
            _ => JobState::Idle,
        };
        JobStatus {
            id,
            job: self.described().job.clone(),
            written: self.written.load(Ordering::Relaxed),
            direct: self.direct.load(Ordering::Relaxed),
            read: self.read.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            seen: Stamp(self.seen.load(Ordering::Relaxed)),
            connections,
            state,
            operations: self.operations.load(Ordering::Relaxed),
            waited: self.waited.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            share: due.get(&id).map_or(0, |share| (share * 1e6).round() as u32),
            recent: self.recent.lock().moved,
        }
    }
}

/// Counts a waiting request in its job; also if the request is dropped.
struct Waiting<'a>(&'a Counts);

impl<'a> Waiting<'a> {
    fn begin(counts: &'a Counts) -> Waiting<'a> {
        counts.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(counts)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Membership {
    /// A permit to wait for space beside other requests of the same connection; `None` if too many wait already.
    pub(crate) fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.places.try_acquire().ok()
    }

    pub(crate) fn id(&self) -> JobId {
        self.id
    }

    /// Requests a turn; [`wait`](Self::wait) returns it.
    pub(crate) fn enter(&self, cost: Cost, now: Stamp) -> Result<Entry> {
        self.counts.last_enter.fetch_max(now.0, Ordering::Relaxed);
        self.shared.turns.enter((self.id, self.uid), cost)
    }

    /// Requests the turn of the next slice, if there is one, while the current turn lasts.
    pub(crate) fn ahead(&self, turn: &mut Turn, next: Option<Cost>) -> Option<Entry> {
        self.shared.turns.ahead(turn, next?)
    }

    /// Waits for a requested turn.
    pub(crate) async fn wait(&self, entry: Entry) -> Result<Turn> {
        let turn = match entry {
            Entry::Now(turn) => turn,
            later @ Entry::Later(_) => {
                let _waiting = Waiting::begin(&self.counts);
                later.turn().await?
            }
        };
        self.got(&turn);
        Ok(turn)
    }

    /// Counts a turn.
    pub(crate) fn got(&self, turn: &Turn) {
        self.counts.operations.fetch_add(1, Ordering::Relaxed);
        let waited = u64::try_from(turn.waited().as_nanos()).unwrap_or(u64::MAX);
        self.counts.waited.fetch_add(waited, Ordering::Relaxed);
    }

    /// Counts a request.
    pub(crate) fn request(&self, now: Stamp) {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.counts.seen.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Counts received bytes.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.counts.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that bypassed the buffer.
    pub(crate) fn passed(&self, bytes: u64) {
        self.counts.direct.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts sent bytes.
    pub(crate) fn read(&self, bytes: u64) {
        self.counts.read.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // Under the table's lock: another connection of the job may join concurrently.
        let _table = self.shared.lock();
        if self.counts.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.shared.turns.leave(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::tests::rules;

    fn job(label: &str) -> Job {
        Job { label: label.into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 1 }
    }

    fn jobs(limit: usize) -> Jobs {
        let trust = Trust { most_nodes: 8, most_priority: 1 };
        Jobs::new(limit, trust, Turns::new(rules("size-fair", 4, 64)), Arc::new(LogLimit::new(9)))
    }

    fn user(name: &str, vouches: bool) -> Caller {
        Caller { user: name.into(), groups: vec!["g".into()], vouches }
    }

    #[test]
    fn full_table_evicts_the_longest_gone_job_never_a_connected_one() {
        let (jobs, u) = (jobs(2), user("u", false));
        let one = jobs.join(&job("1"), (Uid(5), &u), Stamp(10)).unwrap();
        drop(jobs.join(&job("2"), (Uid(5), &u), Stamp(20)).unwrap());
        let three = jobs.join(&job("3"), (Uid(5), &u), Stamp(30)).unwrap();
        assert_eq!(
            jobs.join(&job("4"), (Uid(5), &u), Stamp(40)).err().expect("refused").kind(),
            ErrorKind::Busy
        );
        one.wrote(5);
        three.read(7);
        drop(jobs.join(&job("1"), (Uid(5), &u), Stamp(50)).unwrap());
        let all = jobs.status(Stamp(60), &HashMap::new());
        let seen: Vec<_> = all.iter().map(|job| (job.id.0, job.written, job.connections)).collect();
        assert_eq!(seen, [(3, 0, 1), (1, 5, 1)]);
    }

    #[test]
    fn requests_waiting_for_space_per_connection_are_limited() {
        let (jobs, u) = (jobs(2), user("u", false));
        let connections = [1, 2].map(|at| jobs.join(&job("1"), (Uid(5), &u), Stamp(at)).unwrap());
        let taken: Vec<_> = (0..PLACES).map_while(|_| connections[0].place()).collect();
        assert_eq!(taken.len(), PLACES);
        assert!(connections[0].place().is_none() && connections[1].place().is_some());
        drop(taken);
        assert!(connections[0].place().is_some());
    }

    #[tokio::test]
    async fn job_is_active_while_it_requests_then_idle_then_gone() {
        let (jobs, u) = (jobs(2), user("u", false));
        let one = jobs.join(&job("1"), (Uid(5), &u), Stamp(1)).unwrap();
        let state = |now: u64| jobs.all(Stamp(now), &HashMap::from([(JobId(1), 0.25)])).remove(0);
        assert_eq!(state(5).state, JobState::Idle);
        drop(one.wait(one.enter(Cost(1), Stamp(5)).unwrap()).await.unwrap());
        assert_eq!((state(5).state, state(5).operations, state(5).share), (JobState::Active, 1, 250_000));
        assert_eq!(jobs.active(Stamp(7), Duration::from_nanos(3)).len(), 1);
        assert_eq!(jobs.active(Stamp(9), Duration::from_nanos(3)).len(), 0);
        assert_eq!(state(2_000_000_000).state, JobState::Idle);
        one.wrote(70);
        jobs.second();
        assert_eq!(state(9).recent, 70);
        drop(one);
        assert_eq!(state(9).state, JobState::Gone);
    }

    #[test]
    fn false_claims_are_limited_and_job_names_are_kept() {
        let jobs = jobs(9);
        let claim = |nodes| Job { nodes, ..job("7") };
        let (u, eve, root) = (user("u", false), user("eve", false), user("root", true));
        let described = |label: &str| {
            let all = jobs.all(Stamp(9), &HashMap::new());
            let found = all.into_iter().find(|status| status.job.label == label).unwrap().job;
            (found.user, found.nodes)
        };
        let first = jobs.join(&claim(500), (Uid(5), &u), Stamp(1)).unwrap();
        assert_eq!(described("7"), ("u".into(), 8), "limited by the site's trust");
        let other = jobs.join(&claim(4), (Uid(5), &eve), Stamp(2)).unwrap();
        assert_eq!(described("7@eve"), ("eve".into(), 4), "another user's job is another job");
        assert_ne!(first.id(), other.id());
        drop((first, other));
        drop(jobs.join(&claim(3), (Uid(5), &eve), Stamp(3)).unwrap());
        assert_eq!(described("7"), ("eve".into(), 3), "a job number is reused");
        drop(jobs.join(&claim(500), (Uid(5), &root), Stamp(4)).unwrap());
        assert_eq!(described("7"), ("u".into(), 500), "a privileged user is trusted");
        drop(jobs.join(&claim(900), (Uid(5), &u), Stamp(5)).unwrap());
        assert_eq!(described("7"), ("u".into(), 500), "and stays recorded");
    }
}
