//! Requests by shared memory, where the server is on this machine and runs as the same user: the calling thread puts its
//! request into a queue and waits for the answer itself.
//!
//! Only threads that may wait do so ([`waiting_here`]), and not for long: what takes longer is waited for by the runtime,
//! whose timers run. What does not fit, or brings bulk data, or may wait for a device, goes by the socket as ever, and so
//! does everything that finds no slot. A queue belongs to one life of the control connection.

use crate::line::{CallRef, Line};
use crate::retry::Trouble;
use crate::seen::Seen;
use crate::session::{Session, Who};
use crate::socket::while_set;
use forebay_model::{Attr, Error, ErrorKind, FileId};
use forebay_shm::{Answered, Asked, Asker, Lease, Looked, Spin};
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

/// How long a thread looks for its answer before it sleeps: as long as a desk may take to wake up on a core that was idle.
const SHORTEST_LOOK: Duration = Duration::from_micros(2);
const LONGEST_LOOK: Duration = Duration::from_micros(200);
/// How long it sleeps before it leaves the rest to the runtime.
const PATIENCE: Duration = Duration::from_millis(2);
/// Between two looks of the runtime whether the connection still stands.
const GLANCE: Duration = Duration::from_millis(20);
/// No request has to be told from another: each has a slot.
const ID: u64 = 1;

static SPIN: Spin = Spin::new(SHORTEST_LOOK, LONGEST_LOOK);

/// What came of a request; nothing if it has to go by the socket.
type Outcome = Option<Result<Answer, Trouble>>;

/// What came of asking on the spot.
pub(crate) enum Begun {
    /// It is answered.
    Answered(Result<Answer, Trouble>),
    /// It was asked, and takes longer.
    Asked(Arc<Line>, Asked),
    /// It has to go by the socket.
    Elsewhere,
    /// Nothing was asked.
    Not,
}

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
    static ERRAND: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Runs something in which this thread itself may wait for answers, each time for some milliseconds at most.
pub fn waiting_here<T>(work: impl FnOnce() -> T) -> T {
    while_set(&HERE, true, work)
}

/// The same, with an errand that this thread does while it waits for something to be opened, if it does.
pub fn waiting_here_with<T>(errand: fn(), work: impl FnOnce() -> T) -> T {
    while_set(&ERRAND, Some(errand), || waiting_here(work))
}

/// What a future comes to that waits for nothing but answers by queues, if this thread may wait for those; if not, it has
/// only begun.
pub(crate) fn at_once<T>(work: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    if !HERE.get() {
        return None;
    }
    match work.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// Whether this thread may wait for the answer to a request that may go by a queue.
pub(crate) fn may_ask_here(request: &Request) -> bool {
    HERE.get() && is_short(request)
}

/// The queue of a control connection.
#[derive(Default)]
pub(crate) struct Queue {
    /// Somebody asks for it, or has: a connection has one, and another would be in its place.
    asked_for: AtomicBool,
    /// What the server said to that: nothing if there is none for us.
    granted: OnceLock<Option<Box<QueueGrant>>>,
    /// None if it cannot be reached from here.
    desk: OnceLock<Option<Desk>>,
}

impl Queue {
    /// Who is asked there, opened by whoever wants to ask first: this program waits for him, and nothing of it is in the way of
    /// the descriptors that come and go with that. `None` if the server has not said yet whether there is one.
    fn desk(&self) -> Option<Option<&Desk>> {
        let desk = || self.desk.get_or_init(|| open(self.granted.get()?.as_ref()?).ok()).as_ref();
        self.granted.get().map(|_| desk())
    }

    /// The same for those who do not open it.
    fn open_desk(&self) -> Option<&Desk> {
        self.desk.get()?.as_ref()
    }
}

/// Who is asked there, and what was answered and still counts.
struct Desk {
    asker: Arc<Asker>,
    seen: Option<Seen>,
}

impl Desk {
    /// Remembers what was answered, if that counts for a while.
    fn learn(&self, who: &Who, request: &Request, outcome: &Outcome, lease: Option<Lease>) {
        if let (None, Some(seen), Some(lease), Some(Ok(Ok(reply)))) = (who, &self.seen, lease, outcome) {
            seen.learn(request, reply, lease);
        }
    }
}

/// Whether a request is as short as its answer, and waits for nothing but names and attributes, or for a ring that is there.
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
    /// Asks by the queue of the live connection, if there is one and this thread may wait for the answer.
    pub(crate) fn ask_at_once(&self, who: &Who, request: &Request) -> Begun {
        if !may_ask_here(request) || self.pool.is_in_doubt() {
            return Begun::Not;
        }
        let Some(line) = self.live() else { return Begun::Not };
        let Some(Some(desk)) = line.queue.desk() else { return Begun::Not };
        match self.ask_desk(&line, desk, who, request) {
            Ok(Some(outcome)) => Begun::Answered(outcome),
            Ok(None) => Begun::Elsewhere,
            Err(asked) => Begun::Asked(line, asked),
        }
    }

    /// Asks by the connection's queue, if there is one; `None` if it has to go by the socket. Who finds that nobody has asked
    /// for one yet has that done, and does not wait for it. `sent` is true while the server may have heard of the request.
    pub(crate) async fn ask_here(
        &self,
        line: &Arc<Line>,
        who: &Who,
        request: &Request,
        sent: &AtomicBool,
    ) -> Outcome {
        let Some(desk) = line.queue.desk() else {
            if !line.queue.asked_for.swap(true, Ordering::AcqRel) {
                self.runtime.spawn(ask_for_queue(line.clone()));
            }
            return None;
        };
        let desk = desk?;
        match self.ask_desk(line, desk, who, request) {
            Ok(outcome) => outcome,
            Err(asked) => self.answer_to(line, who, request, asked, sent).await,
        }
    }

    /// Asks at a desk, and looks for the answer for a while.
    fn ask_desk(&self, line: &Line, desk: &Desk, who: &Who, request: &Request) -> Result<Outcome, Asked> {
        let Some(asked) = post(&desk.asker, who, request) else { return Ok(None) };
        if let (Request::Open { .. } | Request::Create { .. }, Some(errand)) = (request, ERRAND.get()) {
            ERRAND.set(None);
            errand();
        }
        if !look_here(&asked) {
            return Err(asked);
        }
        let outcome = self.take(line, &asked);
        desk.learn(who, request, &outcome, asked.lease());
        Ok(outcome)
    }

    /// Waits for the answer to what was asked there.
    pub(crate) async fn answer_to(
        &self,
        line: &Line,
        who: &Who,
        request: &Request,
        asked: Asked,
        sent: &AtomicBool,
    ) -> Outcome {
        sent.store(true, Ordering::Relaxed);
        let (outcome, lease) = Box::pin(self.wait_for(line, asked)).await;
        if let Some(desk) = line.queue.open_desk() {
            desk.learn(who, request, &outcome, lease);
        }
        sent.store(outcome.is_some(), Ordering::Relaxed);
        outcome
    }

    /// Closes an open file without waiting for that, if there is a queue with room.
    pub(crate) fn close_now(&self, who: &Who, token: Token) -> bool {
        let Some(line) = self.live() else { return false };
        let Some(Some(desk)) = line.queue.desk() else { return false };
        !self.pool.is_in_doubt() && post(&desk.asker, who, &Request::Close { token }).is_some()
    }

    /// Looks into what was answered on the live connection and still counts for this process.
    fn seen<T>(&self, who: &Who, look: impl FnOnce(&Seen) -> Option<T>) -> Option<T> {
        if who.is_some() {
            return None;
        }
        let line = self.live()?;
        look(line.queue.open_desk()?.seen.as_ref()?)
    }

    /// What a path from the root leads to, if that was answered and still counts.
    pub(crate) fn seen_attr(&self, who: &Who, path: &[u8], follow: bool) -> Option<Attr> {
        self.seen(who, |seen| seen.attr(path, follow))
    }

    /// The directory that a path from the root leads to, if that was answered and still counts; or one that is gone.
    pub(crate) fn seen_dir(&self, who: &Who, path: &[u8]) -> Option<FileId> {
        self.seen(who, |seen| seen.dir(path))
    }

    fn take(&self, line: &Line, asked: &Asked) -> Outcome {
        let trouble = |kind, text: &str| {
            let error = self.at_service(Error::new(kind, text));
            Some(Err(Trouble { sent: true, error }))
        };
        match asked.answer() {
            Some(Answered::Bytes(bytes)) => match read(&bytes) {
                Ok(answer) => Some(Ok(answer)),
                Err(error) => {
                    line.give_up(&error);
                    trouble(error.kind(), &error.to_string())
                }
            },
            Some(Answered::Elsewhere) => None,
            Some(Answered::Unknown) => {
                trouble(ErrorKind::Unreachable, "the service gave the request up half-way")
            }
            None => {
                let error = Error::new(ErrorKind::Protocol, "the service answered what cannot be");
                line.give_up(&error);
                trouble(error.kind(), "the service answered what cannot be")
            }
        }
    }

    /// Waits for an answer by way of the runtime, for as long as the connection stands.
    async fn wait_for(&self, line: &Line, asked: Asked) -> (Outcome, Option<Lease>) {
        let asked = Arc::new(asked);
        loop {
            if asked.is_answered() {
                return (self.take(line, &asked), asked.lease());
            }
            if let Some(error) = line.fault() {
                return (Some(Err(Trouble { sent: true, error: self.at_service(error) })), None);
            }
            let sleeper = asked.clone();
            let slept = self.runtime.spawn_blocking(move || sleeper.sleep(GLANCE));
            // What ended it ends the wait for the connection too.
            let _ = slept.await;
        }
    }
}

/// Asks for a queue; what becomes of that counts for as long as the connection lasts.
async fn ask_for_queue(line: Arc<Line>) {
    let call = CallRef { identity: None, request: &Request::Queue };
    let granted = match line.call(&call, None).await {
        Ok(Ok(Reply::Queue(grant))) => Some(grant),
        // There is none for us; nor, if the connection broke, for anybody.
        Ok(_) | Err(_) => None,
    };
    line.queue.granted.get_or_init(|| granted);
}

fn post(asker: &Arc<Asker>, who: &Who, request: &Request) -> Option<Asked> {
    let mut bytes = Vec::with_capacity(256);
    let call = CallRef { identity: who.as_deref(), request };
    frame(&mut bytes, FrameKind::Call, ID, &call, 0).ok()?;
    asker.ask(&bytes)
}

/// Looks for an answer for a while, then sleeps; true if it has come.
fn look_here(asked: &Asked) -> bool {
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

fn read(bytes: &[u8]) -> forebay_model::Result<Answer> {
    let nonsense = || Error::new(ErrorKind::Protocol, "the service answered what is no frame");
    let (head, rest) = bytes.split_first_chunk::<HEADER>().ok_or_else(nonsense)?;
    let header = Header::decode(head)?;
    let whole = header.kind == FrameKind::Answer && header.payload == 0 && header.body as usize == rest.len();
    if whole { body(rest) } else { Err(nonsense()) }
}

fn open(grant: &QueueGrant) -> io::Result<Desk> {
    let path = |path: &[u8]| PathBuf::from(OsString::from_vec(path.to_vec()));
    let file = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let queue = path(&grant.path);
    let asker = Asker::open(&file(&queue)?, &file(&path(&grant.bell))?, grant.nonce)?;
    Ok(Desk { asker, seen: Seen::beside(&queue) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::FileId;

    #[test]
    fn answers_that_are_no_frames_are_refused() {
        let mut good = Vec::new();
        frame(&mut good, FrameKind::Answer, ID, &Answer::Ok(Reply::Done), 0).unwrap();
        assert_eq!(read(&good).unwrap(), Ok(Reply::Done));
        let mut call = Vec::new();
        let request = Request::GetAttr { file: FileId::ROOT };
        frame(&mut call, FrameKind::Call, ID, &CallRef { identity: None, request: &request }, 0).unwrap();
        for bad in [&good[..good.len() - 1], &[good.clone(), vec![0]].concat(), &call, &[], &[7; 64]] {
            assert_eq!(read(bad).unwrap_err().kind(), ErrorKind::Protocol);
        }
    }

    #[test]
    fn work_is_begun_on_the_spot_only_where_a_thread_may_wait() {
        let mut ready = Box::pin(std::future::ready(5));
        assert_eq!(at_once(ready.as_mut()), None);
        assert_eq!(waiting_here(|| at_once(ready.as_mut())), Some(5));
        let mut never = Box::pin(std::future::pending::<()>());
        assert_eq!(waiting_here(|| at_once(never.as_mut())), None);
    }
}
