//! Newtypes for numeric ids.

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
    /// Orders all changes of a file: later wins. Also the time of the change, in nanoseconds since the Unix
    /// epoch, from the store's monotonic clock.
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
    /// A file or directory. Ids are never reused. The top 16 bits are the server that created it.
    FileId(u64)
}

impl Uid {
    /// The superuser.
    pub const ROOT: Uid = Uid(0);
}

impl FileId {
    /// The root directory.
    pub const ROOT: FileId = FileId(1);

    /// The `count`-th id created by `server`.
    #[must_use]
    pub fn made_by(server: ServerId, count: u64) -> FileId {
        assert!(count < 1 << 48, "a server creates fewer than 2^48 files");
        FileId(u64::from(server.0) << 48 | count)
    }

    /// The server that created this file.
    #[must_use]
    pub fn maker(self) -> ServerId {
        ServerId((self.0 >> 48) as u16)
    }

    /// The server's counter value for this id.
    #[must_use]
    pub fn count(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

/// Identity of a store: a store that was lost and recreated has another.
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
