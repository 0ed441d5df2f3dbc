//! Messages about draining.

use serde::{Deserialize, Serialize};

/// Maximum number of bytes per prefetch request.
pub const MAX_FETCH: u64 = 64 << 20;

/// A request to the drain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DrainCall {
    /// Drain a file, a directory with its contents, or everything.
    Begin {
        /// File or directory; `None` for everything.
        file: Option<forebay_model::FileId>,
        /// New drain order, such as `trio`; only for root and the service's owner.
        order: Option<String>,
        /// Whether the buffer is discarded afterwards. If so, hard links and extended attributes are drained too, where
        /// the back end supports them. Only for root and the service's owner.
        last: bool,
    },
    /// Report the progress.
    Look {
        /// The drain request to report on, if any.
        ticket: Option<u64>,
    },
    /// Prefetch bytes of a file from the back end into the read cache.
    Fetch {
        /// The file.
        file: forebay_model::FileId,
        /// First byte.
        offset: u64,
        /// Number of bytes, at most [`MAX_FETCH`].
        len: u64,
        /// Bytes fetched with the same number are not evicted for this request.
        turn: u64,
    },
}

/// Progress of the drain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DrainReport {
    /// The requested drain ticket, if one was given.
    pub ticket: Option<DrainTicket>,
    /// Number of requested bytes that are in the read cache.
    pub fetched: u64,
    /// Whether bytes are missing because the read cache is full.
    pub full: bool,
    /// Overall state.
    pub status: DrainStatus,
}

/// A drain request of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DrainTicket {
    /// The id.
    pub id: u64,
    /// Whether it is finished.
    pub done: bool,
    /// Number of files, links and directories to drain, as far as known.
    pub files: u64,
    /// Number of those not drained yet.
    pub left: u64,
    /// Bytes to drain, as far as known.
    pub bytes: u64,
    /// Number of items that failed; the drain retries them later.
    pub failed: u64,
    /// Number of items that the back end cannot store.
    pub skipped: u64,
}

/// State of the drain of a server.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DrainStatus {
    /// Display name of the back end.
    pub backend: String,
    /// Drain order.
    pub order: String,
    /// Fill level in per cent above which the drain starts on its own.
    pub threshold: u8,
    /// Bytes that are queued or in flight.
    pub queued: u64,
    /// Files in flight.
    pub files: u64,
    /// Number of writers that wait for buffer space.
    pub waiting: u64,
    /// Bytes written to the back end since the server started.
    pub written: u64,
    /// Bytes freed in the buffer since the server started.
    pub freed: u64,
    /// Bytes from behind that are kept near, and how many may be.
    #[serde(rename = "near")]
    pub read_cache: (u64, u64),
    /// The targets.
    pub targets: Vec<TargetStatus>,
    /// Items that could not be drained, latest first; truncated.
    pub failing: Vec<Failing>,
    /// Total number of items that could not be drained.
    pub failures: u64,
    /// Whether the drain pauses because the back end fails.
    pub resting: bool,
    /// What could not be preserved by the last drain of the buffer.
    pub notes: Vec<String>,
}

impl DrainStatus {
    /// The combined state of two servers that drain to the same back end.
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
            read_cache: (self.read_cache.0 + other.read_cache.0, self.read_cache.1 + other.read_cache.1),
            failures: self.failures + other.failures,
            resting: self.resting || other.resting,
            ..self
        }
    }
}

/// A target of the back end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetStatus {
    /// The name.
    pub name: String,
    /// Bytes queued for it.
    pub queued: u64,
    /// Bytes written to it since the server started.
    pub written: u64,
    /// Recent rate in bytes per second.
    pub rate: u64,
    /// Maximum number of servers that write to it at once; 0 if unknown to this server.
    pub alpha: u32,
    /// Number of this server's workers that write to it now.
    pub writers: u32,
}

/// An item that could not be drained.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failing {
    /// The path.
    pub path: String,
    /// Its owner.
    pub user: forebay_model::Uid,
    /// The cause.
    pub why: String,
    /// Number of attempts.
    pub tries: u32,
}
