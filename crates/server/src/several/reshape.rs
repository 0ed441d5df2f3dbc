//! Truncations and holes of files whose bytes several servers hold: all make them or none does.
//!
//! The authority has the others prepare, decides, and tells them; see [`Reshapes`](forebay_store::Reshapes). Before it
//! begins another change of a file, or asks the others what they hold of it, all have heard of the last one.

use super::nonsense;
use crate::service::Service;
use forebay_model::{FileId, Reshape, Result, Stamp};
use forebay_store::{Opening, Verdict};
use forebay_wire::{PeerReply, PeerRequest};
use std::sync::Arc;

impl Service {
    /// Has all others prepare a change of a file of ours. Whoever asks keeps others from changing its order.
    pub(super) async fn prepare_reshape(
        self: &Arc<Service>,
        file: FileId,
        change: Reshape,
    ) -> Result<Opening> {
        self.tell_reshaped(file).await?;
        self.recover_from_behind(file).await?;
        let opening = self.store.reshapes().begin(file, self.store.data().now(), change)?;
        let serial = opening.serial();
        let mut list = Vec::new();
        for server in self.holders(file)? {
            let lost_below = self.lost_below(file, server)?;
            list.push((server, PeerRequest::Reshape { file, serial, change, lost_below }));
        }
        let prepared: Result<Vec<PeerReply>> = self.ask_all(list).await.into_iter().collect();
        if let Err(error) = prepared {
            drop(opening);
            self.end_reshape(file, serial).await;
            return Err(error);
        }
        Ok(opening)
    }

    /// Tells all others what became of a change. Those who do not hear it ask before they use the file.
    pub(super) async fn end_reshape(self: &Arc<Service>, file: FileId, serial: Stamp) {
        let told = match self.store.reshapes().untold(file) {
            Ok(Some((decided, _))) if decided == serial => self.tell_reshaped(file).await,
            Ok(_) => self.tell_holders(file, &PeerRequest::Reshaped { file, serial, done: false }).await,
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            tracing::debug!(%file, %error, "another server will hear later what became of a change");
        }
    }

    /// Tells those who have not heard it that the last change of a file is made.
    pub(crate) async fn tell_reshaped(self: &Arc<Service>, file: FileId) -> Result<()> {
        let Some((serial, left)) = self.store.reshapes().untold(file)? else { return Ok(()) };
        let ask = |&server| (server, PeerRequest::Reshaped { file, serial, done: true });
        let answers = self.ask_all(left.iter().map(ask).collect()).await;
        let mut failed = Ok(());
        for (server, answer) in left.into_iter().zip(answers) {
            match answer {
                Ok(_) => self.store.reshapes().told(file, serial, server)?,
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Learns what became of a change that was prepared here, before anybody uses the file.
    pub(crate) async fn learn_reshape(&self, file: FileId) -> Result<()> {
        let Some(serial) = self.store.reshapes().pending(file) else { return Ok(()) };
        let authority = self.members.members().authority(file);
        match self.ask(authority, PeerRequest::Fate { file, serial }).await? {
            PeerReply::Fate { done: Some(done) } => {
                let verdict = if done { Verdict::Done } else { Verdict::Undone };
                let finish = || self.store.reshapes().finish(self.store.data(), file, serial, verdict);
                tokio::task::block_in_place(finish)
            }
            // Whoever waits for that change has not been answered: what is done now comes before it.
            PeerReply::Fate { done: None } => Ok(()),
            other => Err(nonsense(&other)),
        }
    }

    /// Asks and tells what is still open.
    pub(super) async fn tidy_reshapes(self: &Arc<Service>) {
        for (file, _) in self.store.reshapes().all_pending() {
            if let Err(error) = self.learn_reshape(file).await {
                tracing::debug!(%file, %error, "what became of a change will be asked later");
            }
        }
        for file in self.store.reshapes().all_untold() {
            if let Err(error) = self.tell_reshaped(file).await {
                tracing::debug!(%file, %error, "another server will hear of a change later");
            }
        }
    }
}
