//! What somebody asked to be drained.

use forebay_model::{FileId, ServerId, Stamp};
use forebay_wire::DrainTicket;
use std::collections::{HashMap, HashSet};

/// As often something is tried for somebody who waits for it.
pub(super) const TRIES: u32 = 3;

/// A request to drain something.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) id: u64,
    /// What was written before is to leave.
    pub(super) begun: Stamp,
    /// Whether more may be found that is to leave.
    pub(super) walking: bool,
    /// What has to leave.
    pub(super) pending: HashSet<FileId>,
    /// Directories that have to be given their time.
    pub(super) dirs: HashSet<FileId>,
    /// Of what has to leave, files of which other servers may hold bytes, and how often they were asked in vain.
    pub(super) afar: HashMap<FileId, u32>,
    /// Of those, the ones of which others hold nothing any more that has to leave.
    pub(super) out: HashSet<FileId>,
    /// When it began, by the clocks of others.
    pub(super) clocks: HashMap<ServerId, Stamp>,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl Ticket {
    pub(super) fn new(id: u64, begun: Stamp) -> Ticket {
        Ticket {
            id,
            begun,
            walking: true,
            pending: HashSet::new(),
            dirs: HashSet::new(),
            afar: HashMap::new(),
            out: HashSet::new(),
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

    /// Whether nothing but directories is left.
    pub(super) fn waits_for_dirs(&self) -> bool {
        !self.walking && self.pending.is_empty() && !self.dirs.is_empty()
    }

    pub(super) fn gone(&mut self, file: FileId) {
        self.pending.remove(&file);
        self.dirs.remove(&file);
        self.afar.remove(&file);
        self.out.remove(&file);
    }

    /// Whether others hold nothing of a file any more that has to leave.
    pub(super) fn is_out(&self, file: FileId) -> bool {
        !self.afar.contains_key(&file) || self.out.contains(&file)
    }

    /// Files of which others have to be asked.
    pub(super) fn unsure(&self) -> impl Iterator<Item = FileId> + '_ {
        self.afar.keys().copied().filter(|file| !self.out.contains(file))
    }

    /// Something failed for the so many-th time.
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
