//! Files in memory.
//!
//! A mapping shows a memory file that is filled from the file when it is made. Of shared ones the library has a view of
//! its own, whatever the application does with its: they follow what this process writes, and what is changed in them
//! is written to the file by `msync`, `munmap`, `fsync`, reads, `close` and the end of the process. They are shared
//! with forked children, but not with other programs.

use crate::backing::{self, Kind};
use crate::data::{self, At};
use crate::errno::{Outcome, Stop, fail};
use crate::kernel::ask;
use crate::lock::Lock;
use crate::place::ours;
use crate::table::Held;
use crate::{engine, hook, mem};
use forebay_model::FileId;
use libc::{c_int, c_void, off_t, size_t};
use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, SealFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static SHARED: Lock<Vec<Mapping>> = Lock::new(Vec::new());

/// The library's own view of a memory file.
struct View {
    start: usize,
    len: usize,
}

impl View {
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped until this is dropped. The application may write at the same time; what is read then is some
        // of the old and some of the new, as in every page cache.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }
    }

    /// Works on the bytes: as a page cache does, beside whoever else does.
    fn with<R>(&self, work: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: as above.
        work(unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.len) })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the mapping.
        let _ = unsafe { ask(libc::SYS_munmap, [self.start, self.len, 0, 0, 0, 0]) };
    }
}

/// A shared mapping.
struct Mapping {
    start: usize,
    len: usize,
    offset: u64,
    protection: c_int,
    open: Held,
    view: Arc<View>,
    /// Where in the view this begins.
    at: usize,
    /// As the file was when it was last read or written here; `None` where nothing can change.
    known: Option<Vec<u8>>,
}

impl Mapping {
    fn end(&self) -> usize {
        self.start + self.len
    }

    fn bytes(&self) -> &[u8] {
        &self.view.bytes()[self.at..self.at + self.len]
    }

    /// The part of this mapping that shows a part of the file.
    fn part(&self, from: u64, to: u64) -> std::ops::Range<usize> {
        let end = self.offset + self.len as u64;
        let (from, to) = (from.clamp(self.offset, end), to.clamp(self.offset, end));
        (from - self.offset) as usize..(to.max(from) - self.offset) as usize
    }

    /// Writes the pages that differ from what is known.
    fn write_back(&mut self) -> Outcome<()> {
        if self.known.is_none() {
            return Ok(());
        }
        let size = self.open.attr()?.size.saturating_sub(self.offset).min(self.len as u64) as usize;
        let file = self.open.for_writing()?;
        let mut at = 0;
        while at < size {
            let end = (at + PAGE).min(size);
            let known = self.known.as_deref().unwrap_or_default();
            if self.bytes()[at..end] == known[at..end] {
                at = end;
                continue;
            }
            let mut last = end;
            while last < size && last - at < 1 << 20 {
                let next = (last + PAGE).min(size);
                if self.bytes()[last..next] == known[last..next] {
                    break;
                }
                last = next;
            }
            let copy = self.bytes()[at..last].to_vec();
            let offset = self.offset + at as u64;
            engine::run(|_| file.pwrite(offset, &copy))?;
            if let Some(known) = &mut self.known {
                known[at..last].copy_from_slice(&copy);
            }
            at = last;
        }
        Ok(())
    }
}

/// Takes the mappings that fit off the list, works on them, and puts them back: nobody waits for the service while
/// the list is locked.
fn visit(fits: impl Fn(&Mapping) -> bool, mut work: impl FnMut(&mut Mapping) -> Outcome<()>) -> Outcome<()> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let mut taken = SHARED.with(|all| {
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

/// Writes back everything that was changed in mappings of a file.
pub(crate) fn write_back_file(file: FileId) {
    // What cannot be written now is tried again by whoever asks next.
    let _ = visit(|mapping| mapping.open.id() == file && mapping.known.is_some(), Mapping::write_back);
}

/// The process ends.
pub(crate) fn write_back_all() {
    let _ = visit(|_| true, Mapping::write_back);
}

/// The file has changed between two offsets by a call of this process: its shared mappings show it.
fn changed(file: FileId, from: u64, to: u64, new: impl Fn(u64, &mut [u8])) {
    let _ = visit(
        |mapping| mapping.open.id() == file,
        |mapping| {
            let part = mapping.part(from, to);
            let offset = mapping.offset + part.start as u64;
            let within = mapping.at + part.start..mapping.at + part.end;
            mapping.view.with(|bytes| new(offset, &mut bytes[within]));
            if let Some(known) = &mut mapping.known {
                new(offset, &mut known[part]);
            }
            Ok(())
        },
    );
}

/// This process has written to a file.
pub(crate) fn wrote(file: FileId, offset: u64, bytes: &[u8]) {
    changed(file, offset, offset + bytes.len() as u64, |at, into| {
        let start = (at - offset.min(at)) as usize;
        into.copy_from_slice(bytes.get(start..start + into.len()).unwrap_or_default());
    });
}

/// This process has cut a file, or turned some of it into zeros.
pub(crate) fn zeroed(file: FileId, from: u64, to: u64) {
    changed(file, from, to, |_, into| into.fill(0));
}

struct Wish {
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    offset: u64,
}

fn fill(open: &Held, offset: u64, into: &mut [u8]) -> Outcome<()> {
    for (number, piece) in into.chunks_mut(FILL).enumerate() {
        let wanted = piece.len();
        if data::read_into(open, At::Offset(offset + (number * FILL) as u64), piece)? < wanted {
            break;
        }
    }
    Ok(())
}

/// Read in one piece.
const FILL: usize = 64 << 20;

fn show(wish: &Wish, memory: &impl AsRawFd) -> Outcome<usize> {
    let (address, fd) = (wish.address as usize, memory.as_raw_fd() as usize);
    let args = [address, wish.len, wish.protection as usize, wish.flags as usize, fd, 0];
    // SAFETY: where the application asks for a fixed place, it vouches for what is there.
    Ok(unsafe { ask(libc::SYS_mmap, args) }? as usize)
}

fn establish(open: &Held, wish: &Wish) -> Outcome<*mut c_void> {
    let shared = wish.flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    let writes = open.access as c_int & libc::O_ACCMODE == libc::O_RDWR;
    // The last page shows what the file has there, also behind the length that was asked for.
    let Some(len) = wish.len.checked_next_multiple_of(PAGE) else { return fail(libc::ENOMEM) };
    let memory = backing::memory_file(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, len as u64)?;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let own =
        Wish { address: std::ptr::null_mut(), len, protection: both, flags: libc::MAP_SHARED, offset: 0 };
    let view = View { start: show(&own, &memory)?, len };
    view.with(|bytes| fill(open, wish.offset, bytes))?;
    if shared && !writes {
        // The kernel then refuses a later `mprotect` too.
        rustix::fs::fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE)?;
    }
    let start = show(wish, &memory)?;
    if shared {
        let known = writes.then(|| view.bytes().to_vec());
        let (open, view) = (open.clone(), Arc::new(view));
        let (offset, protection) = (wish.offset, wish.protection);
        SHARED.with(|all| all.push(Mapping { start, len, offset, protection, open, view, at: 0, known }));
        COUNT.fetch_add(1, Ordering::AcqRel);
    }
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
    if len == 0 || offset < 0 || !(offset as usize).is_multiple_of(PAGE) {
        return fail(libc::EINVAL);
    }
    match open.kind() {
        Kind::File => {}
        Kind::Directory => return fail(libc::ENODEV),
        Kind::Path => return fail(libc::EBADF),
    }
    let access = open.access as c_int & libc::O_ACCMODE;
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    let writes = protection & libc::PROT_WRITE != 0;
    if access == libc::O_WRONLY || (shared && writes && access != libc::O_RDWR) {
        return fail(libc::EACCES);
    }
    write_back_file(open.id());
    establish(&open, &Wish { address, len, protection, flags, offset: offset as u64 })
}

/// Some of the memory goes: what was changed there is written first.
pub(crate) fn unmap(start: usize, len: usize) {
    mem::changed();
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let end = start.saturating_add(len.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX));
    let meets = |mapping: &Mapping| mapping.start < end && start < mapping.end();
    // As after a failed write-back of the kernel's, nobody is told: there is no way to.
    let _ = visit(meets, Mapping::write_back);
    SHARED.with(|all| {
        let before = std::mem::take(all);
        for mapping in before {
            if !meets(&mapping) {
                all.push(mapping);
                continue;
            }
            all.extend(cut(&mapping, mapping.start, start));
            all.extend(cut(&mapping, end, mapping.end()));
        }
        COUNT.store(all.len(), Ordering::Release);
    });
}

/// The part of a mapping between two addresses, if there is any.
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
            view: mapping.view.clone(),
            at: mapping.at + range.start,
            known: mapping.known.as_ref().map(|known| known[range].to_vec()),
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
    let mut met = false;
    visit(
        |mapping| mapping.start < end && start < mapping.end(),
        |mapping| {
            met = true;
            mapping.write_back()?;
            if flags & libc::MS_SYNC != 0 {
                let file = mapping.open.for_writing()?;
                engine::run(|_| file.sync())?;
            }
            Ok(())
        },
    )?;
    if met { Ok(0) } else { Err(Stop::Foreign) }
}

/// A shared mapping that grows is mapped anew; one that shrinks stays where it is.
pub(crate) fn remap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
) -> Outcome<*mut c_void> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Err(Stop::Foreign);
    }
    let start = old as usize;
    let found = SHARED.with(|all| {
        let mapping = all.iter().find(|mapping| mapping.start == start)?;
        Some((mapping.open.clone(), mapping.offset, mapping.protection))
    });
    let (open, offset, protection) = found.ok_or(Stop::Foreign)?;
    if new_len == 0 || flags & !libc::MREMAP_MAYMOVE != 0 {
        return fail(libc::EINVAL);
    }
    if new_len <= old_len {
        unmap(start + new_len.next_multiple_of(PAGE), (old_len - new_len) & !(PAGE - 1));
        // The kernel does the same with the application's view.
        return Err(Stop::Foreign);
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return fail(libc::ENOMEM);
    }
    unmap(start, old_len);
    // SAFETY: the application gives this mapping up for another.
    unsafe { ask(libc::SYS_munmap, [start, old_len, 0, 0, 0, 0]) }?;
    let wish =
        Wish { address: std::ptr::null_mut(), len: new_len, protection, flags: libc::MAP_SHARED, offset };
    establish(&open, &wish)
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
    fn [mremap](old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, _new: *mut c_void)
        -> *mut c_void, failing libc::MAP_FAILED => remap(old, old_len, new_len, flags);
}
