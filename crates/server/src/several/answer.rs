//! What this server answers others. Nothing here waits for another server, but what concerns names.

use super::append::Writer;
use super::{Stop, nonsense};
use crate::fence::Fence;
use crate::service::{Caller, Service};
use forebay_model::{Error, ErrorKind, FileId, Result, ServerId};
use forebay_store::{Ask, Batch, Told, Verdict};
use forebay_wire::{Answer, Meeting, Met, PeerReply, PeerRequest, Reply};
use std::sync::Arc;

impl Service {
    /// Another server introduces itself.
    pub(crate) fn greet_server(&self, caller: &Caller, meeting: &Meeting) -> Result<Met> {
        self.demand(caller, "speak for a server of this service")?;
        let (own, members) = (self.config.server, self.members.members());
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
        let replaced = self.joining.meet(&self.store, meeting.server, meeting.incarnation)?;
        Ok(Met {
            server: own,
            incarnation: self.store.incarnation(),
            joined: self.joining.has_joined(),
            replaced,
            next_id: self.store.names().next_id(),
        })
    }

    /// This server was heard out by another one.
    pub(crate) fn has_met(&self, met: &Met) -> Result<()> {
        self.joining.has_met(&self.store, &self.members.members(), met)
    }

    /// Fails unless this server may serve.
    pub(crate) fn demand_joined(&self) -> Result<()> {
        if self.joining.has_joined() {
            return Ok(());
        }
        self.joining.demand(&self.members.members())
    }

    /// The store of another server is lost: it may come with a new one.
    pub(crate) fn replace_server(&self, caller: &Caller, server: ServerId) -> Answer {
        self.demand(caller, "replace a server of this service")?;
        if server == self.config.server || !self.members.members().contains(server) {
            let text =
                format!("server {server} is not another server of this service ({})", self.members.members());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        tracing::warn!(uid = %caller.who.uid, %server, "the store of a server is given up");
        self.joining.replace(&self.store, server)?;
        Ok(Reply::Done)
    }

    /// Answers at once, or says that somebody has to be waited for.
    pub(crate) fn answer(&self, from: ServerId, request: &PeerRequest) -> Result<PeerReply, Stop> {
        match request {
            PeerRequest::Meet(_) => Err(nonsense(request).into()),
            PeerRequest::Beat => {
                self.demand_joined()?;
                self.leases.answer(from)?;
                Ok(PeerReply::Alive { life: self.began.0 })
            }
            PeerRequest::Names { ask } => {
                self.demand_joined()?;
                let told = self.store.names().answer(from, &Ask::decode(ask)?);
                self.take_orphaned();
                Ok(PeerReply::Names { told: told?.encode() })
            }
            // These wait: for others, or for what is being written behind.
            PeerRequest::Carry { .. }
            | PeerRequest::Bear { .. }
            | PeerRequest::Level { .. }
            | PeerRequest::Vanished { .. }
            | PeerRequest::Fetch { .. }
            | PeerRequest::Anew { .. } => Err(Stop::Names(forebay_store::Obstacle::Several)),
            PeerRequest::Reshape { .. } if self.drain.is_some() => {
                Err(Stop::Names(forebay_store::Obstacle::Several))
            }
            PeerRequest::Share { dir } => {
                self.demand_joined()?;
                let share = self.store.names().settled_share(*dir).map_err(Error::from)?;
                Ok(PeerReply::Share { subdirs: share.subdirs, touched: share.touched })
            }
            PeerRequest::Vouch { token } => match self.to_recover(token.file)?.is_empty() {
                true => self.vouch(from, token).map(PeerReply::Vouched),
                false => Err(Stop::Names(forebay_store::Obstacle::Several)),
            },
            PeerRequest::Facts { file, closed } => {
                if *closed {
                    self.sessions.purge(*file);
                    self.demand_idle(*file)?;
                }
                Ok(PeerReply::Facts(self.held(*file)?))
            }
            PeerRequest::Forget { file } => {
                self.sessions.purge(*file);
                self.demand_idle(*file)?;
                self.store.reshapes().delete(self.store.data(), *file, Batch::default())?;
                self.drop_past(*file);
                Ok(PeerReply::Done)
            }
            PeerRequest::DropSetId { file } => {
                self.store.names().drop_set_id(*file, self.store.data().now())?;
                Ok(PeerReply::Done)
            }
            PeerRequest::Remains { of } => {
                self.demand_joined()?;
                Ok(PeerReply::Remains(tokio::task::block_in_place(|| self.remains(from, of))?))
            }
            PeerRequest::HasSetId { file } => {
                self.opens.has_set_id(*file);
                Ok(PeerReply::Done)
            }
            // These wait for a device.
            PeerRequest::Behind { file } => {
                let place = tokio::task::block_in_place(|| self.place_behind(*file))?;
                Ok(PeerReply::Behind { place })
            }
            PeerRequest::Drained { file } => {
                self.part_drained(from, *file);
                Ok(PeerReply::Done)
            }
            PeerRequest::Arbitrate { heard, fill, wanted, written } => {
                Ok(self.arbitrate(from, (*heard, *fill), wanted, written)?)
            }
            PeerRequest::Granted => {
                self.ask_for_places(from);
                Ok(PeerReply::Done)
            }
            PeerRequest::Order { order, ask } => {
                self.set_order_here(order, *ask)?;
                Ok(PeerReply::Done)
            }
            PeerRequest::Undrained { files, before, drain } => Ok(self.undrained(files, *before, *drain)),
            PeerRequest::Reshape { .. }
            | PeerRequest::Reshaped { .. }
            | PeerRequest::Fate { .. }
            | PeerRequest::Put { .. } => {
                Ok(tokio::task::block_in_place(|| self.answer_bytes(from, request))?)
            }
        }
    }

    /// Answers what concerns the bytes of a file that several servers hold.
    fn answer_bytes(&self, from: ServerId, request: &PeerRequest) -> Result<PeerReply> {
        let (reshapes, data) = (self.store.reshapes(), self.store.data());
        match *request {
            PeerRequest::Fate { file, serial } => {
                let verdict = reshapes.verdict(file, serial)?;
                return Ok(PeerReply::Fate { done: verdict.map(|verdict| verdict == Verdict::Done) });
            }
            PeerRequest::Reshape { file, serial, change, lost_below } => {
                self.demand_authority(from, file)?;
                if lost_below > 0 {
                    data.lose(file, lost_below)?;
                }
                self.ways.lanes.hide(file, change.hides());
                reshapes.prepare(file, serial, change)?;
            }
            PeerRequest::Reshaped { file, serial, done } => {
                self.demand_authority(from, file)?;
                let verdict = if done { Verdict::Done } else { Verdict::Undone };
                reshapes.finish(data, file, serial, verdict)?;
                self.mend_past(file);
            }
            PeerRequest::Put { file, uid, job, offset, lost_below, ref bytes } => {
                self.demand_authority(from, file)?;
                let _hold = self.opens.hold(file)?;
                if lost_below > 0 {
                    data.lose(file, lost_below)?;
                }
                self.put_here(&Writer { file, uid, job }, offset, bytes)?;
            }
            _ => return Err(nonsense(request)),
        }
        Ok(PeerReply::Done)
    }

    /// Fails unless it is this server's to say what becomes of a file.
    fn demand_authority(&self, from: ServerId, file: FileId) -> Result<()> {
        match self.members.members().authority(file) == from {
            true => Ok(()),
            false => {
                let text = format!("server {from} has no say about file {file}");
                Err(Error::new(ErrorKind::Protocol, text))
            }
        }
    }

    /// Answers what concerns a file to which nothing is written behind meanwhile. Whoever has given the line up that it came
    /// over may have asked again, and got on.
    fn answer_when_still(
        &self,
        from: ServerId,
        fence: &Arc<Fence>,
        request: &PeerRequest,
    ) -> Result<PeerReply> {
        let &(PeerRequest::Reshape { file, .. }
        | PeerRequest::Level { file, .. }
        | PeerRequest::Vanished { file, .. }
        | PeerRequest::Anew { file, .. }) = request
        else {
            return Err(nonsense(request));
        };
        self.demand_authority(from, file)?;
        let _still = self.be_still(file)?;
        let _pass = fence.pass()?;
        match request {
            PeerRequest::Level { file, layout, place, size, lost_below } => {
                self.level_here((*file, layout), place, *size, *lost_below).map(PeerReply::Facts)
            }
            PeerRequest::Vanished { file, layout, ask } => {
                self.forget_part(*file, layout, *ask).map(|()| PeerReply::Done)
            }
            PeerRequest::Anew { file, size } => self.take_anew(*file, *size).map(|()| PeerReply::Done),
            _ => self.answer_bytes(from, request),
        }
    }

    /// Answers when whoever has to be waited for has said what is needed.
    pub(crate) async fn answer_later(
        self: Arc<Service>,
        from: ServerId,
        fence: &Arc<Fence>,
        request: PeerRequest,
    ) -> Answer {
        self.demand_joined()?;
        let reply = match &request {
            PeerRequest::Names { ask } | PeerRequest::Carry { ask } => {
                let told: Told = self.answer_names(from, &Ask::decode(ask)?).await?;
                PeerReply::Names { told: told.encode() }
            }
            PeerRequest::Bear { file, size } => {
                PeerReply::Born { born: self.bear_shared(from, *file, *size).await? }
            }
            PeerRequest::Fetch { file, place, spans } => {
                let bytes = tokio::task::block_in_place(|| self.fetch_here(*file, place, spans))?;
                PeerReply::Fetched { bytes }
            }
            PeerRequest::Vouch { token } => {
                let _order = self.afar.order(token.file).lock().await;
                self.recover_from_behind(token.file).await?;
                match self.vouch(from, token) {
                    Ok(vouched) => PeerReply::Vouched(vouched),
                    Err(Stop::Failed(error)) => return Err(error),
                    Err(_) => return Err(nonsense(&request)),
                }
            }
            _ => tokio::task::block_in_place(|| self.answer_when_still(from, fence, &request))?,
        };
        Ok(Reply::Peer(Box::new(reply)))
    }

    /// Fails while somebody uses a file's bytes.
    fn demand_idle(&self, file: FileId) -> Result<()> {
        match self.opens.is_held(file) {
            true => Err(Error::new(ErrorKind::Busy, format!("file {file} is in use here: try again"))),
            false => Ok(()),
        }
    }
}
