//! The parts that move bytes, and what several servers do together.

use super::basis::{BaseParts, SessionParts, ShareParts};
use crate::backing::BackingLayer;
use crate::cluster::{
    Appends, DirLeases, LocalBytes, LossParts, LossSearch, PeerAnswers, Peers, StripedFiles, StripedParts,
    TransactionParts, Transactions, Vouching,
};
use crate::config::Config;
use crate::direct::{DirectIo, DirectParts};
use crate::drain::{BufferSpace, DrainEngine, DrainParts};
use crate::file_homes::FileHomes;
use crate::writers::Writers;
use forebay_model::Result;
use std::sync::Arc;

/// Where bytes lie, and how they move between the buffer and the back end.
pub(super) struct ByteParts {
    pub(super) homes: Arc<FileHomes>,
    pub(super) striped: Arc<StripedFiles>,
    pub(super) writers: Arc<Writers>,
    pub(super) layer: Arc<BackingLayer>,
    pub(super) drain: Option<Arc<DrainEngine>>,
    pub(super) space: Arc<BufferSpace>,
    pub(super) direct: Arc<DirectIo>,
}

impl ByteParts {
    pub(super) fn new(
        config: &Config,
        basis: &BaseParts,
        opened: &SessionParts,
        sharing: &ShareParts,
    ) -> Result<ByteParts> {
        let BaseParts { own, store, members, join_state, life, .. } = basis;
        let (SessionParts { opens, grace, .. }, ShareParts { jobs, peers, .. }) = (opened, sharing);
        let homes = FileHomes::new(*own, members.clone(), store.clone(), join_state.clone());
        let homes = Arc::new(homes);
        let parts = StripedParts {
            own: *own,
            store: store.clone(),
            homes: homes.clone(),
            peers: peers.clone(),
            opens: opens.clone(),
            grace: grace.clone(),
            life: life.clone(),
            patience: config.times.peer / 4,
        };
        let striped = Arc::new(StripedFiles::new(opened.queue.clone(), parts));
        let writers = Arc::new(Writers::new(store.clone(), opens.clone(), config.route));
        let layer = Arc::new(BackingLayer {
            own: *own,
            store: store.clone(),
            backing: opened.backing.clone(),
            homes: homes.clone(),
            join_state: join_state.clone(),
            peers: peers.clone(),
            striped: striped.clone(),
            writers: writers.clone(),
            opens: opens.clone(),
            grace: grace.clone(),
            users: basis.users.clone(),
            life: life.clone(),
            patience: config.times.answer,
        });
        layer.resume_backing()?;
        let drain = drain(config, basis, (opened, sharing), &layer)?;
        let (jobs, life, drains) = (jobs.clone(), life.clone(), drain.clone());
        let space = Arc::new(BufferSpace { store: store.clone(), jobs, life, drain: drains });
        let parts = DirectParts {
            own: *own,
            store: store.clone(),
            layer: layer.clone(),
            homes: homes.clone(),
            writers: writers.clone(),
            drain: drain.clone(),
            jobs: sharing.jobs.clone(),
            life: basis.life.clone(),
        };
        let direct = Arc::new(DirectIo::new(config.route, parts)?);
        Ok(ByteParts { homes, striped, writers, layer, drain, space, direct })
    }
}

/// The drain, if there is a back end.
fn drain(
    config: &Config,
    basis: &BaseParts,
    (opened, sharing): (&SessionParts, &ShareParts),
    layer: &Arc<BackingLayer>,
) -> Result<Option<Arc<DrainEngine>>> {
    let Some(backing) = &layer.backing else { return Ok(None) };
    let parts = DrainParts {
        own: basis.own,
        store: basis.store.clone(),
        backing: backing.clone(),
        layer: layer.clone(),
        homes: layer.homes.clone(),
        peers: sharing.peers.clone(),
        striped: layer.striped.clone(),
        writers: layer.writers.clone(),
        opens: opened.opens.clone(),
        jobs: sharing.jobs.clone(),
        life: basis.life.clone(),
        suspension: config.times.peer / 4,
        tickets_of_user: basis.each("drain requests", "user_drains", config.limits.user_drains),
    };
    let servers = basis.list.all().iter().map(|member| member.server).collect();
    let engine = DrainEngine::new(config.drain.clone(), servers, config.topology.clone(), parts)?;
    Ok(Some(Arc::new(engine)))
}

/// What several servers do together.
pub(super) struct PeerParts {
    pub(super) leases: Arc<DirLeases>,
    pub(super) transactions: Arc<Transactions>,
    pub(super) vouching: Arc<Vouching>,
    pub(super) losses: Arc<LossSearch>,
    pub(super) appends: Arc<Appends>,
    pub(super) answers: Arc<PeerAnswers>,
}

impl PeerParts {
    pub(super) fn new(
        config: &Config,
        basis: &BaseParts,
        (opened, sharing): (&SessionParts, &ShareParts),
        bytes: &ByteParts,
    ) -> PeerParts {
        let BaseParts { own, store, members, join_state, .. } = basis;
        let (SessionParts { opens, grace, sessions, .. }, ByteParts { homes, striped, writers, layer, .. }) =
            (opened, bytes);
        let peers = &sharing.peers;
        let leases = Arc::new(dir_leases(config, basis, peers));
        let transactions = Arc::new(Transactions::new(TransactionParts {
            own: *own,
            store: store.clone(),
            homes: homes.clone(),
            peers: peers.clone(),
            leases: leases.clone(),
            opens: opens.clone(),
            grace: grace.clone(),
            users: basis.users.clone(),
            patience: config.times.peer + config.times.lease,
        }));
        let vouching = vouching(basis, opened, peers, bytes);
        let local = Arc::new(LocalBytes {
            store: store.clone(),
            sessions: sessions.clone(),
            opens: opens.clone(),
            writers: writers.clone(),
        });
        let losses = losses(basis, bytes, peers, (&transactions, &local));
        let appends = appends(basis, bytes, peers);
        let answers = PeerAnswers {
            own: *own,
            store: store.clone(),
            homes: homes.clone(),
            members: members.clone(),
            join_state: join_state.clone(),
            leases: leases.clone(),
            keys: basis.keys.clone(),
            sessions: sessions.clone(),
            opens: opens.clone(),
            grace: grace.clone(),
            striped: striped.clone(),
            writers: writers.clone(),
            layer: layer.clone(),
            drain: bytes.drain.clone(),
            local,
            transactions: transactions.clone(),
            vouching: vouching.clone(),
            losses: losses.clone(),
            began: basis.began,
        };
        let answers = Arc::new(answers);
        PeerParts { leases, transactions, vouching, losses, appends, answers }
    }
}

fn dir_leases(config: &Config, basis: &BaseParts, peers: &Arc<Peers>) -> DirLeases {
    DirLeases {
        table: basis.lease_table.clone(),
        store: basis.store.clone(),
        peers: peers.clone(),
        life: basis.life.clone(),
        patience: config.times.peer,
    }
}

fn vouching(
    basis: &BaseParts,
    opened: &SessionParts,
    peers: &Arc<Peers>,
    bytes: &ByteParts,
) -> Arc<Vouching> {
    Arc::new(Vouching {
        store: basis.store.clone(),
        homes: bytes.homes.clone(),
        peers: peers.clone(),
        sessions: opened.sessions.clone(),
        tokens: opened.tokens.clone(),
        opens: opened.opens.clone(),
        grace: opened.grace.clone(),
        direct: bytes.direct.clone(),
        seal: basis.seal.clone(),
    })
}

fn losses(
    basis: &BaseParts,
    bytes: &ByteParts,
    peers: &Arc<Peers>,
    (transactions, local): (&Arc<Transactions>, &Arc<LocalBytes>),
) -> Arc<LossSearch> {
    Arc::new(LossSearch::new(LossParts {
        own: basis.own,
        store: basis.store.clone(),
        homes: bytes.homes.clone(),
        members: basis.members.clone(),
        join_state: basis.join_state.clone(),
        peers: peers.clone(),
        layer: bytes.layer.clone(),
        transactions: transactions.clone(),
        local: local.clone(),
    }))
}

fn appends(basis: &BaseParts, bytes: &ByteParts, peers: &Arc<Peers>) -> Arc<Appends> {
    Arc::new(Appends {
        own: basis.own,
        store: basis.store.clone(),
        homes: bytes.homes.clone(),
        peers: peers.clone(),
        striped: bytes.striped.clone(),
        layer: bytes.layer.clone(),
        space: bytes.space.clone(),
    })
}
