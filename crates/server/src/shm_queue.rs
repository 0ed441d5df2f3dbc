//! Answers requests that clients on this machine put into queues in shared memory.
//!
//! A queue belongs to the control connection that requested it and ends with it. A queue thread serves several queues
//! for as long as it has any; it spins for a while before it sleeps. Decision 71 describes the protocol and what
//! happens when one side dies.
//!
//! **Invariant**: a request from a queue is treated as if it came over the queue's connection: same peer, session,
//! turns and connection epoch; the server trusts nothing in shared memory; a misbehaving client cannot stop the server
//! from serving other queues.

use crate::blocking::{Begun, failed};
use crate::caller::Caller;
use crate::connection::Connection;
use crate::control::serve_request;
use crate::handle::{Class, class};
use crate::jobs::Membership;
use crate::peer_identity::PeerIdentity;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, Result};
use forebay_shm::{
    Aside, Away, Core, Doorbell, Epochs, Lease, Looked, MOST_REPLY, Moment, QUEUE_SLOTS, QueueServer, Spin,
    Taken,
};
use forebay_store::{MAX_DOORBELLS, MAX_QUEUES};
use forebay_wire::{Answer, Call, FrameKind, HEADER, Header, QueueGrant, Reply, Request, body, frame};
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a queue thread spins for the next request before it sleeps.
const SHORTEST_LOOK: Duration = Duration::from_micros(2);
const LONGEST_LOOK: Duration = Duration::from_micros(50);
/// How long it sleeps without a doorbell. Only a client that corrupts the doorbell delays others by this long.
const NAP: Duration = Duration::from_millis(20);
/// Bytes of an error's text that always fit a reply.
const LONGEST_TEXT: usize = MOST_REPLY / 2;

/// All queue threads of a server.
pub(crate) struct ShmQueues {
    threads: Vec<QueueThread>,
    next: AtomicU32,
    queues: AtomicU32,
}

struct QueueThread {
    state: Mutex<State>,
    spin: Spin,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for ShmQueues {
    fn default() -> ShmQueues {
        // Each thread may need a core of its own, and so may its clients.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (cores / 4).clamp(1, MAX_DOORBELLS as usize);
        let thread = || QueueThread { state: Mutex::default(), spin: Spin::new(SHORTEST_LOOK, LONGEST_LOOK) };
        let threads = (0..count).map(|_| thread()).collect();
        ShmQueues { threads, next: AtomicU32::new(0), queues: AtomicU32::new(0) }
    }
}

/// Opens a queue for a connection and replaces its previous one.
pub(crate) fn open(connection: &mut Connection, caller: &Caller) -> Answer {
    if !(connection.service.config.shared_memory && caller.local && caller.privileged) {
        let text = "shared memory is off, or the program is not one of the service's own user on its machine";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    if let Some(before) = connection.queue.take() {
        before.end(&connection.service);
    }
    let (queue, grant) = tokio::task::block_in_place(|| {
        connection.service.open_queue(connection.peer_identity.clone(), connection.job.clone())
    })?;
    connection.queue = Some(queue);
    Ok(Reply::Queue(Box::new(grant)))
}

impl Service {
    fn open_queue(
        &self,
        peer_identity: PeerIdentity,
        job: Arc<Membership>,
    ) -> Result<(Arc<Queue>, QueueGrant)> {
        let shm_queues = &self.shm_queues;
        if shm_queues.queues.fetch_add(1, Ordering::AcqRel) >= MAX_QUEUES {
            shm_queues.queues.fetch_sub(1, Ordering::AcqRel);
            return Err(Error::new(ErrorKind::Busy, format!("all {MAX_QUEUES} queues are in use")));
        }
        let number = shm_queues.next.fetch_add(1, Ordering::Relaxed);
        let opened = self.make_queue(number, peer_identity, job);
        if opened.is_err() {
            shm_queues.queues.fetch_sub(1, Ordering::AcqRel);
        }
        opened
    }

    fn make_queue(
        &self,
        number: u32,
        peer_identity: PeerIdentity,
        job: Arc<Membership>,
    ) -> Result<(Arc<Queue>, QueueGrant)> {
        let data = self.store.data();
        let unusable =
            |error: std::io::Error| Error::new(ErrorKind::Io, format!("cannot map a queue: {error}"));
        let thread = self.queue_thread(number);
        let mut state = lock(&thread.state);
        let (doorbell, rings) = match &state.doorbell {
            Some(doorbell) => doorbell.clone(),
            None => {
                let (file, path) = data.make_doorbell(number % self.shm_queues.threads.len() as u32)?;
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
            let service = self.me().ok_or(ErrorKind::Busy)?;
            tokio::task::spawn_blocking(move || service.queue_thread(number).serve_queues(&service));
        }
        let bytes = |path: PathBuf| path.into_os_string().into_vec();
        Ok((queue, QueueGrant { path: bytes(path), doorbell: bytes(rings), nonce }))
    }

    /// The moment from which an answer may be leased; `None` if another server or the back end can change the file.
    fn leasing(&self) -> Option<(&Epochs, Moment)> {
        let epochs = self.store.epochs().filter(|_| self.life.is_alone() && self.backing.is_none())?;
        Some((epochs, epochs.moment()))
    }

    /// The lease of an answer with attributes, valid until they change; `None` if changes would go unnoticed.
    fn lease(&self, (epochs, since): (&Epochs, Moment), answer: &Option<Answer>) -> Option<Lease> {
        let Some(Ok(Reply::Found(attr) | Reply::Opened { attr, .. })) = answer else { return None };
        let lease = epochs.lease(since, attr.id.0)?;
        (!self.store.data().is_filled(attr.id)).then_some(lease)
    }

    /// The thread that serves a queue.
    fn queue_thread(&self, queue: u32) -> &QueueThread {
        &self.shm_queues.threads[queue as usize % self.shm_queues.threads.len()]
    }
}

impl QueueThread {
    fn queues(&self) -> Arc<Vec<Arc<Queue>>> {
        lock(&self.state).queues.clone()
    }

    /// Serves the queues of this thread until none is left or the server stops.
    fn serve_queues(&self, service: &Arc<Service>) {
        let stopping = service.life.stopping();
        let (mut buffers, mut aside) = (Buffers::default(), Aside::default());
        // The core on which the last client ran.
        let mut client_core = None;
        loop {
            let (queues, doorbell) = {
                let mut state = lock(&self.state);
                if state.queues.is_empty() || *stopping.borrow() {
                    state.running = false;
                    return;
                }
                (state.queues.clone(), state.doorbell.as_ref().map(|(doorbell, _)| doorbell.clone()))
            };
            doorbell.iter().for_each(|doorbell| doorbell.announce_core());
            let mut idle = true;
            for queue in &*queues {
                if queue.serve(service, &mut buffers) {
                    (idle, client_core) = (false, queue.queue_server.asked_from());
                }
            }
            if !idle {
                // The client is now busy with its answer, so there is time to tidy.
                service.store.tidy();
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
                self.spin.until(|| queues.iter().any(|queue| queue.queue_server.is_asked()), in_vain)
            else {
                continue;
            };
            // Release the queues so that a closing queue is not kept alive.
            drop(queues);
            if let Some(doorbell) = doorbell {
                // Move away from the core of the next client.
                let _away = Away::from(client_core);
                doorbell.announce_core();
                doorbell.sleep(NAP, || self.queues().iter().any(|queue| queue.queue_server.is_asked()));
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
    /// Serves pending requests; returns whether there were any.
    fn serve(self: &Arc<Queue>, service: &Arc<Service>, buffers: &mut Buffers) -> bool {
        if !self.queue_server.is_asked() {
            return false;
        }
        let mut peer_identity = lock(&self.peer_identity);
        let Some(peer_identity) = peer_identity.as_mut() else { return false };
        let Buffers { request, reply } = buffers;
        let refused = self.queue_server.take(request, |taken, bytes| {
            let since = service.leasing();
            // A panic in this request must not affect other queues of this thread.
            let begun = catch_unwind(AssertUnwindSafe(|| self.begin(service, peer_identity, bytes)));
            match begun.unwrap_or_else(|_| (0, What::Begun(Begun::Done(Some(Err(failed())))))) {
                (_, What::UseConnection) => self.queue_server.refer(taken),
                (_, What::Malformed) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    self.queue_server.give_up(taken);
                }
                (id, What::Begun(Begun::Done(answer))) => {
                    let lease = since.and_then(|since| service.lease(since, &answer));
                    self.answer(taken, id, answer, lease, reply);
                }
                (id, What::Begun(Begun::Later(answer))) => {
                    let promise = Promise { queue: self.clone(), taken: Some(taken), id };
                    let (service, session) = (service.clone(), peer_identity.session.clone());
                    // Each slot has at most one request in progress.
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

    /// Serves a request as its connection would, or returns a future for the part that must wait.
    fn begin(&self, service: &Arc<Service>, peer_identity: &mut PeerIdentity, bytes: &[u8]) -> (u64, What) {
        let header = bytes.split_first_chunk::<HEADER>().and_then(|(head, rest)| {
            let header = Header::decode(head).ok()?;
            let whole = header.kind == FrameKind::Call && header.payload == 0;
            (whole && header.body as usize == rest.len()).then_some((header, rest))
        });
        let Some((header, rest)) = header else { return (0, What::Malformed) };
        self.job.request(service.store.data().now());
        let called = body::<Call>(rest)
            .and_then(|call| Ok((peer_identity.caller(service, call.identity)?, call.request)));
        let what = match called {
            Err(error) => What::Begun(Begun::Done(Some(Err(error)))),
            Ok((caller, request @ Request::Close { .. })) => {
                What::Begun(self.close(service, caller, request))
            }
            Ok((caller, request)) => {
                let class = class(&request, service.backing.is_some());
                let is_ring = matches!(request, Request::Ring { .. });
                match is_ring || matches!(class, Class::Usual | Class::Backing | Class::Listing) {
                    true => What::Begun(serve_request(service, &self.job, caller, request)),
                    false => What::UseConnection,
                }
            }
        };
        (header.id, what)
    }

    /// Closes a file. Retries while the server is busy, because the client may not wait for the answer.
    fn close(&self, service: &Arc<Service>, caller: Caller, request: Request) -> Begun {
        let (again, job) = ((caller.clone(), request.clone()), &self.job);
        match serve_request(service, job, caller, request) {
            Begun::Done(Some(Err(error))) if error.kind() == ErrorKind::Busy => {
                let (service, job, (caller, request)) = (service.clone(), job.clone(), again);
                Begun::Later(Box::pin(async move {
                    loop {
                        tokio::time::sleep(NAP).await;
                        let answer = match serve_request(&service, &job, caller.clone(), request.clone()) {
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

    /// Answers a request. If the answer is too long for a reply, the client repeats the request on its connection,
    /// which is safe because long answers only come from reads. Errors are truncated instead.
    fn answer(
        &self,
        taken: Taken,
        id: u64,
        answer: Option<Answer>,
        lease: Option<Lease>,
        reply: &mut Vec<u8>,
    ) {
        let Some(answer) = answer else { return self.queue_server.give_up(taken) };
        reply.clear();
        let framed = frame(reply, FrameKind::Answer, id, &answer, 0);
        if framed.is_ok() && reply.len() <= MOST_REPLY {
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
    pub(crate) fn end(self: &Arc<Queue>, service: &Arc<Service>) {
        if !*service.life.stopping().borrow() {
            self.serve(service, &mut Buffers::default());
        }
        if lock(&self.peer_identity).take().is_none() {
            return;
        }
        let thread = service.queue_thread(self.number);
        {
            let mut state = lock(&thread.state);
            let others = state.queues.iter().filter(|queue| queue.number != self.number).cloned();
            state.queues = Arc::new(others.collect());
        }
        service.shm_queues.queues.fetch_sub(1, Ordering::AcqRel);
        let refused = self.refused.load(Ordering::Relaxed);
        if refused > 0 {
            tracing::warn!(refused, "skipped malformed requests in a queue");
        }
        if let Err(error) = service.store.data().remove_queue(self.number) {
            tracing::warn!(%error, "could not remove the file of a queue; the next start removes it");
        }
    }
}

enum What {
    Begun(Begun),
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
            self.queue.answer(taken, self.id, answer, None, &mut Vec::new());
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let Some(taken) = self.taken.take() else { return };
        match std::thread::panicking() {
            true => self.queue.answer(taken, self.id, Some(Err(failed())), None, &mut Vec::new()),
            // The server is stopping and abandons requests that take too long.
            false => self.queue.queue_server.give_up(taken),
        }
    }
}
