//! Repairs after a loss, while the service runs: the same as `forebay check --repair` does to stores offline.
//!
//! Files and directories whose names were lost get names in the root directory, and directories of which only entries
//! are left are created again. A name that leads to a lost file, and bytes of a lost file, are removed only on request:
//! a copy of the lost store may still come back. When all servers have done that, the server with the new store may
//! answer that a missing name does not exist ([`RepairStep::Forgive`]).

use super::{LossSearch, Sign, Suspect};
use crate::caller::Caller;
use crate::cluster::nonsense;
use crate::cluster::transaction::Undone;
use forebay_model::{Error, ErrorKind, FileId, FileKind, Identity, Name, Result};
use forebay_store::{NameReply, NameRequest, Op};
use forebay_wire::{RepairStep, variant_name};

/// How often losses are listed again: a listing is bounded, and a restored directory has a name.
const ROUNDS: u32 = 64;

impl LossSearch {
    /// Repairs what this server can, and reports what it did.
    pub(crate) async fn repair(&self, caller: &Caller, step: RepairStep) -> Result<Vec<String>> {
        caller.demand("repair the service")?;
        self.homes.demand_joined()?;
        tracing::warn!(uid = %caller.who.uid, step = variant_name(&step), "the service is repaired");
        match step {
            RepairStep::Rescue { drop_dangling } => self.rescue(drop_dangling).await,
            RepairStep::Forgive if self.join_state.forgive(&self.store)? => {
                Ok(vec![format!("server {} goes on without what it had lost", self.own)])
            }
            RepairStep::Forgive => Ok(Vec::new()),
        }
    }

    async fn rescue(&self, drop_dangling: bool) -> Result<Vec<String>> {
        // All servers have to be met with their current stores, or the losses of a former store are unknown.
        for server in self.peers.others() {
            self.request_remains(server, Vec::new()).await?;
        }
        let mut done = Vec::new();
        for _ in 0..ROUNDS {
            let before = done.len();
            // Everything is scanned again: an earlier report may be outdated.
            *self.report.lock().await = None;
            let (lost, _) = self.lost_now().await?;
            for (suspect, _) in lost {
                done.extend(self.rescue_one(&suspect, drop_dangling).await?);
            }
            if done.len() == before {
                break;
            }
        }
        *self.report.lock().await = None;
        Ok(done)
    }

    /// Repairs one loss, and reports what was done; `None` if it cannot be repaired, or another server repairs it.
    async fn rescue_one(&self, suspect: &Suspect, drop_dangling: bool) -> Result<Option<String>> {
        let (file, now) = (suspect.file, self.store.data().now());
        match (&suspect.sign, suspect.dir, &suspect.name) {
            (Sign::Nameless { names, .. }, Some(dir), _) => {
                let mut report = None;
                for _ in 0..*names {
                    let others =
                        tokio::task::block_in_place(|| self.store.names().forget_name(file, dir, now));
                    report = match others.map_err(Error::from)? {
                        true => Some(format!("a lost name of file {file} is dropped")),
                        false => Some(self.name_again(file, dir).await?),
                    };
                }
                Ok(report)
            }
            (Sign::Leads(FileKind::Directory), Some(dir), Some(name)) => {
                self.revive(file, Some((dir, name.clone()))).await?;
                Ok(Some(format!("directory {file} ({}) is made again, for its owner only", name.quoted())))
            }
            (Sign::Leads(_), Some(dir), Some(name)) if drop_dangling => {
                let dropped = self.store.names().drop_dangling(dir, name, file, now).map_err(Error::from)?;
                Ok(dropped
                    .then(|| format!("the name {} of the lost file {file} is taken away", name.quoted())))
            }
            (Sign::Entries(_), ..) => {
                // Otherwise the server that has its name creates it again.
                if self.count_names(vec![(None, file)]).await? != [Some(0)] {
                    return Ok(None);
                }
                self.revive(file, None).await?;
                self.name_again(file, FileId::ROOT).await.map(Some)
            }
            (Sign::Bytes, ..) if drop_dangling => {
                tokio::task::block_in_place(|| self.local.forget(file))?;
                Ok(Some(format!("bytes of the lost file {file} are forgotten")))
            }
            _ => Ok(None),
        }
    }

    /// Has the server that created a directory create it again.
    async fn revive(&self, dir: FileId, place: Option<(FileId, Name)>) -> Result<()> {
        let authority = self.members.members().authority(dir);
        match self.transactions.request_names(authority, NameRequest::Revive(dir, place)).await? {
            NameReply::Done => Ok(()),
            other => Err(nonsense(&other)),
        }
    }

    /// Gives a file whose name in `dir` was lost a name in the root directory.
    async fn name_again(&self, file: FileId, dir: FileId) -> Result<String> {
        let name = Name::new(format!("lost-{file}"))?;
        match self
            .transactions
            .run_transaction(Identity::root(), Op::Rescue { file, dir, name: name.clone() })
            .await
        {
            Ok(_) => Ok(format!("file {file} had lost its name: it is /{name} now")),
            Err(Undone::Failed(error)) => Err(error),
            Err(Undone::Unknown) => {
                let text = format!("it is unknown whether file {file} is /{name} now: repair again");
                Err(Error::new(ErrorKind::Unreachable, text))
            }
        }
    }
}
