//! The files of regions, and their durability.

use crate::files::failed;
use crate::room;
use forebay_model::{Error, Result};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Suffix of files that are being created.
pub(crate) const UNFINISHED: &str = ".new";

/// Whether memory suffices is checked for allocations of at least this many bytes.
const CHECKED: u64 = 1 << 20;

/// A directory of named files of fixed size.
pub trait Disk: Send + Sync {
    /// Creates a file of zeros, fully allocated and durable, replacing one with that name.
    fn create(&self, name: &str, len: u64) -> Result<File>;

    /// Does the same, but in memory only the given ranges are allocated: the others must not be touched before
    /// [`allocate`](Disk::allocate) has allocated them.
    fn create_in_part(&self, name: &str, len: u64, ranges: &[Range<u64>]) -> Result<File> {
        let _ = ranges;
        self.create(name, len)
    }

    /// Allocates a range of a file that was created in part.
    fn allocate(&self, name: &str, file: &File, range: Range<u64>) -> Result<()> {
        let _ = (name, file, range);
        Ok(())
    }

    /// Frees all memory or blocks of a file, even if clients have it open; it is empty afterwards. Not an error if it
    /// does not exist.
    fn vacate(&self, name: &str) -> Result<()>;

    /// Opens a file for reading and writing; `None` if it does not exist.
    fn open(&self, name: &str) -> Result<Option<File>>;

    /// Makes every byte written to the file durable.
    fn sync(&self, name: &str, file: &File) -> Result<()>;

    /// Whether files are lost with the machine anyway, so that flushes are unnecessary.
    fn is_volatile(&self) -> bool;

    /// The names of all files.
    fn names(&self) -> Result<Vec<String>>;

    /// Removes a file; not an error if it does not exist.
    fn remove(&self, name: &str) -> Result<()>;

    /// The path by which other processes of this machine open a file; `None` if they cannot.
    fn path(&self, name: &str) -> Option<PathBuf>;
}

/// A directory of a real file system.
pub struct DirDisk {
    dir: PathBuf,
    volatile: bool,
}

impl DirDisk {
    /// Uses an existing directory; `volatile` if it is on a tmpfs.
    #[must_use]
    pub fn new(dir: PathBuf, volatile: bool) -> DirDisk {
        DirDisk { dir, volatile }
    }

    fn failed(&self, what: &str, name: &str, error: &io::Error) -> Error {
        failed(what, &self.dir.join(name), error)
    }
}

impl DirDisk {
    fn create_with(&self, name: &str, len: u64, ranges: &[Range<u64>]) -> Result<File> {
        let (path, fresh) = (self.dir.join(name), self.dir.join(format!("{name}{UNFINISHED}")));
        // Created under another name and renamed: a crash leaves the old file or the new one.
        let create = || {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&fresh)?;
            file.set_len(len)?;
            for range in ranges {
                fallocate(&file, FallocateFlags::empty(), range.start, range.end - range.start)?;
            }
            if !self.volatile {
                file.sync_all()?;
            }
            std::fs::rename(&fresh, &path)?;
            if !self.volatile {
                sync_dir(&self.dir)?;
            }
            Ok(file)
        };
        let made = create();
        if made.is_err() {
            // It may be what fills the disk.
            let _ = std::fs::remove_file(&fresh);
        }
        made.map_err(|error| self.failed("allocate", name, &error))
    }
}

impl Disk for DirDisk {
    fn create(&self, name: &str, len: u64) -> Result<File> {
        self.create_with(name, len, std::slice::from_ref(&(0..len)))
    }

    fn create_in_part(&self, name: &str, len: u64, ranges: &[Range<u64>]) -> Result<File> {
        match self.volatile {
            true => self.create_with(name, len, ranges),
            false => self.create(name, len),
        }
    }

    fn allocate(&self, name: &str, file: &File, range: Range<u64>) -> Result<()> {
        let len = range.end - range.start;
        if !self.volatile || len == 0 {
            return Ok(());
        }
        if len >= CHECKED {
            room::demand_memory(len)?;
        }
        let allocated = fallocate(file, FallocateFlags::empty(), range.start, len);
        allocated.map_err(|error| self.failed("allocate", name, &error.into()))
    }

    fn vacate(&self, name: &str) -> Result<()> {
        let Some(file) = self.open(name)? else { return Ok(()) };
        file.set_len(0).map_err(|error| self.failed("truncate", name, &error))
    }

    fn open(&self, name: &str) -> Result<Option<File>> {
        match OpenOptions::new().read(true).write(true).open(self.dir.join(name)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("open", name, &error)),
        }
    }

    fn sync(&self, name: &str, file: &File) -> Result<()> {
        if self.volatile {
            return Ok(());
        }
        file.sync_data().map_err(|error| self.failed("flush", name, &error))
    }

    fn is_volatile(&self) -> bool {
        self.volatile
    }

    fn names(&self) -> Result<Vec<String>> {
        let list = std::fs::read_dir(&self.dir).and_then(|list| {
            list.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        });
        list.map_err(|error| failed("list", &self.dir, &error))
    }

    fn remove(&self, name: &str) -> Result<()> {
        match std::fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed("remove", name, &error)),
            _ => Ok(()),
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.join(name))
    }
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
