//! What servers say to each other about names.

use super::key::Target;
use super::{Inode, damaged};
use forebay_model::{
    Error, ErrorKind, FileId, FileKind, Gid, Identity, Name, RenameMode, Result, ServerId, Stamp, Striping,
    Uid,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Something that several servers do together or not at all; a number of the coordinator's that is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IntentId(pub(super) FileId);

impl IntentId {
    /// The server that decides about it.
    #[must_use]
    pub fn coordinator(self) -> ServerId {
        self.0.maker()
    }
}

/// What other servers know of a directory for as long as they have it on lease.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirCopy {
    /// Permission bits.
    pub mode: u16,
    /// Its owner.
    pub uid: Uid,
    /// Its group.
    pub gid: Gid,
    /// The directory that holds it; the root is its own.
    pub parent: FileId,
    /// Its name there; the root has none.
    pub name: Option<Name>,
    /// How files that are made in it are laid out, if that was said.
    pub striping: Option<Striping>,
    /// Grows with every change of the above.
    pub epoch: u64,
}

/// What one server asks another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// A copy of a directory.
    Copy(FileId),
    /// To drop its copy of a directory, which is about to change.
    Drop(FileId),
    /// What a file is.
    Kind(FileId),
    /// Where a name leads.
    Entry(FileId, Name),
    /// Whether somebody can come to a file of its own by a path.
    Reach(Identity, FileId),
    /// To check, lock and note these parts of an intent, each with its place in the whole.
    Prepare(Prepare),
    /// To do, or to undo, what it prepared.
    Finish(IntentId, Verdict),
    /// What became of an intent.
    Verdict(IntentId),
    /// To say when an intent has nothing locked there any more. Asked by those who have nothing locked themselves.
    Settle(IntentId),
    /// To carry out an operation as its coordinator: for [`super::Names::task`], not for [`super::Names::answer`].
    Carry(Identity, Op),
}

/// What one server tells another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Told {
    /// It is done.
    Done,
    /// The directory.
    Copy(DirCopy),
    /// What the file is.
    Kind(FileKind),
    /// Where the name leads, if anywhere.
    Entry(Option<Target>),
    /// The parts are prepared; these inodes will be like this.
    Prepared(Vec<(FileId, Inode)>),
    /// Something is not as it was: undo all and try again.
    Busy,
    /// Another intent has something locked: undo all, wait for that, and try again.
    Locked(IntentId),
    /// The part in this place cannot be.
    Refused(usize, Error),
    /// What became of the intent; nothing if that is open.
    Verdict(Option<Verdict>),
    /// The operation was carried out.
    Carried(Carried),
}

/// What becomes of an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// It is done.
    Done,
    /// It never was.
    Undone,
}

/// An operation that may concern several servers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    /// As [`super::Names::rename`].
    Rename {
        /// From which directory.
        dir: FileId,
        /// Which name.
        name: Name,
        /// Into which directory.
        to_dir: FileId,
        /// As what.
        to_name: Name,
        /// How.
        mode: RenameMode,
    },
    /// As [`super::Names::link`].
    Link {
        /// Which file.
        file: FileId,
        /// Into which directory.
        dir: FileId,
        /// As what.
        name: Name,
    },
    /// As [`super::Names::unlink`].
    Unlink {
        /// From which directory.
        dir: FileId,
        /// Which name.
        name: Name,
    },
    /// As [`super::Names::remove_dir`].
    RemoveDir {
        /// From which directory.
        dir: FileId,
        /// Which name.
        name: Name,
    },
}

/// What an operation came to.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Carried {
    /// The file that got another name, as it is now: of [`Op::Link`].
    pub linked: Option<Box<Inode>>,
    /// The file that lost a name.
    pub unlinked: Option<FileId>,
}

/// Parts of an intent for one server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Prepare {
    /// Which intent.
    pub intent: IntentId,
    /// Who wants it.
    pub who: Identity,
    /// When.
    pub now: Stamp,
    /// The parts, and the place of each in the whole: of several that cannot be, the first counts.
    pub parts: Vec<(usize, Part)>,
}

/// What one server does for an intent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Part {
    /// An entry is put, changed or taken away.
    Entry {
        /// In which directory.
        dir: FileId,
        /// Its name.
        name: Name,
        /// Where it leads now.
        was: Option<Target>,
        /// Where it will lead.
        becomes: Option<Target>,
    },
    /// An inode loses or gains a name, or both.
    Inode(InodePart),
    /// A directory holds no entries here, and gets none, because it will be gone.
    Seal(FileId),
}

/// An inode loses or gains a name, or both.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InodePart {
    /// Which inode.
    pub file: FileId,
    /// A directory that no longer holds it.
    pub leaves: Option<FileId>,
    /// A directory that does.
    pub joins: Option<FileId>,
    /// What it is called there, or was where it no longer is.
    pub name: Name,
    /// Set if it is in a sticky directory, so that only its own owner may do this.
    pub sticky: Option<Sticky>,
    /// Whether that takes write permission, because a directory's parent changes.
    pub writes: bool,
}

/// A sticky directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sticky {
    /// Which.
    pub dir: FileId,
    /// Its owner.
    pub uid: Uid,
}

impl Ask {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Ask> {
        from_bytes(bytes)
    }
}

impl Told {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Told> {
        from_bytes(bytes)
    }
}

pub(super) fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, Vec::new()).expect("anything can be written to memory")
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "another server said something about names that makes no sense",
        )),
    }
}

pub(super) fn from_record<T: DeserializeOwned>(bytes: &[u8], what: impl std::fmt::Display) -> Result<T> {
    from_bytes(bytes).map_err(|_| damaged(format!("{what} cannot be read")))
}
