//! Memory mappings of files.
//!
//! A shared mapping maps memory that the service has for the file and shares with every process of this machine that
//! maps it. While it exists, reads and writes of all processes use that memory, so the library has nothing to
//! synchronise. If the service cannot share memory with this process, it lets one process at a time map the file as a
//! copy ([`copy`]). A private mapping maps a private copy.

mod copy;

use crate::backing::Kind;
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::lock::Lock;
use crate::place::ours;
use crate::table::Held;
use crate::{engine, hook, mem};
use copy::Copy;
use forebay_client::Mapping as Memory;
use forebay_model::FileId;
use libc::{c_int, c_void, off_t, size_t};
use rustix::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// Number of shared mappings, and number of those that map a copy.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static COPIES: AtomicUsize = AtomicUsize::new(0);
static SHARED: Lock<Vec<Mapping>> = Lock::new(Vec::new());

/// A shared mapping.
struct Mapping {
    start: usize,
    len: usize,
    offset: u64,
    protection: c_int,
    open: Held,
    /// The copy that it maps, if it does not map the service's memory.
    copy: Option<Copy>,
}

impl Mapping {
    fn end(&self) -> usize {
        self.start + self.len
    }

    fn meets(&self, start: usize, end: usize) -> bool {
        self.start < end && start < self.end()
    }

    /// The part of this mapping that shows a range of the file.
    fn part(&self, from: u64, to: u64) -> std::ops::Range<usize> {
        let end = self.offset + self.len as u64;
        let (from, to) = (from.clamp(self.offset, end), to.clamp(self.offset, end));
        (from - self.offset) as usize..(to.max(from) - self.offset) as usize
    }

    /// Writes back changes of a copy.
    fn write_back(&mut self) -> Outcome<()> {
        let Mapping { copy, open, offset, .. } = self;
        copy.as_mut().map_or(Ok(()), |copy| copy.write_back(open, *offset))
    }
}

/// Updates the counters.
fn count(all: &[Mapping]) {
    COPIES.store(all.iter().filter(|mapping| mapping.copy.is_some()).count(), Ordering::Release);
    COUNT.store(all.len(), Ordering::Release);
}

fn add(mapping: Mapping) {
    SHARED.with(|all| {
        all.push(mapping);
        count(all);
    });
}

/// Takes matching copies off the list, calls `work` on them, and puts them back, so that no request is made while the
/// list is locked.
fn visit(fits: impl Fn(&Mapping) -> bool, mut work: impl FnMut(&mut Mapping) -> Outcome<()>) -> Outcome<()> {
    if COPIES.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let mut taken = SHARED.with(|all| {
        let fits = |mapping: &Mapping| mapping.copy.is_some() && fits(mapping);
        let (taken, left): (Vec<_>, Vec<_>) = std::mem::take(all).into_iter().partition(fits);
        *all = left;
        taken
    });
    let mut first = Ok(());
    for mapping in &mut taken {
        let worked = work(mapping);
        first = first.and(worked);
    }
    SHARED.with(|all| all.append(&mut taken));
    first
}

/// Writes back all changes in copies of a file.
pub(crate) fn write_back_file(file: FileId) {
    let changes = |mapping: &Mapping| mapping.copy.as_ref().is_some_and(Copy::can_change);
    // On failure, the next write-back tries again.
    let _ = visit(|mapping| mapping.open.id() == file && changes(mapping), Mapping::write_back);
}

/// Writes back all copies at the end of the process.
pub(crate) fn write_back_all() {
    let _ = visit(|_| true, Mapping::write_back);
}

/// Updates the copies of a file after a call of this process has changed it between two offsets.
fn changed(file: FileId, from: u64, to: u64, new: impl Fn(u64, &mut [u8])) {
    let _ = visit(
        |mapping| mapping.open.id() == file,
        |mapping| {
            let part = mapping.part(from, to);
            let offset = mapping.offset + part.start as u64;
            if let Some(copy) = &mut mapping.copy {
                copy.change(part, offset, &new);
            }
            Ok(())
        },
    );
}

/// Updates the copies after a write of this process.
pub(crate) fn wrote(file: FileId, offset: u64, bytes: &[u8]) {
    changed(file, offset, offset + bytes.len() as u64, |at, into| {
        let start = (at - offset.min(at)) as usize;
        into.copy_from_slice(bytes.get(start..start + into.len()).unwrap_or_default());
    });
}

/// Updates the copies after this process has truncated a file or zeroed a range.
pub(crate) fn zeroed(file: FileId, from: u64, to: u64) {
    changed(file, from, to, |_, into| into.fill(0));
}

struct MapArgs {
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    offset: u64,
}

impl MapArgs {
    fn is_shared(&self) -> bool {
        self.flags & libc::MAP_TYPE != libc::MAP_PRIVATE
    }

    fn writes(&self) -> bool {
        self.protection & libc::PROT_WRITE != 0
    }
}

/// Maps a memory file from an offset on.
fn show(map_args: &MapArgs, memory: &impl AsRawFd, offset: u64) -> Outcome<usize> {
    let (address, fd) = (map_args.address as usize, memory.as_raw_fd() as usize);
    let args =
        [address, map_args.len, map_args.protection as usize, map_args.flags as usize, fd, offset as usize];
    // SAFETY: for a fixed address, the application vouches for the memory that is replaced.
    Ok(unsafe { try_system_call(libc::SYS_mmap, args) }? as usize)
}

/// Requests memory for a range of a file from the service.
fn request(open: &Held, offset: u64, len: usize, write: bool) -> Result<Memory, Stop> {
    let file = open.for_reading()?;
    engine::run(|_| file.map(offset, len as u64, write)).map_err(|errno| {
        Stop::Errno(match errno.0 {
            // The error of a file system that does not support mapping.
            libc::EOPNOTSUPP => Errno(libc::ENODEV),
            libc::ENOSPC => Errno(libc::ENOMEM),
            _ => errno,
        })
    })
}

fn establish(open: &Held, map_args: &MapArgs) -> Outcome<*mut c_void> {
    // The last page shows the file's content also after the requested length.
    let Some(len) = map_args.len.checked_next_multiple_of(PAGE) else { return fail(libc::ENOMEM) };
    if !map_args.is_shared() {
        return Ok(copy::establish(open, map_args, len, false)?.0 as *mut c_void);
    }
    let mut write = open.access as c_int & libc::O_ACCMODE == libc::O_RDWR;
    let mut memory = request(open, map_args.offset, len, write);
    if write && !map_args.writes() && matches!(memory, Err(Stop::Errno(Errno(libc::ENODEV)))) {
        // Then no store is possible, not even after `mprotect`.
        write = false;
        memory = request(open, map_args.offset, len, write);
    }
    let (start, copy) = match memory? {
        Memory::Shared(memory) => (show(map_args, &memory, map_args.offset)?, None),
        Memory::Copied => {
            let (start, copy) = copy::establish(open, map_args, len, write)?;
            (start, Some(copy))
        }
    };
    let (offset, protection, open) = (map_args.offset, map_args.protection, open.clone());
    add(Mapping { start, len, offset, protection, open, copy });
    Ok(start as *mut c_void)
}

pub(crate) fn map(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Outcome<*mut c_void> {
    if flags & libc::MAP_FIXED != 0 {
        unmap(address as usize, len);
    }
    if flags & libc::MAP_ANONYMOUS != 0 {
        return Err(Stop::Foreign);
    }
    let open = ours(fd)?;
    let kind = flags & libc::MAP_TYPE;
    let known = matches!(kind, libc::MAP_SHARED | libc::MAP_PRIVATE | libc::MAP_SHARED_VALIDATE);
    if !known || len == 0 || offset < 0 || !(offset as usize).is_multiple_of(PAGE) {
        return fail(libc::EINVAL);
    }
    match open.kind() {
        Kind::File => {}
        Kind::Directory => return fail(libc::ENODEV),
        Kind::Path => return fail(libc::EBADF),
    }
    let map_args = MapArgs { address, len, protection, flags, offset: offset as u64 };
    let access = open.access as c_int & libc::O_ACCMODE;
    if access == libc::O_WRONLY || (map_args.is_shared() && map_args.writes() && access != libc::O_RDWR) {
        return fail(libc::EACCES);
    }
    write_back_file(open.id());
    establish(&open, &map_args)
}

/// Before memory is unmapped: writes back changes in copies, and removes the mappings.
pub(crate) fn unmap(start: usize, len: usize) {
    mem::changed();
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let end = start.saturating_add(len.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX));
    // A failed write-back cannot be reported here, just as in the kernel.
    let _ = visit(|mapping| mapping.meets(start, end), Mapping::write_back);
    let gone: Vec<Mapping> = SHARED.with(|all| {
        let (gone, left) = std::mem::take(all).into_iter().partition(|mapping| mapping.meets(start, end));
        *all = left;
        for mapping in &gone {
            all.extend(cut(mapping, mapping.start, start));
            all.extend(cut(mapping, end, mapping.end()));
        }
        count(all);
        gone
    });
    // Dropped without the lock: the last mapping of a closed file closes it at the service.
    drop(gone);
}

/// The part of a mapping between two addresses, if any.
fn cut(mapping: &Mapping, from: usize, to: usize) -> Option<Mapping> {
    let (from, to) = (from.max(mapping.start), to.min(mapping.end()));
    (from < to).then(|| {
        let range = from - mapping.start..to - mapping.start;
        Mapping {
            start: from,
            len: to - from,
            offset: mapping.offset + range.start as u64,
            protection: mapping.protection,
            open: mapping.open.clone(),
            copy: mapping.copy.as_ref().map(|copy| copy.part(range)),
        }
    })
}

fn unmap_hook(start: *mut c_void, len: size_t) -> Outcome<c_int> {
    unmap(start as usize, len);
    Err(Stop::Foreign)
}

pub(crate) fn synchronise(start: *mut c_void, len: size_t, flags: c_int) -> Outcome<c_int> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Err(Stop::Foreign);
    }
    let (start, end) = (start as usize, (start as usize).saturating_add(len));
    let mut met: Vec<Held> = Vec::new();
    SHARED.with(|all| {
        let opens = all.iter().filter(|mapping| mapping.meets(start, end)).map(|mapping| &mapping.open);
        for open in opens {
            if !met.iter().any(|known| known.id() == open.id()) {
                met.push(open.clone());
            }
        }
    });
    if met.is_empty() {
        return Err(Stop::Foreign);
    }
    // The kernel checks flags and range. If part of the range is not mapped, the rest is written.
    // SAFETY: it accesses addresses only.
    let judged = unsafe { try_system_call(libc::SYS_msync, [start, len, flags as usize, 0, 0, 0]) };
    match judged {
        Ok(_) | Err(Errno(libc::ENOMEM)) => {}
        Err(errno) => return Err(errno.into()),
    }
    let written = visit(|mapping| mapping.meets(start, end), Mapping::write_back);
    let synced = met.into_iter().filter(|_| flags & libc::MS_SYNC != 0).try_for_each(|open| {
        let file = open.data()?;
        Ok(engine::run(|_| file.sync())?)
    });
    written.and(synced).map_err(as_write_back)?;
    judged?;
    Ok(0)
}

/// Maps the error of a failed write-back to the two that the kernel reports.
fn as_write_back(stop: Stop) -> Stop {
    match stop {
        Stop::Errno(Errno(libc::ENOSPC)) => stop,
        _ => Stop::Errno(Errno(libc::EIO)),
    }
}

/// Resizes a mapping. The kernel resizes one of the service's memory; a copy that grows is mapped again.
pub(crate) fn remap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> Outcome<*mut c_void> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Err(Stop::Foreign);
    }
    let start = old as usize;
    if flags & libc::MREMAP_FIXED != 0 {
        return remap_to((start, old_len), (new as usize, new_len), flags);
    }
    let found = SHARED.with(|all| {
        let mapping = all.iter().find(|mapping| mapping.start == start)?;
        Some((mapping.open.clone(), mapping.offset, mapping.protection, mapping.copy.is_some()))
    });
    let (open, offset, protection, is_copy) = found.ok_or(Stop::Foreign)?;
    if new_len == 0 || flags & !libc::MREMAP_MAYMOVE != 0 {
        return fail(libc::EINVAL);
    }
    if new_len <= old_len {
        unmap(start + new_len.next_multiple_of(PAGE), (old_len - new_len) & !(PAGE - 1));
        // The kernel shrinks the application's mapping in the same way.
        return Err(Stop::Foreign);
    }
    if !is_copy {
        let Some(len) = new_len.checked_next_multiple_of(PAGE) else { return fail(libc::ENOMEM) };
        let write = open.access as c_int & libc::O_ACCMODE == libc::O_RDWR;
        let Memory::Shared(_) = request(&open, offset, len, write)? else { return fail(libc::ENOMEM) };
        unmap(start, old_len);
        // SAFETY: the application requested this call.
        let moved =
            unsafe { try_system_call(libc::SYS_mremap, [start, old_len, new_len, flags as usize, 0, 0]) };
        let (start, len) = match &moved {
            Ok(moved) => (*moved as usize, len),
            Err(_) => (start, old_len.next_multiple_of(PAGE)),
        };
        add(Mapping { start, len, offset, protection, open, copy: None });
        return Ok(moved? as *mut c_void);
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return fail(libc::ENOMEM);
    }
    unmap(start, old_len);
    // SAFETY: the application replaces this mapping by another.
    unsafe { try_system_call(libc::SYS_munmap, [start, old_len, 0, 0, 0, 0]) }?;
    let map_args =
        MapArgs { address: std::ptr::null_mut(), len: new_len, protection, flags: libc::MAP_SHARED, offset };
    establish(&open, &map_args)
}

/// Moves a mapping, or a part of one, to an address that the application gives. A copy cannot be moved.
fn remap_to(old: (usize, usize), new: (usize, usize), flags: c_int) -> Outcome<*mut c_void> {
    let up = |len: usize| len.checked_next_multiple_of(PAGE).ok_or(Errno(libc::ENOMEM));
    let (old_len, new_len) = (up(old.1)?, up(new.1)?);
    let end = old.0.saturating_add(old_len);
    let found = SHARED.with(|all| {
        let mapping = all.iter().find(|mapping| mapping.meets(old.0, end))?;
        let whole = mapping.start <= old.0 && end <= mapping.end() && mapping.copy.is_none();
        let offset = mapping.offset + (old.0.max(mapping.start) - mapping.start) as u64;
        Some((mapping.open.clone(), offset, mapping.protection, whole))
    });
    let args = [old.0, old.1, new.1, flags as usize, new.0, 0];
    let Some((open, offset, protection, whole)) = found else {
        // SAFETY: the application requested this call.
        let moved = unsafe { try_system_call(libc::SYS_mremap, args) }?;
        unmap(new.0, new_len);
        return Ok(moved as *mut c_void);
    };
    if !whole {
        return fail(libc::EINVAL);
    }
    if new_len > old_len {
        let write = open.access as c_int & libc::O_ACCMODE == libc::O_RDWR;
        let Memory::Shared(_) = request(&open, offset, new_len, write)? else { return fail(libc::ENOMEM) };
    }
    // SAFETY: as above.
    let moved = unsafe { try_system_call(libc::SYS_mremap, args) }?;
    unmap(new.0, new_len);
    unmap(old.0, old_len);
    add(Mapping { start: new.0, len: new_len, offset, protection, open, copy: None });
    Ok(moved as *mut c_void)
}

hook::hooks! {
    fn [mmap, mmap64](address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void, failing libc::MAP_FAILED => map(address, len, protection, flags, fd, offset);
    fn [munmap](start: *mut c_void, len: size_t) -> c_int => unmap_hook(start, len);
    fn [mprotect](_start: *mut c_void, _len: size_t, _protection: c_int) -> c_int => {
        mem::changed();
        Err(Stop::Foreign)
    };
    fn [msync](start: *mut c_void, len: size_t, flags: c_int) -> c_int => synchronise(start, len, flags);
    fn [mremap](old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void)
        -> *mut c_void, failing libc::MAP_FAILED => remap(old, old_len, new_len, flags, new);
}
