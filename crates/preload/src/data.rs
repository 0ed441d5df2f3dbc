//! Reading, writing and truncating files.

use crate::backing::Kind;
use crate::counts::{Counted, moved};
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::open::Open;
use crate::place::{locate, ours};
use crate::{engine, file_size, hook, mem};
use forebay_client::{Count, Now};
use forebay_model::SeekTo;
use libc::{c_char, c_int, c_void, iovec, off_t, size_t, ssize_t};
use std::sync::atomic::Ordering;

/// The kernel moves at most this many bytes in one call.
const MOST: usize = 0x7fff_f000;
/// The service appends at most this many bytes in one request.
const PIECE: usize = 4 << 20;
const SYNC: u32 = (libc::O_SYNC | libc::O_DSYNC) as u32;

/// Where a transfer starts.
#[derive(Clone, Copy)]
pub(crate) enum At {
    /// The offset of the open file, which the transfer advances.
    Current,
    /// A given offset; that of the open file does not change.
    Offset(u64),
}

impl At {
    pub(crate) fn offset(offset: off_t) -> Outcome<At> {
        Ok(At::Offset(u64::try_from(offset).map_err(|_| Errno(libc::EINVAL))?))
    }
}

/// Reads into memory of the caller or of the library.
pub(crate) fn read_into(open: &Open, at: At, into: &mut [u8]) -> Outcome<usize> {
    let file = open.for_reading()?;
    let mut pread = |offset: u64| {
        let (file, into) = (&file, &mut *into);
        let counted = Counted::begin();
        match file.read_now(offset, into) {
            Some(len) => {
                counted.end(&Ok(()));
                Ok(len)
            }
            None => engine::run(move |_| file.pread(offset, into)),
        }
    };
    let count = match at {
        At::Offset(offset) => pread(offset)?,
        At::Current => loop {
            let offset = open.offset.load(Ordering::Acquire);
            let count = pread(offset)?;
            let next = offset + count as u64;
            // On failure, another thread or process has read or sought meanwhile: these bytes are theirs, and the read
            // is repeated.
            if open.offset.compare_exchange(offset, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                break count;
            }
        },
    };
    moved(Count::Read, count);
    Ok(count)
}

/// Writes memory of the caller or of the library.
pub(crate) fn write_from(open: &Open, at: At, from: &[u8]) -> Outcome<usize> {
    write_how(open, at, from, open.flags.load(Ordering::Relaxed) & libc::O_APPEND as u32 != 0)
}

fn write_how(open: &Open, at: At, from: &[u8], appends: bool) -> Outcome<usize> {
    let file = open.for_writing()?;
    if from.is_empty() {
        return Ok(0);
    }
    let from = match file_size::limit() {
        None => from,
        Some(limit) => {
            let start = match at {
                _ if appends => open.attr()?.size,
                At::Offset(offset) => offset,
                At::Current => open.offset.load(Ordering::Acquire),
            };
            &from[..file_size::allowed_len(limit, start, from.len())?]
        }
    };
    let len = from.len() as u64;
    let pwrite = |offset: u64| {
        let counted = Counted::begin();
        let Now::Done { ahead } = file.write_now(offset, from) else {
            return engine::run(|_| file.pwrite(offset, from));
        };
        if let (true, Some(engine)) = (ahead, engine::started()) {
            engine.spawn(file.prepare());
        }
        counted.end(&Ok(()));
        Ok(())
    };
    match at {
        // As on Linux, `pwrite` also appends if the file was opened with `O_APPEND`.
        _ if appends => {
            let end = append(&file, from)?;
            if matches!(at, At::Current) {
                open.offset.store(end, Ordering::Release);
            }
        }
        At::Offset(offset) => pwrite(offset)?,
        At::Current => {
            // Advancing the offset first makes writers that share the open file disjoint, within a process and across
            // processes.
            let offset = open.offset.fetch_add(len, Ordering::AcqRel);
            if let Err(errno) = pwrite(offset) {
                // If another writer has advanced the offset meanwhile, the gap stays as a hole.
                let _ =
                    open.offset.compare_exchange(offset + len, offset, Ordering::AcqRel, Ordering::Relaxed);
                return Err(errno.into());
            }
        }
    }
    if open.access & SYNC != 0 {
        engine::run(|_| file.sync())?;
    }
    moved(Count::Written, from.len());
    Ok(from.len())
}

fn append(file: &forebay_client::File, from: &[u8]) -> Result<u64, Errno> {
    let mut end = 0;
    for piece in from.chunks(PIECE) {
        end = engine::run(|_| file.append(piece))? + piece.len() as u64;
    }
    Ok(end)
}

pub(crate) fn read_fd(fd: c_int, into: *mut c_void, len: size_t, at: At) -> Outcome<ssize_t> {
    let open = ours(fd)?;
    let into = mem::writable(into, len.min(MOST))?;
    Ok(read_into(&open, at, into)? as ssize_t)
}

pub(crate) fn write_fd(fd: c_int, from: *const c_void, len: size_t, at: At) -> Outcome<ssize_t> {
    let open = ours(fd)?;
    let from = mem::readable(from, len.min(MOST))?;
    Ok(write_from(&open, at, from)? as ssize_t)
}

pub(crate) fn vectors<'a>(list: *const iovec, count: c_int) -> Outcome<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|&count| count <= 1024).ok_or(Errno(libc::EINVAL))?;
    mem::readable(list.cast(), count * size_of::<iovec>())?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the list can be read, and C arrays of this type are aligned.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    let total = list.iter().try_fold(0_usize, |total, part| total.checked_add(part.iov_len));
    match total {
        Some(total) if total <= isize::MAX as usize => Ok(list),
        _ => fail(libc::EINVAL),
    }
}

pub(crate) fn read_vector(fd: c_int, list: *const iovec, count: c_int, at: At) -> Outcome<ssize_t> {
    let open = ours(fd)?;
    let list = vectors(list, count)?;
    if let [one] = list {
        return Ok(read_into(&open, at, mem::writable(one.iov_base, one.iov_len.min(MOST))?)? as ssize_t);
    }
    let total = list.iter().map(|part| part.iov_len).sum::<usize>().min(MOST);
    let mut buffer = vec![0; total];
    let parts: Vec<_> =
        list.iter().map(|part| mem::writable(part.iov_base, part.iov_len)).collect::<Outcome<_>>()?;
    let count = read_into(&open, at, &mut buffer)?;
    let mut left = &buffer[..count];
    for part in parts {
        let (here, rest) = left.split_at(left.len().min(part.len()));
        part[..here.len()].copy_from_slice(here);
        left = rest;
    }
    Ok(count as ssize_t)
}

/// The contents of a list of buffers as one slice.
fn gathered(list: &[iovec]) -> Outcome<std::borrow::Cow<'_, [u8]>> {
    if let [one] = list {
        return Ok(mem::readable(one.iov_base, one.iov_len.min(MOST))?.into());
    }
    let mut whole = Vec::new();
    for part in list {
        whole.extend_from_slice(mem::readable(part.iov_base, part.iov_len)?);
    }
    whole.truncate(MOST);
    Ok(whole.into())
}

pub(crate) fn write_vector(fd: c_int, list: *const iovec, count: c_int, at: At) -> Outcome<ssize_t> {
    let open = ours(fd)?;
    Ok(write_from(&open, at, &gathered(vectors(list, count)?)?)? as ssize_t)
}

/// The `v2` calls: −1 means the current offset.
fn at2(offset: off_t) -> Outcome<At> {
    if offset == -1 { Ok(At::Current) } else { At::offset(offset) }
}

pub(crate) fn flags2(fd: c_int, flags: c_int) -> Outcome<()> {
    ours(fd)?;
    let known = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;
    if flags & !known != 0 { fail(libc::EOPNOTSUPP) } else { Ok(()) }
}

pub(crate) fn read_vector2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Outcome<ssize_t> {
    flags2(fd, flags)?;
    read_vector(fd, list, count, at2(offset)?)
}

pub(crate) fn write_vector2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Outcome<ssize_t> {
    flags2(fd, flags)?;
    let open = ours(fd)?;
    let bytes = gathered(vectors(list, count)?)?;
    let written = match flags & libc::RWF_APPEND {
        0 => write_from(&open, at2(offset)?, &bytes)?,
        _ => write_how(&open, at2(offset)?, &bytes, true)?,
    };
    if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
        sync_fd(fd)?;
    }
    Ok(written as ssize_t)
}

/// The next data, or the next hole, of an open file.
fn seek_data(open: &Open, offset: off_t, whence: c_int) -> Outcome<off_t> {
    let Ok(offset) = u64::try_from(offset) else { return fail(libc::ENXIO) };
    let to = if whence == libc::SEEK_DATA { SeekTo::Data } else { SeekTo::Hole };
    let file = open.data()?;
    match engine::run(|_| file.seek(offset, to))? {
        Some(found) => Ok(found as off_t),
        None => fail(libc::ENXIO),
    }
}

pub(crate) fn seek(fd: c_int, offset: off_t, whence: c_int) -> Outcome<off_t> {
    let open = ours(fd)?;
    let size = || -> Outcome<i64> { Ok(open.attr()?.size as i64) };
    if open.kind() == Kind::Path {
        return fail(libc::EBADF);
    }
    let current = open.offset.load(Ordering::Acquire) as i64;
    let base = match whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => current,
        _ if open.kind() == Kind::Directory => return fail(libc::EINVAL),
        libc::SEEK_END => size()?,
        libc::SEEK_DATA | libc::SEEK_HOLE => {
            let found = seek_data(&open, offset, whence)?;
            open.offset.store(found as u64, Ordering::Release);
            return Ok(found);
        }
        _ => return fail(libc::EINVAL),
    };
    let Some(next) = base.checked_add(offset) else { return fail(libc::EOVERFLOW) };
    if next < 0 {
        return fail(libc::EINVAL);
    }
    if whence != libc::SEEK_CUR || offset != 0 {
        open.offset.store(next as u64, Ordering::Release);
    }
    Ok(next)
}

pub(crate) fn sync_fd(fd: c_int) -> Outcome<c_int> {
    let open = ours(fd)?;
    if open.kind() == Kind::Directory {
        engine::run(|engine| engine.client().sync_all())?;
        return Ok(0);
    }
    let file = open.data()?;
    engine::run(|_| file.sync())?;
    Ok(0)
}

/// Syncs the whole file: the service syncs no ranges.
pub(crate) fn sync_range(fd: c_int, offset: off_t, len: off_t, flags: libc::c_uint) -> Outcome<c_int> {
    const KNOWN: libc::c_uint =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let open = ours(fd)?;
    if open.kind() == Kind::Path {
        return fail(libc::EBADF);
    }
    if flags & !KNOWN != 0 || offset < 0 || len < 0 || offset.checked_add(len).is_none() {
        return fail(libc::EINVAL);
    }
    sync_fd(fd)
}

/// Does not read ahead; rejects files on which the kernel would also reject it.
pub(crate) fn read_ahead(fd: c_int) -> Outcome<ssize_t> {
    let open = ours(fd)?;
    match open.kind() {
        Kind::Path => fail(libc::EBADF),
        _ if open.access as c_int & libc::O_ACCMODE == libc::O_WRONLY => fail(libc::EBADF),
        Kind::Directory => fail(libc::EINVAL),
        Kind::File => Ok(0),
    }
}

fn length(size: off_t) -> Outcome<u64> {
    Ok(u64::try_from(size).map_err(|_| Errno(libc::EINVAL))?)
}

pub(crate) fn truncate_open(fd: c_int, size: off_t) -> Outcome<c_int> {
    let open = ours(fd)?;
    if open.kind() == Kind::Path {
        return fail(libc::EBADF);
    }
    if open.access as i32 & libc::O_ACCMODE == libc::O_RDONLY {
        return fail(libc::EINVAL);
    }
    let (file, size) = (open.for_writing()?, length(size)?);
    file_size::may_grow(|| Ok(open.attr()?.size), size)?;
    engine::run(|_| file.truncate(size))?;
    Ok(0)
}

pub(crate) fn truncate_path(path: *const c_char, size: off_t) -> Outcome<c_int> {
    let place = locate(libc::AT_FDCWD, path)?;
    let attr = place.find(true)?;
    if attr.kind == forebay_model::FileKind::Directory {
        return fail(libc::EISDIR);
    }
    let size = length(size)?;
    file_size::may_grow(|| Ok(attr.size), size)?;
    engine::run(|engine| engine.by_id().truncate(attr.id, size))?;
    Ok(0)
}

/// Sets the size and zeroes ranges; the service reserves space only when data is written.
pub(crate) fn allocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> Outcome<c_int> {
    let open = ours(fd)?;
    let file = open.for_writing()?;
    if offset < 0 || len <= 0 {
        return fail(libc::EINVAL);
    }
    let Some(end) = offset.checked_add(len) else { return fail(libc::EFBIG) };
    let (start, len, end) = (offset as u64, len as u64, end as u64);
    let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => {}
        hole if hole == libc::FALLOC_FL_ZERO_RANGE || (hole == libc::FALLOC_FL_PUNCH_HOLE && keep) => {
            engine::run(|_| file.punch(start, len))?;
        }
        _ => return fail(libc::EOPNOTSUPP),
    }
    if !keep {
        file_size::may_grow(|| Ok(open.attr()?.size), end)?;
        engine::run(|_| file.extend(end))?;
    }
    Ok(0)
}

/// `posix_fallocate` returns its error.
fn posix_allocate(fd: c_int, offset: off_t, len: off_t) -> Outcome<c_int> {
    match allocate(fd, 0, offset, len) {
        Err(Stop::Errno(errno)) => Ok(errno.0),
        other => other,
    }
}

/// Checks the advice and ignores it. `posix_fadvise` returns its error.
pub(crate) fn advise(fd: c_int, len: off_t, advice: c_int) -> Outcome<c_int> {
    ours(fd)?;
    let known = (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice);
    Ok(if known && len >= 0 { 0 } else { libc::EINVAL })
}

/// Syncs all files of this client at the service too, if it is connected.
fn sync_all() -> Outcome<()> {
    if engine::started().is_some() {
        engine::run(|engine| engine.client().sync_all())?;
    }
    Err(Stop::Foreign)
}

hook::hooks! {
    fn [read, __read](fd: c_int, into: *mut c_void, len: size_t) -> ssize_t => read_fd(fd, into, len, At::Current);
    fn [__read_chk](fd: c_int, into: *mut c_void, len: size_t, _room: size_t) -> ssize_t =>
        read_fd(fd, into, len, At::Current);
    fn [write, __write](fd: c_int, from: *const c_void, len: size_t) -> ssize_t => write_fd(fd, from, len, At::Current);
    fn [pread, pread64, __pread64](fd: c_int, into: *mut c_void, len: size_t, offset: off_t) -> ssize_t =>
        read_fd(fd, into, len, At::offset(offset)?);
    fn [__pread_chk, __pread64_chk](fd: c_int, into: *mut c_void, len: size_t, offset: off_t, _room: size_t)
        -> ssize_t => read_fd(fd, into, len, At::offset(offset)?);
    fn [pwrite, pwrite64, __pwrite64](fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t =>
        write_fd(fd, from, len, At::offset(offset)?);
    fn [readv](fd: c_int, list: *const iovec, count: c_int) -> ssize_t => read_vector(fd, list, count, At::Current);
    fn [writev](fd: c_int, list: *const iovec, count: c_int) -> ssize_t => write_vector(fd, list, count, At::Current);
    fn [preadv, preadv64](fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t =>
        read_vector(fd, list, count, At::offset(offset)?);
    fn [pwritev, pwritev64](fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t =>
        write_vector(fd, list, count, At::offset(offset)?);
    fn [preadv2, preadv64v2](fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =>
        read_vector2(fd, list, count, offset, flags);
    fn [pwritev2, pwritev64v2](fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =>
        write_vector2(fd, list, count, offset, flags);
    fn [lseek, lseek64, llseek, __lseek](fd: c_int, offset: off_t, whence: c_int) -> off_t => seek(fd, offset, whence);
    fn [fsync, fdatasync, syncfs](fd: c_int) -> c_int => sync_fd(fd);
    fn [sync_file_range](fd: c_int, offset: off_t, len: off_t, flags: libc::c_uint) -> c_int =>
        sync_range(fd, offset, len, flags);
    fn [ftruncate, ftruncate64](fd: c_int, size: off_t) -> c_int => truncate_open(fd, size);
    fn [truncate, truncate64](path: *const c_char, size: off_t) -> c_int, at path => truncate_path(path, size);
    fn [fallocate, fallocate64](fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int =>
        allocate(fd, mode, offset, len);
    fn [posix_fallocate, posix_fallocate64](fd: c_int, offset: off_t, len: off_t) -> c_int =>
        posix_allocate(fd, offset, len);
    fn [posix_fadvise, posix_fadvise64](fd: c_int, _offset: off_t, len: off_t, advice: c_int) -> c_int =>
        advise(fd, len, advice);
    fn [readahead](fd: c_int, _offset: off_t, _len: size_t) -> ssize_t => read_ahead(fd);
    fn [sync]() -> () => sync_all();
}
