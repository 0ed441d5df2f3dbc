//! Newtypes for everything that is counted or named by a number.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

number! {
    /// One buffer daemon of a cluster.
    ServerId(u16)
}
number! {
    /// One region of a store.
    RegionId(u32)
}
number! {
    /// The order of everything that happens to a file: later wins. Also the time of the event, in nanoseconds
    /// since the Unix epoch, as the store's clock saw it (that clock never goes back).
    Stamp(u64)
}
number! {
    /// A user.
    Uid(u32)
}
number! {
    /// A group.
    Gid(u32)
}
number! {
    /// A file or directory, for ever: ids are never used again. The top 16 bits name the server that made it.
    FileId(u64)
}

impl Uid {
    /// The superuser.
    pub const ROOT: Uid = Uid(0);
}

impl FileId {
    /// The root directory.
    pub const ROOT: FileId = FileId(1);

    /// The `count`-th id made by `server`.
    #[must_use]
    pub fn made_by(server: ServerId, count: u64) -> FileId {
        assert!(count < 1 << 48, "a server makes fewer than 2^48 files");
        FileId(u64::from(server.0) << 48 | count)
    }

    /// The server that made this file.
    #[must_use]
    pub fn maker(self) -> ServerId {
        ServerId((self.0 >> 48) as u16)
    }

    /// Which of the ids made by its server this is.
    #[must_use]
    pub fn count(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

/// One life of a store: a store that was lost and made anew has another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u128);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({self})")
    }
}
