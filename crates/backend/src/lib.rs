//! The world behind the buffer: files that were there before it, and what of ours has gone there.
//!
//! A back end is a tree of files named by paths. [`open`] makes one from how people write it (`dir:/scratch`).
//!
//! **Invariant**: nothing outside the tree is ever touched, whatever links somebody puts into it; and what was read is
//! told apart from what has changed since, by its [`Version`].
//!
//! **Deliberately absent**: knowledge of regions, extents and open files; permissions (whoever calls has asked);
//! retries (whoever calls knows how long it may take).

#![forbid(unsafe_code)]

mod acl;
mod dir;
mod faulty;
mod lustre;
mod memory;
mod model;
mod s3;
mod stripes;
mod told;

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

/// How many zeros are written at once.
const ZEROS: usize = 1 << 20;

/// A path below the root of a back end; the root itself is empty.
pub type Path<'a> = &'a [Name];

/// What stands behind the buffer. Every call may take as long as the world behind does.
pub trait Backend: Send + Sync {
    /// How people name it.
    fn name(&self) -> String;

    /// What tells this back end from others, as long as it exists; nothing if that is not known.
    fn identity(&self) -> Option<String> {
        None
    }

    /// What is there, if anything.
    fn find(&self, path: Path<'_>) -> Result<Option<Found>>;

    /// Shows the names in a directory, in no particular order.
    fn list(&self, dir: Path<'_>, show: &mut dyn FnMut(Name)) -> Result<()>;

    /// A file, to be read.
    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>>;

    /// Whether a file lies in parts while somebody writes it, and is put together, which takes a copy of all of it, when the
    /// last who does lets go.
    fn gathers(&self) -> bool {
        false
    }

    /// The places at which bytes end up, by their numbers.
    fn targets(&self) -> Vec<String>;

    /// What is known of those places: on which servers, whether they are active, how much room they have.
    fn topology(&self) -> Option<Description> {
        None
    }

    /// Which target holds which bytes of a file.
    fn layout(&self, file: Path<'_>) -> Result<Layout>;

    /// Makes a file that is not there yet, to be written.
    fn create(&self, file: Path<'_>, creation: &Creation) -> Result<Box<dyn Object>>;

    /// The same with a layout that was chosen for it, where the back end lets itself be told; [`Backend::layout`] says
    /// which it has.
    fn create_on(&self, file: Path<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        let _ = layout;
        self.create(file, creation)
    }

    /// A file, to be written.
    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>>;

    /// Makes a symbolic link.
    fn symlink(&self, path: Path<'_>, target: &[u8]) -> Result<()>;

    /// Gives something its owner, mode and time of last change.
    fn set_attr(&self, path: Path<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()>;

    /// Makes a directory; one that is there already is fine.
    fn make_dir(&self, dir: Path<'_>, owner: (Uid, Gid), mode: u16) -> Result<()>;

    /// Removes a file or link, if it is there; says whether it was.
    fn unlink(&self, path: Path<'_>) -> Result<bool>;

    /// Removes an empty directory, if it is there; says whether it was.
    fn remove_dir(&self, dir: Path<'_>) -> Result<bool>;

    /// Moves what is there, if anything is, over what the target has; says whether it was.
    fn rename(&self, from: Path<'_>, to: Path<'_>) -> Result<bool>;

    /// Sets the length of a file, if it is there; says whether it was.
    fn truncate(&self, file: Path<'_>, size: u64) -> Result<bool>;

    /// Gives a file one more name. Not every back end can.
    fn link(&self, file: Path<'_>, to: Path<'_>) -> Result<()> {
        let _ = file;
        Err(Error::new(ErrorKind::Unsupported, format!("{} knows no hard links: {}", self.name(), shown(to))))
    }

    /// Gives something an extended attribute. Not every back end can.
    fn set_xattr(&self, path: Path<'_>, name: &Name, value: &[u8]) -> Result<()> {
        let _ = value;
        let text = format!("{} keeps no attributes: {name} of {}", self.name(), shown(path));
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}

/// A file that is being read or written.
pub trait Object: Send {
    /// Which it is now.
    fn version(&self) -> Result<Version>;

    /// Reads as much as there is from an offset on; less than asked for only at the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Lets go of what memory keeps of bytes that are on their device, where that can be done: whoever reads them next reads
    /// the device.
    fn forget(&self, _span: Span) {}

    /// Writes all of these, one behind the other, from an offset on.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()>;

    /// Makes bytes zero that are within its length.
    fn zero(&self, span: Span) -> Result<()> {
        write_zeros(self, span)
    }

    /// Everything written through this object is on its device when this returns.
    fn sync(&self) -> Result<()>;

    /// Puts a file together that lies in parts, unless somebody else writes it: then that is done when he lets go.
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

/// Which target holds which bytes of a file: stripes of one size, dealt in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The targets, in the order of their stripes.
    pub targets: Vec<u32>,
    /// Bytes in a stripe.
    pub stripe: u64,
}

/// What a new file is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Creation {
    /// Its owner.
    pub owner: (Uid, Gid),
    /// Its permission bits.
    pub mode: u16,
    /// Over how many targets, and in stripes of which size; as the back end likes if not given.
    pub stripes: Option<(u32, u64)>,
}

/// What tells a file from what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Version {
    /// Its length in bytes.
    pub size: u64,
    /// Last change of its bytes.
    pub mtime: Time,
    /// Which of all files that ever had this path it is.
    pub serial: u64,
}

/// What was found at a path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky, `0o7777`: never more than the back end itself would grant.
    pub mode: u16,
    /// Its owner.
    pub uid: Uid,
    /// Its group.
    pub gid: Gid,
    /// Which of its states this is.
    pub version: Version,
    /// Last read.
    pub atime: Time,
    /// Last change of its bytes or attributes.
    pub ctime: Time,
    /// What a symbolic link says.
    pub target: Vec<u8>,
}

/// Opens a back end by how people write it.
pub fn open(name: &str) -> Result<Arc<dyn Backend>> {
    match name.split_once(':') {
        Some(("dir", path)) if !path.is_empty() => Ok(Arc::new(Dir::open(path)?)),
        Some(("stripes", paths)) if !paths.is_empty() => Ok(Arc::new(Stripes::open(paths.split(','))?)),
        Some(("s3", bucket)) if !bucket.is_empty() => Ok(Arc::new(S3::open(bucket, &Access::from_env())?)),
        Some(("model", rest)) if rest.contains(':') => {
            let (model, inner) = rest.split_once(':').expect("it was just seen");
            Ok(Arc::new(Model::open(model, open(inner)?)?))
        }
        _ => {
            let text = format!(
                "\"{name}\" is no back end: write dir:PATH, stripes:PATH,PATH,…, s3:BUCKET or model:DEVICE:BACKEND"
            );
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

/// A path for people.
fn shown(path: Path<'_>) -> String {
    path.iter().map(ToString::to_string).collect::<Vec<_>>().join("/")
}
