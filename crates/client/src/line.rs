//! The control connection: many calls under way at once, answered in any order.
//!
//! A caller encodes its frame into the outbox and, when nobody else is writing, writes it to the socket itself;
//! what the socket does not take at once a flusher sends later. So a caller that gives up in the middle never
//! leaves half a frame behind. A reader hands the answers out. When the connection breaks, every waiting caller
//! is told whether any byte of its request had left.

use crate::queue::Queue;
use crate::retry::Trouble;
use crate::socket::Writer;
use crate::transport::{Inbox, Pipe, poll_send, stream_error};
use forebay_model::{Error, ErrorKind, Identity, Result};
use forebay_wire::{Answer, FrameKind, Request, Welcome, frame};
use serde::Serialize;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use tokio::task::AbortHandle;

/// A call without owning its parts; encoded just as [`forebay_wire::Call`].
#[derive(Serialize)]
pub(crate) struct CallRef<'a> {
    pub(crate) identity: Option<&'a Identity>,
    pub(crate) request: &'a Request,
}

type Outcome = Result<Answer, Trouble>;

struct Pending {
    tell: oneshot::Sender<Outcome>,
    /// Where its frame starts in the stream of all bytes ever sent.
    start: u64,
    /// Held until the answer is here, also for a caller that went away: what the server has to answer is bounded.
    _permit: Option<OwnedSemaphorePermit>,
}

enum State {
    Open {
        writer: Writer,
        /// Encoded frames, the first `gone` bytes of which have left.
        outbox: Vec<u8>,
        gone: usize,
        /// Whether the flusher waits for the socket; only it may write then.
        flushing: bool,
    },
    Broken(Error),
}

struct Inner {
    state: State,
    /// Bytes that left.
    written: u64,
    next_id: u64,
    pending: HashMap<u64, Pending>,
}

struct Shared {
    inner: Mutex<Inner>,
    flush: Notify,
}

/// One life of the control connection.
pub(crate) struct Line {
    shared: Arc<Shared>,
    welcome: Welcome,
    tasks: [AbortHandle; 2],
    pub(crate) queue: Queue,
}

impl Line {
    pub(crate) fn start(pipe: Pipe, welcome: Welcome) -> Line {
        let state = State::Open { writer: pipe.writer, outbox: Vec::new(), gone: 0, flushing: false };
        let inner = Inner { state, written: 0, next_id: 1, pending: HashMap::new() };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), flush: Notify::new() });
        let reader = tokio::spawn(Shared::read(shared.clone(), pipe.inbox));
        let flusher = tokio::spawn(Shared::flush(shared.clone()));
        Line {
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

    /// What broke it, if it is broken.
    pub(crate) fn fault(&self) -> Option<Error> {
        match &self.shared.lock().state {
            State::Broken(error) => Some(error.clone()),
            State::Open { .. } => None,
        }
    }

    /// Gives the connection up.
    pub(crate) fn give_up(&self, error: &Error) {
        self.shared.fail(error);
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn call(&self, call: &CallRef<'_>, permit: Option<OwnedSemaphorePermit>) -> Outcome {
        let answer = self.shared.ask(call, permit).map_err(Trouble::unsent)?;
        answer.await.unwrap_or_else(|_| {
            let error = Error::new(ErrorKind::Unreachable, "the client's runtime ended");
            Err(Trouble { sent: true, error })
        })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.shared.fail(&Error::new(ErrorKind::Unreachable, "the client closed the connection"));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it holds a line")
    }

    fn ask(
        &self,
        call: &CallRef<'_>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<oneshot::Receiver<Outcome>> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let id = inner.next_id;
        let start = match &mut inner.state {
            State::Broken(error) => return Err(error.clone()),
            State::Open { outbox, gone, .. } => {
                let start = inner.written + (outbox.len() - *gone) as u64;
                frame(outbox, FrameKind::Call, id, call, 0).map_err(|error| {
                    Error::new(ErrorKind::Invalid, format!("the request is too large: {error}"))
                })?;
                start
            }
        };
        inner.next_id += 1;
        let (tell, answer) = oneshot::channel();
        inner.pending.insert(id, Pending { tell, start, _permit: permit });
        match inner.push(&mut Context::from_waker(Waker::noop()), false) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => inner.fail(&error),
            Poll::Pending => self.flush.notify_one(),
        }
        Ok(answer)
    }

    /// Sends what callers could not.
    async fn flush(self: Arc<Shared>) {
        loop {
            self.flush.notified().await;
            let sent = poll_fn(|context| self.lock().push(context, true)).await;
            if let Err(error) = sent {
                return self.fail(&error);
            }
        }
    }

    /// Hands out answers until the connection breaks.
    async fn read(self: Arc<Shared>, mut inbox: Inbox) {
        loop {
            let frame = inbox.frame::<Answer>(FrameKind::Answer, usize::MAX / 2).await;
            let fault = match frame {
                Ok((header, answer)) => match self.lock().pending.remove(&header.id) {
                    Some(pending) if header.payload == 0 => {
                        // A caller that went away does not mind.
                        let _ = pending.tell.send(Ok(answer));
                        continue;
                    }
                    Some(_) => Error::new(ErrorKind::Protocol, "the service sent a payload nobody asked for"),
                    None => Error::new(
                        ErrorKind::Protocol,
                        format!("the service answered {}, which was not asked", header.id),
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
    /// Writes as much of the outbox as the socket takes. While the flusher waits for the socket, callers leave
    /// it alone: the socket wakes the one who asked last.
    fn push(&mut self, context: &mut Context<'_>, flusher: bool) -> Poll<Result<()>> {
        let State::Open { writer, outbox, gone, flushing } = &mut self.state else {
            return Poll::Ready(Ok(()));
        };
        if *flushing && !flusher {
            return Poll::Ready(Ok(()));
        }
        while *gone < outbox.len() {
            match poll_send(writer, context, &outbox[*gone..], &[]) {
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
        outbox.clear();
        (*gone, *flushing) = (0, false);
        Poll::Ready(Ok(()))
    }

    fn fail(&mut self, error: &Error) {
        if let State::Open { .. } = self.state {
            self.state = State::Broken(error.clone());
        }
        for (_, pending) in self.pending.drain() {
            let trouble = Trouble { sent: pending.start < self.written, error: error.clone() };
            let _ = pending.tell.send(Err(trouble));
        }
    }
}
