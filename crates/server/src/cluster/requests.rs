//! Requests to the other servers of the service.

use super::peers::{PeerClients, nonsense};
use crate::members::Membership;
use forebay_model::{Error, ErrorKind, Result, ServerId};
use forebay_wire::{PeerReply, PeerRequest, Reply, Request};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The other servers, as this one asks them.
pub(crate) struct Peers {
    own: ServerId,
    pub(crate) clients: PeerClients,
    members: Arc<dyn Membership>,
    /// Timeout of a request.
    patience: Duration,
}

impl Peers {
    pub(crate) fn new(
        own: ServerId,
        clients: PeerClients,
        members: Arc<dyn Membership>,
        patience: Duration,
    ) -> Peers {
        Peers { own, clients, members, patience }
    }

    /// All other servers.
    pub(crate) fn others(&self) -> Vec<ServerId> {
        self.members.members().servers().filter(|&server| server != self.own).collect()
    }

    /// Sends a request to a member.
    pub(crate) async fn ask(&self, server: ServerId, request: PeerRequest) -> Result<PeerReply> {
        self.request_within(server, request, self.patience).await
    }

    /// Sends a request to a member, with this timeout.
    pub(crate) async fn request_within(
        &self,
        server: ServerId,
        request: PeerRequest,
        patience: Duration,
    ) -> Result<PeerReply> {
        match self.clients.to(server)?.ask(Request::Peer(Box::new(request)), patience).await? {
            Reply::Peer(reply) => Ok(*reply),
            other => Err(nonsense(&other)),
        }
    }

    /// Sends requests to several other servers at the same time; the replies are in the order of the requests.
    pub(crate) async fn request_all(
        self: &Arc<Peers>,
        list: Vec<(ServerId, PeerRequest)>,
    ) -> Vec<Result<PeerReply>> {
        let mut tasks = JoinSet::new();
        let count = list.len();
        for (index, (server, request)) in list.into_iter().enumerate() {
            let peers = self.clone();
            tasks.spawn(async move { (index, peers.ask(server, request).await) });
        }
        let lost = || Error::new(ErrorKind::Io, "a request to another server was lost");
        let mut replies: Vec<Result<PeerReply>> = (0..count).map(|_| Err(lost())).collect();
        while let Some(done) = tasks.join_next().await {
            if let Ok((index, answer)) = done {
                replies[index] = answer;
            }
        }
        replies
    }
}
