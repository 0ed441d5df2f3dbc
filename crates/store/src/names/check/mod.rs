//! Consistency check of a namespace.

mod mend;
mod read;
mod sizes;

pub use mend::repair;
pub(crate) use mend::repair_at_rest;

use super::key::Target;
use super::messages::IntentId;
use super::{Extent, Names, Share};
use crate::data::{Journals, Rest};
use crate::meta::Kv;
use forebay_model::{FileId, FileKind, Incarnation, Layout, Members, Name, ServerId, list};
use mend::Mend;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Maximum number of findings reported individually.
const MAX_FINDINGS: usize = 1000;
/// Maximum number of directories above a file; more indicate a loop.
const MAX_DEPTH: usize = 4096;

/// Checks the whole namespace of a single server and returns one sentence per flaw. No server may be running on the
/// store.
#[must_use]
pub fn check(kv: &dyn Kv) -> Vec<String> {
    sentences(Checker::run(None, &[kv], &[]).report())
}

/// Like [`check`], over the stores of all servers of a service. Records of a store that is not given are assumed to
/// exist.
#[must_use]
pub fn check_all(members: &Members, stores: &[&dyn Kv]) -> Vec<String> {
    sentences(Checker::run(Some(members), stores, &[]).report())
}

/// Like [`check_all`], with the journals of all stores; also returns the kind of each flaw.
pub(crate) fn check_at_rest(members: &Members, stores: &[&dyn Kv], journals: &[Journals<'_>]) -> Vec<Flaw> {
    let members = Some(members).filter(|members| !members.is_single());
    Checker::run(members, stores, journals).report()
}

fn sentences(flaws: Vec<Flaw>) -> Vec<String> {
    flaws.into_iter().map(|flaw| flaw.what).collect()
}

/// The kind of a flaw.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A record cannot be read, or a store is missing.
    Store,
    /// A name is dangling or misplaced.
    Name,
    /// Names or subdirectories are miscounted.
    Links,
    /// A file has no name, or a record belongs to no file.
    Orphan,
    /// Directories form a loop.
    Loop,
    /// An operation over several servers was not finished.
    Intent,
    /// A size is wrong.
    Size,
    /// Bytes were lost with an earlier store.
    Lost,
    /// A region cannot be read.
    Region,
}

/// A flaw of the stores of a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Flaw {
    /// The kind.
    pub kind: Kind,
    /// A sentence for display.
    pub what: String,
    /// Whether a repair fixes it without losing data.
    pub safe: bool,
}

/// What the check knows of an inode.
struct Seen {
    kind: FileKind,
    parents: Vec<FileId>,
    /// The name recorded in a directory's inode.
    name: Option<Name>,
    /// The entries that lead to it.
    names: Vec<(FileId, Name)>,
    orphan: bool,
    store: usize,
    /// The layout of a file's bytes, and the recorded size.
    bytes: Option<Box<(Layout, Extent)>>,
    /// The incarnations of the stores that hold its bytes.
    incarnations: Vec<Incarnation>,
}

/// A server's share of a directory: recorded and actual values.
#[derive(Default)]
struct Counted {
    says: Option<Share>,
    found: u32,
}

/// A flaw found.
struct Finding {
    kind: Kind,
    what: String,
    /// How it can be repaired.
    mend: Option<Mend>,
}

#[derive(Default)]
struct Checker<'a> {
    members: Option<&'a Members>,
    /// The servers of the stores, in order.
    servers: Vec<Option<ServerId>>,
    seen: HashMap<FileId, Seen>,
    counted: BTreeMap<(usize, FileId), Counted>,
    /// Unfinished prepared intents by store.
    prepared: Vec<(usize, IntentId)>,
    decided: HashSet<IntentId>,
    /// The bytes of files in the stores.
    rests: Vec<Rest>,
    /// Directories that have entries but no inode.
    missing: BTreeSet<FileId>,
    /// Names of missing directories.
    dangling: Vec<(usize, FileId, Name, FileId)>,
    /// The high-water mark of ids of each store.
    marks: Vec<u64>,
    findings: Vec<Finding>,
    unreported: usize,
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
            false => self.unreported += 1,
        }
    }

    fn report(self) -> Vec<Flaw> {
        let more = self.findings.len().saturating_sub(MAX_FINDINGS) + self.unreported;
        let flaws = self.findings.into_iter().take(MAX_FINDINGS).map(|found| Flaw {
            kind: found.kind,
            what: found.what,
            safe: found.mend.is_some_and(|mend| !mend.takes_away()),
        });
        let mut flaws: Vec<Flaw> = flaws.collect();
        if more > 0 {
            flaws.push(Flaw { kind: Kind::Store, what: format!("and {more} more"), safe: false });
        }
        flaws
    }

    /// Whether the store that should hold an inode was not given.
    fn is_absent(&self, file: FileId) -> bool {
        self.members.is_some_and(|members| {
            let authority = members.authority(file);
            members.contains(authority) && !self.servers.contains(&Some(authority))
        })
    }

    /// Reports the missing stores.
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
                    "server {server}, whose store was checked, is not a member of the service"
                ));
            }
        }
    }

    fn entry(&mut self, store: usize, dir: FileId, name: Name, target: Target) {
        let entry = format!("entry {name} of directory {dir}", name = name.quoted());
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
                    let text = format!("{entry}: its inode {} has another type", target.file);
                    self.find_kind(Kind::Name, text, None);
                }
            }
        }
    }

    /// Checks that every inode records its names.
    fn names(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        let mut ids: Vec<_> = seen.keys().copied().collect();
        ids.sort_unstable();
        let whole = self.members.is_none_or(|members| members.all().len() == self.servers.len());
        for id in ids {
            let inode = seen.get_mut(&id).expect("the ids are those of the map");
            let mut names: Vec<_> = inode.names.iter().map(|(dir, _)| *dir).collect();
            if id == FileId::ROOT {
                // The root is the only directory without an entry.
                names.push(FileId::ROOT);
            }
            names.sort_unstable();
            inode.parents.sort_unstable();
            if names != inode.parents && whole {
                let mend = Mend::Parents { store: inode.store, file: id, parents: names.clone() };
                let safe = !names.is_empty() && (inode.kind != FileKind::Directory || names.len() == 1);
                let text = format!(
                    "inode {id} says it has names in directories {}, but they are in {}",
                    list(&inode.parents),
                    list(&names)
                );
                self.find_kind(Kind::Links, text, safe.then_some(mend));
            }
            if let ([(_, name)], FileKind::Directory) = (&inode.names[..], inode.kind)
                && inode.name.as_ref() != Some(name)
            {
                let mend = Mend::Name { store: inode.store, dir: id, name: name.clone() };
                let text =
                    format!("directory {id} does not know that it is called {name}", name = name.quoted());
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
                    // It had a name that was not removed by an operation.
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

    /// Checks the share of every server for a directory.
    fn counts(&mut self) {
        for ((store, dir), Counted { says, found }) in std::mem::take(&mut self.counted) {
            let exists = self.seen.get(&dir).is_some_and(|seen| seen.kind == FileKind::Directory);
            let mend = Some(Mend::Share { store, dir, subdirs: exists.then_some(found) });
            if !exists && says.is_some() && !self.is_absent(dir) {
                let text = format!("counts of directory {dir}, which does not exist");
                // The directory will be recreated if it has entries.
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

    /// Checks for unfinished intents.
    fn open_intents(&mut self) {
        for (store, intent) in std::mem::take(&mut self.prepared) {
            let server = self.servers[store].map_or_else(|| "?".to_owned(), |server| server.to_string());
            let coordinator = intent.coordinator();
            let text = match self.decided.contains(&intent) {
                true => {
                    format!("server {server} has not finished intent {} of server {coordinator}", intent.0)
                }
                false => format!(
                    "server {server} has prepared intent {}, which server {coordinator} does not know",
                    intent.0
                ),
            };
            self.find_kind(Kind::Intent, text, Some(Mend::Intents));
        }
    }

    /// Checks that every directory is reachable from the root.
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

    /// Directories of which only entries remain can get a new inode, and keep a remaining name.
    fn revive(&mut self) {
        let mut missing = std::mem::take(&mut self.missing);
        for (store, dir, name, file) in std::mem::take(&mut self.dangling) {
            let text =
                format!("entry {name} of directory {dir}: its inode {file} is missing", name = name.quoted());
            let mend = match self.store_for_inode(file).filter(|_| missing.remove(&file)) {
                Some(store_for_inode) => {
                    Mend::Revive { store: store_for_inode, dir: file, name: Some((dir, name)) }
                }
                None => Mend::Entry { store, dir, name },
            };
            self.find_kind(Kind::Name, text, Some(mend));
        }
        for dir in missing {
            let mend = self.store_for_inode(dir).map(|store| Mend::Revive { store, dir, name: None });
            self.find_kind(Kind::Orphan, format!("directory {dir} has entries, and no inode or name"), mend);
        }
    }

    /// The store for the new inode of a lost file: one that will not allocate its id again.
    fn store_for_inode(&self, file: FileId) -> Option<usize> {
        let authority = self.members.map_or(file.maker(), |members| members.authority(file));
        let store = self.servers.iter().position(|server| *server == Some(authority))?;
        (file.count() < self.marks[store]).then_some(store)
    }
}

/// Opens the namespaces of all stores for repair.
fn open_all(members: &Members, stores: &[Arc<dyn Kv>]) -> forebay_model::Result<Vec<Names>> {
    let members = Arc::new(members.clone());
    let open = |kv: &Arc<dyn Kv>| {
        let server = super::ids::Mark::load(&**kv)?.server;
        if !members.contains(server) {
            return Err(super::damaged(format!(
                "it belongs to server {server}, which is not a member of the service"
            )));
        }
        let names = Names::open(Arc::clone(kv), server)?;
        names.join(Arc::clone(&members), Box::new(|_| false))?;
        Ok(names)
    };
    stores.iter().map(open).collect()
}
