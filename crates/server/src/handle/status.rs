//! The server's status, and the request to stop it.

use crate::caller::Caller;
use crate::cluster::{JoinState, Outcome};
use crate::direct::DirectIo;
use crate::drain::DrainEngine;
use crate::jobs::Jobs;
use crate::lifecycle::Lifecycle;
use crate::members::Membership;
use crate::opens::Opens;
use crate::session::Sessions;
use crate::turns::Turns;
use forebay_model::{ServerId, Usage};
use forebay_store::{Start, Store};
use forebay_wire::{RecoverySummary, RegionCounts, Reply, Status};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Maximum number of damage reports in one answer, so that it fits a frame.
const SHOWN: usize = 256;

/// Reports the server's status, and stops it.
pub(crate) struct StatusRequests {
    pub(crate) own: ServerId,
    /// The directory of the store.
    pub(crate) dir: PathBuf,
    /// How long it took to open the store.
    pub(crate) opening: Duration,
    pub(crate) store: Arc<Store>,
    pub(crate) members: Arc<dyn Membership>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) drain: Option<Arc<DrainEngine>>,
    pub(crate) direct: Arc<DirectIo>,
    pub(crate) life: Arc<Lifecycle>,
    /// Permits for connections, of this many.
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) most_connections: usize,
}

impl StatusRequests {
    pub(super) fn usage(&self) -> Usage {
        Usage { files: self.store.names().count(), ..self.store.data().usage() }
    }

    pub(super) fn status(&self, caller: &Caller) -> Status {
        let store = &self.store;
        let found = store.recovery();
        let regions = store.data().regions();
        let mut damage = store.data().damage();
        damage.extend(self.join_state.has_lost().then(|| self.join_state.loss()));
        damage.truncate(SHOWN);
        let connections = self.most_connections - self.connections.available_permits();
        Status {
            server: self.own,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: store.incarnation(),
            pid: std::process::id(),
            uptime: self.life.age().as_secs(),
            store: self.dir.display().to_string(),
            medium: store.medium().to_owned(),
            usage: self.usage(),
            region_size: u64::from(store.data().geometry().size),
            regions: RegionCounts {
                free: regions.free,
                filling: regions.filling,
                sealed: regions.sealed,
                draining: regions.draining,
                resting: regions.resting,
            },
            connections: u32::try_from(connections).unwrap_or(u32::MAX),
            sessions: u32::try_from(self.sessions.count()).unwrap_or(u32::MAX),
            opens: self.opens.count(),
            waiting: self.turns.waiting(),
            recovery: RecoverySummary {
                records: found.records,
                live_bytes: found.live_bytes,
                torn: found.torn,
                superseded: found.superseded,
                machine_crash: store.start() == Start::MachineDied,
                clean: matches!(store.start(), Start::Fresh | Start::Clean),
                millis: u64::try_from(self.opening.as_millis()).unwrap_or(u64::MAX),
            },
            damage,
            standing: self.join_state.standing(&self.members.members()),
            jobs: self.jobs.status(store.data().now(), &self.jobs.due(store.data().now())),
            drain: self.drain.as_ref().map(|engine| engine.status(caller.only_own())),
            route: self.direct.status(),
        }
    }

    pub(super) fn shutdown(&self, caller: &Caller) -> Outcome {
        caller.demand("stop this server")?;
        tracing::info!(uid = %caller.who.uid, "received a request to stop");
        self.life.stop();
        Ok(Reply::Done)
    }
}
