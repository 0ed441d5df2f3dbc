//! What went with stores that were lost, as far as this server can tell: each file by its path.
//!
//! Suspects are found here: files of ours of whose bytes a store held some that is gone, and names of ours that lead to
//! files that such a store made. Whoever stands in for that store says what is really missing: what was written again, cut
//! off or removed since is not.
//!
//! **Deliberately absent**: names that were lost while their files were not. Whoever looks them up gets an error, and
//! `forebay check`, which sees all stores at once, gives such files a name again.

use super::deal::Aids;
use super::joining::first_id;
use super::{is_afar, nonsense};
use crate::service::{Caller, Service};
use forebay_model::{Error, FileId, Layout, Name, Result, ServerId};
use forebay_store::{Body, Inode, Stopped};
use forebay_wire::{Loss, Losses, Lost, PeerReply, PeerRequest, Remain, Remains};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

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

/// Something that may be lost.
struct Suspect {
    server: ServerId,
    question: Remain,
    file: FileId,
    dir: FileId,
    name: Option<Name>,
}

impl Service {
    /// What is lost.
    pub(crate) async fn losses(self: &Arc<Service>, caller: &Caller) -> Result<Losses> {
        self.demand(caller, "see what was lost")?;
        self.demand_joined()?;
        let state = self.joining.replaced();
        if self.joining.is_spotless(&state) {
            return Ok(Losses::default());
        }
        let suspects = tokio::task::block_in_place(|| self.suspects())?;
        let all = suspects.len() < SUSPECTS;
        let lost = self.convict(suspects).await?;
        if lost.is_empty() && all {
            self.joining.found_spotless(state);
        }
        self.put_paths(lost).await
    }

    /// Reads all there is.
    fn suspects(&self) -> Result<Vec<Suspect>> {
        let (own, names, replaced) = (self.config.server, self.store.names(), self.joining.replaced());
        let mut suspects = Vec::new();
        let mut fault = None;
        let room = |suspects: &Vec<Suspect>| match suspects.len() < SUSPECTS {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        names.each_inode(&mut |file, inode| {
            match self.suspect_bytes(file, inode) {
                Ok(found) => suspects.extend(found),
                Err(error) => fault = Some(error),
            }
            if fault.is_some() { ControlFlow::Break(()) } else { room(&suspects) }
        })?;
        fault.map_or(Ok(()), Err)?;
        let mut known: HashMap<(FileId, FileId), Name> = HashMap::new();
        let wanted: HashSet<(FileId, FileId)> = suspects.iter().map(|one| (one.dir, one.file)).collect();
        names.each_entry(&mut |dir, name, target| {
            let file = target.file;
            if wanted.contains(&(dir, file)) {
                known.insert((dir, file), name.clone());
            }
            if let Some(&(_, lives)) = replaced.get(&file.maker()).filter(|_| file.maker() != own)
                && file.count() < first_id(lives)
            {
                let (server, name) = (file.maker(), Some(name.clone()));
                suspects.push(Suspect { server, question: Remain::Inode(file), file, dir, name });
            }
            room(&suspects)
        })?;
        for suspect in suspects.iter_mut().filter(|suspect| suspect.name.is_none()) {
            suspect.name = known.get(&(suspect.dir, suspect.file)).cloned();
        }
        Ok(suspects)
    }

    /// The servers that may have lost bytes of a file of ours. One without a name was removed.
    fn suspect_bytes(&self, file: FileId, inode: &Inode) -> Result<Vec<Suspect>> {
        let (Body::File { layout, incarnations, extent }, Some(dir)) = (&inode.body, inode.parent()) else {
            return Ok(Vec::new());
        };
        let local = self.store.data().facts(file)?.size;
        let below = if extent.unsettled { u64::MAX } else { extent.least.max(local) };
        let held = layout.servers.iter().zip(incarnations).enumerate();
        // What is behind is not lost.
        let recovers = self.to_recover(file)?;
        let suspected = held.filter(|&(index, (&server, &incarnation))| {
            let known = self.joining.known(server).map(|(known, _)| known);
            let changed = is_afar(extent) && known != Some(incarnation) && layout.share(index, below) > 0;
            let changed = changed && !recovers.iter().any(|(other, _)| *other == server);
            if server == self.config.server { self.is_missing(file, layout, None) } else { changed }
        });
        let suspect = |(_, (&server, _))| {
            let question = Remain::Bytes { file, layout: layout.clone(), below };
            Suspect { server, question, file, dir, name: None }
        };
        Ok(suspected.map(suspect).collect())
    }

    fn is_missing(&self, file: FileId, layout: &Layout, below: Option<u64>) -> bool {
        // What cannot be read is looked at again when it is asked for.
        self.missing(file, layout, below).is_ok_and(|lost| lost.is_some())
    }

    /// How much of a file is missing here.
    fn missing(&self, file: FileId, layout: &Layout, below: Option<u64>) -> Result<Option<Lost>> {
        let index = layout.servers.iter().position(|&server| server == self.config.server);
        let share = |end: u64| index.map_or(0, |index| layout.share(index, end));
        let (count, open) = self.store.data().missing(file, below, &share)?;
        Ok((count > 0 || open).then_some(Lost::Bytes { count, open }))
    }

    /// Those of which something is really missing.
    async fn convict(self: &Arc<Service>, suspects: Vec<Suspect>) -> Result<Vec<(Suspect, Lost)>> {
        let mut by_server: BTreeMap<ServerId, Vec<Suspect>> = BTreeMap::new();
        for suspect in suspects {
            by_server.entry(suspect.server).or_default().push(suspect);
        }
        let mut lost = Vec::new();
        for (server, mut list) in by_server {
            while !list.is_empty() {
                let some: Vec<Suspect> = list.drain(..list.len().min(ASKED)).collect();
                let answers =
                    self.ask_remains(server, some.iter().map(|one| one.question.clone()).collect()).await?;
                lost.extend(some.into_iter().zip(answers).filter_map(|(suspect, answer)| match answer {
                    Remains::Not(lost) => Some((suspect, lost)),
                    Remains::All | Remains::Name(_) => None,
                }));
            }
        }
        Ok(lost)
    }

    async fn ask_remains(self: &Arc<Service>, server: ServerId, of: Vec<Remain>) -> Result<Vec<Remains>> {
        if server == self.config.server {
            return tokio::task::block_in_place(|| self.remains(&of));
        }
        let count = of.len();
        match self.ask(server, PeerRequest::Remains { of }).await? {
            PeerReply::Remains(answers) if answers.len() == count => Ok(answers),
            other => Err(nonsense(&other)),
        }
    }

    /// What is left here of what others ask for.
    pub(super) fn remains(&self, of: &[Remain]) -> Result<Vec<Remains>> {
        let wanted = of.iter().filter_map(|one| match one {
            Remain::Name { dir, file } => Some((*dir, *file)),
            _ => None,
        });
        let wanted: HashSet<(FileId, FileId)> = wanted.collect();
        let mut found = HashMap::new();
        if !wanted.is_empty() {
            self.store.names().each_entry(&mut |dir, name, target| {
                if wanted.contains(&(dir, target.file)) {
                    found.insert((dir, target.file), name.clone());
                }
                ControlFlow::Continue(())
            })?;
        }
        let answer = |one: &Remain| {
            Ok(match one {
                Remain::Inode(file) => match self.store.names().has_inode(*file)? {
                    true => Remains::All,
                    false => Remains::Not(Lost::Inode),
                },
                Remain::Bytes { file, layout, below } => {
                    let below = (*file).maker().ne(&self.config.server).then_some(*below);
                    self.missing(*file, layout, below)?.map_or(Remains::All, Remains::Not)
                }
                Remain::Name { dir, file } => Remains::Name(found.get(&(*dir, *file)).cloned()),
            })
        };
        of.iter().map(answer).collect()
    }

    /// Puts what is lost as people know it.
    async fn put_paths(self: &Arc<Service>, lost: Vec<(Suspect, Lost)>) -> Result<Losses> {
        let (mut losses, mut room) = (Losses::default(), ROOM);
        let (mut aids, mut dirs) = (self.aids(), HashMap::new());
        let names = self.names_elsewhere(&lost).await;
        for (suspect, what) in lost {
            if losses.list.len() >= TOLD || room == 0 {
                losses.more += 1;
                continue;
            }
            let Suspect { server, file, dir, name, .. } = suspect;
            let name = name.or_else(|| names.get(&(dir, file)).cloned());
            let above = self.path_of(dir, &mut dirs, &mut aids).await;
            let path = above
                .zip(name.as_ref())
                .map(|(above, name)| [&above, b"/".as_slice(), name.as_bytes()].concat());
            room = room.saturating_sub(path.as_ref().map_or(0, Vec::len) + 64);
            losses.list.push(Loss { server, what, file, dir, name, path });
        }
        losses.list.sort_by(|a, b| (&a.path, a.file).cmp(&(&b.path, b.file)));
        Ok(losses)
    }

    /// Names of files of ours that are at home on other servers. One that does not answer knows none.
    async fn names_elsewhere(
        self: &Arc<Service>,
        lost: &[(Suspect, Lost)],
    ) -> HashMap<(FileId, FileId), Name> {
        let nameless = lost.iter().filter(|(suspect, _)| suspect.name.is_none()).take(ASKED);
        let nameless: Vec<(FileId, FileId)> =
            nameless.map(|(suspect, _)| (suspect.dir, suspect.file)).collect();
        let mut names = HashMap::new();
        if nameless.is_empty() {
            return names;
        }
        let questions: Vec<Remain> = nameless.iter().map(|&(dir, file)| Remain::Name { dir, file }).collect();
        for server in self.others() {
            let Ok(answers) = self.ask_remains(server, questions.clone()).await else { continue };
            for (place, answer) in nameless.iter().zip(answers) {
                if let Remains::Name(Some(name)) = answer {
                    names.insert(*place, name);
                }
            }
        }
        names
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
