//! Inodes: everything about a file except its names, size and bytes.

use super::damaged;
use super::messages::DirCopy;
use crate::timeline::Timeline;
use forebay_model::{
    Attr, FileId, FileKind, Gid, Incarnation, Layout, Name, Result, Special, Stamp, Striping, Time, Uid,
};
use serde::{Deserialize, Serialize};

/// Maximum number of names of a file.
pub const MAX_LINKS: usize = 1024;

const VERSION: u8 = 3;
/// Size in bytes that most encoded inodes do not exceed.
const USUAL: usize = 128;
/// The size that `stat` reports for a directory, regardless of its entries.
const DIRECTORY_SIZE: u64 = 4096;

/// A file, directory or symbolic link. The order of fields is the postcard encoding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inode {
    /// Permission bits with set-id and sticky, `0o7777`.
    pub mode: u16,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// The directories of its names, once for each name. A directory has exactly one; the root is its own parent.
    pub parents: Vec<FileId>,
    /// Creation time, or the time set since.
    pub atime: Time,
    /// Last modification known to the namespace; the data may know a later one.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// When `mtime` was last set explicitly: earlier writes do not update it.
    pub mtime_set: Stamp,
    /// Fields specific to its type.
    pub body: Body,
}

/// Fields of one type of file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// A regular file.
    File {
        /// The servers that hold its bytes.
        layout: Layout,
        /// The incarnations of their stores, in the same order.
        incarnations: Vec<Incarnation>,
        /// What is known of its size if several servers hold its bytes.
        extent: Extent,
    },
    /// A directory.
    Directory {
        /// Increases when mode, owner, group, parent or name change, to identify outdated copies.
        epoch: u64,
        /// Its name in its parent; the root has none.
        name: Option<Name>,
        /// The layout of new files in it, if set.
        striping: Option<Striping>,
    },
    /// A symbolic link.
    Symlink {
        /// The target.
        target: Vec<u8>,
    },
    /// A pipe, socket or device.
    Special {
        /// The type and device number.
        special: Special,
    },
}

/// The size information in an inode. With one server in the layout, that server knows the size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// Lower bound of the size.
    pub least: u64,
    /// The last recorded write.
    pub touched: Option<Stamp>,
    /// Whether the file may have been written since; if so, the servers of the layout must be queried.
    pub size_pending: bool,
    /// Bytes of it in the buffers of other servers; `None` if unknown since the last change.
    pub elsewhere: Option<u64>,
}

impl Extent {
    /// Whether the servers of the layout must be queried for missing values.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.size_pending || self.elsewhere.is_none()
    }
}

/// Attributes that the data provides for a file, and the homes of its entries for a directory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Facts {
    /// Size in bytes.
    pub size: u64,
    /// Its last write, truncation or punch; for a directory, the last change of an entry.
    pub touched: Option<Stamp>,
    /// Bytes of it in the buffer.
    pub buffered: u64,
    /// Number of subdirectories.
    pub subdirs: u32,
}

impl Inode {
    pub(super) fn new(body: Body, parent: FileId, mode: u16, (uid, gid): (Uid, Gid), now: Stamp) -> Inode {
        let time = Time::from(now);
        Inode {
            mode,
            uid,
            gid,
            parents: vec![parent],
            atime: time,
            mtime: time,
            ctime: time,
            mtime_set: now,
            body,
        }
    }

    /// The file type.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match self.body {
            Body::File { .. } => FileKind::File,
            Body::Directory { .. } => FileKind::Directory,
            Body::Symlink { .. } => FileKind::Symlink,
            Body::Special { special } => FileKind::Special(special),
        }
    }

    /// Its parent directory, or one of them; `None` if it has no name left.
    #[must_use]
    pub fn parent(&self) -> Option<FileId> {
        self.parents.first().copied()
    }

    /// The attributes that `stat` reports.
    #[must_use]
    pub fn attr(&self, id: FileId, facts: &Facts, times: &Timeline) -> Attr {
        let written = facts.touched.filter(|&touched| touched > self.mtime_set);
        let touched = facts.touched.map(Time::from).unwrap_or(self.ctime);
        Attr {
            id,
            kind: self.kind(),
            mode: self.mode,
            links: match self.body {
                Body::Directory { .. } => facts.subdirs.saturating_add(2),
                // At most `MAX_LINKS`.
                _ => self.parents.len() as u32,
            },
            uid: self.uid,
            gid: self.gid,
            size: match &self.body {
                Body::File { .. } => facts.size,
                Body::Directory { .. } => DIRECTORY_SIZE,
                Body::Symlink { target } => target.len() as u64,
                Body::Special { .. } => 0,
            },
            buffered: facts.buffered,
            atime: self.atime,
            mtime: written.map_or(self.mtime, |written| times.time_of(written)),
            // Kept by the clock of stamps, so that the later one is found.
            ctime: times.shown(self.ctime.max(touched)),
        }
    }

    /// Records a change of the inode.
    pub(super) fn changed(&mut self, now: Stamp) {
        self.ctime = Time::from(now);
    }

    /// Records a change that invalidates copies of a directory on other servers.
    pub(super) fn new_epoch(&mut self) {
        if let Body::Directory { epoch, .. } = &mut self.body {
            *epoch += 1;
        }
    }

    /// The copy of a directory for other servers.
    pub(super) fn copy(&self) -> DirCopy {
        let (epoch, name, striping) = match &self.body {
            Body::Directory { epoch, name, striping } => (*epoch, name.clone(), *striping),
            _ => (0, None, None),
        };
        let parent = self.parent().unwrap_or(FileId::ROOT);
        DirCopy { mode: self.mode, uid: self.uid, gid: self.gid, parent, name, striping, epoch }
    }

    /// Sets the name of a directory.
    pub(super) fn call(&mut self, new: &Name) {
        if let Body::Directory { name, .. } = &mut self.body {
            *name = Some(new.clone());
        }
        self.new_epoch();
    }

    /// Removes one name in `dir`.
    pub(super) fn leave(&mut self, id: FileId, dir: FileId) -> Result<()> {
        let Some(index) = self.parents.iter().position(|&parent| parent == dir) else {
            return Err(damaged(format!("inode {id} does not record its name in directory {dir}")));
        };
        self.parents.swap_remove(index);
        Ok(())
    }

    pub(super) fn noun(&self) -> &'static str {
        noun(self.kind())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(USUAL);
        bytes.push(VERSION);
        postcard::to_extend(self, bytes).expect("encoding an inode to memory cannot fail")
    }

    pub(super) fn decode(id: FileId, bytes: &[u8]) -> Result<Inode> {
        let inode = match bytes {
            [VERSION, rest @ ..] => match postcard::take_from_bytes::<Inode>(rest) {
                Ok((inode, [])) => Some(inode),
                _ => None,
            },
            _ => None,
        };
        match inode {
            Some(inode) if inode.is_sane() => Ok(inode),
            _ => Err(damaged(format!("inode {id} cannot be read"))),
        }
    }

    fn is_sane(&self) -> bool {
        let names = match &self.body {
            Body::Directory { .. } => self.parents.len() == 1,
            _ => self.parents.len() <= MAX_LINKS,
        };
        let layout = match &self.body {
            Body::File { layout, incarnations, .. } => {
                !layout.servers.is_empty() && layout.servers.len() == incarnations.len() && layout.stripe > 0
            }
            _ => true,
        };
        let times = [self.atime, self.mtime, self.ctime];
        names && layout && self.mode <= 0o7777 && times.iter().all(|time| time.nanos < 1_000_000_000)
    }
}

pub(super) fn noun(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Special(_) => "special file",
    }
}
