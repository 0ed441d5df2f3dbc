//! The server's status, and the request to stop it.

use crate::caller::Caller;
use crate::cluster::Outcome;
use crate::service::Service;
use forebay_model::Usage;
use forebay_store::Start;
use forebay_wire::{RecoverySummary, RegionCounts, Reply, Status};

/// Maximum number of damage reports in one answer, so that it fits a frame.
const SHOWN: usize = 256;

impl Service {
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
        let connections = self.config.limits.connections - self.connections.available_permits();
        Status {
            server: self.config.server,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: store.incarnation(),
            pid: std::process::id(),
            uptime: self.life.age().as_secs(),
            store: self.config.store.display().to_string(),
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
            drain: self.drain.as_ref().map(|engine| engine.status(self, caller.only_own())),
            route: self.route_status(),
        }
    }

    pub(super) fn shutdown(&self, caller: &Caller) -> Outcome {
        caller.demand("stop this server")?;
        tracing::info!(uid = %caller.who.uid, "received a request to stop");
        self.life.stop();
        Ok(Reply::Done)
    }
}
