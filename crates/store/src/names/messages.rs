//! Messages between servers about names.

use super::key::Target;
use super::{Inode, damaged};
use forebay_model::{
    Error, ErrorKind, FileId, FileKind, Gid, Identity, Name, RenameMode, Result, ServerId, Stamp, Striping,
    Uid,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Id of an operation that several servers carry out together or not at all. Allocated by the coordinator, never
/// reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IntentId(pub(super) FileId);

impl IntentId {
    /// The server that decides it.
    #[must_use]
    pub fn coordinator(self) -> ServerId {
        self.0.maker()
    }
}

/// A leased copy of another server's directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirCopy {
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Its parent directory; the root is its own parent.
    pub parent: FileId,
    /// Its name in the parent; the root has none.
    pub name: Option<Name>,
    /// The layout of new files in it, if set.
    pub striping: Option<Striping>,
    /// Increases with every change of the fields above.
    pub epoch: u64,
}

/// A request from one server to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameRequest {
    /// A copy of a directory.
    Copy(FileId),
    /// Drop the copy of a directory, which is about to change.
    Drop(FileId),
    /// The type of a file.
    Kind(FileId),
    /// The target of an entry.
    Entry(FileId, Name),
    /// Whether an identity can reach a file of the receiver by a path.
    Reach(Identity, FileId),
    /// Check, lock and record these parts of an intent, each with its position in the order of checks.
    Prepare(Prepare),
    /// Carry out or undo the prepared parts.
    Finish(IntentId, Verdict),
    /// The outcome of an intent.
    Verdict(IntentId),
    /// Reply when an intent holds no locks on the receiver any more. Sent only by servers that hold no locks
    /// themselves.
    AwaitUnlock(IntentId),
    /// Carry out an operation as its coordinator: for [`super::Names::task`], not for [`super::Names::answer`].
    Carry(Identity, Op),
    /// Recreate a directory of the receiver whose inode was lost, with its remaining parent and name.
    Revive(FileId, Option<(FileId, Name)>),
}

/// A reply from one server to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameReply {
    /// Done.
    Done,
    /// The directory.
    Copy(DirCopy),
    /// The type of the file.
    Kind(FileKind),
    /// The target of the entry, if it exists.
    Entry(Option<Target>),
    /// The parts are prepared; the future state of these inodes.
    Prepared(Vec<(FileId, Inode)>),
    /// A lookup is outdated: undo everything and retry.
    Busy,
    /// Another intent holds a lock: undo everything, wait for that intent and retry.
    Locked(IntentId),
    /// The part at this position is refused.
    Refused(usize, Error),
    /// The outcome of the intent; `None` while undecided.
    Verdict(Option<Verdict>),
    /// The operation was carried out.
    Carried(Carried),
}

/// The outcome of an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// It is carried out.
    Done,
    /// It is undone.
    Undone,
}

/// An operation that may involve several servers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    /// As [`super::Names::rename`].
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
    /// As [`super::Names::link`].
    Link {
        /// The file.
        file: FileId,
        /// Directory of the new name.
        dir: FileId,
        /// The new name.
        name: Name,
    },
    /// As [`super::Names::unlink`].
    Unlink {
        /// The directory.
        dir: FileId,
        /// The name.
        name: Name,
    },
    /// As [`super::Names::remove_dir`].
    RemoveDir {
        /// The parent directory.
        dir: FileId,
        /// The name.
        name: Name,
    },
    /// Gives a file or directory whose only name was lost a new name in the root directory.
    Rescue {
        /// The file.
        file: FileId,
        /// The directory that held the lost name.
        dir: FileId,
        /// Its new name in the root directory.
        name: Name,
    },
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Carried {
    /// For [`Op::Link`]: the state of the linked file.
    pub linked: Option<Box<Inode>>,
    /// The file that lost a name.
    pub unlinked: Option<FileId>,
}

/// The parts of an intent for one server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Prepare {
    /// The intent.
    pub intent: IntentId,
    /// The identity that requested it.
    pub who: Identity,
    /// The time of the request.
    pub now: Stamp,
    /// The parts, with their positions in the order of checks: of several refusals, the first is reported.
    pub parts: Vec<(usize, Part)>,
}

/// The part of one server in an intent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Part {
    /// An entry is created, changed or removed.
    Entry {
        /// The directory.
        dir: FileId,
        /// The name.
        name: Name,
        /// The current target.
        was: Option<Target>,
        /// The new target.
        becomes: Option<Target>,
    },
    /// An inode loses or gains a name, or both.
    Inode(InodePart),
    /// A directory to be removed must have no entries on the server, and gets none.
    Seal(FileId),
}

/// An inode loses or gains a name, or both.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InodePart {
    /// The inode.
    pub file: FileId,
    /// The directory in which it loses a name.
    pub leaves: Option<FileId>,
    /// The directory in which it gains a name.
    pub joins: Option<FileId>,
    /// The gained name, or the lost one if none is gained.
    pub name: Name,
    /// Set if the name is in a sticky directory, so that only the file's owner may do this.
    pub sticky: Option<Sticky>,
    /// Whether write permission is needed, because a directory's parent changes.
    pub writes: bool,
}

/// A sticky directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sticky {
    /// The directory.
    pub dir: FileId,
    /// Its owner.
    pub uid: Uid,
}

impl NameRequest {
    /// Encodes the request.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// Decodes a request.
    pub fn decode(bytes: &[u8]) -> Result<NameRequest> {
        from_bytes(bytes)
    }
}

impl NameReply {
    /// Encodes the reply.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// Decodes a reply.
    pub fn decode(bytes: &[u8]) -> Result<NameReply> {
        from_bytes(bytes)
    }
}

pub(super) fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, Vec::new()).expect("encoding to memory cannot fail")
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "cannot decode a message about names from another server: check that all servers run the same version",
        )),
    }
}

pub(super) fn from_record<T: DeserializeOwned>(bytes: &[u8], what: impl std::fmt::Display) -> Result<T> {
    from_bytes(bytes).map_err(|_| damaged(format!("{what} cannot be read")))
}
