//! Requests that could not be served at once: fetches what they need from other servers, and retries.

use super::Requests;
use crate::backing::BackingLayer;
use crate::caller::Caller;
use crate::cluster::{Blocked, RetryState, StripedFiles, Transactions, Undone, Vouching};
use forebay_model::{Error, ErrorKind, FileId, Result, Stamp};
use forebay_store::{Body, Carried, Facts, Obstacle, Op, Stopped, Store};
use forebay_wire::{Answer, PeerRequest, Reply, Request};
use std::sync::Arc;
use tokio::sync::MutexGuard;

/// Serves requests that other servers take part in.
pub(crate) struct Resolver {
    pub(crate) requests: Arc<Requests>,
    pub(crate) store: Arc<Store>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) striped: Arc<StripedFiles>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) vouching: Arc<Vouching>,
}

/// What is held from one attempt to the next.
struct Attempts<'a> {
    retry_state: RetryState,
    order: Option<[MutexGuard<'a, ()>; 2]>,
    /// A change of a file's bytes that other servers have prepared.
    reshaped: Option<(FileId, Stamp)>,
}

impl Resolver {
    /// Serves a blocked request, once what it needs has been fetched. `None` if it is unknown whether it was done: then
    /// there is no answer.
    pub(crate) async fn resolve(
        &self,
        mut caller: Caller,
        request: &Request,
        stop: Blocked,
    ) -> Option<Answer> {
        let retry_state = self.transactions.retry_state();
        let mut attempts = Attempts { retry_state, order: None, reshaped: None };
        let answer = self.attempt(&mut caller, request, stop, &mut attempts).await;
        self.end_prepared(&mut caller, &mut attempts).await;
        answer
    }

    async fn attempt<'a>(
        &'a self,
        caller: &mut Caller,
        request: &Request,
        mut stop: Blocked,
        attempts: &mut Attempts<'a>,
    ) -> Option<Answer> {
        loop {
            if let Blocked::Names(Obstacle::SeveralShards) = stop {
                // The coordinator may need the copies that are withdrawn.
                attempts.retry_state.end_withdrawals();
                return self.carry_out(caller, request).await;
            }
            let about_a_file = matches!(stop, Blocked::Order(_) | Blocked::Reshape(..));
            match (self.prepare_retry(caller, stop, attempts).await, request) {
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
                        && attempts.retry_state.has_time() => {}
                (Err(error), _) => return Some(Err(error)),
            }
            // It may wait for a device, and a blocked request is not urgent.
            match tokio::task::block_in_place(|| self.requests.handle(caller, request)) {
                Ok(reply) => return Some(Ok(reply)),
                Err(again) => stop = again,
            }
        }
    }

    /// Runs a transaction on the names of several servers, and builds the reply for the client.
    async fn carry_out(&self, caller: &Caller, request: &Request) -> Option<Answer> {
        let op = match operation(request) {
            Ok(op) => op,
            Err(error) => return Some(Err(error)),
        };
        if let Request::Link { file, .. } = request
            && !caller.session.holds(*file, caller.who.uid)
            && let Err(error) = self.transactions.demand_reach(&caller.who, *file).await
        {
            return Some(Err(error));
        }
        match self.transactions.run_transaction(caller.who.clone(), op).await {
            Ok(carried) => Some(self.put_result(request, carried).await),
            Err(Undone::Failed(error)) => Some(Err(error)),
            Err(Undone::Unknown) => None,
        }
    }

    async fn put_result(&self, request: &Request, carried: Carried) -> Answer {
        match (request, carried.linked) {
            (Request::Link { file, .. }, Some(inode)) => {
                let servers = match &inode.body {
                    Body::File { layout, .. } => layout.servers.clone(),
                    _ => Vec::new(),
                };
                let held = self.striped.gather(*file, &servers).await?;
                let facts =
                    Facts { size: held.size, touched: held.touched, buffered: held.buffered, subdirs: 0 };
                Ok(Reply::Attr(inode.attr(*file, &facts, self.store.data().times())))
            }
            _ => Ok(Reply::Done),
        }
    }

    /// Does what has to be done before the next attempt.
    async fn prepare_retry<'a>(
        &'a self,
        caller: &mut Caller,
        stop: Blocked,
        attempts: &mut Attempts<'a>,
    ) -> Result<()> {
        match stop {
            Blocked::Failed(error) => return Err(error),
            // A file named by its id that is missing existed once.
            Blocked::Names(obstacle) => {
                self.transactions.clear(obstacle, &mut attempts.retry_state).await.map_err(|error| {
                    match error.kind() {
                        ErrorKind::NotFound => Error::new(ErrorKind::Stale, error.to_string()),
                        _ => error,
                    }
                })?;
            }
            Blocked::Gather(file) => {
                let held = self.striped.gather_others(file).await?;
                caller.retry_context.held.insert(file, held);
            }
            Blocked::Shares(dir) => match self.store.names().settled_share(dir) {
                Ok(own) => {
                    let share = self.transactions.shares(dir, own).await?;
                    caller.retry_context.shares.insert(dir, share);
                }
                Err(Stopped::Obstacle(obstacle)) => {
                    self.transactions.clear(obstacle, &mut attempts.retry_state).await?;
                }
                Err(Stopped::Failed(error)) => return Err(error),
            },
            Blocked::Vouch(token) => self.vouching.have_vouched(caller, &token).await?,
            Blocked::Order(file) => {
                // The name leads to another file than in the last attempt: the prepared change was never made.
                self.end_prepared(caller, attempts).await;
                attempts.order = None;
                let end = self.striped.end(file).lock().await;
                attempts.order = Some([end, self.striped.order(file).lock().await]);
                caller.retry_context.ordered = Some(file);
            }
            Blocked::Reshape(file, change) => {
                self.striped.notify_reshaped(file).await?;
                self.layer.recover_from_backing(file).await?;
                let opening = self.striped.prepare_reshape(file, change).await?;
                attempts.reshaped = Some((file, opening.serial()));
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
    async fn end_prepared(&self, caller: &mut Caller, attempts: &mut Attempts<'_>) {
        if let Some((file, serial)) = attempts.reshaped.take() {
            // Without it the change cannot be decided any more.
            caller.retry_context.reshape = None;
            self.striped.end_reshape(file, serial).await;
        }
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
