//! Directory listings.
//!
//! A position in a directory is a number: 0 before `.`, 1 before `..`, 2 before the first entry, otherwise the cookie
//! of the entry last listed.

use crate::backing::Kind;
use crate::errno::{Outcome, fail};
use crate::opening::open_place;
use crate::place::{locate, ours};
use crate::{descriptors, engine, hook, mem};
use forebay_model::{FileId, FileKind, Special, lock};
use libc::{DIR, c_char, c_int, c_long, c_void, dirent64, size_t, ssize_t};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

const PAGE: u32 = 1024;
const FIRST: u64 = 2;

/// A directory entry.
#[derive(Clone)]
struct Item {
    name: Vec<u8>,
    file: FileId,
    kind: FileKind,
    /// The position after it.
    next: u64,
}

/// Reads a directory from a position on.
struct Reader {
    dir: FileId,
    place: u64,
    page: VecDeque<Item>,
}

impl Reader {
    fn new(dir: FileId, place: u64) -> Reader {
        Reader { dir, place, page: VecDeque::new() }
    }

    /// The next entry, without consuming it.
    fn peek(&mut self) -> Outcome<Option<&Item>> {
        if self.page.is_empty() {
            self.page = self.fetch()?.into();
        }
        Ok(self.page.front())
    }

    fn pass(&mut self) {
        if let Some(item) = self.page.pop_front() {
            self.place = item.next;
        }
    }

    fn fetch(&self) -> Outcome<Vec<Item>> {
        let (dir, kind) = (self.dir, FileKind::Directory);
        match self.place {
            0 => return Ok(vec![Item { name: b".".to_vec(), file: dir, kind, next: 1 }]),
            1 => {
                let parent = engine::run(|engine| engine.by_id().walk(dir, b"..", true));
                let file = parent.map_or(dir, |attr| attr.id);
                return Ok(vec![Item { name: b"..".to_vec(), file, kind, next: FIRST }]);
            }
            _ => {}
        }
        let cookie = if self.place == FIRST { 0 } else { self.place };
        let (entries, _) = engine::run(|engine| engine.by_id().read_dir(dir, cookie, PAGE, false))?;
        let item = |entry: forebay_client::Entry| Item {
            name: entry.name.as_bytes().to_vec(),
            file: entry.file,
            kind: entry.kind,
            next: entry.cookie,
        };
        Ok(entries.into_iter().map(item).collect())
    }
}

fn type_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => libc::DT_REG,
        FileKind::Directory => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
        FileKind::Special(Special::Pipe) => libc::DT_FIFO,
        FileKind::Special(Special::Socket) => libc::DT_SOCK,
        FileKind::Special(Special::Character(_)) => libc::DT_CHR,
        FileKind::Special(Special::Block(_)) => libc::DT_BLK,
    }
}

const HEAD: usize = std::mem::offset_of!(dirent64, d_name);

/// Size of an entry in a `getdents64` buffer: header and name, rounded up to a multiple of eight.
fn entry_len(item: &Item) -> usize {
    (HEAD + item.name.len() + 1).next_multiple_of(8)
}

fn encode(item: &Item, into: &mut [u8]) {
    let len = into.len() as u16;
    into.fill(0);
    into[..8].copy_from_slice(&item.file.0.to_ne_bytes());
    into[8..16].copy_from_slice(&item.next.to_ne_bytes());
    into[16..18].copy_from_slice(&len.to_ne_bytes());
    into[18] = type_of(item.kind);
    into[HEAD..HEAD + item.name.len()].copy_from_slice(&item.name);
}

/// `getdents64`: entries from the open directory's position on.
pub(crate) fn entries(fd: c_int, into: *mut c_void, size: size_t) -> Outcome<ssize_t> {
    let open = ours(fd)?;
    if open.kind() != Kind::Directory {
        return fail(libc::ENOTDIR);
    }
    let into = mem::writable(into, size)?;
    let mut reader = Reader::new(open.id(), open.offset.load(Ordering::Acquire));
    let mut used = 0;
    while let Some(item) = reader.peek()? {
        let len = entry_len(item);
        if used + len > into.len() {
            break;
        }
        encode(item, &mut into[used..used + len]);
        used += len;
        reader.pass();
    }
    if used == 0 && reader.peek()?.is_some() {
        return fail(libc::EINVAL);
    }
    open.offset.store(reader.place, Ordering::Release);
    Ok(used as ssize_t)
}

const MAGIC: u64 = u64::from_le_bytes(*b"fb-dir-1");

/// The stream that a `DIR *` of Forebay points to. The C library's own structure also begins with the descriptor, and
/// has a small number where this one has its magic number.
#[repr(C)]
struct Stream {
    fd: c_int,
    magic: u64,
    state: Mutex<State>,
}

struct State {
    reader: Reader,
    current: Box<dirent64>,
}

impl Stream {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn stream<'a>(dir: *mut DIR) -> Outcome<&'a Stream> {
    if dir.is_null() {
        return Err(crate::errno::Stop::Foreign);
    }
    // SAFETY: both kinds of stream are larger than this field's end, and aligned.
    let magic = unsafe { (&raw const (*dir.cast::<Stream>()).magic).read() };
    match magic == MAGIC {
        // SAFETY: only streams of this library have the magic number.
        true => Ok(unsafe { &*dir.cast::<Stream>() }),
        false => Err(crate::errno::Stop::Foreign),
    }
}

fn open_stream(fd: c_int) -> Outcome<*mut DIR> {
    let open = ours(fd)?;
    match open.kind() {
        Kind::File => return fail(libc::ENOTDIR),
        Kind::Path => return fail(libc::EBADF),
        Kind::Directory => {}
    }
    // SAFETY: a structure of integers and bytes.
    let current = Box::new(unsafe { std::mem::zeroed() });
    let reader = Reader::new(open.id(), open.offset.load(Ordering::Acquire));
    let stream = Stream { fd, magic: MAGIC, state: Mutex::new(State { reader, current }) };
    Ok(Box::into_raw(Box::new(stream)).cast())
}

pub(crate) fn open_dir(path: *const c_char) -> Outcome<*mut DIR> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    open_stream(open_place(&locate(libc::AT_FDCWD, path)?, flags, 0)?)
}

fn next(dir: *mut DIR) -> Outcome<*mut dirent64> {
    let mut state = stream(dir)?.lock();
    let Some(item) = state.reader.peek()?.cloned() else { return Ok(std::ptr::null_mut()) };
    state.reader.pass();
    let current = &mut *state.current;
    current.d_ino = item.file.0;
    current.d_off = item.next as i64;
    current.d_reclen = entry_len(&item) as u16;
    current.d_type = type_of(item.kind);
    for (to, from) in current.d_name.iter_mut().zip(item.name.iter().chain([&0])) {
        *to = *from as c_char;
    }
    Ok(&raw mut *current)
}

/// `readdir_r` returns its error.
fn next_into(dir: *mut DIR, into: *mut dirent64, result: *mut *mut dirent64) -> Outcome<c_int> {
    stream(dir)?;
    let found = match next(dir) {
        Ok(found) => found,
        Err(crate::errno::Stop::Errno(errno)) => return Ok(errno.0),
        Err(stop) => return Err(stop),
    };
    if found.is_null() {
        mem::give(result, std::ptr::null_mut())?;
        return Ok(0);
    }
    // SAFETY: just filled, by this thread.
    let entry = unsafe { *found };
    mem::give(into, entry)?;
    mem::give(result, into)?;
    Ok(0)
}

fn close_stream(dir: *mut DIR) -> Outcome<c_int> {
    stream(dir)?;
    // SAFETY: created by `open_stream`; the caller does not use it after closing it.
    let stream = unsafe { Box::from_raw(dir.cast::<Stream>()) };
    descriptors::close_fd(stream.fd)
}

fn seek(dir: *mut DIR, place: u64) -> Outcome<()> {
    let mut state = stream(dir)?.lock();
    state.reader = Reader::new(state.reader.dir, place);
    Ok(())
}

/// All names in a directory except `.` and `..`.
pub(crate) fn names(path: &std::ffi::CStr) -> Outcome<Vec<Vec<u8>>> {
    let dir = open_dir(path.as_ptr())?;
    let mut names = Vec::new();
    let listed = {
        let mut state = stream(dir)?.lock();
        state.reader.place = FIRST;
        loop {
            match state.reader.peek() {
                Ok(Some(item)) => names.push(item.name.clone()),
                Ok(None) => break Ok(()),
                Err(stop) => break Err(stop),
            }
            state.reader.pass();
        }
    };
    close_stream(dir)?;
    listed.map(|()| names)
}

type Filter = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;
type Order = Option<unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;

/// `scandir`: the C library's own would bypass this library.
fn scan(dir: *mut DIR, list: *mut *mut *mut dirent64, filter: Filter, order: Order) -> Outcome<c_int> {
    let mut found: Vec<*mut dirent64> = Vec::new();
    loop {
        let entry = next(dir)?;
        if entry.is_null() {
            break;
        }
        // SAFETY: the application's filter takes an entry, and this is one.
        if filter.is_some_and(|keep| unsafe { keep(entry) } == 0) {
            continue;
        }
        // SAFETY: just filled; the copy is as long as `d_reclen`.
        let bytes = unsafe { std::slice::from_raw_parts(entry.cast::<u8>(), (*entry).d_reclen.into()) };
        found.push(crate::canonical::allocated(bytes, 0)?.cast());
    }
    if let Some(order) = order {
        found.sort_by(|a, b| {
            let (mut a, mut b) = (a.cast_const(), b.cast_const());
            // SAFETY: the application's order takes pointers to entries, which these are.
            unsafe { order(&raw mut a, &raw mut b) }.cmp(&0)
        });
    }
    let bytes: Vec<u8> = found.iter().flat_map(|entry| (*entry as usize).to_ne_bytes()).collect();
    let array = crate::canonical::allocated(&bytes, 8)?;
    mem::give(list, array.cast())?;
    Ok(found.len() as c_int)
}

fn scan_path(
    dirfd: c_int,
    path: *const c_char,
    list: *mut *mut *mut dirent64,
    filter: Filter,
    order: Order,
) -> Outcome<c_int> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let dir = open_stream(open_place(&locate(dirfd, path)?, flags, 0)?)?;
    let scanned = scan(dir, list, filter, order);
    close_stream(dir)?;
    scanned
}

/// `getdirentries` also stores the position at which it began.
fn entries_from(fd: c_int, into: *mut c_char, size: size_t, start: *mut i64) -> Outcome<ssize_t> {
    let open = ours(fd)?;
    mem::give(start, open.offset.load(Ordering::Acquire) as i64)?;
    entries(fd, into.cast(), size)
}

hook::hooks! {
    fn [opendir](path: *const c_char) -> *mut DIR, at path => open_dir(path);
    fn [fdopendir](fd: c_int) -> *mut DIR => open_stream(fd);
    fn [readdir, readdir64](dir: *mut DIR) -> *mut dirent64 => next(dir);
    fn [readdir_r, readdir64_r](dir: *mut DIR, into: *mut dirent64, result: *mut *mut dirent64) -> c_int =>
        next_into(dir, into, result);
    fn [closedir](dir: *mut DIR) -> c_int => close_stream(dir);
    fn [rewinddir](dir: *mut DIR) -> () => seek(dir, 0);
    fn [seekdir](dir: *mut DIR, place: c_long) -> () => seek(dir, place as u64);
    fn [telldir](dir: *mut DIR) -> c_long => Ok(stream(dir)?.lock().reader.place as c_long);
    fn [dirfd](dir: *mut DIR) -> c_int => Ok(stream(dir)?.fd);
    fn [getdents64](fd: c_int, into: *mut c_void, size: size_t) -> ssize_t => entries(fd, into, size);
    fn [getdirentries, getdirentries64](fd: c_int, into: *mut c_char, size: size_t, start: *mut i64) -> ssize_t =>
        entries_from(fd, into, size, start);
    fn [scandir, scandir64](path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, order: Order)
        -> c_int, at path => scan_path(libc::AT_FDCWD, path, list, filter, order);
    fn [scandirat, scandirat64](dirfd: c_int, path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter,
        order: Order) -> c_int, at path => scan_path(dirfd, path, list, filter, order);
}
