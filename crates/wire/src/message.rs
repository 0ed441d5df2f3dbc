//! Everything that can be asked, and every answer.

use forebay_model::{
    Access, Attr, Change, Error, FileId, FileKind, Identity, Incarnation, Job, JobId, Name, RenameMode,
    ServerId, Special, Stamp, Uid, Usage, XattrMode,
};
use serde::{Deserialize, Serialize};

/// One request: who asks, if not the person the connection belongs to, and what.
///
/// Only a peer authenticated as root or as the service's owner may name somebody else.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// On whose behalf.
    pub identity: Option<Identity>,
    /// What is asked.
    pub request: Request,
}

/// The answer to a call. A payload may follow in the frame.
pub type Answer = Result<Reply, Error>;

/// Proof of an open file, made by the server that opened it. It outlives the server: a restarted server, or
/// another one of the same service, can check it by its seal alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Token {
    /// The open file.
    pub file: FileId,
    /// What it was opened for.
    pub access: Access,
    /// Who opened it; nobody else can use it.
    pub uid: Uid,
    /// Tells two opens of one file apart.
    pub serial: u64,
    /// Keyed hash over everything above.
    pub seal: [u8; 16],
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum At {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, whatever others append meanwhile.
    End,
}

/// How an existing entry is treated by [`Request::Create`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IfExists {
    /// Open it.
    Open,
    /// Open it and cut it to nothing.
    Truncate,
    /// Refuse.
    Refuse,
}

/// What can be asked. `Write` and `Read` travel on data connections, everything else on control connections.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Are you there? Also the heartbeat of a session.
    Ping,
    /// Walk a path from a directory; stops at the first symbolic link that has to be followed.
    Walk {
        /// Where to start.
        dir: FileId,
        /// Relative path; `.`, `..` and repeated slashes are understood. Empty: the directory itself.
        path: Vec<u8>,
        /// Whether a link in the last place is followed too.
        follow: bool,
    },
    /// Attributes of a file.
    GetAttr {
        /// Which.
        file: FileId,
    },
    /// Change attributes.
    SetAttr {
        /// Which.
        file: FileId,
        /// How.
        change: Change,
    },
    /// Open a file by id.
    Open {
        /// Which.
        file: FileId,
        /// For what.
        access: Access,
        /// Cut it to nothing; needs write access.
        truncate: bool,
    },
    /// Make a file, or open the one that is there.
    Create {
        /// In which directory.
        dir: FileId,
        /// Under which name.
        name: Name,
        /// With which permission bits (the client has applied its mask).
        mode: u16,
        /// Opened for what.
        access: Access,
        /// If the name is taken.
        if_exists: IfExists,
    },
    /// Re-establish an open file after the server restarted.
    Reopen {
        /// The proof.
        token: Token,
    },
    /// Close an open file.
    Close {
        /// Which.
        token: Token,
    },
    /// Set the length of an open file.
    Truncate {
        /// Which; needs write access.
        token: Token,
        /// New length.
        size: u64,
    },
    /// Set the length of a file by id; checks write permission.
    TruncateFile {
        /// Which.
        file: FileId,
        /// New length.
        size: u64,
    },
    /// Turn a range of an open file into zeros without changing its length.
    Punch {
        /// Which; needs write access.
        token: Token,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Make everything acknowledged for this file durable on the server's device.
    Sync {
        /// Which.
        token: Token,
    },
    /// Make everything durable.
    SyncAll,
    /// Make a directory.
    MakeDir {
        /// In which directory.
        dir: FileId,
        /// Under which name.
        name: Name,
        /// With which permission bits.
        mode: u16,
    },
    /// Remove an empty directory.
    RemoveDir {
        /// From which directory.
        dir: FileId,
        /// Its name.
        name: Name,
    },
    /// Remove a name of a file.
    Unlink {
        /// From which directory.
        dir: FileId,
        /// Its name.
        name: Name,
    },
    /// Move a name.
    Rename {
        /// From which directory.
        dir: FileId,
        /// Its name.
        name: Name,
        /// To which directory.
        to_dir: FileId,
        /// To which name.
        to_name: Name,
        /// If the target exists.
        mode: RenameMode,
    },
    /// Give a file one more name.
    Link {
        /// Which file.
        file: FileId,
        /// In which directory.
        dir: FileId,
        /// Under which name.
        name: Name,
    },
    /// Make a symbolic link.
    Symlink {
        /// In which directory.
        dir: FileId,
        /// Under which name.
        name: Name,
        /// What it says.
        target: Vec<u8>,
    },
    /// What a symbolic link says.
    ReadLink {
        /// Which.
        file: FileId,
    },
    /// Entries of a directory, from a cookie on.
    ReadDir {
        /// Which.
        dir: FileId,
        /// 0 for the beginning, else the `next` of an earlier answer.
        cookie: u64,
        /// At most so many entries.
        limit: u32,
        /// With attributes.
        plus: bool,
    },
    /// One extended attribute.
    GetXattr {
        /// Of which file.
        file: FileId,
        /// Its name.
        name: Name,
    },
    /// Set an extended attribute.
    SetXattr {
        /// Of which file.
        file: FileId,
        /// Its name.
        name: Name,
        /// Its value.
        value: Vec<u8>,
        /// Create, replace or either.
        mode: XattrMode,
    },
    /// Names of all extended attributes.
    ListXattr {
        /// Of which file.
        file: FileId,
    },
    /// Remove an extended attribute.
    RemoveXattr {
        /// Of which file.
        file: FileId,
        /// Its name.
        name: Name,
    },
    /// How full the buffer is.
    StatFs,
    /// What the server is doing.
    Status,
    /// Stop after answering; only for root and the service's owner.
    Shutdown,
    /// Write the frame's payload.
    Write {
        /// To which open file.
        token: Token,
        /// Where.
        at: At,
    },
    /// Read; the bytes are the payload of the answer, fewer than asked for only at the end of the file.
    Read {
        /// From which open file.
        token: Token,
        /// Where.
        offset: u64,
        /// At most so many bytes.
        len: u32,
    },
    /// What every job wrote and read, second by second.
    History {
        /// 0 for the beginning, else the `next` of an earlier answer.
        cursor: u128,
    },
    /// How the service is shared.
    GetPolicy,
    /// Share the service by this policy from now on, on all servers; only for root and the service's owner.
    SetPolicy {
        /// Such as `user-then-size-fair`.
        policy: String,
    },
    /// What another server of the service knows; only for root and the service's owner.
    Exchange(Exchange),
    /// Make an open file at least so long; never shorter. What is new is zero.
    Extend {
        /// Which; needs write access.
        token: Token,
        /// Its least length.
        size: u64,
    },
    /// Make a pipe, socket or device.
    MakeSpecial {
        /// In which directory.
        dir: FileId,
        /// Under which name.
        name: Name,
        /// With which permission bits.
        mode: u16,
        /// What it is.
        special: Special,
    },
    /// Gives up another connection of this client: what was asked there and is not answered changes nothing from the
    /// answer on.
    Abandon {
        /// As its welcome called it.
        connection: u64,
    },
}

/// What can be answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// Attributes.
    Attr(Attr),
    /// The path leads here.
    Found(Attr),
    /// The path meets a symbolic link that has to be followed by the client.
    Link {
        /// The directory that holds the link.
        dir: FileId,
        /// What the link says.
        target: Vec<u8>,
        /// What is left of the path behind it; empty if the link was the last part.
        rest: Vec<u8>,
    },
    /// An open file.
    Opened {
        /// The proof.
        token: Token,
        /// Its attributes.
        attr: Attr,
        /// Whether it was made by this request.
        created: bool,
    },
    /// What a symbolic link says.
    Target(Vec<u8>),
    /// Entries of a directory.
    Entries {
        /// In the order of their cookies.
        entries: Vec<Entry>,
        /// Where to go on, or `None` at the end.
        next: Option<u64>,
    },
    /// The value of an extended attribute.
    Value(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Name>),
    /// How full the buffer is.
    Usage(Usage),
    /// What the server is doing.
    Status(Box<Status>),
    /// The payload was written here.
    Written {
        /// Offset of the first byte.
        offset: u64,
    },
    /// The frame's payload is what was read.
    Data,
    /// What jobs did.
    History {
        /// In the order of time.
        samples: Vec<Sample>,
        /// Where to go on, or `None` at the end.
        next: Option<u128>,
    },
    /// How the service is shared.
    Sharing(Box<Sharing>),
}

/// Jobs of one server, as it tells the others: a part of its table, which may be too long for one frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// The server.
    pub server: ServerId,
    /// Which of its tables this belongs to: larger is newer.
    pub version: u64,
    /// Bytes a second that it is believed to serve.
    pub capacity: u64,
    /// The policy it follows.
    pub policy: String,
    /// When that policy was set; 0 if it is the one of its configuration. The latest counts everywhere.
    pub policy_set: Stamp,
    /// Which part of the table, from 0.
    pub part: u16,
    /// Of how many.
    pub parts: u16,
    /// The jobs of this part that are active on it.
    pub jobs: Vec<Job>,
}

/// How a service is shared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sharing {
    /// The policy.
    pub policy: String,
    /// When it was set; 0 if it is the one of the configuration.
    pub policy_set: Stamp,
    /// What enforces it.
    pub scheduler: String,
    /// Bytes a second of the modelled device; 0 where there is none.
    pub device_rate: u64,
    /// How often servers tell each other of their jobs, in milliseconds.
    pub lambda_millis: u64,
    /// The other servers.
    pub peers: Vec<PeerStatus>,
}

/// Another server, as a server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Where it is.
    pub address: String,
    /// Its number, once it was met.
    pub server: Option<ServerId>,
    /// What is wrong with it now, if something is.
    pub trouble: Option<String>,
    /// Whether it is known to follow the same policy.
    pub agrees: bool,
}

/// What one job did in one second.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Which second, since the Unix epoch.
    pub second: u64,
    /// The job's label.
    pub label: String,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// What it is called.
    pub file: FileId,
    /// What it is.
    pub kind: FileKind,
    /// Its place in the directory: never changes while the entry lives.
    pub cookie: u64,
    /// Its attributes, if they were asked for.
    pub attr: Option<Attr>,
}

/// What a server is doing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Which server.
    pub server: ServerId,
    /// Version of the program.
    pub version: String,
    /// Which life of its store.
    pub incarnation: Incarnation,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started to serve.
    pub uptime: u64,
    /// The directory of its store.
    pub store: String,
    /// What holds the regions: `tmpfs, huge pages`, `tmpfs`, `disk`.
    pub medium: String,
    /// How full it is.
    pub usage: Usage,
    /// Bytes in one region.
    pub region_size: u64,
    /// Regions by state.
    pub regions: RegionCounts,
    /// Connections now open.
    pub connections: u32,
    /// Clients with a session.
    pub sessions: u32,
    /// Open files.
    pub opens: u64,
    /// Requests that wait for their turn.
    pub waiting: u64,
    /// What recovery found when the server started.
    pub recovery: RecoverySummary,
    /// Damage found since: one sentence each.
    pub damage: Vec<String>,
    /// Jobs seen, busiest first.
    pub jobs: Vec<JobStatus>,
}

/// How many regions are in which state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RegionCounts {
    /// Empty.
    pub free: u32,
    /// Being written.
    pub filling: u32,
    /// Full.
    pub sealed: u32,
    /// Being emptied.
    pub draining: u32,
    /// Empty, but kept until what replaced them is durable or their readers are done.
    pub resting: u32,
}

/// What recovery found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RecoverySummary {
    /// Records that were replayed.
    pub records: u64,
    /// Bytes of files that are live.
    pub live_bytes: u64,
    /// Records that were torn and dropped.
    pub torn: u64,
    /// Records older than a truncation or deletion.
    pub superseded: u64,
    /// Whether the machine had crashed, so that payloads were checked first.
    pub machine_crash: bool,
    /// Whether the server had been stopped in order.
    pub clean: bool,
    /// Milliseconds it took.
    pub millis: u64,
}

/// A job as a server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its number.
    pub id: JobId,
    /// Who it is.
    pub job: Job,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// Requests of every kind.
    pub requests: u64,
    /// When it was last heard of.
    pub seen: Stamp,
    /// Connections it has now.
    pub connections: u32,
    /// Whether it works.
    pub state: JobState,
    /// Turns it had: one for every operation, and one more for every further slice of a large one.
    pub operations: u64,
    /// Nanoseconds that its requests waited for their turns, all together.
    pub waited: u64,
    /// Requests of it that wait now.
    pub waiting: u32,
    /// What it is due of this server as things are, in millionths.
    pub share: u32,
    /// Bytes it moved in the last full second.
    pub recent: u64,
}

/// Whether a job works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobState {
    /// It has asked for something lately, or waits.
    Active,
    /// It is connected.
    Idle,
    /// Its last connection has ended.
    Gone,
}
