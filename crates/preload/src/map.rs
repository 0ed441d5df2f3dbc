//! Files in memory.
//!
//! A mapping is memory of its own, filled from the file when it is made. Shared ones follow what this process writes,
//! and what is changed in them is written to the file by `msync`, `munmap`, `fsync`, reads, `close` and the end of the
//! process; they are shared with forked children, but not with other programs.

use crate::backing::Kind;
use crate::data::{self, At};
use crate::errno::{Outcome, Stop, fail};
use crate::kernel::ask;
use crate::lock::Lock;
use crate::place::ours;
use crate::table::Held;
use crate::{engine, hook};
use forebay_model::FileId;
use libc::{c_int, c_void, off_t, size_t};
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static SHARED: Lock<Vec<Mapping>> = Lock::new(Vec::new());

/// A shared mapping.
struct Mapping {
    start: usize,
    len: usize,
    offset: u64,
    open: Held,
    /// As the file was when it was last read or written here; `None` where nothing can change.
    known: Option<Vec<u8>>,
}

impl Mapping {
    fn end(&self) -> usize {
        self.start + self.len
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped readable until it is taken off the list. The application may write at the same time; what
        // is read then is some of the old and some of the new, as in every page cache.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }
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

/// This process has written to a file: its shared mappings show it.
pub(crate) fn wrote(file: FileId, offset: u64, bytes: &[u8]) {
    let _ = visit(
        |mapping| mapping.open.id() == file,
        |mapping| {
            let start = offset.max(mapping.offset);
            let end = (offset + bytes.len() as u64).min(mapping.offset + mapping.len as u64);
            if start >= end {
                return Ok(());
            }
            let from = &bytes[(start - offset) as usize..(end - offset) as usize];
            let at = (start - mapping.offset) as usize;
            if let Some(known) = &mut mapping.known {
                known[at..at + from.len()].copy_from_slice(from);
                // SAFETY: inside the mapping, which is writable.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.as_ptr(), (mapping.start + at) as *mut u8, from.len());
                };
            }
            Ok(())
        },
    );
}

struct Wish {
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    offset: u64,
}

fn anonymous(wish: &Wish) -> Outcome<usize> {
    let flags = wish.flags & !libc::MAP_SYNC & !libc::MAP_POPULATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let args = [wish.address as usize, wish.len, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: where the application asks for a fixed place, it vouches for what is there.
    Ok(unsafe { ask(libc::SYS_mmap, args) }? as usize)
}

fn fill(open: &Held, offset: u64, start: usize, len: usize) -> Outcome<usize> {
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(64 << 20);
        // SAFETY: inside the new mapping, which nobody else knows yet.
        let into = unsafe { std::slice::from_raw_parts_mut((start + done) as *mut u8, piece) };
        let count = data::read_into(open, At::Offset(offset + done as u64), into)?;
        done += count;
        if count < piece {
            break;
        }
    }
    Ok(done)
}

fn establish(open: &Held, wish: &Wish) -> Outcome<*mut c_void> {
    let writes = wish.protection & libc::PROT_WRITE != 0;
    let shared = wish.flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    let start = anonymous(wish)?;
    let undo = || {
        // SAFETY: the mapping made above.
        let _ = unsafe { ask(libc::SYS_munmap, [start, wish.len, 0, 0, 0, 0]) };
    };
    // The last page shows what the file has there, also behind the length that was asked for.
    let len = wish.len.next_multiple_of(PAGE);
    fill(open, wish.offset, start, len).inspect_err(|_| undo())?;
    if wish.protection != libc::PROT_READ | libc::PROT_WRITE {
        let args = [start, wish.len, wish.protection as usize, 0, 0, 0];
        // SAFETY: as above.
        unsafe { ask(libc::SYS_mprotect, args) }.inspect_err(|_| undo())?;
    }
    if shared && writes {
        let mut mapping = Mapping { start, len, offset: wish.offset, open: open.clone(), known: None };
        mapping.known = Some(mapping.bytes().to_vec());
        SHARED.with(|all| all.push(mapping));
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
    if flags & libc::MAP_ANONYMOUS != 0 {
        return Err(Stop::Foreign);
    }
    let open = ours(fd)?;
    if len == 0 || offset < 0 || !(offset as usize).is_multiple_of(PAGE) {
        return fail(libc::EINVAL);
    }
    if open.kind() != Kind::File {
        return fail(libc::ENODEV);
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
fn unmap(start: usize, len: usize) -> Outcome<()> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let end = start.saturating_add(len.next_multiple_of(PAGE));
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
    Ok(())
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
            open: mapping.open.clone(),
            known: mapping.known.as_ref().map(|known| known[range].to_vec()),
        }
    })
}

fn unmap_hook(start: *mut c_void, len: size_t) -> Outcome<c_int> {
    unmap(start as usize, len)?;
    Err(Stop::Foreign)
}

fn synchronise(start: *mut c_void, len: size_t, flags: c_int) -> Outcome<c_int> {
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

/// A shared mapping that changes its size is mapped anew.
fn remap(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int) -> Outcome<*mut c_void> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Err(Stop::Foreign);
    }
    let start = old as usize;
    let found = SHARED.with(|all| {
        let mapping = all.iter().find(|mapping| mapping.start == start)?;
        Some((mapping.open.clone(), mapping.offset))
    });
    let (open, offset) = found.ok_or(Stop::Foreign)?;
    if flags != libc::MREMAP_MAYMOVE {
        return fail(libc::EINVAL);
    }
    unmap(start, old_len)?;
    // SAFETY: the application gives this mapping up for another.
    unsafe { ask(libc::SYS_munmap, [start, old_len, 0, 0, 0, 0]) }?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let wish =
        Wish { address: std::ptr::null_mut(), len: new_len, protection, flags: libc::MAP_SHARED, offset };
    establish(&open, &wish)
}

/// `mmap` fails with −1, not with null.
fn or_failed(outcome: Outcome<*mut c_void>) -> Outcome<*mut c_void> {
    match outcome {
        Err(Stop::Errno(errno)) => {
            errno.set();
            Ok(libc::MAP_FAILED)
        }
        other => other,
    }
}

hook::hooks! {
    fn [mmap, mmap64](address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void => or_failed(map(address, len, protection, flags, fd, offset));
    fn [munmap](start: *mut c_void, len: size_t) -> c_int => unmap_hook(start, len);
    fn [msync](start: *mut c_void, len: size_t, flags: c_int) -> c_int => synchronise(start, len, flags);
    fn [mremap](old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, _new: *mut c_void)
        -> *mut c_void => or_failed(remap(old, old_len, new_len, flags));
}
