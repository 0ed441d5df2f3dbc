//! Requests between servers. The sender has proved the service's key and identified itself with a [`Introduction`].

use crate::grant::UserKey;
use crate::lost::{Remain, Remains};
use crate::message::Token;
use forebay_model::{FileId, Incarnation, JobId, Layout, Members, Name, Reshape, ServerId, Span, Stamp, Uid};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes in one [`PeerRequest::Put`].
pub const MAX_PUT: usize = 256 << 10;

/// A request from one server to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerRequest {
    /// The first message on a connection.
    Introduce(Introduction),
    /// Heartbeat. The sender's copies of the receiver's directories are leased from the time it was sent.
    Heartbeat,
    /// A request about names, in the store's own encoding.
    Names {
        /// The encoded request.
        request: Vec<u8>,
    },
    /// An operation on names, in the store's own encoding, for the receiver to run as its coordinator.
    Forward {
        /// The encoded operation.
        request: Vec<u8>,
    },
    /// Requests the receiver's contribution to the attributes of a directory.
    Share {
        /// The directory.
        dir: FileId,
    },
    /// Requests verification of a token, and the facts its holder needs.
    Vouch {
        /// The open file.
        token: Token,
    },
    /// Requests the state of a file's bytes on the receiver.
    Facts {
        /// The file.
        file: FileId,
        /// Whether the file is no longer open: the receiver must verify its tokens again.
        closed: bool,
    },
    /// Prepare a change of the file's bytes on the receiver. It is committed or aborted by [`PeerRequest::Reshaped`].
    Reshape {
        /// The file.
        file: FileId,
        /// Serial number of the change.
        serial: Stamp,
        /// The change.
        change: Reshape,
        /// Bytes missing below this offset were lost with an earlier incarnation of the receiver's store.
        lost_below: u64,
    },
    /// The file was deleted and has no open handles.
    Forget {
        /// The file.
        file: FileId,
    },
    /// A user other than root changes the bytes of this file: clear its set-id bits.
    DropSetId {
        /// The file.
        file: FileId,
    },
    /// This file has a set-id bit: the receiver must report writes to it.
    HasSetId {
        /// The file.
        file: FileId,
    },
    /// Commits or aborts a prepared change.
    Reshaped {
        /// The file.
        file: FileId,
        /// Serial number of the change.
        serial: Stamp,
        /// Whether it is committed.
        done: bool,
    },
    /// Requests the outcome of a change that the receiver initiated.
    Outcome {
        /// The file.
        file: FileId,
        /// Serial number of the change.
        serial: Stamp,
    },
    /// Write a piece of an append to a file of the sender.
    Put {
        /// The file.
        file: FileId,
        /// The writing user.
        uid: Uid,
        /// The writing job.
        job: JobId,
        /// The offset.
        offset: u64,
        /// Bytes missing below this offset were lost with an earlier incarnation of the receiver's store.
        lost_below: u64,
        /// At most [`MAX_PUT`] bytes.
        bytes: Vec<u8>,
    },
    /// Requests the location of a file of the receiver in the back end.
    Backing {
        /// The file.
        file: FileId,
    },
    /// Queries what remains of possibly lost objects.
    Remains {
        /// The queries.
        of: Vec<Remain>,
    },
    /// The sender wants to drain bytes of a file of the receiver: create it in the back end with at least this size.
    CreateBacking {
        /// The file.
        file: FileId,
        /// Size of the sender's part.
        size: u64,
    },
    /// The sender has drained all its bytes of a file of the receiver.
    Drained {
        /// The file.
        file: FileId,
    },
    /// Stop writing to a file of the sender in the back end until it is requested again, and write zeros there for the
    /// receiver's holes.
    MatchSize {
        /// The file.
        file: FileId,
        /// Assigns bytes to servers.
        layout: Layout,
        /// Location in the back end.
        place: Place,
        /// Size of the file.
        size: u64,
        /// Bytes missing below this offset were lost with an earlier incarnation of the receiver's store.
        lost_below: u64,
    },
    /// Requests the number of undrained bytes of files of the sender that were written before a time.
    Undrained {
        /// The files.
        files: Vec<FileId>,
        /// The time, by the receiver's clock.
        before: Stamp,
        /// Whether to drain them now.
        drain: bool,
    },
    /// A file of the sender was changed externally in the back end. Checks whether it otherwise matches the receiver's
    /// state; if so, the receiver adopts it.
    Reread {
        /// The file.
        file: FileId,
        /// Its size in the back end, if the receiver should adopt it.
        size: Option<u64>,
    },
    /// The sender's demand for the targets that the receiver arbitrates. Replaces its previous demand.
    Arbitrate {
        /// The latest grant of the receiver that the sender has received.
        last_received: u64,
        /// Fill level of the sender, in thousandths.
        fill: u16,
        /// Demand per job.
        wanted: Vec<Wanted>,
        /// Bytes that the sender has written to each of these targets since it started, for tuning the number of
        /// writers.
        written: Vec<(u32, u64)>,
    },
    /// The sender has a grant for the receiver, which should request it.
    Granted,
    /// A file of the sender was removed externally from the back end. Checks whether the receiver has all its bytes in
    /// the buffer; if so, the receiver forgets the location.
    MissingInBacking {
        /// The file.
        file: FileId,
        /// Assigns bytes to servers.
        layout: Layout,
        /// Whether to check only.
        dry_run: bool,
    },
    /// Prefetch bytes of a file of the sender from the back end.
    Fetch {
        /// The file.
        file: FileId,
        /// Location in the back end.
        place: Place,
        /// The byte ranges.
        spans: Vec<Span>,
        /// Bytes fetched with the same number are not evicted for this request.
        turn: u64,
    },
    /// Set the drain order.
    Order {
        /// Such as `trio`.
        order: String,
        /// Whether to check only that the receiver supports it.
        dry_run: bool,
    },
    /// The sender's user keys; the reply contains the receiver's.
    Keys {
        /// All keys.
        keys: Vec<UserKey>,
    },
}

/// A reply from one server to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerReply {
    /// Done.
    Done,
    /// The reply to an introduction.
    Introduced(IntroductionReply),
    /// A reply about names, in the store's own encoding.
    Names {
        /// The encoded reply.
        reply: Vec<u8>,
    },
    /// The reply to a heartbeat.
    Alive {
        /// Id of this run of the server process: replies of earlier runs are obsolete.
        boot: u64,
    },
    /// The token is valid.
    Vouched(Vouched),
    /// The state of the file's bytes.
    Facts(FilePart),
    /// The contribution to the attributes of the directory.
    Share {
        /// Number of subdirectories.
        subdirs: u32,
        /// The last change.
        touched: Option<Stamp>,
    },
    /// The outcome of the change.
    Outcome {
        /// Whether it is committed; `None` while undecided.
        done: Option<bool>,
    },
    /// The location of the file in the back end.
    Backing {
        /// `None` if the file is not in the back end.
        place: Option<Place>,
    },
    /// The remains, in the order of the queries.
    Remains(Vec<Remains>),
    /// The file exists in the back end.
    BackingFile {
        /// `None` if it no longer has a name.
        backing_file: Option<BackingFile>,
    },
    /// The granted targets.
    Granted(Vec<Granted>),
    /// Undrained bytes.
    Undrained {
        /// The current time.
        now: Stamp,
        /// In the order of the request.
        left: Vec<Undrained>,
    },
    /// The prefetched bytes.
    Fetched {
        /// Number of bytes in the read cache.
        bytes: u64,
        /// Whether bytes are missing because the read cache is full.
        full: bool,
    },
    /// The user keys of the server.
    Keys {
        /// All keys.
        keys: Vec<UserKey>,
    },
}

/// The introduction of a server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Introduction {
    /// The server.
    pub server: ServerId,
    /// Incarnation of its store.
    pub incarnation: Incarnation,
    /// Whether it has joined the service with this store.
    pub joined: bool,
    /// Its list of the servers of the service.
    pub members: Members,
}

/// The reply to an [`Introduction`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IntroductionReply {
    /// The server.
    pub server: ServerId,
    /// Incarnation of its store.
    pub incarnation: Incarnation,
    /// Whether it has joined the service with this store.
    pub joined: bool,
    /// How often the store of the introducing server was replaced; `None` if that server is unknown.
    pub replaced: Option<u16>,
    /// The first id that it has not allocated.
    pub next_id: FileId,
}

/// What a server must know about the file of a valid token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Vouched {
    /// Bytes missing below this offset were lost with an earlier incarnation of the requesting server's store.
    pub lost_below: u64,
    /// Whether the file has a set-id bit.
    pub set_id: bool,
    /// Stripe size in bytes, and number of servers in the layout.
    pub stripes: (u64, u16),
}

/// The location of a file in the back end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Components of its path.
    pub path: Vec<Name>,
    /// Identifies the file regardless of its name.
    pub serial: u64,
}

/// A file in the back end to which each server may write its own bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackingFile {
    /// Its location.
    pub place: Place,
    /// Minimum size in the back end; no server writes beyond it.
    pub grown: u64,
    /// Assigns bytes to servers.
    pub layout: Layout,
    /// The owner.
    pub owner: Uid,
}

/// A server's demand of one job for the targets of an arbiter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// The job.
    pub job: JobId,
    /// Larger values are served first.
    pub priority: u32,
    /// Bytes per target number.
    pub left: Vec<(u32, u64)>,
    /// Targets for which it holds a grant.
    pub holds: Vec<u32>,
}

/// A grant for a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Granted {
    /// Serial number of the grant of its arbiter.
    pub serial: u64,
    /// The job.
    pub job: JobId,
    /// The target.
    pub target: u32,
    /// Number of bytes granted, if limited.
    pub bytes: u64,
}

/// Undrained bytes of a file on a server.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Undrained {
    /// Number of bytes.
    pub bytes: u64,
    /// Number of failed attempts.
    pub tries: u32,
}

/// The state of a file's bytes on a server.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct FilePart {
    /// Offset after its last byte.
    pub size: u64,
    /// The last change.
    pub touched: Option<Stamp>,
    /// Bytes in the buffer.
    pub buffered: u64,
}
