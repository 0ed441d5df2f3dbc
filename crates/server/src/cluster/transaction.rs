//! Requests that could not be served at once: fetches what they need from other servers, and retries.

use super::nonsense;
use super::outcome::Blocked;
use crate::caller::Caller;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, FileId, Identity, Result, ServerId, Stamp};
use forebay_store::{
    AfterReply, Body, Carried, Facts, NameReply, NameRequest, Next, Obstacle, Op, Question, Share, Stopped,
    Withdrawal,
};
use forebay_wire::{Answer, PeerReply, PeerRequest, Reply, Request, variant_name};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::MutexGuard;
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
pub(crate) struct RetryState<'a> {
    deadline: Instant,
    pauses: u32,
    withdrawals: Vec<Withdrawal>,
    order: Option<[MutexGuard<'a, ()>; 2]>,
    /// A change of a file's bytes that other servers have prepared.
    reshaped: Option<(FileId, Stamp)>,
}

/// Serves a blocked request, once what it needs has been fetched. `None` if it is unknown whether it was done: then
/// there is no answer.
pub(crate) async fn resolve(
    service: &Arc<Service>,
    mut caller: Caller,
    request: &Request,
    stop: Blocked,
) -> Option<Answer> {
    let mut retry_state = service.retry_state();
    let answer = attempt(service, &mut caller, request, stop, &mut retry_state).await;
    service.end_prepared(&mut caller, &mut retry_state).await;
    answer
}

async fn attempt<'a>(
    service: &'a Arc<Service>,
    caller: &mut Caller,
    request: &Request,
    mut stop: Blocked,
    retry_state: &mut RetryState<'a>,
) -> Option<Answer> {
    loop {
        if let Blocked::Names(Obstacle::SeveralShards) = stop {
            // The coordinator may need the copies that are withdrawn.
            retry_state.withdrawals.clear();
            return carry_out(service, caller, request).await;
        }
        let about_a_file = matches!(stop, Blocked::Order(_) | Blocked::Reshape(..));
        match (service.prepare_retry(caller, stop, retry_state).await, request) {
            (Ok(()), _) => {}
            // A directory that the client knew was removed, and its path may lead to another by now.
            (Err(error), Request::Jump { path, .. })
                if matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotDirectory) =>
            {
                return Some(Ok(Reply::Elsewhere { dir: FileId::ROOT, rest: path.clone() }));
            }
            // The name led to a file that was removed: it is free, or leads to another by now.
            (Err(error), Request::Create { .. })
                if about_a_file
                    && matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound)
                    && Instant::now() < retry_state.deadline => {}
            (Err(error), _) => return Some(Err(error)),
        }
        // It may wait for a device, and a blocked request is not urgent.
        match tokio::task::block_in_place(|| service.handle(caller, request)) {
            Ok(reply) => return Some(Ok(reply)),
            Err(again) => stop = again,
        }
    }
}

/// Runs a transaction on the names of several servers, and builds the reply for the client.
async fn carry_out(service: &Arc<Service>, caller: &Caller, request: &Request) -> Option<Answer> {
    let op = match operation(request) {
        Ok(op) => op,
        Err(error) => return Some(Err(error)),
    };
    if let Request::Link { file, .. } = request
        && let Err(error) = service.demand_reach(caller, *file).await
    {
        return Some(Err(error));
    }
    match service.run_transaction(caller.who.clone(), op).await {
        Ok(carried) => Some(put_result(service, request, carried).await),
        Err(Undone::Failed(error)) => Some(Err(error)),
        Err(Undone::Unknown) => None,
    }
}

async fn put_result(service: &Arc<Service>, request: &Request, carried: Carried) -> Answer {
    match (request, carried.linked) {
        (Request::Link { file, .. }, Some(inode)) => {
            let servers = match &inode.body {
                Body::File { layout, .. } => layout.servers.clone(),
                _ => Vec::new(),
            };
            let held = service.striped.gather(*file, &servers).await?;
            let facts = Facts { size: held.size, touched: held.touched, buffered: held.buffered, subdirs: 0 };
            Ok(Reply::Attr(inode.attr(*file, &facts, service.store.data().times())))
        }
        _ => Ok(Reply::Done),
    }
}

fn operation(request: &Request) -> Result<Op> {
    Ok(match request.clone() {
        Request::Rename { dir, name, to_dir, to_name, mode } => {
            Op::Rename { dir, name, to_dir, to_name, mode }
        }
        Request::Link { file, dir, name } => Op::Link { file, dir, name },
        Request::Unlink { dir, name } => Op::Unlink { dir, name },
        Request::RemoveDir { dir, name } => Op::RemoveDir { dir, name },
        _ => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this request cannot be a transaction of several servers",
            ));
        }
    })
}

impl Service {
    pub(super) fn retry_state(&self) -> RetryState<'_> {
        let patience = self.config.times.peer + self.config.times.lease;
        let deadline = Instant::now() + patience;
        RetryState { deadline, pauses: 0, withdrawals: Vec::new(), order: None, reshaped: None }
    }

    /// Does what has to be done before the next attempt.
    async fn prepare_retry<'a>(
        self: &'a Arc<Service>,
        caller: &mut Caller,
        stop: Blocked,
        retry_state: &mut RetryState<'a>,
    ) -> Result<()> {
        match stop {
            Blocked::Failed(error) => return Err(error),
            // A file named by its id that is missing existed once.
            Blocked::Names(obstacle) => {
                self.clear(obstacle, retry_state).await.map_err(|error| match error.kind() {
                    ErrorKind::NotFound => Error::new(ErrorKind::Stale, error.to_string()),
                    _ => error,
                })?;
            }
            Blocked::Gather(file) => {
                let held = self.striped.gather_others(file).await?;
                caller.retry_context.held.insert(file, held);
            }
            Blocked::Shares(dir) => match self.store.names().settled_share(dir) {
                Ok(own) => {
                    let share = self.shares(dir, own).await?;
                    caller.retry_context.shares.insert(dir, share);
                }
                Err(Stopped::Obstacle(obstacle)) => self.clear(obstacle, retry_state).await?,
                Err(Stopped::Failed(error)) => return Err(error),
            },
            Blocked::Vouch(token) => self.have_vouched(caller, &token).await?,
            Blocked::Order(file) => {
                // The name leads to another file than in the last attempt: the prepared change was never made.
                self.end_prepared(caller, retry_state).await;
                retry_state.order = None;
                let end = self.striped.end(file).lock().await;
                retry_state.order = Some([end, self.striped.order(file).lock().await]);
                caller.retry_context.ordered = Some(file);
            }
            Blocked::Reshape(file, change) => {
                self.striped.notify_reshaped(file).await?;
                self.layer.recover_from_backing(file).await?;
                let opening = self.striped.prepare_reshape(file, change).await?;
                retry_state.reshaped = Some((file, opening.serial()));
                caller.retry_context.reshape = Some(Arc::new(opening));
            }
            Blocked::SetId(file) => {
                self.striped.notify_holders(file, &PeerRequest::HasSetId { file }).await?;
                caller.retry_context.set_id = true;
            }
        }
        Ok(())
    }

    /// Notifies other servers of the outcome of the change that they prepared for a request, if any.
    async fn end_prepared(self: &Arc<Service>, caller: &mut Caller, retry_state: &mut RetryState<'_>) {
        if let Some((file, serial)) = retry_state.reshaped.take() {
            // Without it the change cannot be decided any more.
            caller.retry_context.reshape = None;
            self.striped.end_reshape(file, serial).await;
        }
    }

    /// Removes an obstacle in the namespace.
    pub(super) async fn clear<'a>(
        self: &'a Arc<Service>,
        obstacle: Obstacle,
        retry_state: &mut RetryState<'a>,
    ) -> Result<()> {
        if Instant::now() > retry_state.deadline {
            return Err(Error::new(ErrorKind::Busy, obstacle.to_string()));
        }
        if let Obstacle::Copies(dir) = obstacle {
            // From now on no server gets a copy, and existing copies are recalled.
            let mut withdrawal = self.store.names().withdraw(dir);
            let mut recalls = JoinSet::new();
            for server in self.peers.others() {
                recalls.spawn(self.clone().recall(server, dir));
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
            AfterReply::GoOn if self.leases.hold(server) => {}
            AfterReply::GoOn | AfterReply::Pause => self.pause(retry_state).await,
        }
        Ok(())
    }

    async fn pause(&self, retry_state: &mut RetryState<'_>) {
        let longest = LONGEST_PAUSE.min(PAUSE * 2_u32.saturating_pow(retry_state.pauses));
        retry_state.pauses = (retry_state.pauses + 1).min(16);
        // Jitter, so that two requests in each other's way do not stay in step.
        let jitter = self.store.data().now().0 % 8;
        sleep(longest * (8 + u32::try_from(jitter).unwrap_or(0)) / 12).await;
    }

    /// Sends a question about names to another server, and applies its answer.
    pub(super) async fn put(self: &Arc<Service>, question: Question) -> Result<AfterReply> {
        let reply = self.request_names(question.server, question.ask.clone()).await?;
        let outcome = self.store.names().take_reply(question, reply)?;
        self.grace.take_orphaned(&self.store, &self.opens);
        Ok(outcome)
    }

    /// Runs a transaction on the names of several servers.
    pub(super) async fn run_transaction(
        self: &Arc<Service>,
        who: Identity,
        op: Op,
    ) -> Result<Carried, Undone> {
        let _place = self.tasks.acquire().await.map_err(|_| Error::from(ErrorKind::Busy))?;
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
                    let service = self.clone();
                    tokio::spawn(async move { service.announce_end(notify).await });
                    return Ok(result?);
                }
            }
        }
    }

    /// Sends questions to several servers at the same time; the answers are in the order of the questions.
    async fn request_each(self: &Arc<Service>, list: Vec<(ServerId, NameRequest)>) -> Vec<Result<NameReply>> {
        let mut tasks = JoinSet::new();
        let count = list.len();
        for (index, (server, ask)) in list.into_iter().enumerate() {
            let service = self.clone();
            tasks.spawn(async move { (index, service.request_names(server, ask).await) });
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
    pub(super) async fn request_names(
        self: &Arc<Service>,
        server: ServerId,
        ask: NameRequest,
    ) -> Result<NameReply> {
        if server == self.config.server {
            return self.answer_names(server, &ask).await;
        }
        let times = self.config.times;
        let request = PeerRequest::Names { ask: ask.encode() };
        decode_names(self.peers.request_within(server, request, times.peer + times.lease).await?)
    }

    /// Has another server run a transaction.
    async fn run_transaction_at(
        self: &Arc<Service>,
        server: ServerId,
        ask: &NameRequest,
    ) -> Result<Result<NameReply>, Undone> {
        let times = self.config.times;
        let request = Request::Peer(Box::new(PeerRequest::Carry { ask: ask.encode() }));
        // Longer than the other server's own timeout, so that it can report the failure.
        let patience = (times.peer + times.lease) * 2;
        match self.peers.clients.to(server)?.request_once(&request, patience).await {
            Some(Ok(Reply::Peer(reply))) => Ok(decode_names(*reply)),
            Some(Ok(other)) => Ok(Err(nonsense(&other))),
            Some(Err(error)) => Ok(Err(error)),
            None => Err(Undone::Unknown),
        }
    }

    /// Fails unless the caller could have reached a file of another authority.
    async fn demand_reach(self: &Arc<Service>, caller: &Caller, file: FileId) -> Result<()> {
        if caller.session.holds(file, caller.who.uid) {
            return Ok(());
        }
        let authority = self.members.members().authority(file);
        match self.request_names(authority, NameRequest::Reach(caller.who.clone(), file)).await? {
            NameReply::Done => Ok(()),
            other => Err(nonsense(&other)),
        }
    }

    /// Notifies participants of the outcome of a transaction. A server that cannot be reached is notified later.
    pub(super) async fn announce_end(self: &Arc<Service>, list: Vec<(ServerId, NameRequest)>) {
        for (server, ask) in list {
            let NameRequest::Finish(intent, _) = ask else { continue };
            match self.request_names(server, ask).await {
                Ok(NameReply::Done) => {
                    if let Err(error) = self.store.names().told(server, intent) {
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
    async fn shares(self: &Arc<Service>, dir: FileId, own: Share) -> Result<Share> {
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
        PeerReply::Names { told } => NameReply::decode(&told),
        other => Err(nonsense(&other)),
    }
}

impl Service {
    /// Answers the question of a server, possibly this one, once nothing is in the way.
    pub(super) fn answer_names<'a>(
        self: &'a Arc<Service>,
        from: ServerId,
        ask: &'a NameRequest,
    ) -> Answering<'a> {
        Box::pin(async move {
            if let NameRequest::Carry(who, op) = ask {
                return match self.run_transaction(who.clone(), op.clone()).await {
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
