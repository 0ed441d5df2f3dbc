//! The kernel's part of an open file: a sealed memory file whose content says what is open, and where it stands.
//!
//! The kernel shares it between all descriptors and processes that share the open file, and keeps it across `exec`;
//! so offset and flags live in it. Its own file position is at its end: a reader that passes the library by finds
//! nothing there, a writer is refused. Whoever passes it by and seeks there first harms what the process itself has open.

use crate::engine::Errand;
use crate::errno::{Errno, Outcome, fail};
use crate::lock::Lock;
use crate::open::Open;
use crate::{descriptors, life, locks, table};
use forebay_client::Token;
use forebay_model::FileId;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, RawDir, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::Cell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"forebay1");
const SIZE: usize = 8192;
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);
const TOKEN: usize = 64;

/// What is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Kind {
    File = 1,
    Directory = 2,
    /// Opened with `O_PATH`: it can be named, not used.
    Path = 3,
}

/// The content of the memory file.
#[repr(C)]
pub(crate) struct Header {
    magic: u64,
    kind: u32,
    /// `O_RDONLY`, `O_WRONLY` or `O_RDWR`, and what else never changes.
    pub(crate) access: u32,
    pub(crate) offset: AtomicU64,
    /// The flags that `fcntl` can change.
    pub(crate) flags: AtomicU32,
    path_len: u32,
    /// A descriptor whose lock stands for this open file's, in all processes that inherit both; 0: none.
    pub(crate) lock: AtomicI32,
    /// Whether somebody else may have a descriptor of it.
    shared: AtomicU32,
    file: u64,
    token_len: u32,
    token: [u8; TOKEN],
    path: [u8; PATH],
}

const PATH: usize = 4096;
const _: () = assert!(size_of::<Header>() <= SIZE);

/// What a new open file starts with.
pub(crate) struct Birth<'a> {
    pub(crate) kind: Kind,
    pub(crate) access: u32,
    pub(crate) flags: u32,
    pub(crate) file: FileId,
    pub(crate) token: Option<Token>,
    pub(crate) path: &'a [u8],
}

/// A mapped header. All of it but offset and flags stays as it was made; processes of other users cannot reach it.
pub(crate) struct Mapped {
    header: *mut Header,
    /// Where this process has made it.
    own: Option<Own>,
}

/// What tells whether a memory file is still this process's alone.
struct Own {
    /// A hidden descriptor of it, once it is worth keeping; before that −1.
    fd: AtomicI32,
    generation: u64,
    divisions: u64,
}

/// Memory files that are open nowhere and can be used again: making one costs more than everything else about opening.
static SPARE: Lock<Vec<Mapped>> = Lock::new(Vec::new());
const MOST_SPARE: usize = 16;
/// How many there are; a few more where several threads close at once.
static SPARES: AtomicUsize = AtomicUsize::new(0);
/// Counts the beginnings and ends of divisions of this process.
static DIVISIONS: AtomicU64 = AtomicU64::new(0);
/// Somebody else may have, or get, descriptors of this process at any time.
static GENEROUS: AtomicBool = AtomicBool::new(false);

/// The process is about to divide, or has divided: whatever is open now may be open in its child too.
pub(crate) fn divide() {
    DIVISIONS.fetch_add(1, Ordering::AcqRel);
}

/// The process gives descriptors away, or divides nobody here knows when.
pub(crate) fn give_away() {
    GENEROUS.store(true, Ordering::Release);
}

pub(crate) fn is_generous() -> bool {
    GENEROUS.load(Ordering::Acquire)
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
    /// A descriptor of it is about to be closed: keeps another, so that it can be used again.
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

    /// Whether nobody else has, or can get, a descriptor of it.
    fn is_private(&self) -> bool {
        self.own.as_ref().is_some_and(|own| {
            own.generation == life::generation()
                && !is_generous()
                && own.divisions == DIVISIONS.load(Ordering::Acquire)
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
        if kept >= 0 && self.own.as_ref().is_some_and(|own| own.generation == life::generation()) {
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

    /// The path it was opened by, prefix included.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path[..(self.path_len as usize).min(PATH)]
    }

    pub(crate) fn token(&self) -> Option<Token> {
        let bytes = self.token.get(..self.token_len as usize)?;
        postcard::from_bytes(bytes).ok()
    }
}

/// A descriptor for what is about to be opened, prepared while the service is asked for it, where there is one to be used
/// again. One that is not needed goes back.
pub(crate) struct Ahead {
    cloexec: bool,
}

enum Preparing {
    Nothing,
    Wanted { cloexec: bool },
    Ready(OwnedFd, Mapped),
}

thread_local! {
    /// Nothing is left in it when a thread ends.
    static PREPARING: Cell<ManuallyDrop<Preparing>> = const { Cell::new(ManuallyDrop::new(Preparing::Nothing)) };
}

fn prepare(next: Preparing) -> Preparing {
    ManuallyDrop::into_inner(PREPARING.replace(ManuallyDrop::new(next)))
}

impl Ahead {
    /// Not for long: a descriptor that nobody knows is in the way of others.
    pub(crate) const ERRAND: Errand =
        Errand { meanwhile: Ahead::fill, otherwise: || drop(prepare(Preparing::Nothing)) };

    pub(crate) fn begin(cloexec: bool) -> Ahead {
        drop(prepare(Preparing::Wanted { cloexec }));
        Ahead { cloexec }
    }

    fn fill() {
        if let Preparing::Wanted { cloexec } = prepare(Preparing::Nothing)
            && let Some((fd, mapped)) = again(cloexec)
        {
            drop(prepare(Preparing::Ready(fd, mapped)));
        }
    }

    fn take(&self) -> Outcome<(OwnedFd, Mapped)> {
        match prepare(Preparing::Nothing) {
            Preparing::Ready(fd, mapped) if mapped.is_private() => Ok((fd, mapped)),
            _ => again(self.cloexec).map_or_else(|| anew(self.cloexec), Ok),
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        drop(prepare(Preparing::Nothing));
    }
}

/// Makes the kernel's part of an open file.
pub(crate) fn create(birth: &Birth<'_>, ahead: &Ahead) -> Outcome<(OwnedFd, Mapped)> {
    let token = match &birth.token {
        Some(token) => postcard::to_allocvec(token).map_err(|_| Errno(libc::EIO))?,
        None => Vec::new(),
    };
    if token.len() > TOKEN || birth.path.len() > PATH {
        return fail(libc::ENAMETOOLONG);
    }
    let (fd, mapped) = ahead.take()?;
    // SAFETY: nobody else knows this mapping yet, or any more, and all of it is plain bytes.
    let header = unsafe { &mut *mapped.header };
    header.kind = birth.kind as u32;
    header.access = birth.access;
    *header.offset.get_mut() = 0;
    *header.lock.get_mut() = 0;
    *header.flags.get_mut() = birth.flags;
    header.file = birth.file.0;
    header.token_len = token.len() as u32;
    header.token[..token.len()].copy_from_slice(&token);
    header.path_len = birth.path.len() as u32;
    header.path[..birth.path.len()].copy_from_slice(birth.path);
    header.magic = MAGIC;
    Ok((fd, mapped))
}

/// A memory file that is open nowhere.
fn again(cloexec: bool) -> Option<(OwnedFd, Mapped)> {
    loop {
        let mut spare = SPARE.with(Vec::pop)?;
        SPARES.fetch_sub(1, Ordering::Relaxed);
        if !spare.is_private() {
            continue;
        }
        let own = spare.own.as_mut()?;
        own.divisions = DIVISIONS.load(Ordering::Acquire);
        // SAFETY: a hidden descriptor of ours, borrowed for a call.
        let hidden = unsafe { BorrowedFd::borrow_raw(*own.fd.get_mut()) };
        let copy = match cloexec {
            true => rustix::io::fcntl_dupfd_cloexec(hidden, 0),
            false => rustix::io::dup(hidden),
        };
        return Some((copy.ok()?, spare));
    }
}

fn anew(cloexec: bool) -> Outcome<(OwnedFd, Mapped)> {
    let mut flags = MemfdFlags::ALLOW_SEALING;
    flags.set(MemfdFlags::CLOEXEC, cloexec);
    let (generation, divisions) = (life::generation(), DIVISIONS.load(Ordering::Acquire));
    let fd = memory_file(flags)?;
    rustix::fs::ftruncate(&fd, SIZE as u64)?;
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(SIZE as u64))?;
    let mut mapped = map(&fd)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    if !life::is_borrowed() {
        mapped.own = Some(Own { fd: AtomicI32::new(-1), generation, divisions });
    }
    Ok((fd, mapped))
}

/// A memory file that nobody can run: some machines allow no other. Older kernels do not know the difference.
pub(crate) fn memory_file(flags: MemfdFlags) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::memfd_create(c"forebay", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(c"forebay", flags),
        made => made,
    }
}

fn map(fd: impl rustix::fd::AsFd) -> Result<Mapped, Errno> {
    // SAFETY: a new mapping at a place of the kernel's choice.
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

/// The header of a descriptor that is one of ours.
fn recognise(fd: RawFd) -> Option<(Mapped, u64)> {
    // SAFETY: borrowed for two questions; a descriptor that is closed meanwhile answers with an error.
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

/// Whether a descriptor is one of ours as the kernel sees it.
pub(crate) fn is_ours(fd: RawFd) -> bool {
    recognise(fd).is_some()
}

/// Takes over a descriptor that came from elsewhere, if it is one of ours.
pub(crate) fn adopt(fd: RawFd) {
    if let Some((mapped, _)) = recognise(fd) {
        mapped.shared.store(1, Ordering::Release);
        table::put(fd, &table::hold(Open::inherited(mapped)));
    }
}

/// Looks for our files among the descriptors that this process was born with. Descriptors of one open file share
/// what is known about it.
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
