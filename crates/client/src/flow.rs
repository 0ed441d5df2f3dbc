//! Frames of one transfer on one data connection: several are under way before the first answer is back.
//!
//! Payload goes from the caller's bytes to the socket, and from the socket to the caller's bytes. An error from
//! the server stops the sending, but every frame that left is answered before the transfer ends: the connection
//! stays in step.

use crate::data::Lease;
use crate::line::CallRef;
use crate::session::Who;
use crate::socket::Writer;
use crate::transport::{Inbox, send};
use forebay_model::{Error, ErrorKind};
use forebay_wire::{Answer, At, FrameKind, Reply, Request, Token, frame};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Frames that wait behind the one whose answer is awaited.
const WINDOW: usize = 4;
/// A payload up to this size is read together with its header: a copy of it costs less than a system call.
const SMALL: usize = 8 << 10;

/// The open file of a transfer, and on whose behalf it is used.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) who: &'a Who,
    pub(crate) token: Token,
}

/// Why a transfer ended early.
pub(crate) enum Failure {
    /// The server said so; the connection is in step.
    Answered(Error),
    /// The connection cannot be used any more.
    Broken(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Broken(error)
    }
}

/// How far a transfer came: kept by the caller, so that it knows also when an attempt fails.
#[derive(Default)]
pub(crate) struct Progress {
    /// Bytes that the server has acknowledged or delivered, without a gap.
    pub(crate) done: usize,
    /// Whether a byte has left.
    pub(crate) sent: bool,
    /// Where the first frame of a write went.
    pub(crate) start: u64,
    /// Whether the end of the file was met, or the server refused: what comes later does not count.
    end: bool,
}

/// What sender and receiver of a transfer share.
struct Flow<'a> {
    target: Target<'a>,
    first: u64,
    size: usize,
    patience: Duration,
    stop: AtomicBool,
}

impl Lease<'_> {
    fn flow<'a>(&mut self, target: Target<'a>, len: usize) -> Flow<'a> {
        let (first, size) = (self.connection.next_id, self.connection.max_payload);
        self.connection.next_id += len.div_ceil(size) as u64;
        Flow { target, first, size, patience: self.patience, stop: AtomicBool::new(false) }
    }

    /// Writes all of `data` from an offset on, or one frame at the end of the file.
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
        let sending = flow.send_writes(&mut pipe.writer, issue, at, data, sent);
        let receiving = flow.receive_written(&mut pipe.inbox, issued, data.len(), done, start, end);
        tokio::try_join!(sending, receiving).map(drop)
    }

    /// Fills `into` from an offset on, as far as the file goes.
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
        let sending = flow.send_reads(&mut pipe.writer, issue, offset, into.len());
        let receiving = flow.receive_data(&mut pipe.inbox, issued, into, progress);
        tokio::try_join!(sending, receiving).map(drop)
    }
}

impl Flow<'_> {
    async fn send_writes(
        &self,
        writer: &mut Writer,
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
            self.encode(&mut head, index, &Request::Write { token: self.target.token, at }, piece.len())?;
            send(writer, &head, piece, sent).await?;
        }
        Ok(())
    }

    async fn send_reads(
        &self,
        writer: &mut Writer,
        issue: mpsc::Sender<usize>,
        offset: u64,
        total: usize,
    ) -> Result<(), Failure> {
        let mut head = Vec::with_capacity(128);
        for (index, start) in (0..total).step_by(self.size).enumerate() {
            if !self.may_issue(&issue, index).await {
                break;
            }
            let len = self.size.min(total - start) as u32;
            let request = Request::Read { token: self.target.token, offset: offset + start as u64, len };
            self.encode(&mut head, index, &request, 0)?;
            send(writer, &head, &[], &mut false).await?;
        }
        Ok(())
    }

    async fn receive_written(
        &self,
        inbox: &mut Inbox,
        mut issued: mpsc::Receiver<usize>,
        total: usize,
        done: &mut usize,
        start: &mut u64,
        end: &mut bool,
    ) -> Result<(), Failure> {
        let mut refused = None;
        while let Some(index) = issued.recv().await {
            match self.answer(inbox, index, 0).await? {
                (Ok(Reply::Written { offset }), 0) => {
                    if index == 0 {
                        *start = offset;
                    }
                    if !*end {
                        *done = total.min((index + 1) * self.size);
                    }
                }
                (Ok(_), _) | (_, 1..) => return Err(nonsense("a write").into()),
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
        inbox: &mut Inbox,
        mut issued: mpsc::Receiver<usize>,
        into: &mut [u8],
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let mut refused = None;
        let mut pieces = into.chunks_mut(self.size);
        while let (Some(index), Some(piece)) = (issued.recv().await, pieces.next()) {
            let ahead = if piece.len() <= SMALL { piece.len() } else { 0 };
            let len = match self.answer(inbox, index, ahead).await? {
                (Ok(Reply::Data), len) if len <= piece.len() => len,
                (Ok(_), _) | (_, 1..) => return Err(nonsense("a read").into()),
                (Err(error), 0) => {
                    progress.end = true;
                    self.refuse(&mut refused, error);
                    continue;
                }
            };
            let payload = inbox.payload(&mut piece[..len]);
            timeout(self.patience, payload).await.map_err(|_| silent(self.patience))??;
            if !progress.end {
                progress.done += len;
                progress.end = len < piece.len();
            }
        }
        refused.map_or(Ok(()), |error| Err(Failure::Answered(error)))
    }

    /// Waits until another frame may leave; false where none should.
    async fn may_issue(&self, issue: &mpsc::Sender<usize>, index: usize) -> bool {
        !self.stop.load(Ordering::Relaxed) && issue.send(index).await.is_ok()
    }

    fn encode(
        &self,
        head: &mut Vec<u8>,
        index: usize,
        request: &Request,
        payload: usize,
    ) -> Result<(), Failure> {
        head.clear();
        let call = CallRef { identity: self.target.who.as_deref(), request };
        Ok(frame(head, FrameKind::Call, self.first + index as u64, &call, payload as u32)?)
    }

    /// The answer to a frame, and the length of its payload.
    async fn answer(
        &self,
        inbox: &mut Inbox,
        index: usize,
        ahead: usize,
    ) -> Result<(Answer, usize), Failure> {
        let frame = inbox.frame::<Answer>(FrameKind::Answer, ahead);
        let (header, answer) = timeout(self.patience, frame).await.map_err(|_| silent(self.patience))??;
        let id = self.first + index as u64;
        if header.id != id {
            let text = format!("the service answered {} where {id} was next", header.id);
            return Err(Error::new(ErrorKind::Protocol, text).into());
        }
        Ok((answer, header.payload as usize))
    }

    fn refuse(&self, refused: &mut Option<Error>, error: Error) {
        self.stop.store(true, Ordering::Relaxed);
        refused.get_or_insert(error);
    }
}

fn silent(patience: Duration) -> Error {
    Error::new(ErrorKind::Unreachable, format!("no answer within {patience:?}"))
}

fn nonsense(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("the service answered {what} with something else"))
}
