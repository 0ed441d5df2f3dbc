//! Requests to drain a file, a tree or everything.

use forebay_model::{FileId, ServerId, Stamp, Uid};
use forebay_wire::DrainTicket;
use std::collections::{HashMap, HashSet};

/// How often a file is tried for a request.
pub(super) const TRIES: u32 = 3;

/// A request to drain something.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) id: u64,
    /// Who requested it.
    pub(super) user: Uid,
    /// Bytes written before this are to be drained.
    pub(super) begun: Stamp,
    /// Whether the walk may find more files.
    pub(super) walking: bool,
    /// Files that have to be drained.
    pub(super) pending: HashSet<FileId>,
    /// Directories whose time has to be set.
    pub(super) dirs: HashSet<FileId>,
    /// Pending files of which other servers may hold bytes, with the number of failed polls.
    pub(super) striped: HashMap<FileId, u32>,
    /// Of those, the files that the other servers have drained.
    pub(super) drained: HashSet<FileId>,
    /// The begin of the request, by the clocks of other servers.
    pub(super) clocks: HashMap<ServerId, Stamp>,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl Ticket {
    pub(super) fn new(id: u64, user: Uid, begun: Stamp) -> Ticket {
        Ticket {
            id,
            user,
            begun,
            walking: true,
            pending: HashSet::new(),
            dirs: HashSet::new(),
            striped: HashMap::new(),
            drained: HashSet::new(),
            clocks: HashMap::new(),
            files: 0,
            bytes: 0,
            failed: 0,
            skipped: 0,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        !self.walking && self.pending.is_empty() && self.dirs.is_empty()
    }

    /// Whether only directories are left.
    pub(super) fn waits_for_dirs(&self) -> bool {
        !self.walking && self.pending.is_empty() && !self.dirs.is_empty()
    }

    pub(super) fn gone(&mut self, file: FileId) {
        self.pending.remove(&file);
        self.dirs.remove(&file);
        self.striped.remove(&file);
        self.drained.remove(&file);
    }

    /// Whether other servers hold no bytes of a file that have to be drained.
    pub(super) fn is_drained_by_others(&self, file: FileId) -> bool {
        !self.striped.contains_key(&file) || self.drained.contains(&file)
    }

    /// Files whose holders have to be polled.
    pub(super) fn to_poll(&self) -> impl Iterator<Item = FileId> + '_ {
        self.striped.keys().copied().filter(|file| !self.drained.contains(file))
    }

    /// Draining a file failed, for the `tries`th time.
    pub(super) fn failed(&mut self, file: FileId, tries: u32, hopeless: bool) {
        if (tries >= TRIES || hopeless) && (self.pending.remove(&file) | self.dirs.remove(&file)) {
            self.gone(file);
            match hopeless {
                true => self.skipped += 1,
                false => self.failed += 1,
            }
        }
    }

    pub(super) fn view(&self) -> DrainTicket {
        DrainTicket {
            id: self.id,
            done: self.is_done(),
            files: self.files,
            left: (self.pending.len() + self.dirs.len()) as u64,
            bytes: self.bytes,
            failed: self.failed,
            skipped: self.skipped,
        }
    }
}
