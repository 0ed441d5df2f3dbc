//! Reads and writes of any size: split over connections, repeated where a connection broke.

use crate::data::Lease;
use crate::flow::{Failure, Progress, Target};
use crate::join::join;
use crate::retry::{Pauses, Trouble, may_pass};
use crate::session::Session;
use forebay_model::{Error, ErrorKind, Result, Span};
use forebay_wire::{At, MAX_PAYLOAD};
use tokio::time::{Instant, sleep, timeout_at};

/// Beyond this a transfer uses several connections.
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

    /// Fills `into` from an offset on; fewer bytes only at the end of the file.
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

    /// Writes one frame at the end of the file, and says where that was.
    pub(crate) async fn append(&self, target: Target<'_>, data: &[u8]) -> Result<u64> {
        let mut effort = Effort::new(self);
        loop {
            let mut lease = effort.lease().await?;
            let limit = lease.connection.max_payload;
            if data.len() > limit {
                lease.give_back();
                let text =
                    format!("an append has at most {limit} bytes to be atomic, this one {}", data.len());
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let mut progress = Progress::default();
            let outcome = lease.write(target, At::End, data, &mut progress).await;
            if effort.settle(lease, outcome, &progress, false).await? {
                return Ok(progress.start);
            }
        }
    }

    /// How many bytes of a transfer go over one connection, in whole frames.
    fn part(&self, len: usize) -> usize {
        if len <= WIDE {
            return len;
        }
        len.div_ceil(self.config.data_connections).next_multiple_of(MAX_PAYLOAD as usize)
    }

    async fn write_part(&self, target: Target<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        let mut effort = Effort::new(self);
        loop {
            let mut lease = effort.lease().await?;
            let mut progress = Progress::default();
            let at = At::Offset(offset + done as u64);
            let outcome = lease.write(target, at, &data[done..], &mut progress).await;
            done += progress.done;
            if effort.settle(lease, outcome, &progress, true).await? {
                return Ok(());
            }
        }
    }

    async fn read_part(&self, target: Target<'_>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        let mut effort = Effort::new(self);
        loop {
            let mut lease = effort.lease().await?;
            let mut progress = Progress::default();
            let outcome = lease.read(target, offset + done as u64, &mut into[done..], &mut progress).await;
            done += progress.done;
            if effort.settle(lease, outcome, &progress, true).await? {
                return Ok(done);
            }
        }
    }
}

/// The attempts at one transfer.
struct Effort<'a> {
    session: &'a Session,
    pauses: Pauses,
    deadline: Instant,
}

impl<'a> Effort<'a> {
    fn new(session: &'a Session) -> Effort<'a> {
        let deadline = Instant::now() + session.config.request_timeout;
        Effort { session, pauses: session.pauses(), deadline }
    }

    async fn lease(&mut self) -> Result<Lease<'a>> {
        loop {
            let before = Instant::now();
            let slot = self.session.pool.slot().await;
            // Waiting for other transfers of this client is not the server's silence.
            self.deadline += before.elapsed();
            let error = match timeout_at(self.deadline, Box::pin(self.session.lease(slot))).await {
                Ok(Ok(lease)) => return Ok(lease),
                Ok(Err(error)) => error,
                Err(_) => self.session.no_answer(),
            };
            self.pause(Trouble::unsent(error), true).await?;
        }
    }

    /// Whether an attempt did it. If not but another one may, the pause before it has passed.
    async fn settle(
        &mut self,
        lease: Lease<'a>,
        outcome: Result<(), Failure>,
        progress: &Progress,
        repeatable: bool,
    ) -> Result<bool> {
        let trouble = match outcome {
            Ok(()) => {
                lease.give_back();
                return Ok(true);
            }
            Err(Failure::Answered(error)) => {
                lease.give_back();
                if !may_pass(&error) {
                    return Err(error);
                }
                Trouble::unsent(error)
            }
            Err(Failure::Broken(error)) => {
                drop(lease);
                Trouble { sent: progress.sent, error: self.session.at_service(error) }
            }
        };
        if progress.done > 0 {
            self.pauses.restart();
            self.deadline = Instant::now() + self.session.config.request_timeout;
        }
        self.pause(trouble, repeatable).await?;
        Ok(false)
    }

    async fn pause(&mut self, trouble: Trouble, repeatable: bool) -> Result<()> {
        let pause = self.pauses.next();
        if !trouble.is_passing(repeatable) || Instant::now() + pause >= self.deadline {
            return Err(trouble.into_error(repeatable));
        }
        sleep(pause).await;
        Ok(())
    }
}

/// Offsets are those of `off_t`: what passes them is refused before anything is sent.
pub(crate) fn check_range(offset: u64, len: usize) -> Result<Span> {
    match offset.checked_add(len as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(Span::new(offset, end)),
        _ => Err(ErrorKind::TooLarge.into()),
    }
}
