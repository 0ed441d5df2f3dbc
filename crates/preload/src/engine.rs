//! The client of this process. It is created when the process first touches the prefix, again in a forked child, and
//! again when the process has permanently given up the user who connected.
//!
//! Requests run on threads of the library. The calling thread waits without holding a lock and with its own signal
//! mask, so signal handlers may call the library again. Each request carries the identity of the calling thread.

use crate::credentials::{self, Credentials, Origin};
use crate::errno::Errno;
use crate::lock::Lock;
use crate::process_state::{self, config};
use crate::quiet::{Quiet, become_internal, blocked, with_handlers_allowed};
use crate::{dispatch, handing, handlers};
use forebay_client::{
    Acting, Address, Addresses, ById, Client, ClientConfig, Credential, File, Token, run_socket,
};
use forebay_model::{Error, ErrorKind, Gid, Identity, Result};
use rustix::thread::futex;
use std::cell::{Cell, UnsafeCell};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, compiler_fence};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::OnceCell;

static CURRENT: AtomicPtr<Threads> = AtomicPtr::new(std::ptr::null_mut());
static START: Lock<()> = Lock::new(());

/// Number of threads that serve the requests of all threads of the application.
const WORKERS: usize = 2;
/// Name of the library's threads.
pub(crate) const THREAD_NAME: &str = "forebay";
/// Interval between two attempts to connect to a server that may be restarted.
const CONNECT_RETRY: Duration = Duration::from_millis(20);
/// Interval between two checks for requests in flight.
const IDLE_CHECK: Duration = Duration::from_millis(50);
/// A group that grants no rights.
const NO_GROUP: Gid = Gid(65534);

/// A client with its threads. All its connections are made as one user.
pub(crate) struct Threads {
    generation: u64,
    handle: Handle,
    runtime: Lock<Option<Runtime>>,
    origin: Origin,
    /// How many of the threads run code of their own, and so have their names.
    begun: Arc<AtomicU32>,
    /// Whether the next call replaces these threads by threads with the caller's rights.
    is_outdated: AtomicBool,
    client: OnceCell<Client>,
    may_name_others: OnceCell<bool>,
    /// One engine for each identity that threads of this process have had.
    engines: Lock<Vec<&'static Engine>>,
}

/// The client as used in the name of one user.
pub(crate) struct Engine {
    threads: &'static Threads,
    client: Client,
    identity: Identity,
}

thread_local! {
    /// The engine of this thread. Valid for one generation of the process, until credentials change.
    static FOUND: Found = const { Found { changes: Cell::new(0), generation: Cell::new(0), engine: Cell::new(None) } };
}

struct Found {
    changes: Cell<u64>,
    generation: Cell<u64>,
    engine: Cell<Option<&'static Engine>>,
}

impl Found {
    fn get(&self) -> Option<&'static Engine> {
        let counts = self.changes.get() == credentials::changes()
            && self.generation.get() == process_state::generation();
        self.engine.get().filter(|_| counts)
    }

    /// A signal handler that runs in between finds no valid entry.
    fn set(&self, changes: u64, engine: &'static Engine) {
        self.changes.set(0);
        compiler_fence(Ordering::SeqCst);
        self.engine.set(Some(engine));
        self.generation.set(engine.threads.generation);
        compiler_fence(Ordering::SeqCst);
        self.changes.set(changes);
    }
}

impl Engine {
    pub(crate) fn by_id(&self) -> &ById {
        self.client().by_id()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The identity that its requests carry.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Reopens a file in the name of the user who opened it: an open file stays usable when the process changes its
    /// user.
    pub(crate) async fn reopen(&self, token: Token) -> Result<File> {
        if token.uid == self.identity.uid {
            return self.by_id().reopen(token).await;
        }
        let client = self.threads.client();
        if token.uid.0 == self.threads.origin.uid {
            return client.by_id().reopen(token).await;
        }
        let opener = Identity { uid: token.uid, gid: NO_GROUP, groups: Vec::new() };
        client.as_identity(opener).by_id().reopen(token).await
    }

    /// Runs a future on the library's threads and waits for it.
    pub(crate) fn wait_for<T: Send>(
        &self,
        work: impl Future<Output = Result<T>> + Send,
    ) -> std::result::Result<T, Errno> {
        self.threads.wait_for(work)
    }

    /// Runs a future in the background.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _quiet = Quiet::begin();
        self.threads.handle.spawn(work);
    }
}

impl Threads {
    /// The client. Threads are connected before they serve calls.
    pub(crate) fn client(&self) -> &Client {
        self.client.get().expect("threads are connected before use")
    }

    /// Whether calls of a thread with these credentials may use these connections: as long as any thread of the process
    /// can be the user who connected, since that user may name other users. If all threads have given that user up, its
    /// connections must not be used any more.
    fn serve(&'static self, now: &Credentials) -> bool {
        if self.is_outdated.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.live_in(now) && (now.identity == self.origin.identity() || self.may_name(&now.identity))
    }

    /// Whether requests on these connections may name another user.
    pub(crate) fn may_name(&'static self, other: &Identity) -> bool {
        if let Some(may) = self.may_name_others.get() {
            return *may;
        }
        let asked = self.wait_for(async {
            let asked = self.client().as_identity(other.clone()).ping().await;
            let refused = matches!(&asked, Err(error) if error.kind() == ErrorKind::NotPermitted);
            if asked.is_ok() || refused {
                // Another thread may have set it first.
                let _ = self.may_name_others.set(!refused);
            }
            Ok(!refused)
        });
        asked.unwrap_or(true)
    }

    /// Whether a thread of the program is the user who connected, or can become it again.
    pub(crate) fn live_in(&self, now: &Credentials) -> bool {
        now.includes(self.origin.uid) || credentials::others_include(self.origin.uid)
    }

    /// The engine for a user's calls on these threads.
    pub(crate) fn engine(&'static self, identity: &Identity) -> &'static Engine {
        let own = *identity == self.origin.identity();
        self.engines.with(|engines| {
            if let Some(engine) = engines.iter().find(|engine| engine.identity == *identity) {
                return *engine;
            }
            let client =
                if own { self.client().clone() } else { self.client().as_identity(identity.clone()) };
            let engine: &'static Engine =
                Box::leak(Box::new(Engine { threads: self, client, identity: identity.clone() }));
            engines.push(engine);
            engine
        })
    }

    /// Starts threads for a new client, not yet connected.
    pub(crate) fn start(now: &Credentials) -> std::result::Result<&'static Threads, Errno> {
        if process_state::is_borrowed() {
            // Threads created here would end with this process, and the parent would wait for them.
            return Err(Errno(libc::EAGAIN));
        }
        let begun = Arc::new(AtomicU32::new(0));
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(WORKERS)
            .thread_name(THREAD_NAME)
            .on_thread_start({
                let begun = begun.clone();
                move || {
                    become_internal();
                    begun.fetch_add(1, Ordering::Release);
                    let _ = futex::wake(&begun, futex::Flags::PRIVATE, i32::MAX as u32);
                }
            })
            .enable_all();
        let runtime = blocked(|| builder.build())
            .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start client threads: {error}")))?;
        Ok(Box::leak(Box::new(Threads {
            generation: process_state::generation(),
            handle: runtime.handle().clone(),
            runtime: Lock::new(Some(runtime)),
            origin: now.origin(),
            begun,
            is_outdated: AtomicBool::new(false),
            client: OnceCell::new(),
            may_name_others: OnceCell::new(),
            engines: Lock::new(Vec::new()),
        })))
    }

    /// Connects, unless already connected.
    pub(crate) fn connect(&'static self) -> std::result::Result<(), Errno> {
        if self.client.initialized() {
            return Ok(());
        }
        // The thread waits as for any request: a slow connection must not block the application's signals.
        let done = self.wait_for(async { self.client.get_or_try_init(|| connect(self)).await.map(drop) });
        self.wait_until_begun();
        done
    }

    /// Waits until all threads have their names, by which they are told from those of the program. A thread that has not
    /// begun has its creator's name.
    pub(crate) fn wait_until_begun(&self) {
        loop {
            let begun = self.begun.load(Ordering::Acquire);
            if begun >= WORKERS as u32 {
                return;
            }
            let _ = futex::wait(&self.begun, futex::Flags::PRIVATE, begun, None);
        }
    }

    /// Makes these threads serve in place of `others`, unless another thread has replaced those first.
    pub(crate) fn take_over_from(&'static self, others: &'static Threads) -> bool {
        let (old, new) = (std::ptr::from_ref(others).cast_mut(), std::ptr::from_ref(self).cast_mut());
        CURRENT.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Closes all connections, and ends the threads when no request is in flight.
    pub(crate) fn retire(&'static self, successors: &'static Threads) {
        self.client().close();
        let _quiet = Quiet::begin();
        successors.handle.spawn(async {
            while self.handle.metrics().num_alive_tasks() > 0 {
                tokio::time::sleep(IDLE_CHECK).await;
            }
            self.end();
        });
    }

    /// Ends the threads and drops all requests in flight.
    pub(crate) fn end(&self) {
        if let Some(runtime) = self.runtime.with(Option::take) {
            runtime.shutdown_background();
        }
    }
}

/// The threads of this generation, if they run.
pub(crate) fn threads() -> Option<&'static Threads> {
    let threads = CURRENT.load(Ordering::Acquire);
    // SAFETY: `Threads` are never freed; a child leaves its parent's in place.
    unsafe { threads.as_ref() }.filter(|threads| threads.generation == process_state::generation())
}

/// Any engine of this generation, for callers to whom the identity does not matter.
pub(crate) fn started() -> Option<&'static Engine> {
    let found = FOUND.try_with(Found::get).ok().flatten();
    found.or_else(|| threads()?.engines.with(|engines| engines.first().copied()))
}

/// The engine for this thread's calls.
fn engine() -> std::result::Result<&'static Engine, Errno> {
    match FOUND.try_with(Found::get) {
        Ok(Some(engine)) => Ok(engine),
        _ => find(),
    }
}

#[cold]
fn find() -> std::result::Result<&'static Engine, Errno> {
    let changes = credentials::changes();
    let now = Credentials::read();
    let mut serving = match threads() {
        Some(threads) => threads,
        None => begin(&now)?,
    };
    serving.connect()?;
    if !serving.serve(&now) {
        serving = handing::replace(serving, &now)?;
    }
    let engine = serving.engine(&now.identity);
    // A thread that is ending has no thread-local storage any more.
    let _ = FOUND.try_with(|found| found.set(changes, engine));
    Ok(engine)
}

fn begin(now: &Credentials) -> std::result::Result<&'static Threads, Errno> {
    handlers::look();
    START.with(|()| match threads() {
        Some(threads) => Ok(threads),
        None => {
            let threads = Threads::start(now)?;
            CURRENT.store(std::ptr::from_ref(threads).cast_mut(), Ordering::Release);
            crate::counts::join();
            Ok(threads)
        }
    })
}

/// Marks the threads as having other rights than the caller; the next call replaces them.
pub(crate) fn outdate() {
    threads().into_iter().for_each(|threads| threads.is_outdated.store(true, Ordering::Release));
}

/// Connects for the calling thread now.
pub(crate) fn connect_now() {
    // The call that needs the connection reports the error.
    let _ = engine();
}

/// Runs `work` in the name of another user than the calling thread's.
pub(crate) fn run_as<T>(identity: &Identity, work: impl FnOnce() -> T) -> std::result::Result<T, Errno> {
    let changes = credentials::changes();
    let own = engine()?;
    let engine = own.threads.engine(identity);
    let _ = FOUND.try_with(|found| found.set(changes, engine));
    let done = work();
    // If credentials have changed meanwhile, the entry is not valid.
    let _ = FOUND.try_with(|found| found.set(changes, own));
    Ok(done)
}

/// Connects to the service; at the socket for programs of a run if the run's own socket does not admit this user.
async fn connect(threads: &Threads) -> Result<Client> {
    let addresses: Addresses = match &config().service {
        Some(name) => name.parse()?,
        None => Address::Unix(default_socket()).into(),
    };
    let mut settings = ClientConfig::new(addresses);
    if let Some(key) = &config().key {
        settings.credential = Credential::File(PathBuf::from(key));
    }
    let origin = threads.origin.clone();
    settings.acting = Some(Acting::new(move |work| origin.act(work)));
    settings.security = config().security.as_deref().map(str::parse).transpose()?;
    settings.request_timeout = config().request_time.unwrap_or(settings.request_timeout);
    let (begin, patience) = (Instant::now(), settings.connect_timeout);
    let mut of_run = config().run_socket.map(run_socket);
    loop {
        match Client::connect(settings.clone()).await {
            Err(error) if is_refusal(&error) && of_run.is_some() => {
                settings.addresses = of_run.take().map(Address::Unix).expect("it was there").into();
            }
            // The server died and may be restarted: a starting client waits for it as a running client does.
            Err(error)
                if error.kind() == ErrorKind::Unreachable
                    && begin.elapsed() < patience
                    && (of_run.is_none() && config().run_socket.is_some()
                        || settings.addresses.iter().any(has_socket)) =>
            {
                tokio::time::sleep(CONNECT_RETRY).await;
            }
            done => return done,
        }
    }
}

/// Whether a server has created this socket, and may listen on it again.
fn has_socket(address: &Address) -> bool {
    matches!(address, Address::Unix(socket) if socket.exists())
}

fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::NotPermitted | ErrorKind::Unauthenticated)
}

/// The socket of this user's service, or of the machine's.
fn default_socket() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")));
    let places = [
        std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("forebay.sock")),
        Some(format!("/run/user/{uid}/forebay.sock").into()),
        state.map(|dir| dir.join("forebay/store.sock")),
    ];
    let found = places.into_iter().flatten().find(|path| uid != 0 && path.exists());
    found.unwrap_or_else(|| "/run/forebay.sock".into())
}

/// State shared by a waiting thread and the task that works for it.
struct Slot<T> {
    done: AtomicU32,
    value: UnsafeCell<Option<Result<T>>>,
}

// SAFETY: the worker writes before `done`, the waiter reads after it.
unsafe impl<T: Send> Sync for Slot<T> {}

/// Wakes the waiter when the task ends, panics or is dropped.
struct Finish<'a>(&'a AtomicU32);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let word: *const AtomicU32 = self.0;
        self.0.store(1, Ordering::Release);
        // The waiter and its word may be gone by now: a wake at an address without a waiter has no effect.
        // SAFETY: the kernel only uses the address as a key.
        let word = unsafe { &*word };
        let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
    }
}

/// Sends requests to the service and waits for the result.
pub(crate) fn run<'a, T, F>(make: impl FnOnce(&'static Engine) -> F) -> std::result::Result<T, Errno>
where
    T: Send + 'a,
    F: Future<Output = Result<T>> + Send + 'a,
{
    run_with(WaitHooks { while_waiting: || {}, if_slow: || {} }, make)
}

/// What a thread does while it waits for an open: `while_waiting` first, `if_slow` if the open takes long.
#[derive(Clone, Copy)]
pub(crate) struct WaitHooks {
    pub(crate) while_waiting: fn(),
    pub(crate) if_slow: fn(),
}

/// As [`run`], with hooks for the wait.
pub(crate) fn run_with<'a, T, F>(
    hooks: WaitHooks,
    make: impl FnOnce(&'static Engine) -> F,
) -> std::result::Result<T, Errno>
where
    T: Send + 'a,
    F: Future<Output = Result<T>> + Send + 'a,
{
    let counted = crate::counts::Counted::begin();
    let result = engine().and_then(|engine| {
        let mut work = {
            let _quiet = Quiet::begin();
            let mut work = Box::pin(make(engine));
            if let Poll::Ready(done) = poll_once(engine.threads, hooks.while_waiting, work.as_mut()) {
                return done.map_err(Errno::from);
            }
            (hooks.if_slow)();
            work
        };
        engine.threads.wait_for(work.as_mut())
    });
    counted.end(&result);
    result
}

/// Polls `work` once on the calling thread with signals blocked; with a service in shared memory it is often done at
/// once. No lock is held when a signal handler calls the library. If `work` has to wait, the engine's threads continue
/// it.
fn poll_once<T>(threads: &Threads, while_waiting: fn(), work: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    let _threads = threads.handle.enter();
    let poll = || work.poll(&mut Context::from_waker(Waker::noop()));
    forebay_client::waiting_here_with(while_waiting, poll)
}

impl Threads {
    /// Runs a future on these threads and waits for it.
    pub(crate) fn wait_for<'a, T, F>(&'static self, work: F) -> std::result::Result<T, Errno>
    where
        T: Send + 'a,
        F: Future<Output = Result<T>> + Send + 'a,
    {
        let slot = Slot { done: AtomicU32::new(0), value: UnsafeCell::new(None) };
        {
            let _quiet = Quiet::begin();
            let slot = &slot;
            let work: Pin<Box<dyn Future<Output = ()> + Send + '_>> = Box::pin(async move {
                let _finish = Finish(&slot.done);
                let value = work.await;
                // SAFETY: only this task writes, and the waiter does not read before `done` is set.
                unsafe { *slot.value.get() = Some(value) };
            });
            // SAFETY: everything the task borrows stays valid until `done` is set, for which this call waits below; the
            // task sets it when it ends, panics or is dropped, and touches nothing borrowed after that.
            let work: Pin<Box<dyn Future<Output = ()> + Send + 'static>> =
                unsafe { std::mem::transmute(work) };
            self.handle.spawn(work);
        }
        while slot.done.load(Ordering::Acquire) == 0 {
            // Interrupted by a signal, or the value has changed: check again.
            let wait = || dispatch::waiting(|| futex::wait(&slot.done, futex::Flags::PRIVATE, 0, None));
            let _ = with_handlers_allowed(wait);
        }
        match slot.value.into_inner() {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(error.into()),
            None => Err(Errno(libc::EIO)),
        }
    }
}
