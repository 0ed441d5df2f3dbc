//! A back end in memory, for tests.

use crate::{Backend, Creation, Found, Layout, Object, Path, Seen, Slot, Target, Version, shown};
use forebay_model::{Error, ErrorKind, FileKind, Gid, Name, Result, Time, Uid};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A back end in memory. Clones share their contents.
#[derive(Clone, Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<Vec<Name>, Node>,
    /// Counts changes; serves as the clock.
    clock: u64,
}

#[derive(Clone)]
struct Node {
    found: Found,
    bytes: Vec<u8>,
}

impl State {
    fn tick(&mut self) -> Time {
        self.clock += 1;
        Time { secs: self.clock as i64, nanos: 0 }
    }

    fn insert(&mut self, path: Path<'_>, kind: FileKind, owner: (Uid, Gid), mode: u16, bytes: &[u8]) {
        let now = self.tick();
        let version = Version { size: bytes.len() as u64, mtime: now, serial: self.clock };
        let target = if kind == FileKind::Symlink { bytes.to_vec() } else { Vec::new() };
        let (uid, gid) = owner;
        let found = Found { kind, mode, uid, gid, version, atime: now, ctime: now, target, mount: false };
        self.nodes.insert(path.to_vec(), Node { found, bytes: bytes.to_vec() });
    }

    fn kind(&self, path: Path<'_>) -> Option<FileKind> {
        if path.is_empty() {
            return Some(FileKind::Directory);
        }
        self.nodes.get(path).map(|node| node.found.kind)
    }

    fn children(&self, dir: Path<'_>) -> impl Iterator<Item = &Name> {
        let below =
            self.nodes.keys().filter(move |path| path.len() == dir.len() + 1 && path.starts_with(dir));
        below.filter_map(|path| path.last())
    }

    /// Fails if another entry is there than the caller saw.
    fn demand(&self, it: Seen<'_>) -> Result<()> {
        self.nodes.get(it.path).map_or(Ok(()), |node| it.demand(node.found.version.serial))
    }

    /// The same for its directory.
    fn demand_in(&self, it: Seen<'_>) -> Result<()> {
        self.demand(it.slot().dir())?;
        self.demand(it)
    }

    fn demand_parent(&self, path: Path<'_>) -> Result<()> {
        match path.split_last().map(|(_, dir)| self.kind(dir)) {
            Some(Some(FileKind::Directory)) => Ok(()),
            Some(Some(_)) => Err(failed(path, ErrorKind::NotDirectory)),
            _ => Err(failed(path, ErrorKind::NotFound)),
        }
    }
}

fn failed(path: Path<'_>, kind: ErrorKind) -> Error {
    Error::new(kind, format!("{}: {kind}", shown(path)))
}

impl Memory {
    /// Creates a file or replaces its bytes.
    pub fn put(&self, path: Path<'_>, owner: (Uid, Gid), mode: u16, bytes: &[u8]) {
        self.lock().insert(path, FileKind::File, owner, mode, bytes);
    }

    /// Creates a symbolic link.
    pub fn put_link(&self, path: Path<'_>, target: &[u8]) {
        self.lock().insert(path, FileKind::Symlink, (Uid(0), Gid(0)), 0o777, target);
    }

    /// Sets owner and mode of the root, which has none by default.
    pub fn set_root(&self, owner: (Uid, Gid), mode: u16) {
        self.lock().insert(&[], FileKind::Directory, owner, mode, b"");
    }

    /// The bytes of a file.
    #[must_use]
    pub fn bytes(&self, path: Path<'_>) -> Option<Vec<u8>> {
        self.lock().nodes.get(path).map(|node| node.bytes.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Backend for Memory {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn find_at(&self, at: Slot<'_>) -> Result<Option<Found>> {
        let state = self.lock();
        state.demand(at.dir())?;
        Ok(state.nodes.get(at.path).map(|node| node.found.clone()))
    }

    fn list_of(&self, it: Seen<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        let dir = it.path;
        let names: Vec<Name> = {
            let state = self.lock();
            state.demand(it)?;
            match state.kind(dir) {
                Some(FileKind::Directory) => state.children(dir).cloned().collect(),
                Some(_) => return Err(failed(dir, ErrorKind::NotDirectory)),
                None => return Err(failed(dir, ErrorKind::NotFound)),
            }
        };
        names.into_iter().for_each(show);
        Ok(())
    }

    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        match self.lock().nodes.get(file) {
            Some(node) if node.found.kind == FileKind::File => {
                let (state, serial) = (self.state.clone(), node.found.version.serial);
                Ok(Box::new(MemoryObject { state, serial }))
            }
            Some(_) => Err(failed(file, ErrorKind::Invalid)),
            None => Err(failed(file, ErrorKind::NotFound)),
        }
    }

    fn targets(&self) -> Vec<String> {
        vec![self.name()]
    }

    fn layout(&self, file: Path<'_>) -> Result<Layout> {
        self.open(file).map(|_| Layout { targets: vec![0], stripe: u64::MAX })
    }

    fn create_at(&self, at: Slot<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        let file = at.path;
        {
            let mut state = self.lock();
            state.demand(at.dir())?;
            state.demand_parent(file)?;
            if state.kind(file).is_some() {
                return Err(failed(file, ErrorKind::Exists));
            }
            state.insert(file, FileKind::File, creation.owner, creation.mode, b"");
        }
        self.open(file)
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.open(file)
    }

    fn symlink_at(&self, at: Slot<'_>, target: &[u8]) -> Result<()> {
        let (mut state, path) = (self.lock(), at.path);
        state.demand(at.dir())?;
        state.demand_parent(path)?;
        if state.kind(path).is_some() {
            return Err(failed(path, ErrorKind::Exists));
        }
        state.insert(path, FileKind::Symlink, (Uid(0), Gid(0)), 0o777, target);
        Ok(())
    }

    fn set_attr_of(&self, it: Seen<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        let (mut state, path) = (self.lock(), it.path);
        state.demand(it)?;
        let now = state.tick();
        let node = state.nodes.get_mut(path).ok_or_else(|| failed(path, ErrorKind::NotFound))?;
        (node.found.uid, node.found.gid) = owner;
        if node.found.kind != FileKind::Symlink {
            node.found.mode = mode;
        }
        (node.found.version.mtime, node.found.ctime) = (mtime, now);
        Ok(())
    }

    fn make_dir_at(&self, at: Slot<'_>, owner: (Uid, Gid), mode: u16) -> Result<Option<u64>> {
        let (mut state, dir) = (self.lock(), at.path);
        state.demand(at.dir())?;
        state.demand_parent(dir)?;
        match state.kind(dir) {
            Some(FileKind::Directory) => {}
            Some(_) => return Err(failed(dir, ErrorKind::Exists)),
            None => {
                state.insert(dir, FileKind::Directory, owner, mode, b"");
                return Ok(state.nodes.get(dir).map(|node| node.found.version.serial));
            }
        }
        Ok(None)
    }

    fn unlink_of(&self, it: Seen<'_>) -> Result<bool> {
        let (mut state, path) = (self.lock(), it.path);
        state.demand_in(it)?;
        match state.kind(path) {
            None => Ok(false),
            Some(FileKind::Directory) => Err(failed(path, ErrorKind::IsDirectory)),
            Some(_) => Ok(state.nodes.remove(path).is_some()),
        }
    }

    fn remove_dir_of(&self, it: Seen<'_>) -> Result<bool> {
        let (mut state, dir) = (self.lock(), it.path);
        state.demand_in(it)?;
        match state.kind(dir) {
            None => Ok(false),
            Some(FileKind::Directory) if state.children(dir).next().is_some() => {
                Err(failed(dir, ErrorKind::NotEmpty))
            }
            Some(FileKind::Directory) => Ok(state.nodes.remove(dir).is_some()),
            Some(_) => Err(failed(dir, ErrorKind::NotDirectory)),
        }
    }

    fn rename_of(&self, it: Seen<'_>, slot: Slot<'_>, target: Target) -> Result<bool> {
        let (mut state, from, to) = (self.lock(), it.path, slot.path);
        state.demand_in(it)?;
        state.demand(slot.dir())?;
        let Some(kind) = state.kind(from).filter(|_| !from.is_empty()) else { return Ok(false) };
        if from == to {
            return Ok(true);
        }
        state.demand_parent(to)?;
        target.demand(to, state.nodes.get(to).map(|node| node.found.version.serial))?;
        if to.starts_with(from) {
            return Err(failed(to, ErrorKind::Invalid));
        }
        match (kind == FileKind::Directory, state.kind(to)) {
            (true, Some(FileKind::Directory)) if state.children(to).next().is_some() => {
                return Err(failed(to, ErrorKind::NotEmpty));
            }
            (true, Some(there)) if there != FileKind::Directory => {
                return Err(failed(to, ErrorKind::NotDirectory));
            }
            (false, Some(FileKind::Directory)) => return Err(failed(to, ErrorKind::IsDirectory)),
            _ => {}
        }
        let moved: Vec<Vec<Name>> =
            state.nodes.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in moved {
            if let Some(node) = state.nodes.remove(&path) {
                state.nodes.insert([to, &path[from.len()..]].concat(), node);
            }
        }
        Ok(true)
    }

    fn truncate_of(&self, it: Seen<'_>, size: u64) -> Result<bool> {
        let (mut state, file) = (self.lock(), it.path);
        state.demand(it)?;
        let now = state.tick();
        let Some(node) = state.nodes.get_mut(file) else { return Ok(false) };
        match node.found.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(failed(file, ErrorKind::IsDirectory)),
            _ => return Err(failed(file, ErrorKind::Invalid)),
        }
        let len = usize::try_from(size).map_err(|_| failed(file, ErrorKind::TooLarge))?;
        node.bytes.resize(len, 0);
        node.found.version = Version { size, mtime: now, ..node.found.version };
        Ok(true)
    }
}

/// An open file; its entry may be renamed or removed meanwhile.
struct MemoryObject {
    state: Arc<Mutex<State>>,
    serial: u64,
}

impl MemoryObject {
    fn look<T>(&self, look: impl FnOnce(&Node) -> T) -> Result<T> {
        let state = self.state.lock();
        let node = state.nodes.values().find(|node| node.found.version.serial == self.serial);
        node.map(look).ok_or_else(|| Error::from(ErrorKind::Stale))
    }
}

impl Object for MemoryObject {
    fn version(&self) -> Result<Version> {
        self.look(|node| node.found.version)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.look(|node| {
            let from = node.bytes.get(offset.min(node.bytes.len() as u64) as usize..).unwrap_or_default();
            let count = from.len().min(into.len());
            into[..count].copy_from_slice(&from[..count]);
            count
        })
    }

    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let mut state = self.state.lock();
        let now = state.tick();
        let mut nodes = state.nodes.values_mut();
        let node = nodes.find(|node| node.found.version.serial == self.serial);
        let node = node.ok_or_else(|| Error::from(ErrorKind::Stale))?;
        let mut at = usize::try_from(offset).map_err(|_| Error::from(ErrorKind::TooLarge))?;
        for part in parts {
            let end = at + part.len();
            node.bytes.resize(node.bytes.len().max(end), 0);
            node.bytes[at..end].copy_from_slice(part);
            at = end;
        }
        let size = node.bytes.len() as u64;
        node.found.version = Version { size, mtime: now, ..node.found.version };
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.version().map(drop)
    }
}
