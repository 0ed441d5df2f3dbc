//! Writers that meet a full buffer wait until the drain has made room, and share it by policy.

use super::Engine;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, JobId, Result};
use std::sync::PoisonError;
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
    /// Up to when it is counted how long it has waited, once it has.
    noted: Option<Instant>,
}

impl<'a> Room<'a> {
    fn wanted(engine: &'a Engine, job: JobId) -> Room<'a> {
        engine.line.stand(job);
        engine.rooms.fetch_add(1, Ordering::Relaxed);
        Room { engine, job, begin: Instant::now(), noted: None }
    }

    /// Whether it is this writer's job that is due what room there is.
    fn is_next(&self, service: &Service) -> bool {
        for (job, bytes) in service.store.data().taken_back() {
            let share = service.due_among(job, &self.engine.line.all());
            self.engine.line.gave_back(job, bytes, share);
        }
        service.has_much_room() || self.engine.line.is_next(self.job, self.begin, Instant::now())
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
        self.engine.goes_on();
        // It is somebody else's turn.
        self.engine.room.notify_waiters();
    }

    /// Waits for a moment in which there may be room. Fails when it has waited for too long: with what was said of the full
    /// buffer if nobody has got anything for as long as patience lasts, whoever waited meanwhile, and else with *busy*.
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
        let _ = tokio::time::timeout(GLANCE, news).await;
        self.note();
        match verdict(self.engine.stuck_for(), self.begin.elapsed(), self.engine.settings.patience) {
            None => Ok(()),
            Some(Verdict::Full) => Err(match self.engine.trouble() {
                Some(why) => full.clone().within(format!("the back end takes nothing ({why})")),
                None => full.clone(),
            }),
            Some(Verdict::Again) => {
                Err(Error::new(ErrorKind::Busy, "the buffer is full, and the drain makes room: come again"))
            }
        }
    }
}

/// What a writer is told that has waited for too long.
#[derive(PartialEq, Eq, Debug)]
enum Verdict {
    /// There is no room, and there will be none.
    Full,
    /// To come again.
    Again,
}

/// Nobody has got room for as long as `stuck`, of which this writer has waited a part. Others before it may have been told
/// to come again.
fn verdict(stuck: Duration, waited: Duration, patience: Duration) -> Option<Verdict> {
    match stuck > patience && waited > patience.min(LONGEST) {
        true => Some(Verdict::Full),
        false => (waited > LONGEST).then_some(Verdict::Again),
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

    /// Writers have got room, or soon will.
    pub(super) fn goes_on(&self) {
        *self.stuck.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How long writers have waited for room, and nobody has got any.
    fn stuck_for(&self) -> Duration {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        stuck.get_or_insert_with(Instant::now).elapsed()
    }

    /// How often writers waited for room, and for how many nanoseconds altogether.
    pub(crate) fn waits(&self) -> (u64, u64) {
        (self.waits.load(Ordering::Relaxed), self.waited.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_in_vain_is_told_in_the_end_however_often_he_came_again() {
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
        for (patience, stuck, waited, told) in cases {
            let [patience, stuck, waited] = [patience, stuck, waited].map(Duration::from_secs);
            assert_eq!(verdict(stuck, waited, patience), told, "{patience:?} {stuck:?} {waited:?}");
        }
    }
}
