//! Checks whether the program or one of its libraries makes system calls bypassing the C library.

use super::HARMLESS;
use super::decode::{self, Number};
use super::remember::Memory;
use crate::lock::Lock;
use forebay_client::elf_notes;
use libc::{c_int, c_void};
use rustix::fd::OwnedFd;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Libraries whose calls are handled elsewhere, or have nothing to do with files (OpenMP threads wait for each other).
const EXEMPT: [&[u8]; 7] =
    [b"libc.so", b"ld-linux", b"ld-musl", b"libpthread", b"linux-vdso", b"libforebay", b"libgomp"];

/// Higher than any system call number.
const NUMBERS: u32 = 1024;
/// Code up to this size is scanned faster than its stored result is found.
const SMALL: usize = 64 << 10;
const NOTE_BUILD_ID: u32 = 3;

/// Code of the program or of a library.
struct Object<'a> {
    code: Vec<&'a [u8]>,
    notes: Notes<'a>,
}

/// Whether there is Go code: it makes system calls on stacks that are too small for a handler.
static GO: AtomicBool = AtomicBool::new(false);

/// Objects already scanned, by address and size of their code.
static SEEN: Lock<Vec<(usize, usize)>> = Lock::new(Vec::new());

fn concerns_files(number: Number) -> bool {
    match number {
        Number::Unset => false,
        Number::Unknown => true,
        Number::Known(number) => number < NUMBERS && !HARMLESS.contains(&number.into()),
    }
}

impl Object<'_> {
    fn has_raw_calls(&self, memory: &mut Option<Memory>) -> bool {
        if self.notes.go {
            GO.store(true, Ordering::Relaxed);
        }
        let len: usize = self.code.iter().map(|code| code.len()).sum();
        let Some(id) = self.notes.build_id.filter(|_| len > SMALL) else { return self.search() };
        let memory = memory.get_or_insert_with(Memory::open);
        memory.verdict(id).unwrap_or_else(|| {
            let raw = self.search();
            memory.keep(id, raw);
            raw
        })
    }

    fn search(&self) -> bool {
        let mut found = false;
        for code in &self.code {
            decode::each(code, |number| {
                found |= concerns_files(number);
                found
            });
        }
        found
    }
}

/// Contents of an object's ELF notes.
#[derive(Clone, Copy, Default)]
struct Notes<'a> {
    build_id: Option<&'a [u8]>,
    go: bool,
}

impl<'a> Notes<'a> {
    fn read(segments: impl Iterator<Item = &'a [u8]>) -> Notes<'a> {
        let mut found = Notes::default();
        for note in segments.flat_map(elf_notes) {
            found.go |= note.is_of_go();
            if note.kind == NOTE_BUILD_ID && note.owner == b"GNU" {
                found.build_id = Some(note.text);
            }
        }
        found
    }
}

/// State of a search through the loader's list.
struct Search {
    memory: Option<Memory>,
    found: bool,
}

/// Whether Go code was found, next to which system calls cannot be intercepted.
pub(super) fn has_go() -> bool {
    GO.load(Ordering::Relaxed)
}

/// Scans all loaded objects that have not been scanned before.
pub(super) fn finds_raw_calls() -> bool {
    let mut search = Search { memory: None, found: false };
    // SAFETY: the loader calls the function with its list of libraries while that list does not change.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader gives a valid description of a library, and the search is the caller's.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    let name = match info.dlpi_name.is_null() {
        true => &[][..],
        // SAFETY: a string of the loader.
        false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes(),
    };
    if is_exempt(name) {
        return 0;
    }
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let piece = |header: &libc::Elf64_Phdr| -> &[u8] {
        let start = (info.dlpi_addr + header.p_vaddr) as *const u8;
        // SAFETY: mapped as long as the loader's list does not change.
        unsafe { std::slice::from_raw_parts(start, header.p_filesz as usize) }
    };
    let of_kind = |kind| headers.iter().filter(move |header| header.p_type == kind);
    // Code that is executable but not readable is skipped.
    let code = of_kind(libc::PT_LOAD)
        .filter(|header| header.p_flags & (libc::PF_X | libc::PF_R) == libc::PF_X | libc::PF_R);
    let code: Vec<_> = code.map(piece).collect();
    let key = (info.dlpi_addr as usize, code.iter().map(|code| code.len()).sum());
    let seen = SEEN.with(|seen| {
        let known = seen.contains(&key);
        if !known {
            seen.push(key);
        }
        known
    });
    if seen {
        return 0;
    }
    let notes = Notes::read(of_kind(libc::PT_NOTE).map(piece));
    search.found |= Object { code, notes }.has_raw_calls(&mut search.memory);
    // Continue: Go code in any object rules out interception for all.
    0
}

fn is_exempt(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    EXEMPT.iter().any(|exempt| name.starts_with(exempt))
}

/// As above, for a library that is about to be loaded.
pub(super) fn file_has_raw_calls(path: &[u8], file: &OwnedFd) -> bool {
    !is_exempt(path) && in_file(file, |object| object.has_raw_calls(&mut None))
}

/// Whether a library that is about to be loaded contains Go code.
pub(super) fn file_has_go(file: &OwnedFd) -> bool {
    in_file(file, |object| object.notes.go)
}

/// As above, from the first bytes of the library's file.
pub(super) fn head_has_go(head: &[u8]) -> bool {
    parse(head).is_some_and(|object| object.notes.go)
}

fn in_file(file: &OwnedFd, look: impl FnOnce(&Object<'_>) -> bool) -> bool {
    let Ok(found) = rustix::fs::fstat(file) else { return false };
    let len = found.st_size as usize;
    if found.st_mode & libc::S_IFMT != libc::S_IFREG || len < HEADER {
        return false;
    }
    // SAFETY: a new mapping at an address of the kernel's choice.
    let mapped =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, file, 0) };
    let Ok(start) = mapped else { return false };
    // SAFETY: mapped until below; a library that shrinks while it is loaded ends the program in any case.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) };
    let found = parse(bytes).is_some_and(|object| look(&object));
    // SAFETY: nothing of it is used any more.
    let _ = unsafe { rustix::mm::munmap(start, len) };
    found
}

/// Sizes of the ELF header of a file, and of one program header.
const HEADER: usize = 64;
const SEGMENT: usize = 56;

/// The code in a library's file; `None` if the file is not a library for this machine.
fn parse(bytes: &[u8]) -> Option<Object<'_>> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?) as usize);
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?) as usize);
    if bytes.get(..6)? != b"\x7fELF\x02\x01"
        || half(18)? != usize::from(libc::EM_X86_64)
        || half(54)? != SEGMENT
    {
        return None;
    }
    let (first, count) = (word(32)?, half(56)?);
    let (mut code, mut notes) = (Vec::new(), Vec::new());
    for at in 0..count {
        let header = first.checked_add(at * SEGMENT)?;
        let kind = word(header)?;
        let (kind, flags) = (kind as u32, (kind >> 32) as u32);
        let (offset, len) = (word(header + 8)?, word(header + 32)?);
        let Some(piece) = bytes.get(offset..offset.checked_add(len)?) else { continue };
        match kind {
            libc::PT_LOAD if flags & libc::PF_X != 0 => code.push(piece),
            libc::PT_NOTE => notes.push(piece),
            _ => {}
        }
    }
    Some(Object { code, notes: Notes::read(notes.into_iter()) })
}
