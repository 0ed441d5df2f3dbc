//! Reads and writes of any size: split over connections, retried when a connection breaks.

use crate::data::Lease;
use crate::flow::{Failure, Progress, Target};
use crate::join::join;
use crate::retry::{AttemptError, Backoff, End, is_transient};
use crate::session::Session;
use forebay_model::{Error, ErrorKind, Result, Span};
use forebay_wire::{At, MAX_PAYLOAD};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, sleep, timeout_at};

tokio::task_local! {
    /// When the caller of a transfer was itself called.
    static CALLED: Instant;
}

/// Runs `work`; the timeout of its transfers starts at `when`, although the caller had to wait for other requests
/// since.
pub async fn called_at<T>(when: std::time::Instant, work: impl Future<Output = T>) -> T {
    CALLED.scope(when.into(), work).await
}

/// Larger transfers use several connections.
pub(crate) const WIDE: usize = 8 << 20;

impl Session {
    /// Writes all of `data` at an offset.
    pub(crate) async fn write_at(&self, target: Target<'_>, offset: u64, data: &[u8]) -> Result<()> {
        check_range(offset, data.len())?;
        let part = self.part(data.len());
        if part >= data.len() {
            return Box::pin(self.write_part(target, offset, data)).await;
        }
        let parts = data.chunks(part).enumerate();
        let parts = parts.map(|(index, data)| self.write_part(target, offset + (index * part) as u64, data));
        join(parts.collect()).await.into_iter().collect()
    }

    /// Reads into `into` from an offset on; returns fewer bytes only at the end of the file.
    pub(crate) async fn read_at(&self, target: Target<'_>, offset: u64, into: &mut [u8]) -> Result<usize> {
        check_range(offset, into.len())?;
        let part = self.part(into.len());
        if part >= into.len() {
            return Box::pin(self.read_part(target, offset, into)).await;
        }
        let (whole, parts) = (into.len(), into.chunks_mut(part).enumerate());
        let parts = parts.map(|(index, into)| self.read_part(target, offset + (index * part) as u64, into));
        let mut total = 0;
        for (index, len) in join(parts.collect()).await.into_iter().enumerate() {
            let len = len?;
            total += len;
            if len < part.min(whole - index * part) {
                break;
            }
        }
        Ok(total)
    }

    /// Appends one frame to the file and returns its offset.
    pub(crate) async fn append(&self, target: Target<'_>, data: &[u8]) -> Result<u64> {
        let mut retry_loop = RetryLoop::new(self);
        loop {
            let mut lease = retry_loop.lease().await?;
            let limit = lease.connection.max_payload;
            if data.len() > limit {
                lease.give_back();
                let text =
                    format!("cannot append {} bytes atomically: use at most {limit} bytes", data.len());
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let mut progress = Progress::default();
            let outcome = lease.write(target, At::End, data, &mut progress).await;
            if retry_loop.finish_attempt(lease, outcome, &progress, false).await? {
                return Ok(progress.start);
            }
        }
    }

    /// Number of bytes of a transfer for each connection, in whole frames.
    fn part(&self, len: usize) -> usize {
        if len <= WIDE {
            return len;
        }
        len.div_ceil(self.config.data_connections).next_multiple_of(MAX_PAYLOAD as usize)
    }

    async fn write_part(&self, target: Target<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        let mut retry_loop = RetryLoop::new(self);
        loop {
            let mut lease = retry_loop.lease().await?;
            let mut progress = Progress::default();
            let at = At::Offset(offset + done as u64);
            let outcome = lease.write(target, at, &data[done..], &mut progress).await;
            done += progress.done;
            if retry_loop.finish_attempt(lease, outcome, &progress, true).await? {
                return Ok(());
            }
        }
    }

    async fn read_part(&self, target: Target<'_>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        let mut retry_loop = RetryLoop::new(self);
        loop {
            let mut lease = retry_loop.lease().await?;
            let mut progress = Progress::default();
            let outcome = lease.read(target, offset + done as u64, &mut into[done..], &mut progress).await;
            done += progress.done;
            if retry_loop.finish_attempt(lease, outcome, &progress, true).await? {
                return Ok(done);
            }
        }
    }
}

/// Attempts and deadline of one transfer.
struct RetryLoop<'a> {
    session: &'a Session,
    pauses: Backoff,
    deadline: Instant,
    /// Whether the server may have received an earlier attempt whose outcome is unknown.
    maybe_received: bool,
}

impl<'a> RetryLoop<'a> {
    fn new(session: &'a Session) -> RetryLoop<'a> {
        let now = Instant::now();
        // The time for which the caller waited counts, unless the server answered other transfers meanwhile.
        let begin = CALLED.try_with(|called| *called).unwrap_or(now);
        let begin = if session.pool.has_answered_since(begin) { now } else { begin };
        let deadline = begin + session.config.request_timeout;
        RetryLoop { session, pauses: session.pauses(), deadline, maybe_received: false }
    }

    async fn lease(&mut self) -> Result<Lease<'a>> {
        loop {
            let slot = match self.session.pool.free_slot() {
                Some(slot) => slot,
                None => self.slot().await?,
            };
            let lease = Box::pin(self.session.lease(slot, self.deadline));
            let error = match timeout_at(self.deadline, lease).await {
                Ok(Ok(lease)) => return Ok(lease),
                Ok(Err(error)) => error,
                Err(_) => self.session.no_answer(),
            };
            self.pause(AttemptError::unsent(error), true).await?;
        }
    }

    /// Waits for a free connection. While the server answers this client's other transfers, the wait does not count as
    /// a timeout.
    async fn slot(&mut self) -> Result<SemaphorePermit<'a>> {
        let pool = &self.session.pool;
        loop {
            let before = Instant::now();
            let slot = timeout_at(self.deadline, pool.slot()).await;
            if pool.has_answered_since(before) {
                self.deadline = Instant::now() + self.session.config.request_timeout;
            }
            match slot {
                Ok(slot) => return Ok(slot),
                Err(_) if Instant::now() < self.deadline => {}
                Err(_) => {
                    let failure = AttemptError { sent: self.maybe_received, error: self.session.no_answer() };
                    return Err(failure.into_error(true, End::Timeout));
                }
            }
        }
    }

    /// Returns whether an attempt succeeded. If another attempt may succeed, waits for the backoff first.
    async fn finish_attempt(
        &mut self,
        lease: Lease<'a>,
        outcome: Result<(), Failure>,
        progress: &Progress,
        repeatable: bool,
    ) -> Result<bool> {
        let failure = match outcome {
            Ok(()) => {
                lease.give_back();
                return Ok(true);
            }
            Err(Failure::Answered(error)) => {
                lease.give_back();
                if !is_transient(&error) {
                    return Err(error);
                }
                AttemptError::unsent(error)
            }
            Err(Failure::Broken(error)) => {
                drop(lease);
                AttemptError { sent: progress.sent, error: self.session.at_service(error) }
            }
        };
        if progress.done > 0 {
            self.pauses.restart();
            self.deadline = Instant::now() + self.session.config.request_timeout;
        }
        self.pause(failure, repeatable).await?;
        Ok(false)
    }

    async fn pause(&mut self, failure: AttemptError, repeatable: bool) -> Result<()> {
        let pause = self.pauses.next();
        if !failure.may_retry(repeatable) {
            return Err(failure.into_error(repeatable, End::NoRetry));
        }
        self.maybe_received |= failure.sent;
        if Instant::now() + pause >= self.deadline {
            return Err(
                AttemptError { sent: self.maybe_received, ..failure }.into_error(repeatable, End::Timeout)
            );
        }
        sleep(pause).await;
        Ok(())
    }
}

/// Offsets are limited to `off_t`; larger ones are refused before anything is sent.
pub(crate) fn check_range(offset: u64, len: usize) -> Result<Span> {
    match offset.checked_add(len as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(Span::new(offset, end)),
        _ => Err(ErrorKind::TooLarge.into()),
    }
}
