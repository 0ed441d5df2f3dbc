//! What servers owe each other: after a start, and whenever somebody was not there to hear it.
//!
//! A server that starts asks first what became of what its earlier life had prepared, and serves clients when it knows,
//! or when those who know are not there: then whoever meets what is open asks, and is told who does not answer.

use crate::service::{Service, stopped};
use forebay_store::Obstacle;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// What could not be done is tried again so often.
const AGAIN: Duration = Duration::from_millis(500);
/// The same while clients wait for it.
const SOON: Duration = Duration::from_millis(20);

/// Learns what became of what an earlier life of this server had prepared; clients wait for that, but not for ever.
pub(crate) async fn settle_first(service: Arc<Service>) {
    let (names, reshapes) = (service.store.names(), service.store.reshapes());
    let (intents, changes) = (names.prepared(), reshapes.all_pending());
    // Others go on preparing meanwhile: that is nothing to wait for.
    let is_open = || {
        names.prepared().iter().any(|intent| intents.contains(intent))
            || reshapes.all_pending().iter().any(|change| changes.contains(change))
    };
    let settled = async {
        while is_open() {
            service.tidy_names().await;
            service.tidy_reshapes().await;
            if is_open() {
                sleep(SOON).await;
            }
        }
    };
    if timeout(service.config.times.peer, settled).await.is_err() {
        tracing::warn!("what became of some changes is not known: servers that know do not answer");
    }
    service.open_doors();
}

/// Does what is to be done about files whose bytes others hold too, and what servers owe each other about names.
pub(crate) async fn work(service: Arc<Service>) {
    let mut stopping = service.stopping();
    loop {
        let due = {
            let mut chores = service.afar.chores();
            (std::mem::take(&mut chores.settle), std::mem::take(&mut chores.bury))
        };
        for file in due.0 {
            if let Err(error) = service.settle(file).await {
                tracing::debug!(%file, %error, "the length of a file will be noted later");
                service.afar.chores().settle.insert(file);
            }
        }
        for file in due.1 {
            if let Err(error) = service.bury(file).await {
                tracing::debug!(%file, %error, "a file without a name will be removed later");
                service.afar.chores().bury.insert(file);
            }
        }
        tokio::select! {
            () = service.afar.wake.notified() => {}
            () = sleep(AGAIN) => {
                service.tidy_names().await;
                service.tidy_reshapes().await;
                if service.joining.is_bereaved() {
                    tokio::spawn(service.clone().look_for_losses());
                }
            }
            () = stopped(&mut stopping) => return,
        }
    }
}

impl Service {
    /// Asks what became of what was prepared here, and tells others what became of what they prepared.
    async fn tidy_names(self: &Arc<Service>) {
        for intent in self.store.names().prepared() {
            let obstacle = Obstacle::Intent(intent);
            if let Some(question) = self.store.names().question(&obstacle)
                && let Err(error) = self.put(question).await
            {
                tracing::debug!(?intent, %error, "what became of this will be asked later");
            }
        }
        match self.store.names().unfinished() {
            Ok(unfinished) => self.tell_ends(unfinished).await,
            Err(error) => tracing::error!(%error, "what others have to finish cannot be read"),
        }
    }
}
