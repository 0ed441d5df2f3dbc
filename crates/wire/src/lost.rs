//! What went with stores that were lost, and what servers ask each other to find out.

use forebay_model::{FileId, Layout, Name, ServerId};
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
    /// The server with whose store it was lost.
    pub server: ServerId,
    /// What.
    pub what: Lost,
    /// The file.
    pub file: FileId,
    /// The directory that holds its name.
    pub dir: FileId,
    /// That name, where it was found.
    pub name: Option<Name>,
    /// The whole path, where one leads there.
    pub path: Option<Vec<u8>>,
}

/// What is lost of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Lost {
    /// Everything but its name.
    Inode,
    /// Bytes.
    Bytes {
        /// So many.
        count: u64,
        /// And nobody knows how many behind them.
        open: bool,
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
    },
}

/// What is left.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Remains {
    /// All of it.
    All,
    /// Not this.
    Not(Lost),
    /// It is called so; `None` if it has no name there.
    Name(Option<Name>),
}
