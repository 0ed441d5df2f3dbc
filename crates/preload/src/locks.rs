//! Locks, between the processes of one user on one machine.
//!
//! The service knows no locks. A file that is locked gets an empty twin in the user's private directory, and the
//! kernel's locks on the twin stand for it. `fcntl` locks belong to the process, as they should; `flock` locks belong
//! to the open file in this process and its forked children, but are not kept across `exec`.

use crate::errno::{Errno, Outcome, fail};
use crate::kernel::ask;
use crate::lock::Lock;
use crate::open::Open;
use crate::place::ours;
use crate::{hook, mem, private, table};
use forebay_model::FileId;
use libc::{c_int, flock as Range, off_t};
use rustix::fd::{IntoRawFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags};
use std::sync::atomic::Ordering;

/// Twins that are open: of a file for `fcntl`, of one open of it for `flock`.
static TWINS: Lock<Vec<Twin>> = Lock::new(Vec::new());

struct Twin {
    file: FileId,
    /// The open file's header, for `flock`; 0 for all of the process.
    owner: usize,
    fd: RawFd,
}

fn twin(file: FileId, owner: usize) -> Outcome<RawFd> {
    let known = TWINS.with(|twins| {
        let twin = twins.iter().find(|twin| twin.file == file && twin.owner == owner);
        twin.map(|twin| twin.fd)
    });
    if let Some(fd) = known {
        return Ok(fd);
    }
    let dir = private::dir()?.join(".forebay-locks");
    match rustix::fs::mkdirat(CWD, &dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(CWD, dir.join(file.to_string()), flags, Mode::RUSR | Mode::WUSR)?;
    let fd = crate::descriptors::lift(fd.into_raw_fd())?;
    TWINS.with(|twins| twins.push(Twin { file, owner, fd }));
    Ok(fd)
}

fn drop_twins(gone: impl Fn(&Twin) -> bool) {
    let closed = TWINS.with(|twins| {
        let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(twins).into_iter().partition(gone);
        *twins = left;
        gone
    });
    for twin in closed {
        drop(table::remove(twin.fd));
        // SAFETY: the twin was opened here, and nobody else knows its descriptor.
        unsafe { rustix::io::close(twin.fd) };
    }
}

/// A descriptor of a file is closed: with any of them go the process's locks on it.
pub(crate) fn closing(file: FileId) {
    if IN_USE.load(Ordering::Relaxed) {
        drop_twins(|twin| twin.file == file && twin.owner == 0);
    }
}

/// An open file is gone from this process.
pub(crate) fn gone(owner: usize) {
    if IN_USE.load(Ordering::Relaxed) {
        drop_twins(|twin| twin.owner == owner);
    }
}

static IN_USE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Locks of ranges, by `fcntl`.
pub(crate) fn range(open: &Open, command: c_int, lock: *mut Range) -> Outcome<c_int> {
    let mut wanted = mem::take(lock)?;
    let kind = c_int::from(wanted.l_type);
    let access = open.access as c_int & libc::O_ACCMODE;
    let sets = !matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    let refused = (kind == libc::F_RDLCK && access == libc::O_WRONLY)
        || (kind == libc::F_WRLCK && access == libc::O_RDONLY);
    if sets && refused {
        return fail(libc::EBADF);
    }
    let base: off_t = match c_int::from(wanted.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => open.offset.load(Ordering::Acquire) as off_t,
        libc::SEEK_END => open.attr()?.size as off_t,
        _ => return fail(libc::EINVAL),
    };
    wanted.l_start = base.checked_add(wanted.l_start).ok_or(Errno(libc::EOVERFLOW))?;
    wanted.l_whence = libc::SEEK_SET as i16;
    IN_USE.store(true, Ordering::Relaxed);
    let of_the_open = matches!(command, libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW);
    let fd = twin(open.id(), if of_the_open { open.address() } else { 0 })?;
    // SAFETY: the kernel reads, and for a question writes, the structure on our stack.
    unsafe { ask(libc::SYS_fcntl, [fd as usize, command as usize, &raw mut wanted as usize, 0, 0, 0]) }?;
    if !sets {
        mem::give(lock, wanted)?;
    }
    Ok(0)
}

fn whole(fd: c_int, operation: c_int) -> Outcome<c_int> {
    let open = ours(fd)?;
    IN_USE.store(true, Ordering::Relaxed);
    let fd = twin(open.id(), open.address())?;
    // SAFETY: takes no memory.
    unsafe { ask(libc::SYS_flock, [fd as usize, operation as usize, 0, 0, 0, 0]) }?;
    Ok(0)
}

/// `lockf` is `fcntl` from the current offset on.
fn section(fd: c_int, command: c_int, len: off_t) -> Outcome<c_int> {
    let open = ours(fd)?;
    // SAFETY: a structure of integers.
    let mut lock: Range = unsafe { std::mem::zeroed() };
    lock.l_whence = libc::SEEK_CUR as i16;
    lock.l_len = len;
    lock.l_type = libc::F_WRLCK as i16;
    match command {
        libc::F_LOCK => range(&open, libc::F_SETLKW, &raw mut lock),
        libc::F_TLOCK => range(&open, libc::F_SETLK, &raw mut lock),
        libc::F_ULOCK => {
            lock.l_type = libc::F_UNLCK as i16;
            range(&open, libc::F_SETLK, &raw mut lock)
        }
        libc::F_TEST => {
            range(&open, libc::F_GETLK, &raw mut lock)?;
            if c_int::from(lock.l_type) == libc::F_UNLCK { Ok(0) } else { fail(libc::EACCES) }
        }
        _ => fail(libc::EINVAL),
    }
}

hook::hooks! {
    fn [flock](fd: c_int, operation: c_int) -> c_int => whole(fd, operation);
    fn [lockf, lockf64](fd: c_int, command: c_int, len: off_t) -> c_int => section(fd, command, len);
}
