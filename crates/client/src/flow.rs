//! The frames of one transfer on one data connection. Several frames are in flight before the first answer arrives.
//!
//! Payload moves directly between the caller's memory and the socket. An error from the server stops the sender, but
//! the transfer ends only when every frame that was sent has been answered: the connection stays in sync.

use crate::control::CallRef;
use crate::data::{Lease, Pool};
use crate::session::Who;
use crate::socket::Writer;
use crate::transport::{FrameReader, send};
use forebay_model::{Error, ErrorKind, shown_time};
use forebay_wire::{Answer, At, CHUNK, FrameKind, Reply, Request, Sealer, Token, frame_with};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

/// Number of frames in flight in addition to the one whose answer is awaited.
const WINDOW: usize = 4;
/// Sealed payload is sent in batches of this size.
const BATCH: usize = 2 * CHUNK;
/// A payload up to this size is read together with its header: copying it costs less than a system call.
const SMALL: usize = 8 << 10;

/// The open file of a transfer, and the identity on whose behalf it is used.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) who: &'a Who,
    pub(crate) token: Token,
}

/// Why a transfer ended early.
pub(crate) enum Failure {
    /// The server returned an error; the connection is in sync.
    Answered(Error),
    /// The connection cannot be used again.
    Broken(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Broken(error)
    }
}

/// Progress of a transfer. The caller owns it, so that it is known even if an attempt fails.
#[derive(Default)]
pub(crate) struct Progress {
    /// Bytes that the server acknowledged or delivered, without gaps.
    pub(crate) done: usize,
    /// Whether a byte has been sent.
    pub(crate) sent: bool,
    /// The offset of the first frame of a write.
    pub(crate) start: u64,
    /// Whether the file ended or the server returned an error; later answers are ignored.
    end: bool,
}

/// State shared by the sender and the receiver of a transfer.
struct Flow<'a> {
    target: Target<'a>,
    pool: &'a Pool,
    first: u64,
    size: usize,
    /// Deadline of the first answer, and timeout of each further one.
    deadline: Instant,
    patience: Duration,
    stop: AtomicBool,
}

impl<'p> Lease<'p> {
    fn flow<'a>(&mut self, target: Target<'a>, len: usize) -> Flow<'a>
    where
        'p: 'a,
    {
        let (first, size) = (self.connection.next_id, self.connection.max_payload);
        self.connection.next_id += len.div_ceil(size) as u64;
        let (deadline, patience, stop) = (self.deadline, self.patience, AtomicBool::new(false));
        Flow { target, pool: self.pool(), first, size, deadline, patience, stop }
    }

    /// Writes all of `data` from an offset on, or appends it as one frame.
    pub(crate) async fn write(
        &mut self,
        target: Target<'_>,
        at: At,
        data: &[u8],
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let flow = self.flow(target, data.len());
        let pipe = &mut self.connection.pipe;
        let (issue, issued) = mpsc::channel(WINDOW);
        let Progress { done, start, sent, end } = progress;
        let sending = flow.send_writes(&mut pipe.writer, &mut pipe.sealer, issue, at, data, sent);
        let receiving = flow.receive_written(&mut pipe.frame_reader, issued, data.len(), done, start, end);
        tokio::try_join!(sending, receiving).map(drop)
    }

    /// Reads into `into` from an offset on, up to the end of the file.
    pub(crate) async fn read(
        &mut self,
        target: Target<'_>,
        offset: u64,
        into: &mut [u8],
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let flow = self.flow(target, into.len());
        let pipe = &mut self.connection.pipe;
        let (issue, issued) = mpsc::channel(WINDOW);
        let Progress { done, sent, end, .. } = progress;
        let sending = flow.send_reads(&mut pipe.writer, &mut pipe.sealer, issue, offset, into.len(), sent);
        let receiving = flow.receive_data(&mut pipe.frame_reader, issued, into, done, end);
        tokio::try_join!(sending, receiving).map(drop)
    }
}

impl Flow<'_> {
    async fn send_writes(
        &self,
        writer: &mut Writer,
        sealer: &mut Option<Sealer>,
        issue: mpsc::Sender<usize>,
        at: At,
        data: &[u8],
        sent: &mut bool,
    ) -> Result<(), Failure> {
        let mut head = Vec::with_capacity(128);
        for (index, piece) in data.chunks(self.size).enumerate() {
            if !self.may_issue(&issue, index).await {
                break;
            }
            let at = match at {
                At::Offset(offset) => At::Offset(offset + (index * self.size) as u64),
                At::End => At::End,
            };
            let request = Request::Write { token: self.target.token, at };
            self.encode(sealer, &mut head, index, &request, piece.len())?;
            match sealer {
                None => send(writer, &head, piece, sent).await?,
                Some(sealer) => send_sealed(writer, sealer, &mut head, piece, sent).await?,
            }
        }
        Ok(())
    }

    async fn send_reads(
        &self,
        writer: &mut Writer,
        sealer: &mut Option<Sealer>,
        issue: mpsc::Sender<usize>,
        offset: u64,
        total: usize,
        sent: &mut bool,
    ) -> Result<(), Failure> {
        let mut head = Vec::with_capacity(128);
        for (index, start) in (0..total).step_by(self.size).enumerate() {
            if !self.may_issue(&issue, index).await {
                break;
            }
            let len = self.size.min(total - start) as u32;
            let request = Request::Read { token: self.target.token, offset: offset + start as u64, len };
            self.encode(sealer, &mut head, index, &request, 0)?;
            send(writer, &head, &[], sent).await?;
        }
        Ok(())
    }

    async fn receive_written(
        &self,
        frame_reader: &mut FrameReader,
        mut issued: mpsc::Receiver<usize>,
        total: usize,
        done: &mut usize,
        start: &mut u64,
        end: &mut bool,
    ) -> Result<(), Failure> {
        let (mut refused, mut deadline) = (None, self.deadline);
        while let Some(index) = issued.recv().await {
            match self.answer(frame_reader, index, 0, &mut deadline).await? {
                (Ok(Reply::Written { offset }), 0) => {
                    if index == 0 {
                        *start = offset;
                    }
                    if !*end {
                        *done = total.min((index + 1) * self.size);
                    }
                }
                (Ok(_), _) | (_, 1..) => return Err(wrong_reply("a write").into()),
                (Err(error), 0) => {
                    *end = true;
                    self.refuse(&mut refused, error);
                }
            }
        }
        refused.map_or(Ok(()), |error| Err(Failure::Answered(error)))
    }

    async fn receive_data(
        &self,
        frame_reader: &mut FrameReader,
        mut issued: mpsc::Receiver<usize>,
        into: &mut [u8],
        done: &mut usize,
        end: &mut bool,
    ) -> Result<(), Failure> {
        let (mut refused, mut deadline) = (None, self.deadline);
        let mut pieces = into.chunks_mut(self.size);
        while let (Some(index), Some(piece)) = (issued.recv().await, pieces.next()) {
            let ahead = if piece.len() <= SMALL { frame_reader.on_the_wire(piece.len()) } else { 0 };
            let len = match self.answer(frame_reader, index, ahead, &mut deadline).await? {
                (Ok(Reply::Data), len) if len <= piece.len() => len,
                (Ok(_), _) | (_, 1..) => return Err(wrong_reply("a read").into()),
                (Err(error), 0) => {
                    *end = true;
                    self.refuse(&mut refused, error);
                    continue;
                }
            };
            let payload = frame_reader.payload(&mut piece[..len]);
            timeout(self.patience, payload).await.map_err(|_| silent(self.patience))??;
            if !*end {
                *done += len;
                *end = len < piece.len();
            }
        }
        refused.map_or(Ok(()), |error| Err(Failure::Answered(error)))
    }

    /// Waits until another frame may be sent; returns false if the transfer should send no more.
    async fn may_issue(&self, issue: &mpsc::Sender<usize>, index: usize) -> bool {
        !self.stop.load(Ordering::Relaxed) && issue.send(index).await.is_ok()
    }

    fn encode(
        &self,
        sealer: &mut Option<Sealer>,
        head: &mut Vec<u8>,
        index: usize,
        request: &Request,
        payload: usize,
    ) -> Result<(), Failure> {
        head.clear();
        let call = CallRef { identity: self.target.who.as_deref(), request };
        let id = self.first + index as u64;
        Ok(frame_with(sealer.as_mut(), head, FrameKind::Call, id, &call, payload as u32)?)
    }

    /// Receives the answer to a frame and the length of its payload. Then the timeout of the next answer starts.
    async fn answer(
        &self,
        frame_reader: &mut FrameReader,
        index: usize,
        ahead: usize,
        deadline: &mut Instant,
    ) -> Result<(Answer, usize), Failure> {
        let frame = frame_reader.frame::<Answer>(FrameKind::Answer, ahead);
        let (header, answer) = timeout_at(*deadline, frame).await.map_err(|_| silent(self.patience))??;
        self.pool.note_answer();
        *deadline = Instant::now() + self.patience;
        let id = self.first + index as u64;
        if header.id != id {
            let text = format!("the service answered request {} instead of {id}", header.id);
            return Err(Error::new(ErrorKind::Protocol, text).into());
        }
        Ok((answer, header.payload as usize))
    }

    fn refuse(&self, refused: &mut Option<Error>, error: Error) {
        self.stop.store(true, Ordering::Relaxed);
        refused.get_or_insert(error);
    }
}

/// Sends `head` and then the payload in sealed chunks.
async fn send_sealed(
    writer: &mut Writer,
    sealer: &mut Sealer,
    head: &mut Vec<u8>,
    payload: &[u8],
    sent: &mut bool,
) -> Result<(), Error> {
    for part in payload.chunks(CHUNK) {
        sealer.chunk(head, part);
        if head.len() >= BATCH {
            send(writer, head, &[], sent).await?;
            head.clear();
        }
    }
    send(writer, head, &[], sent).await
}

fn silent(patience: Duration) -> Error {
    Error::new(ErrorKind::TimedOut, format!("no answer within {}", shown_time(patience)))
}

fn wrong_reply(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("the service answered {what} with the wrong kind of reply"))
}
