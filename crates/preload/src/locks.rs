//! File locks between the processes of one user on one machine.
//!
//! The service has no locks. A locked file gets an empty proxy file (*twin*) in the user's private directory, and the
//! kernel's locks on the twin represent locks on the file. `fcntl` locks belong to the process, as POSIX requires.
//! `flock` locks belong to the open file: each is a byte of one common twin, locked on a descriptor that is created
//! before a process forks and is inherited together with the open file, through `fork` and `exec`.

use crate::errno::{Errno, Outcome, fail};
use crate::kernel::try_system_call;
use crate::lock::Lock;
use crate::open::Open;
use crate::place::ours;
use crate::table::Held;
use crate::{descriptors, hook, mem, private, process_state, table};
use forebay_model::FileId;
use libc::{c_int, flock as Range, off_t};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::FdFlags;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Open twins: one per file for `fcntl` locks, one per open file for locks that belong to the open file.
static TWINS: Lock<Vec<Twin>> = Lock::new(Vec::new());

struct Twin {
    file: FileId,
    /// Address of the open file's header; 0 for locks of the process.
    owner: usize,
    kind: Kind,
    fd: RawFd,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ranges,
    Whole,
}

fn twin_path(name: &str) -> Outcome<PathBuf> {
    let dir = private::dir()?.join(".forebay-locks");
    match rustix::fs::mkdirat(CWD, &dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(dir.join(name)),
        Err(error) => Err(error.into()),
    }
}

/// Locks on whole files share one twin, so that they leave no files over.
const WHOLE: &str = "whole";

fn twin(open: &Open, owner: usize, kind: Kind) -> Outcome<RawFd> {
    let file = open.id();
    let known = TWINS.with(|twins| {
        let twin = twins.iter().find(|twin| twin.file == file && twin.owner == owner && twin.kind == kind);
        twin.map(|twin| twin.fd)
    });
    if let Some(fd) = known {
        return Ok(fd);
    }
    let name = if kind == Kind::Whole { WHOLE.to_owned() } else { file.to_string() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(CWD, twin_path(&name)?, flags, Mode::RUSR | Mode::WUSR)?;
    let fd = descriptors::move_high(fd.into_raw_fd(), libc::F_DUPFD_CLOEXEC)?;
    table::keep(fd);
    if kind == Kind::Whole {
        open.lock.store(fd, Ordering::Release);
    }
    IN_USE.store(true, Ordering::Relaxed);
    TWINS.with(|twins| twins.push(Twin { file, owner, kind, fd }));
    Ok(fd)
}

/// Before a fork: makes the open files share their locks with the child.
pub(crate) fn prepare_for_fork() {
    keep_locks(|_| true);
}

/// Before an `exec`: keeps the locks that are held.
pub(crate) fn prepare_for_exec() {
    if IN_USE.load(Ordering::Relaxed) {
        keep_locks(|open| open.lock.load(Ordering::Acquire) > 0);
    }
}

/// Makes the lock descriptors of inheritable open files inheritable too.
fn keep_locks(concerns: impl Fn(&Open) -> bool) {
    if !process_state::is_set_up() || process_state::is_borrowed() {
        return;
    }
    table::each(0, RawFd::MAX, |fd| {
        let Some(open) = table::get(fd).filter(|open| concerns(open)) else { return };
        // SAFETY: borrowed for one call; a descriptor that is closed meanwhile gives an error.
        let stays = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) });
        let is_inherited = stays.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC));
        if is_inherited && let Ok(lock) = twin(&open, open.address(), Kind::Whole) {
            // SAFETY: a descriptor of the library, open as long as the open file.
            let _ = rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(lock) }, FdFlags::empty());
        }
    });
}

/// Adopts the lock descriptor of an inherited open file, if it was inherited too.
pub(crate) fn inherit(open: &Held) {
    let fd = open.lock.load(Ordering::Acquire);
    if fd <= 0 {
        return;
    }
    // SAFETY: borrowed for one call; a number that is no descriptor gives an error, and one of another file is
    // recognised below.
    let found = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
    let place = twin_path(WHOLE).ok().and_then(|path| rustix::fs::stat(path).ok());
    match (found, place) {
        (Ok(found), Some(place)) if (found.st_dev, found.st_ino) == (place.st_dev, place.st_ino) => {}
        _ => return,
    }
    table::keep(fd);
    IN_USE.store(true, Ordering::Relaxed);
    let twin = Twin { file: open.id(), owner: open.address(), kind: Kind::Whole, fd };
    TWINS.with(|twins| twins.push(twin));
}

fn drop_twins(gone: impl Fn(&Twin) -> bool) {
    let closed = TWINS.with(|twins| {
        let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(twins).into_iter().partition(gone);
        *twins = left;
        gone
    });
    for twin in closed {
        drop(table::remove(twin.fd));
        // SAFETY: the twin was opened by this module, and no other code knows its descriptor.
        unsafe { rustix::io::close(twin.fd) };
    }
}

/// When any descriptor of a file is closed, the process loses its locks on the file.
pub(crate) fn closing(file: FileId) {
    if IN_USE.load(Ordering::Relaxed) {
        drop_twins(|twin| twin.file == file && twin.owner == 0);
    }
}

/// Drops the locks of an open file that this process has closed.
pub(crate) fn gone(owner: usize) {
    if IN_USE.load(Ordering::Relaxed) {
        drop_twins(|twin| twin.owner == owner);
    }
}

static IN_USE: AtomicBool = AtomicBool::new(false);

/// Range locks, by `fcntl`.
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
    let of_the_open = matches!(command, libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW);
    let fd = twin(open, if of_the_open { open.address() } else { 0 }, Kind::Ranges)?;
    // SAFETY: the kernel reads, and for `F_GETLK` writes, the structure on the stack.
    unsafe {
        try_system_call(libc::SYS_fcntl, [fd as usize, command as usize, &raw mut wanted as usize, 0, 0, 0])
    }?;
    if !sets {
        let free = c_int::from(wanted.l_type) == libc::F_UNLCK;
        // If there is no conflicting lock, the other fields stay unchanged.
        mem::give(lock, if free { Range { l_type: wanted.l_type, ..mem::take(lock)? } } else { wanted })?;
    }
    Ok(0)
}

pub(crate) fn whole(fd: c_int, operation: c_int) -> Outcome<c_int> {
    let open = ours(fd)?;
    if open.kind() == crate::backing::Kind::Path {
        return fail(libc::EBADF);
    }
    let kind = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => libc::F_RDLCK,
        libc::LOCK_EX => libc::F_WRLCK,
        libc::LOCK_UN => libc::F_UNLCK,
        _ => return fail(libc::EINVAL),
    };
    let waits = operation & libc::LOCK_NB == 0;
    let command = if waits { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    let twin = twin(&open, open.address(), Kind::Whole)?;
    // SAFETY: a structure of integers.
    let mut lock: Range = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_start = (open.id().0 % off_t::MAX as u64) as off_t;
    lock.l_len = 1;
    // SAFETY: the kernel reads the structure on the stack.
    match unsafe {
        try_system_call(libc::SYS_fcntl, [twin as usize, command as usize, &raw const lock as usize, 0, 0, 0])
    } {
        Ok(_) => Ok(0),
        Err(Errno(libc::EACCES | libc::EAGAIN)) => fail(libc::EWOULDBLOCK),
        Err(errno) => Err(errno.into()),
    }
}

/// `lockf` is `fcntl` relative to the current offset.
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
