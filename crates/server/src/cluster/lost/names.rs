//! Files of this authority whose names were lost although the files were not.
//!
//! An inode lists the directories of its names. Every server adds the names that lead to this authority's files to a
//! sieve; the difference between the inodes and the sieves is what is missing. The servers are not queried at the same
//! moment, so each such file is then checked by itself: its inode must be the same before and after all servers were
//! queried for its names, and none of them may be changing.

use super::{LossSearch, MAX_FILES, Sign, Suspect};
use crate::cluster::membership::Stores;
use crate::cluster::nonsense;
use forebay_model::{ErrorKind, FileId, Result, ServerId, Sieve, Sifted};
use forebay_store::{Body, Inode, Stopped};
use forebay_wire::{Remain, Remains};
use std::time::Duration;
use tokio::time::sleep;

/// How often a changing file is checked.
const ROUNDS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);

/// The result of the search.
#[derive(Default)]
pub(super) struct Nameless {
    pub(super) list: Vec<Suspect>,
    /// How many more there are.
    pub(super) more: u64,
    /// Whether all lost names were told apart from renamed files.
    pub(super) all: bool,
}

/// Whether the names of a file are decided.
enum Settled {
    Is(Box<Inode>),
    Not,
    Gone,
}

impl LossSearch {
    /// Files of this authority whose names were lost with stores.
    pub(super) async fn nameless(&self, stores: &Stores) -> Result<Nameless> {
        if stores.is_empty() {
            return Ok(Nameless { all: true, ..Nameless::default() });
        }
        let mut sifted = self.sift(0).await?;
        if !sifted.all {
            sifted = self.sift(Sieve::sample_for(sifted.total.unsigned_abs())).await?;
        }
        let listed: i64 = sifted.pairs.iter().map(|&(_, times)| times).sum();
        let more = u64::try_from(sifted.total - listed).unwrap_or(0);
        let missing = sifted.pairs.into_iter().filter(|&(_, times)| times > 0);
        let mut open: Vec<(FileId, FileId)> = missing.map(|(place, _)| place).collect();
        let mut list = Vec::new();
        for round in 0..ROUNDS {
            if round > 0 && !open.is_empty() {
                sleep(PAUSE * round).await;
            }
            open = self.look_for_names(open, stores, &mut list).await?;
        }
        Ok(Nameless { list, more, all: open.is_empty() })
    }

    /// The names that this authority's inodes list, less the names that exist.
    async fn sift(&self, sample: u8) -> Result<Sifted> {
        let mut sieve = tokio::task::block_in_place(|| self.store.names().sift_inodes(sample))?;
        for server in self.members.members().servers() {
            match self.request_remains(server, vec![Remain::Names(sample)]).await?.pop() {
                Some(Remains::Names(other)) => sieve.take_all(&other),
                other => return Err(nonsense(&other)),
            }
        }
        Ok(sieve.sifted())
    }

    /// Adds those whose names are really lost to the list, and returns those that cannot be decided now.
    async fn look_for_names(
        &self,
        places: Vec<(FileId, FileId)>,
        stores: &Stores,
        list: &mut Vec<Suspect>,
    ) -> Result<Vec<(FileId, FileId)>> {
        let mut open = Vec::new();
        for some in places.chunks(MAX_FILES) {
            let mut candidates = Vec::new();
            for &(dir, file) in some {
                match self.settled_inode(file).await? {
                    Settled::Is(inode) if inode.parents.contains(&dir) => candidates.push((dir, file, inode)),
                    Settled::Is(_) | Settled::Gone => {}
                    Settled::Not => open.push((dir, file)),
                }
            }
            let wanted = candidates.iter().map(|&(dir, file, _)| (Some(dir), file)).collect();
            let times = self.count_names(wanted).await?;
            for ((dir, file, before), times) in candidates.into_iter().zip(times) {
                let same = matches!(self.settled_inode(file).await?, Settled::Is(now) if now == before);
                let Some(times) = times.filter(|_| same) else {
                    open.push((dir, file));
                    continue;
                };
                let listed = before.parents.iter().filter(|&&parent| parent == dir).count();
                let lost = u32::try_from(listed).unwrap_or(u32::MAX).saturating_sub(times);
                if lost > 0 {
                    list.push(self.nameless_suspect(dir, file, &before, lost, stores)?);
                }
            }
        }
        Ok(open)
    }

    async fn settled_inode(&self, file: FileId) -> Result<Settled> {
        let mut retry_state = self.transactions.retry_state();
        loop {
            match self.store.names().settled(file) {
                Ok(inode) => return Ok(Settled::Is(Box::new(inode))),
                Err(Stopped::Failed(error)) if error.kind() == ErrorKind::NotFound => {
                    return Ok(Settled::Gone);
                }
                Err(Stopped::Failed(error)) => return Err(error),
                Err(Stopped::Obstacle(obstacle)) => {
                    if self.transactions.clear(obstacle, &mut retry_state).await.is_err() {
                        return Ok(Settled::Not);
                    }
                }
            }
        }
    }

    /// How many names lead to files, on all servers; `None` for those that are changing.
    pub(super) async fn count_names(
        &self,
        wanted: Vec<(Option<FileId>, FileId)>,
    ) -> Result<Vec<Option<u32>>> {
        let mut counted = vec![Some(0); wanted.len()];
        if wanted.is_empty() {
            return Ok(counted);
        }
        let questions: Vec<Remain> =
            wanted.into_iter().map(|(dir, file)| Remain::Times { dir, file }).collect();
        for server in self.members.members().servers() {
            for (total, answer) in
                counted.iter_mut().zip(self.request_remains(server, questions.clone()).await?)
            {
                let Remains::Times(times) = answer else { return Err(nonsense(&answer)) };
                *total = total.zip(times).map(|(total, times)| total + times);
            }
        }
        Ok(counted)
    }

    fn nameless_suspect(
        &self,
        dir: FileId,
        file: FileId,
        inode: &Inode,
        names: u32,
        stores: &Stores,
    ) -> Result<Suspect> {
        let (name, size) = match &inode.body {
            Body::Directory { name, .. } => (name.clone(), 0),
            Body::File { extent, .. } => (None, extent.least.max(self.store.data().facts(file)?.size)),
            Body::Symlink { target } => (None, target.len() as u64),
            Body::Special { .. } => (None, 0),
        };
        let home = name.as_ref().map(|name| self.members.members().home(dir, name));
        let only: Option<ServerId> = stores.keys().next().copied().filter(|_| stores.len() == 1);
        let sign = Sign::Nameless { kind: inode.kind(), names, size };
        Ok(Suspect { server: home.or(only), file, dir: Some(dir), name, sign })
    }

    /// Drops bytes of files that have names: the server that has the name reports the file.
    pub(super) async fn drop_named(&self, list: Vec<Suspect>) -> Result<Vec<Suspect>> {
        let is_rest = |suspect: &Suspect| matches!(suspect.sign, Sign::Bytes);
        let (rest, mut kept): (Vec<Suspect>, Vec<Suspect>) = list.into_iter().partition(is_rest);
        for some in rest.chunks(MAX_FILES) {
            let wanted = some.iter().map(|suspect| (None, suspect.file)).collect();
            let counted = some.iter().zip(self.count_names(wanted).await?);
            kept.extend(counted.filter(|(_, times)| *times == Some(0)).map(|(suspect, _)| suspect.clone()));
        }
        Ok(kept)
    }
}
