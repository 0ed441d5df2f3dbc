//! Requests by a queue in shared memory, if the server is on this machine and runs as the same user: the calling thread
//! puts its request into the queue and waits for the answer itself.
//!
//! Only threads that may block wait for answers ([`waiting_here`]), and only briefly; the runtime, whose timers run,
//! waits for slower answers. Requests that do not fit, carry bulk data, may wait for a device or find no free slot use
//! the socket. A queue belongs to one control connection.

use crate::control::{CallRef, ControlConnection};
use crate::name_cache::NameCache;
use crate::open_with_ring::WithOpen;
use crate::retry::AttemptError;
use crate::session::{Session, Who};
use crate::socket::while_set;
use forebay_model::{Attr, Error, ErrorKind, FileId, Identity};
use forebay_shm::{Answered, Asked, Lease, Looked, QueueClient, Spin};
use forebay_wire::{Answer, FrameKind, HEADER, Header, QueueGrant, Reply, Request, Token, body, frame};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Minimum time for which a thread spins before it sleeps: the time that the server may need to wake up on an idle
/// core.
const MIN_SPIN: Duration = Duration::from_micros(2);
const MAX_SPIN: Duration = Duration::from_micros(200);
/// How long the thread sleeps before it leaves the wait to the runtime.
const PATIENCE: Duration = Duration::from_millis(2);
/// Interval at which the runtime checks whether the connection is alive.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(20);
/// All requests have the same id, since each has its own slot.
const ID: u64 = 1;

static SPIN: Spin = Spin::new(MIN_SPIN, MAX_SPIN);

/// The outcome of a request; `None` if it has to use the socket.
type Outcome = Option<Result<Answer, AttemptError>>;

/// State of a request after the attempt to send it by the queue.
pub(crate) enum Begun {
    /// The answer has arrived.
    Answered(Result<Answer, AttemptError>),
    /// The request was sent; the answer is pending.
    Sent(Arc<ControlConnection>, Asked),
    /// The request has to use the socket.
    UseSocket,
    /// The request was not sent.
    NotSent,
}

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
    static WAIT_HOOK: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Replies to the requests that were sent with an open, and the lease of the answer to the open.
#[derive(Default)]
pub(crate) struct WithAnswer {
    pub(crate) replies: Vec<Reply>,
    pub(crate) lease: Option<Lease>,
}

/// Runs `work`; during it, this thread itself may wait for answers, each time for a few milliseconds at most.
pub fn waiting_here<T>(work: impl FnOnce() -> T) -> T {
    while_set(&HERE, true, work)
}

/// Like [`waiting_here`]; the thread calls `wait_hook` once, while the server opens or creates a file for it.
pub fn waiting_here_with<T>(wait_hook: fn(), work: impl FnOnce() -> T) -> T {
    while_set(&WAIT_HOOK, Some(wait_hook), || waiting_here(work))
}

/// Polls a future once if this thread may wait for answers of the queue. Returns the result if the future needs no
/// other wait; otherwise the future has only been started.
pub(crate) fn at_once<T>(work: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    if !HERE.get() {
        return None;
    }
    match work.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// Whether this thread may wait for the answer to a request, and the request may use the queue.
pub(crate) fn may_use_queue(request: &Request) -> bool {
    HERE.get() && is_short(request)
}

/// The queue of a control connection.
#[derive(Default)]
pub(crate) struct Queue {
    /// Whether the queue was requested. A connection has only one: a second request would replace it.
    requested: AtomicBool,
    /// The server's answer to that; `None` if the server grants no queue.
    granted: OnceLock<Option<Box<QueueGrant>>>,
    /// `None` if this process cannot open the queue.
    shm_queue: OnceLock<Option<ShmQueue>>,
}

impl Queue {
    /// The queue, opened by the first thread that sends a request: the program waits for that thread, so it does not
    /// notice the temporary file descriptors. `None` if the server has not answered yet whether there is a queue.
    fn shm_queue(&self) -> Option<Option<&ShmQueue>> {
        let granted = self.granted.get()?;
        if self.shm_queue.get().is_none() {
            let opened = granted.as_ref().map(|grant| open(grant)).transpose();
            match opened {
                // The current credentials of this thread may not open it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Some(None),
                opened => drop(self.shm_queue.get_or_init(|| opened.ok().flatten())),
            }
        }
        Some(self.open_shm_queue())
    }

    /// The queue, if it is open already.
    fn open_shm_queue(&self) -> Option<&ShmQueue> {
        self.shm_queue.get()?.as_ref()
    }
}

/// The client end of the queue, and the cache of lookup results.
struct ShmQueue {
    client: Arc<QueueClient>,
    name_cache: Option<NameCache>,
}

impl ShmQueue {
    /// Caches a reply that came with a lease.
    fn learn(&self, who: &Who, request: &Request, outcome: &Outcome, lease: Option<Lease>) {
        if let (None, Some(name_cache), Some(lease), Some(Ok(Ok(reply)))) =
            (who, &self.name_cache, lease, outcome)
        {
            name_cache.learn(request, reply, lease);
        }
    }
}

/// Whether request and answer are short, and the request waits only for names and attributes or for an existing ring.
fn is_short(request: &Request) -> bool {
    matches!(
        request,
        Request::Walk { .. }
            | Request::Jump { .. }
            | Request::GetAttr { .. }
            | Request::SetAttr { .. }
            | Request::Open { .. }
            | Request::Create { .. }
            | Request::Reopen { .. }
            | Request::Close { .. }
            | Request::Truncate { .. }
            | Request::TruncateFile { .. }
            | Request::Extend { .. }
            | Request::Punch { .. }
            | Request::MakeDir { .. }
            | Request::MakeSpecial { .. }
            | Request::RemoveDir { .. }
            | Request::Unlink { .. }
            | Request::Rename { .. }
            | Request::Link { .. }
            | Request::Symlink { .. }
            | Request::ReadLink { .. }
            | Request::RemoveXattr { .. }
            | Request::Ring { own: Some(_), .. }
    )
}

impl Session {
    /// Sends a request by the queue of the live connection, if there is one and this thread may wait for the answer.
    pub(crate) fn call_at_once(&self, who: &Who, request: &Request) -> Begun {
        self.call_at_once_with(who, request, None).0
    }

    /// The same, with what the caller wants for the file that the request opens; also returns what came with the answer.
    pub(crate) fn call_at_once_with(
        &self,
        who: &Who,
        request: &Request,
        with_open: Option<WithOpen>,
    ) -> (Begun, WithAnswer) {
        let not_sent = (Begun::NotSent, WithAnswer::default());
        if !may_use_queue(request) || self.pool.has_abandoned() {
            return not_sent;
        }
        let Some(control) = self.live() else { return not_sent };
        let Some(Some(shm_queue)) = control.queue.shm_queue() else { return not_sent };
        match self.call_shm_queue(&control, shm_queue, who, request, with_open) {
            Ok((Some(outcome), with_answer)) => (Begun::Answered(outcome), with_answer),
            Ok((None, _)) => (Begun::UseSocket, WithAnswer::default()),
            Err(asked) => (Begun::Sent(control, asked), WithAnswer::default()),
        }
    }

    /// Sends a request by the connection's queue; `None` if the request has to use the socket. The first caller
    /// requests a queue from the server and does not wait for it. `sent` is true while the server may have received the
    /// request.
    pub(crate) async fn call_by_queue(
        &self,
        control: &Arc<ControlConnection>,
        who: &Who,
        request: &Request,
        sent: &AtomicBool,
    ) -> Outcome {
        let Some(shm_queue) = control.queue.shm_queue() else {
            if !control.queue.requested.swap(true, Ordering::AcqRel) {
                self.runtime.spawn(request_queue(control.clone()));
            }
            return None;
        };
        let shm_queue = shm_queue?;
        match self.call_shm_queue(control, shm_queue, who, request, None) {
            Ok((outcome, _)) => outcome,
            Err(asked) => self.answer_to(control, who, request, asked, sent).await,
        }
    }

    /// Sends a request by the queue and spins for the answer.
    fn call_shm_queue(
        &self,
        control: &ControlConnection,
        shm_queue: &ShmQueue,
        who: &Who,
        request: &Request,
        with_open: Option<WithOpen>,
    ) -> Result<(Outcome, WithAnswer), Asked> {
        let Some(asked) = post(&shm_queue.client, who, request, with_open) else {
            return Ok((None, WithAnswer::default()));
        };
        if let (Request::Open { .. } | Request::Create { .. }, Some(wait_hook)) = (request, WAIT_HOOK.get()) {
            WAIT_HOOK.set(None);
            wait_hook();
        }
        if !spin_for_answer(&asked) {
            return Err(asked);
        }
        let (outcome, replies) = self.take(control, &asked);
        let lease = asked.lease();
        shm_queue.learn(who, request, &outcome, lease);
        Ok((outcome, WithAnswer { replies, lease }))
    }

    /// Waits for the answer to a request that was sent by the queue.
    pub(crate) async fn answer_to(
        &self,
        control: &ControlConnection,
        who: &Who,
        request: &Request,
        asked: Asked,
        sent: &AtomicBool,
    ) -> Outcome {
        sent.store(true, Ordering::Relaxed);
        let (outcome, lease) = Box::pin(self.wait_for(control, asked)).await;
        if let Some(shm_queue) = control.queue.open_shm_queue() {
            shm_queue.learn(who, request, &outcome, lease);
        }
        sent.store(outcome.is_some(), Ordering::Relaxed);
        outcome
    }

    /// Closes an open file without waiting for the answer, if there is a queue with a free slot.
    pub(crate) fn close_now(&self, who: &Who, token: Token) -> bool {
        let Some(control) = self.live() else { return false };
        let Some(Some(shm_queue)) = control.queue.shm_queue() else { return false };
        !self.pool.has_abandoned() && post(&shm_queue.client, who, &Request::Close { token }, None).is_some()
    }

    /// Looks into the name cache of the live connection. The cache is only valid for the identity of this process.
    fn cached<T>(&self, who: &Who, look: impl FnOnce(&NameCache) -> Option<T>) -> Option<T> {
        if who.is_some() {
            return None;
        }
        let control = self.live()?;
        look(control.queue.open_shm_queue()?.name_cache.as_ref()?)
    }

    /// Attributes of the file at a path from the root, if the cache has a valid entry.
    pub(crate) fn seen_attr(&self, who: &Who, path: &[u8], follow: bool) -> Option<Attr> {
        self.cached(who, |cache| cache.attr(path, follow))
    }

    /// The directory at a path from the root, if the cache has a valid entry. The directory may have been removed.
    pub(crate) fn seen_dir(&self, who: &Who, path: &[u8]) -> Option<FileId> {
        self.cached(who, |cache| cache.dir(path))
    }

    /// Whether attributes of a file are current that came with this lease on the control connection of this epoch.
    pub(crate) fn stands(&self, lease: Lease, file: FileId, connection_epoch: u64) -> bool {
        let stands = || {
            let control = self.live()?;
            let cache = control.queue.open_shm_queue()?.name_cache.as_ref()?;
            Some(self.opens.connection_epoch() == connection_epoch && cache.stands(lease, file))
        };
        stands() == Some(true)
    }

    fn take(&self, control: &ControlConnection, asked: &Asked) -> (Outcome, Vec<Reply>) {
        let failure = |kind, text: &str| {
            let error = self.at_service(Error::new(kind, text));
            (Some(Err(AttemptError { sent: true, error })), Vec::new())
        };
        match asked.answer() {
            Some(Answered::Bytes(bytes)) => match read(&bytes) {
                Ok((answer, replies)) => (Some(Ok(answer)), replies),
                Err(error) => {
                    control.give_up(&error);
                    failure(error.kind(), &error.to_string())
                }
            },
            Some(Answered::Elsewhere) => (None, Vec::new()),
            Some(Answered::Unknown) => failure(ErrorKind::Unreachable, "the service abandoned the request"),
            None => {
                let error =
                    Error::new(ErrorKind::Protocol, "the service sent an invalid answer by the queue");
                control.give_up(&error);
                failure(error.kind(), "the service sent an invalid answer by the queue")
            }
        }
    }

    /// Waits for an answer on the runtime, for as long as the connection is alive.
    async fn wait_for(&self, control: &ControlConnection, asked: Asked) -> (Outcome, Option<Lease>) {
        let asked = Arc::new(asked);
        loop {
            if asked.is_answered() {
                return (self.take(control, &asked).0, asked.lease());
            }
            if let Some(error) = control.fault() {
                return (Some(Err(AttemptError { sent: true, error: self.at_service(error) })), None);
            }
            let sleeper = asked.clone();
            let slept = self.runtime.spawn_blocking(move || sleeper.sleep(LIVENESS_INTERVAL));
            // The task fails only when the runtime ends, which ends the connection too.
            let _ = slept.await;
        }
    }
}

/// Requests a queue. The result is valid for the lifetime of the connection.
async fn request_queue(control: Arc<ControlConnection>) {
    let call = CallRef { identity: None, request: &Request::Queue };
    let granted = match control.call(&call, None).await {
        Ok(Ok(Reply::Queue(grant))) => Some(grant),
        // The server grants no queue, or the connection broke.
        Ok(_) | Err(_) => None,
    };
    control.queue.granted.get_or_init(|| granted);
}

fn post(
    client: &Arc<QueueClient>,
    who: &Who,
    request: &Request,
    with_open: Option<WithOpen>,
) -> Option<Asked> {
    let mut bytes = Vec::with_capacity(256);
    add_call(&mut bytes, who.as_deref(), request)?;
    for request in with_open.iter().flat_map(WithOpen::requests) {
        add_call(&mut bytes, None, &request)?;
    }
    client.ask(&bytes)
}

fn add_call(bytes: &mut Vec<u8>, identity: Option<&Identity>, request: &Request) -> Option<()> {
    frame(bytes, FrameKind::Call, ID, &CallRef { identity, request }, 0).ok()
}

/// Spins for an answer, then sleeps; returns whether it has arrived.
fn spin_for_answer(asked: &Asked) -> bool {
    let Looked::SinceThen(begin) = SPIN.until(|| asked.is_answered(), || asked.is_served_here()) else {
        return true;
    };
    let mut left = PATIENCE;
    while !left.is_zero() && !asked.is_answered() {
        asked.sleep(left);
        left = PATIENCE.saturating_sub(begin.elapsed());
    }
    SPIN.waited(begin.elapsed());
    asked.is_answered()
}

/// The answer in a slot, and the replies that go with it.
fn read(bytes: &[u8]) -> forebay_model::Result<(Answer, Vec<Reply>)> {
    let (answer, mut rest) = read_frame(bytes)?;
    let mut replies = Vec::new();
    while !rest.is_empty() {
        let (reply, after) = read_frame(rest)?;
        replies.push(reply?);
        rest = after;
    }
    Ok((answer, replies))
}

fn read_frame(bytes: &[u8]) -> forebay_model::Result<(Answer, &[u8])> {
    let malformed = || Error::new(ErrorKind::Protocol, "the service sent a malformed frame by the queue");
    let (head, rest) = bytes.split_first_chunk::<HEADER>().ok_or_else(malformed)?;
    let header = Header::decode(head)?;
    let (answer, rest) = rest.split_at_checked(header.body as usize).ok_or_else(malformed)?;
    let is_answer = header.kind == FrameKind::Answer && header.payload == 0;
    if is_answer { Ok((body(answer)?, rest)) } else { Err(malformed()) }
}

fn open(grant: &QueueGrant) -> io::Result<ShmQueue> {
    let path = |path: &[u8]| PathBuf::from(OsString::from_vec(path.to_vec()));
    let file = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let queue = path(&grant.path);
    let client = QueueClient::open(&file(&queue)?, &file(&path(&grant.doorbell))?, grant.nonce)?;
    Ok(ShmQueue { client, name_cache: NameCache::beside(&queue) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::FileId;

    #[test]
    fn malformed_queue_answers_are_refused() {
        let mut good = Vec::new();
        frame(&mut good, FrameKind::Answer, ID, &Answer::Ok(Reply::Done), 0).unwrap();
        assert_eq!(read(&good).unwrap(), (Ok(Reply::Done), Vec::new()));
        let also = [good.clone(), good.clone()].concat();
        assert_eq!(read(&also).unwrap(), (Ok(Reply::Done), vec![Reply::Done]));
        let mut call = Vec::new();
        let request = Request::GetAttr { file: FileId::ROOT };
        frame(&mut call, FrameKind::Call, ID, &CallRef { identity: None, request: &request }, 0).unwrap();
        for bad in [
            &good[..good.len() - 1],
            &[good.clone(), vec![0]].concat(),
            &also[..also.len() - 1],
            &call,
            &[],
            &[7; 64],
        ] {
            assert_eq!(read(bad).unwrap_err().kind(), ErrorKind::Protocol);
        }
    }

    #[test]
    fn futures_are_polled_at_once_only_where_the_thread_may_wait() {
        let mut ready = Box::pin(std::future::ready(5));
        assert_eq!(at_once(ready.as_mut()), None);
        assert_eq!(waiting_here(|| at_once(ready.as_mut())), Some(5));
        let mut never = Box::pin(std::future::pending::<()>());
        assert_eq!(waiting_here(|| at_once(never.as_mut())), None);
    }
}
