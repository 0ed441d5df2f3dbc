//! Answers requests of other servers. Nothing in this file waits for another server, except requests about names.

use super::append::Writer;
use super::{
    Blocked, DirLeases, JoinState, LocalBytes, LossSearch, StripedFiles, Transactions, Vouching, nonsense,
};
use crate::backing::BackingLayer;
use crate::caller::Caller;
use crate::connection_epoch::ConnectionEpoch;
use crate::drain::{DrainEngine, Statement, never_drained};
use crate::file_homes::FileHomes;
use crate::keys::Keys;
use crate::members::Membership;
use crate::opens::Opens;
use crate::orphans::OrphanGrace;
use crate::session::Sessions;
use crate::writers::Writers;
use forebay_model::{Error, ErrorKind, FileId, Result, ServerId, Stamp};
use forebay_store::{NameReply, NameRequest, Store, Verdict};
use forebay_wire::{Answer, Introduction, IntroductionReply, PeerReply, PeerRequest, Reply};
use std::sync::Arc;

/// Answers to other servers.
pub(crate) struct PeerAnswers {
    pub(crate) own: ServerId,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) members: Arc<dyn Membership>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) leases: Arc<DirLeases>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) grace: Arc<OrphanGrace>,
    pub(crate) striped: Arc<StripedFiles>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) drain: Option<Arc<DrainEngine>>,
    pub(crate) local: Arc<LocalBytes>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) vouching: Arc<Vouching>,
    pub(crate) losses: Arc<LossSearch>,
    /// When the server started, by the store's clock.
    pub(crate) began: Stamp,
}

impl PeerAnswers {
    /// Another server introduces itself.
    pub(crate) fn greet_server(&self, caller: &Caller, meeting: &Introduction) -> Result<IntroductionReply> {
        caller.demand("act as a server of this service")?;
        let (own, members) = (self.own, self.members.members());
        if meeting.members != *members {
            let text = format!(
                "the lists of servers differ: server {own} has [{members}], server {} has [{}]: give all the same list",
                meeting.server, meeting.members
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if meeting.server == own || !members.contains(meeting.server) {
            let text = format!("server {} is not another server of this service ({members})", meeting.server);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let replaced = self.join_state.record_meeting(&self.store, meeting.server, meeting.incarnation)?;
        Ok(IntroductionReply {
            server: own,
            incarnation: self.store.incarnation(),
            joined: self.join_state.has_joined(),
            replaced,
            next_id: self.store.names().next_id(),
        })
    }

    /// The store of another server is lost: it may come with a new one.
    pub(crate) fn replace_server(&self, caller: &Caller, server: ServerId) -> Answer {
        caller.demand("replace a server of this service")?;
        if server == self.own || !self.members.members().contains(server) {
            let text =
                format!("server {server} is not another server of this service ({})", self.members.members());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        tracing::warn!(uid = %caller.who.uid, %server, "the store of a server was declared lost");
        self.join_state.replace(&self.store, server)?;
        Ok(Reply::Done)
    }

    /// Answers at once, or returns what has to be waited for.
    pub(crate) fn answer(&self, from: ServerId, request: &PeerRequest) -> Result<PeerReply, Blocked> {
        match request {
            PeerRequest::Introduce(_) => Err(nonsense(request).into()),
            PeerRequest::Heartbeat => {
                self.homes.demand_joined()?;
                let lapses = self.leases.table.answer(from)?;
                Ok(PeerReply::Alive { boot: self.began.0 + lapses })
            }
            PeerRequest::Keys { keys } => {
                tokio::task::block_in_place(|| self.keys.join(keys, &self.sessions))?;
                Ok(PeerReply::Keys { keys: self.keys.all() })
            }
            PeerRequest::Names { request } => {
                self.homes.demand_joined()?;
                let reply = self.store.names().answer(from, &NameRequest::decode(request)?);
                self.grace.take_orphaned(&self.store, &self.opens);
                Ok(PeerReply::Names { reply: reply?.encode() })
            }
            // These wait for other servers, or for writes to the back end.
            PeerRequest::Forward { .. }
            | PeerRequest::CreateBacking { .. }
            | PeerRequest::MatchSize { .. }
            | PeerRequest::MissingInBacking { .. }
            | PeerRequest::Fetch { .. }
            | PeerRequest::Reread { .. } => Err(Blocked::Names(forebay_store::Obstacle::SeveralShards)),
            PeerRequest::Reshape { .. } if self.drain.is_some() => {
                Err(Blocked::Names(forebay_store::Obstacle::SeveralShards))
            }
            PeerRequest::Share { .. }
            | PeerRequest::Facts { .. }
            | PeerRequest::Forget { .. }
            | PeerRequest::DropSetId { .. }
            | PeerRequest::HasSetId { .. }
            | PeerRequest::Backing { .. } => Ok(self.answer_file(request)?),
            PeerRequest::Vouch { token } => match self.layer.to_recover(token.file)?.is_empty() {
                true => self.vouching.vouch(from, token).map(PeerReply::Vouched),
                false => Err(Blocked::Names(forebay_store::Obstacle::SeveralShards)),
            },
            PeerRequest::Remains { of } => {
                self.homes.demand_joined()?;
                Ok(PeerReply::Remains(tokio::task::block_in_place(|| self.losses.remains(from, of))?))
            }
            PeerRequest::Drained { .. }
            | PeerRequest::Arbitrate { .. }
            | PeerRequest::Granted
            | PeerRequest::Order { .. }
            | PeerRequest::Undrained { .. } => Ok(self.answer_drain(from, request)?),
            PeerRequest::Reshape { .. }
            | PeerRequest::Reshaped { .. }
            | PeerRequest::Outcome { .. }
            | PeerRequest::Put { .. } => {
                Ok(tokio::task::block_in_place(|| self.answer_bytes(from, request))?)
            }
        }
    }

    /// Answers requests about a directory's share or one file.
    fn answer_file(&self, request: &PeerRequest) -> Result<PeerReply> {
        match *request {
            PeerRequest::Share { dir } => {
                self.homes.demand_joined()?;
                let share = self.store.names().settled_share(dir)?;
                return Ok(PeerReply::Share { subdirs: share.subdirs, touched: share.touched });
            }
            PeerRequest::Facts { file, closed } => {
                if closed {
                    self.local.demand_closed(file)?;
                }
                return Ok(PeerReply::Facts(self.homes.held(file)?));
            }
            PeerRequest::Forget { file } => self.local.forget(file)?,
            PeerRequest::DropSetId { file } => {
                self.store.names().drop_set_id(file, self.store.data().now())?;
            }
            PeerRequest::HasSetId { file } => self.opens.has_set_id(file),
            // This waits for a device.
            PeerRequest::Backing { file } => {
                let place = tokio::task::block_in_place(|| self.layer.backing_place(file))?;
                return Ok(PeerReply::Backing { place });
            }
            _ => return Err(nonsense(request)),
        }
        Ok(PeerReply::Done)
    }

    /// Answers requests between the drains of two servers.
    fn answer_drain(&self, from: ServerId, request: &PeerRequest) -> Result<PeerReply> {
        match request {
            PeerRequest::Drained { file } => {
                self.drain.iter().for_each(|engine| engine.part_drained(from, *file));
            }
            PeerRequest::Arbitrate { last_received, fill, wanted, written } => {
                let statement = Statement { last_received: *last_received, fill: *fill, wanted };
                return Ok(self.engine()?.arbitrate(from, statement, written));
            }
            PeerRequest::Granted => self.drain.iter().for_each(|engine| engine.request_grants(from)),
            PeerRequest::Order { order, dry_run } => {
                self.drain.iter().try_for_each(|engine| engine.set_order(order, *dry_run))?;
            }
            PeerRequest::Undrained { files, before, drain } => {
                return Ok(match &self.drain {
                    Some(engine) => engine.undrained(files, *before, *drain),
                    None => never_drained(self.store.data(), files, *before),
                });
            }
            _ => return Err(nonsense(request)),
        }
        Ok(PeerReply::Done)
    }

    /// Answers requests about the bytes of a striped file.
    fn answer_bytes(&self, from: ServerId, request: &PeerRequest) -> Result<PeerReply> {
        let (reshapes, data) = (self.store.reshapes(), self.store.data());
        match *request {
            PeerRequest::Outcome { file, serial } => {
                let verdict = reshapes.verdict(file, serial)?;
                return Ok(PeerReply::Outcome { done: verdict.map(|verdict| verdict == Verdict::Done) });
            }
            PeerRequest::Reshape { file, serial, change, lost_below } => {
                self.demand_authority(from, file)?;
                if lost_below > 0 {
                    data.lose(file, lost_below)?;
                }
                self.writers.range_locks.hide(file, change.hides());
                reshapes.prepare(file, serial, change)?;
            }
            PeerRequest::Reshaped { file, serial, done } => {
                self.demand_authority(from, file)?;
                let verdict = if done { Verdict::Done } else { Verdict::Undone };
                reshapes.finish(data, file, serial, verdict)?;
                self.writers.clear_failed_direct(file);
            }
            PeerRequest::Put { file, uid, job, offset, lost_below, ref bytes } => {
                self.demand_authority(from, file)?;
                let _hold = self.opens.hold(file)?;
                if lost_below > 0 {
                    data.lose(file, lost_below)?;
                }
                Writer { file, uid, job }.put(data, offset, bytes)?;
            }
            _ => return Err(nonsense(request)),
        }
        Ok(PeerReply::Done)
    }

    /// Fails unless the requesting server is the authority of a file.
    fn demand_authority(&self, from: ServerId, file: FileId) -> Result<()> {
        match self.members.members().authority(file) == from {
            true => Ok(()),
            false => {
                let text = format!("server {from} is not the authority of file {file}");
                Err(Error::new(ErrorKind::Protocol, text))
            }
        }
    }

    /// Answers a request while writes of its file to the back end are suspended. The connection's epoch is checked
    /// afterwards: a server that has dropped the connection may have repeated its request on another.
    fn answer_suspended(
        &self,
        from: ServerId,
        connection_epoch: &Arc<ConnectionEpoch>,
        request: &PeerRequest,
    ) -> Result<PeerReply> {
        let &(PeerRequest::Reshape { file, .. }
        | PeerRequest::MatchSize { file, .. }
        | PeerRequest::MissingInBacking { file, .. }
        | PeerRequest::Reread { file, .. }) = request
        else {
            return Err(nonsense(request));
        };
        self.demand_authority(from, file)?;
        let _suspended = self.drain.as_ref().map(|engine| engine.be_still(file)).transpose()?;
        let _pass = connection_epoch.pass()?;
        match request {
            PeerRequest::MatchSize { file, layout, place, size, lost_below } => {
                self.engine()?.match_part((*file, layout), place, *size, *lost_below).map(PeerReply::Facts)
            }
            PeerRequest::MissingInBacking { file, layout, dry_run } => {
                self.layer.forget_part(*file, layout, *dry_run).map(|()| PeerReply::Done)
            }
            PeerRequest::Reread { file, size } => {
                self.striped.adopt_version(*file, *size).map(|()| PeerReply::Done)
            }
            _ => self.answer_bytes(from, request),
        }
    }

    /// Answers a request that has to wait.
    pub(crate) async fn answer_later(
        &self,
        from: ServerId,
        connection_epoch: &Arc<ConnectionEpoch>,
        request: PeerRequest,
    ) -> Answer {
        self.homes.demand_joined()?;
        let reply = match &request {
            PeerRequest::Names { request } | PeerRequest::Forward { request } => {
                let reply: NameReply =
                    self.transactions.answer_names(from, &NameRequest::decode(request)?).await?;
                PeerReply::Names { reply: reply.encode() }
            }
            PeerRequest::CreateBacking { file, size } => PeerReply::BackingFile {
                backing_file: self.engine()?.create_striped(from, *file, *size).await?,
            },
            PeerRequest::Fetch { file, place, spans, turn } => {
                let brought =
                    tokio::task::block_in_place(|| self.layer.fetch_here(*file, place, spans, *turn))?;
                PeerReply::Fetched { bytes: brought.bytes, full: brought.full }
            }
            PeerRequest::Vouch { token } => {
                let _order = self.striped.order(token.file).lock().await;
                self.layer.recover_from_backing(token.file).await?;
                match self.vouching.vouch(from, token) {
                    Ok(vouched) => PeerReply::Vouched(vouched),
                    Err(Blocked::Failed(error)) => return Err(error),
                    Err(_) => return Err(nonsense(&request)),
                }
            }
            _ => tokio::task::block_in_place(|| self.answer_suspended(from, connection_epoch, &request))?,
        };
        Ok(Reply::Peer(Box::new(reply)))
    }

    fn engine(&self) -> Result<&Arc<DrainEngine>> {
        let text = "this server has no back end";
        self.drain.as_ref().ok_or_else(|| Error::new(ErrorKind::Unsupported, text))
    }
}
