//! The kernel's part of an open file: a sealed memory file that records which file is open, and its offset.
//!
//! The kernel shares the memory file between all descriptors and processes that share the open file, and keeps it
//! across `exec`; so offset and flags are stored in it. Its own file position is at its end: a read that bypasses the
//! library returns nothing, and a write fails. A program that bypasses the library and seeks first damages only the
//! open files of its own process.

use crate::engine::{Engine, WaitHooks};
use crate::errno::{Errno, Outcome, fail};
use crate::lock::Lock;
use crate::open::Open;
use crate::{descriptors, locks, process_state, table};
use forebay_client::Token;
use forebay_model::{FileId, Uid};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, RawDir, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::{Cell, UnsafeCell};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"forebay2");
const SIZE: usize = 12288;
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);
const TOKEN: usize = 64;

/// The kind of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Kind {
    File = 1,
    Directory = 2,
    /// Opened with `O_PATH`: it can be named, but not read or written.
    Path = 3,
}

/// The content of the memory file.
#[repr(C)]
pub(crate) struct Header {
    magic: u64,
    kind: u32,
    /// `O_RDONLY`, `O_WRONLY` or `O_RDWR`, and other flags that never change.
    pub(crate) access: u32,
    pub(crate) offset: AtomicU64,
    /// The flags that `fcntl` can change.
    pub(crate) flags: AtomicU32,
    path_len: u32,
    /// A descriptor whose lock represents this open file's lock in all processes that inherit both; 0: none.
    pub(crate) lock: AtomicI32,
    /// Whether another process may have a descriptor of it.
    shared: AtomicU32,
    file: u64,
    token_len: u32,
    token: [u8; TOKEN],
    /// The token of the user to whom the file was last handed on, for all processes that share it; 0 bytes: none.
    handed_len: AtomicU32,
    handed: UnsafeCell<[u8; TOKEN]>,
    /// Last, so that a typical path touches only the first page.
    path: [u8; PATH],
}

/// The longest path that is stored: a working directory, and a path from there.
pub(crate) const PATH: usize = 2 * crate::mem::PATH_MAX;
const _: () = assert!(size_of::<Header>() <= SIZE);

/// Initial content of a header.
pub(crate) struct NewOpen<'a> {
    pub(crate) kind: Kind,
    pub(crate) access: u32,
    pub(crate) flags: u32,
    pub(crate) file: FileId,
    pub(crate) token: Option<Token>,
    pub(crate) path: &'a [u8],
}

/// A mapped header. Only the atomics and the handed-on token change; processes of other users cannot reach it.
pub(crate) struct Mapped {
    header: *mut Header,
    /// Set if this process has created the memory file.
    own: Option<Own>,
}

/// Determines whether a memory file is still private to this process.
struct Own {
    /// A hidden descriptor of it, once it is kept for reuse; before that −1.
    fd: AtomicI32,
    generation: u64,
    forks: u64,
}

/// Memory files that are not open and can be reused: creating one costs more than the rest of an open.
static SPARE: Lock<Vec<Mapped>> = Lock::new(Vec::new());
const MOST_SPARE: usize = 16;
/// Length of `SPARE`; slightly too large while several threads close files.
static SPARES: AtomicUsize = AtomicUsize::new(0);
/// Counts starts and ends of forks of this process.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Whether another process may have, or get, descriptors of this process at any time.
static MAY_SHARE: AtomicBool = AtomicBool::new(false);

/// Records that the process is about to fork, or has forked: all its open files may also be open in the child.
pub(crate) fn note_fork() {
    FORKS.fetch_add(1, Ordering::AcqRel);
}

/// Records that the process passes descriptors on, or may fork without a call of this library.
pub(crate) fn note_sharing() {
    MAY_SHARE.store(true, Ordering::Release);
}

pub(crate) fn may_share() -> bool {
    MAY_SHARE.load(Ordering::Acquire)
}

// SAFETY: what changes in the header is atomic.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl std::ops::Deref for Mapped {
    type Target = Header;

    fn deref(&self) -> &Header {
        // SAFETY: mapped until this is dropped, and of sealed size.
        unsafe { &*self.header }
    }
}

impl Mapped {
    /// Before a descriptor of it is closed: keeps a hidden one, so that the memory file can be reused.
    pub(crate) fn keep(&self, fd: RawFd) {
        let Some(own) = self.own.as_ref().filter(|own| own.fd.load(Ordering::Relaxed) < 0) else { return };
        if !self.is_private() || SPARES.load(Ordering::Relaxed) >= MOST_SPARE {
            return;
        }
        if let Some(hidden) = descriptors::hidden_copy(fd)
            && own.fd.compare_exchange(-1, hidden, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            descriptors::close_hidden(hidden);
        }
    }

    /// Whether no other process has, or can get, a descriptor of it.
    fn is_private(&self) -> bool {
        self.own.as_ref().is_some_and(|own| {
            own.generation == process_state::generation()
                && !may_share()
                && own.forks == FORKS.load(Ordering::Acquire)
                && self.shared.load(Ordering::Acquire) == 0
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let kept = self.own.as_ref().map_or(-1, |own| own.fd.load(Ordering::Acquire));
        if kept >= 0 && self.is_private() {
            let spare = Mapped { header: self.header, own: self.own.take() };
            SPARES.fetch_add(1, Ordering::Relaxed);
            return SPARE.with(|list| list.push(spare));
        }
        if kept >= 0 && self.own.as_ref().is_some_and(|own| own.generation == process_state::generation()) {
            descriptors::close_hidden(kept);
        }
        // SAFETY: this is the only owner of the mapping.
        let _ = unsafe { rustix::mm::munmap(self.header.cast(), SIZE) };
    }
}

impl Header {
    pub(crate) fn kind(&self) -> Kind {
        match self.kind {
            2 => Kind::Directory,
            3 => Kind::Path,
            _ => Kind::File,
        }
    }

    pub(crate) fn file(&self) -> FileId {
        FileId(self.file)
    }

    /// The path by which it was opened, prefix included.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path[..(self.path_len as usize).min(PATH)]
    }

    /// The token of the user who opened it.
    pub(crate) fn token(&self) -> Option<Token> {
        let bytes = self.token.get(..self.token_len as usize)?;
        postcard::from_bytes(bytes).ok()
    }

    /// The token by which an engine reopens the file: that of the user who opened it, unless it was handed on to the
    /// engine's user.
    pub(crate) fn token_for(&self, engine: &Engine) -> Option<Token> {
        self.handed_to(engine.identity().uid).or_else(|| self.token())
    }

    /// The token of a user to whom the file was handed on.
    pub(crate) fn handed_to(&self, user: Uid) -> Option<Token> {
        self.handed().filter(|token| token.uid == user)
    }

    fn handed(&self) -> Option<Token> {
        let len = self.handed_len.load(Ordering::Acquire) as usize;
        // SAFETY: plain bytes within the mapping. A concurrent write can only garble the token, which its seal reveals.
        let bytes = unsafe { self.handed.get().read_volatile() };
        (len != 0).then(|| postcard::from_bytes(bytes.get(..len)?).ok())?
    }

    /// Stores the token of another user, for all processes that share the open file.
    pub(crate) fn hand(&self, token: &Token) {
        let Ok(bytes) = postcard::to_allocvec(token) else { return };
        if bytes.len() > TOKEN {
            return;
        }
        let mut all = [0; TOKEN];
        all[..bytes.len()].copy_from_slice(&bytes);
        self.handed_len.store(0, Ordering::Release);
        // SAFETY: as above.
        unsafe { self.handed.get().write_volatile(all) };
        self.handed_len.store(bytes.len() as u32, Ordering::Release);
    }
}

/// A descriptor for a file that is being opened, prepared while the request is in flight, if there is a spare memory
/// file. If it is not needed, it becomes spare again.
pub(crate) struct Ahead {
    cloexec: bool,
}

enum Preparing {
    Nothing,
    Wanted { cloexec: bool },
    Ready(OwnedFd, Mapped),
}

thread_local! {
    /// Empty when a thread ends.
    static PREPARING: Cell<ManuallyDrop<Preparing>> = const { Cell::new(ManuallyDrop::new(Preparing::Nothing)) };
}

fn prepare(next: Preparing) -> Preparing {
    ManuallyDrop::into_inner(PREPARING.replace(ManuallyDrop::new(next)))
}

impl Ahead {
    /// A prepared descriptor occupies a number in the application's range, so it is given up if the open takes long.
    pub(crate) const WAIT_HOOKS: WaitHooks =
        WaitHooks { while_waiting: Ahead::fill, if_slow: || drop(prepare(Preparing::Nothing)) };

    pub(crate) fn begin(cloexec: bool) -> Ahead {
        drop(prepare(Preparing::Wanted { cloexec }));
        Ahead { cloexec }
    }

    fn fill() {
        if let Preparing::Wanted { cloexec } = prepare(Preparing::Nothing)
            && let Some((fd, mapped)) = reuse_spare(cloexec)
        {
            drop(prepare(Preparing::Ready(fd, mapped)));
        }
    }

    fn take(&self) -> Outcome<(OwnedFd, Mapped)> {
        match prepare(Preparing::Nothing) {
            Preparing::Ready(fd, mapped) if mapped.is_private() => Ok((fd, mapped)),
            _ => reuse_spare(self.cloexec).map_or_else(|| create_memory_file(self.cloexec), Ok),
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        drop(prepare(Preparing::Nothing));
    }
}

/// Creates the kernel's part of an open file.
pub(crate) fn create(new_open: &NewOpen<'_>, ahead: &Ahead) -> Outcome<(OwnedFd, Mapped)> {
    let token = match &new_open.token {
        Some(token) => postcard::to_allocvec(token).map_err(|_| Errno(libc::EIO))?,
        None => Vec::new(),
    };
    if token.len() > TOKEN || new_open.path.len() > PATH {
        return fail(libc::ENAMETOOLONG);
    }
    let (fd, mapped) = ahead.take()?;
    // SAFETY: no other thread knows this mapping yet, or any more, and all of it is plain bytes.
    let header = unsafe { &mut *mapped.header };
    header.kind = new_open.kind as u32;
    header.access = new_open.access;
    *header.offset.get_mut() = 0;
    *header.lock.get_mut() = 0;
    *header.flags.get_mut() = new_open.flags;
    *header.handed_len.get_mut() = 0;
    header.file = new_open.file.0;
    header.token_len = token.len() as u32;
    header.token[..token.len()].copy_from_slice(&token);
    header.path_len = new_open.path.len() as u32;
    header.path[..new_open.path.len()].copy_from_slice(new_open.path);
    header.magic = MAGIC;
    Ok((fd, mapped))
}

/// Reuses a spare memory file.
fn reuse_spare(cloexec: bool) -> Option<(OwnedFd, Mapped)> {
    loop {
        let mut spare = SPARE.with(Vec::pop)?;
        SPARES.fetch_sub(1, Ordering::Relaxed);
        if !spare.is_private() {
            continue;
        }
        let own = spare.own.as_mut()?;
        own.forks = FORKS.load(Ordering::Acquire);
        // SAFETY: a hidden descriptor of the library, borrowed for one call.
        let hidden = unsafe { BorrowedFd::borrow_raw(*own.fd.get_mut()) };
        let copy = match cloexec {
            true => rustix::io::fcntl_dupfd_cloexec(hidden, 0),
            false => rustix::io::dup(hidden),
        };
        return Some((copy.ok()?, spare));
    }
}

fn create_memory_file(cloexec: bool) -> Outcome<(OwnedFd, Mapped)> {
    let mut flags = MemfdFlags::ALLOW_SEALING;
    flags.set(MemfdFlags::CLOEXEC, cloexec);
    let (generation, forks) = (process_state::generation(), FORKS.load(Ordering::Acquire));
    let fd = memory_file(flags)?;
    rustix::fs::ftruncate(&fd, SIZE as u64)?;
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(SIZE as u64))?;
    let mut mapped = map(&fd)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    if !process_state::is_borrowed() {
        mapped.own = Some(Own { fd: AtomicI32::new(-1), generation, forks });
    }
    Ok((fd, mapped))
}

/// A memory file that cannot be executed: some machines allow no other. Older kernels do not have the flag.
pub(crate) fn memory_file(flags: MemfdFlags) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::memfd_create(c"forebay", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(c"forebay", flags),
        made => made,
    }
}

fn map(fd: impl rustix::fd::AsFd) -> Result<Mapped, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let place = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            SIZE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            fd,
            0,
        )
    };
    Ok(Mapped { header: place?.cast(), own: None })
}

/// The header of a descriptor, if it is one of Forebay's.
fn recognise(fd: RawFd) -> Option<(Mapped, u64)> {
    // SAFETY: borrowed for two calls; a descriptor that is closed meanwhile gives an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    if !rustix::fs::fcntl_get_seals(fd).ok()?.contains(SEALS) {
        return None;
    }
    let stat = rustix::fs::fstat(fd).ok()?;
    if stat.st_size != SIZE as i64 {
        return None;
    }
    let mapped = map(fd).ok()?;
    (mapped.magic == MAGIC && mapped.path_len as usize <= PATH).then_some((mapped, stat.st_ino))
}

/// Whether the kernel's descriptor is one of Forebay's.
pub(crate) fn is_ours(fd: RawFd) -> bool {
    recognise(fd).is_some()
}

/// Enters a received descriptor into the table, if it is one of Forebay's.
pub(crate) fn adopt(fd: RawFd) {
    if let Some((mapped, _)) = recognise(fd) {
        mapped.shared.store(1, Ordering::Release);
        table::put(fd, &table::hold(Open::inherited(mapped)));
    }
}

/// Enters Forebay's files among the inherited descriptors into the table. Descriptors of one open file share its state.
pub(crate) fn adopt_inherited() {
    let mut known: Vec<(u64, table::Held)> = Vec::new();
    each_descriptor(|fd| {
        if let Some((mapped, inode)) = recognise(fd) {
            mapped.shared.store(1, Ordering::Release);
            let held = known.iter().find(|(other, _)| *other == inode).map(|(_, held)| held.clone());
            let held = held.unwrap_or_else(|| {
                let held = table::hold(Open::inherited(mapped));
                locks::inherit(&held);
                known.push((inode, held.clone()));
                held
            });
            table::put(fd, &held);
        }
    });
}

fn each_descriptor(mut visit: impl FnMut(RawFd)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::openat(CWD, c"/proc/self/fd", flags, Mode::empty()) else {
        return (0..256).for_each(visit);
    };
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&dir, &mut buffer);
    let own = dir.as_raw_fd();
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if let Some(fd) = number.filter(|fd| *fd != own) {
            visit(fd);
        }
    }
}
