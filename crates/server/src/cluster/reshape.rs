//! Truncations and holes of striped files: all holders make them, or none does.
//!
//! The authority has the other holders prepare, decides, and notifies them; see [`Reshapes`](forebay_store::Reshapes).
//! Before it begins another change of a file, or queries what the others hold of it, all have applied the last one.

use super::StripedFiles;
use super::nonsense;
use forebay_model::{FileId, Reshape, Result, Stamp};
use forebay_store::{Opening, Verdict};
use forebay_wire::{PeerReply, PeerRequest};

impl StripedFiles {
    /// Has all other holders prepare a change of a file of this authority. The caller holds the file's order lock, and the
    /// others have applied the last change.
    pub(crate) async fn prepare_reshape(&self, file: FileId, change: Reshape) -> Result<Opening> {
        let opening = self.store.reshapes().begin(file, self.store.data().now(), change)?;
        let serial = opening.serial();
        let mut list = Vec::new();
        for server in self.homes.holders(file)? {
            let lost_below = self.homes.lost_below(file, server)?;
            list.push((server, PeerRequest::Reshape { file, serial, change, lost_below }));
        }
        let prepared: Result<Vec<PeerReply>> = self.peers.request_all(list).await.into_iter().collect();
        if let Err(error) = prepared {
            drop(opening);
            self.end_reshape(file, serial).await;
            return Err(error);
        }
        Ok(opening)
    }

    /// Notifies all other holders of the outcome of a change. A holder that is not reached queries it before it uses
    /// the file.
    pub(crate) async fn end_reshape(&self, file: FileId, serial: Stamp) {
        let notified = match self.store.reshapes().untold(file) {
            Ok(Some((decided, _))) if decided == serial => self.notify_reshaped(file).await,
            Ok(_) => self.notify_holders(file, &PeerRequest::Reshaped { file, serial, done: false }).await,
            Err(error) => Err(error),
        };
        if let Err(error) = notified {
            tracing::debug!(%file, %error, "cannot notify another server of the outcome of a change; it is notified later");
        }
    }

    /// Notifies holders that do not know it yet that the last change of a file was made.
    pub(crate) async fn notify_reshaped(&self, file: FileId) -> Result<()> {
        let Some((serial, left)) = self.store.reshapes().untold(file)? else { return Ok(()) };
        let ask = |&server| (server, PeerRequest::Reshaped { file, serial, done: true });
        let answers = self.peers.request_all(left.iter().map(ask).collect()).await;
        let mut failed = Ok(());
        for (server, answer) in left.into_iter().zip(answers) {
            match answer {
                Ok(_) => self.store.reshapes().acknowledged(file, serial, server)?,
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Queries the outcome of a change that was prepared on this server, before the file is used.
    pub(crate) async fn learn_reshape(&self, file: FileId) -> Result<()> {
        let Some(serial) = self.store.reshapes().pending(file) else { return Ok(()) };
        let authority = self.homes.authority(file);
        match self.peers.ask(authority, PeerRequest::Outcome { file, serial }).await? {
            PeerReply::Outcome { done: Some(done) } => {
                let verdict = if done { Verdict::Done } else { Verdict::Undone };
                let finish = || self.store.reshapes().finish(self.store.data(), file, serial, verdict);
                tokio::task::block_in_place(finish)
            }
            // The request for that change has not been answered: operations until then come before it.
            PeerReply::Outcome { done: None } => Ok(()),
            other => Err(nonsense(&other)),
        }
    }

    /// Queries and sends all outstanding outcomes.
    pub(crate) async fn tidy_reshapes(&self) {
        for (file, _) in self.store.reshapes().all_pending() {
            if let Err(error) = self.learn_reshape(file).await {
                tracing::debug!(%file, %error, "cannot query the outcome of a change; it is queried later");
            }
        }
        for file in self.store.reshapes().all_untold() {
            if let Err(error) = self.notify_reshaped(file).await {
                tracing::debug!(%file, %error, "cannot notify another server of a change; it is notified later");
            }
        }
    }
}
