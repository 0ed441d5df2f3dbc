//! Mending what can be mended without losing anything.

use super::{Checker, open_all};
use crate::meta::{Batch, Kv};
use crate::names::{Ask, Inode, Names, Share, key};
use forebay_model::{FileId, Members, Name, Result};
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
}

/// Mends what is safe to mend in the stores of all servers of a service, and says what it did. Names that lead nowhere
/// are taken away only if `drop_dangling`: what they led to may come back with a copy of a store. To be used while
/// nobody serves the stores.
pub fn repair(members: &Members, stores: &[Arc<dyn Kv>], drop_dangling: bool) -> Result<Vec<String>> {
    let mut done = settle_intents(&open_all(members, stores)?)?;
    let plain: Vec<&dyn Kv> = stores.iter().map(|kv| &**kv).collect();
    // Taking a name away changes counts.
    for _ in 0..2 {
        let found = Checker::run(Some(members), &plain);
        for finding in found.findings {
            match finding.mend {
                None | Some(Mend::Intents) => {}
                Some(Mend::Entry { .. }) if !drop_dangling => {}
                Some(mend) => {
                    mend.apply(&plain)?;
                    done.push(format!("mended: {}", finding.what));
                }
            }
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
    fn apply(self, stores: &[&dyn Kv]) -> Result<()> {
        let mut batch = Batch::default();
        let store = match self {
            Mend::Intents => return Ok(()),
            Mend::Share { store, dir, subdirs } => {
                let old =
                    stores[store].get(&key::share(dir))?.and_then(|value| Share::decode(dir, &value).ok());
                match subdirs {
                    Some(subdirs) => {
                        let share = Share { subdirs, touched: old.and_then(|share| share.touched) };
                        batch.put(key::share(dir), share.encode());
                    }
                    None => batch.remove(key::share(dir)),
                }
                store
            }
            Mend::Parents { store, file, parents } => {
                change(stores[store], &mut batch, file, |inode| inode.parents = parents)?;
                store
            }
            Mend::Name { store, dir, name } => {
                change(stores[store], &mut batch, dir, |inode| inode.call(&name))?;
                store
            }
            Mend::Orphan { store, file } => {
                change(stores[store], &mut batch, file, |inode| inode.parents.clear())?;
                batch.put(key::orphan(file), []);
                store
            }
            Mend::Entry { store, dir, name } => {
                batch.remove(key::entry(dir, &name));
                store
            }
        };
        stores[store].commit(batch)
    }
}

fn change(kv: &dyn Kv, batch: &mut Batch, file: FileId, change: impl FnOnce(&mut Inode)) -> Result<()> {
    if let Some(value) = kv.get(&key::inode(file))? {
        let mut inode = Inode::decode(file, &value)?;
        change(&mut inode);
        batch.put(key::inode(file), inode.encode());
    }
    Ok(())
}
