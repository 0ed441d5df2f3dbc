//! Writers that meet a full buffer wait until the drain has made room.

use super::Engine;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, JobId};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After so long a writer is told to come again, so that its client does not take the server for dead.
const LONGEST: Duration = Duration::from_secs(25);
/// Between two looks.
const GLANCE: Duration = Duration::from_millis(50);

/// A writer that waits for room.
pub(crate) struct Room<'a> {
    engine: &'a Engine,
    job: JobId,
    begin: Instant,
    freed: u64,
    since: Instant,
    /// Up to when it is counted how long it has waited.
    noted: Instant,
}

impl<'a> Room<'a> {
    pub(crate) fn wanted(engine: &'a Engine, job: JobId) -> Room<'a> {
        engine.line.stand(job);
        engine.rooms.fetch_add(1, Ordering::Relaxed);
        if engine.waits.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "the buffer is full: writers wait for the drain (told once; `forebay status` counts them)"
            );
        }
        engine.bell.notify_one();
        let now = Instant::now();
        Room { engine, job, begin: now, freed: engine.freed.load(Ordering::Relaxed), since: now, noted: now }
    }

    /// Whether it is this writer's job that is due what room there is.
    pub(crate) fn is_next(&self) -> bool {
        self.engine.line.is_next(self.job)
    }

    /// It has waited on.
    fn note(&mut self) {
        let now = Instant::now();
        let waited = now.duration_since(std::mem::replace(&mut self.noted, now));
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.engine.waited.fetch_add(nanos, Ordering::Relaxed);
    }

    /// It got so much.
    pub(crate) fn got(&self, service: &Service, bytes: u32) {
        let share = service.due_among(self.job, &self.engine.line.all());
        self.engine.line.got(self.job, bytes, share);
        // It is somebody else's turn.
        self.engine.room.notify_waiters();
    }

    /// Waits for a moment in which there may be room. Fails when it has waited for too long: with *busy* if the drain goes
    /// on, and with what was said of the full buffer if it does not.
    pub(crate) async fn wait(&mut self, full: &Error) -> Result<(), Error> {
        // Whoever is told to come again asks again: then the drain has had its time.
        let _ = tokio::time::timeout(GLANCE, self.engine.room.notified()).await;
        self.note();
        let freed = self.engine.freed.load(Ordering::Relaxed);
        if freed != self.freed {
            (self.freed, self.since) = (freed, Instant::now());
        }
        if self.since.elapsed() > self.engine.settings.patience {
            return Err(match self.engine.trouble() {
                Some(why) => full.clone().within(format!("the back end takes nothing ({why})")),
                None => full.clone(),
            });
        }
        if self.begin.elapsed() > LONGEST {
            let text = "the buffer is full, and the drain makes room: come again";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        Ok(())
    }
}

impl Engine {
    /// The jobs that wait for room, and by how many writers.
    pub(crate) fn who_waits(&self) -> Vec<(JobId, u32)> {
        self.line.writers()
    }

    /// Whether nobody waits for room.
    pub(crate) fn has_no_line(&self) -> bool {
        self.rooms.load(Ordering::Relaxed) == 0
    }

    /// How often writers waited for room, and for how many nanoseconds altogether.
    pub(crate) fn waits(&self) -> (u64, u64) {
        (self.waits.load(Ordering::Relaxed), self.waited.load(Ordering::Relaxed))
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.engine.line.leave(self.job);
        self.engine.rooms.fetch_sub(1, Ordering::Relaxed);
        self.note();
    }
}
