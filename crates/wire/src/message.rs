//! All requests and replies.

use crate::drain::{DrainCall, DrainReport};
use crate::grant::{KeyCall, KeyReply};
use crate::lost::{Losses, RepairStep};
use crate::peer::{PeerReply, PeerRequest};
use crate::rings::{FileMap, MapGrant, QueueGrant, RingGrant, SlabGrant};
use crate::status::{Exchange, Sample, Sharing, Status};
use forebay_model::{
    Access, Attr, Change, Error, FileId, FileKind, Identity, Layout, Name, RenameMode, SeekTo, ServerId,
    Special, Stripes, Striping, Uid, Usage, XattrMode,
};
use serde::{Deserialize, Serialize};

/// A request, with the identity it is made for.
///
/// Only a peer authenticated as root or as the service's owner may set another identity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The identity, if it is not the authenticated user.
    pub identity: Option<Identity>,
    /// The request.
    pub request: Request,
}

/// The reply to a call. A payload may follow in the frame.
pub type Answer = Result<Reply, Error>;

/// A capability for an open file, issued by the server that opened it. It survives the server: after a restart, any
/// server of the service can verify its seal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Token {
    /// The open file.
    pub file: FileId,
    /// The granted access mode.
    pub access: Access,
    /// The user that opened it; no other user can use it.
    pub uid: Uid,
    /// Distinguishes two opens of one file.
    pub serial: u64,
    /// Keyed hash over the fields above.
    pub seal: [u8; 16],
}

const NO_ACCESS: Access = Access { read: false, write: false, execute: false };

impl Token {
    /// In a slot of a queue: the file that the request before it opens ([`Request::Ring`], [`Request::Map`]).
    pub const OPENED: Token =
        Token { file: FileId(0), access: NO_ACCESS, uid: Uid(0), serial: 0, seal: [0; 16] };
}

/// The position of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum At {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, atomically with other appends.
    End,
}

/// The cached result of walking the beginning of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Known {
    /// Length in bytes of that beginning: names separated by single slashes.
    pub len: u16,
    /// The directory it leads to.
    pub dir: FileId,
}

/// How [`Request::Create`] treats an existing entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IfExists {
    /// Open it.
    Open,
    /// Open it and truncate it to zero.
    Truncate,
    /// Fail.
    Refuse,
}

/// All requests. `Write` and `Read` use data connections, all others control connections.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Liveness check, and heartbeat of a session.
    Ping,
    /// Walk a path from a directory; stops at the first symbolic link that has to be followed.
    Walk {
        /// Starting directory.
        dir: FileId,
        /// Relative path; may contain `.`, `..` and repeated slashes. Empty: the directory itself.
        path: Vec<u8>,
        /// Whether a symbolic link in the last component is followed too.
        follow: bool,
    },
    /// Attributes of a file.
    GetAttr {
        /// The file.
        file: FileId,
    },
    /// Change attributes.
    SetAttr {
        /// The file.
        file: FileId,
        /// The change.
        change: Change,
    },
    /// Open a file by id.
    Open {
        /// The file.
        file: FileId,
        /// The access mode.
        access: Access,
        /// Truncate to zero; needs write access.
        truncate: bool,
    },
    /// Create a file, or open the existing one.
    Create {
        /// Parent directory.
        dir: FileId,
        /// The name.
        name: Name,
        /// Permission bits, with the umask applied by the client.
        mode: u16,
        /// The access mode.
        access: Access,
        /// What to do if the name exists.
        if_exists: IfExists,
    },
    /// Re-establish an open file after the server restarted.
    Reopen {
        /// The token from before the restart.
        token: Token,
    },
    /// Close an open file.
    Close {
        /// The open file.
        token: Token,
    },
    /// Set the length of an open file.
    Truncate {
        /// The open file; needs write access.
        token: Token,
        /// New length.
        size: u64,
    },
    /// Set the length of a file by id; checks write permission.
    TruncateFile {
        /// The file.
        file: FileId,
        /// New length.
        size: u64,
    },
    /// Zero a range of an open file without changing its length.
    Punch {
        /// The open file; needs write access.
        token: Token,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Make all acknowledged writes to this file durable on the server's device.
    Sync {
        /// The open file.
        token: Token,
    },
    /// Make everything durable.
    SyncAll,
    /// Create a directory.
    MakeDir {
        /// Parent directory.
        dir: FileId,
        /// The name.
        name: Name,
        /// Permission bits.
        mode: u16,
    },
    /// Remove an empty directory.
    RemoveDir {
        /// Parent directory.
        dir: FileId,
        /// The name.
        name: Name,
    },
    /// Remove a name of a file.
    Unlink {
        /// Parent directory.
        dir: FileId,
        /// The name.
        name: Name,
    },
    /// Rename an entry.
    Rename {
        /// Source directory.
        dir: FileId,
        /// Source name.
        name: Name,
        /// Target directory.
        to_dir: FileId,
        /// Target name.
        to_name: Name,
        /// What to do if the target exists.
        mode: RenameMode,
    },
    /// Create a hard link.
    Link {
        /// The file.
        file: FileId,
        /// Parent directory.
        dir: FileId,
        /// The name.
        name: Name,
    },
    /// Create a symbolic link.
    Symlink {
        /// Parent directory.
        dir: FileId,
        /// The name.
        name: Name,
        /// The target.
        target: Vec<u8>,
    },
    /// The target of a symbolic link.
    ReadLink {
        /// The file.
        file: FileId,
    },
    /// Entries of a directory, starting at a cookie.
    ReadDir {
        /// The directory.
        dir: FileId,
        /// 0 for the beginning, else the `next` of an earlier reply.
        cookie: u64,
        /// Maximum number of entries.
        limit: u32,
        /// Whether to include attributes.
        plus: bool,
    },
    /// One extended attribute.
    GetXattr {
        /// The file.
        file: FileId,
        /// The name.
        name: Name,
    },
    /// Set an extended attribute.
    SetXattr {
        /// The file.
        file: FileId,
        /// The name.
        name: Name,
        /// The value.
        value: Vec<u8>,
        /// The mode.
        mode: XattrMode,
    },
    /// Names of all extended attributes.
    ListXattr {
        /// The file.
        file: FileId,
    },
    /// Remove an extended attribute.
    RemoveXattr {
        /// The file.
        file: FileId,
        /// The name.
        name: Name,
    },
    /// Capacity and usage of the buffer.
    StatFs,
    /// State of the server.
    Status,
    /// Stop after replying; only for root and the service's owner.
    Shutdown,
    /// Write the frame's payload.
    Write {
        /// The open file.
        token: Token,
        /// The position.
        at: At,
    },
    /// Read; the bytes are the payload of the reply. The reply is shorter than `len` only at the end of the file.
    Read {
        /// The open file.
        token: Token,
        /// The offset.
        offset: u64,
        /// Maximum number of bytes.
        len: u32,
    },
    /// Bytes written and read by every job, per second.
    History {
        /// 0 for the beginning, else the `next` of an earlier reply.
        cursor: u128,
    },
    /// The sharing policy.
    GetPolicy,
    /// Set the sharing policy on all servers; only for root and the service's owner.
    SetPolicy {
        /// Such as `user-then-size-fair`.
        policy: String,
    },
    /// The job table of another server; only for root and the service's owner.
    Exchange(Exchange),
    /// Extend an open file with zeros to at least this size; never shortens it.
    Extend {
        /// The open file; needs write access.
        token: Token,
        /// Minimum size.
        size: u64,
    },
    /// Walk a path from the root with a cached beginning: one request, if the cache is still correct. If not, the reply
    /// states where to continue.
    Jump {
        /// As in `Walk`.
        path: Vec<u8>,
        /// As in `Walk`.
        follow: bool,
        /// The cached beginning.
        known: Known,
    },
    /// Create a pipe, socket or device.
    MakeSpecial {
        /// Parent directory.
        dir: FileId,
        /// The name.
        name: Name,
        /// Permission bits.
        mode: u16,
        /// The type of the special file.
        special: Special,
    },
    /// The layout of a file, or the layout for new files of a directory.
    GetLayout {
        /// File or directory.
        file: FileId,
    },
    /// Set the layout for new files of a directory.
    SetLayout {
        /// The directory.
        dir: FileId,
        /// `None` lets the servers choose.
        striping: Option<Striping>,
    },
    /// Let a server join that has lost its store; only for root and the service's owner.
    ReplaceServer {
        /// The server.
        server: ServerId,
    },
    /// A request between servers.
    Peer(Box<PeerRequest>),
    /// Abandon another connection of this client: once the reply is sent, its outstanding requests have no further
    /// effect.
    Abandon {
        /// Its id, from its welcome.
        connection: u64,
    },
    /// Known losses of this server; only for root and the service's owner.
    Losses,
    /// A request to the drain.
    Drain(DrainCall),
    /// Bind a shared-memory ring to an open file; for clients of the service's own user on the same machine.
    Ring {
        /// The open file; needs read or write access.
        token: Token,
        /// An unused ring of this client to reuse.
        own: Option<u32>,
        /// Whether the ring is used for writes; needs write access.
        write: bool,
    },
    /// Grant a slab to a ring.
    Slab {
        /// The ring.
        ring: u32,
        /// The client has finished with all slabs before this one.
        keep: u32,
        /// Minimum size in bytes, if possible.
        least: u32,
    },
    /// The next number of a sequence shared by all processes of a user: 0, 1, 2, … until the server restarts.
    Number {
        /// Id of the sequence.
        row: u64,
    },
    /// Lease the extents of the file of a ring.
    Map {
        /// The open file; needs read access.
        token: Token,
        /// The ring bound to it.
        ring: u32,
        /// First byte.
        from: u64,
    },
    /// Set the write route of this server; only for root and the service's owner.
    SetRoute {
        /// `buffer`, `traffic`, `overflow` or `direct`.
        mode: String,
    },
    /// Create a shared-memory queue for small requests of this connection; for clients of the service's own user on the
    /// same machine. It is closed with the connection.
    Queue,
    /// Map a range of an open file, shared with all processes that map it.
    MapFile {
        /// The open file; needs read access.
        token: Token,
        /// First byte.
        offset: u64,
        /// Number of bytes; the range may extend beyond the end of the file.
        len: u64,
        /// Whether the mapping is writable; needs write access.
        write: bool,
    },
    /// Continue without data lost with stores; only for root and the service's owner, who sends the first step to every
    /// server before the last step.
    Repair {
        /// The step.
        step: RepairStep,
    },
    /// A request about user keys; only for root and the service's owner. Issuing a key requires a Unix socket.
    Keys(KeyCall),
    /// Find the next data, or the next hole, of an open file, as the server knows it that is asked.
    Seek {
        /// Which.
        token: Token,
        /// From this byte on.
        offset: u64,
        /// What is looked for.
        to: SeekTo,
        /// The length of a file of which other servers hold bytes.
        end: Option<u64>,
        /// Which bytes of such a file the server holds.
        stripes: Option<Stripes>,
    },
    /// The client is about to cache pages of an open file into which programs may store (a mount). Until the file is
    /// closed no other process maps it for writing through shared memory.
    KeepPages {
        /// The open file; needs write access.
        token: Token,
    },
    /// Where the kernel of the server's machine opens a named pipe; for users who may read or write it.
    LocalPipe {
        /// The pipe.
        file: FileId,
    },
}

/// All replies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// Attributes.
    Attr(Attr),
    /// The file that the path leads to.
    Found(Attr),
    /// The path contains a symbolic link that the client must follow.
    Link {
        /// The directory that holds the link.
        dir: FileId,
        /// The target of the link.
        target: Vec<u8>,
        /// The rest of the path after it; empty if the link was the last component.
        rest: Vec<u8>,
    },
    /// The walk continues on the server that owns the next name.
    Elsewhere {
        /// The directory reached.
        dir: FileId,
        /// The rest of the path.
        rest: Vec<u8>,
    },
    /// The path leads to a file whose attributes are on another server, which the client must query.
    At {
        /// The directory of its name.
        dir: FileId,
        /// The file.
        file: FileId,
        /// The rest of the path after it.
        rest: Vec<u8>,
    },
    /// An open file.
    Opened {
        /// The open file.
        token: Token,
        /// The attributes.
        attr: Attr,
        /// The servers that hold its bytes.
        layout: Layout,
        /// Whether this request created it.
        created: bool,
    },
    /// The target of a symbolic link.
    Target(Vec<u8>),
    /// Entries of a directory.
    Entries {
        /// In the order of their cookies.
        entries: Vec<Entry>,
        /// Where to continue, or `None` at the end.
        next: Option<u64>,
    },
    /// The value of an extended attribute.
    Value(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Name>),
    /// Capacity and usage of the buffer.
    Usage(Usage),
    /// State of the server.
    Status(Box<Status>),
    /// The payload was written.
    Written {
        /// Offset of the first byte.
        offset: u64,
    },
    /// The payload of the frame contains the bytes read.
    Data,
    /// Bytes written and read by every job.
    History {
        /// In chronological order.
        samples: Vec<Sample>,
        /// Where to continue, or `None` at the end.
        next: Option<u128>,
    },
    /// The sharing policy.
    Sharing(Box<Sharing>),
    /// The layout of files.
    Layout {
        /// For a directory: the layout that was set.
        striping: Option<Striping>,
        /// For a file: its layout.
        layout: Option<Layout>,
    },
    /// A reply between servers.
    Peer(Box<PeerReply>),
    /// Known losses.
    Losses(Losses),
    /// Progress of the drain.
    Drain(Box<DrainReport>),
    /// A ring.
    Ring(Box<RingGrant>),
    /// A slab.
    Slab(Box<SlabGrant>),
    /// A number.
    Number(u64),
    /// The extents of a file.
    Map(Box<MapGrant>),
    /// A queue.
    Queue(Box<QueueGrant>),
    /// The mapping of a file range.
    FileMap(FileMap),
    /// The repairs made, one sentence each.
    Repaired(Vec<String>),
    /// A reply about user keys.
    Keys(Box<KeyReply>),
    /// Where it is; `None` if the file ends before.
    Position(Option<u64>),
}

/// A directory entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The name.
    pub name: Name,
    /// The file.
    pub file: FileId,
    /// The file type.
    pub kind: FileKind,
    /// Its position in the directory; constant while the entry exists.
    pub cookie: u64,
    /// Its attributes, if requested.
    pub attr: Option<Attr>,
}
