//! Mending what can be mended without losing anything.

use super::{Checker, open_all};
use crate::data::{self, Journals};
use crate::meta::{Batch, Kv};
use crate::names::key::Target;
use crate::names::{Ask, Body, Inode, Names, Share, key};
use forebay_model::{FileId, FileKind, Gid, Members, Name, Result, Stamp, Uid};
use std::sync::Arc;

/// How something that is wrong is mended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Mend {
    /// Finish or undo what was prepared.
    Intents,
    /// Count again; nothing if there is no such directory.
    Share { store: usize, dir: FileId, subdirs: Option<u32> },
    /// Let an inode know its names.
    Parents { store: usize, file: FileId, parents: Vec<FileId> },
    /// Let a directory know its name.
    Name { store: usize, dir: FileId, name: Name },
    /// Note that a file has no name.
    Orphan { store: usize, file: FileId },
    /// Take away a name that leads nowhere.
    Entry { store: usize, dir: FileId, name: Name },
    /// Give what has lost its name another one in the root directory.
    Adopt { store: usize, file: FileId, kind: FileKind },
    /// Make a directory again of which only entries are left, and perhaps a name.
    Revive { store: usize, dir: FileId, name: Option<(FileId, Name)> },
    /// Have a file's length gathered again.
    Unsettle { store: usize, file: FileId },
    /// Have the length of what a store holds of a file found out again.
    Length { store: usize, file: FileId },
    /// Forget the bytes of a file that has no inode.
    Bytes { store: usize, file: FileId, after: Stamp },
}

/// How often what was mended is looked at again: a name changes counts, and a directory that is back its own name's.
const ROUNDS: usize = 4;

/// Mends what is safe to mend in the stores of all servers of a service, and says what it did. Names that lead nowhere
/// are taken away only if `drop_dangling`: what they led to may come back with a copy of a store. To be used while
/// nobody serves the stores.
pub fn repair(members: &Members, stores: &[Arc<dyn Kv>], drop_dangling: bool) -> Result<Vec<String>> {
    repair_at_rest(members, stores, &[], drop_dangling)
}

/// As [`repair`], with the journals of all stores.
pub(crate) fn repair_at_rest(
    members: &Members,
    stores: &[Arc<dyn Kv>],
    journals: &[Journals<'_>],
    drop_dangling: bool,
) -> Result<Vec<String>> {
    let mut done = settle_intents(&open_all(members, stores)?)?;
    let plain: Vec<&dyn Kv> = stores.iter().map(|kv| &**kv).collect();
    for _ in 0..ROUNDS {
        let found = Checker::run(Some(members).filter(|members| !members.is_single()), &plain, journals);
        let servers = found.servers;
        let mut quiet = true;
        for finding in found.findings {
            match finding.mend {
                None | Some(Mend::Intents) => {}
                Some(mend) if mend.takes_away() && !drop_dangling => {}
                Some(mend) => {
                    quiet = false;
                    let home = |name: &Name| {
                        let home = members.home(FileId::ROOT, name);
                        servers.iter().position(|server| *server == Some(home))
                    };
                    if let Some(how) = mend.apply(&plain, &home)? {
                        done.push(format!("{}: {how}", finding.what));
                    }
                }
            }
        }
        if quiet {
            break;
        }
    }
    plain.iter().try_for_each(|kv| kv.sync())?;
    Ok(done)
}

/// Finishes what was decided and undoes what was not. Nobody serves: what no coordinator has noted never was.
fn settle_intents(all: &[Names]) -> Result<Vec<String>> {
    let mut done = Vec::new();
    for names in all {
        for intent in names.prepared() {
            let coordinator = all.iter().find(|other| other.server() == intent.coordinator());
            let verdict = match coordinator {
                Some(coordinator) => coordinator.verdict(intent)?,
                None => None,
            };
            if let Some(verdict) = verdict {
                names.finish(intent, verdict)?;
                done.push(format!("server {}: {intent:?} is {verdict:?} now", names.server()));
            }
        }
    }
    for names in all {
        for (server, ask) in names.unfinished()? {
            let Ask::Finish(intent, _) = ask else { continue };
            let is_there = all.iter().any(|other| other.server() == server);
            if is_there {
                names.told(server, intent)?;
            }
        }
    }
    Ok(done)
}

impl Mend {
    /// Whether something goes that may be wanted, should a copy of a store come back.
    pub(super) fn takes_away(&self) -> bool {
        matches!(self, Mend::Entry { .. } | Mend::Bytes { .. })
    }

    /// Does it, and says what was done; nothing if it could not be done here.
    fn apply(self, stores: &[&dyn Kv], home: &dyn Fn(&Name) -> Option<usize>) -> Result<Option<String>> {
        let mut batch = Batch::default();
        let (store, how) = match self {
            Mend::Intents => return Ok(None),
            Mend::Share { store, dir, subdirs } => {
                count(stores[store], &mut batch, dir, subdirs)?;
                (store, "counted again".to_owned())
            }
            Mend::Parents { store, file, parents } => {
                change(stores[store], &mut batch, file, |inode| inode.parents = parents)?;
                (store, "its names are noted".to_owned())
            }
            Mend::Name { store, dir, name } => {
                change(stores[store], &mut batch, dir, |inode| inode.call(&name))?;
                (store, "it is told".to_owned())
            }
            Mend::Orphan { store, file } => {
                change(stores[store], &mut batch, file, |inode| inode.parents.clear())?;
                batch.put(key::orphan(file), []);
                (store, "it goes when a server starts".to_owned())
            }
            Mend::Entry { store, dir, name } => {
                batch.remove(key::entry(dir, &name));
                (store, "the name is taken away".to_owned())
            }
            Mend::Adopt { store, file, kind } => {
                return adopt(stores, store, Target { file, kind }, None, home);
            }
            Mend::Revive { store, dir, name: None } => {
                let inode = directory(stores, FileId::ROOT, None)?;
                let target = Target { file: dir, kind: FileKind::Directory };
                return adopt(stores, store, target, Some(inode), home);
            }
            Mend::Revive { store, dir, name: Some((parent, name)) } => {
                batch.put(key::inode(dir), directory(stores, parent, Some(name))?.encode());
                (store, "it is made again, for its owner only".to_owned())
            }
            Mend::Unsettle { store, file } => {
                change(stores[store], &mut batch, file, |inode| {
                    if let Body::File { extent, .. } = &mut inode.body {
                        extent.unsettled = true;
                    }
                })?;
                (store, "its length will be gathered again".to_owned())
            }
            Mend::Length { store, file } => {
                data::unsettle(stores[store], file, &mut batch)?;
                (store, "its length will be found out again".to_owned())
            }
            Mend::Bytes { store, file, after } => {
                data::forget(file, after, &mut batch);
                (store, "they are forgotten".to_owned())
            }
        };
        stores[store].commit(batch)?;
        Ok(Some(how))
    }
}

fn count(kv: &dyn Kv, batch: &mut Batch, dir: FileId, subdirs: Option<u32>) -> Result<()> {
    let old = kv.get(&key::share(dir))?.and_then(|value| Share::decode(dir, &value).ok());
    match subdirs {
        Some(subdirs) => {
            let share = Share { subdirs, touched: old.and_then(|share| share.touched) };
            batch.put(key::share(dir), share.encode());
        }
        None => batch.remove(key::share(dir)),
    }
    Ok(())
}

/// Gives something a name in the root directory. Whoever dies in the middle of it finds the rest next time.
fn adopt(
    stores: &[&dyn Kv],
    store: usize,
    target: Target,
    made: Option<Inode>,
    home: &dyn Fn(&Name) -> Option<usize>,
) -> Result<Option<String>> {
    let file = target.file;
    let Ok(name) = Name::new(format!("lost-{file}")) else { return Ok(None) };
    let Some(home) = home(&name) else { return Ok(None) };
    let mut batch = Batch::default();
    match made {
        Some(inode) => batch.put(key::inode(file), named(inode, &name).encode()),
        None => change(stores[store], &mut batch, file, |inode| *inode = named(inode.clone(), &name))?,
    }
    stores[store].commit(batch)?;
    let mut batch = Batch::default();
    batch.put(key::entry(FileId::ROOT, &name), target.encode());
    stores[home].commit(batch)?;
    Ok(Some(format!("it is /{name} now")))
}

/// A directory of which nothing is known: it belongs to whom the root directory belongs to, and to nobody else.
fn directory(stores: &[&dyn Kv], parent: FileId, name: Option<Name>) -> Result<Inode> {
    let mut owner = (Uid(0), Gid(0));
    for kv in stores {
        if let Some(root) = kv.get(&key::inode(FileId::ROOT))? {
            owner = Inode::decode(FileId::ROOT, &root).map_or(owner, |root| (root.uid, root.gid));
        }
    }
    let body = Body::Directory { epoch: 0, name, striping: None };
    Ok(Inode::new(body, parent, 0o700, owner, Stamp::default()))
}

fn named(mut inode: Inode, name: &Name) -> Inode {
    inode.parents = vec![FileId::ROOT];
    inode.call(name);
    inode
}

fn change(kv: &dyn Kv, batch: &mut Batch, file: FileId, change: impl FnOnce(&mut Inode)) -> Result<()> {
    if let Some(value) = kv.get(&key::inode(file))? {
        let mut inode = Inode::decode(file, &value)?;
        change(&mut inode);
        batch.put(key::inode(file), inode.encode());
    }
    Ok(())
}
