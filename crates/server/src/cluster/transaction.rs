//! Transactions on the names of several servers, and the questions about names that servers ask each other.

use super::{DirLeases, Peers, TASKS, nonsense};
use crate::file_homes::FileHomes;
use crate::opens::Opens;
use crate::orphans::OrphanGrace;
use crate::per_user::{UserBounds, UserPlace, UserPlaces};
use forebay_model::{Error, ErrorKind, FileId, Identity, Result, ServerId, Uid};
use forebay_store::{
    AfterReply, Carried, NameReply, NameRequest, Next, Obstacle, Op, Question, Share, Stopped, Store,
    Withdrawal,
};
use forebay_wire::{PeerReply, PeerRequest, Reply, Request, variant_name};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The first pause before a retry while another request is in the way; later pauses are longer.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Why an operation of several servers was not done.
pub(crate) enum Undone {
    /// It is impossible, or impossible now.
    Failed(Error),
    /// It is unknown whether it was done.
    Unknown,
}

impl From<Error> for Undone {
    fn from(error: Error) -> Undone {
        Undone::Failed(error)
    }
}

/// What is held from one attempt to the next, and the deadline for further attempts.
pub(crate) struct RetryState {
    deadline: Instant,
    pauses: u32,
    withdrawals: Vec<Withdrawal>,
}

impl RetryState {
    /// Whether there is time for another attempt.
    pub(crate) fn has_time(&self) -> bool {
        Instant::now() < self.deadline
    }

    /// Lets other servers have the copies again that were withdrawn.
    pub(crate) fn end_withdrawals(&mut self) {
        self.withdrawals.clear();
    }
}

/// Changes of names on several servers, and what their questions to each other need.
pub(crate) struct Transactions {
    own: ServerId,
    store: Arc<Store>,
    homes: Arc<FileHomes>,
    peers: Arc<Peers>,
    leases: Arc<DirLeases>,
    opens: Arc<Opens>,
    grace: Arc<OrphanGrace>,
    /// Permits for transactions of this server's clients.
    permits: Permits,
    /// Permits for those that other servers pass on. They are separate, so that two servers that pass transactions on to
    /// each other never wait for each other's permits.
    carried: Permits,
    /// Timeout of a request about names, and of an operation that stops and goes on.
    patience: Duration,
}

/// Permits for transactions: a shared one, and one of the user.
struct Permits {
    shared: Semaphore,
    users: Arc<UserPlaces>,
}

impl Permits {
    fn new(users: Arc<UserPlaces>) -> Permits {
        Permits { shared: Semaphore::new(TASKS), users }
    }

    /// Takes the user's permit first: waiting for it delays no other user.
    async fn take(&self, user: Uid, patience: Duration) -> Result<(UserPlace, SemaphorePermit<'_>)> {
        let own = self.users.wait(user, patience).await?;
        let shared = self.shared.acquire().await.map_err(|_| Error::from(ErrorKind::Busy))?;
        Ok((own, shared))
    }
}

/// What transactions use.
pub(crate) struct TransactionParts {
    pub(crate) own: ServerId,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) leases: Arc<DirLeases>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) grace: Arc<OrphanGrace>,
    pub(crate) users: Arc<UserBounds>,
    pub(crate) patience: Duration,
}

impl Transactions {
    pub(crate) fn new(parts: TransactionParts) -> Transactions {
        let TransactionParts { own, store, homes, peers, leases, opens, grace, users, patience } = parts;
        let permits = Permits::new(users.transactions.clone());
        let carried = Permits::new(users.carried.clone());
        Transactions { own, store, homes, peers, leases, opens, grace, permits, carried, patience }
    }

    pub(crate) fn retry_state(&self) -> RetryState {
        RetryState { deadline: Instant::now() + self.patience, pauses: 0, withdrawals: Vec::new() }
    }

    /// Removes an obstacle in the namespace.
    pub(crate) async fn clear(
        self: &Arc<Transactions>,
        obstacle: Obstacle,
        retry_state: &mut RetryState,
    ) -> Result<()> {
        if Instant::now() > retry_state.deadline {
            return Err(Error::new(ErrorKind::Busy, obstacle.to_string()));
        }
        if let Obstacle::Copies(dir) = obstacle {
            // From now on no server gets a copy, and existing copies are recalled.
            let mut withdrawal = self.store.names().withdraw(dir);
            let mut recalls = JoinSet::new();
            for server in self.peers.others() {
                recalls.spawn(self.leases.clone().recall(server, dir));
            }
            while recalls.join_next().await.is_some() {}
            withdrawal.complete();
            retry_state.withdrawals.push(withdrawal);
            return Ok(());
        }
        // The request in the way may itself wait for a copy.
        retry_state.withdrawals.clear();
        let Some(question) = self.store.names().question(&obstacle) else {
            self.pause(retry_state).await;
            return Ok(());
        };
        let server = question.server;
        match self.put(question).await? {
            AfterReply::GoOn if self.leases.table.hold(server) => {}
            AfterReply::GoOn | AfterReply::Pause => self.pause(retry_state).await,
        }
        Ok(())
    }

    async fn pause(&self, retry_state: &mut RetryState) {
        let longest = LONGEST_PAUSE.min(PAUSE * 2_u32.saturating_pow(retry_state.pauses));
        retry_state.pauses = (retry_state.pauses + 1).min(16);
        // Jitter, so that two requests in each other's way do not stay in step.
        let jitter = self.store.data().now().0 % 8;
        sleep(longest * (8 + u32::try_from(jitter).unwrap_or(0)) / 12).await;
    }

    /// Sends a question about names to another server, and applies its answer.
    pub(crate) async fn put(self: &Arc<Transactions>, question: Question) -> Result<AfterReply> {
        let reply = self.request_names(question.server, question.ask.clone()).await?;
        let outcome = self.store.names().take_reply(question, reply)?;
        self.grace.take_orphaned(&self.store, &self.opens);
        Ok(outcome)
    }

    /// Runs a transaction on the names of several servers.
    pub(crate) async fn run_transaction(
        self: &Arc<Transactions>,
        who: Identity,
        op: Op,
    ) -> Result<Carried, Undone> {
        let _permit = self.permits.take(who.uid, self.patience).await?;
        self.run_permitted(who, op).await
    }

    async fn run_permitted(self: &Arc<Transactions>, who: Identity, op: Op) -> Result<Carried, Undone> {
        let mut task = self.store.names().task(who, op, self.store.data().now());
        let (mut replies, mut retry_state) = (Vec::new(), self.retry_state());
        loop {
            match task.next(self.store.names(), std::mem::take(&mut replies)) {
                Next::NameRequest(list) => match &list[..] {
                    [(server, ask @ NameRequest::Carry(..))] => {
                        replies = vec![self.run_transaction_at(*server, ask).await?];
                    }
                    _ => replies = self.request_each(list).await,
                },
                Next::Obstacle(obstacle) => self.clear(obstacle, &mut retry_state).await?,
                Next::Done(result, notify) => {
                    self.grace.take_orphaned(&self.store, &self.opens);
                    let transactions = self.clone();
                    tokio::spawn(async move { transactions.announce_end(notify).await });
                    return Ok(result?);
                }
            }
        }
    }

    /// Sends questions to several servers at the same time; the answers are in the order of the questions.
    async fn request_each(
        self: &Arc<Transactions>,
        list: Vec<(ServerId, NameRequest)>,
    ) -> Vec<Result<NameReply>> {
        let mut tasks = JoinSet::new();
        let count = list.len();
        for (index, (server, ask)) in list.into_iter().enumerate() {
            let transactions = self.clone();
            tasks.spawn(async move { (index, transactions.request_names(server, ask).await) });
        }
        let lost = || Error::new(ErrorKind::Io, "a request to another server was lost");
        let mut replies: Vec<Result<NameReply>> = (0..count).map(|_| Err(lost())).collect();
        while let Some(done) = tasks.join_next().await {
            if let Ok((index, answer)) = done {
                replies[index] = answer;
            }
        }
        replies
    }

    /// Sends a question about names to a server, possibly this one.
    pub(crate) async fn request_names(
        self: &Arc<Transactions>,
        server: ServerId,
        ask: NameRequest,
    ) -> Result<NameReply> {
        if server == self.own {
            return self.answer_names(server, &ask).await;
        }
        let request = PeerRequest::Names { request: ask.encode() };
        decode_names(self.peers.request_within(server, request, self.patience).await?)
    }

    /// Has another server run a transaction.
    async fn run_transaction_at(
        self: &Arc<Transactions>,
        server: ServerId,
        ask: &NameRequest,
    ) -> Result<Result<NameReply>, Undone> {
        let request = Request::Peer(Box::new(PeerRequest::Forward { request: ask.encode() }));
        // Longer than the other server's own timeout, so that it can report the failure.
        let patience = self.patience * 2;
        match self.peers.clients.to(server)?.request_once(&request, patience).await {
            Some(Ok(Reply::Peer(reply))) => Ok(decode_names(*reply)),
            Some(Ok(other)) => Ok(Err(nonsense(&other))),
            Some(Err(error)) => Ok(Err(error)),
            None => Err(Undone::Unknown),
        }
    }

    /// Fails unless this user could have reached a file of another authority.
    pub(crate) async fn demand_reach(self: &Arc<Transactions>, who: &Identity, file: FileId) -> Result<()> {
        let authority = self.homes.authority(file);
        match self.request_names(authority, NameRequest::Reach(who.clone(), file)).await? {
            NameReply::Done => Ok(()),
            other => Err(nonsense(&other)),
        }
    }

    /// Notifies participants of the outcome of a transaction. A server that cannot be reached is notified later.
    pub(crate) async fn announce_end(self: &Arc<Transactions>, list: Vec<(ServerId, NameRequest)>) {
        for (server, ask) in list {
            let NameRequest::Finish(intent, _) = ask else { continue };
            match self.request_names(server, ask).await {
                Ok(NameReply::Done) => {
                    if let Err(error) = self.store.names().acknowledged(server, intent) {
                        tracing::error!(%error, "cannot record that another server has finished its part of a transaction");
                    }
                }
                Ok(reply) => {
                    tracing::error!(%server, reply = variant_name(&reply), "another server did not finish its part of a transaction");
                }
                Err(error) => {
                    tracing::debug!(%server, %error, "cannot notify another server of the outcome of a transaction; it is notified later");
                }
            }
        }
        self.grace.take_orphaned(&self.store, &self.opens);
    }

    /// The counts of all servers for a directory; a server that is unreachable or has lost its store is left out.
    pub(crate) async fn shares(self: &Arc<Transactions>, dir: FileId, own: Share) -> Result<Share> {
        let mut total = own;
        let list =
            self.peers.others().into_iter().map(|server| (server, PeerRequest::Share { dir })).collect();
        for answer in self.peers.request_all(list).await {
            match answer {
                Ok(PeerReply::Share { subdirs, touched }) => total = total.and(Share { subdirs, touched }),
                Ok(other) => return Err(nonsense(&other)),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Unreachable | ErrorKind::Io | ErrorKind::BadStore
                    ) =>
                {
                    tracing::debug!(%dir, %error, "a directory's attributes are incomplete");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }
}

fn decode_names(reply: PeerReply) -> Result<NameReply> {
    match reply {
        PeerReply::Names { reply } => NameReply::decode(&reply),
        other => Err(nonsense(&other)),
    }
}

impl Transactions {
    /// Answers the question of a server, possibly this one, once nothing is in the way.
    pub(crate) fn answer_names<'a>(
        self: &'a Arc<Transactions>,
        from: ServerId,
        ask: &'a NameRequest,
    ) -> Answering<'a> {
        Box::pin(async move {
            if let NameRequest::Carry(who, op) = ask {
                let _permit = self.carried.take(who.uid, self.patience).await?;
                return match self.run_permitted(who.clone(), op.clone()).await {
                    Ok(carried) => Ok(NameReply::Carried(carried)),
                    Err(Undone::Failed(error)) => Err(error),
                    // Only the coordinator receives this request, and it does not forward it.
                    Err(Undone::Unknown) => Err(nonsense(ask)),
                };
            }
            let mut retry_state = self.retry_state();
            loop {
                let answer = self.store.names().answer(from, ask);
                self.grace.take_orphaned(&self.store, &self.opens);
                match answer {
                    Ok(reply) => return Ok(reply),
                    Err(Stopped::Obstacle(obstacle)) => self.clear(obstacle, &mut retry_state).await?,
                    Err(Stopped::Failed(error)) => return Err(error),
                }
            }
        })
    }
}

/// A pending answer. It is boxed, because answering may lead to questions to this very server.
type Answering<'a> = Pin<Box<dyn Future<Output = Result<NameReply>> + Send + 'a>>;
