//! File systems that are mounted below the back end's root.
//!
//! Where one is no longer mounted, an empty directory lies in its place: all its files would look removed, and new
//! files would be drained to a place that is hidden once it is mounted again. So each mount is recorded, and a path
//! through a missing one is an error.

use super::record::{self, Home, Record};
use super::{Backing, shown};
use forebay_backend::Found;
use forebay_model::{Error, ErrorKind, FileId, Name, Result};
use forebay_store::{Batch, KeySpace};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

const MOUNTS: &[u8] = KeySpace::Mount.prefix();

/// The serial numbers of the roots of all file systems that were seen mounted at a directory.
#[derive(Default)]
pub(super) struct Mounts {
    any: AtomicBool,
    table: RwLock<HashMap<FileId, u64>>,
}

impl Mounts {
    fn at(&self, dir: FileId) -> Option<u64> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.table.read().get(&dir).copied()
    }

    fn note(&self, dir: FileId, serial: u64) {
        self.table.write().insert(dir, serial);
        self.any.store(true, Ordering::Release);
    }
}

fn key(dir: FileId) -> Vec<u8> {
    [MOUNTS, &dir.0.to_be_bytes()].concat()
}

impl Backing {
    /// Adds the record of a file to a batch, and its mount if it is a mount point.
    pub(super) fn put_record(&self, file: FileId, home: Home, found: &Found, batch: &mut Batch) {
        batch.put(record::key(file), Record::of(home, found).encode());
        let serial = found.version.serial;
        if found.mount && self.mounts.at(file) != Some(serial) {
            batch.put(key(file), serial.to_be_bytes());
            self.mounts.note(file, serial);
        }
    }

    /// Fails if a file system is missing that was mounted at one of these directories of a path; each is given by the
    /// number of names that lead to it.
    pub(super) fn demand_mounted(&self, path: &[Name], dirs: &[(usize, u64)]) -> Result<()> {
        for &(names, serial) in dirs {
            let at = &path[..names];
            let found = self.ask(|backend| backend.find(at))?;
            if !found.is_some_and(|found| found.mount && found.version.serial == serial) {
                return Err(not_mounted(&self.name(), at));
            }
        }
        Ok(())
    }

    /// The serial number of the file system that was seen mounted at a directory.
    pub(super) fn mounted_at(&self, dir: FileId) -> Option<u64> {
        self.mounts.at(dir)
    }

    /// Fails if any file system is missing: the steps of an intent name paths, and it is not known which go through a
    /// mount.
    pub(super) fn demand_all_mounted(&self) -> Result<()> {
        let dirs: Vec<FileId> = self.mounts.table.read().keys().copied().collect();
        dirs.into_iter().try_for_each(|dir| self.path(dir).map(drop))
    }

    /// Loads the mounts that an earlier run of the server recorded.
    pub(super) fn load_mounts(&self) -> Result<()> {
        let mut bad = false;
        self.kv.scan(MOUNTS, &[], &mut |key, value| {
            match (key[MOUNTS.len()..].try_into(), value.try_into()) {
                (Ok(dir), Ok(serial)) => {
                    self.mounts.note(FileId(u64::from_be_bytes(dir)), u64::from_be_bytes(serial));
                }
                _ => bad = true,
            }
            ControlFlow::Continue(())
        })?;
        match bad {
            false => Ok(()),
            true => {
                Err(Error::new(ErrorKind::BadStore, "the record of a mounted file system cannot be decoded"))
            }
        }
    }
}

fn not_mounted(backend: &str, at: &[Name]) -> Error {
    let text = format!(
        "the file system that was mounted at /{} of {backend} is not mounted there: mount it again",
        shown(at)
    );
    Error::new(ErrorKind::Io, text)
}
