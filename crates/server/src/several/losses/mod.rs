//! What went with stores that were lost, as far as this server can tell.
//!
//! ```text
//! suspects   what may be lost, found in what is here
//! names      files of ours whose names were lost
//! remains    what is left here of what others ask for
//! ```
//!
//! Everything is read once, when another server comes with a new store or when somebody asks for the first time; what
//! is found is kept in a [`Book`], and whoever asks later has only that looked at again: what was not lost then is not now,
//! and what was written again, cut off or removed since is not lost any more.
//!
//! **Deliberately absent**: files of which everything was in the lost store. They leave no trace; whoever looks them up
//! gets an error.

mod names;
mod remains;
mod suspects;

use super::deal::Aids;
use super::joining::Stores;
use super::nonsense;
use crate::service::{Caller, Service};
use forebay_model::{Error, FileId, FileKind, Layout, Name, Result, ServerId};
use forebay_store::Stopped;
use forebay_wire::{Loss, Losses, Lost, PeerReply, PeerRequest, Remain, Remains};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Most suspects that are looked into at a time.
const SUSPECTS: usize = 50_000;
/// Most that is asked at once.
const ASKED: usize = 500;
/// Most bytes of names and paths in one answer.
const ROOM: usize = 300 << 10;
/// Most that is told at once.
const TOLD: usize = 2000;
/// Directories above a file; more are not believed.
const DEPTH: usize = 4096;
/// How long others may read all they have.
const READING: Duration = Duration::from_secs(300);

/// What was found, while the other servers had these stores.
#[derive(Default)]
pub(crate) struct Book(tokio::sync::Mutex<Option<Found>>);

struct Found {
    stores: Stores,
    list: Vec<Suspect>,
    /// How many more names there are that lead nowhere any more.
    more: u64,
    /// Whether that is all; otherwise everything is to be read again.
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

/// Why that is so.
#[derive(Clone)]
enum Sign {
    /// A name of ours leads to a file that the lost store made.
    Leads(FileKind),
    /// The lost store held bytes of a file of ours, some of them below this offset.
    Held(Layout, u64),
    /// Names of a file of ours are nowhere. Whoever says so has asked everybody.
    Nameless { kind: FileKind, names: u32, size: u64 },
    /// There are bytes here of a file that the lost store made.
    Bytes,
    /// So many names are here of a directory that the lost store made.
    Entries(u64),
}

impl Service {
    /// What is lost.
    pub(crate) async fn losses(self: &Arc<Service>, caller: &Caller) -> Result<Losses> {
        self.demand(caller, "see what was lost")?;
        self.demand_joined()?;
        self.find_losses().await
    }

    /// Another server has come with a new store: what went with the old one is found while everybody is there.
    pub(super) async fn look_for_losses(self: Arc<Service>) {
        match self.find_losses().await {
            Ok(losses) if losses.list.is_empty() => {}
            Ok(losses) => {
                let count = losses.list.len() as u64 + losses.more;
                tracing::warn!(
                    count,
                    "something went with a store that was lost: \"forebay status\" lists it"
                );
            }
            Err(error) => tracing::warn!(%error, "what was lost will be looked for when somebody asks"),
        }
    }

    async fn find_losses(self: &Arc<Service>) -> Result<Losses> {
        let mut book = self.book.0.lock().await;
        let stores = self.joining.replaced();
        if book.as_ref().is_none_or(|found| !found.all || found.stores != stores) {
            *book = Some(self.find(stores).await?);
        }
        let Some(found) = book.as_mut() else { return Ok(Losses::default()) };
        let suspects = tokio::task::block_in_place(|| self.reread(&found.list))?;
        let mut lost = self.convict(suspects).await?;
        self.call_elsewhere(&mut lost).await;
        found.list = lost.iter().map(|(suspect, _)| suspect.clone()).collect();
        let more = found.more;
        drop(book);
        Ok(self.put_paths(lost, more).await)
    }

    /// Reads all there is.
    async fn find(self: &Arc<Service>, stores: Stores) -> Result<Found> {
        let (suspects, mut all) = tokio::task::block_in_place(|| self.suspects())?;
        let convicted = self.convict(suspects).await?.into_iter().map(|(suspect, _)| suspect).collect();
        let mut list: Vec<Suspect> = self.without_called(convicted).await?;
        let nameless = self.nameless(&stores).await?;
        all &= nameless.all;
        list.extend(nameless.list);
        Ok(Found { stores, list, more: nameless.more, all })
    }

    /// Those of which something is really missing.
    async fn convict(self: &Arc<Service>, suspects: Vec<Suspect>) -> Result<Vec<(Suspect, Lost)>> {
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
                let some = list.drain(..list.len().min(ASKED));
                let (some, questions): (Vec<Suspect>, Vec<Remain>) = some.unzip();
                let answers = self.ask_remains(server, questions).await?;
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

    async fn ask_remains(self: &Arc<Service>, server: ServerId, of: Vec<Remain>) -> Result<Vec<Remains>> {
        if server == self.config.server {
            return tokio::task::block_in_place(|| self.remains(server, &of));
        }
        let count = of.len();
        match self.ask_for(server, PeerRequest::Remains { of }, READING).await? {
            PeerReply::Remains(answers) if answers.len() == count => Ok(answers),
            other => Err(nonsense(&other)),
        }
    }

    /// Looks for names of files of ours that are at home on other servers. One that does not answer knows none.
    async fn call_elsewhere(self: &Arc<Service>, lost: &mut [(Suspect, Lost)]) {
        let members = self.members.members();
        let is_elsewhere = |suspect: &Suspect| match (&suspect.sign, suspect.dir, &suspect.name) {
            (Sign::Held(..), Some(dir), Some(name)) => members.home(dir, name) != self.config.server,
            (Sign::Held(..), Some(_), None) => true,
            _ => false,
        };
        let elsewhere = lost.iter_mut().map(|(suspect, _)| suspect).filter(|suspect| is_elsewhere(suspect));
        let mut elsewhere: Vec<(Remain, &mut Suspect)> = elsewhere
            .take(ASKED)
            .filter_map(|suspect| {
                let (dir, file, like) = (suspect.dir?, suspect.file, suspect.name.take());
                Some((Remain::Name { dir, file, like }, suspect))
            })
            .collect();
        if elsewhere.is_empty() {
            return;
        }
        let questions: Vec<Remain> = elsewhere.iter().map(|(question, _)| question.clone()).collect();
        for server in self.others() {
            let Ok(answers) = self.ask_remains(server, questions.clone()).await else { continue };
            for ((_, suspect), answer) in elsewhere.iter_mut().zip(answers) {
                if let Remains::Name(Some(name)) = answer {
                    suspect.name = Some(name);
                }
            }
        }
    }

    /// Puts what is lost as people know it.
    async fn put_paths(self: &Arc<Service>, lost: Vec<(Suspect, Lost)>, more: u64) -> Losses {
        let (mut losses, mut room) = (Losses { list: Vec::new(), more }, ROOM);
        let (mut aids, mut dirs) = (self.aids(), HashMap::new());
        for (suspect, what) in lost {
            if losses.list.len() >= TOLD || room == 0 {
                losses.more += 1;
                continue;
            }
            let Suspect { server, file, dir, name, .. } = suspect;
            let above = match dir {
                Some(dir) => self.path_of(dir, &mut dirs, &mut aids).await,
                None => None,
            };
            room = room.saturating_sub(
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
    async fn path_of<'a>(
        self: &'a Arc<Service>,
        dir: FileId,
        known: &mut HashMap<FileId, Option<Vec<u8>>>,
        aids: &mut Aids<'a>,
    ) -> Option<Vec<u8>> {
        let (mut way, mut at) = (Vec::new(), dir);
        let top = loop {
            if at == FileId::ROOT {
                break Some(Vec::new());
            }
            if let Some(path) = known.get(&at) {
                break path.clone();
            }
            if way.len() > DEPTH {
                break None;
            }
            match self.store.names().dir(at) {
                Ok(copy) => match copy.name {
                    Some(name) => {
                        way.push((at, name));
                        at = copy.parent;
                    }
                    None => break None,
                },
                Err(Stopped::Failed(_)) => break None,
                Err(Stopped::Obstacle(obstacle)) => {
                    let cleared: Result<(), Error> = self.clear(obstacle, aids).await;
                    if cleared.is_err() {
                        break None;
                    }
                }
            }
        };
        let mut path = top;
        known.insert(at, path.clone());
        for (dir, name) in way.into_iter().rev() {
            path = path.map(|above| [&above, b"/".as_slice(), name.as_bytes()].concat());
            known.insert(dir, path.clone());
        }
        path
    }
}

impl Suspect {
    /// Who says whether it is lost, and what is asked.
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
