//! A file system in memory that treats `lustre.lov` as Lustre does, with its pitfalls.
//!
//! * A file created in the usual way gets its layout at once: a number of stripes on targets in turn.
//! * A file created with `O_LOV_DELAY_CREATE` has none (`ENODATA`) until one is set, or the file is written.
//! * Setting a layout on a file that has one is ignored, but reports success.
//! * Where layouts are forbidden, setting one reports success too, and does nothing.
//! * Inactive targets are refused with `EREMOTEIO`, invalid layouts with `EINVAL`.
//! * In a composite layout only the first component has objects before the file is written.
//!
//! It parses layouts by itself, so that it does not share errors with the code under test.

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

const NOW: Duration = Duration::ZERO;
const LOV: &str = "lustre.lov";
const OLD: &str = "old.lov";
const V3: u32 = 0x0BD3_0BD0;
const SPECIFIC: u32 = 0x0BD5_0BD0;
const COMPOSITE: u32 = 0x0BD6_0BD0;
const REMOTE_IO: i32 = 121;
const DIRECTORY: u32 = 0o040_000;

/// How the file system responds when a layout is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mood {
    Willing,
    /// Reports success, and does nothing.
    Silent,
    /// Refuses it.
    Strict,
    /// Does not support layouts.
    Ignorant,
    /// Supports them, not by the attribute but by its own calls, which have another attribute name.
    Old,
}

/// A parsed layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stripes {
    pub(crate) targets: Vec<u32>,
    pub(crate) size: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    None,
    Plain(Stripes),
    /// Ends, stripe counts and stripe sizes of the components; targets of the first.
    Parts(Vec<(u64, u16, u32)>, Vec<u32>),
}

struct Node {
    mode: u32,
    bytes: Vec<u8>,
    names: BTreeMap<OsString, u64>,
    lov: Option<Vec<u8>>,
}

pub(crate) struct State {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    pub(crate) mood: Mood,
    targets: u32,
    inactive: Vec<u32>,
    /// The first target of the next file with the default layout.
    start: u32,
    /// Attributes of other file systems, by the name of their file (empty for the root) and their own.
    pub(crate) others: BTreeMap<(String, String), String>,
    /// Names in the order of their creation, and whether the layout was delayed.
    pub(crate) created: Vec<(String, bool)>,
}

#[derive(Clone)]
struct Fs(Arc<Mutex<State>>);

/// A mount, which ends when dropped.
pub(crate) struct Mounted {
    pub(crate) state: Arc<Mutex<State>>,
    _session: BackgroundSession,
}

impl Mounted {
    /// Mounts, or returns why that is impossible on this machine.
    pub(crate) fn at(dir: &Path, targets: u32, inactive: &[u32]) -> Result<Mounted, String> {
        let root = Node { mode: DIRECTORY | 0o777, bytes: Vec::new(), names: BTreeMap::new(), lov: None };
        let state = Arc::new(Mutex::new(State {
            nodes: BTreeMap::from([(1, root)]),
            next: 2,
            mood: Mood::Willing,
            targets,
            inactive: inactive.to_vec(),
            start: 0,
            others: BTreeMap::new(),
            created: Vec::new(),
        }));
        let mut config = Config::default();
        config.mount_options = vec![fuser::MountOption::FSName("lustre-like".to_owned())];
        let session = fuser::spawn_mount(Fs(state.clone()), dir, &config);
        let session = session.map_err(|error| format!("mounting is not possible ({error})"))?;
        Ok(Mounted { state, _session: session })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the lock is not poisoned")
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The targets in a layout with a pool, which begins at an offset.
fn objects(bytes: &[u8], at: usize) -> Vec<u32> {
    bytes[at + 48..].chunks_exact(24).map(|object| word(object, 20)).collect()
}

/// Parses the bytes of a layout.
pub(crate) fn read(lov: Option<&[u8]>) -> Layout {
    let Some(lov) = lov else { return Layout::None };
    if word(lov, 0) != COMPOSITE {
        return Layout::Plain(Stripes { targets: objects(lov, 0), size: word(lov, 24) });
    }
    let count = half(lov, 14) as usize;
    let (mut parts, mut first) = (Vec::new(), Vec::new());
    for part in 0..count {
        let entry = 32 + 48 * part;
        let (offset, size) = (word(lov, entry + 24) as usize, word(lov, entry + 28) as usize);
        let plain = &lov[offset..offset + size];
        parts.push((long(lov, entry + 16), half(plain, 28), word(plain, 24)));
        if part == 0 {
            first = objects(plain, 0);
        }
    }
    Layout::Parts(parts, first)
}

impl State {
    /// The attribute of another file system for a file in the root.
    fn other(&self, ino: u64, attribute: &OsStr) -> Option<&String> {
        let name = self.nodes[&1].names.iter().find(|(_, node)| **node == ino).map(|(name, _)| name);
        let name = name.map_or(String::new(), |name| name.to_string_lossy().into_owned());
        self.others.get(&(name, attribute.to_string_lossy().into_owned()))
    }

    /// The layout of a file in the root.
    pub(crate) fn layout(&self, name: &str) -> Layout {
        let mut node = &self.nodes[&1];
        for part in name.split('/') {
            node = &self.nodes[node.names.get(OsStr::new(part)).unwrap_or_else(|| panic!("no {name}"))];
        }
        read(node.lov.as_deref())
    }

    pub(crate) fn length(&self, name: &str) -> usize {
        self.nodes[&self.nodes[&1].names[OsStr::new(name)]].bytes.len()
    }

    /// The default layout: four stripes of one MiB on targets in turn.
    fn usual(&mut self) -> Vec<u8> {
        let targets: Vec<u32> = (0..4.min(self.targets)).map(|i| (self.start + i) % self.targets).collect();
        self.start = (self.start + 4) % self.targets;
        self.written(&targets, 1 << 20)
    }

    /// A layout as Lustre returns it: version 3, with objects.
    fn written(&mut self, targets: &[u32], size: u32) -> Vec<u8> {
        let mut lov = vec![0; 48 + 24 * targets.len()];
        lov[..4].copy_from_slice(&V3.to_ne_bytes());
        lov[4] = 1;
        lov[24..28].copy_from_slice(&size.to_ne_bytes());
        lov[28..30].copy_from_slice(&(targets.len() as u16).to_ne_bytes());
        for (number, target) in targets.iter().enumerate() {
            self.next += 1;
            let at = 48 + 24 * number;
            lov[at..at + 8].copy_from_slice(&self.next.to_ne_bytes());
            lov[at + 20..at + 24].copy_from_slice(&target.to_ne_bytes());
        }
        lov
    }

    /// Checks a plain layout.
    fn accept(&self, plain: &[u8]) -> Result<(Vec<u32>, u32), Errno> {
        let size = word(plain, 24);
        let targets = objects(plain, 0);
        let different: std::collections::BTreeSet<&u32> = targets.iter().collect();
        let sound = word(plain, 0) == SPECIFIC
            && word(plain, 4) == 1
            && size > 0
            && size.is_multiple_of(65_536)
            && targets.len() == usize::from(half(plain, 28))
            && (1..=2000).contains(&targets.len())
            && different.len() == targets.len()
            && targets.iter().all(|&target| target < self.targets);
        match sound {
            false => Err(Errno::EINVAL),
            true if targets.iter().any(|target| self.inactive.contains(target)) => {
                Err(Errno::from_i32(REMOTE_IO))
            }
            true => Ok((targets, size)),
        }
    }

    fn set(&mut self, ino: u64, lov: &[u8]) -> Result<(), Errno> {
        let is_dir = self.nodes[&ino].mode & DIRECTORY != 0;
        match self.mood {
            Mood::Silent => return Ok(()),
            Mood::Strict => return Err(Errno::EPERM),
            Mood::Ignorant => return Err(Errno::EOPNOTSUPP),
            // An existing layout stays.
            Mood::Willing | Mood::Old if !is_dir && self.nodes[&ino].lov.is_some() => return Ok(()),
            Mood::Willing | Mood::Old => {}
        }
        if lov.len() < 32 {
            return Err(Errno::EINVAL);
        }
        let taken = if word(lov, 0) == COMPOSITE { self.parts(lov)? } else { self.plain(lov, is_dir)? };
        self.nodes.get_mut(&ino).expect("the inode exists").lov = Some(taken);
        Ok(())
    }

    fn plain(&mut self, lov: &[u8], is_dir: bool) -> Result<Vec<u8>, Errno> {
        // A directory stores its default layout as given.
        if is_dir {
            return Ok(lov.to_vec());
        }
        let (targets, size) = self.accept(lov)?;
        Ok(self.written(&targets, size))
    }

    /// A composite layout: only the first component gets objects.
    fn parts(&mut self, lov: &[u8]) -> Result<Vec<u8>, Errno> {
        if word(lov, 4) as usize != lov.len() {
            return Err(Errno::EINVAL);
        }
        let count = half(lov, 14) as usize;
        let mut head = lov[..32 + 48 * count].to_vec();
        let (mut tail, mut end) = (Vec::new(), 0);
        for part in 0..count {
            let entry = 32 + 48 * part;
            let (offset, size) = (word(lov, entry + 24) as usize, word(lov, entry + 28) as usize);
            let (targets, stripe) = self.accept(lov.get(offset..offset + size).ok_or(Errno::EINVAL)?)?;
            if long(lov, entry + 8) != end {
                return Err(Errno::EINVAL);
            }
            end = long(lov, entry + 16);
            let mut plain = self.written(&targets, stripe);
            if part == 0 {
                head[entry + 4] = 0x10;
            } else {
                plain.truncate(48);
            }
            head[entry + 24..entry + 28]
                .copy_from_slice(&((32 + 48 * count + tail.len()) as u32).to_ne_bytes());
            head[entry + 28..entry + 32].copy_from_slice(&(plain.len() as u32).to_ne_bytes());
            tail.extend(plain);
        }
        let whole = (head.len() + tail.len()) as u32;
        head[4..8].copy_from_slice(&whole.to_ne_bytes());
        head.extend(tail);
        Ok(head)
    }

    fn attr(&self, ino: u64) -> FileAttr {
        let node = &self.nodes[&ino];
        let then = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: INodeNo(ino),
            size: node.bytes.len() as u64,
            blocks: node.bytes.len().div_ceil(512) as u64,
            atime: then,
            mtime: then,
            ctime: then,
            crtime: then,
            kind: if node.mode & DIRECTORY != 0 { FileType::Directory } else { FileType::RegularFile },
            perm: (node.mode & 0o7777) as u16,
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn find(&self, dir: u64, name: &OsStr) -> Result<u64, Errno> {
        self.nodes.get(&dir).and_then(|node| node.names.get(name)).copied().ok_or(Errno::ENOENT)
    }

    fn make(&mut self, dir: u64, name: &OsStr, mode: u32) -> u64 {
        self.next += 1;
        let ino = self.next;
        self.nodes.insert(ino, Node { mode, bytes: Vec::new(), names: BTreeMap::new(), lov: None });
        self.nodes.get_mut(&dir).expect("a directory").names.insert(name.to_owned(), ino);
        ino
    }
}

impl State {
    /// The attribute by which layouts are set and read.
    fn attribute(&self) -> &'static str {
        if self.mood == Mood::Old { OLD } else { LOV }
    }
}

impl Fs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("the lock is not poisoned")
    }
}

impl Filesystem for Fs {
    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.lock();
        match state.find(dir.0, name) {
            Ok(ino) => reply.entry(&NOW, &state.attr(ino), Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NOW, &self.lock().attr(ino.0));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.lock();
        let node = state.nodes.get_mut(&ino.0).expect("the inode exists");
        if let Some(mode) = mode {
            node.mode = (node.mode & !0o7777) | (mode & 0o7777);
        }
        if let Some(size) = size {
            node.bytes.resize(size as usize, 0);
        }
        reply.attr(&NOW, &state.attr(ino.0));
    }

    fn mkdir(&self, _: &Request, dir: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mut state = self.lock();
        let ino = state.make(dir.0, name, DIRECTORY | (mode & !umask & 0o7777));
        reply.entry(&NOW, &state.attr(ino), Generation(0));
    }

    fn unlink(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.lock().nodes.get_mut(&dir.0).expect("a directory").names.remove(name) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn rename(
        &self,
        _: &Request,
        dir: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.lock();
        match state.nodes.get_mut(&dir.0).expect("a directory").names.remove(name) {
            Some(ino) => {
                state.nodes.get_mut(&to.0).expect("a directory").names.insert(new.to_owned(), ino);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.lock();
        let bytes = &state.nodes[&ino.0].bytes;
        let start = (offset as usize).min(bytes.len());
        reply.data(&bytes[start..(start + size as usize).min(bytes.len())]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut state = self.lock();
        if state.nodes[&ino.0].lov.is_none() && state.mood != Mood::Ignorant {
            let usual = state.usual();
            state.nodes.get_mut(&ino.0).expect("the inode exists").lov = Some(usual);
        }
        let bytes = &mut state.nodes.get_mut(&ino.0).expect("the inode exists").bytes;
        let end = offset as usize + data.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset as usize..end].copy_from_slice(data);
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let state = self.lock();
        for (number, (name, &ino)) in state.nodes[&ino.0].names.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(ino), number as u64 + 1, state.attr(ino).kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn setxattr(
        &self,
        _: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let mut state = self.lock();
        let done = if name == state.attribute() { state.set(ino.0, value) } else { Err(Errno::EOPNOTSUPP) };
        match done {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let state = self.lock();
        if let Some(reported) = state.other(ino.0, name) {
            return match reported.len() {
                len if size == 0 => reply.size(len as u32),
                len if len <= size as usize => reply.data(reported.as_bytes()),
                _ => reply.error(Errno::ERANGE),
            };
        }
        if name != state.attribute() || state.mood == Mood::Ignorant {
            return reply.error(Errno::EOPNOTSUPP);
        }
        match &state.nodes[&ino.0].lov {
            None => reply.error(Errno::ENODATA),
            Some(lov) if size == 0 => reply.size(lov.len() as u32),
            Some(lov) if lov.len() <= size as usize => reply.data(lov),
            Some(_) => reply.error(Errno::ERANGE),
        }
    }

    fn create(
        &self,
        _: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.lock();
        if state.find(dir.0, name).is_ok() {
            return reply.error(Errno::EEXIST);
        }
        // The kernel does not pass on the other half of O_LOV_DELAY_CREATE.
        let later = flags & 0o20_000 != 0;
        let ino = state.make(dir.0, name, mode & !umask & 0o7777);
        state.created.push((name.to_string_lossy().into_owned(), later));
        let inherited = state.nodes[&dir.0].lov.is_some();
        if !later && state.mood != Mood::Ignorant {
            let usual = if inherited { state.written(&[0], 1 << 20) } else { state.usual() };
            state.nodes.get_mut(&ino).expect("the inode exists").lov = Some(usual);
        }
        reply.created(&NOW, &state.attr(ino), Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }
}
