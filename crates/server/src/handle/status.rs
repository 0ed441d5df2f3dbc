//! The server's status, and the request to stop it.

use crate::cluster::Outcome;
use crate::service::{Caller, Service};
use forebay_model::{Error, ErrorKind, Result, Uid, Usage};
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
            jobs: self.jobs.status(store.data().now(), &self.due()),
            drain: self.drain.as_ref().map(|engine| engine.status(self, self.only_own(caller))),
            route: self.route_status(),
        }
    }

    /// Whether root or the service's owner sent the request, on their own behalf.
    fn is_trusted(&self, caller: &Caller) -> bool {
        caller.privileged && self.trusts(&caller.who)
    }

    /// The user whose files the caller may see by path; `None` for all users. Paths may lead through directories that
    /// are closed to the caller.
    pub(super) fn only_own(&self, caller: &Caller) -> Option<Uid> {
        (!self.is_trusted(caller)).then_some(caller.who.uid)
    }

    /// Refuses callers other than root and the service's owner.
    pub(crate) fn demand(&self, caller: &Caller, what: &str) -> Result<()> {
        if self.is_trusted(caller) {
            return Ok(());
        }
        let text = format!("user {} may not {what}: only root and its owner may", caller.who.uid);
        Err(Error::new(ErrorKind::NotPermitted, text))
    }

    pub(super) fn shutdown(&self, caller: &Caller) -> Outcome {
        self.demand(caller, "stop this server")?;
        tracing::info!(uid = %caller.who.uid, "received a request to stop");
        self.life.stop();
        Ok(Reply::Done)
    }
}
