//! What intents have locked: entries, inodes, sealed directories. Kept in memory; the notes of prepared parts in the
//! store bring it back after a start.

use super::talk::{IntentId, Part};
use super::{Attempt, Obstacle};
use forebay_model::{FileId, Name};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whoever asks holds the stripes of what is asked about, if the answer has to stay true.
#[derive(Default)]
pub(super) struct Holds {
    /// How many there are, so that nobody pays for what is rarely there.
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
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, who: impl FnOnce(&Held) -> Option<IntentId>) -> Attempt<()> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        match who(&self.held()) {
            Some(intent) => Err(Obstacle::Intent(intent).into()),
            None => Ok(()),
        }
    }

    /// Fails if it is open where a name leads.
    pub(super) fn entry_is_settled(&self, dir: FileId, name: &Name) -> Attempt<()> {
        self.ask(|held| held.entry(dir, name))
    }

    /// Fails if a name cannot be changed just now.
    pub(super) fn entry_is_free(&self, dir: FileId, name: &Name) -> Attempt<()> {
        self.ask(|held| held.entry(dir, name).or_else(|| held.sealed.get(&dir).copied()))
    }

    /// Fails if it is open where some name of a directory leads.
    pub(super) fn entries_are_settled(&self, dir: FileId) -> Attempt<()> {
        self.ask(|held| held.entries.get(&dir).and_then(|names| names.values().next().copied()))
    }

    /// Fails if it is open which names a file has.
    pub(super) fn file_is_free(&self, file: FileId) -> Attempt<()> {
        self.ask(|held| held.inodes.get(&file).copied())
    }

    /// An intent that has locked what one of these parts needs.
    pub(super) fn in_the_way<'a>(&self, mut parts: impl Iterator<Item = &'a Part>) -> Option<IntentId> {
        let held = self.held();
        parts.find_map(|part| held.in_the_way(part))
    }

    /// Locks all of an intent's parts; or nothing, and says which intent is in the way.
    pub(super) fn take<'a>(
        &self,
        intent: IntentId,
        parts: impl Iterator<Item = &'a Part> + Clone,
    ) -> Result<(), IntentId> {
        let mut held = self.held();
        if let Some(other) = parts.clone().find_map(|part| held.in_the_way(part)) {
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

    /// Gives them back.
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

    fn in_the_way(&self, part: &Part) -> Option<IntentId> {
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
