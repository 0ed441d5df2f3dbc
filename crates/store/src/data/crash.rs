//! A disk that can lose power, for tests.

use super::disk::Disk;
use forebay_model::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Called before every flush and every file creation takes effect: a moment to simulate a power cut.
pub type AtFlush = Arc<dyn Fn(&CrashDisk) + Send + Sync>;

/// A disk in memory that tracks what is durable. Between two flushes of a file its blocks become durable in any order,
/// or not at all.
#[derive(Default)]
pub struct CrashDisk {
    files: Mutex<BTreeMap<String, Entry>>,
    at_flush: Mutex<Option<AtFlush>>,
    faults: Mutex<Faults>,
}

struct Entry {
    live: File,
    durable: Vec<u8>,
}

/// Faults to inject.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// The disk is full: nothing can be created.
    pub full: bool,
    /// Flushes fail.
    pub flush: bool,
}

impl CrashDisk {
    /// Calls `at_flush` at every flush from now on.
    pub fn set_at_flush(&self, at_flush: Option<AtFlush>) {
        *self.at_flush.lock() = at_flush;
    }

    /// Injects faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    /// A possible state of the disk after a power cut at this moment: for every block of `tear` bytes that was changed
    /// since its file was flushed, `keep` decides whether the new content survived.
    #[must_use]
    pub fn after_power_cut(&self, tear: usize, keep: &mut dyn FnMut() -> bool) -> CrashDisk {
        let files = self.files.lock();
        CrashDisk::holding(files.iter().map(|(name, entry)| {
            let live = content(&entry.live, entry.durable.len());
            let mut survived = entry.durable.clone();
            for (old, new) in survived.chunks_mut(tear).zip(live.chunks(tear)) {
                if old != new && keep() {
                    old.copy_from_slice(new);
                }
            }
            (name.clone(), survived)
        }))
    }

    fn pause(&self) {
        let at_flush = self.at_flush.lock().clone();
        if let Some(at_flush) = at_flush {
            at_flush(self);
        }
    }

    /// A disk with just these files, all durable.
    #[must_use]
    pub fn holding(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> CrashDisk {
        let disk = CrashDisk::default();
        for (name, bytes) in files {
            let file = memory_file(bytes.len() as u64);
            file.write_all_at(&bytes, 0).expect("memory can be written");
            disk.files.lock().insert(name, Entry { live: file, durable: bytes });
        }
        disk
    }

    /// The content of a file.
    #[must_use]
    pub fn read(&self, name: &str) -> Vec<u8> {
        let files = self.files.lock();
        let entry = files.get(name).expect("the file exists");
        content(&entry.live, entry.durable.len())
    }

    /// Loses a file.
    pub fn remove(&self, name: &str) {
        self.files.lock().remove(name);
    }

    /// Corrupts one byte of a file.
    pub fn flip(&self, name: &str, position: u64) {
        let files = self.files.lock();
        let live = &files.get(name).expect("the file exists").live;
        let mut byte = [0];
        live.read_exact_at(&mut byte, position).expect("inside the file");
        live.write_all_at(&[!byte[0]], position).expect("memory can be written");
    }

    /// Truncates a file: a process that has it mapped gets the same fault as from a bad sector.
    pub fn cut(&self, name: &str, len: u64) {
        let files = self.files.lock();
        ftruncate(&files.get(name).expect("the file exists").live, len).expect("memory files can shrink");
    }

    /// The names of all files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.files.lock().keys().cloned().collect()
    }
}

fn memory_file(len: u64) -> File {
    let file = File::from(memfd_create("crash-disk", MemfdFlags::CLOEXEC).expect("memory files can be made"));
    ftruncate(&file, len).expect("memory files can grow");
    file
}

fn content(file: &File, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).expect("memory can be read");
    bytes
}

impl Disk for CrashDisk {
    fn create(&self, name: &str, len: u64) -> Result<File> {
        if self.faults.lock().full {
            return Err(Error::new(ErrorKind::NoSpace, format!("cannot allocate {name}: the disk is full")));
        }
        // The new file is complete before it replaces the old one: that, too, is a moment for a power cut.
        self.pause();
        let live = memory_file(len);
        let file = live.try_clone().expect("descriptors are plenty");
        self.files.lock().insert(name.to_owned(), Entry { live, durable: vec![0; len as usize] });
        Ok(file)
    }

    fn vacate(&self, name: &str) -> Result<()> {
        self.pause();
        if let Some(entry) = self.files.lock().get_mut(name) {
            ftruncate(&entry.live, 0).expect("memory files can shrink");
            entry.durable.clear();
        }
        Ok(())
    }

    fn open(&self, name: &str) -> Result<Option<File>> {
        let files = self.files.lock();
        Ok(files.get(name).map(|entry| entry.live.try_clone().expect("descriptors are plenty")))
    }

    fn sync(&self, name: &str, _: &File) -> Result<()> {
        self.pause();
        if self.faults.lock().flush {
            return Err(Error::new(ErrorKind::Io, format!("cannot flush {name}: input/output error")));
        }
        if let Some(entry) = self.files.lock().get_mut(name) {
            entry.durable = content(&entry.live, entry.durable.len());
        }
        Ok(())
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn names(&self) -> Result<Vec<String>> {
        Ok(CrashDisk::names(self))
    }

    fn remove(&self, name: &str) -> Result<()> {
        CrashDisk::remove(self, name);
        Ok(())
    }

    fn path(&self, _: &str) -> Option<PathBuf> {
        None
    }
}
