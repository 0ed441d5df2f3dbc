//! Data lost with the stores of failed servers, and the messages by which servers find it.

use forebay_model::{FileId, FileKind, Layout, Name, ServerId, Sieve};
use serde::{Deserialize, Serialize};

/// All losses that one server knows of.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Losses {
    /// The losses, truncated to one reply.
    pub list: Vec<Loss>,
    /// Number of losses that did not fit.
    pub more: u64,
}

/// A loss.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// The server whose store was lost; `None` if several were lost and it is unknown which one applies.
    pub server: Option<ServerId>,
    /// What is lost.
    pub what: Lost,
    /// The file.
    pub file: FileId,
    /// The directory of its name, if known.
    pub dir: Option<FileId>,
    /// The path of that directory, if it is reachable.
    pub above: Option<Vec<u8>>,
    /// The name, if known.
    pub name: Option<Name>,
}

/// The lost part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Lost {
    /// The inode; the name exists.
    Inode(FileKind),
    /// Bytes.
    Bytes {
        /// Number of bytes.
        count: u64,
        /// Whether an unknown number of bytes after them is lost too.
        open: bool,
    },
    /// Names in the directory; the inode exists.
    Name {
        /// The file type.
        kind: FileKind,
        /// Number of lost names.
        names: u32,
        /// Size of the file, as far as its server knows.
        size: u64,
    },
    /// Names and inode.
    Rest {
        /// Bytes that remain on the reporting server.
        bytes: u64,
    },
    /// A directory.
    Directory {
        /// Number of entries that remain on the reporting server, unreachable by any path.
        names: u64,
    },
}

/// A repair of losses while the service runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RepairStep {
    /// Links files and directories with lost names into the root directory, and recreates directories of which only
    /// entries remain.
    Rescue {
        /// Also removes dangling names and the bytes of lost files.
        drop_dangling: bool,
    },
    /// From now on, missing objects count as nonexistent.
    Forgive,
}

/// A query about the remains of something that may be lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Remain {
    /// Whether the inode of this file exists.
    Inode(FileId),
    /// How many bytes of a file are missing.
    Bytes {
        /// The file.
        file: FileId,
        /// The layout of its bytes.
        layout: Layout,
        /// If the server has no record of the file: bytes below this offset existed.
        below: u64,
    },
    /// The name of a file in a directory.
    Name {
        /// The directory.
        dir: FileId,
        /// The file.
        file: FileId,
        /// The name returned by the previous query.
        like: Option<Name>,
    },
    /// The number of names of a file.
    Times {
        /// In this directory, or in any.
        dir: Option<FileId>,
        /// The file.
        file: FileId,
    },
    /// All names of files of the querying server, in a sieve with this sample.
    Names(u8),
}

/// The reply to a [`Remain`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Remains {
    /// Everything exists.
    All,
    /// The inode is missing.
    NoInode,
    /// Bytes are missing.
    NotBytes {
        /// Number of bytes.
        count: u64,
        /// Whether an unknown number of bytes after them is missing too.
        open: bool,
    },
    /// The name; `None` if the file has no name in the directory.
    Name(Option<Name>),
    /// The number of names; `None` while it changes.
    Times(Option<u32>),
    /// The names.
    Names(Box<Sieve>),
}
