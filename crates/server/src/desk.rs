//! Desks: where requests are answered that clients of this machine put into queues in shared memory.
//!
//! A queue belongs to the control connection that asked for it and ends with it. A desk serves several queues on a
//! thread of its own, for as long as it has any; it looks for a while before it sleeps. How the two sides talk, and what
//! becomes of everything when one of them dies, is decision 71.
//!
//! **Invariant**: a request from a queue is what it would be on the queue's connection: the same peer, session, turns
//! and fence; nothing in shared memory is believed; whatever a client does to its queue, others are served.

use crate::connection::Connection;
use crate::control::{Begun, ask, failed};
use crate::handle::{Class, class};
use crate::jobs::Membership;
use crate::service::{Caller, Service};
use crate::visitor::Visitor;
use forebay_model::{Error, ErrorKind, Result};
use forebay_shm::{
    Aside, Away, Bell, Clerk, Core, Epochs, Lease, Looked, MOST_REPLY, Moment, QUEUE_SLOTS, Spin, Taken,
};
use forebay_store::{MOST_BELLS, MOST_QUEUES};
use forebay_wire::{Answer, Call, FrameKind, HEADER, Header, QueueGrant, Reply, Request, body, frame};
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a desk looks for the next request before it sleeps.
const SHORTEST_LOOK: Duration = Duration::from_micros(2);
const LONGEST_LOOK: Duration = Duration::from_micros(50);
/// How long it sleeps if nobody rings; only a client that spoils the bell delays others for so long.
const NAP: Duration = Duration::from_millis(20);
/// Bytes of an error's text that fit a reply in any case.
const LONGEST_TEXT: usize = MOST_REPLY / 2;

/// All desks of a server.
pub(crate) struct Desks {
    desks: Vec<Desk>,
    next: AtomicU32,
    queues: AtomicU32,
}

struct Desk {
    state: Mutex<State>,
    spin: Spin,
}

#[derive(Default)]
struct State {
    bell: Option<(Arc<Bell>, PathBuf)>,
    queues: Arc<Vec<Arc<Queue>>>,
    /// Whether somebody sits there.
    attended: bool,
}

/// A queue of requests.
pub(crate) struct Queue {
    number: u32,
    clerk: Clerk,
    job: Arc<Membership>,
    /// Who asks there; nobody once it has ended. Locked by whoever serves it.
    visitor: Mutex<Option<Visitor>>,
    /// Requests that were not as they should be.
    refused: AtomicU64,
    /// A place for each request that waits for something.
    waiting: Arc<Semaphore>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Desks {
    fn default() -> Desks {
        // Each may need a core of its own, and so does who asks there.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (cores / 4).clamp(1, MOST_BELLS as usize);
        let desk = || Desk { state: Mutex::default(), spin: Spin::new(SHORTEST_LOOK, LONGEST_LOOK) };
        let desks = (0..count).map(|_| desk()).collect();
        Desks { desks, next: AtomicU32::new(0), queues: AtomicU32::new(0) }
    }
}

/// Opens a queue for a connection, in place of one that it had.
pub(crate) fn open(connection: &mut Connection, caller: &Caller) -> Answer {
    if !(connection.service.config.shared_memory && caller.local && caller.privileged) {
        let text = "shared memory is for programs of the service's own user on its machine, if it is on";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    if let Some(before) = connection.queue.take() {
        before.end(&connection.service);
    }
    let (queue, grant) = tokio::task::block_in_place(|| {
        connection.service.open_queue(connection.visitor.clone(), connection.job.clone())
    })?;
    connection.queue = Some(queue);
    Ok(Reply::Queue(Box::new(grant)))
}

impl Service {
    fn open_queue(&self, visitor: Visitor, job: Arc<Membership>) -> Result<(Arc<Queue>, QueueGrant)> {
        let desks = &self.desks;
        if desks.queues.fetch_add(1, Ordering::AcqRel) >= MOST_QUEUES {
            desks.queues.fetch_sub(1, Ordering::AcqRel);
            return Err(Error::new(ErrorKind::Busy, format!("{MOST_QUEUES} queues are in use already")));
        }
        let number = desks.next.fetch_add(1, Ordering::Relaxed);
        let opened = self.make_queue(number, visitor, job);
        if opened.is_err() {
            desks.queues.fetch_sub(1, Ordering::AcqRel);
        }
        opened
    }

    fn make_queue(
        &self,
        number: u32,
        visitor: Visitor,
        job: Arc<Membership>,
    ) -> Result<(Arc<Queue>, QueueGrant)> {
        let data = self.store.data();
        let unusable =
            |error: std::io::Error| Error::new(ErrorKind::Io, format!("cannot map a queue: {error}"));
        let desk = self.desk(number);
        let mut state = lock(&desk.state);
        let (bell, rings) = match &state.bell {
            Some(bell) => bell.clone(),
            None => {
                let (file, path) = data.make_bell(number % self.desks.desks.len() as u32)?;
                let bell = (Arc::new(Bell::new(&file).map_err(unusable)?), path);
                state.bell.insert(bell).clone()
            }
        };
        let random = crate::key::random()?;
        let (nonce, _) = random.split_first_chunk().expect("32 bytes");
        let nonce = u128::from_le_bytes(*nonce);
        let (file, path) = data.make_queue(number)?;
        let clerk = Clerk::create(&file, bell, nonce).map_err(unusable)?;
        let (visitor, refused) = (Mutex::new(Some(visitor)), AtomicU64::new(0));
        let waiting = Arc::new(Semaphore::new(QUEUE_SLOTS as usize));
        let queue = Arc::new(Queue { number, clerk, job, visitor, refused, waiting });
        state.queues = Arc::new(state.queues.iter().cloned().chain([queue.clone()]).collect());
        if !std::mem::replace(&mut state.attended, true) {
            let service = self.me().ok_or(ErrorKind::Busy)?;
            tokio::task::spawn_blocking(move || service.desk(number).attend(&service));
        }
        let bytes = |path: PathBuf| path.into_os_string().into_vec();
        Ok((queue, QueueGrant { path: bytes(path), bell: bytes(rings), nonce }))
    }

    /// When an answer begins to be made that may be leased; none where somebody else may change what it is about.
    fn leasing(&self) -> Option<(&Epochs, Moment)> {
        let epochs = self.store.epochs().filter(|_| self.is_alone() && self.union.is_none())?;
        Some((epochs, epochs.moment()))
    }

    /// How long an answer counts that shows attributes: until something of them changes, if nobody changes them without
    /// a word.
    fn lease(&self, (epochs, since): (&Epochs, Moment), answer: &Option<Answer>) -> Option<Lease> {
        let Some(Ok(Reply::Found(attr) | Reply::Opened { attr, .. })) = answer else { return None };
        let lease = epochs.lease(since, attr.id.0)?;
        (!self.store.data().is_filled(attr.id)).then_some(lease)
    }

    /// The desk at which a queue is served.
    fn desk(&self, queue: u32) -> &Desk {
        &self.desks.desks[queue as usize % self.desks.desks.len()]
    }
}

impl Desk {
    fn queues(&self) -> Arc<Vec<Arc<Queue>>> {
        lock(&self.state).queues.clone()
    }

    /// Serves the queues of this desk until there is none, or the server ends.
    fn attend(&self, service: &Arc<Service>) {
        let stopping = service.stopping();
        let (mut room, mut aside) = (Room::default(), Aside::default());
        // Where who asked last was running.
        let mut asker = None;
        loop {
            let (queues, bell) = {
                let mut state = lock(&self.state);
                if state.queues.is_empty() || *stopping.borrow() {
                    state.attended = false;
                    return;
                }
                (state.queues.clone(), state.bell.as_ref().map(|(bell, _)| bell.clone()))
            };
            bell.iter().for_each(|bell| bell.attend());
            let mut idle = true;
            for queue in &*queues {
                if queue.serve(service, &mut room) {
                    (idle, asker) = (false, queue.clerk.asked_from());
                }
            }
            if !idle {
                // Whoever was answered is busy with that now.
                service.store.tidy();
                continue;
            }
            let in_vain = || asker.is_some_and(Core::is_here);
            if in_vain() {
                bell.iter().for_each(|bell| bell.leave());
                if aside.step(asker, Instant::now()) {
                    continue;
                }
                bell.iter().for_each(|bell| bell.attend());
            }
            let Looked::SinceThen(begin) =
                self.spin.until(|| queues.iter().any(|queue| queue.clerk.is_asked()), in_vain)
            else {
                continue;
            };
            // Who leaves meanwhile is not to be held here.
            drop(queues);
            if let Some(bell) = bell {
                // Who asks next is not to find its core taken.
                let _away = Away::from(asker);
                bell.attend();
                bell.sleep(NAP, || self.queues().iter().any(|queue| queue.clerk.is_asked()));
            }
            self.spin.waited(begin.elapsed());
        }
    }
}

/// Memory that is used again for every request.
#[derive(Default)]
struct Room {
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Queue {
    /// Serves what is asked; true if anything was.
    fn serve(self: &Arc<Queue>, service: &Arc<Service>, room: &mut Room) -> bool {
        if !self.clerk.is_asked() {
            return false;
        }
        let mut visitor = lock(&self.visitor);
        let Some(visitor) = visitor.as_mut() else { return false };
        let Room { request, reply } = room;
        let refused = self.clerk.take(request, |taken, bytes| {
            let since = service.leasing();
            // Nobody else at this desk is to suffer from what this request does.
            let begun = catch_unwind(AssertUnwindSafe(|| self.begin(service, visitor, bytes)));
            match begun.unwrap_or_else(|_| (0, What::Begun(Begun::Done(Some(Err(failed())))))) {
                (_, What::Elsewhere) => self.clerk.refer(taken),
                (_, What::Nonsense) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    self.clerk.give_up(taken);
                }
                (id, What::Begun(Begun::Done(answer))) => {
                    let lease = since.and_then(|since| service.lease(since, &answer));
                    self.answer(taken, id, answer, lease, reply);
                }
                (id, What::Begun(Begun::Later(answer))) => {
                    let promise = Promise { queue: self.clone(), taken: Some(taken), id };
                    let (service, session) = (service.clone(), visitor.session.clone());
                    // Each slot has one request under way at most.
                    let place = self.waiting.clone().try_acquire_owned();
                    tokio::spawn(async move {
                        promise.keep(answer.await);
                        service.sessions.leave(session);
                        drop(place);
                    });
                }
            }
        });
        if refused > 0 {
            self.refused.fetch_add(refused, Ordering::Relaxed);
        }
        true
    }

    /// Serves a request as its connection would, or says what has to be waited for.
    fn begin(&self, service: &Arc<Service>, visitor: &mut Visitor, bytes: &[u8]) -> (u64, What) {
        let header = bytes.split_first_chunk::<HEADER>().and_then(|(head, rest)| {
            let header = Header::decode(head).ok()?;
            let whole = header.kind == FrameKind::Call && header.payload == 0;
            (whole && header.body as usize == rest.len()).then_some((header, rest))
        });
        let Some((header, rest)) = header else { return (0, What::Nonsense) };
        self.job.request(service.store.data().now());
        let called =
            body::<Call>(rest).and_then(|call| Ok((visitor.caller(service, call.identity)?, call.request)));
        let what = match called {
            Err(error) => What::Begun(Begun::Done(Some(Err(error)))),
            Ok((caller, request @ Request::Close { .. })) => {
                What::Begun(self.close(service, caller, request))
            }
            Ok((caller, request)) => {
                let class = class(&request, service.union.is_some());
                let is_ring = matches!(request, Request::Ring { .. });
                match is_ring || matches!(class, Class::Usual | Class::Behind) {
                    true => What::Begun(ask(service, &self.job, caller, request)),
                    false => What::Elsewhere,
                }
            }
        };
        (header.id, what)
    }

    /// Closes a file. Nobody may be waiting for the answer, so it is not turned away from a server full of work.
    fn close(&self, service: &Arc<Service>, caller: Caller, request: Request) -> Begun {
        let (again, job) = ((caller.clone(), request.clone()), &self.job);
        match ask(service, job, caller, request) {
            Begun::Done(Some(Err(error))) if error.kind() == ErrorKind::Busy => {
                let (service, job, (caller, request)) = (service.clone(), job.clone(), again);
                Begun::Later(Box::pin(async move {
                    loop {
                        tokio::time::sleep(NAP).await;
                        let answer = match ask(&service, &job, caller.clone(), request.clone()) {
                            Begun::Done(answer) => answer,
                            Begun::Later(answer) => answer.await,
                        };
                        match answer {
                            Some(Err(error)) if error.kind() == ErrorKind::Busy => {}
                            answer => return answer,
                        }
                    }
                }))
            }
            begun => begun,
        }
    }

    /// Answers. What is too long for a reply only tells something, so that it can be asked elsewhere; but for errors.
    fn answer(
        &self,
        taken: Taken,
        id: u64,
        answer: Option<Answer>,
        lease: Option<Lease>,
        reply: &mut Vec<u8>,
    ) {
        let Some(answer) = answer else { return self.clerk.give_up(taken) };
        reply.clear();
        let framed = frame(reply, FrameKind::Answer, id, &answer, 0);
        if framed.is_ok() && reply.len() <= MOST_REPLY {
            return self.clerk.answer(taken, reply, lease);
        }
        let Err(error) = answer else { return self.clerk.refer(taken) };
        reply.clear();
        let text = error.to_string();
        let end = text.floor_char_boundary(LONGEST_TEXT);
        let short = Answer::Err(Error::new(error.kind(), format!("{}…", &text[..end])));
        match frame(reply, FrameKind::Answer, id, &short, 0) {
            Ok(()) => self.clerk.answer(taken, reply, None),
            Err(_) => self.clerk.give_up(taken),
        }
    }

    /// Waits until what was begun is finished and answered.
    pub(crate) async fn finished(&self) {
        // An error would mean that nobody can wait any more.
        let _ = self.waiting.acquire_many(QUEUE_SLOTS).await;
    }

    /// The connection has come to its end. What was asked before is still done, as what is left in its socket is.
    pub(crate) fn end(self: &Arc<Queue>, service: &Arc<Service>) {
        if !*service.stopping().borrow() {
            self.serve(service, &mut Room::default());
        }
        if lock(&self.visitor).take().is_none() {
            return;
        }
        let desk = service.desk(self.number);
        {
            let mut state = lock(&desk.state);
            let others = state.queues.iter().filter(|queue| queue.number != self.number).cloned();
            state.queues = Arc::new(others.collect());
        }
        service.desks.queues.fetch_sub(1, Ordering::AcqRel);
        let refused = self.refused.load(Ordering::Relaxed);
        if refused > 0 {
            tracing::warn!(refused, "requests in a queue were not as they should be, and were passed over");
        }
        if let Err(error) = service.store.data().remove_queue(self.number) {
            tracing::warn!(%error, "the file of a queue could not be removed; the next start will do it");
        }
    }
}

/// What a request in a queue comes to.
enum What {
    Begun(Begun),
    /// It is not for queues.
    Elsewhere,
    /// It is no request.
    Nonsense,
}

/// An answer that will be given, whatever happens to the request.
struct Promise {
    queue: Arc<Queue>,
    taken: Option<Taken>,
    id: u64,
}

impl Promise {
    fn keep(mut self, answer: Option<Answer>) {
        if let Some(taken) = self.taken.take() {
            self.queue.answer(taken, self.id, answer, None, &mut Vec::new());
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let Some(taken) = self.taken.take() else { return };
        match std::thread::panicking() {
            true => self.queue.answer(taken, self.id, Some(Err(failed())), None, &mut Vec::new()),
            // The server ends, and gives up what has taken too long.
            false => self.queue.clerk.give_up(taken),
        }
    }
}
