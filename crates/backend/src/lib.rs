//! Back ends: the storage that the buffer drains to, with the files that existed before and those that were
//! drained.
//!
//! A back end is a tree of files named by paths. [`open`] creates one from its configured name
//! (`dir:/scratch`).
//!
//! **Invariant**: calls never touch anything outside the tree, whatever links other users put into it. A
//! [`Version`] distinguishes a file from its changed or replaced successor. Calls that take [`Seen`] or
//! [`Slot`] change only the entry that the caller saw, even if another one has taken its name.
//!
//! **Deliberately absent**: regions, extents and open files; permission checks (the caller does them);
//! retries (the caller knows its deadline).

#![forbid(unsafe_code)]

mod acl;
mod dir;
mod faulty;
mod layout_source;
mod lustre;
mod memory;
mod model;
mod s3;
mod stripe_plan;
mod stripes;

pub use dir::Dir;
pub use faulty::{Fault, Faulty};
pub use lustre::described as lustre;
pub use memory::Memory;
pub use model::{Model, device};
pub use s3::{Access, S3};
pub use stripes::Stripes;

use forebay_model::{Error, ErrorKind, FileKind, Gid, Name, Result, Span, Time, Uid};
use forebay_policy::place::Description;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Bytes of zeros per write.
const ZEROS: usize = 1 << 20;

/// A path below the root of a back end; the root itself is empty.
pub type Path<'a> = &'a [Name];

/// A storage system. Every call may block as long as the storage does.
pub trait Backend: Send + Sync {
    /// Its configured name.
    fn name(&self) -> String;

    /// Identifies this back end as long as it exists; `None` if unknown.
    fn identity(&self) -> Option<String> {
        None
    }

    /// The entry of that name in a directory that the caller saw, if there is one.
    fn find_at(&self, at: Slot<'_>) -> Result<Option<Found>>;

    /// The attributes of the root; `None` where the storage has none, as in a bucket.
    fn root(&self) -> Result<Option<Found>> {
        self.find(&[])
    }

    /// Calls `show` with the names in a directory, in no particular order.
    fn list_of(&self, dir: Seen<'_>, show: &mut dyn FnMut(Name)) -> Result<()>;

    /// Opens a file for reading.
    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>>;

    /// Whether a file consists of parts while it is being written, and is composed into one object, by
    /// copying all of it, when the last writer closes it.
    fn gathers(&self) -> bool {
        false
    }

    /// The storage targets, by index.
    fn targets(&self) -> Vec<String>;

    /// Servers, state and free space of the targets, if known.
    fn topology(&self) -> Option<Description> {
        None
    }

    /// The layout of a file over targets.
    fn layout(&self, file: Path<'_>) -> Result<Layout>;

    /// Creates a new file and opens it for writing.
    fn create_at(&self, file: Slot<'_>, creation: &Creation) -> Result<Box<dyn Object>>;

    /// The same with a requested layout, where the back end supports that; [`Backend::layout`] returns the
    /// actual one.
    fn create_on_at(&self, file: Slot<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        let _ = layout;
        self.create_at(file, creation)
    }

    /// Opens a file for writing.
    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>>;

    /// Creates a symbolic link.
    fn symlink_at(&self, at: Slot<'_>, target: &[u8]) -> Result<()>;

    /// Sets owner, mode and mtime.
    fn set_attr_of(&self, it: Seen<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()>;

    /// Creates a directory and returns its serial number. An existing one is left unchanged, and `None` is
    /// returned, unless this user began to create it and was interrupted.
    fn make_dir_at(&self, dir: Slot<'_>, owner: (Uid, Gid), mode: u16) -> Result<Option<u64>>;

    /// Removes a file or link. Returns whether it existed.
    fn unlink_of(&self, it: Seen<'_>) -> Result<bool>;

    /// Removes an empty directory. Returns whether it existed.
    fn remove_dir_of(&self, dir: Seen<'_>) -> Result<bool>;

    /// Renames an entry, and replaces what the caller permits. If both names are hard links to one file, the
    /// first goes. Returns whether the entry existed.
    fn rename_of(&self, from: Seen<'_>, to: Slot<'_>, target: Target) -> Result<bool>;

    /// Sets the length of a file. Returns whether it existed.
    fn truncate_of(&self, file: Seen<'_>, size: u64) -> Result<bool>;

    /// Adds a hard link to a file. Not every back end supports it.
    fn link_of(&self, file: Seen<'_>, to: Slot<'_>) -> Result<()> {
        let _ = file;
        let text = format!("{} does not support hard links: cannot link {}", self.name(), shown(to.path));
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Sets an extended attribute. Not every back end supports it.
    fn set_xattr_of(&self, it: Seen<'_>, name: &Name, value: &[u8]) -> Result<()> {
        let _ = value;
        let text = format!(
            "{} does not support extended attributes: cannot set {name} of {}",
            self.name(),
            shown(it.path)
        );
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// [`Backend::find_at`] in any directory at that path. This and the calls below are for callers that share
    /// the tree with no other user who could replace entries, or that compare what they found.
    fn find(&self, path: Path<'_>) -> Result<Option<Found>> {
        self.find_at(Slot::any(path))
    }

    /// [`Backend::list_of`] for any directory at a path.
    fn list(&self, dir: Path<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        self.list_of(Seen::any(dir), show)
    }

    /// [`Backend::set_attr_of`] for any entry at a path.
    fn set_attr(&self, path: Path<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        self.set_attr_of(Seen::any(path), owner, mode, mtime)
    }

    /// [`Backend::create_at`] in any directory at that path.
    fn create(&self, file: Path<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        self.create_at(Slot::any(file), creation)
    }

    /// [`Backend::create_on_at`] in any directory at that path.
    fn create_on(&self, file: Path<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        self.create_on_at(Slot::any(file), creation, layout)
    }

    /// [`Backend::symlink_at`] in any directory at that path.
    fn symlink(&self, path: Path<'_>, target: &[u8]) -> Result<()> {
        self.symlink_at(Slot::any(path), target)
    }

    /// [`Backend::make_dir_at`] in any directory at that path.
    fn make_dir(&self, dir: Path<'_>, owner: (Uid, Gid), mode: u16) -> Result<()> {
        self.make_dir_at(Slot::any(dir), owner, mode).map(drop)
    }

    /// [`Backend::unlink_of`] for any entry at a path.
    fn unlink(&self, path: Path<'_>) -> Result<bool> {
        self.unlink_of(Seen::any(path))
    }

    /// [`Backend::remove_dir_of`] for any entry at a path.
    fn remove_dir(&self, dir: Path<'_>) -> Result<bool> {
        self.remove_dir_of(Seen::any(dir))
    }

    /// [`Backend::rename_of`] for any entry at a path, replacing any other.
    fn rename(&self, from: Path<'_>, to: Path<'_>) -> Result<bool> {
        self.rename_of(Seen::any(from), Slot::any(to), Target::Any)
    }

    /// [`Backend::truncate_of`] for any entry at a path.
    fn truncate(&self, file: Path<'_>, size: u64) -> Result<bool> {
        self.truncate_of(Seen::any(file), size)
    }

    /// [`Backend::link_of`] for any entry at a path.
    fn link(&self, file: Path<'_>, to: Path<'_>) -> Result<()> {
        self.link_of(Seen::any(file), Slot::any(to))
    }

    /// [`Backend::set_xattr_of`] for any entry at a path.
    fn set_xattr(&self, path: Path<'_>, name: &Name, value: &[u8]) -> Result<()> {
        self.set_xattr_of(Seen::any(path), name, value)
    }
}

/// An entry that the caller saw: its path and its serial number. A user with write permission for a directory
/// can put another entry under a name at any time; calls that take this leave such an entry unchanged and
/// fail as stale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen<'a> {
    /// Its path.
    pub path: Path<'a>,
    /// The serial number of its [`Version`]; 0 matches any entry.
    pub serial: u64,
    /// The serial number of its directory; 0 matches any. Only calls that change the directory compare it: an
    /// entry of the same serial number in another one is another hard link.
    pub dir: u64,
}

impl<'a> Seen<'a> {
    /// Any entry at a path.
    #[must_use]
    pub fn any(path: Path<'a>) -> Seen<'a> {
        Seen { path, serial: 0, dir: 0 }
    }

    /// Its name in the directory that the caller saw.
    fn slot(self) -> Slot<'a> {
        Slot { path: self.path, dir: self.dir }
    }

    /// Fails if the serial number differs from the one seen.
    fn demand(self, serial: u64) -> Result<()> {
        if self.serial == 0 || self.serial == serial {
            return Ok(());
        }
        let text = format!(
            "/{} was replaced in the back end by another entry, which was left unchanged",
            shown(self.path)
        );
        Err(Error::new(ErrorKind::Stale, text))
    }
}

/// The place of a new entry: a name in a directory that the caller saw. Calls create nothing in another
/// directory that has taken its path and may belong to another user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot<'a> {
    /// The directory's path, followed by the name.
    pub path: Path<'a>,
    /// The serial number of the directory; 0 matches any. A bucket has no directories to compare.
    pub dir: u64,
}

impl<'a> Slot<'a> {
    /// In any directory at that path.
    #[must_use]
    pub fn any(path: Path<'a>) -> Slot<'a> {
        Slot { path, dir: 0 }
    }

    /// The directory.
    #[must_use]
    pub fn dir(self) -> Seen<'a> {
        Seen { path: &self.path[..self.path.len().saturating_sub(1)], serial: self.dir, dir: 0 }
    }

    /// The entry of this name with this serial number.
    #[must_use]
    pub fn seen(self, serial: u64) -> Seen<'a> {
        Seen { path: self.path, serial, dir: self.dir }
    }
}

/// What a rename may replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Target {
    /// Nothing: the rename fails if the name is taken.
    Nothing,
    /// The entry of this serial number.
    Entry(u64),
    /// Any entry.
    Any,
}

impl Target {
    /// Fails if a rename may not replace the entry of this serial number that has the name.
    fn demand(self, path: Path<'_>, there: Option<u64>) -> Result<()> {
        match (self, there) {
            (Target::Any, _) | (_, None) => Ok(()),
            (Target::Entry(serial), Some(there)) => Seen { path, serial, dir: 0 }.demand(there),
            (Target::Nothing, Some(_)) => {
                let text =
                    format!("the back end has another /{} by now, which was left unchanged", shown(path));
                Err(Error::new(ErrorKind::Exists, text))
            }
        }
    }
}

/// An open file.
pub trait Object: Send {
    /// Its current version.
    fn version(&self) -> Result<Version>;

    /// Reads from an offset on; returns fewer bytes than requested only at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Drops clean cached pages of these bytes where possible, so that the next read comes from the device.
    fn forget(&self, _span: Span) {}

    /// Writes these buffers one after the other from an offset on.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()>;

    /// Writes zeros to bytes within the file's length.
    fn zero(&self, span: Span) -> Result<()> {
        write_zeros(self, span)
    }

    /// Makes all writes through this object durable.
    fn sync(&self) -> Result<()>;

    /// Composes a file that consists of parts, unless another writer has it open: then its close does.
    fn gather(&self) -> Result<()> {
        Ok(())
    }
}

fn write_zeros(object: &(impl Object + ?Sized), span: Span) -> Result<()> {
    let zeros = vec![0; ZEROS.min(span.len() as usize)];
    (span.start..span.end).step_by(ZEROS).try_for_each(|at| {
        let some = (span.end - at).min(ZEROS as u64) as usize;
        object.write_at(at, &[&zeros[..some]])
    })
}

/// The layout of a file: stripes of one size, round-robin over targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The targets, in the order of their stripes.
    pub targets: Vec<u32>,
    /// Stripe size in bytes.
    pub stripe: u64,
}

/// Attributes of a new file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Creation {
    /// Its owner.
    pub owner: (Uid, Gid),
    /// Its permission bits.
    pub mode: u16,
    /// Stripe count and stripe size; the back end's default if not given.
    pub stripes: Option<(u32, u64)>,
}

/// Identifies a state of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Version {
    /// Its length in bytes.
    pub size: u64,
    /// Last change of its bytes.
    pub mtime: Time,
    /// Distinguishes it from all other files that ever had this path.
    pub serial: u64,
}

/// An entry in the back end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky, `0o7777`; never more than the back end itself would grant.
    pub mode: u16,
    /// Its owner.
    pub uid: Uid,
    /// Its group.
    pub gid: Gid,
    /// Its current version.
    pub version: Version,
    /// Last read.
    pub atime: Time,
    /// Last change of its bytes or attributes.
    pub ctime: Time,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// Whether it is a mount point.
    pub mount: bool,
}

/// Opens a back end by its configured name.
pub fn open(name: &str) -> Result<Arc<dyn Backend>> {
    match name.split_once(':') {
        Some(("dir", path)) if !path.is_empty() => Ok(Arc::new(Dir::open(path)?)),
        Some(("stripes", paths)) if !paths.is_empty() => Ok(Arc::new(Stripes::open(paths.split(','))?)),
        Some(("s3", bucket)) if !bucket.is_empty() => Ok(Arc::new(S3::open(bucket, &Access::from_env())?)),
        Some(("model", rest)) if rest.contains(':') => {
            let (model, inner) = rest.split_once(':').expect("checked above");
            Ok(Arc::new(Model::open(model, open(inner)?)?))
        }
        _ => {
            let text = format!(
                "\"{name}\" is not a back end: use dir:PATH, stripes:PATH,PATH,…, s3:BUCKET or model:DEVICE:BACKEND"
            );
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

/// A path for messages.
fn shown(path: Path<'_>) -> String {
    path.iter().map(ToString::to_string).collect::<Vec<_>>().join("/")
}
