//! The bytes of a connection: frames in, answers out.
//!
//! Requests are read through a small buffer; the payload of a write is not: what the buffer happens to hold of it
//! is copied, the rest goes from the socket to where it belongs. After a large payload the buffer asks the socket
//! for little, so that the next one is not caught in it; among small requests it asks for much, and one system call
//! brings many.

use crate::pace::Pace;
use crate::transport::{Reading, Writing};
use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::{Answer, FrameKind, Greeting, HEADER, Header, Reply, frame};
use serde::Serialize;
use std::io::{self, IoSlice};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// What the buffer holds, unless a single body needs more.
const BUFFER: usize = 32 << 10;
/// What is asked of the socket when a large payload is likely to follow.
const SIP: usize = 512;
/// A payload from which on the next is expected to be large too.
const LARGE: u32 = 16 << 10;
/// Most slices in one vectored write.
const SLICES: usize = 64;

/// What comes in.
pub(crate) struct Inbox {
    reading: Reading,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    sips: bool,
    /// The header of a frame whose body has not come in full.
    begun: Option<Header>,
}

impl Inbox {
    pub(crate) fn new(reading: Reading) -> Inbox {
        Inbox { reading, buffer: Vec::new(), start: 0, end: 0, sips: true, begun: None }
    }

    /// The header of the next frame, once all of its body is held.
    pub(crate) fn frame(&mut self) -> Result<Option<Header>> {
        if self.begun.is_none() && self.has(HEADER) {
            self.begun = Some(self.take_header()?);
        }
        match self.begun {
            Some(header) if self.has(header.body as usize) => Ok(self.begun.take()),
            _ => Ok(None),
        }
    }

    /// Whether nothing of a frame has come.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.begun.is_none() && !self.has(1)
    }

    /// Waits for more of the next frame; `false` at the end. Safe to cancel.
    pub(crate) async fn fill_frame(&mut self) -> io::Result<bool> {
        let len = self.begun.map_or(HEADER, |header| header.body as usize);
        self.fill(len).await
    }

    /// What has come and was not taken.
    pub(crate) fn held(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether so many bytes have come.
    pub(crate) fn has(&self, len: usize) -> bool {
        self.end - self.start >= len
    }

    /// Waits until more has come, in a buffer with room for `len` bytes in all; `false` at the end. Safe to cancel.
    pub(crate) async fn fill(&mut self, len: usize) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.start + len > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            self.buffer.resize(len.max(BUFFER), 0);
        }
        let limit = if self.sips { (self.start + len).max(self.end + SIP) } else { self.buffer.len() };
        let limit = limit.min(self.buffer.len());
        let count = self.reading.read(&mut self.buffer[self.end..limit]).await?;
        self.end += count;
        Ok(count > 0)
    }

    /// Waits until `len` bytes have come; `false` if the peer ended before.
    pub(crate) async fn need(&mut self, len: usize) -> io::Result<bool> {
        while !self.has(len) {
            if !self.fill(len).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the header that has come.
    pub(crate) fn take_header(&mut self) -> Result<Header> {
        let bytes = self.held().first_chunk::<HEADER>().expect("the caller waited for a header");
        let header = Header::decode(bytes)?;
        self.consume(HEADER);
        self.sips = header.payload > LARGE;
        Ok(header)
    }

    /// Forgets bytes that were used.
    pub(crate) fn consume(&mut self, len: usize) {
        assert!(self.has(len), "only what has come can be taken");
        self.start += len;
        if self.start == self.end && self.buffer.len() > BUFFER {
            self.buffer.truncate(BUFFER);
            self.buffer.shrink_to_fit();
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads payload into its place: first what is held, then from the socket. 0 only at the end.
    pub(crate) async fn read_into(&mut self, place: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            return self.reading.read(place).await;
        }
        let count = place.len().min(self.end - self.start);
        place[..count].copy_from_slice(&self.held()[..count]);
        self.consume(count);
        Ok(count)
    }
}

/// What goes out: answers gather here until they are flushed.
pub(crate) struct Outbox {
    writing: Writing,
    pending: Vec<u8>,
    patience: Duration,
}

impl Outbox {
    /// A peer that takes nothing for longer than `patience` is given up.
    pub(crate) fn new(writing: Writing, patience: Duration) -> Outbox {
        Outbox { writing, pending: Vec::new(), patience }
    }

    /// Adds an answer; it goes out with the next flush. An answer too large for a frame becomes an error.
    pub(crate) fn answer(&mut self, id: u64, answer: &Answer) {
        if let Err(error) = frame(&mut self.pending, FrameKind::Answer, id, answer, 0) {
            let refusal =
                Answer::Err(Error::new(ErrorKind::TooLarge, format!("the answer does not fit: {error}")));
            frame(&mut self.pending, FrameKind::Answer, id, &refusal, 0).expect("a short error fits");
        }
    }

    /// Adds a message of the handshake.
    pub(crate) fn greet(&mut self, greeting: &Greeting) -> Result<()> {
        frame(&mut self.pending, FrameKind::Greeting, 0, greeting, 0)
    }

    /// Adds a message of this server's own.
    pub(crate) fn say<T: Serialize>(&mut self, kind: FrameKind, id: u64, message: &T) -> Result<()> {
        frame(&mut self.pending, kind, id, message, 0)
    }

    /// Whether enough is pending to flush it even though more may follow.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= BUFFER
    }

    /// Sends what is pending.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let sent = timeout(self.patience, self.writing.write_all(&self.pending)).await;
        self.pending.clear();
        self.pending.shrink_to(4 * BUFFER);
        sent.unwrap_or_else(|_| Err(slow()))
    }

    /// Adds an answer whose payload follows.
    pub(crate) fn announce(&mut self, id: u64, total: u32) -> Result<()> {
        frame(&mut self.pending, FrameKind::Answer, id, &Answer::Ok(Reply::Data), total)
    }

    /// Sends what is pending, and a piece of payload behind it, without copying it.
    pub(crate) async fn send_data(&mut self, pieces: &[&[u8]], pace: &mut Pace) -> Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        let mut slices = Vec::with_capacity(pieces.len() + 1);
        // What is empty would look like a peer that takes nothing.
        let parts = [pending.as_slice()].into_iter().chain(pieces.iter().copied());
        slices.extend(parts.filter(|part| !part.is_empty()).map(IoSlice::new));
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let some = rest.len().min(SLICES);
            match pace.step(self.writing.write_vectored(&rest[..some])).await {
                None => return Err(gone(&slow())),
                Some(Ok(0)) => return Err(gone(&io::ErrorKind::WriteZero.into())),
                Some(Ok(count)) => IoSlice::advance_slices(&mut rest, count),
                Some(Err(error)) => return Err(gone(&error)),
            }
        }
        pending.clear();
        self.pending = pending;
        Ok(())
    }

    /// Says that nothing more will come.
    pub(crate) async fn close(&mut self) {
        // The peer may be gone already, and then needs to be told nothing.
        let _ = timeout(self.patience, self.writing.shutdown()).await;
    }
}

/// The error for a connection that cannot go on.
pub(crate) fn gone(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, format!("the connection broke: {error}"))
}

fn slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer does not take its answers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::tests::one_turn;
    use forebay_model::{Error, ErrorKind};
    use forebay_wire::body;
    use tokio::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(60);

    async fn pace() -> Pace {
        Pace::new(one_turn().await, None, 1 << 20, PATIENCE, Instant::now() + PATIENCE)
    }

    #[tokio::test]
    async fn frames_and_payloads_come_out_as_they_went_in() {
        for payload in [0usize, 1, 100, 5000, 70_000] {
            let (near, far) = tokio::io::duplex(1 << 20);
            let (_, near) = tokio::io::split(near);
            let (far, _) = tokio::io::split(far);
            let mut outbox = Outbox::new(Box::new(near), PATIENCE);
            let bytes: Vec<u8> = (0..payload).map(|i| i as u8).collect();
            let (one, two) = bytes.split_at(payload / 3);
            outbox.answer(6, &Err(ErrorKind::Busy.into()));
            outbox.announce(7, payload as u32).unwrap();
            outbox.send_data(&[one, &[]], &mut pace().await).await.unwrap();
            outbox.send_data(&[two], &mut pace().await).await.unwrap();
            drop(outbox);

            let mut inbox = Inbox::new(Box::new(far));
            assert!(inbox.need(HEADER).await.unwrap());
            let first = inbox.take_header().unwrap();
            assert!(inbox.need(first.body as usize).await.unwrap());
            let answer: Answer = body(&inbox.held()[..first.body as usize]).unwrap();
            assert_eq!((first.id, answer), (6, Err(ErrorKind::Busy.into())));
            inbox.consume(first.body as usize);
            assert!(inbox.need(HEADER).await.unwrap());
            let second = inbox.take_header().unwrap();
            assert_eq!((second.id, second.payload as usize), (7, payload));
            assert!(inbox.need(second.body as usize).await.unwrap());
            inbox.consume(second.body as usize);
            let mut got = vec![0; payload];
            let mut at = 0;
            while at < payload {
                at += inbox.read_into(&mut got[at..]).await.unwrap();
            }
            assert!(got == bytes && !inbox.need(1).await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_body_larger_than_the_buffer_is_read_and_its_room_given_back() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (_, near) = tokio::io::split(near);
        let (far, _) = tokio::io::split(far);
        let mut outbox = Outbox::new(Box::new(near), PATIENCE);
        let long = Answer::Err(Error::new(ErrorKind::Io, "x".repeat(200_000)));
        outbox.answer(1, &long);
        outbox.flush().await.unwrap();
        let mut inbox = Inbox::new(Box::new(far));
        assert!(inbox.need(HEADER).await.unwrap());
        let header = inbox.take_header().unwrap();
        assert!(inbox.need(header.body as usize).await.unwrap());
        assert_eq!(body::<Answer>(&inbox.held()[..header.body as usize]).unwrap(), long);
        inbox.consume(header.body as usize);
        assert_eq!(inbox.buffer.len(), BUFFER);
        outbox.answer(2, &Err(Error::new(ErrorKind::Io, "x".repeat(600_000))));
        outbox.flush().await.unwrap();
        assert!(inbox.need(HEADER).await.unwrap());
        let header = inbox.take_header().unwrap();
        assert!(inbox.need(header.body as usize).await.unwrap());
        let answer = body::<Answer>(&inbox.held()[..header.body as usize]).unwrap();
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
