//! What every part uses, sessions, and shares: the parts that move no bytes.

use crate::backing::{Backing, ReadCache};
use crate::cluster::{self, JoinState, LeaseTable, PeerClients, Peers, StripedQueue};
use crate::config::{Config, Medium};
use crate::connection_epoch::ConnectionEpochs;
use crate::gossip::{Gossip, GossipParts};
use crate::jobs::Jobs;
use crate::key::{self, KeyHolder};
use crate::keys::Keys;
use crate::lifecycle::Lifecycle;
use crate::log_limit::LogLimit;
use crate::members::Membership;
use crate::opens::Opens;
use crate::orphans::OrphanGrace;
use crate::per_user::{UserBounds, UserLimit};
use crate::pipes::Pipes;
use crate::policy_store::PolicyStore;
use crate::privileges::Privileges;
use crate::reaper::OrphanReaper;
use crate::session::Sessions;
use crate::tokens::OpenTokens;
use crate::turns::{Rules, Turns};
use forebay_backend::Backend;
use forebay_model::{Error, ErrorKind, Members, Result, ServerId, Stamp, Uid};
use forebay_policy::Cost;
use forebay_policy::share::{Policy, Tariff};
use forebay_store::{Batch, KeySpace, Store};
use forebay_wire::Key;
use std::sync::Arc;

/// Key in the metadata store of the secret that seals tokens.
const SEAL: &[u8] = KeySpace::TokenSeal.prefix();

/// What every part uses.
pub(super) struct BaseParts {
    pub(super) own: ServerId,
    pub(super) list: Arc<Members>,
    pub(super) alone: bool,
    pub(super) owner: Uid,
    pub(super) store: Arc<Store>,
    pub(super) members: Arc<dyn Membership>,
    pub(super) life: Arc<Lifecycle>,
    pub(super) log: Arc<LogLimit>,
    pub(super) privileges: Privileges,
    pub(super) key: Arc<KeyHolder>,
    pub(super) keys: Arc<Keys>,
    /// The secret that seals tokens.
    pub(super) seal: Key,
    pub(super) users: Arc<UserBounds>,
    pub(super) pipes: Arc<Pipes>,
    pub(super) join_state: Arc<JoinState>,
    pub(super) lease_table: Arc<LeaseTable>,
    /// When the server started, by the store's clock.
    pub(super) began: Stamp,
}

impl BaseParts {
    pub(super) fn new(config: &Config, store: Store, members: Arc<dyn Membership>) -> Result<BaseParts> {
        let (store, list, limits) = (Arc::new(store), members.members(), config.limits);
        let alone = list.is_single();
        let join_state = Arc::new(JoinState::open(&store, config.server, &list)?);
        let lease_table = LeaseTable::new(config.times.lease);
        cluster::check_homes(&store, &list)?;
        if list.namers().nth(1).is_some() {
            let table = lease_table.clone();
            store.names().join(list.clone(), Box::new(move |server| table.hold(server)))?;
        }
        let owner = Uid(rustix::process::geteuid().as_raw());
        store.data().bound_users(limits.user_space, owner);
        store.data().bound_mapped(limits.user_mapped, owner);
        let key = Arc::new(key::open_or_create(&config.key_path())?);
        Ok(BaseParts {
            own: config.server,
            alone,
            owner,
            life: Arc::new(Lifecycle::begin(alone)),
            log: Arc::new(LogLimit::new(limits.log_lines)),
            privileges: Privileges::new(owner, config.owner_only),
            keys: Arc::new(Keys::open(config.keys_path(), owner)?),
            seal: if alone { seal(&store)? } else { key.key.for_tokens() },
            key,
            users: Arc::new(UserBounds::new(&limits, owner)),
            pipes: Arc::default(),
            join_state,
            lease_table,
            began: store.data().now(),
            list,
            store,
            members,
        })
    }

    /// A bound for each user but root and the owner.
    pub(super) fn each(&self, what: &'static str, key: &'static str, most: usize) -> UserLimit {
        UserLimit::new(what, key, most, self.owner)
    }
}

/// Sessions and the files that they have open.
pub(super) struct SessionParts {
    pub(super) backing: Option<Arc<Backing>>,
    pub(super) queue: Arc<StripedQueue>,
    pub(super) opens: Arc<Opens>,
    pub(super) grace: Arc<OrphanGrace>,
    pub(super) tokens: Arc<OpenTokens>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) connection_epochs: Arc<ConnectionEpochs>,
}

impl SessionParts {
    pub(super) fn new(
        config: &Config,
        basis: &BaseParts,
        backend: Option<Arc<dyn Backend>>,
    ) -> Result<SessionParts> {
        let (store, limits) = (&basis.store, config.limits);
        let lasting = config.medium == Medium::Disk;
        let read_cache = ReadCache::new(config.store.clone(), store.data().usage().capacity / 4);
        let backing = backend.map(|backend| {
            let kv = store.meta().clone();
            Arc::new(Backing::new(backend, kv, lasting, read_cache, limits.backend_places))
        });
        let queue = Arc::new(StripedQueue::default());
        let (store, alone) = (store.clone(), basis.alone);
        let reaper = OrphanReaper { store, backing: backing.clone(), queue: queue.clone(), alone };
        let users = basis.each("open files", "user_opens", limits.user_opens);
        let opens = Opens::new(limits.opens, users, Box::new(reaper));
        let names = basis.store.names();
        let grace = Arc::new(OrphanGrace::begin(&opens, names.orphans()?, names.first_id()));
        let tokens = Arc::new(OpenTokens::begin(basis.store.take_keys()));
        let users = basis.each("sessions", "user_sessions", limits.user_sessions);
        let sessions = Sessions::new(limits.sessions, users, limits.session_opens, tokens.clone());
        let (sessions, connection_epochs) = (Arc::new(sessions), Arc::default());
        Ok(SessionParts { backing, queue, opens, grace, tokens, sessions, connection_epochs })
    }
}

/// Turns, and what this server and the others agree on about them.
pub(super) struct ShareParts {
    pub(super) turns: Arc<Turns>,
    pub(super) jobs: Arc<Jobs>,
    pub(super) peers: Arc<Peers>,
    pub(super) gossip: Arc<Gossip>,
}

impl ShareParts {
    pub(super) fn new(config: &Config, basis: &BaseParts) -> Result<ShareParts> {
        let (store, limits) = (&basis.store, config.limits);
        let now = store.data().now();
        let (policy_store, policy, set) = PolicyStore::open(store.meta().clone(), &config.policy, now)?;
        let users = basis.each("requests that wait for their turn", "user_waiting", limits.user_waiting);
        let turns = Turns::new(rules(config, policy, users, &key::random()?));
        let jobs = Arc::new(Jobs::new(limits.jobs, config.trust.trust(), turns.clone(), basis.log.clone()));
        let clients = PeerClients::new(basis.own, &basis.list, &config.peers);
        let peers = Arc::new(Peers::new(basis.own, clients, basis.members.clone(), config.times.peer));
        let parts = GossipParts {
            own: basis.own,
            lambda: config.lambda,
            store: store.clone(),
            turns: turns.clone(),
            jobs: jobs.clone(),
            policy_store,
            peers: peers.clone(),
            life: basis.life.clone(),
        };
        let gossip = Arc::new(Gossip::new(parts, set));
        Ok(ShareParts { turns, jobs, peers, gossip })
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
