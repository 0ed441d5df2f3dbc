//! What is done about a request that could not be served at once.

use super::nonsense;
use super::stop::Stop;
use crate::service::{Caller, Service};
use forebay_model::{Error, ErrorKind, FileId, Identity, Result, ServerId, Stamp};
use forebay_store::{
    Ask, Body, Carried, Facts, Heard, Next, Obstacle, Op, Question, Share, Stopped, Told, Withdrawal,
};
use forebay_wire::{Answer, Held, PeerReply, PeerRequest, Reply, Request};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::MutexGuard;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Before something is tried again that somebody else is at, the first time; then longer.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Why something that concerns several servers was not done.
pub(crate) enum Undone {
    /// It cannot be, or not now.
    Failed(Error),
    /// Nobody knows whether it was.
    Unknown,
}

impl From<Error> for Undone {
    fn from(error: Error) -> Undone {
        Undone::Failed(error)
    }
}

/// What is held from one attempt to the next, and how long there will be another.
pub(crate) struct Aids<'a> {
    deadline: Instant,
    pauses: u32,
    withdrawals: Vec<Withdrawal>,
    order: Option<[MutexGuard<'a, ()>; 2]>,
    /// A change of a file's bytes that others have prepared.
    reshaped: Option<(FileId, Stamp)>,
}

/// Serves a request that has stopped, once what it needs is there. `None` if nobody knows whether it was done: then
/// there is nothing to answer.
pub(crate) async fn resolve(
    service: &Arc<Service>,
    mut caller: Caller,
    request: &Request,
    stop: Stop,
) -> Option<Answer> {
    let mut aids = service.aids();
    let answer = attempt(service, &mut caller, request, stop, &mut aids).await;
    if let Some((file, serial)) = aids.reshaped {
        // Without it nobody can decide any more.
        caller.helps.reshape = None;
        service.end_reshape(file, serial).await;
    }
    answer
}

async fn attempt<'a>(
    service: &'a Arc<Service>,
    caller: &mut Caller,
    request: &Request,
    mut stop: Stop,
    aids: &mut Aids<'a>,
) -> Option<Answer> {
    loop {
        if let Stop::Names(Obstacle::Several) = stop {
            // Whoever is asked now may need what is withdrawn.
            aids.withdrawals.clear();
            return carry_out(service, caller, request).await;
        }
        match (service.deal(caller, stop, aids).await, request) {
            (Ok(()), _) => {}
            // A directory that the client knew is gone, and its path may lead to another by now.
            (Err(error), Request::Jump { path, .. })
                if matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotDirectory) =>
            {
                return Some(Ok(Reply::Elsewhere { dir: FileId::ROOT, rest: path.clone() }));
            }
            (Err(error), _) => return Some(Err(error)),
        }
        // It may have to wait for a device, and whoever got here is in no hurry.
        match tokio::task::block_in_place(|| service.handle(caller, request)) {
            Ok(reply) => return Some(Ok(reply)),
            Err(again) => stop = again,
        }
    }
}

/// Carries out what concerns the names of several servers, and puts it as the client expects it.
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
    match service.carry(caller.who.clone(), op).await {
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
            let held = service.gather(*file, &servers).await?;
            let facts = Facts { size: held.size, touched: held.touched, buffered: held.buffered, subdirs: 0 };
            Ok(Reply::Attr(inode.attr(*file, &facts)))
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
        _ => return Err(Error::new(ErrorKind::Unsupported, "this cannot be done by several servers")),
    })
}

impl Service {
    pub(super) fn aids(&self) -> Aids<'_> {
        let patience = self.config.times.peer + self.config.times.lease;
        let deadline = Instant::now() + patience;
        Aids { deadline, pauses: 0, withdrawals: Vec::new(), order: None, reshaped: None }
    }

    /// Does what has to be done before the next attempt.
    async fn deal<'a>(
        self: &'a Arc<Service>,
        caller: &mut Caller,
        stop: Stop,
        aids: &mut Aids<'a>,
    ) -> Result<()> {
        match stop {
            Stop::Failed(error) => return Err(error),
            // What was named by id and is not there was there once.
            Stop::Names(obstacle) => {
                self.clear(obstacle, aids).await.map_err(|error| match error.kind() {
                    ErrorKind::NotFound => Error::new(ErrorKind::Stale, error.to_string()),
                    _ => error,
                })?;
            }
            Stop::Gather(file) => {
                let held = self.gather_others(file).await?;
                caller.helps.held.insert(file, held);
            }
            Stop::Shares(dir) => match self.store.names().settled_share(dir) {
                Ok(own) => {
                    let share = self.shares(dir, own).await?;
                    caller.helps.shares.insert(dir, share);
                }
                Err(Stopped::Obstacle(obstacle)) => self.clear(obstacle, aids).await?,
                Err(Stopped::Failed(error)) => return Err(error),
            },
            Stop::Vouch(token) => self.have_vouched(caller, &token).await?,
            Stop::Order(file) => {
                let end = self.afar.end(file).lock().await;
                aids.order = Some([end, self.afar.order(file).lock().await]);
                caller.helps.ordered = true;
            }
            Stop::Reshape(file, change) => {
                let opening = self.prepare_reshape(file, change).await?;
                aids.reshaped = Some((file, opening.serial()));
                caller.helps.reshape = Some(Arc::new(opening));
            }
            Stop::SetId(file) => {
                self.tell_holders(file, &PeerRequest::HasSetId { file }).await?;
                caller.helps.set_id = true;
            }
        }
        Ok(())
    }

    /// Gets something about names out of the way.
    pub(super) async fn clear<'a>(
        self: &'a Arc<Service>,
        obstacle: Obstacle,
        aids: &mut Aids<'a>,
    ) -> Result<()> {
        if Instant::now() > aids.deadline {
            return Err(Error::new(ErrorKind::Busy, obstacle.to_string()));
        }
        if let Obstacle::Copies(dir) = obstacle {
            // From now on nobody gets a copy; those that are out come back.
            let mut withdrawal = self.store.names().withdraw(dir);
            let mut recalls = JoinSet::new();
            for server in self.others() {
                recalls.spawn(self.clone().recall(server, dir));
            }
            while recalls.join_next().await.is_some() {}
            withdrawal.complete();
            aids.withdrawals.push(withdrawal);
            return Ok(());
        }
        // Whoever is in the way may wait for a copy himself.
        aids.withdrawals.clear();
        let Some(question) = self.store.names().question(&obstacle) else {
            self.pause(aids).await;
            return Ok(());
        };
        let server = question.server;
        match self.put(question).await? {
            Heard::GoOn if self.leases.hold(server) => {}
            Heard::GoOn | Heard::Pause => self.pause(aids).await,
        }
        Ok(())
    }

    async fn pause(&self, aids: &mut Aids<'_>) {
        let longest = LONGEST_PAUSE.min(PAUSE * 2_u32.saturating_pow(aids.pauses));
        aids.pauses = (aids.pauses + 1).min(16);
        // Two that are in each other's way must not keep in step.
        let jitter = self.store.data().now().0 % 8;
        sleep(longest * (8 + u32::try_from(jitter).unwrap_or(0)) / 12).await;
    }

    /// Asks another server something about names, and takes the answer.
    pub(super) async fn put(self: &Arc<Service>, question: Question) -> Result<Heard> {
        let told = self.ask_names(question.server, question.ask.clone()).await?;
        let heard = self.store.names().hear(question, told)?;
        self.take_orphaned();
        Ok(heard)
    }

    /// Has something done that concerns the names of several servers.
    pub(super) async fn carry(self: &Arc<Service>, who: Identity, op: Op) -> Result<Carried, Undone> {
        let _place = self.tasks.acquire().await.map_err(|_| Error::from(ErrorKind::Busy))?;
        let mut task = self.store.names().task(who, op, self.store.data().now());
        let (mut told, mut aids) = (Vec::new(), self.aids());
        loop {
            match task.next(self.store.names(), std::mem::take(&mut told)) {
                Next::Ask(list) => match &list[..] {
                    [(server, ask @ Ask::Carry(..))] => told = vec![self.have_carried(*server, ask).await?],
                    _ => told = self.ask_each(list).await,
                },
                Next::Obstacle(obstacle) => self.clear(obstacle, &mut aids).await?,
                Next::Done(result, tell) => {
                    self.take_orphaned();
                    let service = self.clone();
                    tokio::spawn(async move { service.tell_ends(tell).await });
                    return Ok(result?);
                }
            }
        }
    }

    /// Asks several servers at the same time; the answers come in the order of the questions.
    async fn ask_each(self: &Arc<Service>, list: Vec<(ServerId, Ask)>) -> Vec<Result<Told>> {
        let mut tasks = JoinSet::new();
        let count = list.len();
        for (index, (server, ask)) in list.into_iter().enumerate() {
            let service = self.clone();
            tasks.spawn(async move { (index, service.ask_names(server, ask).await) });
        }
        let lost = || Error::new(ErrorKind::Io, "a question to another server was lost");
        let mut told: Vec<Result<Told>> = (0..count).map(|_| Err(lost())).collect();
        while let Some(done) = tasks.join_next().await {
            if let Ok((index, answer)) = done {
                told[index] = answer;
            }
        }
        told
    }

    /// Asks a server, maybe this one, something about names.
    pub(super) async fn ask_names(self: &Arc<Service>, server: ServerId, ask: Ask) -> Result<Told> {
        if server == self.config.server {
            return self.answer_names(server, &ask).await;
        }
        let times = self.config.times;
        let request = PeerRequest::Names { ask: ask.encode() };
        told(self.ask_for(server, request, times.peer + times.lease).await?)
    }

    /// Has another server carry something out.
    async fn have_carried(self: &Arc<Service>, server: ServerId, ask: &Ask) -> Result<Result<Told>, Undone> {
        let times = self.config.times;
        let request = Request::Peer(Box::new(PeerRequest::Carry { ask: ask.encode() }));
        // The other has to give up first, and say so.
        let patience = (times.peer + times.lease) * 2;
        match self.lines.to(server)?.ask_once(&request, patience).await {
            Some(Ok(Reply::Peer(reply))) => Ok(told(*reply)),
            Some(Ok(other)) => Ok(Err(nonsense(&other))),
            Some(Err(error)) => Ok(Err(error)),
            None => Err(Undone::Unknown),
        }
    }

    /// Fails unless the caller could have come to a file of another server.
    async fn demand_reach(self: &Arc<Service>, caller: &Caller, file: FileId) -> Result<()> {
        if caller.session.holds(file, caller.who.uid) {
            return Ok(());
        }
        let authority = self.members.members().authority(file);
        match self.ask_names(authority, Ask::Reach(caller.who.clone(), file)).await? {
            Told::Done => Ok(()),
            other => Err(nonsense(&other)),
        }
    }

    /// Tells others what became of something they prepared for. Who cannot be told is told later.
    pub(super) async fn tell_ends(self: &Arc<Service>, list: Vec<(ServerId, Ask)>) {
        for (server, ask) in list {
            let Ask::Finish(intent, _) = ask else { continue };
            match self.ask_names(server, ask).await {
                Ok(Told::Done) => {
                    if let Err(error) = self.store.names().told(server, intent) {
                        tracing::error!(%error, "that another server has finished could not be noted");
                    }
                }
                Ok(told) => {
                    tracing::error!(%server, ?told, "another server does not finish what it prepared");
                }
                Err(error) => {
                    tracing::debug!(%server, %error, "another server will be told later what to finish");
                }
            }
        }
        self.take_orphaned();
    }

    /// Files that lost their last name go the way of all such.
    pub(crate) fn take_orphaned(&self) {
        for file in self.store.names().take_orphaned() {
            self.grace.orphaned(&self.opens, file);
        }
    }

    /// All other servers.
    pub(crate) fn others(&self) -> Vec<ServerId> {
        self.members.members().servers().filter(|&server| server != self.config.server).collect()
    }

    /// What all servers count for a directory; one that cannot be reached, or has lost its store, is left out.
    async fn shares(self: &Arc<Service>, dir: FileId, own: Share) -> Result<Share> {
        let mut total = own;
        let list = self.others().into_iter().map(|server| (server, PeerRequest::Share { dir })).collect();
        for answer in self.ask_all(list).await {
            match answer {
                Ok(PeerReply::Share { subdirs, touched }) => total = total.and(Share { subdirs, touched }),
                Ok(other) => return Err(nonsense(&other)),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Unreachable | ErrorKind::Io | ErrorKind::BadStore
                    ) =>
                {
                    tracing::debug!(%dir, %error, "a directory's attributes are not complete");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    /// Asks several other servers at the same time; the answers come in the order of the questions.
    pub(crate) async fn ask_all(
        self: &Arc<Service>,
        list: Vec<(ServerId, PeerRequest)>,
    ) -> Vec<Result<PeerReply>> {
        let mut tasks = JoinSet::new();
        let count = list.len();
        for (index, (server, request)) in list.into_iter().enumerate() {
            let service = self.clone();
            tasks.spawn(async move { (index, service.ask(server, request).await) });
        }
        let lost = || Error::new(ErrorKind::Io, "a question to another server was lost");
        let mut told: Vec<Result<PeerReply>> = (0..count).map(|_| Err(lost())).collect();
        while let Some(done) = tasks.join_next().await {
            if let Ok((index, answer)) = done {
                told[index] = answer;
            }
        }
        told
    }

    /// What these servers hold of a file, all together; this one may be among them.
    pub(super) async fn gather(self: &Arc<Service>, file: FileId, servers: &[ServerId]) -> Result<Held> {
        let mut total = Held::default();
        if servers.contains(&self.config.server) {
            total = self.held(file)?;
        }
        let others = servers.iter().filter(|&&server| server != self.config.server);
        let list = others.map(|&server| (server, PeerRequest::Facts { file, closed: false })).collect();
        for answer in self.ask_all(list).await {
            match answer? {
                PeerReply::Facts(held) => total = and(total, held),
                other => return Err(nonsense(&other)),
            }
        }
        Ok(total)
    }
}

fn told(reply: PeerReply) -> Result<Told> {
    match reply {
        PeerReply::Names { told } => Told::decode(&told),
        other => Err(nonsense(&other)),
    }
}

/// What two servers hold of a file together.
pub(crate) fn and(one: Held, other: Held) -> Held {
    Held {
        size: one.size.max(other.size),
        touched: one.touched.max(other.touched),
        buffered: one.buffered.saturating_add(other.buffered),
    }
}

impl Service {
    /// Answers a server, maybe this one, once nothing is in the way.
    pub(super) fn answer_names<'a>(self: &'a Arc<Service>, from: ServerId, ask: &'a Ask) -> Answering<'a> {
        Box::pin(async move {
            if let Ask::Carry(who, op) = ask {
                return match self.carry(who.clone(), op.clone()).await {
                    Ok(carried) => Ok(Told::Carried(carried)),
                    Err(Undone::Failed(error)) => Err(error),
                    // Only who coordinates is asked to carry something out, and he asks nobody else to.
                    Err(Undone::Unknown) => Err(nonsense(ask)),
                };
            }
            let mut aids = self.aids();
            loop {
                let answer = self.store.names().answer(from, ask);
                self.take_orphaned();
                match answer {
                    Ok(told) => return Ok(told),
                    Err(Stopped::Obstacle(obstacle)) => self.clear(obstacle, &mut aids).await?,
                    Err(Stopped::Failed(error)) => return Err(error),
                }
            }
        })
    }
}

/// An answer in the making. Named, because answering may lead to questions to this very server.
type Answering<'a> = Pin<Box<dyn Future<Output = Result<Told>> + Send + 'a>>;
