//! The parts that serve requests and connections, and the tasks beside them.

use super::LowerParts;
use crate::blocking::BlockingCalls;
use crate::cluster::{PeerLinks, Tidy};
use crate::config::Config;
use crate::connection::Connections;
use crate::data::Transfers;
use crate::dispatch::RequestServer;
use crate::handle::{
    AttrRequests, DrainRequests, FileAccess, KeyRequests, NameRequests, OpenRequests, Requests, Resolver,
    SharingRequests, StatusRequests,
};
use crate::handshake::Handshakes;
use crate::listing::Listings;
use crate::mapping::{MapParts, Mappings};
use crate::memory::MemoryRequests;
use crate::rows::Rows;
use crate::shm_queue::{QueueParts, ShmQueues};
use crate::sweep::Sweep;
use forebay_model::Result;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// KiB of appends to striped files that are in memory at the same time.
const APPENDS: usize = 64 << 10;

impl LowerParts {
    pub(super) fn access(&self) -> Arc<FileAccess> {
        let LowerParts { basis, opened, bytes, .. } = self;
        Arc::new(FileAccess {
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            members: basis.members.clone(),
            join_state: basis.join_state.clone(),
            layer: bytes.layer.clone(),
            sessions: opened.sessions.clone(),
            tokens: opened.tokens.clone(),
            opens: opened.opens.clone(),
            grace: opened.grace.clone(),
            seal: basis.seal.clone(),
            began: basis.began,
        })
    }

    fn names(&self, access: &Arc<FileAccess>) -> Arc<NameRequests> {
        let LowerParts { basis, opened, bytes, .. } = self;
        Arc::new(NameRequests {
            access: access.clone(),
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            members: basis.members.clone(),
            join_state: basis.join_state.clone(),
            layer: bytes.layer.clone(),
            opens: opened.opens.clone(),
            grace: opened.grace.clone(),
            pipes: basis.pipes.clone(),
        })
    }

    fn open_files(&self, access: &Arc<FileAccess>) -> Arc<OpenRequests> {
        let LowerParts { basis, opened, bytes, .. } = self;
        let attrs = Arc::new(AttrRequests {
            access: access.clone(),
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            layer: bytes.layer.clone(),
            opens: opened.opens.clone(),
            writers: bytes.writers.clone(),
            drain: bytes.drain.clone(),
            pipes: basis.pipes.clone(),
            life: basis.life.clone(),
        });
        Arc::new(OpenRequests {
            own: basis.own,
            access: access.clone(),
            attrs,
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            layer: bytes.layer.clone(),
            opens: opened.opens.clone(),
            direct: bytes.direct.clone(),
            space: bytes.space.clone(),
            life: basis.life.clone(),
        })
    }

    fn drains(&self, access: &Arc<FileAccess>) -> DrainRequests {
        let LowerParts { basis, sharing, bytes, .. } = self;
        DrainRequests {
            access: access.clone(),
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            peers: sharing.peers.clone(),
            layer: bytes.layer.clone(),
            drain: bytes.drain.clone(),
            space: bytes.space.clone(),
            life: basis.life.clone(),
        }
    }

    fn status(&self, config: &Config, opening: Duration) -> StatusRequests {
        let LowerParts { basis, opened, sharing, bytes, .. } = self;
        StatusRequests {
            own: basis.own,
            dir: config.store.clone(),
            opening,
            store: basis.store.clone(),
            members: basis.members.clone(),
            join_state: basis.join_state.clone(),
            sessions: opened.sessions.clone(),
            opens: opened.opens.clone(),
            turns: sharing.turns.clone(),
            jobs: sharing.jobs.clone(),
            drain: bytes.drain.clone(),
            direct: bytes.direct.clone(),
            life: basis.life.clone(),
            connections: self.places.clone(),
            most_connections: config.limits.connections,
        }
    }

    fn memory(
        &self,
        config: &Config,
        access: &Arc<FileAccess>,
        mappings: &Arc<Mappings>,
    ) -> Arc<MemoryRequests> {
        let LowerParts { basis, sharing, bytes, .. } = self;
        Arc::new(MemoryRequests {
            own: basis.own,
            enabled: config.shared_memory,
            access: access.clone(),
            mappings: mappings.clone(),
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            turns: sharing.turns.clone(),
            writers: bytes.writers.clone(),
            space: bytes.space.clone(),
            direct: bytes.direct.clone(),
        })
    }

    pub(super) fn mappings(&self, config: &Config, access: &Arc<FileAccess>) -> Result<Arc<Mappings>> {
        let LowerParts { basis, sharing, bytes, .. } = self;
        let parts = MapParts {
            own: basis.own,
            access: access.clone(),
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            layer: bytes.layer.clone(),
            turns: sharing.turns.clone(),
            privileges: basis.privileges,
            life: basis.life.clone(),
            log: basis.log.clone(),
            patience: config.times.handshake,
        };
        Ok(Arc::new(Mappings::open(parts, config.limits.user_mappings, basis.owner)?))
    }

    /// What serves the requests of clients.
    pub(super) fn server(
        &self,
        config: &Config,
        opening: Duration,
        (access, mappings): (&Arc<FileAccess>, &Arc<Mappings>),
    ) -> Arc<RequestServer> {
        let LowerParts { basis, opened, sharing, bytes, together, .. } = self;
        let has_backing = bytes.layer.backing.is_some();
        let (names, open_files) = (self.names(access), self.open_files(access));
        let reports = Arc::new(SharingRequests {
            turns: sharing.turns.clone(),
            gossip: sharing.gossip.clone(),
            lambda: config.lambda,
        });
        let requests = Arc::new(Requests {
            names: names.clone(),
            attrs: open_files.attrs.clone(),
            open_files,
            drains: self.drains(access),
            sharing: reports.clone(),
            status: self.status(config, opening),
            direct: bytes.direct.clone(),
            history: self.history.clone(),
            rows: Rows::default(),
            has_backing,
        });
        let resolver = Arc::new(Resolver {
            requests: requests.clone(),
            store: basis.store.clone(),
            layer: bytes.layer.clone(),
            striped: bytes.striped.clone(),
            transactions: together.transactions.clone(),
            vouching: together.vouching.clone(),
        });
        let (layer, users, patience) = (bytes.layer.clone(), basis.users.clone(), config.times.answer);
        let blocking = Arc::new(BlockingCalls::new(layer, users, config.limits.syncs, patience));
        let listings = self.listings(names, &requests, &resolver, &blocking);
        Arc::new(RequestServer {
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            turns: sharing.turns.clone(),
            life: basis.life.clone(),
            connection_epochs: opened.connection_epochs.clone(),
            requests,
            resolver,
            blocking,
            listings,
            memory: self.memory(config, access, mappings),
            keys: self.keys(),
            sharing: reports,
            losses: together.losses.clone(),
            peer_answers: together.answers.clone(),
            has_backing,
        })
    }

    fn listings(
        &self,
        names: Arc<NameRequests>,
        requests: &Arc<Requests>,
        resolver: &Arc<Resolver>,
        blocking: &Arc<BlockingCalls>,
    ) -> Arc<Listings> {
        let LowerParts { basis, sharing, bytes, .. } = self;
        Arc::new(Listings {
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            turns: sharing.turns.clone(),
            users: basis.users.clone(),
            names,
            requests: requests.clone(),
            resolver: resolver.clone(),
            blocking: blocking.clone(),
            patience: bytes.layer.patience,
            has_backing: bytes.layer.backing.is_some(),
        })
    }

    fn keys(&self) -> KeyRequests {
        let LowerParts { basis, opened, sharing, .. } = self;
        KeyRequests {
            own: basis.own,
            key: basis.key.clone(),
            keys: basis.keys.clone(),
            sessions: opened.sessions.clone(),
            peers: sharing.peers.clone(),
        }
    }

    fn transfers(&self, config: &Config, access: &Arc<FileAccess>) -> Arc<Transfers> {
        let LowerParts { basis, sharing, bytes, together, .. } = self;
        Arc::new(Transfers {
            times: config.times,
            store: basis.store.clone(),
            homes: bytes.homes.clone(),
            turns: sharing.turns.clone(),
            life: basis.life.clone(),
            access: access.clone(),
            peers: sharing.peers.clone(),
            striped: bytes.striped.clone(),
            vouching: together.vouching.clone(),
            appends: together.appends.clone(),
            users: basis.users.clone(),
            append_memory: Semaphore::new(APPENDS),
            layer: bytes.layer.clone(),
            writers: bytes.writers.clone(),
            space: bytes.space.clone(),
            direct: bytes.direct.clone(),
        })
    }

    fn handshakes(&self, config: &Config) -> Handshakes {
        let basis = &self.basis;
        Handshakes {
            own: basis.own,
            store: basis.store.clone(),
            members: basis.members.clone(),
            key: basis.key.clone(),
            keys: basis.keys.clone(),
            privileges: basis.privileges,
            life: basis.life.clone(),
            transport: config.transport,
            session: config.times.session,
        }
    }

    pub(super) fn connections(
        &self,
        config: &Config,
        access: &Arc<FileAccess>,
        server: Arc<RequestServer>,
    ) -> Arc<Connections> {
        let LowerParts { basis, opened, sharing, bytes, together, .. } = self;
        let shm_queues = Arc::new(ShmQueues::new(QueueParts {
            enabled: config.shared_memory,
            store: basis.store.clone(),
            layer: bytes.layer.clone(),
            sessions: opened.sessions.clone(),
            server: server.clone(),
            life: basis.life.clone(),
        }));
        Arc::new(Connections {
            limits: config.limits,
            times: config.times,
            log: basis.log.clone(),
            life: basis.life.clone(),
            places: self.places.clone(),
            users: basis.users.clone(),
            privileges: basis.privileges,
            handshakes: self.handshakes(config),
            keys: basis.keys.clone(),
            sessions: opened.sessions.clone(),
            connection_epochs: opened.connection_epochs.clone(),
            jobs: sharing.jobs.clone(),
            store: basis.store.clone(),
            server,
            peer_answers: together.answers.clone(),
            shm_queues,
            transfers: self.transfers(config, access),
        })
    }

    pub(super) fn links(&self, config: &Config) -> Arc<PeerLinks> {
        let LowerParts { basis, opened, sharing, .. } = self;
        Arc::new(PeerLinks {
            own: basis.own,
            members: basis.members.clone(),
            store: basis.store.clone(),
            join_state: basis.join_state.clone(),
            key: basis.key.clone(),
            keys: basis.keys.clone(),
            sessions: opened.sessions.clone(),
            gossip: sharing.gossip.clone(),
            life: basis.life.clone(),
            transport: config.transport,
            patience: config.times.peer,
        })
    }

    pub(super) fn tidy(&self, config: &Config) -> Arc<Tidy> {
        let LowerParts { basis, opened, bytes, together, .. } = self;
        Arc::new(Tidy {
            store: basis.store.clone(),
            striped: bytes.striped.clone(),
            transactions: together.transactions.clone(),
            backing: opened.backing.clone(),
            opens: opened.opens.clone(),
            join_state: basis.join_state.clone(),
            losses: together.losses.clone(),
            life: basis.life.clone(),
            patience: config.times.peer,
        })
    }

    pub(super) fn sweep(&self, config: &Config) -> Sweep {
        let LowerParts { basis, opened, .. } = self;
        Sweep {
            sessions: opened.sessions.clone(),
            tokens: opened.tokens.clone(),
            grace: opened.grace.clone(),
            store: basis.store.clone(),
            life: basis.life.clone(),
            silence: config.times.session,
        }
    }
}
