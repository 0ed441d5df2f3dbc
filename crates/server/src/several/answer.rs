//! What this server answers others. Nothing here waits for another server, but what concerns names.

use super::{Stop, nonsense};
use crate::service::{Caller, Service};
use forebay_model::{Error, ErrorKind, Result, ServerId};
use forebay_store::{Ask, Batch, Told};
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
            PeerRequest::Carry { .. } => Err(Stop::Names(forebay_store::Obstacle::Several)),
            PeerRequest::Share { dir } => {
                self.demand_joined()?;
                let share = self.store.names().settled_share(*dir).map_err(Error::from)?;
                Ok(PeerReply::Share { subdirs: share.subdirs, touched: share.touched })
            }
            PeerRequest::Vouch { token } => self.vouch(from, token).map(PeerReply::Vouched),
            PeerRequest::Facts { file, closed } => {
                if *closed {
                    self.sessions.purge(*file);
                    self.demand_idle(*file)?;
                }
                Ok(PeerReply::Facts(self.held(*file)?))
            }
            PeerRequest::Cut { file, size } => {
                self.store.data().truncate(*file, *size, Batch::default())?;
                Ok(PeerReply::Done)
            }
            PeerRequest::Forget { file } => {
                self.sessions.purge(*file);
                self.demand_idle(*file)?;
                self.store.data().delete(*file, Batch::default())?;
                Ok(PeerReply::Done)
            }
            PeerRequest::DropSetId { file } => {
                self.store.names().drop_set_id(*file, self.store.data().now())?;
                Ok(PeerReply::Done)
            }
            PeerRequest::Remains { of } => {
                self.demand_joined()?;
                Ok(PeerReply::Remains(tokio::task::block_in_place(|| self.remains(of))?))
            }
            PeerRequest::HasSetId { file } => {
                self.opens.has_set_id(*file);
                Ok(PeerReply::Done)
            }
        }
    }

    /// Answers when whoever has to be waited for has said what is needed.
    pub(crate) async fn answer_later(self: Arc<Service>, from: ServerId, request: PeerRequest) -> Answer {
        let (PeerRequest::Names { ask } | PeerRequest::Carry { ask }) = &request else {
            return Err(nonsense(&request));
        };
        self.demand_joined()?;
        let told: Told = self.answer_names(from, &Ask::decode(ask)?).await?;
        Ok(Reply::Peer(Box::new(PeerReply::Names { told: told.encode() })))
    }

    /// Fails while somebody uses a file's bytes.
    fn demand_idle(&self, file: forebay_model::FileId) -> Result<()> {
        match self.opens.is_held(file) {
            true => Err(Error::new(ErrorKind::Busy, format!("file {file} is in use here: try again"))),
            false => Ok(()),
        }
    }
}
