//! Copies between descriptors of which at least one is Forebay's, through a buffer in memory.

use crate::backing::Kind;
use crate::data::{self, At};
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::place::ours;
use crate::table::{self, Held};
use crate::{descriptors, dispatch, hook, mem, process_state};
use libc::{c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::Ordering;

const PIECE: usize = 1 << 20;

/// One side of a copy.
struct Side {
    fd: c_int,
    open: Option<Held>,
    /// Pointer to the application's offset; null if the open file's offset is used.
    place: *mut off_t,
}

impl Side {
    fn new(fd: c_int, place: *mut off_t) -> Side {
        process_state::ready();
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

    fn is_directory(&self) -> Outcome<bool> {
        match &self.open {
            Some(open) => Ok(open.kind() == Kind::Directory),
            None => Ok(kind(self.fd)? == libc::S_IFDIR),
        }
    }

    /// `sendfile` accepts only files and block devices as its source: a read from a pipe could block.
    fn must_have_offsets(&self) -> Outcome<()> {
        let fits = match &self.open {
            Some(open) => open.kind() != Kind::Directory,
            None => matches!(kind(self.fd)?, libc::S_IFREG | libc::S_IFBLK),
        };
        if fits { Ok(()) } else { fail(libc::EINVAL) }
    }

    /// Reads without advancing the offset, where that is possible.
    fn read(&self, offset: Option<u64>, into: &mut [u8]) -> Outcome<usize> {
        if let (Some(open), Some(offset)) = (&self.open, offset) {
            return data::read_into(open, At::Offset(offset), into);
        }
        let (number, offset) = match offset {
            Some(offset) => (libc::SYS_pread64, offset as usize),
            None => (libc::SYS_read, 0),
        };
        let args = [self.fd as usize, into.as_mut_ptr() as usize, into.len(), offset, 0, 0];
        // SAFETY: the buffer is the library's.
        Ok(unsafe { try_system_call(number, args) }? as usize)
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
        // SAFETY: the buffer is the library's.
        Ok(unsafe { try_system_call(number, args) }? as usize)
    }

    /// Advances the offset by `count` bytes.
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
        // A source without offsets has no more bytes now.
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
    if from.open.is_none() && to.open.is_none() {
        return Err(Stop::Foreign);
    }
    for side in [&from, &to] {
        if side.is_directory()? {
            return fail(libc::EISDIR);
        }
        if !side.place.is_null() && mem::take(side.place)? < 0 {
            return fail(libc::EOVERFLOW);
        }
    }
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
    let (from, to) = (Side::new(from, at), Side::new(to, std::ptr::null_mut()));
    if from.open.is_none() && to.open.is_none() {
        return Err(Stop::Foreign);
    }
    if !at.is_null() {
        // Reported before any data is moved.
        mem::writable(at.cast(), size_of::<off_t>())?;
    }
    from.must_have_offsets()?;
    if to.open.is_none() && is_pipe(to.fd)? {
        return into_pipe(&from, to.fd, len, 0);
    }
    sides(&from, &to, len)
}

const SPLICE_FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// New memory, which a pipe may keep after it is unmapped here.
struct Pages {
    start: *mut c_void,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Outcome<Pages> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) };
        Ok(Pages { start: start?, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, and referenced by this value alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the mapping.
        let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
    }
}

/// Moves as many bytes as fit into a pipe. Waits only if the pipe is full, unless the flags or the pipe are
/// non-blocking.
fn into_pipe(from: &Side, pipe: c_int, len: usize, flags: c_uint) -> Outcome<ssize_t> {
    let control = |command: c_int| {
        // SAFETY: the call only reads properties of a descriptor.
        unsafe { try_system_call(libc::SYS_fcntl, [pipe as usize, command as usize, 0, 0, 0, 0]) }
    };
    let len = len.min(control(libc::F_GETPIPE_SZ)? as usize);
    if len == 0 {
        return Ok(0);
    }
    let at = from.offset()?;
    let mut pages = Pages::new(len)?;
    let count = from.read(at, pages.bytes())?;
    if count == 0 {
        return Ok(0);
    }
    let mut how = flags & libc::SPLICE_F_NONBLOCK;
    if control(libc::F_GETFL)? as c_int & libc::O_NONBLOCK != 0 {
        how |= libc::SPLICE_F_NONBLOCK;
    }
    let part = iovec { iov_base: pages.start, iov_len: count };
    let args = [pipe as usize, &raw const part as usize, 1, how as usize, 0, 0];
    // SAFETY: memory of the library, which is not written any more.
    let moved = dispatch::waiting(|| unsafe { try_system_call(libc::SYS_vmsplice, args) })? as usize;
    from.advance(at, moved)?;
    Ok(moved as ssize_t)
}

/// Moves the bytes that are in a pipe. Waits only if it is empty, unless the flags say non-blocking.
fn out_of_pipe(pipe: &Side, to: &Side, len: usize, flags: c_uint) -> Outcome<ssize_t> {
    if flags & libc::SPLICE_F_NONBLOCK != 0 {
        let mut asked = libc::pollfd { fd: pipe.fd, events: libc::POLLIN, revents: 0 };
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let args = [&raw mut asked as usize, 1, &raw const now as usize, 0, 0, 0];
        // SAFETY: polls one descriptor; the result goes to a local variable.
        if unsafe { try_system_call(libc::SYS_ppoll, args) }? == 0 {
            return fail(libc::EAGAIN);
        }
    }
    let Some(open) = &to.open else { return Err(Stop::Foreign) };
    if open.access as c_int & libc::O_ACCMODE == libc::O_RDONLY {
        return fail(libc::EBADF);
    }
    move_out(pipe.fd, to, len.min(PIECE))
}

/// A pipe of the library, both ends above the application's descriptors.
struct Pipe {
    output: c_int,
    input: c_int,
}

impl Pipe {
    /// With room for `len` bytes, if the user may have that much.
    fn new(len: usize) -> Outcome<Pipe> {
        let mut ends = [0_i32; 2];
        let args = [ends.as_mut_ptr() as usize, libc::O_CLOEXEC as usize, 0, 0, 0, 0];
        // SAFETY: the kernel writes two descriptors to the stack.
        unsafe { try_system_call(libc::SYS_pipe2, args) }?;
        let [output, input] = ends.map(|fd| descriptors::hide_high(fd).unwrap_or(fd));
        let size = [input as usize, libc::F_SETPIPE_SZ as usize, len, 0, 0, 0];
        // SAFETY: changes a pipe that no other code knows. Where it stays small, less is moved at a time.
        let _ = unsafe { try_system_call(libc::SYS_fcntl, size) };
        Ok(Pipe { output, input })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        [self.output, self.input].into_iter().for_each(descriptors::close_hidden);
    }
}

/// Writes the bytes that are in a pipe, and takes out of it those that were written: a write that fails loses none. So
/// the bytes are read from a copy of the pipe first, which is what they still are unless another process reads from it
/// meanwhile.
fn move_out(pipe: c_int, to: &Side, len: usize) -> Outcome<ssize_t> {
    let copy = Pipe::new(len)?;
    let tee = [pipe as usize, copy.input as usize, len, 0, 0, 0];
    // SAFETY: moves bytes between two pipes; waits until there are some.
    let seen = dispatch::waiting(|| unsafe { try_system_call(libc::SYS_tee, tee) })? as usize;
    let mut buffer = vec![0; seen];
    let read = |from: c_int, into: &mut [u8]| {
        let args = [from as usize, into.as_mut_ptr() as usize, into.len(), 0, 0, 0];
        // SAFETY: the buffer is the library's.
        unsafe { try_system_call(libc::SYS_read, args) }
    };
    let mut count = 0;
    while count < seen {
        match read(copy.output, &mut buffer[count..])? {
            0 => break,
            more => count += more as usize,
        }
    }
    if count == 0 {
        return Ok(0);
    }
    let target = to.offset()?;
    let written = to.write(target, &buffer[..count])?;
    if !to.place.is_null() {
        to.advance(target, written)?;
    }
    let mut taken = 0;
    while taken < written {
        // They were there, and stay there unless another process reads them: then this waits for others, as its own
        // read would.
        taken += match dispatch::waiting(|| read(pipe, &mut buffer[taken..written])) {
            Err(Errno(libc::EINTR)) => 0,
            Err(_) | Ok(0) => break,
            Ok(more) => more as usize,
        };
    }
    Ok(written as ssize_t)
}

/// One side must be a pipe, as on Linux.
pub(crate) fn splice_between(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> Outcome<ssize_t> {
    let (from, to) = (Side::new(from, from_at), Side::new(to, to_at));
    let pipe = match (&from.open, &to.open) {
        (None, None) => return Err(Stop::Foreign),
        (Some(_), Some(_)) => return fail(libc::EINVAL),
        (Some(_), None) => &to,
        (None, Some(_)) => &from,
    };
    if flags & !SPLICE_FLAGS != 0 || !is_pipe(pipe.fd)? {
        return fail(libc::EINVAL);
    }
    if !pipe.place.is_null() {
        return fail(libc::ESPIPE);
    }
    if to.open.as_ref().is_some_and(|open| open.flags.load(Ordering::Relaxed) & libc::O_APPEND as u32 != 0) {
        return fail(libc::EINVAL);
    }
    match from.open {
        Some(_) => into_pipe(&from, to.fd, len, flags),
        None => out_of_pipe(&from, &to, len, flags),
    }
}

fn is_pipe(fd: c_int) -> Outcome<bool> {
    Ok(kind(fd)? == libc::S_IFIFO)
}

/// The file type of a descriptor in the kernel.
fn kind(fd: c_int) -> Outcome<u32> {
    if fd < 0 {
        return fail(libc::EBADF);
    }
    // SAFETY: borrowed for one call; a number that is no descriptor gives an error.
    let stat = rustix::fs::fstat(unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) })?;
    Ok(stat.st_mode & libc::S_IFMT)
}

/// `vmsplice` works on pipes only.
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
    fn [splice](from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint)
        -> ssize_t => splice_between(from, from_at, to, to_at, len, flags);
    fn [vmsplice](fd: c_int, _list: *const iovec, _count: size_t, _flags: c_uint) -> ssize_t =>
        splice_memory(fd);
    fn [tee](from: c_int, to: c_int, _len: size_t, _flags: c_uint) -> ssize_t => between_pipes(from, to);
}
