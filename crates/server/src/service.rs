//! State that all connections of a server share; connects the policy, the store and the back end.

use crate::backing::{Backing, BackingLayer, ReadCache};
use crate::cluster::{
    self, JoinState, Leases, LossReport, PeerClients, Peers, StripedFiles, StripedParts, StripedQueue,
};
use crate::config::{Config, Medium};
use crate::connection_epoch::ConnectionEpochs;
use crate::direct::DirectIo;
use crate::drain::DrainEngine;
use crate::file_homes::{FileHomes, is_striped};
use crate::gossip::Gossip;
use crate::history::History;
use crate::jobs::Jobs;
use crate::key::{self, KeyHolder};
use crate::keys::Keys;
use crate::lifecycle::Lifecycle;
use crate::log_limit::LogLimit;
use crate::mapping::Mappings;
use crate::members::Membership;
use crate::opens::{AfterLastClose, Opens};
use crate::orphans::OrphanGrace;
use crate::per_user::{UserBounds, UserLimit};
use crate::pipes::Pipes;
use crate::policy_store::PolicyStore;
use crate::privileges::Privileges;
use crate::rows::Rows;
use crate::session::Sessions;
use crate::shm_queue::ShmQueues;
use crate::tokens::OpenTokens;
use crate::turns::{Rules, Turns};
use crate::warm::Warmth;
use crate::writers::Writers;
use forebay_backend::Backend;
use forebay_model::{Error, ErrorKind, FileId, Result, Stamp, Uid};
use forebay_policy::Cost;
use forebay_policy::share::{Policy, Tariff};
use forebay_store::{Batch, Body, Extent, KeySpace, Store};
use forebay_wire::Key;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;

/// KiB of appends to striped files that are in memory at the same time.
const APPENDS: usize = 64 << 10;
/// Key in the metadata store of the secret that seals tokens.
const SEAL: &[u8] = KeySpace::TokenSeal.prefix();

/// A server without its sockets.
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) store: Arc<Store>,
    /// The back end, if the configuration names one.
    pub(crate) backing: Option<Arc<Backing>>,
    /// The buffer and the back end as one.
    pub(crate) layer: Arc<BackingLayer>,
    /// Writes buffered data back to the back end.
    pub(crate) drain: Option<DrainEngine>,
    /// Direct I/O, which bypasses the buffer.
    pub(crate) direct: DirectIo,
    /// Who writes to the back end.
    pub(crate) writers: Arc<Writers>,
    pub(crate) members: Arc<dyn Membership>,
    /// Which servers hold which files.
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) gossip: Arc<Gossip>,
    pub(crate) policy_store: PolicyStore,
    pub(crate) peers: Arc<Peers>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) striped: Arc<StripedFiles>,
    /// Files and ranges that are known to be lost.
    pub(crate) book: LossReport,
    pub(crate) rows: Rows,
    /// Files that clients have mapped.
    pub(crate) mappings: Mappings,
    pub(crate) pipes: Pipes,
    /// Permits for tasks that involve several servers.
    pub(crate) tasks: Semaphore,
    /// Weak reference to this service, for tasks that outlive a call.
    me: OnceLock<Weak<Service>>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) tokens: Arc<OpenTokens>,
    pub(crate) shm_queues: ShmQueues,
    pub(crate) warmth: Warmth,
    pub(crate) connection_epochs: Arc<ConnectionEpochs>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) grace: Arc<OrphanGrace>,
    pub(crate) jobs: Jobs,
    pub(crate) history: History,
    /// Limits the rate of log lines about peers.
    pub(crate) log: Arc<LogLimit>,
    pub(crate) connections: Semaphore,
    /// Limits on connections, requests and unsent answers of each user.
    pub(crate) users: Arc<UserBounds>,
    pub(crate) syncs: Semaphore,
    pub(crate) appends: Semaphore,
    /// The service's own key. A client that holds it acts as the owner and for other users.
    pub(crate) key: Arc<KeyHolder>,
    pub(crate) keys: Arc<Keys>,
    /// The secret that seals tokens.
    pub(crate) seal: Key,
    pub(crate) privileges: Privileges,
    /// How long it took to open the store.
    pub(crate) opening: Duration,
    pub(crate) life: Arc<Lifecycle>,
    /// When the server started, by the store's clock.
    pub(crate) began: Stamp,
}

impl Service {
    pub(crate) fn new(
        config: Config,
        (store, opening): (Store, Duration),
        backend: Option<Arc<dyn Backend>>,
        members: Arc<dyn Membership>,
    ) -> Result<Service> {
        let limits = config.limits;
        let store = Arc::new(store);
        let lasting = config.medium == Medium::Disk;
        let read_cache = ReadCache::new(config.store.clone(), store.data().usage().capacity / 4);
        let backing = backend.map(|backend| {
            let kv = store.meta().clone();
            Arc::new(Backing::new(backend, kv, lasting, read_cache, limits.backend_places))
        });
        let list = members.members();
        let alone = list.is_single();
        let join_state = Arc::new(JoinState::open(&store, config.server, &list)?);
        let leases = Leases::new(config.times.lease);
        cluster::check_homes(&store, &list)?;
        if list.namers().nth(1).is_some() {
            let leases = leases.clone();
            store.names().join(list.clone(), Box::new(move |server| leases.hold(server)))?;
        }
        let queue = Arc::new(StripedQueue::default());
        let orphan_reaper =
            OrphanReaper { store: store.clone(), backing: backing.clone(), queue: queue.clone(), alone };
        let owner = Uid(rustix::process::geteuid().as_raw());
        store.data().bound_users(limits.user_space, owner);
        store.data().bound_mapped(limits.user_mapped, owner);
        let each = |what, key, most| UserLimit::new(what, key, most, owner);
        let users = each("open files", "user_opens", limits.user_opens);
        let opens = Opens::new(limits.opens, users, Box::new(orphan_reaper));
        let peer_clients = PeerClients::new(config.server, &list, &config.peers);
        let key = Arc::new(key::open_or_create(&config.key_path())?);
        let keys = Arc::new(Keys::open(config.keys_path(), owner)?);
        let grace = Arc::new(OrphanGrace::begin(&opens, store.names().orphans()?, store.names().first_id()));
        let tokens = Arc::new(OpenTokens::begin(store.take_keys()));
        let log = Arc::new(LogLimit::new(limits.log_lines));
        let now = store.data().now();
        let (policy_store, policy, set) = PolicyStore::open(store.meta().clone(), &config.policy, now)?;
        let users = each("requests that wait for their turn", "user_waiting", limits.user_waiting);
        let turns = Turns::new(rules(&config, policy, users, &key::random()?));
        let targets = backing.as_ref().map_or(0, |backing| backing.ask(|backend| backend.targets().len()));
        let gossip = Arc::new(Gossip::new(&config, &peer_clients, set));
        let peers = Arc::new(Peers::new(config.server, peer_clients, members.clone(), config.times.peer));
        let life = Arc::new(Lifecycle::begin(alone));
        let homes = FileHomes::new(config.server, members.clone(), store.clone(), join_state.clone());
        let homes = Arc::new(homes);
        let parts = StripedParts {
            own: config.server,
            store: store.clone(),
            homes: homes.clone(),
            peers: peers.clone(),
            opens: opens.clone(),
            grace: grace.clone(),
            life: life.clone(),
            patience: config.times.peer / 4,
        };
        let striped = Arc::new(StripedFiles::new(queue, parts));
        let writers = Arc::new(Writers::new(store.clone(), opens.clone(), config.route));
        let users = Arc::new(UserBounds::new(&limits, owner));
        let layer = Arc::new(BackingLayer {
            own: config.server,
            store: store.clone(),
            backing: backing.clone(),
            homes: homes.clone(),
            join_state: join_state.clone(),
            peers: peers.clone(),
            striped: striped.clone(),
            writers: writers.clone(),
            opens: opens.clone(),
            grace: grace.clone(),
            users: users.clone(),
            life: life.clone(),
            patience: config.times.answer,
        });
        layer.resume_backing()?;
        let mut service = Service {
            layer,
            drain: None,
            direct: DirectIo::new(config.route, targets, writers.route.clone())?,
            writers,
            seal: if alone { seal(&store)? } else { key.key.for_tokens() },
            key,
            keys,
            backing,
            homes,
            members,
            gossip,
            policy_store,
            peers,
            join_state,
            leases,
            striped,
            book: LossReport::default(),
            rows: Rows::default(),
            mappings: Mappings::open(limits.user_mappings, owner)?,
            pipes: Pipes::default(),
            tasks: Semaphore::new(cluster::TASKS),
            me: OnceLock::new(),
            sessions: Arc::new(Sessions::new(
                limits.sessions,
                each("sessions", "user_sessions", limits.user_sessions),
                limits.session_opens,
                tokens.clone(),
            )),
            tokens,
            shm_queues: ShmQueues::default(),
            warmth: Warmth::default(),
            connection_epochs: Arc::default(),
            opens,
            grace,
            jobs: Jobs::new(limits.jobs, config.trust.trust(), turns.clone(), log.clone()),
            log,
            turns,
            history: History::open(store.meta().clone())?,
            connections: Semaphore::new(limits.connections),
            users,
            syncs: Semaphore::new(limits.syncs),
            appends: Semaphore::new(APPENDS),
            privileges: Privileges::new(owner, config.owner_only),
            life,
            opening,
            began: store.data().now(),
            store,
            config,
        };
        let writers = service.writers.clone();
        let Config { drain, server, topology, .. } = &service.config;
        let servers = list.all().iter().map(|member| member.server).collect();
        let engine = |backing: &Arc<Backing>| {
            DrainEngine::new(drain.clone(), *server, servers, topology.clone(), backing, writers)
        };
        service.drain = service.backing.as_ref().map(engine).transpose()?;
        Ok(service)
    }

    /// Wraps the service in an `Arc` that [`Service::me`] can find.
    pub(crate) fn share(self) -> Arc<Service> {
        let service = Arc::new(self);
        let _ = service.me.set(Arc::downgrade(&service));
        service
    }

    /// An `Arc` of this service; `None` while it is dropped.
    pub(crate) fn me(&self) -> Option<Arc<Service>> {
        self.me.get().and_then(Weak::upgrade)
    }
}

/// The scheduler's rules from the configuration.
fn rules(config: &Config, policy: Policy, users: UserLimit, seed: &[u8; 32]) -> Rules {
    let (seed, _) = seed.split_first_chunk::<8>().expect("32 bytes");
    Rules {
        policy,
        discipline: config.scheduler,
        device: config.device_rate,
        tariff: Tariff { operation: Cost(config.operation_cost.0) },
        limit: config.limits.turns,
        most_waiting: config.limits.waiting,
        users,
        seed: u64::from_le_bytes(*seed),
    }
}

/// The secret that seals tokens; created once per store.
fn seal(store: &Store) -> Result<Key> {
    if let Some(bytes) = store.meta().get(SEAL)? {
        return match <[u8; 32]>::try_from(bytes) {
            Ok(bytes) => Ok(Key::new(bytes)),
            Err(bytes) => {
                let text = format!(
                    "the store's token secret has {} bytes instead of 32: the store is damaged",
                    bytes.len()
                );
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

/// Persists the sizes of files after their last close, and removes files without a name.
struct OrphanReaper {
    store: Arc<Store>,
    backing: Option<Arc<Backing>>,
    queue: Arc<StripedQueue>,
    alone: bool,
}

impl OrphanReaper {
    /// Whether other servers must act before a file can be closed or removed.
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

impl AfterLastClose for OrphanReaper {
    fn closed(&self, file: FileId) {
        if let Err(error) = self.store.data().persist_size_soon(file) {
            tracing::error!(%file, %error, "could not persist the size of a closed file; recovery does it at the next start");
        }
        if self.concerns_others(file, |extent| is_striped(extent) && extent.is_open()) {
            self.queue.persist_size_later(file);
        }
    }

    fn reap(&self, file: FileId) -> bool {
        if self.concerns_others(file, is_striped) {
            self.queue.reap_later(file);
            return false;
        }
        // The back end may be slow, so no lock is held during the call.
        let missing_in_backing = self.backing.as_ref().map_or(Ok(()), |backing| backing.remove_private(file));
        let reaped = missing_in_backing.and_then(|()| {
            self.store.names().reap(file, |mut batch| {
                self.backing.iter().for_each(|backing| backing.reap(file, &mut batch));
                self.store.data().delete(file, batch)
            })
        });
        if let Err(error) = reaped {
            tracing::error!(%file, %error, "could not remove a file without a name; recovery does it at the next start");
        }
        true
    }
}
