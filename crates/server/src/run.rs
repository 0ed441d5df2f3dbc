//! Starts a server, runs it and shuts it down: opens the store, listens, serves, and stops cleanly.

use crate::accept_limiter::{AcceptLimiter, Origin, Place};
use crate::backing::{BackingLayer, FRESH, follow_leased_dirs};
use crate::cluster::JoinState;
use crate::compose::{Composition, compose};
use crate::config::{Config, Medium};
use crate::connection::Connections;
use crate::direct::DirectIo;
use crate::error_limit::ErrorLimit;
use crate::history::History;
use crate::jobs::Jobs;
use crate::keys::Keys;
use crate::lifecycle::{Lifecycle, rested, stopped};
use crate::log_limit::{LogLimit, about_peer};
use crate::members::Fixed;
use crate::session::Sessions;
use crate::transport::{Listener, Vouch};
use crate::warm::{Prepared, warm};
use crate::{cluster, connection, drain, gossip, memory, sweep};
use forebay_backend::Backend;
use forebay_model::{Error, ErrorKind, Gid, Members, Result, Uid, shown_time};
use forebay_store::{Root, Store, StoreConfig};
use forebay_wire::Standing;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep, timeout};

/// Minimum number of threads. They make calls of the metadata store, and one stalled call must not block the others.
const FEWEST_THREADS: usize = 4;
/// Interval at which the cleaner checks for work.
const TIDY: Duration = Duration::from_millis(20);
/// How long servers that start together may take to join.
const JOINING: Duration = Duration::from_secs(60);
/// Interval between two checks whether they have joined.
const POLL: Duration = Duration::from_millis(2);
/// Delay after a failed accept: most likely the process is out of descriptors.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Starts servers.
#[derive(Clone, Copy, Debug)]
pub struct Server;

/// The addresses at which a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The path of its Unix socket.
    pub unix: PathBuf,
    /// Its TCP address, if it has one.
    pub tcp: Option<SocketAddr>,
    /// The key file that TCP clients need.
    pub key: PathBuf,
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.unix.display())?;
        self.tcp.map_or(Ok(()), |tcp| write!(f, " tcp:{tcp}"))
    }
}

/// A server that runs in this process on its own threads. Dropping it stops it and waits for its end.
pub struct Running {
    stopper: Stopper,
    addresses: Addresses,
    thread: Option<JoinHandle<Result<()>>>,
    join_state: Arc<JoinState>,
    members: Arc<Members>,
    prepared: Prepared,
}

/// Stops a server; can be passed to a signal handler.
#[derive(Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Requests the stop and returns without waiting.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Opens or creates the store and serves it. Blocks until clients can connect, which recovery may delay.
    pub fn start(config: Config) -> Result<Running> {
        let backend = config.backend.as_deref().map(forebay_backend::open).transpose()?;
        start(config, backend, None)
    }

    /// Starts `count` servers of one service in this process (see [`Config::cluster`]) and waits until they serve. A
    /// server whose store the others do not recognize stays out ([`Running::refusal`]), and the others serve without
    /// it.
    pub fn start_cluster(config: &Config, count: u16) -> Result<Vec<Running>> {
        let mut configs = config.cluster(count);
        // Port 0 is resolved before the list of servers is made.
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
        let stores = configs.iter().map(|config| Ok(store_config(config, &config.members()?)));
        Store::demand_room(&stores.collect::<Result<Vec<_>>>()?)?;
        // All servers share one back end and thus its targets.
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
        // Refused servers can be admitted later if at least one server runs.
        let goes_on = out.len() < running.len() && out.iter().all(|(refused, _)| *refused);
        match out.into_iter().next() {
            Some((_, error)) if !goes_on => Err(error),
            _ => Ok(running),
        }
    }

    /// Like [`Server::start`], with the given back end.
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
    tracing::info!(store = %config.store.display(), start = %store.start(), %recovery, "opened the store");
    // Their clients died while no server ran.
    memory::end_dead_rings(&store)?;
    let members = Arc::new(Fixed::new(members));
    let parts = compose(config, (store, begin.elapsed()), backend, members)?;
    let (ready, is_ready) = mpsc::channel();
    let stopper = Stopper(parts.life.stopper());
    let (join_state, members) = (parts.join_state.clone(), parts.members.members());
    let prepared = Prepared::default();
    let reached = prepared.clone();
    let thread = std::thread::Builder::new()
        .name("forebay".to_owned())
        .spawn(move || run(&parts, reached, &ready, listener))
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start a thread: {error}")))?;
    match is_ready.recv() {
        Ok(addresses) => {
            Ok(Running { stopper, addresses, thread: Some(thread), join_state, members, prepared })
        }
        // The thread ended before it was ready; its result says why.
        Err(_) => Err(join(thread).err().unwrap_or_else(|| ErrorKind::Io.into())),
    }
}

impl Running {
    /// The addresses at which it listens.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Waits until the server may serve: at once unless its store is new and must join other servers first.
    pub fn wait_until_joined(&self, patience: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            match self.join_state.standing(&self.members) {
                Standing::Joined => return Ok(()),
                Standing::Waiting(_) if begin.elapsed() < patience => std::thread::sleep(POLL),
                _ => return self.join_state.demand(&self.members),
            }
        }
    }

    /// Whether its memory is prepared for the first burst. It serves before that.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.prepared.is_reached()
    }

    /// The reason why the other servers refuse its store, if they do.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        match self.join_state.standing(&self.members) {
            Standing::Refused(why) => Some(why),
            Standing::Joined | Standing::Waiting(_) => None,
        }
    }

    /// A handle that can stop the server from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until the server is stopped and has shut down cleanly.
    pub fn wait(mut self) -> Result<()> {
        self.thread.take().map_or(Ok(()), join)
    }

    /// Stops the server and waits until it has shut down cleanly.
    pub fn shutdown(self) -> Result<()> {
        self.stopper.stop();
        self.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(Err(error)) = self.thread.take().map(join) {
            tracing::error!(%error, "the server did not shut down cleanly");
        }
    }
}

fn join(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the server panicked")))
}

/// Raises the limit of descriptors to its maximum: every connection and every region file takes one.
fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the server merely refuses connections a little earlier.
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

/// Body of the server's main thread.
fn run(
    parts: &Composition,
    prepared: Prepared,
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
    let served = runtime.block_on(serve(parts, prepared, ready, listener));
    end(parts, runtime);
    served?;
    memory::end_dead_rings(&parts.store)?;
    parts.store.close()?;
    tracing::info!("stopped");
    Ok(())
}

/// Stops all tasks. Files that clients have open stay open, because the clients re-assert them.
fn end(parts: &Composition, runtime: Runtime) {
    parts.life.stop();
    parts.opens.retire();
    runtime.shutdown_timeout(parts.config.times.farewell);
}

async fn serve(
    parts: &Composition,
    prepared: Prepared,
    ready: &mpsc::Sender<Addresses>,
    listener: Option<std::net::TcpListener>,
) -> Result<()> {
    let config = &parts.config;
    let mut listeners = vec![Listener::unix(&config.socket_path(), config.socket_mode())?];
    if let Some(path) = &config.programs_socket {
        listeners.push(Listener::for_programs(path)?);
    }
    if config.tcp {
        listeners.push(match listener {
            Some(listener) => Listener::bound(listener)?,
            None => Listener::tcp(config.listen, config.transport).await?,
        });
    }
    let addresses = Addresses {
        unix: config.socket_path(),
        tcp: listeners.iter().find_map(Listener::tcp_address),
        key: config.key_path(),
    };
    let members = parts.members.members();
    tracing::info!(%addresses, %members, "serving");
    // The starting thread may be gone; the server still runs until it is stopped.
    let _ = ready.send(addresses);

    let (alive, mut all_gone) = tokio::sync::mpsc::channel::<()>(1);
    for listener in listeners {
        let connections = parts.connections.clone();
        tokio::spawn(accept(connections, listener, AcceptLimiters::new(config), alive.clone()));
    }
    maintain(parts);
    connect(parts);
    parts.drain.iter().for_each(|engine| engine.start(&alive));
    parts.mappings.start()?;
    tidy_pipes(parts);
    start_threads(parts, prepared);

    stopped(&mut parts.life.stopping()).await;
    drop(alive);
    if timeout(config.times.farewell, all_gone.recv()).await.is_err() {
        tracing::warn!(after = %shown_time(config.times.farewell), "abandoned requests in progress");
    }
    Ok(())
}

/// Starts the tasks that keep this server's own state in order.
fn maintain(parts: &Composition) {
    let life = &parts.life;
    tokio::spawn(sweep::sweep(parts.sweep.clone()));
    tokio::spawn(end_expired(parts.keys.clone(), parts.sessions.clone(), life.clone()));
    if parts.drain.is_some() {
        tokio::spawn(sweep_direct(parts.direct.clone(), life.clone()));
    }
    tokio::spawn(remember(SecondNotes {
        store: parts.store.clone(),
        jobs: parts.jobs.clone(),
        history: parts.history.clone(),
        log: parts.log.clone(),
        life: life.clone(),
    }));
    tokio::spawn(follow_root(parts.layer.clone()));
    tokio::spawn(follow_leased_dirs(parts.layer.clone()));
}

/// Removes the twins of pipes that an earlier run of the server left.
fn tidy_pipes(parts: &Composition) {
    let is_gone = |file| {
        let found = parts.store.names().inode(file);
        parts.layer.homes.is_authority(file) && found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    parts.pipes.tidy(&parts.seal, is_gone);
}

/// Starts the threads that tidy, consume rings, and prepare memory.
fn start_threads(parts: &Composition, prepared: Prepared) {
    let clones = || (parts.store.clone(), parts.life.clone());
    let (store, life) = clones();
    tokio::task::spawn_blocking(move || tidy(&store, &life));
    if parts.config.shared_memory {
        let (store, life) = clones();
        tokio::task::spawn_blocking(move || memory::poll_rings(&store, &life));
    }
    let (store, life) = clones();
    tokio::task::spawn_blocking(move || warm(&store, &life, &prepared));
}

/// Starts the tasks that communicate with other servers.
fn connect(parts: &Composition) {
    let peer_clients = parts.peers.clients.all();
    if !peer_clients.is_empty() {
        tokio::spawn(gossip::reckon(parts.gossip.clone()));
    }
    for (index, peer_client) in peer_clients.iter().enumerate() {
        tokio::spawn(cluster::keep(parts.links.clone(), peer_client.clone()));
        tokio::spawn(gossip::converse(parts.gossip.clone(), index));
        if let Some(server) = peer_client.member() {
            tokio::spawn(cluster::beat(parts.leases.clone(), server));
            if let Some(engine) = &parts.drain {
                tokio::spawn(drain::converse(engine.clone(), server));
            }
        }
    }
    if !parts.life.is_alone() {
        tokio::spawn(cluster::outlive(parts.leases.clone()));
        tokio::spawn(cluster::work(parts.tidy.clone()));
        tokio::spawn(cluster::resolve_first(parts.tidy.clone()));
    }
}

/// Limits on connections that have not authenticated. Connections from addresses of other servers count separately, so
/// that other peers cannot crowd them out.
struct AcceptLimiters {
    all: Arc<AcceptLimiter>,
    servers: Arc<AcceptLimiter>,
    /// Addresses of other servers, once resolved. Excludes loopback addresses, which any local client has.
    addresses: Arc<OnceLock<HashSet<Origin>>>,
}

impl AcceptLimiters {
    fn new(config: &Config) -> AcceptLimiters {
        let limits = config.limits;
        let accept_limiter =
            || AcceptLimiter::new(limits.handshakes, limits.connections, limits.address_handshakes);
        let addresses = Arc::new(OnceLock::new());
        let (hosts, found) = (config.other_hosts(), addresses.clone());
        tokio::spawn(async move {
            let mut all = HashSet::new();
            for host in hosts {
                // A server whose address does not resolve now is treated like any other peer.
                let addresses = tokio::net::lookup_host(host).await.into_iter().flatten();
                let striped = addresses.map(|address| address.ip()).filter(|address| !address.is_loopback());
                all.extend(striped.map(Origin::address));
            }
            // Only this task sets it.
            let _ = found.set(all);
        });
        AcceptLimiters { all: accept_limiter(), servers: accept_limiter(), addresses }
    }

    fn enter(&self, permit: OwnedSemaphorePermit, origin: Origin) -> Option<Place> {
        if self.addresses.get().is_some_and(|servers| servers.contains(&origin))
            && let Some(permit) = self.servers.try_permit()
        {
            return self.servers.enter(permit, origin);
        }
        self.all.enter(permit, origin)
    }
}

/// The source of a connection: a user or an address.
fn origin(vouch: &Vouch) -> Origin {
    match vouch {
        Vouch::Kernel(identity) | Vouch::Program(identity) => Origin::User(identity.uid.0),
        Vouch::Key(address) => Origin::address(*address),
    }
}

/// Accepts connections as far as the limits allow.
async fn accept(
    connections: Arc<Connections>,
    listener: Listener,
    accept_limiters: AcceptLimiters,
    alive: tokio::sync::mpsc::Sender<()>,
) {
    let (mut stopping, mut failures) = (connections.life.stopping(), ErrorLimit::default());
    loop {
        let next = async {
            let permit = accept_limiters.all.permit().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            next = next => next,
            () = stopped(&mut stopping) => return,
        };
        let transport = match accepted {
            Ok(transport) => transport,
            Err(error) => {
                if let Some(held_back) = failures.allows(Instant::now()) {
                    tracing::warn!(%error, held_back, "could not accept a connection");
                }
                sleep(AFTER_FAILURE).await;
                continue;
            }
        };
        let vouch = match listener.vouch(&*transport) {
            Ok(vouch) => vouch,
            Err(error) => {
                tracing::debug!(%error, "a peer disconnected before it was identified");
                continue;
            }
        };
        let origin = origin(&vouch);
        let Some(place) = accept_limiters.enter(permit, origin) else {
            about_peer!(connections.log, ?origin, "too many unauthenticated connections: closed one");
            continue;
        };
        let (connections, alive) = (connections.clone(), alive.clone());
        tokio::spawn(async move {
            connection::serve(connections, transport, vouch, place).await;
            drop(alive);
        });
    }
}

/// Keeps mode and owner of the root directory equal to those of the back end's root. If the back end does not answer,
/// the last known values stay.
async fn follow_root(layer: Arc<BackingLayer>) {
    let (mut stopping, mut failed) = (layer.life.stopping(), false);
    while layer.backing.is_some() && rested(&mut stopping, FRESH).await {
        let follower = layer.clone();
        // On a blocking thread, so that a hanging back end delays no other task.
        let followed = tokio::task::spawn_blocking(move || follower.follow_root()).await;
        match followed {
            Ok(Err(error)) if !failed => {
                failed = true;
                tracing::warn!(%error, "could not stat the back end's root: keeping its last known mode and owner");
            }
            Ok(followed) => failed = followed.is_err(),
            // The task panicked, or the server is stopping.
            Err(_) => return,
        }
    }
}

/// Has files finalized that are no longer written directly.
async fn sweep_direct(direct: Arc<DirectIo>, life: Arc<Lifecycle>) {
    let mut stopping = life.stopping();
    while rested(&mut stopping, Duration::from_millis(20)).await {
        tokio::task::block_in_place(|| direct.sweep());
    }
}

/// Closes connections whose keys have expired, and writes the list of keys if that has failed before.
async fn end_expired(keys: Arc<Keys>, sessions: Arc<Sessions>, life: Arc<Lifecycle>) {
    let (mut stopping, mut failures) = (life.stopping(), ErrorLimit::default());
    while rested(&mut stopping, Duration::from_millis(500)).await {
        tokio::task::block_in_place(|| keys.end_spent(&sessions));
        if let Err(error) = tokio::task::block_in_place(|| keys.write())
            && let Some(held_back) = failures.allows(Instant::now())
        {
            tracing::warn!(%error, held_back, "a restart would bring revoked keys back");
        }
    }
}

/// What is noted once a second.
struct SecondNotes {
    store: Arc<Store>,
    jobs: Arc<Jobs>,
    history: Arc<History>,
    log: Arc<LogLimit>,
    life: Arc<Lifecycle>,
}

/// Stores the activity of jobs once a second and logs damage.
async fn remember(SecondNotes { store, jobs, history, log, life }: SecondNotes) {
    let mut stopping = life.stopping();
    let (mut logged, mut history_errors) = (0, ErrorLimit::default());
    while rested(&mut stopping, Duration::from_secs(1)).await {
        for report in store.data().damage().iter().skip(logged) {
            tracing::error!("{report}");
            logged += 1;
        }
        let left_out = log.second();
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "suppressed log lines about peers in the last second (limits.log_lines)"
            );
        }
        jobs.second();
        let now = store.data().now();
        let note = || history.note(&jobs.all(now, &HashMap::new()), now);
        if let Err(error) = tokio::task::block_in_place(note)
            && let Some(held_back) = history_errors.allows(Instant::now())
        {
            tracing::warn!(%error, held_back, "could not store the job activity of the last second");
        }
    }
}

/// Keeps empty regions ready for the next burst.
fn tidy(store: &Store, life: &Lifecycle) {
    let stopping = life.stopping();
    while !*stopping.borrow() {
        if !store.data().tidy() {
            std::thread::sleep(TIDY);
        }
    }
}
