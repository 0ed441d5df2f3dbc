//! Memory mappings of files.
//!
//! A shared mapping maps memory that the service has for the file and shares with every process of this machine that
//! maps it. While it exists, reads and writes of all processes use that memory, so the library has nothing to
//! synchronise. If the service cannot share memory with this process, only a descriptor for reading can be mapped, and
//! the mapping is a copy ([`copy`]), as a private mapping is.

mod copy;

use crate::backing::Kind;
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::lock::Lock;
use crate::open::Open;
use crate::place::ours;
use crate::table::Held;
use crate::{engine, hook, mem};
use forebay_client::Mapping as Memory;
use libc::{c_int, c_void, off_t, size_t};
use rustix::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// Number of shared mappings.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static SHARED: Lock<Vec<Mapping>> = Lock::new(Vec::new());

/// A shared mapping.
struct Mapping {
    start: usize,
    len: usize,
    offset: u64,
    protection: c_int,
    open: Held,
    /// Whether it maps a copy instead of the service's memory.
    copy: bool,
}

impl Mapping {
    fn end(&self) -> usize {
        self.start + self.len
    }

    fn overlaps(&self, start: usize, end: usize) -> bool {
        self.start < end && start < self.end()
    }

    /// Whether the other continues this one, in memory and in the file.
    fn is_before(&self, other: &Mapping) -> bool {
        self.end() == other.start
            && self.offset + self.len as u64 == other.offset
            && std::ptr::eq::<Open>(&*self.open, &*other.open)
            && (self.protection, self.copy) == (other.protection, other.copy)
    }
}

/// Updates the counter.
fn count(all: &[Mapping]) {
    COUNT.store(all.len(), Ordering::Release);
}

fn add(mapping: Mapping) {
    SHARED.with(|all| {
        all.push(mapping);
        count(all);
    });
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
        return Ok(copy::establish(open, map_args, len)? as *mut c_void);
    }
    // Such a mapping can be made writable later, and the program may expect its writes to appear in it.
    let write = open.access as c_int & libc::O_ACCMODE == libc::O_RDWR;
    let (start, copy) = match request(open, map_args.offset, len, write)? {
        Memory::Shared(memory) => (show(map_args, &memory, map_args.offset)?, false),
        Memory::Copied if write => return fail(libc::ENODEV),
        Memory::Copied => (copy::establish(open, map_args, len)?, true),
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
    if flags & libc::MAP_FIXED == 0 {
        return map_new(address, len, protection, flags, fd, offset);
    }
    let replaced = unlist(address as usize, len);
    let mapped = match map_new(address, len, protection, flags, fd, offset) {
        Err(Stop::Foreign) if !replaced.is_empty() => {
            let words = [protection as usize, flags as usize, fd as usize, offset as usize];
            let args = [address as usize, len, words[0], words[1], words[2], words[3]];
            // SAFETY: the application requested this call.
            let mapped = unsafe { try_system_call(libc::SYS_mmap, args) };
            mapped.map(|start| start as *mut c_void).map_err(Stop::from)
        }
        mapped => mapped,
    };
    if mapped.is_err() {
        relist(replaced);
    }
    mapped
}

fn map_new(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Outcome<*mut c_void> {
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
    establish(&open, &map_args)
}

/// Takes the parts of mappings in a range off the list. Before the kernel unmaps them: as soon as it has, another thread
/// may map something there.
fn unlist(start: usize, len: usize) -> Vec<Mapping> {
    mem::changed();
    if COUNT.load(Ordering::Acquire) == 0 || len == 0 {
        return Vec::new();
    }
    let end = start.saturating_add(len.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX));
    // The result is dropped without the lock: the last mapping of a closed file closes it at the service.
    SHARED.with(|all| {
        let (met, left): (Vec<_>, Vec<_>) =
            std::mem::take(all).into_iter().partition(|mapping| mapping.overlaps(start, end));
        *all = left;
        for mapping in &met {
            all.extend(cut(mapping, mapping.start, start));
            all.extend(cut(mapping, end, mapping.end()));
        }
        count(all);
        met.iter().filter_map(|mapping| cut(mapping, start, end)).collect()
    })
}

/// Puts parts back that the kernel has not unmapped, joined with their neighbours.
fn relist(parts: Vec<Mapping>) {
    SHARED.with(|all| {
        for mut part in parts {
            while let Some(at) = all.iter().position(|other| other.is_before(&part) || part.is_before(other))
            {
                let other = all.swap_remove(at);
                (part.start, part.offset) = (part.start.min(other.start), part.offset.min(other.offset));
                part.len += other.len;
            }
            all.push(part);
        }
        count(all);
    });
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
            copy: mapping.copy,
        }
    })
}

pub(crate) fn unmap(start: *mut c_void, len: size_t) -> Outcome<c_int> {
    let gone = unlist(start as usize, len);
    if gone.is_empty() {
        return Err(Stop::Foreign);
    }
    // SAFETY: the application requested this call.
    match unsafe { try_system_call(libc::SYS_munmap, [start as usize, len, 0, 0, 0, 0]) } {
        Ok(_) => Ok(0),
        Err(errno) => {
            relist(gone);
            Err(errno.into())
        }
    }
}

pub(crate) fn synchronise(start: *mut c_void, len: size_t, flags: c_int) -> Outcome<c_int> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Err(Stop::Foreign);
    }
    let (start, end) = (start as usize, (start as usize).saturating_add(len));
    let mut met: Vec<Held> = Vec::new();
    SHARED.with(|all| {
        let opens = all.iter().filter(|mapping| mapping.overlaps(start, end)).map(|mapping| &mapping.open);
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
    let synced: Outcome<()> = met.into_iter().filter(|_| flags & libc::MS_SYNC != 0).try_for_each(|open| {
        let file = open.data()?;
        Ok(engine::run(|_| file.sync())?)
    });
    synced.map_err(as_write_back)?;
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

/// Resizes a mapping. A copy cannot grow: what follows in the file is not in it.
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
        Some((mapping.open.clone(), mapping.offset, mapping.protection, mapping.copy))
    });
    let (open, offset, protection, copy) = found.ok_or(Stop::Foreign)?;
    if new_len == 0 || flags & !libc::MREMAP_MAYMOVE != 0 {
        return fail(libc::EINVAL);
    }
    let up = |len: usize| len.checked_next_multiple_of(PAGE).ok_or(Errno(libc::ENOMEM));
    let (old_up, len) = (up(old_len)?, up(new_len)?);
    // SAFETY: the application requested this call.
    let call =
        || unsafe { try_system_call(libc::SYS_mremap, [start, old_len, new_len, flags as usize, 0, 0]) };
    if len <= old_up {
        let gone = unlist(start + len, old_up - len);
        return call().map(|moved| moved as *mut c_void).map_err(|errno| {
            relist(gone);
            errno.into()
        });
    }
    let write = open.access as c_int & libc::O_ACCMODE == libc::O_RDWR;
    if copy || !matches!(request(&open, offset, len, write)?, Memory::Shared(_)) {
        return fail(libc::ENOMEM);
    }
    let gone = unlist(start, old_up);
    match call() {
        Ok(moved) => {
            add(Mapping { start: moved as usize, len, offset, protection, open, copy });
            Ok(moved as *mut c_void)
        }
        Err(errno) => {
            relist(gone);
            Err(errno.into())
        }
    }
}

/// Moves a mapping, or a part of one, to an address that the application gives. A copy cannot be moved.
fn remap_to(old: (usize, usize), new: (usize, usize), flags: c_int) -> Outcome<*mut c_void> {
    let up = |len: usize| len.checked_next_multiple_of(PAGE).ok_or(Errno(libc::ENOMEM));
    let (old_len, new_len) = (up(old.1)?, up(new.1)?);
    let end = old.0.saturating_add(old_len);
    let found = SHARED.with(|all| {
        let mapping = all.iter().find(|mapping| mapping.overlaps(old.0, end))?;
        let whole = mapping.start <= old.0 && end <= mapping.end() && !mapping.copy;
        let offset = mapping.offset + (old.0.max(mapping.start) - mapping.start) as u64;
        Some((mapping.open.clone(), offset, mapping.protection, whole))
    });
    let found = match found {
        Some((.., whole)) if !whole => return fail(libc::EINVAL),
        found => found,
    };
    if let Some((open, offset, ..)) = &found
        && new_len > old_len
    {
        let write = open.access as c_int & libc::O_ACCMODE == libc::O_RDWR;
        let Memory::Shared(_) = request(open, *offset, new_len, write)? else { return fail(libc::ENOMEM) };
    }
    let mut gone = unlist(new.0, new_len);
    if found.is_some() {
        gone.append(&mut unlist(old.0, old_len));
    }
    let args = [old.0, old.1, new.1, flags as usize, new.0, 0];
    // SAFETY: the application requested this call.
    let moved = unsafe { try_system_call(libc::SYS_mremap, args) }.inspect_err(|_| relist(gone))?;
    if let Some((open, offset, protection, _)) = found {
        add(Mapping { start: new.0, len: new_len, offset, protection, open, copy: false });
    }
    Ok(moved as *mut c_void)
}

hook::hooks! {
    fn [mmap, mmap64](address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void, failing libc::MAP_FAILED => map(address, len, protection, flags, fd, offset);
    fn [munmap](start: *mut c_void, len: size_t) -> c_int => unmap(start, len);
    fn [mprotect](_start: *mut c_void, _len: size_t, _protection: c_int) -> c_int => {
        mem::changed();
        Err(Stop::Foreign)
    };
    fn [msync](start: *mut c_void, len: size_t, flags: c_int) -> c_int => synchronise(start, len, flags);
    fn [mremap](old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void)
        -> *mut c_void, failing libc::MAP_FAILED => remap(old, old_len, new_len, flags, new);
}
