//! What is said about draining.

use serde::{Deserialize, Serialize};

/// Most bytes that are brought near at once.
pub const MAX_FETCH: u64 = 64 << 20;

/// What can be asked of the drain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DrainCall {
    /// Drain a file, or a directory with all that is in it, or everything.
    Begin {
        /// What; everything if not given.
        file: Option<forebay_model::FileId>,
        /// In which order from now on, such as `trio`; only for root and the service's owner.
        order: Option<String>,
        /// Whether the buffer is given up afterwards: then further names of files and extended attributes go too, where
        /// the back end takes them. Only for root and the service's owner.
        last: bool,
    },
    /// How far it is.
    Look {
        /// The number of what was begun, if that is asked for.
        ticket: Option<u64>,
    },
    /// Bring bytes of a file from behind near, to be read soon.
    Fetch {
        /// Which file.
        file: forebay_model::FileId,
        /// From where on.
        offset: u64,
        /// How many, at most [`MAX_FETCH`].
        len: u64,
        /// What has come under the same number is not driven out for it.
        turn: u64,
    },
}

/// How far the drain is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DrainReport {
    /// What was begun, if that was asked for.
    pub ticket: Option<DrainTicket>,
    /// How many of the bytes that were to be brought near are.
    pub fetched: u64,
    /// Whether some are not because there is no room for more.
    pub full: bool,
    /// Everything else.
    pub status: DrainStatus,
}

/// Something that somebody asked to be drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DrainTicket {
    /// Its number.
    pub id: u64,
    /// Whether nothing is left to be done.
    pub done: bool,
    /// Files, links and directories that had to leave, as far as they are known.
    pub files: u64,
    /// How many of them have not.
    pub left: u64,
    /// Bytes that had to leave, as far as they are known.
    pub bytes: u64,
    /// What was given up for now: it is tried again later.
    pub failed: u64,
    /// What the back end cannot hold.
    pub skipped: u64,
}

/// What leaves a server for the back end.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DrainStatus {
    /// The back end, as people name it.
    pub backend: String,
    /// In which order things leave.
    pub order: String,
    /// Above this share of the capacity they leave by themselves, in per cent.
    pub threshold: u8,
    /// Bytes that wait or are on their way.
    pub queued: u64,
    /// Files that are on their way.
    pub files: u64,
    /// Writers that wait for room.
    pub waiting: u64,
    /// Bytes that the back end has taken since the server started.
    pub written: u64,
    /// Bytes that were let go of here since.
    pub freed: u64,
    /// Bytes from behind that are kept near, and how many may be.
    pub near: (u64, u64),
    /// The targets.
    pub targets: Vec<TargetStatus>,
    /// What could not be drained, the latest first: some of it.
    pub failing: Vec<Failing>,
    /// How many there are.
    pub failures: u64,
    /// Whether nothing is tried because the back end fails.
    pub resting: bool,
    /// What could not be kept when the buffer was drained for the last time.
    pub notes: Vec<String>,
}

impl DrainStatus {
    /// What leaves two servers for the same back end, together.
    #[must_use]
    pub fn and(mut self, other: DrainStatus) -> DrainStatus {
        for (target, more) in self.targets.iter_mut().zip(other.targets) {
            target.queued += more.queued;
            target.written += more.written;
            target.rate += more.rate;
            target.writers += more.writers;
            target.alpha = target.alpha.max(more.alpha);
        }
        self.failing.extend(other.failing);
        self.notes.extend(other.notes);
        DrainStatus {
            queued: self.queued + other.queued,
            files: self.files + other.files,
            waiting: self.waiting + other.waiting,
            written: self.written + other.written,
            freed: self.freed + other.freed,
            near: (self.near.0 + other.near.0, self.near.1 + other.near.1),
            failures: self.failures + other.failures,
            resting: self.resting || other.resting,
            ..self
        }
    }
}

/// One target behind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetStatus {
    /// What it is called.
    pub name: String,
    /// Bytes that wait for it.
    pub queued: u64,
    /// Bytes it has taken since the server started.
    pub written: u64,
    /// Bytes a second, lately.
    pub rate: u64,
    /// Most servers that write to it at once; 0 if this server does not know.
    pub alpha: u32,
    /// Writers of this server that are at it now.
    pub writers: u32,
}

/// Something that could not be drained.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failing {
    /// Its path.
    pub path: String,
    /// Its owner.
    pub user: forebay_model::Uid,
    /// Why.
    pub why: String,
    /// How often it was tried.
    pub tries: u32,
}
