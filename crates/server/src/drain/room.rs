//! Writers that meet a full buffer wait until the drain has made room, and share it by policy.

use super::Engine;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, JobId, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::futures::Notified;

/// After so long a writer is told to come again, so that its client does not take the server for dead.
const LONGEST: Duration = Duration::from_secs(25);
/// Between two looks.
const GLANCE: Duration = Duration::from_millis(50);
/// What clients on this machine were granted, and used so lately, is not taken back for others.
pub(super) const FRESH: Duration = Duration::from_millis(50);

/// A writer in the line for room.
struct Room<'a> {
    engine: &'a Engine,
    job: JobId,
    begin: Instant,
    freed: u64,
    since: Instant,
    /// Up to when it is counted how long it has waited, once it has.
    noted: Option<Instant>,
}

impl<'a> Room<'a> {
    fn wanted(engine: &'a Engine, job: JobId) -> Room<'a> {
        engine.line.stand(job);
        engine.rooms.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        Room { engine, job, begin: now, freed: engine.freed.load(Ordering::Relaxed), since: now, noted: None }
    }

    /// Whether it is this writer's job that is due what room there is.
    fn is_next(&self, service: &Service) -> bool {
        for (job, bytes) in service.store.data().taken_back() {
            let share = service.due_among(job, &self.engine.line.all());
            self.engine.line.gave_back(job, bytes, share);
        }
        service.has_much_room() || self.engine.line.is_next(self.job, Instant::now())
    }

    /// It has waited on.
    fn note(&mut self) {
        let now = Instant::now();
        if let Some(noted) = self.noted.replace(now) {
            let nanos = u64::try_from(now.duration_since(noted).as_nanos()).unwrap_or(u64::MAX);
            self.engine.waited.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// It got so much.
    fn got(&self, service: &Service, bytes: u32) {
        let share = service.due_among(self.job, &self.engine.line.all());
        self.engine.line.got(self.job, bytes, share, Instant::now());
        // It is somebody else's turn.
        self.engine.room.notify_waiters();
    }

    /// Waits for a moment in which there may be room. Fails when it has waited for too long: with *busy* if the drain goes
    /// on, and with what was said of the full buffer if it does not.
    async fn wait(&mut self, news: Notified<'_>, full: &Error) -> Result<()> {
        if self.noted.is_none() {
            if self.engine.waits.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    "the buffer is full: writers wait for the drain (told once; `forebay status` counts them)"
                );
            }
            self.engine.bell.notify_one();
            self.noted = Some(self.begin);
        }
        // Whoever is told to come again asks again: then the drain has had its time.
        let _ = tokio::time::timeout(GLANCE, news).await;
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

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.engine.line.leave(self.job, Instant::now());
        self.engine.rooms.fetch_sub(1, Ordering::Relaxed);
        if self.noted.is_some() {
            self.note();
        }
    }
}

impl Service {
    /// Whether so much is free that nobody needs to be held back for others.
    fn has_much_room(&self) -> bool {
        let data = self.store.data();
        u64::from(data.regions().free) * 2 > u64::from(data.geometry().regions)
    }

    /// Whether whoever finds room may take it: nobody waits for any, or did a moment ago.
    pub(crate) fn is_uncontested(&self) -> bool {
        self.drain.as_ref().is_none_or(|engine| {
            engine.has_no_line() && (!engine.line.is_expecting(Instant::now()) || self.has_much_room())
        })
    }

    /// Room for a writer of a job, as `look` finds it, which says how many bytes that is. A full buffer is waited for as
    /// long as the drain makes room; `rest` is called before.
    pub(crate) async fn find_room<T>(
        &self,
        job: JobId,
        mut rest: impl FnMut(),
        mut look: impl FnMut() -> Result<(T, u32)>,
    ) -> Result<T> {
        let contested = self.drain.as_ref().filter(|_| !self.is_uncontested());
        let mut room = contested.map(|engine| Room::wanted(engine, job));
        let mut full = Error::from(ErrorKind::NoSpace);
        loop {
            // Before it is looked, so that nothing is missed.
            let news = self.drain.as_ref().map(|engine| engine.room.notified());
            // What there is goes to the job that is due it, not to the quickest.
            if room.as_ref().is_none_or(|room| room.is_next(self)) {
                match tokio::task::block_in_place(&mut look) {
                    Ok((found, bytes)) => {
                        room.iter().for_each(|room| room.got(self, bytes));
                        return Ok(found);
                    }
                    Err(error) if error.kind() == ErrorKind::NoSpace => full = error,
                    Err(error) => return Err(error),
                }
            }
            let (Some(engine), Some(news)) = (&self.drain, news) else { return Err(full) };
            if *self.stopping().borrow() {
                let text = "the buffer is full, and the server ends: come again";
                return Err(Error::new(ErrorKind::Busy, text));
            }
            rest();
            room.get_or_insert_with(|| Room::wanted(engine, job)).wait(news, &full).await?;
        }
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
