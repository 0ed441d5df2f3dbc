//! Background work between servers: outcomes of transactions, after a start and whenever a server was unreachable.
//!
//! A server that starts first queries the outcome of what an earlier run had prepared. It serves clients when it knows,
//! or when the servers that know are unreachable: then a request that finds an undecided change queries the outcome,
//! and fails with the name of the server that does not answer.

use super::{JoinState, LossSearch, StripedFiles, Transactions};
use crate::backing::Backing;
use crate::lifecycle::{Lifecycle, stopped};
use crate::opens::Opens;
use forebay_model::{FileId, Result};
use forebay_store::{Obstacle, Store};
use forebay_wire::PeerRequest;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Interval of retries.
const AGAIN: Duration = Duration::from_millis(500);
/// The same while clients wait.
const SOON: Duration = Duration::from_millis(20);

/// What the background work uses.
pub(crate) struct Tidy {
    pub(crate) store: Arc<Store>,
    pub(crate) striped: Arc<StripedFiles>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) backing: Option<Arc<Backing>>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) losses: Arc<LossSearch>,
    pub(crate) life: Arc<Lifecycle>,
    /// How long clients wait for the outcome of changes after a start.
    pub(crate) patience: Duration,
}

/// Queries the outcome of what an earlier run of this server had prepared; clients wait for that, but not for ever.
pub(crate) async fn resolve_first(tidy: Arc<Tidy>) {
    let (names, reshapes) = (tidy.store.names(), tidy.store.reshapes());
    let (intents, changes) = (names.prepared(), reshapes.all_pending());
    // Changes that other servers prepare meanwhile need not be waited for.
    let is_open = || {
        names.prepared().iter().any(|intent| intents.contains(intent))
            || reshapes.all_pending().iter().any(|change| changes.contains(change))
    };
    let resolved = async {
        while is_open() {
            tidy.tidy_names().await;
            tidy.striped.tidy_reshapes().await;
            if is_open() {
                sleep(SOON).await;
            }
        }
    };
    if timeout(tidy.patience, resolved).await.is_err() {
        tracing::warn!("the outcome of some changes is unknown: the servers that know it do not answer");
    }
    tidy.life.open_doors();
}

/// Persists sizes of striped files, reaps them, and exchanges outcomes of transactions.
pub(crate) async fn work(tidy: Arc<Tidy>) {
    let mut stopping = tidy.life.stopping();
    loop {
        let due = {
            let mut pending_work = tidy.striped.queue.pending_work();
            (std::mem::take(&mut pending_work.persist_size), std::mem::take(&mut pending_work.reap))
        };
        for file in due.0 {
            if let Err(error) = tidy.striped.persist_size(file).await {
                tracing::debug!(%file, %error, "cannot persist the size of a file; it is persisted later");
                tidy.striped.queue.pending_work().persist_size.insert(file);
            }
        }
        for file in due.1 {
            if let Err(error) = tidy.reap(file).await {
                tracing::debug!(%file, %error, "cannot reap an unlinked file; it is reaped later");
                tidy.striped.queue.pending_work().reap.insert(file);
            }
        }
        tokio::select! {
            () = tidy.striped.queue.wake.notified() => {}
            () = sleep(AGAIN) => {
                tidy.tidy_names().await;
                tidy.striped.tidy_reshapes().await;
                if tidy.join_state.has_new_peer_store() {
                    let losses = tidy.losses.clone();
                    tokio::spawn(async move { losses.look().await });
                }
            }
            () = stopped(&mut stopping) => return,
        }
    }
}

impl Tidy {
    /// Queries the outcome of what was prepared on this server, and notifies other servers of outcomes.
    async fn tidy_names(&self) {
        for intent in self.store.names().prepared() {
            let obstacle = Obstacle::Intent(intent);
            if let Some(question) = self.store.names().question(&obstacle)
                && let Err(error) = self.transactions.put(question).await
            {
                tracing::debug!(%error, "cannot query the outcome of a transaction; it is queried later");
            }
        }
        match self.store.names().unfinished() {
            Ok(unfinished) => self.transactions.announce_end(unfinished).await,
            Err(error) => tracing::error!(%error, "cannot read the list of unfinished transactions"),
        }
    }

    /// Has all other holders delete a file, then deletes it. All earlier requests for it have ended by then, or they
    /// would come after.
    async fn reap(&self, file: FileId) -> Result<()> {
        let _order = self.striped.order(file).lock().await;
        self.striped.notify_holders(file, &PeerRequest::Forget { file }).await?;
        if let Some(backing) = &self.backing {
            backing.remove_private(file)?;
        }
        self.store.names().reap(file, |mut batch| {
            self.backing.iter().for_each(|backing| backing.reap(file, &mut batch));
            self.store.reshapes().delete(self.store.data(), file, batch)
        })?;
        self.opens.reaped(file);
        Ok(())
    }
}
