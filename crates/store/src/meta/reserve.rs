//! Disk space and descriptors that the metadata store reserves for when they run out.
//!
//! A tree that cannot write to its journal refuses all writes until it is reopened, and reopening takes space and
//! descriptors too. The reserve is allocated while there is enough, released to reopen the tree, and must be restored
//! before the next write, so that the tree is not reopened in vain over and over.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes to reserve: twice the size of the log ahead.
const SPACE: u64 = 4 << 20;
/// Descriptors to reserve: those of the journal, the tables that a lookup needs, and a directory.
const DESCRIPTORS: usize = 12;
const NAME: &str = "reserve";

/// Reserved space and descriptors.
pub(super) struct Reserve {
    path: PathBuf,
    whole: bool,
    /// It was released, and is not restored.
    spent: bool,
    descriptors: Vec<File>,
}

impl Reserve {
    /// Reserves as much as there is.
    pub(super) fn new(dir: &Path) -> Reserve {
        let mut reserve =
            Reserve { path: dir.join(NAME), whole: false, spent: false, descriptors: Vec::new() };
        // If there is too little already, the first write fails.
        let _ = reserve.restore();
        reserve
    }

    /// Whether it was released and is not restored.
    pub(super) fn is_spent(&self) -> bool {
        self.spent
    }

    /// Releases everything.
    pub(super) fn release(&mut self) {
        (self.whole, self.spent) = (false, true);
        self.descriptors.clear();
        // A missing file takes no space.
        let _ = std::fs::remove_file(&self.path);
    }

    /// Reserves everything again, or fails with the error that a write would get.
    pub(super) fn restore(&mut self) -> io::Result<()> {
        if self.whole {
            return Ok(());
        }
        while self.descriptors.len() < DESCRIPTORS {
            self.descriptors.push(File::open("/dev/null")?);
        }
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
        match fallocate(&file, FallocateFlags::empty(), 0, SPACE) {
            // A file system without `fallocate` gets no reserved space.
            Ok(()) | Err(Errno::OPNOTSUPP) => (self.whole, self.spent) = (true, false),
            Err(error) => {
                let _ = std::fs::remove_file(&self.path);
                return Err(error.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_holds_and_releases_space_and_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let len = || std::fs::metadata(dir.path().join(NAME)).map(|facts| facts.len()).ok();
        let mut reserve = Reserve::new(dir.path());
        assert_eq!((len(), reserve.descriptors.len(), reserve.whole), (Some(SPACE), DESCRIPTORS, true));
        reserve.release();
        assert_eq!((len(), reserve.descriptors.len(), reserve.whole), (None, 0, false));
        reserve.restore().unwrap();
        assert_eq!((len(), reserve.descriptors.len(), reserve.whole), (Some(SPACE), DESCRIPTORS, true));
        reserve.release();
        std::fs::remove_dir(dir.path()).unwrap();
        assert!(reserve.restore().is_err() && !reserve.whole);
        std::fs::create_dir(dir.path()).unwrap();
        assert!(reserve.restore().is_ok());
    }
}
