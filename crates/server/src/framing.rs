//! The byte stream of a connection: reads frames, sends answers.
//!
//! Requests are read through a small buffer. The payload of a write is not: bytes of it that are already in the buffer
//! are copied, the rest goes from the socket directly to its destination. After a large payload the reader requests few
//! bytes from the socket, so that the next payload does not end up in the buffer; among small requests it requests
//! many, so that one system call brings several requests.
//!
//! On a sealed connection no bytes are returned before they are authenticated and decrypted: a body in place in the
//! buffer, a chunk of payload at its destination unless that is too small.

use crate::answers::Reserved;
use crate::pace::Pace;
use crate::transport::{Reading, Writing};
use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::{
    Answer, CHUNK, CHUNK_HEAD, FrameKind, Greeting, HEADER, Header, Opener, Reply, Sealer, Security, TAG,
    frame_with,
};
use serde::Serialize;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Size of the buffer, unless a single body needs more.
const BUFFER: usize = 32 << 10;
/// Bytes requested from the socket when a large payload is likely to follow.
const SMALL_READ: usize = 512;
/// After a payload of at least this size, the next one is expected to be large too.
const LARGE: u32 = 16 << 10;
/// Maximum number of slices in one vectored write.
const SLICES: usize = 64;
/// Sealed payload is sent in batches of this size.
const BATCH: usize = 2 * CHUNK;

/// The receiving direction.
pub(crate) struct FrameReader {
    reading: Reading,
    buffer: Vec<u8>,
    /// Size of the buffer, unless a single body needs more: small until the peer has authenticated.
    size: usize,
    start: usize,
    end: usize,
    sips: bool,
    /// The header of a frame whose body has not arrived in full.
    begun: Option<Header>,
    sealed: Option<Sealed>,
}

/// State of a sealed connection.
struct Sealed {
    opener: Opener,
    /// Bytes of the last frame's payload in chunks that are not opened yet.
    payload: u32,
    /// A chunk that was opened outside its destination, which was too small, and the number of bytes taken from it.
    spare: Vec<u8>,
    taken: usize,
}

impl FrameReader {
    /// A second descriptor of the socket, by which the server ends the connection of a revoked key.
    pub(crate) fn cutter(&self) -> io::Result<Option<OwnedFd>> {
        self.reading.cutter()
    }

    pub(crate) fn new(reading: Reading) -> FrameReader {
        FrameReader {
            reading,
            buffer: Vec::new(),
            size: SMALL_READ,
            start: 0,
            end: 0,
            sips: true,
            begun: None,
            sealed: None,
        }
    }

    /// Everything that follows is sealed.
    pub(crate) fn seal(&mut self, opener: Opener) {
        self.sealed = Some(Sealed { opener, payload: 0, spare: Vec::new(), taken: 0 });
    }

    /// The handshake is over: the rest is protected at the negotiated level.
    pub(crate) fn agree(&mut self, level: Security) {
        self.size = BUFFER;
        if let Some(opener) = self.sealed.take().and_then(|sealed| sealed.opener.agreed(level)) {
            self.seal(opener);
        }
    }

    /// Bytes between the header and the end of the body.
    fn rest_of(&self, header: &Header) -> usize {
        header.body as usize + if self.sealed.is_some() { TAG } else { 0 }
    }

    /// Opens the body of a frame that has arrived in full. Nothing in it may be trusted before.
    fn open(&mut self, header: &Header) -> Result<()> {
        let Some(sealed) = &mut self.sealed else { return Ok(()) };
        let end = self.start + TAG + header.body as usize;
        sealed.opener.frame(header, &mut self.buffer[self.start..end])?;
        sealed.payload = header.payload;
        self.start += TAG;
        Ok(())
    }

    /// The header of the next frame, once its whole body is in the buffer.
    pub(crate) fn frame(&mut self) -> Result<Option<Header>> {
        if self.begun.is_none() && self.has(HEADER) {
            self.begun = Some(self.take_header()?);
        }
        match self.begun {
            Some(header) if self.has(self.rest_of(&header)) => {
                self.open(&header)?;
                Ok(self.begun.take())
            }
            _ => Ok(None),
        }
    }

    /// Whether no byte of the next frame has arrived.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.begun.is_none() && !self.has(1)
    }

    /// Waits for more of the next frame; `false` at the end of the stream. Cancel-safe.
    pub(crate) async fn fill_frame(&mut self) -> io::Result<bool> {
        let len = self.begun.map_or(HEADER, |header| self.rest_of(&header));
        self.fill(len).await
    }

    /// Waits for the next handshake frame, which must be of this kind; `None` if the peer disconnected before.
    pub(crate) async fn message(&mut self, kind: FrameKind) -> Result<Option<Vec<u8>>> {
        if !self.need(HEADER).await.map_err(|error| gone(&error))? {
            return Ok(None);
        }
        let header = self.take_header()?;
        if header.kind != kind {
            let text = format!("the handshake expects a frame of kind {kind}, not {}", header.kind);
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        if !self.need(self.rest_of(&header)).await.map_err(|error| gone(&error))? {
            return Ok(None);
        }
        self.open(&header)?;
        let len = header.body as usize;
        let bytes = self.held()[..len].to_vec();
        self.consume(len);
        Ok(Some(bytes))
    }

    /// Whether a payload of `len` bytes has arrived in full.
    pub(crate) fn has_payload(&self, len: u32) -> bool {
        let heads = if self.sealed.is_some() { (len as usize).div_ceil(CHUNK) * CHUNK_HEAD } else { 0 };
        self.has(len as usize + heads)
    }

    /// Bytes in the buffer that are not consumed.
    pub(crate) fn held(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether at least `len` bytes are in the buffer.
    pub(crate) fn has(&self, len: usize) -> bool {
        self.end - self.start >= len
    }

    /// Waits for more bytes, in a buffer with space for `len` bytes in total; `false` at the end of the stream.
    /// Cancel-safe.
    pub(crate) async fn fill(&mut self, len: usize) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.start + len > self.buffer.len() || self.buffer.len() < self.size {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            self.buffer.resize(len.max(self.size), 0);
        }
        let limit = if self.sips { (self.start + len).max(self.end + SMALL_READ) } else { self.buffer.len() };
        let limit = limit.min(self.buffer.len());
        let count = self.reading.read(&mut self.buffer[self.end..limit]).await?;
        self.end += count;
        Ok(count > 0)
    }

    /// Waits until `len` bytes are in the buffer; `false` if the peer disconnected before.
    pub(crate) async fn need(&mut self, len: usize) -> io::Result<bool> {
        while !self.has(len) {
            if !self.fill(len).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the header from the buffer.
    pub(crate) fn take_header(&mut self) -> Result<Header> {
        let bytes = self.held().first_chunk::<HEADER>().expect("the caller waited for a header");
        let header = Header::decode(bytes)?;
        self.consume(HEADER);
        self.sips = header.payload > LARGE;
        Ok(header)
    }

    /// Discards used bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        assert!(self.has(len), "only buffered bytes can be consumed");
        self.start += len;
        if self.start == self.end && self.buffer.len() > BUFFER {
            self.buffer.truncate(BUFFER);
            self.buffer.shrink_to_fit();
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads payload into `place`: first from the buffer, then from the socket. Returns 0 only at the end of the
    /// stream. On a sealed connection the returned bytes are authenticated, and the rest of `place` is undefined.
    pub(crate) async fn read_into(&mut self, place: &mut [u8]) -> io::Result<usize> {
        if self.sealed.is_some() { self.read_sealed(place).await } else { self.read_plain(place).await }
    }

    async fn read_sealed(&mut self, place: &mut [u8]) -> io::Result<usize> {
        let sealed = self.sealed.as_mut().expect("the caller checked");
        if sealed.taken < sealed.spare.len() {
            return Ok(sealed.take(place));
        }
        if !self.need(CHUNK_HEAD).await? {
            return Ok(0);
        }
        let sealed = self.sealed.as_ref().expect("it stays sealed");
        let head = self.held().first_chunk().expect("the caller waited for these bytes");
        let (len, tag) = Opener::chunk_head(head, sealed.payload).map_err(io::Error::other)?;
        self.consume(CHUNK_HEAD);
        let fits = len <= place.len();
        let mut aside = vec![0; if fits { 0 } else { len }];
        let chunk = if fits { &mut place[..len] } else { &mut aside[..] };
        let mut filled = 0;
        while filled < len {
            match self.read_plain(&mut chunk[filled..]).await? {
                0 => return Ok(0),
                count => filled += count,
            }
        }
        let sealed = self.sealed.as_mut().expect("it stays sealed");
        sealed.opener.chunk(&tag, chunk).map_err(io::Error::other)?;
        sealed.payload -= len as u32;
        if fits {
            return Ok(len);
        }
        (sealed.spare, sealed.taken) = (aside, 0);
        Ok(sealed.take(place))
    }

    async fn read_plain(&mut self, place: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            return self.reading.read(place).await;
        }
        let count = place.len().min(self.end - self.start);
        place[..count].copy_from_slice(&self.held()[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl Sealed {
    /// Takes bytes from the spare chunk.
    fn take(&mut self, place: &mut [u8]) -> usize {
        let left = &self.spare[self.taken..];
        let count = place.len().min(left.len());
        place[..count].copy_from_slice(&left[..count]);
        self.taken += count;
        if self.taken == self.spare.len() {
            (self.spare, self.taken) = (Vec::new(), 0);
        }
        count
    }
}

/// The sending direction: answers are queued until they are flushed.
pub(crate) struct SendQueue {
    writing: Writing,
    pending: Vec<u8>,
    /// The reserved space of pending answers.
    reserved: Vec<Reserved>,
    patience: Duration,
    sealer: Option<Sealer>,
}

impl SendQueue {
    /// A peer that reads nothing for longer than `patience` is disconnected.
    pub(crate) fn new(writing: Writing, patience: Duration) -> SendQueue {
        SendQueue { writing, pending: Vec::new(), reserved: Vec::new(), patience, sealer: None }
    }

    /// Everything that follows is sealed.
    pub(crate) fn seal(&mut self, sealer: Sealer) {
        self.sealer = Some(sealer);
    }

    /// The handshake is over: the rest is protected at the negotiated level.
    pub(crate) fn agree(&mut self, level: Security) {
        self.sealer = self.sealer.take().and_then(|sealer| sealer.agreed(level));
    }

    /// Queues an answer for the next flush. An answer too large for a frame becomes an error. Its reserved space is
    /// released when it is sent.
    pub(crate) fn answer(&mut self, id: u64, answer: &Answer, reserved: Option<Reserved>) {
        let before = self.pending.len();
        if let Err(error) = self.queue(FrameKind::Answer, id, answer) {
            let refusal = Answer::Err(Error::new(
                ErrorKind::TooLarge,
                format!("the answer does not fit a frame: {error}"),
            ));
            self.queue(FrameKind::Answer, id, &refusal).expect("a short error fits");
        }
        if let Some(mut reserved) = reserved {
            reserved.shrink(self.pending.len() - before);
            self.reserved.push(reserved);
        }
    }

    /// Queues a handshake message.
    pub(crate) fn greet(&mut self, greeting: &Greeting) -> Result<()> {
        self.queue(FrameKind::Greeting, 0, greeting)
    }

    /// Queues a message of this server.
    pub(crate) fn queue<T: Serialize>(&mut self, kind: FrameKind, id: u64, message: &T) -> Result<()> {
        frame_with(self.sealer.as_mut(), &mut self.pending, kind, id, message, 0)
    }

    /// Whether enough is pending to flush it even though more may follow.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= BUFFER
    }

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let sent = timeout(self.patience, self.writing.write_all(&self.pending)).await;
        self.pending.clear();
        self.pending.shrink_to(4 * BUFFER);
        self.reserved.clear();
        sent.unwrap_or_else(|_| Err(slow()))
    }

    /// Queues an answer whose payload follows.
    pub(crate) fn announce(&mut self, id: u64, total: u32) -> Result<()> {
        let (sealer, answer) = (self.sealer.as_mut(), Answer::Ok(Reply::Data));
        frame_with(sealer, &mut self.pending, FrameKind::Answer, id, &answer, total)
    }

    /// Sends pending answers and then a piece of payload, without copying it unless it must be sealed.
    pub(crate) async fn send_data(&mut self, pieces: &[&[u8]], pace: &mut Pace) -> Result<()> {
        if self.sealer.is_some() {
            return self.send_sealed(pieces, pace).await;
        }
        let mut pending = std::mem::take(&mut self.pending);
        let mut slices = Vec::with_capacity(pieces.len() + 1);
        // An empty slice would look like a peer that reads nothing.
        let parts = [pending.as_slice()].into_iter().chain(pieces.iter().copied());
        slices.extend(parts.filter(|part| !part.is_empty()).map(IoSlice::new));
        self.write_paced(&mut slices, pace).await?;
        pending.clear();
        self.pending = pending;
        Ok(())
    }

    async fn send_sealed(&mut self, pieces: &[&[u8]], pace: &mut Pace) -> Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        for part in pieces.iter().flat_map(|piece| piece.chunks(CHUNK)) {
            let sealer = self.sealer.as_mut().expect("the caller checked");
            sealer.chunk(&mut pending, part);
            if pending.len() >= BATCH {
                self.write_paced(&mut [IoSlice::new(&pending)], pace).await?;
                pending.clear();
            }
        }
        if !pending.is_empty() {
            self.write_paced(&mut [IoSlice::new(&pending)], pace).await?;
        }
        pending.clear();
        pending.shrink_to(4 * BUFFER);
        self.pending = pending;
        Ok(())
    }

    /// Writes all slices at the pace of a transfer.
    async fn write_paced(&mut self, mut rest: &mut [IoSlice<'_>], pace: &mut Pace) -> Result<()> {
        while !rest.is_empty() {
            let some = rest.len().min(SLICES);
            match pace.step(self.writing.write_vectored(&rest[..some])).await {
                None => return Err(gone(&slow())),
                Some(Ok(0)) => return Err(gone(&io::ErrorKind::WriteZero.into())),
                Some(Ok(count)) => IoSlice::advance_slices(&mut rest, count),
                Some(Err(error)) => return Err(gone(&error)),
            }
        }
        Ok(())
    }

    /// Shuts down the sending direction.
    pub(crate) async fn close(&mut self) {
        // Fails if the peer has disconnected already, which is fine.
        let _ = timeout(self.patience, self.writing.shutdown()).await;
    }
}

/// The error for a broken connection.
pub(crate) fn gone(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, format!("the connection broke: {error}"))
}

fn slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer does not read its answers")
}

/// The body of the next frame, which must be of this kind.
pub(crate) async fn message(frame_reader: &mut FrameReader, kind: FrameKind) -> Result<Vec<u8>> {
    let left = || Error::new(ErrorKind::Unreachable, "the peer disconnected during the handshake");
    frame_reader.message(kind).await?.ok_or_else(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::tests::one_turn;
    use forebay_model::{Error, ErrorKind, Job};
    use forebay_wire::{
        Agreed, Channel, ConnectionKey, Hello, Initiator, Key, VERSION, answer_opening, body,
    };
    use tokio::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(60);

    async fn pace() -> Pace {
        Pace::new(one_turn().await, None, 1 << 20, PATIENCE, Instant::now() + PATIENCE)
    }

    #[tokio::test]
    async fn frames_and_payloads_round_trip() {
        for payload in [0usize, 1, 100, 5000, 70_000] {
            let (near, far) = tokio::io::duplex(1 << 20);
            let (_, near) = tokio::io::split(near);
            let (far, _) = tokio::io::split(far);
            let mut send_queue = SendQueue::new(Box::new(near), PATIENCE);
            let bytes: Vec<u8> = (0..payload).map(|i| i as u8).collect();
            let (one, two) = bytes.split_at(payload / 3);
            send_queue.answer(6, &Err(ErrorKind::Busy.into()), None);
            send_queue.announce(7, payload as u32).unwrap();
            send_queue.send_data(&[one, &[]], &mut pace().await).await.unwrap();
            send_queue.send_data(&[two], &mut pace().await).await.unwrap();
            drop(send_queue);

            let mut frame_reader = FrameReader::new(Box::new(far));
            assert!(frame_reader.need(HEADER).await.unwrap());
            let first = frame_reader.take_header().unwrap();
            assert!(frame_reader.need(first.body as usize).await.unwrap());
            let answer: Answer = body(&frame_reader.held()[..first.body as usize]).unwrap();
            assert_eq!((first.id, answer), (6, Err(ErrorKind::Busy.into())));
            frame_reader.consume(first.body as usize);
            assert!(frame_reader.need(HEADER).await.unwrap());
            let second = frame_reader.take_header().unwrap();
            assert_eq!((second.id, second.payload as usize), (7, payload));
            assert!(frame_reader.need(second.body as usize).await.unwrap());
            frame_reader.consume(second.body as usize);
            let mut got = vec![0; payload];
            let mut at = 0;
            while at < payload {
                at += frame_reader.read_into(&mut got[at..]).await.unwrap();
            }
            assert!(got == bytes && !frame_reader.need(1).await.unwrap());
        }
    }

    /// Session keys of both ends: the client's and the server's.
    fn agree() -> (Agreed, Agreed) {
        let job = Job { label: "1".into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 1 };
        let hello = Hello { version: VERSION, channel: Channel::Data, client: 1, job, roster: None };
        let key = ConnectionKey::from(Key::new([1; 32]));
        let (initiator, opening) = Initiator::open(&key, Security::None, &hello).unwrap();
        let answered = answer_opening(&opening, &key, Security::None).unwrap();
        (initiator.finish(&answered.challenge).unwrap(), answered.agreed)
    }

    #[tokio::test]
    async fn sealed_payloads_round_trip_into_buffers_of_any_size() {
        for level in [Security::Authenticate, Security::Encrypt] {
            for (payload, place) in
                [(1, 1), (5000, 7), (200_000, 1000), (200_000, 70_000), (200_000, 200_000)]
            {
                let (near, far) = tokio::io::duplex(1 << 20);
                let ((_, near), (far, _)) = (tokio::io::split(near), tokio::io::split(far));
                let (client, server) = agree();
                let mut send_queue = SendQueue::new(Box::new(near), PATIENCE);
                let mut frame_reader = FrameReader::new(Box::new(far));
                send_queue.seal(server.sealer);
                frame_reader.seal(client.opener);
                send_queue.agree(level);
                frame_reader.agree(level);
                let bytes: Vec<u8> = (0..payload).map(|i| (i / 3) as u8).collect();
                let (one, two) = bytes.split_at(payload / 3);
                send_queue.answer(6, &Err(ErrorKind::Busy.into()), None);
                send_queue.announce(7, payload as u32).unwrap();
                send_queue.send_data(&[one, &[]], &mut pace().await).await.unwrap();
                send_queue.send_data(&[two], &mut pace().await).await.unwrap();
                send_queue.answer(8, &Err(ErrorKind::Busy.into()), None);
                send_queue.flush().await.unwrap();
                for (id, len) in [(6, 0), (7, payload), (8, 0)] {
                    let header = loop {
                        match frame_reader.frame().unwrap() {
                            Some(header) => break header,
                            None => assert!(frame_reader.fill_frame().await.unwrap()),
                        }
                    };
                    assert_eq!((header.id, header.payload as usize), (id, len));
                    frame_reader.consume(header.body as usize);
                    let (mut got, mut at) = (vec![0; len], 0);
                    while at < len {
                        let end = len.min(at + place);
                        at += frame_reader.read_into(&mut got[at..end]).await.unwrap();
                    }
                    assert!(len == 0 || got == bytes, "{level} {payload} {place}");
                }
            }
        }
    }

    #[tokio::test]
    async fn body_larger_than_the_buffer_is_read_and_its_memory_released() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (_, near) = tokio::io::split(near);
        let (far, _) = tokio::io::split(far);
        let mut send_queue = SendQueue::new(Box::new(near), PATIENCE);
        let long = Answer::Err(Error::new(ErrorKind::Io, "x".repeat(200_000)));
        send_queue.answer(1, &long, None);
        send_queue.flush().await.unwrap();
        let mut frame_reader = FrameReader::new(Box::new(far));
        assert!(frame_reader.need(HEADER).await.unwrap());
        let header = frame_reader.take_header().unwrap();
        assert!(frame_reader.need(header.body as usize).await.unwrap());
        assert_eq!(body::<Answer>(&frame_reader.held()[..header.body as usize]).unwrap(), long);
        frame_reader.consume(header.body as usize);
        assert_eq!(frame_reader.buffer.len(), BUFFER);
        send_queue.answer(2, &Err(Error::new(ErrorKind::Io, "x".repeat(600_000))), None);
        send_queue.flush().await.unwrap();
        assert!(frame_reader.need(HEADER).await.unwrap());
        let header = frame_reader.take_header().unwrap();
        assert!(frame_reader.need(header.body as usize).await.unwrap());
        let answer = body::<Answer>(&frame_reader.held()[..header.body as usize]).unwrap();
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
