//! Builds a server: makes its parts from the bottom to the top, and hands each what it uses.
//!
//! **Deliberately absent**: anything but construction. No part knows this module, and none reaches another through it.

mod basis;
mod bytes;
mod requests;

use crate::backing::BackingLayer;
use crate::cluster::{DirLeases, JoinState, PeerLinks, Peers, Tidy};
use crate::config::Config;
use crate::connection::Connections;
use crate::direct::DirectIo;
use crate::drain::DrainEngine;
use crate::gossip::Gossip;
use crate::history::History;
use crate::jobs::Jobs;
use crate::keys::Keys;
use crate::lifecycle::Lifecycle;
use crate::log_limit::LogLimit;
use crate::mapping::Mappings;
use crate::members::Membership;
use crate::opens::Opens;
use crate::pipes::Pipes;
use crate::session::Sessions;
use crate::sweep::Sweep;
use basis::{BaseParts, SessionParts, ShareParts};
use bytes::{ByteParts, PeerParts};
use forebay_backend::Backend;
use forebay_model::Result;
use forebay_store::Store;
use forebay_wire::Key;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The parts of a server that run by themselves, and those that the tasks of its main thread use.
pub(crate) struct Composition {
    pub(crate) config: Config,
    pub(crate) store: Arc<Store>,
    pub(crate) members: Arc<dyn Membership>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) log: Arc<LogLimit>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) history: Arc<History>,
    pub(crate) gossip: Arc<Gossip>,
    pub(crate) leases: Arc<DirLeases>,
    pub(crate) links: Arc<PeerLinks>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) tidy: Arc<Tidy>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) drain: Option<Arc<DrainEngine>>,
    pub(crate) direct: Arc<DirectIo>,
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) pipes: Arc<Pipes>,
    /// The secret that seals tokens and names twins of pipes.
    pub(crate) seal: Key,
    pub(crate) sweep: Sweep,
    pub(crate) connections: Arc<Connections>,
}

/// All parts below the requests.
struct LowerParts {
    basis: BaseParts,
    opened: SessionParts,
    sharing: ShareParts,
    bytes: ByteParts,
    together: PeerParts,
    /// Permits for connections.
    places: Arc<Semaphore>,
    history: Arc<History>,
}

/// Builds a server over an open store, which took `opening` to open.
pub(crate) fn compose(
    config: Config,
    (store, opening): (Store, Duration),
    backend: Option<Arc<dyn Backend>>,
    members: Arc<dyn Membership>,
) -> Result<Composition> {
    let basis = BaseParts::new(&config, store, members)?;
    let opened = SessionParts::new(&config, &basis, backend)?;
    let sharing = ShareParts::new(&config, &basis)?;
    let bytes = ByteParts::new(&config, &basis, &opened, &sharing)?;
    let together = PeerParts::new(&config, &basis, (&opened, &sharing), &bytes);
    let places = Arc::new(Semaphore::new(config.limits.connections));
    let history = Arc::new(History::open(basis.store.meta().clone())?);
    let below = LowerParts { basis, opened, sharing, bytes, together, places, history };
    let access = below.access();
    let mappings = below.mappings(&config, &access)?;
    let server = below.server(&config, opening, (&access, &mappings));
    let connections = below.connections(&config, &access, server);
    let (sweep, tidy, links) = (below.sweep(&config), below.tidy(&config), below.links(&config));
    let LowerParts { basis, opened, sharing, bytes, together, history, .. } = below;
    Ok(Composition {
        config,
        store: basis.store,
        members: basis.members,
        join_state: basis.join_state,
        life: basis.life,
        log: basis.log,
        opens: opened.opens,
        sessions: opened.sessions,
        keys: basis.keys,
        jobs: sharing.jobs,
        history,
        gossip: sharing.gossip,
        leases: together.leases,
        links,
        peers: sharing.peers,
        tidy,
        layer: bytes.layer,
        drain: bytes.drain,
        direct: bytes.direct,
        mappings,
        pipes: basis.pipes,
        seal: basis.seal,
        sweep,
        connections,
    })
}
