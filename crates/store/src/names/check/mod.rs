//! Is a namespace what it should be?

mod mend;
mod read;

pub use mend::repair;

use super::key::Target;
use super::talk::IntentId;
use super::{Names, Share};
use crate::meta::Kv;
use forebay_model::{FileId, FileKind, Members, Name, ServerId};
use mend::Mend;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Most findings that are told one by one.
const MAX_FINDINGS: usize = 1000;

/// Reads the whole namespace of a server that is alone and says what is wrong with it, one sentence each; nothing if
/// all is well. To be used while nobody changes it.
#[must_use]
pub fn check(kv: &dyn Kv) -> Vec<String> {
    Checker::run(None, &[kv]).report()
}

/// As [`check`], over the stores of all servers of a service. What a store that is not given should hold is taken to
/// be there.
#[must_use]
pub fn check_all(members: &Members, stores: &[&dyn Kv]) -> Vec<String> {
    Checker::run(Some(members), stores).report()
}

/// What is known of an inode.
struct Seen {
    kind: FileKind,
    parents: Vec<FileId>,
    /// What a directory says it is called.
    name: Option<Name>,
    /// The entries that were found for it.
    names: Vec<(FileId, Name)>,
    orphan: bool,
    store: usize,
}

/// What a home says about a directory, and what is there.
#[derive(Default)]
struct Counted {
    says: Option<Share>,
    found: u32,
}

/// Something that is wrong.
struct Finding {
    what: String,
    /// How it can be mended.
    mend: Option<Mend>,
}

#[derive(Default)]
struct Checker<'a> {
    members: Option<&'a Members>,
    /// The servers of the stores, in their order.
    servers: Vec<Option<ServerId>>,
    seen: HashMap<FileId, Seen>,
    counted: BTreeMap<(usize, FileId), Counted>,
    /// Who has to finish which intents, and which of them are done.
    prepared: Vec<(usize, IntentId)>,
    decided: HashSet<IntentId>,
    findings: Vec<Finding>,
    untold: usize,
}

impl<'a> Checker<'a> {
    fn run(members: Option<&'a Members>, stores: &[&dyn Kv]) -> Checker<'a> {
        let mut checker = Checker { members, ..Checker::default() };
        let steps = [
            Checker::inodes,
            Checker::entries,
            Checker::shares,
            Checker::orphans,
            Checker::xattrs,
            Checker::intents,
        ];
        stores.iter().for_each(|kv| checker.mark(*kv));
        for step in steps {
            for (store, kv) in stores.iter().enumerate() {
                if let Err(error) = step(&mut checker, store, *kv) {
                    checker.find(format!("the metadata store cannot be read: {error}"));
                }
            }
        }
        checker.complete();
        checker.names();
        checker.counts();
        checker.open_intents();
        checker.reachable();
        checker
    }

    fn find(&mut self, what: String) {
        self.find_and_mend(what, None);
    }

    fn find_and_mend(&mut self, what: String, mend: Option<Mend>) {
        match self.findings.len() < MAX_FINDINGS || mend.is_some() {
            true => self.findings.push(Finding { what, mend }),
            false => self.untold += 1,
        }
    }

    fn report(self) -> Vec<String> {
        let more = self.findings.len().saturating_sub(MAX_FINDINGS) + self.untold;
        let mut told: Vec<_> = self.findings.into_iter().take(MAX_FINDINGS).map(|found| found.what).collect();
        if more > 0 {
            told.push(format!("and {more} more"));
        }
        told
    }

    /// Whether the store that should hold an inode is not among those that were read.
    fn is_absent(&self, file: FileId) -> bool {
        self.members.is_some_and(|members| {
            let authority = members.authority(file);
            members.contains(authority) && !self.servers.contains(&Some(authority))
        })
    }

    /// Says which stores are missing.
    fn complete(&mut self) {
        let Some(members) = self.members else { return };
        for server in members.servers() {
            if !self.servers.contains(&Some(server)) {
                self.find(format!("the store of server {server} was not checked"));
            }
        }
        for server in self.servers.clone().into_iter().flatten() {
            if !members.contains(server) {
                self.find(format!(
                    "server {server}, whose store was checked, does not belong to the service"
                ));
            }
        }
    }

    fn entry(&mut self, store: usize, dir: FileId, name: Name, target: Target) {
        let entry = format!("entry {name:?} of directory {dir}");
        if let (Some(members), Some(server)) = (self.members, self.servers[store])
            && members.home(dir, &name) != server
        {
            let home = members.home(dir, &name);
            self.find(format!("{entry} is on server {server}, but at home on server {home}"));
        }
        let is_dir = target.kind == FileKind::Directory;
        self.counted.entry((store, dir)).or_default().found += u32::from(is_dir);
        match self.seen.get(&dir) {
            None if self.is_absent(dir) => {}
            None => self.find(format!("{entry}: there is no such directory")),
            Some(parent) if parent.kind != FileKind::Directory => {
                self.find(format!("{entry}: that is not a directory"));
            }
            Some(_) => {}
        }
        let absent = self.is_absent(target.file);
        match self.seen.get_mut(&target.file) {
            None if absent => {}
            None => {
                let mend = Mend::Entry { store, dir, name };
                self.find_and_mend(format!("{entry}: its inode {} is missing", target.file), Some(mend));
            }
            Some(child) => {
                child.names.push((dir, name));
                if child.kind != target.kind {
                    self.find(format!("{entry}: its inode {} is of another kind", target.file));
                }
            }
        }
    }

    /// Does every inode know its names?
    fn names(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        let mut ids: Vec<_> = seen.keys().copied().collect();
        ids.sort_unstable();
        let whole = self.members.is_none_or(|members| members.all().len() == self.servers.len());
        for id in ids {
            let inode = seen.get_mut(&id).expect("the ids are those of the map");
            let mut names: Vec<_> = inode.names.iter().map(|(dir, _)| *dir).collect();
            if id == FileId::ROOT {
                // The one directory without an entry.
                names.push(FileId::ROOT);
            }
            names.sort_unstable();
            inode.parents.sort_unstable();
            if names != inode.parents && whole {
                let mend = Mend::Parents { store: inode.store, file: id, parents: names.clone() };
                let safe = !names.is_empty() && (inode.kind != FileKind::Directory || names.len() == 1);
                let text = format!(
                    "inode {id} says it has names in directories {:?}, but they are in {names:?}",
                    inode.parents
                );
                self.find_and_mend(text, safe.then_some(mend));
            }
            if let ([(_, name)], FileKind::Directory) = (&inode.names[..], inode.kind)
                && inode.name.as_ref() != Some(name)
            {
                let mend = Mend::Name { store: inode.store, dir: id, name: name.clone() };
                self.find_and_mend(
                    format!("directory {id} does not know that it is called {name:?}"),
                    Some(mend),
                );
            }
            if whole {
                self.nameless(id, inode, names.is_empty());
            }
        }
        self.seen = seen;
    }

    fn nameless(&mut self, id: FileId, inode: &Seen, nameless: bool) {
        match (inode.kind, nameless, inode.orphan) {
            (FileKind::File, true, false) => {
                let mend = Mend::Orphan { store: inode.store, file: id };
                self.find_and_mend(format!("file {id} has no name and is no orphan"), Some(mend));
            }
            (FileKind::File, true, true) | (_, false, false) => {}
            (_, true, _) => self.find(format!("inode {id} has no name")),
            (_, false, true) => self.find(format!("orphan {id} has a name")),
        }
    }

    /// Is what each home counts for a directory right?
    fn counts(&mut self) {
        for ((store, dir), Counted { says, found }) in std::mem::take(&mut self.counted) {
            let exists = self.seen.get(&dir).is_some_and(|seen| seen.kind == FileKind::Directory);
            let mend = Some(Mend::Share { store, dir, subdirs: exists.then_some(found) });
            if !exists && says.is_some() && !self.is_absent(dir) {
                self.find_and_mend(format!("counts of directory {dir}, which does not exist"), mend);
            } else if exists && says.unwrap_or_default().subdirs != found {
                let says = says.unwrap_or_default().subdirs;
                let text = format!("directory {dir} says it holds {says} directories, but they are {found}");
                self.find_and_mend(text, mend);
            } else if exists && says.is_none() {
                self.find_and_mend(
                    format!("nothing is counted for directory {dir}, but it has entries"),
                    mend,
                );
            }
        }
    }

    /// Is anything locked?
    fn open_intents(&mut self) {
        for (store, intent) in std::mem::take(&mut self.prepared) {
            let server = self.servers[store].map_or_else(|| "?".to_owned(), |server| server.to_string());
            let coordinator = intent.coordinator();
            let text = match self.decided.contains(&intent) {
                true => format!("server {server} has not finished {intent:?} of server {coordinator}"),
                false => format!(
                    "server {server} has prepared {intent:?}, which server {coordinator} does not know"
                ),
            };
            self.find_and_mend(text, Some(Mend::Intents));
        }
    }

    /// Does every directory lead up to the root?
    fn reachable(&mut self) {
        if self.seen.get(&FileId::ROOT).is_none_or(|root| root.kind != FileKind::Directory) {
            if !self.is_absent(FileId::ROOT) {
                self.find("the root directory is missing".to_owned());
            }
            return;
        }
        let mut good = HashSet::from([FileId::ROOT]);
        let mut lost = Vec::new();
        for (&id, seen) in &self.seen {
            if seen.kind != FileKind::Directory {
                continue;
            }
            let (mut way, mut on_way, mut at) = (Vec::new(), HashSet::new(), id);
            while !good.contains(&at) && on_way.insert(at) {
                way.push(at);
                match self.seen.get(&at).and_then(|seen| seen.parents.first()) {
                    Some(&above) => at = above,
                    None => break,
                }
            }
            match good.contains(&at) || self.is_absent(at) {
                true => good.extend(way),
                false => lost.push(id),
            }
        }
        lost.sort_unstable();
        for id in lost {
            self.find(format!("directory {id} is not below the root"));
        }
    }
}

/// Opens the namespaces of all stores, so that they can be mended.
fn open_all(members: &Members, stores: &[Arc<dyn Kv>]) -> forebay_model::Result<Vec<Names>> {
    let members = Arc::new(members.clone());
    let open = |kv: &Arc<dyn Kv>| {
        let server = super::ids::Mark::load(&**kv)?.server;
        if !members.contains(server) {
            return Err(super::damaged(format!("it says that it is of server {server}, which is not known")));
        }
        let names = Names::open(Arc::clone(kv), server)?;
        names.join(Arc::clone(&members), Box::new(|_| false))?;
        Ok(names)
    };
    stores.iter().map(open).collect()
}
