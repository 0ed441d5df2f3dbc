//! The life of a server: it opens its store, listens, serves, and leaves everything in order.

use crate::config::{Config, Medium};
use crate::drain::{self, Engine};
use crate::hall::Hall;
use crate::members::Fixed;
use crate::service::{Service, stopped};
use crate::several::Joining;
use crate::transport::{Listener, Vouch};
use crate::warm::{Warmth, warm};
use crate::{circle, connection, memory, several};
use forebay_backend::Backend;
use forebay_model::{Error, ErrorKind, Gid, Members, Result, Uid};
use forebay_store::{Root, Store, StoreConfig};
use forebay_wire::Standing;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Fewest threads: calls of the metadata store are made in them, and one that stalls must not stop the others.
const FEWEST_THREADS: usize = 4;
/// How often the cleaner looks whether there is something to do.
const TIDY: Duration = Duration::from_millis(20);
/// How long servers that start together may take to meet.
const JOINING: Duration = Duration::from_secs(60);
/// Between two looks whether they have.
const GLANCE: Duration = Duration::from_millis(2);
/// What an accept that failed waits before the next: most likely all descriptors are in use.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Starts servers.
#[derive(Clone, Copy, Debug)]
pub struct Server;

/// Where a server can be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The path of its Unix socket.
    pub unix: PathBuf,
    /// Its address on TCP, if it has one.
    pub tcp: Option<SocketAddr>,
    /// The key file that TCP clients need.
    pub key: PathBuf,
}

/// A server that runs in this process, on threads of its own. Dropping it stops it and waits for its end.
pub struct Running {
    stopper: Stopper,
    addresses: Addresses,
    thread: Option<JoinHandle<Result<()>>>,
    joining: Arc<Joining>,
    members: Arc<Members>,
    warmth: Warmth,
}

/// Stops a server; can be given to whoever hears the signals.
#[derive(Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Tells the server to stop, and does not wait.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Opens or makes the store, and serves it. Blocks until clients can connect, which
    /// recovery may delay.
    pub fn start(config: Config) -> Result<Running> {
        let backend = config.backend.as_deref().map(forebay_backend::open).transpose()?;
        start(config, backend, None)
    }

    /// Starts so many servers of one service in this process (see [`Config::several`]), and waits until they serve. One
    /// whose store the others do not know stays out ([`Running::refusal`]), and they serve without it.
    pub fn start_several(config: &Config, count: u16) -> Result<Vec<Running>> {
        let mut configs = config.several(count);
        // Whoever leaves the choice of a port to the system gets it before the list is made.
        let bind = |config: &Config| match config.tcp && config.listen.port() == 0 {
            true => std::net::TcpListener::bind(config.listen).map(Some),
            false => Ok(None),
        };
        let bound =
            configs.iter().map(bind).collect::<std::io::Result<Vec<_>>>().map_err(|error| no_port(&error))?;
        for (config, listener) in configs.iter_mut().zip(&bound) {
            if let Some(listener) = listener {
                config.listen = listener.local_addr().map_err(|error| no_port(&error))?;
            }
        }
        if count > 1 {
            let list: Vec<_> = configs.iter().map(Config::member).collect();
            configs.iter_mut().for_each(|config| config.servers.clone_from(&list));
        }
        // One for all of them, so that they meet at its targets.
        let backend = config.backend.as_deref().map(forebay_backend::open).transpose()?;
        let mut running = Vec::new();
        for (config, listener) in configs.into_iter().zip(bound) {
            running.push(start(config, backend.clone(), listener)?);
        }
        let out: Vec<(bool, Error)> = running
            .iter()
            .filter_map(|server| {
                let error = server.wait_until_joined(JOINING).err()?;
                Some((server.refusal().is_some(), error))
            })
            .collect();
        // Those that stay out can be let in later, if there is anybody to let them in.
        let goes_on = out.len() < running.len() && out.iter().all(|(refused, _)| *refused);
        match out.into_iter().next() {
            Some((_, error)) if !goes_on => Err(error),
            _ => Ok(running),
        }
    }

    /// The same, in front of a back end.
    pub fn start_before(config: Config, backend: Arc<dyn Backend>) -> Result<Running> {
        start(config, Some(backend), None)
    }
}

fn no_port(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, format!("cannot listen on a free port: {error}"))
}

fn start(
    config: Config,
    backend: Option<Arc<dyn Backend>>,
    listener: Option<std::net::TcpListener>,
) -> Result<Running> {
    config.check()?;
    more_descriptors();
    let begin = Instant::now();
    let members = config.members()?;
    let store = Store::open_or_create(&store_config(&config, &members))?;
    for note in store.notes() {
        tracing::warn!("{note}");
    }
    let recovery = store.recovery();
    tracing::info!(store = %config.store.display(), start = ?store.start(), ?recovery, "the store is open");
    let members = Box::new(Fixed::new(members));
    let service = Service::new(config, (store, begin.elapsed()), backend, members)?.share();
    let (ready, is_ready) = mpsc::channel();
    let stopper = Stopper(service.stopper());
    let (joining, members) = (service.joining.clone(), service.members.members());
    let warmth = service.warmth.clone();
    let thread = std::thread::Builder::new()
        .name("forebay".to_owned())
        .spawn(move || run(&service, &ready, listener))
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start a thread: {error}")))?;
    match is_ready.recv() {
        Ok(addresses) => Ok(Running { stopper, addresses, thread: Some(thread), joining, members, warmth }),
        // It ended before it was ready, and knows why.
        Err(_) => Err(join(thread).err().unwrap_or_else(|| ErrorKind::Io.into())),
    }
}

impl Running {
    /// Where clients find it.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Waits until it may serve: at once, unless its store is new and others have to be met first.
    pub fn wait_until_joined(&self, patience: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            match self.joining.standing(&self.members) {
                Standing::Joined => return Ok(()),
                Standing::Waiting(_) if begin.elapsed() < patience => std::thread::sleep(GLANCE),
                _ => return self.joining.demand(&self.members),
            }
        }
    }

    /// Whether its memory is ready for the first burst; it serves before that.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.warmth.is_reached()
    }

    /// Why the others do not let it serve with the store it has, if they do not.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        match self.joining.standing(&self.members) {
            Standing::Refused(why) => Some(why),
            Standing::Joined | Standing::Waiting(_) => None,
        }
    }

    /// Something that can stop it from elsewhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until somebody stops it, and it has left everything in order.
    pub fn wait(mut self) -> Result<()> {
        self.thread.take().map_or(Ok(()), join)
    }

    /// Stops it, and waits until it has left everything in order.
    pub fn shutdown(self) -> Result<()> {
        self.stopper.stop();
        self.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(Err(error)) = self.thread.take().map(join) {
            tracing::error!(%error, "the server did not end in order");
        }
    }
}

fn join(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the server panicked")))
}

/// Every connection and every file of a region takes a descriptor: a server uses as many as it may.
fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused, connections are refused a little earlier.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn store_config(config: &Config, members: &Members) -> StoreConfig {
    let owner = (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
    StoreConfig {
        dir: config.store.clone(),
        server: config.server,
        capacity: config.capacity,
        region: config.region,
        medium: match config.medium {
            Medium::Memory => forebay_store::Medium::Memory,
            Medium::Disk => forebay_store::Medium::Disk,
        },
        root: (members.first() == config.server).then_some(Root { owner, mode: config.root_mode }),
    }
}

/// The server's own thread.
fn run(
    service: &Arc<Service>,
    ready: &mpsc::Sender<Addresses>,
    listener: Option<std::net::TcpListener>,
) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(FEWEST_THREADS, usize::from);
    let runtime = Builder::new_multi_thread()
        .worker_threads(cores.max(FEWEST_THREADS))
        .thread_name("forebay-worker")
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start the server's threads: {error}")))?;
    let served = runtime.block_on(serve(service, ready, listener));
    end(service, runtime);
    served?;
    service.store.close()?;
    tracing::info!("stopped");
    Ok(())
}

/// Ends what is still going on. What clients have open stays open: they will re-assert it.
fn end(service: &Service, runtime: Runtime) {
    service.stop();
    service.opens.retire();
    runtime.shutdown_timeout(service.config.times.farewell);
}

async fn serve(
    service: &Arc<Service>,
    ready: &mpsc::Sender<Addresses>,
    listener: Option<std::net::TcpListener>,
) -> Result<()> {
    let config = &service.config;
    let mut listeners = vec![Listener::unix(&config.socket_path())?];
    if config.tcp {
        listeners.push(match listener {
            Some(listener) => Listener::bound(listener)?,
            None => Listener::tcp(config.listen).await?,
        });
    }
    let addresses = Addresses {
        unix: config.socket_path(),
        tcp: listeners.iter().find_map(Listener::tcp_address),
        key: config.key_path(),
    };
    let members = service.members.members();
    tracing::info!(?addresses, ?members, "serving");
    // Whoever started the server may have lost interest; it serves all the same until it is stopped.
    let _ = ready.send(addresses);

    let (alive, mut all_gone) = tokio::sync::mpsc::channel::<()>(1);
    for listener in listeners {
        let hall = Hall::new(config.limits.handshakes, config.limits.connections);
        tokio::spawn(accept(service.clone(), listener, hall, alive.clone()));
    }
    tokio::spawn(sweep(service.clone()));
    tokio::spawn(remember(service.clone()));
    connect(service);
    Engine::start(service, &alive);
    let tidier = service.clone();
    tokio::task::spawn_blocking(move || tidy(&tidier));
    if config.shared_memory {
        let listener = service.clone();
        tokio::task::spawn_blocking(move || memory::attend(&listener));
    }
    let warmer = service.clone();
    tokio::task::spawn_blocking(move || warm(&warmer));

    stopped(&mut service.stopping()).await;
    drop(alive);
    if timeout(config.times.farewell, all_gone.recv()).await.is_err() {
        tracing::warn!(after = ?config.times.farewell, "requests in progress were given up");
    }
    Ok(())
}

/// Begins what goes on between this server and others.
fn connect(service: &Arc<Service>) {
    let lines = service.lines.all();
    if !lines.is_empty() {
        tokio::spawn(circle::reckon(service.clone()));
    }
    for (index, line) in lines.iter().enumerate() {
        tokio::spawn(several::keep(service.clone(), line.clone()));
        tokio::spawn(circle::converse(service.clone(), index));
        if let Some(server) = line.member() {
            tokio::spawn(several::beat(service.clone(), server));
            tokio::spawn(drain::converse(service.clone(), server));
        }
    }
    if !service.is_alone() {
        tokio::spawn(several::outlive(service.clone()));
        tokio::spawn(several::work(service.clone()));
        tokio::spawn(several::settle_first(service.clone()));
    }
}

/// Lets peers in, as far as there is room for them.
async fn accept(
    service: Arc<Service>,
    listener: Listener,
    hall: Arc<Hall>,
    alive: tokio::sync::mpsc::Sender<()>,
) {
    let mut stopping = service.stopping();
    loop {
        let next = async {
            let room = hall.room().await;
            (listener.accept().await, room)
        };
        let (accepted, room) = tokio::select! {
            next = next => next,
            () = stopped(&mut stopping) => return,
        };
        let transport = match accepted {
            Ok(transport) => transport,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(AFTER_FAILURE).await;
                continue;
            }
        };
        let vouch = match transport.vouch() {
            Ok(vouch) => vouch,
            Err(error) => {
                tracing::debug!(%error, "a peer left before anything was known about it");
                continue;
            }
        };
        let user = match &vouch {
            Vouch::Kernel(identity) => Some(identity.uid.0),
            Vouch::Key => None,
        };
        let Some(place) = hall.enter(room, user) else {
            tracing::info!(?user, "too many connections of one user wait to be let in: one was closed");
            continue;
        };
        let (service, alive) = (service.clone(), alive.clone());
        tokio::spawn(async move {
            connection::serve(service, transport, vouch, place).await;
            drop(alive);
        });
    }
}

/// Waits for so long; false at once when the server ends, without a look at the clock, which may have stopped.
async fn rested(stopping: &mut watch::Receiver<bool>, pause: Duration) -> bool {
    tokio::select! {
        biased;
        () = stopped(stopping) => false,
        () = sleep(pause) => true,
    }
}

/// Ends silent sessions, and the time of grace after the start.
async fn sweep(service: Arc<Service>) {
    let silence = service.config.times.session;
    let (mut in_grace, mut stopping) = (true, service.stopping());
    let pause = (silence / 8).clamp(Duration::from_millis(10), Duration::from_secs(5));
    while rested(&mut stopping, pause).await {
        if in_grace && service.age() >= silence {
            in_grace = false;
            tokio::task::block_in_place(|| service.grace.end());
        }
        let ended = tokio::task::block_in_place(|| service.sessions.expire(service.age(), silence));
        if ended > 0 {
            tracing::info!(ended, "clients were silent for too long: their files are closed");
        }
    }
}

/// Writes down what jobs do, and tells of damage.
async fn remember(service: Arc<Service>) {
    let mut stopping = service.stopping();
    let mut told = 0;
    while rested(&mut stopping, Duration::from_secs(1)).await {
        for sentence in service.store.data().damage().iter().skip(told) {
            tracing::error!("{sentence}");
            told += 1;
        }
        service.jobs.second();
        let now = service.store.data().now();
        let note = || service.history.note(&service.jobs.all(now, &HashMap::new()), now);
        if let Err(error) = tokio::task::block_in_place(note) {
            tracing::warn!(%error, "what jobs did in the last second is not remembered");
        }
    }
}

/// Keeps regions ready for the next burst.
fn tidy(service: &Service) {
    let stopping = service.stopping();
    while !*stopping.borrow() {
        if !service.store.data().tidy() {
            std::thread::sleep(TIDY);
        }
    }
}
