//! Repairs that lose no data.

use super::{Checker, open_all};
use crate::data::{self, Journals};
use crate::meta::{Batch, Kv};
use crate::names::key::Target;
use crate::names::{Body, Inode, NameRequest, Names, Share, Verdict, key};
use forebay_model::{FileId, FileKind, Gid, Members, Name, Result, Stamp, Uid};
use std::sync::Arc;

/// A repair of a flaw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Mend {
    /// Finish or undo prepared intents.
    Intents,
    /// Correct the number of subdirectories; `None` if the directory does not exist.
    Share { store: usize, dir: FileId, subdirs: Option<u32> },
    /// Correct the parents in an inode.
    Parents { store: usize, file: FileId, parents: Vec<FileId> },
    /// Correct the name in a directory's inode.
    Name { store: usize, dir: FileId, name: Name },
    /// Record that a file has no name.
    Orphan { store: usize, file: FileId },
    /// Remove a dangling name.
    Entry { store: usize, dir: FileId, name: Name },
    /// Link a file that has lost its name into the root directory.
    Adopt { store: usize, file: FileId, kind: FileKind },
    /// Recreate a directory of which only entries remain, and possibly a name.
    Revive { store: usize, dir: FileId, name: Option<(FileId, Name)> },
    /// Mark the size of a file as unknown, so that it is gathered again.
    Unsettle { store: usize, file: FileId },
    /// Recompute the size of a store's part of a file.
    Length { store: usize, file: FileId },
    /// Remove the bytes of a file that has no inode.
    Bytes { store: usize, file: FileId, after: Stamp },
}

/// Maximum number of rounds: a repaired name changes counts, and a recreated directory changes the count of its parent.
const ROUNDS: usize = 4;

/// Makes all safe repairs in the stores of all servers of a service and returns a description of each. Dangling names
/// are removed only with `drop_dangling`: their files may return with a copy of a store. No server may be running on
/// the stores.
pub fn repair(members: &Members, stores: &[Arc<dyn Kv>], drop_dangling: bool) -> Result<Vec<String>> {
    repair_at_rest(members, stores, &[], drop_dangling)
}

/// Like [`repair`], with the journals of all stores.
pub(crate) fn repair_at_rest(
    members: &Members,
    stores: &[Arc<dyn Kv>],
    journals: &[Journals<'_>],
    drop_dangling: bool,
) -> Result<Vec<String>> {
    let mut done = resolve_intents(&open_all(members, stores)?)?;
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

/// Finishes decided intents and undoes all others. No server is running, so an intent that its coordinator has not
/// recorded is undone.
fn resolve_intents(all: &[Names]) -> Result<Vec<String>> {
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
                let what = match verdict {
                    Verdict::Done => "finished",
                    Verdict::Undone => "undid",
                };
                done.push(format!("server {}: {what} intent {}", names.server(), intent.0));
            }
        }
    }
    for names in all {
        for (server, ask) in names.unfinished()? {
            let NameRequest::Finish(intent, _) = ask else { continue };
            let is_there = all.iter().any(|other| other.server() == server);
            if is_there {
                names.acknowledged(server, intent)?;
            }
        }
    }
    Ok(done)
}

impl Mend {
    /// Whether the repair removes something that a restored copy of a store might need.
    pub(super) fn takes_away(&self) -> bool {
        matches!(self, Mend::Entry { .. } | Mend::Bytes { .. })
    }

    /// Makes the repair and returns its description; `None` if it cannot be made on these stores.
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
                (store, "recorded its names".to_owned())
            }
            Mend::Name { store, dir, name } => {
                change(stores[store], &mut batch, dir, |inode| inode.call(&name))?;
                (store, "recorded its name".to_owned())
            }
            Mend::Orphan { store, file } => {
                change(stores[store], &mut batch, file, |inode| inode.parents.clear())?;
                batch.put(key::orphan(file), []);
                (store, "a server will remove it at its next start".to_owned())
            }
            Mend::Entry { store, dir, name } => {
                batch.remove(key::entry(dir, &name));
                (store, "removed the name".to_owned())
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
                (store, "recreated it, accessible to its owner only".to_owned())
            }
            Mend::Unsettle { store, file } => {
                change(stores[store], &mut batch, file, |inode| {
                    if let Body::File { extent, .. } = &mut inode.body {
                        extent.size_pending = true;
                    }
                })?;
                (store, "its size will be gathered again".to_owned())
            }
            Mend::Length { store, file } => {
                data::mark_size_pending(stores[store], file, &mut batch)?;
                (store, "its size will be recomputed".to_owned())
            }
            Mend::Bytes { store, file, after } => {
                data::forget(file, after, &mut batch);
                (store, "removed them".to_owned())
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

/// Links a file into the root directory. After a crash in between, the next repair completes it.
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

/// The inode of a directory with unknown attributes: it belongs to the owner of the root directory and is accessible to
/// that owner only.
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
