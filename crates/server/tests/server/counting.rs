//! A back end that counts writes and syncs, and can delay or block writes.

use forebay_backend::{Backend, Creation, Found, Layout, Memory, Object, Path, Seen, Slot, Target, Version};
use forebay_model::{Gid, Name, Result, Time, Uid};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Counts written bytes, and can be slow.
pub(crate) struct Counting {
    pub(crate) inner: Memory,
    pub(crate) bytes: Arc<AtomicU64>,
    pub(crate) slow: Option<Duration>,
    pub(crate) crowd: Arc<Crowd>,
    pub(crate) disk: Arc<Disk>,
}

/// Calls on all files, and the contents that would survive a crash of the host.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) writes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    lasting: Mutex<HashMap<Vec<Name>, Vec<u8>>>,
    /// Writes wait while the gate is closed.
    is_closed: Mutex<bool>,
    opened: Condvar,
    pub(crate) waiting: AtomicU64,
}

impl Disk {
    /// The contents of a file at its last sync.
    pub(crate) fn lasting(&self, path: Path<'_>) -> Vec<u8> {
        self.lasting.lock().unwrap().get(path).cloned().unwrap_or_default()
    }

    pub(crate) fn close(&self) {
        *self.is_closed.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.is_closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let closed = self.is_closed.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        drop(self.opened.wait_while(closed, |closed| *closed).unwrap());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of concurrent writers.
#[derive(Default)]
pub(crate) struct Crowd {
    now: AtomicU64,
    pub(crate) most: AtomicU64,
}

impl Counting {
    pub(crate) fn new(inner: &Memory) -> Counting {
        Counting {
            inner: inner.clone(),
            bytes: Arc::default(),
            slow: None,
            crowd: Arc::default(),
            disk: Arc::default(),
        }
    }
}

impl Counting {
    fn counted(&self, path: Path<'_>, inner: Box<dyn Object>) -> Box<dyn Object> {
        let (bytes, crowd, disk) = (self.bytes.clone(), self.crowd.clone(), self.disk.clone());
        let (path, memory) = (path.to_vec(), self.inner.clone());
        Box::new(CountingObject { inner, bytes, slow: self.slow, crowd, disk, path, memory })
    }
}

struct CountingObject {
    inner: Box<dyn Object>,
    bytes: Arc<AtomicU64>,
    slow: Option<Duration>,
    crowd: Arc<Crowd>,
    disk: Arc<Disk>,
    path: Vec<Name>,
    memory: Memory,
}

impl Object for CountingObject {
    fn version(&self) -> Result<Version> {
        self.inner.version()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.inner.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        let now = self.crowd.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.crowd.most.fetch_max(now, Ordering::Relaxed);
        self.disk.pass();
        if let Some(slow) = self.slow {
            std::thread::sleep(slow);
        }
        let written = self.inner.write_at(offset, parts);
        self.crowd.now.fetch_sub(1, Ordering::Relaxed);
        written
    }

    fn sync(&self) -> Result<()> {
        self.disk.syncs.fetch_add(1, Ordering::Relaxed);
        if let Some(bytes) = self.memory.bytes(&self.path) {
            self.disk.lasting.lock().unwrap().insert(self.path.clone(), bytes);
        }
        self.inner.sync()
    }
}

impl Backend for Counting {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn find_at(&self, at: Slot<'_>) -> Result<Option<Found>> {
        self.inner.find_at(at)
    }

    fn list_of(&self, dir: Seen<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        self.inner.list_of(dir, show)
    }

    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        Ok(self.counted(file, self.inner.open(file)?))
    }

    fn targets(&self) -> Vec<String> {
        self.inner.targets()
    }

    fn layout(&self, file: Path<'_>) -> Result<Layout> {
        self.inner.layout(file)
    }

    fn create_at(&self, file: Slot<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        Ok(self.counted(file.path, self.inner.create_at(file, creation)?))
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        Ok(self.counted(file, self.inner.open_to_write(file)?))
    }

    fn symlink_at(&self, at: Slot<'_>, target: &[u8]) -> Result<()> {
        self.inner.symlink_at(at, target)
    }

    fn set_attr_of(&self, it: Seen<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        self.inner.set_attr_of(it, owner, mode, mtime)
    }

    fn make_dir_at(&self, dir: Slot<'_>, owner: (Uid, Gid), mode: u16) -> Result<Option<u64>> {
        self.inner.make_dir_at(dir, owner, mode)
    }

    fn unlink_of(&self, it: Seen<'_>) -> Result<bool> {
        self.inner.unlink_of(it)
    }

    fn remove_dir_of(&self, dir: Seen<'_>) -> Result<bool> {
        self.inner.remove_dir_of(dir)
    }

    fn rename_of(&self, from: Seen<'_>, to: Slot<'_>, target: Target) -> Result<bool> {
        self.inner.rename_of(from, to, target)
    }

    fn truncate_of(&self, file: Seen<'_>, size: u64) -> Result<bool> {
        self.inner.truncate_of(file, size)
    }
}
