//! The control connection: many concurrent calls, answered in any order.
//!
//! A caller encodes its frame into the send queue and, if no other task is writing, writes it to the socket itself. A
//! flusher sends the bytes that the socket does not accept at once, so a cancelled caller never leaves half a frame. A
//! reader dispatches the answers. When the connection breaks, every waiting caller learns whether any byte of its
//! request had been sent.

use crate::queue::Queue;
use crate::retry::AttemptError;
use crate::socket::Writer;
use crate::transport::{FrameReader, Pipe, poll_send, stream_error};
use forebay_model::{Error, ErrorKind, Identity, Result};
use forebay_wire::{Answer, FrameKind, Request, Sealer, Welcome, frame_with};
use serde::Serialize;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use tokio::task::AbortHandle;

/// A call that borrows its parts; encoded like [`forebay_wire::Call`].
#[derive(Serialize)]
pub(crate) struct CallRef<'a> {
    pub(crate) identity: Option<&'a Identity>,
    pub(crate) request: &'a Request,
}

type Outcome = Result<Answer, AttemptError>;

struct Pending {
    notify: oneshot::Sender<Outcome>,
    /// Offset of its frame in the stream of all bytes sent.
    start: u64,
    /// Held until the answer arrives, even if the caller is cancelled: this bounds the number of outstanding requests.
    _permit: Option<OwnedSemaphorePermit>,
}

enum State {
    Open {
        writer: Writer,
        /// Seals frames as they enter the send queue; they are sent in the same order.
        sealer: Option<Sealer>,
        /// Encoded frames, of which the first `gone` bytes have been sent.
        send_queue: Vec<u8>,
        gone: usize,
        /// Whether the flusher waits for the socket. Only the flusher may write then.
        flushing: bool,
    },
    Broken(Error),
}

struct Inner {
    state: State,
    /// Number of bytes sent.
    written: u64,
    next_id: u64,
    pending: HashMap<u64, Pending>,
}

struct Shared {
    inner: Mutex<Inner>,
    flush: Notify,
}

/// One control connection. A session opens another one when it breaks.
pub(crate) struct ControlConnection {
    shared: Arc<Shared>,
    welcome: Welcome,
    tasks: [AbortHandle; 2],
    pub(crate) queue: Queue,
}

impl ControlConnection {
    pub(crate) fn start(pipe: Pipe, welcome: Welcome) -> ControlConnection {
        let Pipe { frame_reader, writer, sealer, .. } = pipe;
        let state = State::Open { writer, sealer, send_queue: Vec::new(), gone: 0, flushing: false };
        let inner = Inner { state, written: 0, next_id: 1, pending: HashMap::new() };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), flush: Notify::new() });
        let reader = tokio::spawn(Shared::read(shared.clone(), frame_reader));
        let flusher = tokio::spawn(Shared::flush(shared.clone()));
        ControlConnection {
            shared,
            welcome,
            tasks: [reader.abort_handle(), flusher.abort_handle()],
            queue: Queue::default(),
        }
    }

    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.shared.lock().state, State::Broken(_))
    }

    /// The error that broke the connection, if it is broken.
    pub(crate) fn fault(&self) -> Option<Error> {
        match &self.shared.lock().state {
            State::Broken(error) => Some(error.clone()),
            State::Open { .. } => None,
        }
    }

    /// Closes the connection with an error.
    pub(crate) fn give_up(&self, error: &Error) {
        self.shared.fail(error);
    }

    /// Sends a request and waits for the answer.
    pub(crate) async fn call(&self, call: &CallRef<'_>, permit: Option<OwnedSemaphorePermit>) -> Outcome {
        let answer = self.shared.enqueue(call, permit).map_err(AttemptError::unsent)?;
        answer.await.unwrap_or_else(|_| {
            let error = Error::new(ErrorKind::Unreachable, "the client's runtime ended");
            Err(AttemptError { sent: true, error })
        })
    }
}

impl Drop for ControlConnection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.shared.fail(&Error::new(ErrorKind::Unreachable, "the client closed the connection"));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no thread panics while it holds this lock")
    }

    fn enqueue(
        &self,
        call: &CallRef<'_>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<oneshot::Receiver<Outcome>> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let id = inner.next_id;
        let start = match &mut inner.state {
            State::Broken(error) => return Err(error.clone()),
            State::Open { sealer, send_queue, gone, .. } => {
                let start = inner.written + (send_queue.len() - *gone) as u64;
                frame_with(sealer.as_mut(), send_queue, FrameKind::Call, id, call, 0).map_err(|error| {
                    Error::new(ErrorKind::Invalid, format!("the request is too large: {error}"))
                })?;
                start
            }
        };
        inner.next_id += 1;
        let (notify, answer) = oneshot::channel();
        inner.pending.insert(id, Pending { notify, start, _permit: permit });
        match inner.push(&mut Context::from_waker(Waker::noop()), false) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => inner.fail(&error),
            Poll::Pending => self.flush.notify_one(),
        }
        Ok(answer)
    }

    /// Sends the bytes that callers could not send.
    async fn flush(self: Arc<Shared>) {
        loop {
            self.flush.notified().await;
            let sent = poll_fn(|context| self.lock().push(context, true)).await;
            if let Err(error) = sent {
                return self.fail(&error);
            }
        }
    }

    /// Dispatches answers until the connection breaks.
    async fn read(self: Arc<Shared>, mut frame_reader: FrameReader) {
        loop {
            let frame = frame_reader.frame::<Answer>(FrameKind::Answer, usize::MAX / 2).await;
            let fault = match frame {
                Ok((header, answer)) => match self.lock().pending.remove(&header.id) {
                    Some(pending) if header.payload == 0 => {
                        // The caller may have been cancelled.
                        let _ = pending.notify.send(Ok(answer));
                        continue;
                    }
                    Some(_) => Error::new(ErrorKind::Protocol, "the service sent an unrequested payload"),
                    None => Error::new(
                        ErrorKind::Protocol,
                        format!("the service answered request {}, which is not outstanding", header.id),
                    ),
                },
                Err(error) => error,
            };
            return self.fail(&fault);
        }
    }

    fn fail(&self, error: &Error) {
        self.lock().fail(error);
    }
}

impl Inner {
    /// Writes as much of the send queue as the socket accepts. Callers do not write while the flusher waits for the
    /// socket, since the socket wakes only the task that polled last.
    fn push(&mut self, context: &mut Context<'_>, flusher: bool) -> Poll<Result<()>> {
        let State::Open { writer, send_queue, gone, flushing, .. } = &mut self.state else {
            return Poll::Ready(Ok(()));
        };
        if *flushing && !flusher {
            return Poll::Ready(Ok(()));
        }
        while *gone < send_queue.len() {
            match poll_send(writer, context, &send_queue[*gone..], &[]) {
                Poll::Ready(Ok(count)) => {
                    *gone += count;
                    self.written += count as u64;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(stream_error(&error))),
                Poll::Pending => {
                    *flushing = true;
                    return Poll::Pending;
                }
            }
        }
        send_queue.clear();
        (*gone, *flushing) = (0, false);
        Poll::Ready(Ok(()))
    }

    fn fail(&mut self, error: &Error) {
        if let State::Open { .. } = self.state {
            self.state = State::Broken(error.clone());
        }
        for (_, pending) in self.pending.drain() {
            let failure = AttemptError { sent: pending.start < self.written, error: error.clone() };
            let _ = pending.notify.send(Err(failure));
        }
    }
}
