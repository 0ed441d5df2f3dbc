//! Copying between descriptors, where at least one is ours: by way of memory.

use crate::data::{self, At};
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::ask;
use crate::place::ours;
use crate::table::{self, Held};
use crate::{hook, life, mem};
use libc::{c_int, c_uint, off_t, size_t, ssize_t};
use std::sync::atomic::Ordering;

const PIECE: usize = 1 << 20;

/// One side of a copy.
struct Side {
    fd: c_int,
    open: Option<Held>,
    /// Where the application keeps the offset, if not in the open file.
    place: *mut off_t,
}

impl Side {
    fn new(fd: c_int, place: *mut off_t) -> Side {
        life::ready();
        Side { fd, open: table::get(fd), place }
    }

    fn offset(&self) -> Outcome<Option<u64>> {
        match (self.place.is_null(), &self.open) {
            (false, _) => {
                let offset = mem::take(self.place)?;
                Ok(Some(u64::try_from(offset).map_err(|_| Errno(libc::EINVAL))?))
            }
            (true, Some(open)) => Ok(Some(open.offset.load(Ordering::Acquire))),
            (true, None) => Ok(None),
        }
    }

    /// Reads without moving, where that is possible.
    fn read(&self, offset: Option<u64>, into: &mut [u8]) -> Outcome<usize> {
        if let (Some(open), Some(offset)) = (&self.open, offset) {
            return data::read_into(open, At::Offset(offset), into);
        }
        let (number, offset) = match offset {
            Some(offset) => (libc::SYS_pread64, offset as usize),
            None => (libc::SYS_read, 0),
        };
        let args = [self.fd as usize, into.as_mut_ptr() as usize, into.len(), offset, 0, 0];
        // SAFETY: the buffer is ours.
        Ok(unsafe { ask(number, args) }? as usize)
    }

    fn write(&self, offset: Option<u64>, from: &[u8]) -> Outcome<usize> {
        if let (Some(open), Some(offset)) = (&self.open, offset) {
            let at = if self.place.is_null() { At::Current } else { At::Offset(offset) };
            return data::write_from(open, at, from);
        }
        let (number, offset) = match offset {
            Some(offset) => (libc::SYS_pwrite64, offset as usize),
            None => (libc::SYS_write, 0),
        };
        let args = [self.fd as usize, from.as_ptr() as usize, from.len(), offset, 0, 0];
        // SAFETY: the buffer is ours.
        Ok(unsafe { ask(number, args) }? as usize)
    }

    /// So much has been read or written.
    fn advance(&self, offset: Option<u64>, count: usize) -> Outcome<()> {
        let Some(next) = offset.map(|offset| offset + count as u64) else { return Ok(()) };
        match &self.open {
            _ if !self.place.is_null() => mem::give(self.place, next as off_t),
            Some(open) => {
                open.offset.store(next, Ordering::Release);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

fn copy(from: &Side, to: &Side, len: usize) -> Outcome<ssize_t> {
    let mut buffer = vec![0; len.min(PIECE)];
    let mut done = 0;
    while done < len {
        let (at, target) = (from.offset()?, to.offset()?);
        let want = buffer.len().min(len - done);
        let read = match from.read(at, &mut buffer[..want]) {
            Err(Stop::Errno(_)) if done > 0 => break,
            read => read?,
        };
        if read == 0 {
            break;
        }
        let written = match to.write(target, &buffer[..read]) {
            Err(Stop::Errno(_)) if done > 0 => break,
            written => written?,
        };
        from.advance(at, written)?;
        if !to.place.is_null() {
            to.advance(target, written)?;
        }
        done += written;
        // Whoever waits for a pipe has had what there was.
        if written < read || (at.is_none() && read < want) {
            break;
        }
    }
    Ok(done as ssize_t)
}

fn sides(from: &Side, to: &Side, len: usize) -> Outcome<ssize_t> {
    if from.open.is_none() && to.open.is_none() {
        return Err(Stop::Foreign);
    }
    if to.open.as_ref().is_some_and(|open| open.access as c_int & libc::O_ACCMODE == libc::O_RDONLY) {
        return fail(libc::EBADF);
    }
    copy(from, to, len)
}

pub(crate) fn range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> Outcome<ssize_t> {
    let (from, to) = (Side::new(from, from_at), Side::new(to, to_at));
    if flags != 0 && (from.open.is_some() || to.open.is_some()) {
        return fail(libc::EINVAL);
    }
    if let (Some(one), Some(two)) = (&from.open, &to.open)
        && one.id() == two.id()
        && let (Some(a), Some(b)) = (from.offset()?, to.offset()?)
        && a.abs_diff(b) < len as u64
    {
        return fail(libc::EINVAL);
    }
    if to.open.as_ref().is_some_and(|open| open.flags.load(Ordering::Relaxed) & libc::O_APPEND as u32 != 0) {
        return fail(libc::EBADF);
    }
    sides(&from, &to, len)
}

pub(crate) fn send(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> Outcome<ssize_t> {
    sides(&Side::new(from, at), &Side::new(to, std::ptr::null_mut()), len)
}

/// One side has to be a pipe, as ever.
pub(crate) fn splice_between(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
) -> Outcome<ssize_t> {
    let (from, to) = (Side::new(from, from_at), Side::new(to, to_at));
    if from.open.is_some() && to.open.is_some() {
        return fail(libc::EINVAL);
    }
    for side in [&from, &to] {
        if (side.open.is_none() && from.open.is_some() != to.open.is_some()) && !is_pipe(side.fd)? {
            return fail(libc::EINVAL);
        }
    }
    sides(&from, &to, len)
}

fn is_pipe(fd: c_int) -> Outcome<bool> {
    // SAFETY: borrowed for one question; a number that is no descriptor answers with an error.
    let stat = rustix::fs::fstat(unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) })?;
    Ok(stat.st_mode & libc::S_IFMT == libc::S_IFIFO)
}

/// Memory goes into pipes only.
pub(crate) fn splice_memory(fd: c_int) -> Outcome<ssize_t> {
    ours(fd)?;
    fail(libc::EBADF)
}

pub(crate) fn between_pipes(from: c_int, to: c_int) -> Outcome<ssize_t> {
    ours(from).or_else(|_| ours(to))?;
    fail(libc::EINVAL)
}

hook::hooks! {
    fn [sendfile, sendfile64](to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t =>
        send(to, from, at, len);
    fn [copy_file_range](from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint)
        -> ssize_t => range(from, from_at, to, to_at, len, flags);
    fn [splice](from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, _flags: c_uint)
        -> ssize_t => splice_between(from, from_at, to, to_at, len);
    fn [vmsplice](fd: c_int, _list: *const libc::iovec, _count: size_t, _flags: c_uint) -> ssize_t =>
        splice_memory(fd);
    fn [tee](from: c_int, to: c_int, _len: size_t, _flags: c_uint) -> ssize_t => between_pipes(from, to);
}
