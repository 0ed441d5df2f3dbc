//! Everything the connections of a server share, and the introduction of policy, store and back end.

use crate::circle::Circle;
use crate::config::{Config, Medium};
use crate::desk::Desks;
use crate::drain::Engine;
use crate::fence::{Fence, Fences};
use crate::grace::Grace;
use crate::history::History;
use crate::jobs::Jobs;
use crate::key::{self, KeyHolder};
use crate::members::Membership;
use crate::opens::{Afterwards, Opens};
use crate::route::Ways;
use crate::rows::Rows;
use crate::session::{Session, Sessions};
use crate::several::{self, Afar, Book, Helps, Joining, Leases, Lines, is_afar};
use crate::standing::Standing;
use crate::turns::{Rules, Turns};
use crate::union::{Near, Union};
use crate::warm::Warmth;
use forebay_backend::Backend;
use forebay_model::{Error, ErrorKind, FileId, FileKind, Homes, Identity, Result, Stamp, Uid};
use forebay_policy::Cost;
use forebay_policy::share::{Policy, Tariff};
use forebay_store::{Batch, Body, Extent, Store};
use forebay_wire::Key;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// Flushes to a device that go on at the same time.
const SYNCS: usize = 8;
/// Kibibytes of appends to files of several servers that are in memory at the same time.
const APPENDS: usize = 64 << 10;
/// Where the metadata store keeps the key that seals tokens.
const SEAL: &[u8] = b"k";

/// A server, without its sockets.
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) store: Arc<Store>,
    /// What stands behind, if anything does.
    pub(crate) union: Option<Arc<Union>>,
    /// What brings data there.
    pub(crate) drain: Option<Engine>,
    /// What goes past the buffer.
    pub(crate) ways: Ways,
    pub(crate) members: Box<dyn Membership>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) circle: Circle,
    pub(crate) standing: Standing,
    pub(crate) lines: Lines,
    pub(crate) joining: Arc<Joining>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) afar: Arc<Afar>,
    /// What is known to be lost.
    pub(crate) book: Book,
    pub(crate) rows: Rows,
    /// Places for what is carried out over several servers.
    pub(crate) tasks: Semaphore,
    /// This very service, for those who have something done while they wait.
    me: OnceLock<Weak<Service>>,
    /// Whether this is the only server of its service.
    alone: bool,
    pub(crate) sessions: Sessions,
    pub(crate) desks: Desks,
    pub(crate) warmth: Warmth,
    pub(crate) fences: Arc<Fences>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) grace: Grace,
    pub(crate) jobs: Jobs,
    pub(crate) history: History,
    pub(crate) connections: Semaphore,
    pub(crate) syncs: Semaphore,
    pub(crate) appends: Semaphore,
    /// What proves a TCP client.
    pub(crate) key: KeyHolder,
    /// What seals tokens.
    pub(crate) seal: Key,
    /// Whom the server runs as: may act for anybody, as root may.
    owner: Uid,
    /// How long it took to open the store.
    pub(crate) opening: Duration,
    stop: watch::Sender<bool>,
    /// Whether clients are served.
    open: watch::Sender<bool>,
    started: Instant,
    /// When it began to serve, by the store's clock.
    pub(crate) began: Stamp,
}

/// Who asks, in one request.
#[derive(Clone)]
pub(crate) struct Caller {
    /// On whose behalf.
    pub(crate) who: Identity,
    /// The client.
    pub(crate) session: Arc<Session>,
    /// The connection, which the client may have given up.
    pub(crate) fence: Arc<Fence>,
    /// Whether the connection belongs to root or the service's owner.
    pub(crate) privileged: bool,
    /// Whether it comes from this machine.
    pub(crate) local: bool,
    /// What other servers said for this request.
    pub(crate) helps: Helps,
}

impl Service {
    pub(crate) fn new(
        config: Config,
        (store, opening): (Store, Duration),
        backend: Option<Arc<dyn Backend>>,
        members: Box<dyn Membership>,
    ) -> Result<Service> {
        let limits = config.limits;
        let store = Arc::new(store);
        let lasting = config.medium == Medium::Disk;
        let near = Near::new(config.store.clone(), store.data().usage().capacity / 4);
        let union = backend.map(|backend| Arc::new(Union::new(backend, store.meta().clone(), lasting, near)));
        let list = members.members();
        let alone = list.is_single();
        let joining = Arc::new(Joining::open(&store, config.server, &list)?);
        let leases = Leases::new(config.times.lease);
        several::check_homes(&store, &list)?;
        if list.namers().nth(1).is_some() {
            let leases = leases.clone();
            store.names().join(list.clone(), Box::new(move |server| leases.hold(server)))?;
        }
        let afar = Arc::new(Afar::default());
        let undertaker = Undertaker { store: store.clone(), union: union.clone(), afar: afar.clone(), alone };
        let opens = Opens::new(limits.opens, Box::new(undertaker));
        let lines = Lines::new(config.server, &list, &config.peers);
        let key = key::open_or_create(&config.key_path())?;
        let grace = Grace::begin(&opens, store.names().orphans()?, store.names().first_id());
        let now = store.data().now();
        let (standing, policy, set) = Standing::open(store.meta().clone(), &config.policy, now)?;
        let turns = Turns::new(rules(&config, policy, &key::random()?));
        let targets = union.as_ref().map_or(0, |union| union.ask(|backend| backend.targets().len()));
        let mut service = Service {
            drain: None,
            ways: Ways::new(config.route, targets)?,
            seal: if alone { seal(&store)? } else { key.key.for_tokens() },
            key,
            union,
            members,
            circle: Circle::new(&config, &lines, set),
            standing,
            lines,
            joining,
            leases,
            afar,
            book: Book::default(),
            rows: Rows::default(),
            tasks: Semaphore::new(several::TASKS),
            me: OnceLock::new(),
            alone,
            sessions: Sessions::new(limits.sessions, limits.session_opens),
            desks: Desks::default(),
            warmth: Warmth::default(),
            fences: Arc::default(),
            opens,
            grace,
            jobs: Jobs::new(limits.jobs, config.trust.trust(), turns.clone()),
            turns,
            history: History::open(store.meta().clone())?,
            connections: Semaphore::new(limits.connections),
            syncs: Semaphore::new(SYNCS),
            appends: Semaphore::new(APPENDS),
            owner: Uid(rustix::process::geteuid().as_raw()),
            stop: watch::Sender::new(false),
            open: watch::Sender::new(alone),
            opening,
            started: Instant::now(),
            began: store.data().now(),
            store,
            config,
        };
        service.resume_behind()?;
        let Config { drain, server, topology, .. } = &service.config;
        let servers = list.all().iter().map(|member| member.server).collect();
        let engine =
            |union: &Arc<Union>| Engine::new(drain.clone(), *server, servers, topology.clone(), union);
        service.drain = service.union.as_ref().map(engine).transpose()?;
        Ok(service)
    }

    /// The same, where it can be found again.
    pub(crate) fn share(self) -> Arc<Service> {
        let service = Arc::new(self);
        let _ = service.me.set(Arc::downgrade(&service));
        service
    }

    /// This very service.
    pub(crate) fn me(&self) -> Option<Arc<Service>> {
        self.me.get().and_then(Weak::upgrade)
    }

    /// Whether this server has all names of its service.
    pub(crate) fn has_all_names(&self) -> bool {
        self.alone || self.members.members().homes() == Homes::First
    }

    /// Whether this is the only server of its service.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether an open file is a directory.
    pub(crate) fn is_directory(&self, file: FileId) -> bool {
        self.store.names().inode(file).is_ok_and(|inode| inode.kind() == FileKind::Directory)
    }

    /// How long the server has been up: the clock of sessions.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether a peer may act for others.
    pub(crate) fn trusts(&self, peer: &Identity) -> bool {
        peer.is_root() || peer.uid == self.owner
    }

    /// What an earlier life had left open is settled: clients are served.
    pub(crate) fn open_doors(&self) {
        self.open.send_replace(true);
    }

    /// Whether clients are served.
    pub(crate) fn serves(&self) -> bool {
        *self.open.borrow()
    }

    /// Waits until clients are served.
    pub(crate) async fn serving(&self) {
        if !self.serves() {
            // An error would mean that the service is gone.
            let _ = self.open.subscribe().wait_for(|&open| open).await;
        }
    }

    /// Ends the server: everything that waits is woken and goes.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Something that can end the server, and does not keep it.
    pub(crate) fn stopper(&self) -> watch::Sender<bool> {
        self.stop.clone()
    }

    /// Waits for something, unless the server ends. For threads that may wait.
    pub(crate) fn await_unless_it_ends<T>(&self, what: impl Future<Output = T>) -> Result<T> {
        tokio::runtime::Handle::current().block_on(async {
            let mut stopping = self.stopping();
            tokio::select! {
                biased;
                () = stopped(&mut stopping) => Err(Error::new(ErrorKind::Unreachable, "the server ends")),
                done = what => Ok(done),
            }
        })
    }

    /// For those who want to know when the server ends.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}

/// The rules of turns that a configuration asks for.
fn rules(config: &Config, policy: Policy, seed: &[u8; 32]) -> Rules {
    let (seed, _) = seed.split_first_chunk::<8>().expect("32 bytes");
    Rules {
        policy,
        discipline: config.scheduler,
        device: config.device_rate,
        tariff: Tariff { operation: Cost(config.operation_cost.0) },
        limit: config.limits.turns,
        most_waiting: config.limits.waiting,
        seed: u64::from_le_bytes(*seed),
    }
}

/// Waits until the server ends. Safe to cancel.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error would mean that the service is gone, and with it the server.
    let _ = stopping.wait_for(|&stops| stops).await;
}

/// The key that seals tokens: made once in the life of a store.
fn seal(store: &Store) -> Result<Key> {
    if let Some(bytes) = store.meta().get(SEAL)? {
        return match <[u8; 32]>::try_from(bytes) {
            Ok(bytes) => Ok(Key::new(bytes)),
            Err(bytes) => {
                let text = format!("the store's seal has {} bytes instead of 32: it is damaged", bytes.len());
                Err(Error::new(ErrorKind::BadStore, text))
            }
        };
    }
    let bytes = key::random()?;
    let mut batch = Batch::default();
    batch.put(SEAL, bytes);
    store.meta().commit(batch)?;
    store.meta().sync()?;
    Ok(Key::new(bytes))
}

/// Settles files after their last close, and removes those without a name.
struct Undertaker {
    store: Arc<Store>,
    union: Option<Arc<Union>>,
    afar: Arc<Afar>,
    alone: bool,
}

impl Undertaker {
    /// Whether other servers have to be asked about a file first.
    fn concerns_others(&self, file: FileId, about: impl FnOnce(&Extent) -> bool) -> bool {
        if self.alone {
            return false;
        }
        match self.store.names().inode(file).map(|inode| inode.body) {
            Ok(Body::File { extent, .. }) => about(&extent),
            _ => false,
        }
    }
}

impl Afterwards for Undertaker {
    fn closed(&self, file: FileId) {
        if let Err(error) = self.store.data().settle_soon(file) {
            tracing::error!(%file, %error, "a closed file could not be settled; the next start will do it");
        }
        if self.concerns_others(file, |extent| is_afar(extent) && extent.is_open()) {
            self.afar.settle_later(file);
        }
    }

    fn bury(&self, file: FileId) -> bool {
        if self.concerns_others(file, is_afar) {
            self.afar.bury_later(file);
            return false;
        }
        let bury = || {
            let mut batch = self.store.names().bury(file)?;
            if let Some(union) = &self.union {
                union.bury(file, &mut batch)?;
            }
            self.store.data().delete(file, batch)
        };
        if let Err(error) = bury() {
            tracing::error!(%file, %error, "a file without a name could not be removed; the next start will do it");
        }
        true
    }
}
