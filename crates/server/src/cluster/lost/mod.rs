//! What was lost with lost stores, as far as this server can tell.
//!
//! ```text
//! suspects   what may be lost, found by scanning this server's store
//! names      files of this authority whose names were lost
//! remains    what this server still has of what other servers search for
//! repair     repairs after a loss
//! ```
//!
//! Everything is scanned once, when another server comes with a new store or at the first request. The results are kept,
//! and later requests check only them again: a file that was not lost then is not lost now, and a
//! file that was rewritten, truncated or removed since is not lost any more.
//!
//! **Deliberately absent**: files of which everything was in the lost store. They leave no trace; a lookup of them
//! fails with an error.

mod names;
mod remains;
mod repair;
mod suspects;

use super::membership::Stores;
use super::transaction::RetryState;
use super::{JoinState, LocalBytes, Peers, Transactions, nonsense};
use crate::backing::BackingLayer;
use crate::caller::Caller;
use crate::file_homes::FileHomes;
use crate::members::Membership;
use forebay_model::{Error, FileId, FileKind, Layout, Name, Result, ServerId};
use forebay_store::{Stopped, Store};
use forebay_wire::{Loss, Losses, Lost, PeerReply, PeerRequest, Remain, Remains};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Most suspects that are examined at a time.
const SUSPECTS: usize = 50_000;
/// Most files in one request.
const MAX_FILES: usize = 500;
/// Most bytes of names and paths in one answer.
const MAX_BYTES: usize = 300 << 10;
/// Most losses in one answer.
const MAX_LOSSES: usize = 2000;
/// Most directories above a file.
const DEPTH: usize = 4096;
/// Timeout for other servers that scan their whole store.
const READING: Duration = Duration::from_secs(300);

/// Searches for what was lost.
pub(crate) struct LossSearch {
    own: ServerId,
    store: Arc<Store>,
    homes: Arc<FileHomes>,
    members: Arc<dyn Membership>,
    join_state: Arc<JoinState>,
    peers: Arc<Peers>,
    layer: Arc<BackingLayer>,
    transactions: Arc<Transactions>,
    local: Arc<LocalBytes>,
    /// The results of the last scan.
    report: tokio::sync::Mutex<Option<Found>>,
}

/// What the search uses.
pub(crate) struct LossParts {
    pub(crate) own: ServerId,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) members: Arc<dyn Membership>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) local: Arc<LocalBytes>,
}

/// What a scan found, with the stores of the other servers at that time.
struct Found {
    stores: Stores,
    list: Vec<Suspect>,
    /// How many more lost names there are.
    more: u64,
    /// Whether the list is complete; otherwise everything has to be scanned again.
    all: bool,
}

/// Something that may be lost.
#[derive(Clone)]
struct Suspect {
    server: Option<ServerId>,
    file: FileId,
    dir: Option<FileId>,
    name: Option<Name>,
    sign: Sign,
}

/// Why it may be lost.
#[derive(Clone)]
enum Sign {
    /// A name on this server leads to a file of the lost store.
    Leads(FileKind),
    /// The lost store held bytes of a file of this authority, some of them below this offset.
    Held(Layout, u64),
    /// Names of a file of this authority are missing on all servers.
    Nameless { kind: FileKind, names: u32, size: u64 },
    /// This server holds bytes of a file of the lost store.
    Bytes,
    /// This server holds this many names in a directory of the lost store.
    Entries(u64),
}

impl LossSearch {
    pub(crate) fn new(parts: LossParts) -> LossSearch {
        let LossParts { own, store, homes, members, join_state, peers, layer, transactions, local } = parts;
        let report = tokio::sync::Mutex::default();
        LossSearch { own, store, homes, members, join_state, peers, layer, transactions, local, report }
    }

    /// Lists the losses for an administrator.
    pub(crate) async fn losses(&self, caller: &Caller) -> Result<Losses> {
        caller.demand("see what was lost")?;
        self.homes.demand_joined()?;
        self.find_losses().await
    }

    /// Another server has come with a new store: searches for losses while all servers are up.
    pub(super) async fn look(&self) {
        match self.find_losses().await {
            Ok(losses) if losses.list.is_empty() => {}
            Ok(losses) => {
                let count = losses.list.len() as u64 + losses.more;
                tracing::warn!(count, "files or names were lost with a store: \"forebay status\" lists them");
            }
            Err(error) => {
                tracing::warn!(%error, "cannot search for losses; the next request for them searches again");
            }
        }
    }

    async fn find_losses(&self) -> Result<Losses> {
        let (lost, more) = self.lost_now().await?;
        Ok(self.put_paths(lost, more).await)
    }

    /// The current losses, and the number of lost names that could not be listed.
    async fn lost_now(&self) -> Result<(Vec<(Suspect, Lost)>, u64)> {
        let mut book = self.report.lock().await;
        let stores = self.join_state.replaced();
        if book.as_ref().is_none_or(|found| !found.all || found.stores != stores) {
            *book = Some(self.find(stores).await?);
        }
        let Some(found) = book.as_mut() else { return Ok((Vec::new(), 0)) };
        let suspects = tokio::task::block_in_place(|| self.reread(&found.list))?;
        let mut lost = self.confirm(suspects).await?;
        self.find_names_elsewhere(&mut lost).await;
        found.list = lost.iter().map(|(suspect, _)| suspect.clone()).collect();
        Ok((lost, found.more))
    }

    /// Scans everything.
    async fn find(&self, stores: Stores) -> Result<Found> {
        let (suspects, mut all) = tokio::task::block_in_place(|| self.suspects())?;
        let confirmed = self.confirm(suspects).await?.into_iter().map(|(suspect, _)| suspect).collect();
        let mut list: Vec<Suspect> = self.drop_named(confirmed).await?;
        let nameless = self.nameless(&stores).await?;
        all &= nameless.all;
        list.extend(nameless.list);
        Ok(Found { stores, list, more: nameless.more, all })
    }

    /// The suspects of which something is really missing.
    async fn confirm(&self, suspects: Vec<Suspect>) -> Result<Vec<(Suspect, Lost)>> {
        let mut by_server: BTreeMap<ServerId, Vec<(Suspect, Remain)>> = BTreeMap::new();
        let mut lost = Vec::new();
        for suspect in suspects {
            match (&suspect.sign, suspect.question()) {
                (&Sign::Nameless { kind, names, size }, _) => {
                    lost.push((suspect, Lost::Name { kind, names, size }));
                }
                (_, Some((server, question))) => {
                    by_server.entry(server).or_default().push((suspect, question));
                }
                (_, None) => {}
            }
        }
        for (server, mut list) in by_server {
            while !list.is_empty() {
                let some = list.drain(..list.len().min(MAX_FILES));
                let (some, questions): (Vec<Suspect>, Vec<Remain>) = some.unzip();
                let answers = self.request_remains(server, questions).await?;
                for (suspect, answer) in some.into_iter().zip(answers) {
                    lost.extend(self.verdict(&suspect, &answer)?.map(|what| (suspect, what)));
                }
            }
        }
        Ok(lost)
    }

    fn verdict(&self, suspect: &Suspect, answer: &Remains) -> Result<Option<Lost>> {
        Ok(match (answer, &suspect.sign) {
            (&Remains::NotBytes { count, open }, _) => Some(Lost::Bytes { count, open }),
            (Remains::NoInode, Sign::Leads(kind)) => Some(Lost::Inode(*kind)),
            (Remains::NoInode, Sign::Entries(names)) => Some(Lost::Directory { names: *names }),
            (Remains::NoInode, Sign::Bytes) => {
                Some(Lost::Rest { bytes: self.store.data().facts(suspect.file)?.buffered })
            }
            _ => None,
        })
    }

    async fn request_remains(&self, server: ServerId, of: Vec<Remain>) -> Result<Vec<Remains>> {
        if server == self.own {
            return tokio::task::block_in_place(|| self.remains(server, &of));
        }
        let count = of.len();
        match self.peers.request_within(server, PeerRequest::Remains { of }, READING).await? {
            PeerReply::Remains(answers) if answers.len() == count => Ok(answers),
            other => Err(nonsense(&other)),
        }
    }

    /// Looks up names of files of this authority on other servers. A server that does not answer is skipped.
    async fn find_names_elsewhere(&self, lost: &mut [(Suspect, Lost)]) {
        let members = self.members.members();
        let is_elsewhere = |suspect: &Suspect| match (&suspect.sign, suspect.dir, &suspect.name) {
            (Sign::Held(..), Some(dir), Some(name)) => members.home(dir, name) != self.own,
            (Sign::Held(..), Some(_), None) => true,
            _ => false,
        };
        let elsewhere = lost.iter_mut().map(|(suspect, _)| suspect).filter(|suspect| is_elsewhere(suspect));
        let mut elsewhere: Vec<(Remain, &mut Suspect)> = elsewhere
            .take(MAX_FILES)
            .filter_map(|suspect| {
                let (dir, file, like) = (suspect.dir?, suspect.file, suspect.name.take());
                Some((Remain::Name { dir, file, like }, suspect))
            })
            .collect();
        if elsewhere.is_empty() {
            return;
        }
        let questions: Vec<Remain> = elsewhere.iter().map(|(question, _)| question.clone()).collect();
        for server in self.peers.others() {
            let Ok(answers) = self.request_remains(server, questions.clone()).await else { continue };
            for ((_, suspect), answer) in elsewhere.iter_mut().zip(answers) {
                if let Remains::Name(Some(name)) = answer {
                    suspect.name = Some(name);
                }
            }
        }
    }

    /// Adds the paths, for people.
    async fn put_paths(&self, lost: Vec<(Suspect, Lost)>, more: u64) -> Losses {
        let (mut losses, mut space) = (Losses { list: Vec::new(), more }, MAX_BYTES);
        let (mut retry_state, mut dirs) = (self.transactions.retry_state(), HashMap::new());
        for (suspect, what) in lost {
            if losses.list.len() >= MAX_LOSSES || space == 0 {
                losses.more += 1;
                continue;
            }
            let Suspect { server, file, dir, name, .. } = suspect;
            let above = match dir {
                Some(dir) => self.path_of(dir, &mut dirs, &mut retry_state).await,
                None => None,
            };
            space = space.saturating_sub(
                above.as_ref().map_or(0, Vec::len)
                    + name.as_ref().map_or(0, |name| name.as_bytes().len())
                    + 64,
            );
            losses.list.push(Loss { server, what, file, dir, above, name });
        }
        losses.list.sort_by(|a, b| (&a.above, &a.name, a.file).cmp(&(&b.above, &b.name, b.file)));
        losses
    }

    /// The path of a directory; `None` if it cannot be found.
    async fn path_of(
        &self,
        dir: FileId,
        known: &mut HashMap<FileId, Option<Vec<u8>>>,
        retry_state: &mut RetryState,
    ) -> Option<Vec<u8>> {
        let (mut path_names, mut at) = (Vec::new(), dir);
        let top = loop {
            if at == FileId::ROOT {
                break Some(Vec::new());
            }
            if let Some(path) = known.get(&at) {
                break path.clone();
            }
            if path_names.len() > DEPTH {
                break None;
            }
            match self.store.names().dir(at) {
                Ok(copy) => match copy.name {
                    Some(name) => {
                        path_names.push((at, name));
                        at = copy.parent;
                    }
                    None => break None,
                },
                Err(Stopped::Failed(_)) => break None,
                Err(Stopped::Obstacle(obstacle)) => {
                    let cleared: Result<(), Error> = self.transactions.clear(obstacle, retry_state).await;
                    if cleared.is_err() {
                        break None;
                    }
                }
            }
        };
        let mut path = top;
        known.insert(at, path.clone());
        for (dir, name) in path_names.into_iter().rev() {
            path = path.map(|above| [&above, b"/".as_slice(), name.as_bytes()].concat());
            known.insert(dir, path.clone());
        }
        path
    }
}

impl Suspect {
    /// The server that knows whether it is lost, and the request for it.
    fn question(&self) -> Option<(ServerId, Remain)> {
        let question = match &self.sign {
            Sign::Held(layout, below) => {
                Remain::Bytes { file: self.file, layout: layout.clone(), below: *below }
            }
            Sign::Leads(_) | Sign::Bytes | Sign::Entries(_) => Remain::Inode(self.file),
            Sign::Nameless { .. } => return None,
        };
        Some((self.server?, question))
    }
}
