//! The client of this process: made when the prefix is first touched, made anew in a forked child.
//!
//! Requests run on threads of the library; the calling thread waits, with nothing locked and its signals as they
//! were, so that handlers may call in again.

use crate::errno::Errno;
use crate::life::{self, config};
use crate::lock::Lock;
use crate::quiet::{Quiet, aloud, become_internal, blocked};
use crate::{dispatch, handlers};
use forebay_client::{Address, ById, Client, ClientConfig, Credential};
use forebay_model::{Error, ErrorKind, Result};
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::OnceCell;

static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
static START: Lock<()> = Lock::new(());

/// Threads that serve the requests of all threads of the application.
const WORKERS: usize = 2;
/// Between two looks whether a server is there again.
const GLANCE: Duration = Duration::from_millis(20);

/// A client with its threads.
pub(crate) struct Engine {
    generation: u64,
    runtime: Runtime,
    client: OnceCell<Client>,
}

impl Engine {
    pub(crate) fn by_id(&self) -> &ById {
        self.client().by_id()
    }

    /// The client: there once [`engine`] has given this engine out.
    pub(crate) fn client(&self) -> &Client {
        self.client.get().expect("engines are given out connected")
    }

    /// Runs something that nobody waits for.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _quiet = Quiet::begin();
        self.runtime.spawn(work);
    }
}

/// The threads of this life, if they run.
fn threads() -> Option<&'static Engine> {
    let engine = ENGINE.load(Ordering::Acquire);
    // SAFETY: engines are never freed: a child leaves its parent's where it is.
    unsafe { engine.as_ref() }.filter(|engine| engine.generation == life::generation())
}

/// The engine of this life, if it has been started and connected.
pub(crate) fn started() -> Option<&'static Engine> {
    threads().filter(|engine| engine.client.initialized())
}

fn engine() -> std::result::Result<&'static Engine, Errno> {
    if let Some(engine) = started() {
        return Ok(engine);
    }
    if life::is_borrowed() {
        // Threads made here would end with this process, and the parent would wait for them.
        return Err(Errno(libc::EAGAIN));
    }
    handlers::look();
    let engine = START.with(|()| match threads() {
        Some(engine) => Ok(engine),
        None => {
            let engine: &'static Engine = Box::leak(Box::new(start()?));
            ENGINE.store(std::ptr::from_ref(engine).cast_mut(), Ordering::Release);
            crate::counts::join();
            Ok::<_, Error>(engine)
        }
    })?;
    // Waited for like everything else: a service far away must not keep signals from the application.
    wait_for(engine, async { engine.client.get_or_try_init(connect).await.map(drop) })?;
    Ok(engine)
}

fn start() -> Result<Engine> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(WORKERS).thread_name("forebay").on_thread_start(become_internal).enable_all();
    let runtime = blocked(|| builder.build())
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start threads: {error}")))?;
    Ok(Engine { generation: life::generation(), runtime, client: OnceCell::new() })
}

async fn connect() -> Result<Client> {
    let address = match &config().service {
        Some(name) => name.parse()?,
        None => Address::Unix(default_socket()),
    };
    let mut settings = ClientConfig::new(address);
    if let Some(key) = &config().key {
        settings.credential = Credential::File(PathBuf::from(key));
    }
    let (begin, patience) = (Instant::now(), settings.connect_timeout);
    loop {
        match Client::connect(settings.clone()).await {
            // A server that died, and may be started again: whoever begins meanwhile waits for it, as whoever runs does.
            Err(error)
                if error.kind() == ErrorKind::Unreachable
                    && begin.elapsed() < patience
                    && matches!(&settings.address, Address::Unix(socket) if socket.exists()) =>
            {
                tokio::time::sleep(GLANCE).await;
            }
            done => return done,
        }
    }
}

/// Where a service of this user or of the machine listens.
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

/// What a waiting thread and the thread that works for it share.
struct Slot<T> {
    done: AtomicU32,
    value: UnsafeCell<Option<Result<T>>>,
}

// SAFETY: the worker writes before `done`, the waiter reads after it.
unsafe impl<T: Send> Sync for Slot<T> {}

/// Tells the waiter, whatever becomes of the work.
struct Finish<'a>(&'a AtomicU32);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let word: *const AtomicU32 = self.0;
        self.0.store(1, Ordering::Release);
        // The waiter may be gone with the word by now: waking nobody at its address harms nobody.
        // SAFETY: the kernel only uses the address as a key.
        let word = unsafe { &*word };
        let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
    }
}

/// Asks the service, and waits for the answer.
pub(crate) fn run<'a, T, F>(make: impl FnOnce(&'static Engine) -> F) -> std::result::Result<T, Errno>
where
    T: Send + 'a,
    F: Future<Output = Result<T>> + Send + 'a,
{
    run_with(Errand { meanwhile: || {}, otherwise: || {} }, make)
}

/// What a thread does while it waits for something to be opened, and what then if that takes long.
#[derive(Clone, Copy)]
pub(crate) struct Errand {
    pub(crate) meanwhile: fn(),
    pub(crate) otherwise: fn(),
}

/// The same with an errand.
pub(crate) fn run_with<'a, T, F>(
    errand: Errand,
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
            if let Poll::Ready(done) = here(engine, errand.meanwhile, work.as_mut()) {
                return done.map_err(Errno::from);
            }
            (errand.otherwise)();
            work
        };
        wait_for(engine, work.as_mut())
    });
    counted.end(&result);
    result
}

/// Begins some work on the calling thread, undisturbed; where the service is asked by shared memory it is soon done. A
/// handler that calls in finds nothing locked: if there is more to wait for, the engine's threads go on with it.
fn here<T>(engine: &Engine, meanwhile: fn(), work: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    let _threads = engine.runtime.enter();
    let poll = || work.poll(&mut Context::from_waker(Waker::noop()));
    forebay_client::waiting_here_with(meanwhile, poll)
}

/// Has the engine's threads do something, and waits for it.
fn wait_for<'a, T, F>(engine: &'static Engine, work: F) -> std::result::Result<T, Errno>
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
            // SAFETY: only this task writes, and the waiter does not look before it is told.
            unsafe { *slot.value.get() = Some(value) };
        });
        // SAFETY: everything the task borrows stays until `done` is set, for which this call waits below; the task
        // sets it when it ends, panics or is dropped, and touches nothing borrowed after that.
        let work: Pin<Box<dyn Future<Output = ()> + Send + 'static>> = unsafe { std::mem::transmute(work) };
        engine.runtime.spawn(work);
    }
    while slot.done.load(Ordering::Acquire) == 0 {
        // A signal or a value that has changed meanwhile: look again.
        let wait = || dispatch::waiting(|| futex::wait(&slot.done, futex::Flags::PRIVATE, 0, None));
        let _ = aloud(wait);
    }
    match slot.value.into_inner() {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(error.into()),
        None => Err(Errno(libc::EIO)),
    }
}
