//! Directories of other servers, on lease; and directories of our own that others may hold copies of.

use super::talk::{Ask, DirCopy, Told};
use super::{Attempt, Names, Obstacle, no_file};
use forebay_model::{Error, ErrorKind, FileId, Members, Result, ServerId};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Most copies that are kept.
const MOST_COPIES: usize = 1 << 16;
/// Most of our own directories of which we know that others hold copies; beyond that we take it for granted.
const MOST_LENT: usize = 1 << 20;
/// Drops are counted apart for so many groups of directories.
const GROUPS: usize = 256;

/// Whether what was learnt from a server still counts.
pub type Leased = dyn Fn(ServerId) -> bool + Send + Sync;

/// The servers around this one.
pub(super) struct Around {
    pub(super) members: Arc<Members>,
    pub(super) leased: Box<Leased>,
}

/// Something to ask another server because of an obstacle.
#[derive(Debug)]
pub struct Question {
    /// Whom.
    pub server: ServerId,
    /// What.
    pub ask: Ask,
    /// How often copies of its like were dropped when it was asked.
    drops: u64,
}

/// What to do after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Try again.
    GoOn,
    /// Try again after a pause.
    Pause,
}

pub(super) struct Copies {
    dirs: RwLock<HashMap<FileId, DirCopy>>,
    /// An answer that was on its way while a copy was dropped must not bring it back.
    drops: Vec<AtomicU64>,
    ours: Mutex<Ours>,
    /// Whether copies of a former life of this server may be around.
    former: AtomicBool,
}

/// Directories of our own.
#[derive(Default)]
struct Ours {
    lent: HashSet<FileId>,
    /// Those that are known to survive the death of the machine.
    durable: HashSet<FileId>,
    /// Those that are about to change: how many wait for that, and how many of them know that no copies are left.
    withdrawn: HashMap<FileId, (u32, u32)>,
}

/// For as long as it lives nobody gets a copy of a directory.
pub struct Withdrawal {
    copies: Arc<Copies>,
    dir: FileId,
    complete: bool,
}

impl Default for Copies {
    fn default() -> Copies {
        Copies {
            dirs: RwLock::default(),
            drops: (0..GROUPS).map(|_| AtomicU64::new(0)).collect(),
            ours: Mutex::default(),
            former: AtomicBool::new(true),
        }
    }
}

impl Copies {
    pub(super) fn get(&self, dir: FileId) -> Option<DirCopy> {
        self.dirs.read().unwrap_or_else(PoisonError::into_inner).get(&dir).cloned()
    }

    fn group(&self, dir: FileId) -> &AtomicU64 {
        &self.drops[(dir.0 % GROUPS as u64) as usize]
    }

    fn learn(&self, dir: FileId, copy: DirCopy, drops: u64) {
        let mut dirs = self.dirs.write().unwrap_or_else(PoisonError::into_inner);
        if self.group(dir).load(Ordering::SeqCst) != drops {
            return;
        }
        // All of them are asked for again within a lease's time anyway.
        if dirs.len() >= MOST_COPIES {
            dirs.clear();
        }
        dirs.insert(dir, copy);
    }

    /// The caller holds the stripe of the directory, so that nothing that used the copy is still under way.
    pub(super) fn drop_copy(&self, dir: FileId) {
        let mut dirs = self.dirs.write().unwrap_or_else(PoisonError::into_inner);
        self.group(dir).fetch_add(1, Ordering::SeqCst);
        dirs.remove(&dir);
    }

    fn drop_all(&self, gone: impl Fn(FileId) -> bool) {
        let mut dirs = self.dirs.write().unwrap_or_else(PoisonError::into_inner);
        for group in &self.drops {
            group.fetch_add(1, Ordering::SeqCst);
        }
        dirs.retain(|&dir, _| !gone(dir));
    }

    fn ours(&self) -> MutexGuard<'_, Ours> {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that another server gets a copy, unless the directory is about to change.
    pub(super) fn lend(&self, dir: FileId) -> Attempt<()> {
        let mut ours = self.ours();
        if ours.withdrawn.contains_key(&dir) {
            return Err(Obstacle::Busy.into());
        }
        if ours.lent.len() >= MOST_LENT {
            self.former.store(true, Ordering::SeqCst);
            ours.lent.clear();
        }
        ours.lent.insert(dir);
        Ok(())
    }

    fn is_durable(&self, dir: FileId) -> bool {
        self.ours().durable.contains(&dir)
    }

    fn note_durable(&self, dir: FileId) {
        let mut ours = self.ours();
        if ours.durable.len() >= MOST_LENT {
            ours.durable.clear();
        }
        ours.durable.insert(dir);
    }

    /// Fails if another server may hold a copy of a directory.
    pub(super) fn demand_none_lent(&self, dir: FileId) -> Attempt<()> {
        let ours = self.ours();
        match ours.withdrawn.get(&dir) {
            Some(&(_, complete)) if complete > 0 => Ok(()),
            None if !self.former.load(Ordering::SeqCst) && !ours.lent.contains(&dir) => Ok(()),
            _ => Err(Obstacle::Copies(dir).into()),
        }
    }
}

impl Withdrawal {
    /// All others have dropped their copies, or these count no more.
    pub fn complete(&mut self) {
        let mut ours = self.copies.ours();
        ours.lent.remove(&self.dir);
        if let Some((_, complete)) = ours.withdrawn.get_mut(&self.dir)
            && !self.complete
        {
            *complete += 1;
            self.complete = true;
        }
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let mut ours = self.copies.ours();
        if let Some((waiting, complete)) = ours.withdrawn.get_mut(&self.dir) {
            *waiting -= 1;
            *complete -= u32::from(self.complete);
            if *waiting == 0 {
                ours.withdrawn.remove(&self.dir);
            }
        }
    }
}

impl Names {
    /// Tells the namespace who is around; `leased` says whether what a server said of its directories still counts.
    /// Before that, the server is alone. Only the first call counts.
    pub fn join(&self, members: Arc<Members>, leased: Box<Leased>) -> Result<()> {
        if !members.contains(self.server()) {
            let text = format!("server {} is not one of the servers that it is to join", self.server());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if members.first() == self.server() && self.find_inode(FileId::ROOT)?.is_none() {
            let text = format!(
                "server {} is the first in the list, but its store holds no root directory: put the server that was \
                 first when the service was made in the first place again",
                self.server()
            );
            return Err(Error::new(ErrorKind::BadStore, text));
        }
        // Whoever comes second finds the list in its place.
        let _ = self.around.set(Around { members, leased });
        Ok(())
    }

    /// Whom to ask what because of an obstacle; nobody if there is nothing to do but to wait.
    #[must_use]
    pub fn question(&self, obstacle: &Obstacle) -> Option<Question> {
        let (server, ask) = match *obstacle {
            Obstacle::Directory(dir) => (self.authority(dir), Ask::Copy(dir)),
            Obstacle::Intent(intent) => (intent.coordinator(), Ask::Verdict(intent)),
            Obstacle::Copies(_) | Obstacle::Several | Obstacle::Busy => return None,
        };
        let drops = match ask {
            Ask::Copy(dir) => self.copies.group(dir).load(Ordering::SeqCst),
            _ => 0,
        };
        (server != self.server()).then_some(Question { server, ask, drops })
    }

    /// Takes the answer to a question.
    pub fn hear(&self, question: Question, told: Told) -> Result<Heard> {
        match (question.ask, told) {
            (Ask::Copy(dir), Told::Copy(copy)) => self.copies.learn(dir, copy, question.drops),
            (Ask::Verdict(intent), Told::Verdict(Some(verdict))) => self.finish(intent, verdict)?,
            (Ask::Verdict(_), Told::Verdict(None)) | (_, Told::Busy) => return Ok(Heard::Pause),
            (ask, told) => return Err(nonsense(question.server, &ask, &told)),
        }
        Ok(Heard::GoOn)
    }

    /// From now on, until the result is dropped, nobody gets a copy of this directory of ours.
    #[must_use]
    pub fn withdraw(&self, dir: FileId) -> Withdrawal {
        self.copies.ours().withdrawn.entry(dir).or_default().0 += 1;
        Withdrawal { copies: Arc::clone(&self.copies), dir, complete: false }
    }

    /// Another server began a new life: what it said before counts no more.
    pub fn forget_copies(&self, of: ServerId) {
        // Whoever used a copy just now did so while it counted.
        let _held = self.locks.hold_all();
        self.copies.drop_all(|dir| self.authority(dir) == of);
    }

    /// A lease's time has passed since this server was opened: nobody can hold copies of its former life.
    pub fn outlived_leases(&self) {
        self.copies.former.store(false, Ordering::SeqCst);
    }

    /// Drops the copy of a directory; whatever used it is over.
    pub(super) fn drop_copy(&self, dir: FileId) {
        let _held = self.locks.hold(&[dir]);
        self.copies.drop_copy(dir);
    }

    pub(super) fn lend_copy(&self, dir: FileId) -> Attempt<DirCopy> {
        if self.authority(dir) != self.server() {
            return Err(no_file(dir).into());
        }
        let held = self.locks.hold(&[dir]);
        self.holds.file_is_free(dir)?;
        let copy = self.directory(dir)?.copy();
        self.copies.lend(dir)?;
        drop(held);
        // Whoever makes entries in it relies on it being there after a crash.
        if !self.copies.is_durable(dir) {
            self.kv.sync()?;
            self.copies.note_durable(dir);
        }
        Ok(copy)
    }
}

pub(super) fn nonsense(server: ServerId, ask: &Ask, told: &Told) -> Error {
    let text =
        format!("server {server} was asked {ask:?} and answered {told:?}: are all servers of one version?");
    Error::new(ErrorKind::Protocol, text)
}
