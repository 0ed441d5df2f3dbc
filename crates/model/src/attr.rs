//! Attributes and layouts of files.

use crate::{FileId, Gid, ServerId, Span, Time, Uid};
use serde::{Deserialize, Serialize};
use std::ops::Add;

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A special file: the service keeps its name and attributes, and the client's kernel opens it.
    Special(Special),
}

/// A special file, which the kernel of the client's machine opens, not the service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Special {
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device, by the kernel's number for it.
    Character(u32),
    /// A block device, by the kernel's number for it.
    Block(u32),
}

/// The attributes of a file, as `stat` shows them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attr {
    /// The file's id.
    pub id: FileId,
    /// Its type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky, `0o7777`.
    pub mode: u16,
    /// Number of hard links; for a directory, 2 plus its number of subdirectories.
    pub links: u32,
    /// Its owner.
    pub uid: Uid,
    /// Its group.
    pub gid: Gid,
    /// Its length in bytes.
    pub size: u64,
    /// Bytes of it that the buffer holds.
    pub buffered: u64,
    /// Last access; updated only at creation and by `utimens`.
    pub atime: Time,
    /// Last change of its bytes.
    pub mtime: Time,
    /// Last change of its bytes or attributes.
    pub ctime: Time,
}

/// The servers of a file's bytes, fixed at its creation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Layout {
    /// The servers, in stripe order; at least one.
    pub servers: Vec<ServerId>,
    /// Stripe size in bytes; not 0.
    pub stripe: u64,
}

/// A layout before it is checked.
#[derive(Deserialize)]
struct Unchecked {
    servers: Vec<ServerId>,
    stripe: u64,
}

impl TryFrom<Unchecked> for Layout {
    type Error = &'static str;

    fn try_from(sent: Unchecked) -> Result<Layout, &'static str> {
        match sent.servers.is_empty() || sent.stripe == 0 {
            true => Err("a layout without servers or stripes"),
            false => Ok(Layout { servers: sent.servers, stripe: sent.stripe }),
        }
    }
}

impl Layout {
    /// The whole file on one server.
    #[must_use]
    pub fn whole(server: ServerId, stripe: u64) -> Layout {
        Layout { servers: vec![server], stripe }
    }

    /// The only server, if there is exactly one.
    #[must_use]
    pub fn only(&self) -> Option<ServerId> {
        match self.servers[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Splits a range at server boundaries, in order.
    pub fn pieces(&self, span: Span) -> impl Iterator<Item = (ServerId, Span)> + '_ {
        let mut at = span.start;
        std::iter::from_fn(move || {
            if at >= span.end {
                return None;
            }
            let (start, server) = (at, self.server_at(at));
            at = match self.only() {
                Some(_) => span.end,
                None => (at / self.stripe + 1).saturating_mul(self.stripe).min(span.end),
            };
            Some((server, Span::new(start, at)))
        })
    }

    /// How many of a file's first `end` bytes one of its servers holds, by its index in the list.
    #[must_use]
    pub fn share(&self, index: usize, end: u64) -> u64 {
        let (count, index) = (self.servers.len() as u64, index as u64);
        let round = self.stripe.saturating_mul(count);
        let before = self.stripe.saturating_mul(index);
        end / round * self.stripe + (end % round).saturating_sub(before).min(self.stripe)
    }

    /// The server that holds the byte at an offset.
    #[must_use]
    pub fn server_at(&self, offset: u64) -> ServerId {
        let stripe = offset / self.stripe.max(1);
        self.servers[(stripe % self.servers.len() as u64) as usize]
    }
}

/// Striping of new files in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Striping {
    /// Number of servers; 0 for all of them.
    pub width: u16,
    /// Stripe size in bytes.
    pub stripe: u64,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetTime {
    /// The server's current time.
    Now,
    /// This time.
    To(Time),
}

/// Attributes to change; `None` leaves one unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Change {
    /// New permission bits.
    pub mode: Option<u16>,
    /// New owner.
    pub uid: Option<Uid>,
    /// New group.
    pub gid: Option<Gid>,
    /// New time of last access.
    pub atime: Option<SetTime>,
    /// New time of last modification.
    pub mtime: Option<SetTime>,
}

/// How full the buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes that files can fill.
    pub capacity: u64,
    /// Bytes in regions that hold live data, or are not yet reusable.
    pub used: u64,
    /// Bytes of live file data.
    pub live: u64,
    /// Number of files, directories and links.
    pub files: u64,
}

impl Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage {
            capacity: self.capacity.saturating_add(other.capacity),
            used: self.used.saturating_add(other.used),
            live: self.live.saturating_add(other.live),
            files: self.files.saturating_add(other.files),
        }
    }
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace a file or an empty directory, as `rename` does.
    Replace,
    /// Refuse when the target exists.
    NoReplace,
    /// Swap the two.
    Exchange,
}

/// How setting an extended attribute treats an existing one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// Only create.
    Create,
    /// Only replace.
    Replace,
}
