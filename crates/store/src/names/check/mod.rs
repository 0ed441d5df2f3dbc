//! Is a namespace what it should be?

mod mend;
mod read;
mod sizes;

pub use mend::repair;
pub(crate) use mend::repair_at_rest;

use super::key::Target;
use super::talk::IntentId;
use super::{Extent, Names, Share};
use crate::data::{Journals, Rest};
use crate::meta::Kv;
use forebay_model::{FileId, FileKind, Incarnation, Layout, Members, Name, ServerId};
use mend::Mend;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Most findings that are told one by one.
const MAX_FINDINGS: usize = 1000;
/// Most directories above a file; more are a loop.
const MAX_DEPTH: usize = 4096;

/// Reads the whole namespace of a server that is alone and says what is wrong with it, one sentence each; nothing if
/// all is well. To be used while nobody changes it.
#[must_use]
pub fn check(kv: &dyn Kv) -> Vec<String> {
    sentences(Checker::run(None, &[kv], &[]).report())
}

/// As [`check`], over the stores of all servers of a service. What a store that is not given should hold is taken to
/// be there.
#[must_use]
pub fn check_all(members: &Members, stores: &[&dyn Kv]) -> Vec<String> {
    sentences(Checker::run(Some(members), stores, &[]).report())
}

/// As [`check_all`] with the journals of all stores, and what kind of thing each is.
pub(crate) fn check_at_rest(members: &Members, stores: &[&dyn Kv], journals: &[Journals<'_>]) -> Vec<Flaw> {
    let members = Some(members).filter(|members| !members.is_single());
    Checker::run(members, stores, journals).report()
}

fn sentences(flaws: Vec<Flaw>) -> Vec<String> {
    flaws.into_iter().map(|flaw| flaw.what).collect()
}

/// What kind of thing is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A record cannot be read, or a store is missing.
    Store,
    /// A name leads nowhere, or is in the wrong place.
    Name,
    /// Names or directories are miscounted.
    Links,
    /// Something has no name, or belongs to nothing.
    Orphan,
    /// Directories are in each other.
    Loop,
    /// Something over several servers was never finished.
    Intent,
    /// A length is wrong.
    Size,
    /// Bytes were lost with an earlier store.
    Lost,
    /// A region cannot be read.
    Region,
}

/// Something that is wrong with the stores of a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Flaw {
    /// What kind of thing.
    pub kind: Kind,
    /// A sentence for people.
    pub what: String,
    /// Whether repairing takes care of it, without losing anything.
    pub safe: bool,
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
    /// Where the bytes of a file are, and what is said of its length.
    bytes: Option<Box<(Layout, Extent)>>,
    /// Which lives of their stores hold its bytes.
    lives: Vec<Incarnation>,
}

/// What a home says about a directory, and what is there.
#[derive(Default)]
struct Counted {
    says: Option<Share>,
    found: u32,
}

/// Something that is wrong.
struct Finding {
    kind: Kind,
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
    /// What the stores hold of files' bytes.
    rests: Vec<Rest>,
    /// Directories that do not exist, and have entries.
    missing: BTreeSet<FileId>,
    /// Names of directories that do not exist.
    dangling: Vec<(usize, FileId, Name, FileId)>,
    /// The first count of an id that each store has not handed out.
    marks: Vec<u64>,
    findings: Vec<Finding>,
    untold: usize,
}

impl<'a> Checker<'a> {
    fn run(members: Option<&'a Members>, stores: &[&dyn Kv], journals: &[Journals<'_>]) -> Checker<'a> {
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
        for (store, kv) in stores.iter().enumerate() {
            let rest = Rest::read(*kv, journals.get(store).copied());
            let rest =
                rest.unwrap_or_else(|error| Rest { faults: vec![error.to_string()], ..Rest::default() });
            checker.rests.push(rest);
        }
        checker.complete();
        checker.names();
        checker.counts();
        checker.open_intents();
        checker.reachable();
        checker.revive();
        checker.sizes();
        checker
    }

    fn find(&mut self, what: String) {
        self.find_kind(Kind::Store, what, None);
    }

    fn find_kind(&mut self, kind: Kind, what: String, mend: Option<Mend>) {
        match self.findings.len() < MAX_FINDINGS || mend.is_some() {
            true => self.findings.push(Finding { kind, what, mend }),
            false => self.untold += 1,
        }
    }

    fn report(self) -> Vec<Flaw> {
        let more = self.findings.len().saturating_sub(MAX_FINDINGS) + self.untold;
        let told = self.findings.into_iter().take(MAX_FINDINGS).map(|found| Flaw {
            kind: found.kind,
            what: found.what,
            safe: found.mend.is_some_and(|mend| !mend.takes_away()),
        });
        let mut told: Vec<Flaw> = told.collect();
        if more > 0 {
            told.push(Flaw { kind: Kind::Store, what: format!("and {more} more"), safe: false });
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
            self.find_kind(
                Kind::Name,
                format!("{entry} is on server {server}, but at home on server {home}"),
                None,
            );
        }
        let is_dir = target.kind == FileKind::Directory;
        self.counted.entry((store, dir)).or_default().found += u32::from(is_dir);
        match self.seen.get(&dir) {
            None if self.is_absent(dir) => {}
            None => {
                self.missing.insert(dir);
                self.find_kind(Kind::Orphan, format!("{entry}: there is no such directory"), None);
            }
            Some(parent) if parent.kind != FileKind::Directory => {
                self.find_kind(Kind::Name, format!("{entry}: that is not a directory"), None);
            }
            Some(_) => {}
        }
        let absent = self.is_absent(target.file);
        match self.seen.get_mut(&target.file) {
            None if absent => {}
            None if is_dir => self.dangling.push((store, dir, name, target.file)),
            None => {
                let mend = Mend::Entry { store, dir, name };
                let text = format!("{entry}: its inode {} is missing", target.file);
                self.find_kind(Kind::Name, text, Some(mend));
            }
            Some(child) => {
                child.names.push((dir, name));
                if child.kind != target.kind {
                    let text = format!("{entry}: its inode {} is of another kind", target.file);
                    self.find_kind(Kind::Name, text, None);
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
                self.find_kind(Kind::Links, text, safe.then_some(mend));
            }
            if let ([(_, name)], FileKind::Directory) = (&inode.names[..], inode.kind)
                && inode.name.as_ref() != Some(name)
            {
                let mend = Mend::Name { store: inode.store, dir: id, name: name.clone() };
                let text = format!("directory {id} does not know that it is called {name:?}");
                self.find_kind(Kind::Name, text, Some(mend));
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
                let mend = match inode.parents.is_empty() {
                    true => mend,
                    // It had one, and nobody has taken it away.
                    false => Mend::Adopt { store: inode.store, file: id, kind: inode.kind },
                };
                let text = format!("file {id} has no name and is no orphan");
                self.find_kind(Kind::Orphan, text, Some(mend));
            }
            (FileKind::File, true, true) | (_, false, false) => {}
            (kind, true, _) => {
                let mend = Mend::Adopt { store: inode.store, file: id, kind };
                self.find_kind(Kind::Orphan, format!("inode {id} has no name"), Some(mend));
            }
            (_, false, true) => self.find_kind(Kind::Orphan, format!("orphan {id} has a name"), None),
        }
    }

    /// Is what each home counts for a directory right?
    fn counts(&mut self) {
        for ((store, dir), Counted { says, found }) in std::mem::take(&mut self.counted) {
            let exists = self.seen.get(&dir).is_some_and(|seen| seen.kind == FileKind::Directory);
            let mend = Some(Mend::Share { store, dir, subdirs: exists.then_some(found) });
            if !exists && says.is_some() && !self.is_absent(dir) {
                let text = format!("counts of directory {dir}, which does not exist");
                // It comes back if entries are left of it.
                let mend = mend.filter(|_| !self.missing.contains(&dir));
                self.find_kind(Kind::Links, text, mend);
            } else if exists && says.unwrap_or_default().subdirs != found {
                let says = says.unwrap_or_default().subdirs;
                let text = format!("directory {dir} says it holds {says} directories, but they are {found}");
                self.find_kind(Kind::Links, text, mend);
            } else if exists && says.is_none() {
                let text = format!("nothing is counted for directory {dir}, but it has entries");
                self.find_kind(Kind::Links, text, mend);
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
            self.find_kind(Kind::Intent, text, Some(Mend::Intents));
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
                false => lost.push((id, self.seen.contains_key(&at))),
            }
        }
        lost.sort_unstable();
        for (id, in_loop) in lost {
            let (kind, why) = match in_loop {
                true => (Kind::Loop, "it is in a loop, or below one"),
                false => (Kind::Orphan, "a directory above it is missing"),
            };
            self.find_kind(kind, format!("directory {id} is not below the root: {why}"), None);
        }
    }

    /// Directories of which only entries are left can be given an inode again, and keep a name that is left of them.
    fn revive(&mut self) {
        let mut missing = std::mem::take(&mut self.missing);
        for (store, dir, name, file) in std::mem::take(&mut self.dangling) {
            let text = format!("entry {name:?} of directory {dir}: its inode {file} is missing");
            let mend = match self.cradle(file).filter(|_| missing.remove(&file)) {
                Some(cradle) => Mend::Revive { store: cradle, dir: file, name: Some((dir, name)) },
                None => Mend::Entry { store, dir, name },
            };
            self.find_kind(Kind::Name, text, Some(mend));
        }
        for dir in missing {
            let mend = self.cradle(dir).map(|store| Mend::Revive { store, dir, name: None });
            self.find_kind(Kind::Orphan, format!("directory {dir} has entries, and no inode or name"), mend);
        }
    }

    /// The store that can hold the inode of a file of which nothing is left: one that will not hand out its id again.
    fn cradle(&self, file: FileId) -> Option<usize> {
        let authority = self.members.map_or(file.maker(), |members| members.authority(file));
        let store = self.servers.iter().position(|server| *server == Some(authority))?;
        (file.count() < self.marks[store]).then_some(store)
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
