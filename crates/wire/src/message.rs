//! Everything that can be asked, and every answer.

use crate::drain::{DrainCall, DrainReport};
use crate::lost::Losses;
use crate::peer::{PeerReply, PeerRequest};
use crate::rings::{MapGrant, QueueGrant, RingGrant, SlabGrant};
use crate::status::{Exchange, Sample, Sharing, Status};
use forebay_model::{
    Access, Attr, Change, Error, FileId, FileKind, Identity, Layout, Name, RenameMode, ServerId, Special,
    Striping, Uid, Usage, XattrMode,
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

/// Where the beginning of a path led when it was last walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Known {
    /// So many bytes of the path: names, single slashes between them, nothing else.
    pub len: u16,
    /// The directory they led to.
    pub dir: FileId,
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
    /// Walk a path from the root whose beginning is known: one request, if it still leads there. If not, the answer
    /// says from where to go on.
    Jump {
        /// As in `Walk`.
        path: Vec<u8>,
        /// As in `Walk`.
        follow: bool,
        /// What is known.
        known: Known,
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
    /// How the files of a directory are laid out.
    GetLayout {
        /// Which directory, or a file whose own layout is asked for.
        file: FileId,
    },
    /// Lay out the files that will be made in a directory in this way.
    SetLayout {
        /// Which directory.
        dir: FileId,
        /// How; `None` leaves it to the servers.
        striping: Option<Striping>,
    },
    /// Let a server join that has lost its store; only for root and the service's owner.
    ReplaceServer {
        /// Which.
        server: ServerId,
    },
    /// What only servers ask each other.
    Peer(Box<PeerRequest>),
    /// Gives up another connection of this client: what was asked there and is not answered changes nothing from the
    /// answer on.
    Abandon {
        /// As its welcome called it.
        connection: u64,
    },
    /// What was lost with stores, as far as this server knows; only for root and the service's owner.
    Losses,
    /// What leaves for the back end.
    Drain(DrainCall),
    /// Bind a ring in shared memory to an open file; for clients of the service's own user, on its machine.
    Ring {
        /// Which file; needs read or write access.
        token: Token,
        /// A ring that the client has already and does not use.
        own: Option<u32>,
        /// Whether it is to be written to; needs write access.
        write: bool,
    },
    /// Grant a slab to a ring.
    Slab {
        /// Which ring.
        ring: u32,
        /// The client has done with all slabs before this one.
        keep: u32,
        /// At least so many bytes, where that is possible.
        least: u32,
    },
    /// The next number of a row that all processes of one user share who name it: 0, 1, 2, … until the server starts anew.
    Number {
        /// Which row.
        row: u64,
    },
    /// Lease what a ring's file is made of.
    Map {
        /// Which file; needs read access.
        token: Token,
        /// A ring that is bound to it.
        ring: u32,
        /// From this offset on.
        from: u64,
    },
    /// Let writes go this way from now on, on this server; only for root and the service's owner.
    SetRoute {
        /// `buffer`, `traffic`, `overflow` or `direct`.
        mode: String,
    },
    /// A queue in shared memory, through which this connection's client asks from now on what fits there; for clients of
    /// the service's own user, on its machine. It ends with the connection.
    Queue,
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
    /// The path goes on at the server that is home to the next name.
    Elsewhere {
        /// The directory it has come to.
        dir: FileId,
        /// What is left of it.
        rest: Vec<u8>,
    },
    /// The path comes to a file of which another server has the attributes, and which has to be asked for there.
    At {
        /// The directory that holds its name.
        dir: FileId,
        /// The file.
        file: FileId,
        /// What is left of the path behind it.
        rest: Vec<u8>,
    },
    /// An open file.
    Opened {
        /// The proof.
        token: Token,
        /// Its attributes.
        attr: Attr,
        /// Which servers hold its bytes.
        layout: Layout,
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
    /// How files are laid out.
    Layout {
        /// Of a directory, what was set.
        striping: Option<Striping>,
        /// Of a file, what it has.
        layout: Option<Layout>,
    },
    /// What only servers answer each other.
    Peer(Box<PeerReply>),
    /// What was lost.
    Losses(Losses),
    /// How far the drain is.
    Drain(Box<DrainReport>),
    /// A ring.
    Ring(Box<RingGrant>),
    /// A slab.
    Slab(Box<SlabGrant>),
    /// A number.
    Number(u64),
    /// What a file is made of.
    Map(Box<MapGrant>),
    /// A queue.
    Queue(Box<QueueGrant>),
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
