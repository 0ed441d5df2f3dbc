//! Inodes: everything about a file but its names' text, its size and its bytes.

use super::damaged;
use super::talk::DirCopy;
use forebay_model::{
    Attr, FileId, FileKind, Gid, Incarnation, Layout, Name, Result, Special, Stamp, Striping, Time, Uid,
};
use serde::{Deserialize, Serialize};

/// Most names that one file can have.
pub const MAX_LINKS: usize = 1024;

const VERSION: u8 = 3;
/// Bytes that most inodes take at most.
const USUAL: usize = 128;
/// What `stat` says of a directory's length: entries are not counted.
const DIRECTORY_SIZE: u64 = 4096;

/// A file, directory or symbolic link, in the order in which postcard writes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inode {
    /// Permission bits with set-id and sticky, `0o7777`.
    pub mode: u16,
    /// Its owner.
    pub uid: Uid,
    /// Its group.
    pub gid: Gid,
    /// The directories that hold its names, once for each name. A directory has exactly one; the root is its own.
    pub parents: Vec<FileId>,
    /// When it was made, or what was set since.
    pub atime: Time,
    /// Last change that this room knows of; the data may know a later one.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// When `mtime` was last set explicitly: writes before that do not count.
    pub mtime_set: Stamp,
    /// What only its kind has.
    pub body: Body,
}

/// What only one kind of file has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// A regular file.
    File {
        /// Which servers hold its bytes.
        layout: Layout,
        /// Which lives of their stores, in the same order.
        incarnations: Vec<Incarnation>,
        /// What is known of its length while several servers hold its bytes.
        extent: Extent,
    },
    /// A directory.
    Directory {
        /// Grows whenever mode, owner, group, parent or name change, so that copies elsewhere can be told apart.
        epoch: u64,
        /// What it is called in its parent; the root has no name.
        name: Option<Name>,
        /// How the files that are made in it are laid out, if that was said.
        striping: Option<Striping>,
    },
    /// A symbolic link.
    Symlink {
        /// What it says.
        target: Vec<u8>,
    },
    /// A pipe, socket or device.
    Special {
        /// Which.
        special: Special,
    },
}

/// What the inode of a file says about its length. With one server in the layout, that server knows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// It has at least so many bytes.
    pub least: u64,
    /// The last write that was noted.
    pub touched: Option<Stamp>,
    /// Whether somebody may have written since; then the servers of the layout have to be asked.
    pub unsettled: bool,
    /// Bytes of it that the buffers of other servers hold; `None` if that was not noted since it changed.
    pub elsewhere: Option<u64>,
}

impl Extent {
    /// Whether something is to be asked of the servers of the layout, and noted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.unsettled || self.elsewhere.is_none()
    }
}

/// What the data knows about a file, and the homes of its entries about a directory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Facts {
    /// Its length in bytes.
    pub size: u64,
    /// Its last write, truncation or punch; of a directory, the last change of an entry.
    pub touched: Option<Stamp>,
    /// Bytes of it that the buffer holds.
    pub buffered: u64,
    /// How many directories it holds.
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

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match self.body {
            Body::File { .. } => FileKind::File,
            Body::Directory { .. } => FileKind::Directory,
            Body::Symlink { .. } => FileKind::Symlink,
            Body::Special { special } => FileKind::Special(special),
        }
    }

    /// The directory that holds it, unless it has no name left; of a file with many names, one of them.
    #[must_use]
    pub fn parent(&self) -> Option<FileId> {
        self.parents.first().copied()
    }

    /// What `stat` shows.
    #[must_use]
    pub fn attr(&self, id: FileId, facts: &Facts) -> Attr {
        let written = facts.touched.filter(|&touched| touched > self.mtime_set).map(Time::from);
        Attr {
            id,
            kind: self.kind(),
            mode: self.mode,
            links: match self.body {
                Body::Directory { .. } => facts.subdirs.saturating_add(2),
                // At most MAX_LINKS.
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
            mtime: written.unwrap_or(self.mtime),
            ctime: self.ctime.max(facts.touched.map(Time::from).unwrap_or(self.ctime)),
        }
    }

    /// Notes that the inode changed.
    pub(super) fn changed(&mut self, now: Stamp) {
        self.ctime = Time::from(now);
    }

    /// Notes a change that copies of a directory elsewhere have to learn of.
    pub(super) fn new_epoch(&mut self) {
        if let Body::Directory { epoch, .. } = &mut self.body {
            *epoch += 1;
        }
    }

    /// What others may know of a directory.
    pub(super) fn copy(&self) -> DirCopy {
        let (epoch, name, striping) = match &self.body {
            Body::Directory { epoch, name, striping } => (*epoch, name.clone(), *striping),
            _ => (0, None, None),
        };
        let parent = self.parent().unwrap_or(FileId::ROOT);
        DirCopy { mode: self.mode, uid: self.uid, gid: self.gid, parent, name, striping, epoch }
    }

    /// Notes what a directory is called from now on.
    pub(super) fn call(&mut self, new: &Name) {
        if let Body::Directory { name, .. } = &mut self.body {
            *name = Some(new.clone());
        }
        self.new_epoch();
    }

    /// Takes away one name in `dir`.
    pub(super) fn leave(&mut self, id: FileId, dir: FileId) -> Result<()> {
        let Some(index) = self.parents.iter().position(|&parent| parent == dir) else {
            return Err(damaged(format!("file {id} does not know of its name in directory {dir}")));
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
        postcard::to_extend(self, bytes).expect("an inode can always be written to memory")
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
