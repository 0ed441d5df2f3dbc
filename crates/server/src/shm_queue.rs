//! Answers requests that clients on this machine put into queues in shared memory.
//!
//! A queue belongs to the control connection that requested it and ends with it. A queue thread serves several queues
//! for as long as it has any; it spins for a while before it sleeps. Decision 71 describes the protocol and what
//! happens when one side dies.
//!
//! **Invariant**: a request from a queue is treated as if it came over the queue's connection: same peer, session,
//! turns and connection epoch; the server trusts nothing in shared memory; a misbehaving client cannot stop the server
//! from serving other queues.

use crate::backing::BackingLayer;
use crate::blocking::{Begun, failed};
use crate::caller::Caller;
use crate::dispatch::RequestServer;
use crate::handle::{Class, class};
use crate::jobs::Membership;
use crate::lifecycle::{Lifecycle, rested};
use crate::memory::WithOpen;
use crate::peer_identity::PeerIdentity;
use crate::session::Sessions;
use crate::thread_state::Runner;
use forebay_model::{Error, ErrorKind, Result};
use forebay_shm::{
    Aside, Away, Core, Doorbell, Epochs, Lease, Looked, MOST_REPLY, Moment, QUEUE_SLOTS, QueueServer, Spin,
    Taken,
};
use forebay_store::{MAX_DOORBELLS, MAX_QUEUES, RingId, Store};
use forebay_wire::{Answer, Call, FrameKind, HEADER, Header, QueueGrant, Reply, Request, Token, body, frame};
use parking_lot::Mutex;
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a queue thread spins for the next request before it sleeps.
const SHORTEST_LOOK: Duration = Duration::from_micros(2);
const LONGEST_LOOK: Duration = Duration::from_micros(50);
/// How long it sleeps without a doorbell. Only a client that corrupts the doorbell delays others by this long.
const NAP: Duration = Duration::from_millis(20);
/// Bytes of an error's text that always fit a reply.
const LONGEST_TEXT: usize = MOST_REPLY / 2;

/// A request that waits for longer than this on a queue thread gets the thread for itself.
const STALL: Duration = Duration::from_millis(2);
/// A thread that computes, or waits for a core, counts as stalled only after this many such periods.
const PATIENCE: u32 = 16;
/// For how many such periods without a request before the back end the queue threads are watched.
const WATCHED: u32 = 100;

/// All queue threads of a server.
pub(crate) struct ShmQueues {
    parts: QueueParts,
    threads: Vec<QueueThread>,
    next: AtomicU32,
    queues: AtomicU32,
    /// Threads whose request before the back end takes long. While there are any, queue threads serve no such request.
    stalled: AtomicUsize,
    /// Whether a task looks for stalled threads.
    watched: AtomicBool,
}

/// What queues use.
pub(crate) struct QueueParts {
    /// Whether clients on this machine may use shared memory.
    pub(crate) enabled: bool,
    pub(crate) store: Arc<Store>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) server: Arc<RequestServer>,
    pub(crate) life: Arc<Lifecycle>,
}

struct QueueThread {
    state: Mutex<State>,
    spin: Spin,
    runner: Runner,
    /// Increased when another thread takes over.
    term: AtomicU64,
    /// Counts the starts and ends of requests before the back end; odd while one is served.
    calls: AtomicU64,
}

#[derive(Default)]
struct State {
    doorbell: Option<(Arc<Doorbell>, PathBuf)>,
    queues: Arc<Vec<Arc<Queue>>>,
    /// Whether the thread runs.
    running: bool,
}

/// A queue of requests.
pub(crate) struct Queue {
    number: u32,
    queue_server: QueueServer,
    job: Arc<Membership>,
    /// The client; `None` once the queue has ended. Locked while the queue is served.
    peer_identity: Mutex<Option<PeerIdentity>>,
    /// Number of malformed requests.
    refused: AtomicU64,
    /// A permit for each request that waits.
    waiting: Arc<Semaphore>,
}

impl ShmQueues {
    pub(crate) fn new(parts: QueueParts) -> ShmQueues {
        // Each thread may need a core of its own, and so may its clients.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (cores / 4).clamp(1, MAX_DOORBELLS as usize);
        let thread = || QueueThread {
            state: Mutex::default(),
            spin: Spin::new(SHORTEST_LOOK, LONGEST_LOOK),
            runner: Runner::default(),
            term: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        };
        let threads = (0..count).map(|_| thread()).collect();
        ShmQueues {
            parts,
            threads,
            next: AtomicU32::new(0),
            queues: AtomicU32::new(0),
            stalled: AtomicUsize::new(0),
            watched: AtomicBool::new(false),
        }
    }
}

impl ShmQueues {
    /// Fails unless the caller may use shared memory.
    pub(crate) fn check(&self, caller: &Caller) -> Result<()> {
        if self.parts.enabled && caller.local && caller.privileged {
            return Ok(());
        }
        let text = "shared memory is off, or the program is not one of the service's own user on its machine";
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Opens a queue for a client.
    pub(crate) fn open(
        self: &Arc<ShmQueues>,
        peer_identity: PeerIdentity,
        job: Arc<Membership>,
    ) -> Result<(Arc<Queue>, QueueGrant)> {
        if self.queues.fetch_add(1, Ordering::AcqRel) >= MAX_QUEUES {
            self.queues.fetch_sub(1, Ordering::AcqRel);
            return Err(Error::new(ErrorKind::Busy, format!("all {MAX_QUEUES} queues are in use")));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let opened = self.make_queue(number, peer_identity, job);
        if opened.is_err() {
            self.queues.fetch_sub(1, Ordering::AcqRel);
        }
        opened
    }

    fn make_queue(
        self: &Arc<ShmQueues>,
        number: u32,
        peer_identity: PeerIdentity,
        job: Arc<Membership>,
    ) -> Result<(Arc<Queue>, QueueGrant)> {
        let data = self.parts.store.data();
        let unusable =
            |error: std::io::Error| Error::new(ErrorKind::Io, format!("cannot map a queue: {error}"));
        let thread = self.queue_thread(number);
        let mut state = thread.state.lock();
        let (doorbell, rings) = match &state.doorbell {
            Some(doorbell) => doorbell.clone(),
            None => {
                let (file, path) = data.make_doorbell(number % self.threads.len() as u32)?;
                let doorbell = (Arc::new(Doorbell::new(&file).map_err(unusable)?), path);
                state.doorbell.insert(doorbell).clone()
            }
        };
        let random = crate::key::random()?;
        let (nonce, _) = random.split_first_chunk().expect("32 bytes");
        let nonce = u128::from_le_bytes(*nonce);
        let (file, path) = data.make_queue(number)?;
        let queue_server = QueueServer::create(&file, doorbell, nonce).map_err(unusable)?;
        let (peer_identity, refused) = (Mutex::new(Some(peer_identity)), AtomicU64::new(0));
        let waiting = Arc::new(Semaphore::new(QUEUE_SLOTS as usize));
        let queue = Arc::new(Queue { number, queue_server, job, peer_identity, refused, waiting });
        state.queues = Arc::new(state.queues.iter().cloned().chain([queue.clone()]).collect());
        if !std::mem::replace(&mut state.running, true) {
            let queues = self.clone();
            let term = thread.term.load(Ordering::Acquire);
            tokio::task::spawn_blocking(move || queues.queue_thread(number).serve_queues(&queues, term));
        }
        let bytes = |path: PathBuf| path.into_os_string().into_vec();
        Ok((queue, QueueGrant { path: bytes(path), doorbell: bytes(rings), nonce }))
    }

    /// The moment from which an answer may be leased; `None` if another server can change the file.
    fn leasing(&self) -> Option<(&Epochs, Moment)> {
        let epochs = self.parts.store.epochs().filter(|_| self.parts.life.is_alone())?;
        Some((epochs, epochs.moment()))
    }

    /// The lease of an answer with attributes, valid until they change; `None` if changes would go unnoticed.
    fn lease(&self, (epochs, since): (&Epochs, Moment), answer: &Option<Answer>) -> Option<Lease> {
        let Some(Ok(Reply::Found(attr) | Reply::Opened { attr, .. })) = answer else { return None };
        let lease = epochs.lease(since, attr.id.0)?;
        let is_certain = !self.parts.store.data().is_filled(attr.id)
            && self.parts.layer.may_lease(attr, lease).unwrap_or(false);
        is_certain.then_some(lease)
    }

    /// Looks for queue threads whose request before the back end takes long, and has other threads take over their
    /// queues.
    async fn watch_queue_threads(self: Arc<ShmQueues>) {
        let threads = &self.threads;
        let look = || threads.iter().map(|thread| thread.calls.load(Ordering::Acquire)).collect::<Vec<_>>();
        let (mut stopping, mut before, mut quiet) = (self.parts.life.stopping(), look(), 0);
        // For how many periods each thread has been serving the same request.
        let mut periods = vec![0; threads.len()];
        while rested(&mut stopping, STALL).await {
            let now = look();
            quiet = if now == before && now.iter().all(|calls| calls % 2 == 0) { quiet + 1 } else { 0 };
            for (number, &calls) in now.iter().enumerate() {
                let same = calls % 2 == 1 && before[number] == calls;
                periods[number] = if same { periods[number] + 1 } else { 0 };
                if same && (periods[number] >= PATIENCE || threads[number].runner.waits()) {
                    self.replace_thread(number, calls);
                }
            }
            before = now;
            if quiet > WATCHED {
                break;
            }
        }
        self.watched.store(false, Ordering::SeqCst);
        // A request that began before the store has not started another task.
        if look() != before {
            self.watch();
        }
    }

    /// Starts the task that looks for stalled queue threads, unless it runs.
    fn watch(self: &Arc<ShmQueues>) {
        if !self.watched.load(Ordering::SeqCst) && !self.watched.swap(true, Ordering::SeqCst) {
            tokio::spawn(Box::pin(self.clone().watch_queue_threads()));
        }
    }

    /// Has another thread serve the queues of a queue thread that is busy with one request.
    fn replace_thread(self: &Arc<ShmQueues>, number: usize, calls: u64) {
        let thread = &self.threads[number];
        let _state = thread.state.lock();
        self.stalled.fetch_add(1, Ordering::AcqRel);
        let replaced = thread.calls.compare_exchange(calls, calls + 1, Ordering::AcqRel, Ordering::Acquire);
        if replaced.is_err() {
            // The request has just ended.
            self.stalled.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (term, queues) = (thread.term.fetch_add(1, Ordering::AcqRel) + 1, self.clone());
        tokio::task::spawn_blocking(move || queues.threads[number].serve_queues(&queues, term));
    }

    /// The thread that serves a queue.
    fn queue_thread(&self, queue: u32) -> &QueueThread {
        &self.threads[queue as usize % self.threads.len()]
    }
}

/// A request before the back end, on a queue thread.
struct BackingCall<'a> {
    thread: &'a QueueThread,
    started: u64,
    stalled: &'a AtomicUsize,
}

impl Drop for BackingCall<'_> {
    fn drop(&mut self) {
        let (started, ended) = (self.started, self.started + 1);
        let calls = &self.thread.calls;
        if calls.compare_exchange(started, ended, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread has taken over.
            self.stalled.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl QueueThread {
    /// Whether no other thread has taken over from the one with this term.
    fn is_served_by(&self, term: u64) -> bool {
        self.term.load(Ordering::Acquire) == term
    }

    /// Begins a request that may wait for the back end; `None` if such requests have to be served elsewhere. A thread is
    /// replaced only during such a request, so its term cannot end in between.
    fn begin_call<'a>(&'a self, term: u64, queues: &'a Arc<ShmQueues>) -> Option<BackingCall<'a>> {
        let stalled = &queues.stalled;
        if stalled.load(Ordering::Acquire) > 0 || !self.is_served_by(term) {
            return None;
        }
        let started = self.calls.fetch_add(1, Ordering::AcqRel) + 1;
        queues.watch();
        Some(BackingCall { thread: self, started, stalled })
    }

    fn queues(&self) -> Arc<Vec<Arc<Queue>>> {
        self.state.lock().queues.clone()
    }

    /// Serves the queues of this thread until none is left, the server stops, or another thread takes over.
    fn serve_queues(&self, shm_queues: &Arc<ShmQueues>, term: u64) {
        self.runner.is_this_thread();
        let stopping = shm_queues.parts.life.stopping();
        let (mut buffers, mut aside) = (Buffers::default(), Aside::default());
        // The core on which the last client ran.
        let mut client_core = None;
        loop {
            let (queues, doorbell) = {
                let mut state = self.state.lock();
                if !self.is_served_by(term) {
                    return;
                }
                if state.queues.is_empty() || *stopping.borrow() {
                    state.running = false;
                    return;
                }
                (state.queues.clone(), state.doorbell.as_ref().map(|(doorbell, _)| doorbell.clone()))
            };
            doorbell.iter().for_each(|doorbell| doorbell.announce_core());
            let mut idle = true;
            for queue in &*queues {
                if self.is_served_by(term) && queue.serve(shm_queues, &mut buffers, Some((self, term))) {
                    (idle, client_core) = (false, queue.queue_server.asked_from());
                }
            }
            if !idle {
                // The client is now busy with its answer, so there is time to tidy.
                shm_queues.parts.store.tidy();
                continue;
            }
            let in_vain = || client_core.is_some_and(Core::is_here);
            if in_vain() {
                doorbell.iter().for_each(|doorbell| doorbell.leave());
                if aside.step(client_core, Instant::now()) {
                    continue;
                }
                doorbell.iter().for_each(|doorbell| doorbell.announce_core());
            }
            let Looked::SinceThen(begin) =
                self.spin.until(|| queues.iter().any(|queue| queue.is_ready()), in_vain)
            else {
                continue;
            };
            // Release the queues so that a closing queue is not kept alive.
            drop(queues);
            if let Some(doorbell) = doorbell {
                // Move away from the core of the next client.
                let _away = Away::from(client_core);
                doorbell.announce_core();
                doorbell.sleep(NAP, || self.queues().iter().any(|queue| queue.is_ready()));
            }
            self.spin.waited(begin.elapsed());
        }
    }
}

/// Buffers that are reused for every request.
#[derive(Default)]
struct Buffers {
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Queue {
    /// Whether there are pending requests, and no other thread serves this queue.
    fn is_ready(&self) -> bool {
        self.queue_server.is_asked() && !self.peer_identity.is_locked()
    }

    /// Serves pending requests, unless another thread does; returns whether there were any. `on` is the queue thread and
    /// its term.
    fn serve(
        self: &Arc<Queue>,
        shm_queues: &Arc<ShmQueues>,
        buffers: &mut Buffers,
        on: Option<(&QueueThread, u64)>,
    ) -> bool {
        if !self.queue_server.is_asked() {
            return false;
        }
        let Some(mut peer_identity) = self.peer_identity.try_lock() else { return false };
        let Some(peer_identity) = peer_identity.as_mut() else { return false };
        self.serve_as(shm_queues, peer_identity, buffers, on);
        true
    }

    /// Serves pending requests of the client.
    fn serve_as(
        self: &Arc<Queue>,
        shm_queues: &Arc<ShmQueues>,
        peer_identity: &mut PeerIdentity,
        buffers: &mut Buffers,
        on: Option<(&QueueThread, u64)>,
    ) {
        let Buffers { request, reply } = buffers;
        let refused = self.queue_server.take(request, |taken, bytes| {
            let since = shm_queues.leasing();
            // A panic in this request must not affect other queues of this thread.
            let begun = catch_unwind(AssertUnwindSafe(|| self.begin(shm_queues, peer_identity, bytes, on)));
            match begun.unwrap_or_else(|_| (0, What::Begun(Begun::Done(Some(Err(failed()))), Vec::new()))) {
                (_, What::UseConnection) => self.queue_server.refer(taken),
                (_, What::Malformed) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    self.queue_server.give_up(taken);
                }
                (id, What::Begun(Begun::Done(answer), with_open)) => {
                    let lease = since.and_then(|since| shm_queues.lease(since, &answer));
                    self.answer(taken, id, answer, &with_open, lease, reply);
                }
                (id, What::Begun(Begun::Later(answer), _)) => {
                    let promise = Promise { queue: self.clone(), taken: Some(taken), id };
                    let (sessions, session) =
                        (shm_queues.parts.sessions.clone(), peer_identity.session.clone());
                    // Each slot has at most one request in progress.
                    let place = self.waiting.clone().try_acquire_owned();
                    tokio::spawn(async move {
                        promise.keep(answer.await);
                        sessions.leave(session);
                        drop(place);
                    });
                }
            }
        });
        if refused > 0 {
            self.refused.fetch_add(refused, Ordering::Relaxed);
        }
    }

    /// Serves a request as its connection would, or returns a future for the part that must wait.
    fn begin(
        &self,
        shm_queues: &Arc<ShmQueues>,
        peer_identity: &mut PeerIdentity,
        bytes: &[u8],
        on: Option<(&QueueThread, u64)>,
    ) -> (u64, What) {
        let Some((header, first, rest)) = first_call(bytes) else { return (0, What::Malformed) };
        let Ok(with_open) = with_open(rest) else { return (0, What::Malformed) };
        self.job.request(shm_queues.parts.store.data().now());
        let (sessions, now) = (&shm_queues.parts.sessions, shm_queues.parts.life.age());
        let called = body::<Call>(first)
            .and_then(|call| Ok((peer_identity.caller(sessions, now, call.identity)?, call.request)));
        let what = match called {
            Err(error) => What::Begun(Begun::Done(Some(Err(error))), Vec::new()),
            Ok((caller, request @ Request::Close { .. })) => {
                What::Begun(self.close(shm_queues, caller, request, on), Vec::new())
            }
            Ok((caller, request)) => {
                let class = class(&request, shm_queues.parts.server.has_backing);
                let is_ring = matches!(request, Request::Ring { .. });
                match is_ring || matches!(class, Class::Usual | Class::Backing | Class::Listing) {
                    true => self.serve_with(shm_queues, caller, request, with_open, on),
                    false => What::UseConnection,
                }
            }
        };
        (header.id, what)
    }

    /// Serves a request, and what the client wants for the file that it opens.
    fn serve_with(
        &self,
        shm_queues: &Arc<ShmQueues>,
        caller: Caller,
        request: Request,
        with_open: Option<WithOpen>,
        on: Option<(&QueueThread, u64)>,
    ) -> What {
        let Some(with_open) = with_open else {
            return What::Begun(self.serve_one(shm_queues, caller, request, on), Vec::new());
        };
        let opener = Caller { fills: with_open.write, ..caller.clone() };
        let begun = self.serve_one(shm_queues, opener, request, on);
        let replies = match &begun {
            Begun::Done(Some(Ok(opened))) => {
                shm_queues.parts.server.memory.serve_with_open(self.job.id(), &caller, opened, with_open)
            }
            _ => Vec::new(),
        };
        What::Begun(begun, replies)
    }

    /// Serves a request, on this queue thread even if it may wait for the back end: usually it does not take long.
    fn serve_one(
        &self,
        shm_queues: &Arc<ShmQueues>,
        caller: Caller,
        request: Request,
        on: Option<(&QueueThread, u64)>,
    ) -> Begun {
        let has_backing = shm_queues.parts.server.has_backing;
        let waits = has_backing && class(&request, has_backing) == Class::Backing;
        match on.filter(|_| waits).and_then(|(thread, term)| thread.begin_call(term, shm_queues)) {
            Some(_call) => shm_queues.parts.server.serve_on_this_thread(&self.job, caller, request),
            None => shm_queues.parts.server.serve(&self.job, caller, request),
        }
    }

    /// Closes a file. Retries while the server is busy, because the client may not wait for the answer.
    fn close(
        &self,
        shm_queues: &Arc<ShmQueues>,
        caller: Caller,
        request: Request,
        on: Option<(&QueueThread, u64)>,
    ) -> Begun {
        let (again, job) = ((caller.clone(), request.clone()), &self.job);
        match self.serve_one(shm_queues, caller, request, on) {
            Begun::Done(Some(Err(error))) if error.kind() == ErrorKind::Busy => {
                let (server, job, (caller, request)) = (shm_queues.parts.server.clone(), job.clone(), again);
                Begun::Later(Box::pin(async move {
                    loop {
                        tokio::time::sleep(NAP).await;
                        let answer = match server.serve(&job, caller.clone(), request.clone()) {
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

    /// Answers a request, with as many of the replies that go with it as fit. If the answer is too long for a reply, the
    /// client repeats the request on its connection, which is safe because long answers only come from reads. Errors are
    /// truncated instead.
    fn answer(
        &self,
        taken: Taken,
        id: u64,
        answer: Option<Answer>,
        with_open: &[Reply],
        lease: Option<Lease>,
        reply: &mut Vec<u8>,
    ) {
        let Some(answer) = answer else { return self.queue_server.give_up(taken) };
        reply.clear();
        let framed = frame(reply, FrameKind::Answer, id, &answer, 0);
        if framed.is_ok() && reply.len() <= MOST_REPLY {
            for also in with_open {
                let fits = reply.len();
                let framed = frame(reply, FrameKind::Answer, id, &Answer::Ok(also.clone()), 0);
                if framed.is_err() || reply.len() > MOST_REPLY {
                    reply.truncate(fits);
                    break;
                }
            }
            return self.queue_server.answer(taken, reply, lease);
        }
        let Err(error) = answer else { return self.queue_server.refer(taken) };
        reply.clear();
        let text = error.to_string();
        let end = text.floor_char_boundary(LONGEST_TEXT);
        let short = Answer::Err(Error::new(error.kind(), format!("{}…", &text[..end])));
        match frame(reply, FrameKind::Answer, id, &short, 0) {
            Ok(()) => self.queue_server.answer(taken, reply, None),
            Err(_) => self.queue_server.give_up(taken),
        }
    }

    /// Waits until all requests in progress are answered.
    pub(crate) async fn finished(&self) {
        // An error means that the semaphore is closed, so no request waits.
        let _ = self.waiting.acquire_many(QUEUE_SLOTS).await;
    }

    /// The connection has closed. Requests already in the queue are still executed, like those left in its socket.
    pub(crate) fn end(self: &Arc<Queue>, shm_queues: &Arc<ShmQueues>) {
        // A queue thread may hold the lock for as long as the back end takes, and may have missed the last requests.
        let was_open = tokio::task::block_in_place(|| {
            let mut peer_identity = self.peer_identity.lock();
            if let Some(peer_identity) =
                peer_identity.as_mut().filter(|_| !*shm_queues.parts.life.stopping().borrow())
            {
                self.serve_as(shm_queues, peer_identity, &mut Buffers::default(), None);
            }
            peer_identity.take().is_some()
        });
        if !was_open {
            return;
        }
        let thread = shm_queues.queue_thread(self.number);
        {
            let mut state = thread.state.lock();
            let others = state.queues.iter().filter(|queue| queue.number != self.number).cloned();
            state.queues = Arc::new(others.collect());
        }
        shm_queues.queues.fetch_sub(1, Ordering::AcqRel);
        let refused = self.refused.load(Ordering::Relaxed);
        if refused > 0 {
            tracing::warn!(refused, "skipped malformed requests in a queue");
        }
        if let Err(error) = shm_queues.parts.store.data().remove_queue(self.number) {
            tracing::warn!(%error, "could not remove the file of a queue; the next start removes it");
        }
    }
}

/// The first call of a slot, and the bytes after it.
fn first_call(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEADER>()?;
    let header = Header::decode(head).ok()?;
    let is_call = header.kind == FrameKind::Call && header.payload == 0;
    let (body, rest) = rest.split_at_checked(header.body as usize)?;
    is_call.then_some((header, body, rest))
}

fn next_call(bytes: &[u8]) -> Option<(Call, &[u8])> {
    let (_, call, rest) = first_call(bytes)?;
    Some((body(call).ok()?, rest))
}

/// What the calls after the first one want for the file that the first one opens: a ring for writing; or a ring for
/// reading, and the file's extents.
fn with_open(bytes: &[u8]) -> Result<Option<WithOpen>> {
    let malformed = || Error::new(ErrorKind::Protocol, "a slot has calls that do not belong together");
    if bytes.is_empty() {
        return Ok(None);
    }
    let (
        Call { identity: None, request: Request::Ring { token: Token::OPENED, own: Some(own), write } },
        rest,
    ) = next_call(bytes).ok_or_else(malformed)?
    else {
        return Err(malformed());
    };
    let with_open = WithOpen { ring: RingId(own), write };
    if write && rest.is_empty() {
        return Ok(Some(with_open));
    }
    match next_call(rest).ok_or_else(malformed)? {
        (Call { identity: None, request: Request::Map { token: Token::OPENED, ring, from: 0 } }, [])
            if !write && ring == own =>
        {
            Ok(Some(with_open))
        }
        _ => Err(malformed()),
    }
}

enum What {
    /// The answer, and the replies to the calls that go with an open.
    Begun(Begun, Vec<Reply>),
    /// It must be sent over the connection instead.
    UseConnection,
    /// It cannot be decoded.
    Malformed,
}

/// An answer that is sent in any case, even if the task panics.
struct Promise {
    queue: Arc<Queue>,
    taken: Option<Taken>,
    id: u64,
}

impl Promise {
    fn keep(mut self, answer: Option<Answer>) {
        if let Some(taken) = self.taken.take() {
            self.queue.answer(taken, self.id, answer, &[], None, &mut Vec::new());
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let Some(taken) = self.taken.take() else { return };
        match std::thread::panicking() {
            true => self.queue.answer(taken, self.id, Some(Err(failed())), &[], None, &mut Vec::new()),
            // The server is stopping and abandons requests that take too long.
            false => self.queue.queue_server.give_up(taken),
        }
    }
}
