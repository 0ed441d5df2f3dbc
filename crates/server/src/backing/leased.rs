//! Directories on the paths of leased answers.
//!
//! A client caches an answer until the server invalidates it, and asks no more meanwhile. Others may change the
//! directories on its path in the back end, so the server looks at these directories every second.
//!
//! **Invariant**: while a lease on an answer about a file is valid, the file is not in the back end, and every directory
//! on its path but the root is in the table.

use super::{Backing, BackingLayer, FRESH};
use crate::lifecycle::rested;
use forebay_model::{Attr, ErrorKind, FileId, FileKind, Result};
use forebay_shm::Lease;
use forebay_store::{Body, Inode};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// Most directories that are looked at every second; at the bound all leases end.
const MOST_DIRS: usize = 1024;
/// Longest path whose answers are leased.
const DEEPEST: usize = 64;

/// Directories on the paths of leased answers, with the lease by which the path to each was checked.
#[derive(Default)]
pub(super) struct LeasedDirs(Mutex<HashMap<FileId, Lease>>);

impl LeasedDirs {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Lease>> {
        self.0.lock()
    }
}

impl BackingLayer {
    /// Whether an answer with these attributes may be leased: the back end does not have the file, and the directories
    /// on its path are looked at from now on.
    pub(crate) fn may_lease(&self, attr: &Attr, lease: Lease) -> Result<bool> {
        let Some(backing) = &self.backing else { return Ok(true) };
        // A file with several names has several paths.
        let is_plain = attr.kind == FileKind::Directory || attr.links == 1;
        if attr.id == FileId::ROOT || !is_plain || backing.knows(attr.id)? {
            return Ok(false);
        }
        let names = self.store.names();
        let mut at = match attr.kind {
            FileKind::Directory => attr.id,
            _ => match names.inode(attr.id)?.parent() {
                Some(parent) => parent,
                None => return Ok(false),
            },
        };
        let mut dirs = backing.leased_dirs.lock();
        let mut unchecked = Vec::new();
        while at != FileId::ROOT {
            if dirs.get(&at).is_some_and(|seen| seen.is_same_tree(lease)) {
                break;
            }
            unchecked.push(at);
            match names.inode(at)?.parent() {
                Some(parent) if unchecked.len() < DEEPEST => at = parent,
                _ => return Ok(false),
            }
        }
        if dirs.len() + unchecked.len() > MOST_DIRS {
            return Ok(false);
        }
        dirs.extend(unchecked.into_iter().map(|dir| (dir, lease)));
        Ok(true)
    }

    /// Looks at the directories on the paths of leased answers; what has changed there ends the leases.
    fn follow_leased_dirs(&self) -> Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let dirs: Vec<FileId> = backing.leased_dirs.lock().keys().copied().collect();
        let followed = dirs.iter().try_for_each(|&dir| match self.store.names().inode(dir) {
            Ok(inode) => self.follow_leased_dir(backing, dir, &inode),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                backing.leased_dirs.lock().remove(&dir);
                Ok(())
            }
            Err(error) => Err(error),
        });
        if followed.is_err() || dirs.len() >= MOST_DIRS {
            self.end_leases(backing);
        }
        followed
    }

    fn follow_leased_dir(&self, backing: &Backing, dir: FileId, inode: &Inode) -> Result<()> {
        if backing.knows(dir)? {
            return self.refresh(dir);
        }
        match (inode.parent(), &inode.body) {
            (Some(parent), Body::Directory { name: Some(name), .. })
                if parent == FileId::ROOT || backing.knows(parent)? =>
            {
                self.merge_dir(backing, dir, inode, (parent, name))
            }
            _ => Ok(()),
        }
    }

    /// Ends the leases of all answers.
    fn end_leases(&self, backing: &Backing) {
        if let Some(epochs) = self.store.epochs() {
            epochs.begin_tree();
            backing.leased_dirs.lock().clear();
            epochs.done_tree();
        }
    }
}

/// Looks at the directories on the paths of leased answers every second.
pub(crate) async fn follow_leased_dirs(layer: Arc<BackingLayer>) {
    let mut stopping = layer.life.stopping();
    while layer.backing.is_some() && rested(&mut stopping, FRESH).await {
        let follower = layer.clone();
        // On a blocking thread, so that a hanging back end delays no other task.
        match tokio::task::spawn_blocking(move || follower.follow_leased_dirs()).await {
            Ok(Err(error)) => tracing::debug!(%error, "could not look at directories of the back end"),
            Ok(Ok(())) => {}
            // The task panicked, or the server is stopping.
            Err(_) => return,
        }
    }
}
