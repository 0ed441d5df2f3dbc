//! Leased copies of other servers' directories, and our own directories that are lent to them.

use super::messages::{DirCopy, NameReply, NameRequest};
use super::{Attempt, Names, Obstacle, no_file};
use forebay_model::{Error, ErrorKind, FileId, Members, Result, ServerId};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of copies.
const MOST_COPIES: usize = 1 << 16;
/// Maximum number of our own directories tracked as lent; beyond that, every directory counts as lent.
const MOST_LENT: usize = 1 << 20;
/// Number of groups of directories with separate drop counters.
const GROUPS: usize = 256;

/// Whether the lease on a server's replies is still valid.
pub type Leased = dyn Fn(ServerId) -> bool + Send + Sync;

/// The other servers of the cluster.
pub(super) struct Around {
    pub(super) members: Arc<Members>,
    pub(super) leased: Box<Leased>,
}

/// A request to another server that resolves an obstacle.
#[derive(Debug)]
pub struct Question {
    /// The receiver.
    pub server: ServerId,
    /// The request.
    pub ask: NameRequest,
    /// The drop counter of the directory's group when the request was sent.
    drops: u64,
}

/// How to continue after a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterReply {
    /// Try again.
    GoOn,
    /// Try again after a pause.
    Pause,
}

pub(super) struct Copies {
    dirs: RwLock<HashMap<FileId, DirCopy>>,
    /// A reply in flight while a copy is dropped must not restore the copy.
    drops: Vec<AtomicU64>,
    ours: Mutex<Ours>,
    /// Whether copies lent by a former run of this server may still exist.
    former: AtomicBool,
}

/// Our own directories.
#[derive(Default)]
struct Ours {
    lent: HashSet<FileId>,
    /// Those known to survive a crash of the machine.
    durable: HashSet<FileId>,
    /// Those about to change: the number of pending changes, and how many of these know that no copies are left.
    withdrawn: HashMap<FileId, (u32, u32)>,
}

/// While it exists, no server gets a copy of a directory.
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
        self.dirs.read().get(&dir).cloned()
    }

    fn group(&self, dir: FileId) -> &AtomicU64 {
        &self.drops[(dir.0 % GROUPS as u64) as usize]
    }

    fn learn(&self, dir: FileId, copy: DirCopy, drops: u64) {
        let mut dirs = self.dirs.write();
        if self.group(dir).load(Ordering::SeqCst) != drops {
            return;
        }
        // All of them would be requested again within the lease time anyway.
        if dirs.len() >= MOST_COPIES {
            dirs.clear();
        }
        dirs.insert(dir, copy);
    }

    /// The caller holds the stripe of the directory, so that no operation that uses the copy is in progress.
    pub(super) fn drop_copy(&self, dir: FileId) {
        let mut dirs = self.dirs.write();
        self.group(dir).fetch_add(1, Ordering::SeqCst);
        dirs.remove(&dir);
    }

    fn drop_all(&self, gone: impl Fn(FileId) -> bool) {
        let mut dirs = self.dirs.write();
        for group in &self.drops {
            group.fetch_add(1, Ordering::SeqCst);
        }
        dirs.retain(|&dir, _| !gone(dir));
    }

    fn ours(&self) -> MutexGuard<'_, Ours> {
        self.ours.lock()
    }

    /// Records that another server gets a copy, unless the directory is about to change.
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
    pub(super) fn check_none_lent(&self, dir: FileId) -> Attempt<()> {
        let ours = self.ours();
        match ours.withdrawn.get(&dir) {
            Some(&(_, complete)) if complete > 0 => Ok(()),
            None if !self.former.load(Ordering::SeqCst) && !ours.lent.contains(&dir) => Ok(()),
            _ => Err(Obstacle::Copies(dir).into()),
        }
    }
}

impl Withdrawal {
    /// All other servers have dropped their copies, or their leases have expired.
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
    /// Sets the servers of the cluster; `leased` reports whether the lease on a server's replies is valid. Before that,
    /// the server is a single one. Only the first call has an effect.
    pub fn join(&self, members: Arc<Members>, leased: Box<Leased>) -> Result<()> {
        if !members.contains(self.server()) {
            let text = format!("server {} is not in the list of servers that it joins", self.server());
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
        // A second call keeps the first list.
        let _ = self.around.set(Around { members, leased });
        Ok(())
    }

    /// The request that resolves an obstacle; `None` if the caller can only wait.
    #[must_use]
    pub fn question(&self, obstacle: &Obstacle) -> Option<Question> {
        let (server, ask) = match *obstacle {
            Obstacle::Directory(dir) => (self.authority(dir), NameRequest::Copy(dir)),
            Obstacle::Intent(intent) => (intent.coordinator(), NameRequest::Verdict(intent)),
            Obstacle::Copies(_) | Obstacle::SeveralShards | Obstacle::Busy => return None,
        };
        let drops = match ask {
            NameRequest::Copy(dir) => self.copies.group(dir).load(Ordering::SeqCst),
            _ => 0,
        };
        (server != self.server()).then_some(Question { server, ask, drops })
    }

    /// Handles the reply to a request.
    pub fn take_reply(&self, question: Question, reply: NameReply) -> Result<AfterReply> {
        match (question.ask, reply) {
            (NameRequest::Copy(dir), NameReply::Copy(copy)) => self.copies.learn(dir, copy, question.drops),
            (NameRequest::Verdict(intent), NameReply::Verdict(Some(verdict))) => {
                self.finish(intent, verdict)?;
            }
            (NameRequest::Verdict(_), NameReply::Verdict(None)) | (_, NameReply::Busy) => {
                return Ok(AfterReply::Pause);
            }
            _ => return Err(unexpected_reply(question.server)),
        }
        Ok(AfterReply::GoOn)
    }

    /// Until the result is dropped, no server gets a copy of this directory of ours.
    #[must_use]
    pub fn withdraw(&self, dir: FileId) -> Withdrawal {
        self.copies.ours().withdrawn.entry(dir).or_default().0 += 1;
        Withdrawal { copies: Arc::clone(&self.copies), dir, complete: false }
    }

    /// Drops all copies of a server's directories, because that server has restarted.
    pub fn forget_copies(&self, of: ServerId) {
        // An operation that used a copy until now did so under a valid lease.
        let _held = self.locks.hold_all();
        self.copies.drop_all(|dir| self.authority(dir) == of);
    }

    /// The lease time has passed since this server was opened: no copies from its former run exist.
    pub fn outlived_leases(&self) {
        self.copies.former.store(false, Ordering::SeqCst);
    }

    /// Drops the copy of a directory; no operation uses it any more.
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
        // A server that creates entries in it relies on its existence after a crash.
        if !self.copies.is_durable(dir) {
            self.kv.sync()?;
            self.copies.note_durable(dir);
        }
        Ok(copy)
    }
}

pub(super) fn unexpected_reply(server: ServerId) -> Error {
    let text = format!(
        "server {server} sent an unexpected reply about names: check that all servers run the same version"
    );
    Error::new(ErrorKind::Protocol, text)
}
