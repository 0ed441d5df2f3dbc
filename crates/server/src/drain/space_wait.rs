//! Writers that find the buffer full wait until the drain has freed space, and share it by policy.

use super::DrainEngine;
use crate::jobs::Jobs;
use crate::lifecycle::Lifecycle;
use forebay_model::{Error, ErrorKind, JobId, Result};
use forebay_policy::Tick;
use forebay_policy::share::{SpaceQueue, is_roomy};
use forebay_store::{Data, Released, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::futures::Notified;

/// A writer that has waited this long is told to retry, so that its client does not take the server for dead.
const LONGEST: Duration = Duration::from_secs(25);
/// Longest time between two attempts.
const POLL: Duration = Duration::from_nanos(SpaceQueue::POLL.0);
/// Space granted to clients on this machine is not reclaimed for other writers if it was used this recently.
pub(super) const FRESH: Duration = Duration::from_millis(50);
/// How long a call that writes data of mappings back waits for a full buffer, and the time between two attempts.
const ROOM: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(100);

/// Space in the buffer, as writers get it; only a drain frees some.
pub(crate) struct BufferSpace {
    pub(crate) store: Arc<Store>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) drain: Option<Arc<DrainEngine>>,
}

/// A writer in the space queue.
struct SpaceWait<'a> {
    space: &'a BufferSpace,
    engine: &'a DrainEngine,
    job: JobId,
    begin: Instant,
    since: Tick,
    /// Up to when its waiting time is counted, once it has waited.
    counted_until: Option<Instant>,
}

impl<'a> SpaceWait<'a> {
    fn new(space: &'a BufferSpace, engine: &'a DrainEngine, job: JobId) -> SpaceWait<'a> {
        engine.space_queue().join(job);
        engine.waiting_writers.fetch_add(1, Ordering::Relaxed);
        let since = space.clock();
        SpaceWait { space, engine, job, begin: Instant::now(), since, counted_until: None }
    }

    /// Whether the free space is due to this writer's job.
    fn is_next(&self) -> bool {
        for Released { job, bytes } in self.space.store.data().take_released() {
            let share = self.share(job);
            self.engine.space_queue().reclaimed(job, bytes, share);
        }
        let is_next = |at| self.engine.space_queue().next_job(at, |_| self.since) == Some(self.job);
        self.space.is_roomy() || is_next(self.space.clock())
    }

    /// The share of free space that a job is due.
    fn share(&self, job: JobId) -> f64 {
        let all = self.engine.space_queue().all();
        self.space.jobs.due_among(job, &all)
    }

    /// Adds the time since the last call to the statistics.
    fn note(&mut self) {
        let now = Instant::now();
        if let Some(counted_until) = self.counted_until.replace(now) {
            let nanos = u64::try_from(now.duration_since(counted_until).as_nanos()).unwrap_or(u64::MAX);
            self.engine.waited.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// The writer got `bytes` of space.
    fn got(&self, bytes: u32) {
        let share = self.share(self.job);
        self.engine.space_queue().got(self.job, u64::from(bytes), share, self.space.clock());
        self.engine.reset_stuck();
        // It is another job's turn.
        self.engine.space_freed.notify_waiters();
    }

    /// Waits until there may be space. Fails when the writer has waited too long: with `full` if no writer has got
    /// space for as long as `patience`, else with *busy*.
    async fn wait(&mut self, freed: Notified<'_>, full: &Error) -> Result<()> {
        if self.counted_until.is_none() {
            if self.engine.waits.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    "the buffer is full: writers wait for the drain (logged once; `forebay status` counts them)"
                );
            }
            self.engine.doorbell.notify_one();
            self.counted_until = Some(self.begin);
        }
        let _ = tokio::time::timeout(POLL, freed).await;
        self.note();
        match verdict(self.engine.stuck_for(), self.begin.elapsed(), self.engine.settings.patience) {
            None => Ok(()),
            Some(Verdict::Full) => Err(match self.engine.trouble() {
                Some(why) => full.clone().within(format!("the back end accepts no data ({why})")),
                None => full.clone(),
            }),
            Some(Verdict::Again) => {
                Err(Error::new(ErrorKind::Busy, "the buffer is full and the drain is freeing space: retry"))
            }
        }
    }
}

/// The answer to a writer that has waited too long.
#[derive(PartialEq, Eq, Debug)]
enum Verdict {
    /// No space, and none is being freed.
    Full,
    /// Retry.
    Again,
}

/// Decides when a writer gives up. `stuck` is how long no writer has got space; this writer has waited for a part of
/// that time. Writers before it may have been told to retry.
fn verdict(stuck: Duration, waited: Duration, patience: Duration) -> Option<Verdict> {
    match stuck > patience && waited > patience.min(LONGEST) {
        true => Some(Verdict::Full),
        false => (waited > LONGEST).then_some(Verdict::Again),
    }
}

impl Drop for SpaceWait<'_> {
    fn drop(&mut self) {
        self.engine.space_queue().leave(self.job, self.space.clock());
        self.engine.waiting_writers.fetch_sub(1, Ordering::Relaxed);
        if self.counted_until.is_some() {
            self.note();
        }
    }
}

impl BufferSpace {
    /// The time of the space queue.
    fn clock(&self) -> Tick {
        Tick(self.store.data().now().0)
    }

    /// Whether there is enough free space that no writer has to wait for its turn.
    fn is_roomy(&self) -> bool {
        let data = self.store.data();
        is_roomy(u64::from(data.regions().free), u64::from(data.geometry().regions))
    }

    /// Whether a full buffer gets space again, because a drain frees it.
    pub(crate) fn is_drained(&self) -> bool {
        self.drain.is_some()
    }

    /// Whether a writer may take the space it finds: no writer waits for space, or did a moment ago.
    pub(crate) fn is_uncontested(&self) -> bool {
        self.drain.as_ref().is_none_or(|engine| {
            engine.has_no_waiters() && engine.space_queue().is_uncontested(self.clock(), || self.is_roomy())
        })
    }

    /// Obtains space for a writer of a job. `look` tries to allocate it and returns the number of bytes. While the
    /// drain frees space, a full buffer makes the writer wait; `rest` is called before each wait.
    pub(crate) async fn wait_for_space<T>(
        &self,
        job: JobId,
        mut rest: impl FnMut(),
        mut look: impl FnMut() -> Result<(T, u32)>,
    ) -> Result<T> {
        let contested = self.drain.as_ref().filter(|_| !self.is_uncontested());
        let mut space_wait = contested.map(|engine| SpaceWait::new(self, engine, job));
        let mut full = Error::from(ErrorKind::NoSpace);
        loop {
            // Subscribed before the attempt, so that no notification is missed.
            let freed = self.drain.as_ref().map(|engine| engine.space_freed.notified());
            // Free space goes to the job that is due it, not to the fastest writer.
            if space_wait.as_ref().is_none_or(SpaceWait::is_next) {
                match tokio::task::block_in_place(&mut look) {
                    Ok((found, bytes)) => {
                        space_wait.iter().for_each(|space_wait| space_wait.got(bytes));
                        return Ok(found);
                    }
                    Err(error) if error.kind() == ErrorKind::NoSpace => full = error,
                    Err(error) => return Err(error),
                }
            }
            let (Some(engine), Some(freed)) = (&self.drain, freed) else { return Err(full) };
            if *self.life.stopping().borrow() {
                let text = "the buffer is full and the server is stopping: retry";
                return Err(Error::new(ErrorKind::Busy, text));
            }
            rest();
            space_wait.get_or_insert_with(|| SpaceWait::new(self, engine, job)).wait(freed, &full).await?;
        }
    }

    /// Runs a call that writes data of mappings back. Waits for a full buffer if a drain frees space. Blocks the
    /// thread.
    pub(crate) fn when_there_is_room(&self, mut write_back: impl FnMut(&Data) -> Result<()>) -> Result<()> {
        let (begin, stopping) = (Instant::now(), self.life.stopping());
        loop {
            match write_back(self.store.data()) {
                Err(error)
                    if error.kind() == ErrorKind::NoSpace
                        && self.is_drained()
                        && begin.elapsed() < ROOM
                        && !*stopping.borrow() =>
                {
                    std::thread::sleep(AGAIN);
                }
                done => return done,
            }
        }
    }
}

impl DrainEngine {
    /// The jobs that wait for space, with their numbers of waiting writers.
    pub(crate) fn space_waiters(&self) -> Vec<(JobId, u32)> {
        self.space_queue().writers()
    }

    /// Whether no writer waits for space.
    pub(crate) fn has_no_waiters(&self) -> bool {
        self.waiting_writers.load(Ordering::Relaxed) == 0
    }

    /// Writers have got space, or soon will.
    pub(super) fn reset_stuck(&self) {
        *self.stuck.lock() = None;
    }

    /// How long writers have waited without any of them getting space.
    fn stuck_for(&self) -> Duration {
        let mut stuck = self.stuck.lock();
        stuck.get_or_insert_with(Instant::now).elapsed()
    }

    /// How often writers waited for space, and for how many nanoseconds altogether.
    pub(crate) fn waits(&self) -> (u64, u64) {
        (self.waits.load(Ordering::Relaxed), self.waited.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_get_no_space_when_the_drain_is_stuck_despite_retries() {
        let (usual, short) = (45, 1);
        let cases = [
            (usual, 20, 20, None),
            (usual, 26, 26, Some(Verdict::Again)),
            (usual, 46, 20, None),
            (usual, 52, 26, Some(Verdict::Full)),
            (usual, 2, 26, Some(Verdict::Again)),
            (short, 1, 1, None),
            (short, 2, 2, Some(Verdict::Full)),
            (short, 60, 1, None),
            (short, 0, 26, Some(Verdict::Again)),
        ];
        for (patience, stuck, waited, expected) in cases {
            let [patience, stuck, waited] = [patience, stuck, waited].map(Duration::from_secs);
            assert_eq!(verdict(stuck, waited, patience), expected, "{patience:?} {stuck:?} {waited:?}");
        }
    }
}
