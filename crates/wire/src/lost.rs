//! What went with stores that were lost, and what servers ask each other to find out.

use forebay_model::{FileId, FileKind, Layout, Name, ServerId, Sieve};
use serde::{Deserialize, Serialize};

/// Everything that one server knows to be lost.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Losses {
    /// One by one.
    pub list: Vec<Loss>,
    /// How many more there are than one answer holds.
    pub more: u64,
}

/// Something that is lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// The server with whose store it was lost; `None` if several were lost and nobody knows with which.
    pub server: Option<ServerId>,
    /// What.
    pub what: Lost,
    /// The file.
    pub file: FileId,
    /// The directory that holds its name, where that is known.
    pub dir: Option<FileId>,
    /// The path of that directory, where one leads there.
    pub above: Option<Vec<u8>>,
    /// The name, where it is known.
    pub name: Option<Name>,
}

/// What is lost of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Lost {
    /// Everything but its name.
    Inode(FileKind),
    /// Bytes.
    Bytes {
        /// So many.
        count: u64,
        /// And nobody knows how many behind them.
        open: bool,
    },
    /// Names of it in the directory; the file itself is there.
    Name {
        /// What it is.
        kind: FileKind,
        /// So many names.
        names: u32,
        /// How long the file is, as far as its server knows.
        size: u64,
    },
    /// Its names and its inode.
    Rest {
        /// So many of its bytes are left on the server that says so.
        bytes: u64,
    },
    /// A directory.
    Directory {
        /// So many names in it are left on the server that says so; no path leads there.
        names: u64,
    },
}

/// What is left of something that may have been lost?
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Remain {
    /// Is the inode of this file there?
    Inode(FileId),
    /// How much of a file's bytes is missing?
    Bytes {
        /// Which file.
        file: FileId,
        /// Where its bytes are.
        layout: Layout,
        /// If nothing is known of it there: bytes below this offset were there.
        below: u64,
    },
    /// What is a file called in a directory?
    Name {
        /// The directory.
        dir: FileId,
        /// The file.
        file: FileId,
        /// What it was called when it was last asked for.
        like: Option<Name>,
    },
    /// How many names lead to a file?
    Times {
        /// In this directory, or anywhere.
        dir: Option<FileId>,
        /// The file.
        file: FileId,
    },
    /// All names that lead to files of whoever asks, in a sieve with this sample.
    Names(u8),
}

/// What is left.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Remains {
    /// All of it.
    All,
    /// The inode is not there.
    NoInode,
    /// Not these bytes.
    NotBytes {
        /// So many.
        count: u64,
        /// And nobody knows how many behind them.
        open: bool,
    },
    /// It is called so; `None` if it has no name there.
    Name(Option<Name>),
    /// So many; `None` while that changes.
    Times(Option<u32>),
    /// These.
    Names(Box<Sieve>),
}
