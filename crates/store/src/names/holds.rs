//! Locks of intents on entries, inodes and sealed directories. They are in memory; after a restart they are restored
//! from the prepared parts in the store.

use super::messages::{IntentId, Part};
use super::{Attempt, Obstacle};
use forebay_model::{FileId, Name};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A caller that needs the result to stay true holds the stripes of the ids concerned.
#[derive(Default)]
pub(super) struct Holds {
    /// Number of locks, so that the common case of none is cheap.
    count: AtomicUsize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    entries: HashMap<FileId, HashMap<Name, IntentId>>,
    inodes: HashMap<FileId, IntentId>,
    sealed: HashMap<FileId, IntentId>,
}

impl Holds {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    fn check(&self, who: impl FnOnce(&Held) -> Option<IntentId>) -> Attempt<()> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        match who(&self.held()) {
            Some(intent) => Err(Obstacle::Intent(intent).into()),
            None => Ok(()),
        }
    }

    /// Fails if an intent may change the target of an entry.
    pub(super) fn entry_is_settled(&self, dir: FileId, name: &Name) -> Attempt<()> {
        self.check(|held| held.entry(dir, name))
    }

    /// Fails if an entry cannot be changed now.
    pub(super) fn entry_is_free(&self, dir: FileId, name: &Name) -> Attempt<()> {
        self.check(|held| held.entry(dir, name).or_else(|| held.sealed.get(&dir).copied()))
    }

    /// Fails if an intent may change any entry of a directory.
    pub(super) fn entries_are_settled(&self, dir: FileId) -> Attempt<()> {
        self.check(|held| held.entries.get(&dir).and_then(|names| names.values().next().copied()))
    }

    /// Fails if an intent may change the names of a file.
    pub(super) fn file_is_free(&self, file: FileId) -> Attempt<()> {
        self.check(|held| held.inodes.get(&file).copied())
    }

    /// An intent that has locked something one of these parts needs.
    pub(super) fn conflicting<'a>(&self, mut parts: impl Iterator<Item = &'a Part>) -> Option<IntentId> {
        let held = self.held();
        parts.find_map(|part| held.conflicting(part))
    }

    /// Locks all parts of an intent; or nothing, and returns the conflicting intent.
    pub(super) fn take<'a>(
        &self,
        intent: IntentId,
        parts: impl Iterator<Item = &'a Part> + Clone,
    ) -> Result<(), IntentId> {
        let mut held = self.held();
        if let Some(other) = parts.clone().find_map(|part| held.conflicting(part)) {
            return Err(other);
        }
        let mut count = 0;
        for part in parts {
            held.insert(intent, part);
            count += 1;
        }
        self.count.fetch_add(count, Ordering::SeqCst);
        Ok(())
    }

    /// Releases the parts of an intent.
    pub(super) fn release<'a>(&self, intent: IntentId, parts: impl Iterator<Item = &'a Part>) {
        let mut held = self.held();
        let removed = parts.map(|part| usize::from(held.remove(intent, part))).sum();
        self.count.fetch_sub(removed, Ordering::SeqCst);
    }
}

impl Held {
    fn entry(&self, dir: FileId, name: &Name) -> Option<IntentId> {
        self.entries.get(&dir).and_then(|names| names.get(name)).copied()
    }

    fn conflicting(&self, part: &Part) -> Option<IntentId> {
        match part {
            Part::Entry { dir, name, .. } => self.entry(*dir, name).or_else(|| self.sealed.get(dir).copied()),
            Part::Inode(part) => self.inodes.get(&part.file).copied(),
            Part::Seal(dir) => {
                let entry = self.entries.get(dir).and_then(|names| names.values().next());
                self.sealed.get(dir).or(entry).copied()
            }
        }
    }

    fn insert(&mut self, intent: IntentId, part: &Part) {
        match part {
            Part::Entry { dir, name, .. } => {
                self.entries.entry(*dir).or_default().insert(name.clone(), intent);
            }
            Part::Inode(part) => drop(self.inodes.insert(part.file, intent)),
            Part::Seal(dir) => drop(self.sealed.insert(*dir, intent)),
        }
    }

    fn remove(&mut self, intent: IntentId, part: &Part) -> bool {
        match part {
            Part::Entry { dir, name, .. } => {
                let Some(names) = self.entries.get_mut(dir) else { return false };
                let ours = names.get(name) == Some(&intent);
                if ours {
                    names.remove(name);
                }
                if names.is_empty() {
                    self.entries.remove(dir);
                }
                ours
            }
            Part::Inode(part) => remove_if(&mut self.inodes, part.file, intent),
            Part::Seal(dir) => remove_if(&mut self.sealed, *dir, intent),
        }
    }
}

fn remove_if(map: &mut HashMap<FileId, IntentId>, id: FileId, intent: IntentId) -> bool {
    let ours = map.get(&id) == Some(&intent);
    if ours {
        map.remove(&id);
    }
    ours
}
