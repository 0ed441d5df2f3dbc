//! The maximum size of files that this process may write (`RLIMIT_FSIZE`).
//!
//! **Invariant**: a limit that this process sets counts for its next write. One that another process sets for it
//! (`prlimit`) counts after one tick of the kernel's coarse clock, 10 ms at most: asking the kernel before every write
//! would cost more than many a write.

use crate::errno::{Outcome, fail};
use crate::hook;
use crate::kernel::try_system_call;
use libc::{c_int, c_long, pid_t, rlimit};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};

const NONE: u64 = u64::MAX;
/// No tick of the clock.
const NEVER: u64 = u64::MAX;

static LIMIT: AtomicU64 = AtomicU64::new(NONE);
/// When the limit was read.
static READ_AT: AtomicU64 = AtomicU64::new(NEVER);

/// The limit, if there is one.
pub(crate) fn limit() -> Option<u64> {
    // Read from memory that the kernel shares, without a system call.
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    if READ_AT.load(Ordering::Acquire) != now {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(NONE);
        LIMIT.store(limit, Ordering::Relaxed);
        READ_AT.store(now, Ordering::Release);
    }
    let limit = LIMIT.load(Ordering::Relaxed);
    (limit != NONE).then_some(limit)
}

/// How many of `len` bytes may be written at an offset. At the limit it fails, and the thread gets `SIGXFSZ`.
pub(crate) fn allowed_len(limit: u64, offset: u64, len: usize) -> Outcome<usize> {
    match limit.saturating_sub(offset) {
        0 => exceeded(),
        left => Ok(len.min(usize::try_from(left).unwrap_or(usize::MAX))),
    }
}

/// Checks whether a file of `size` bytes may grow to `new` bytes.
pub(crate) fn may_grow(size: impl FnOnce() -> Outcome<u64>, new: u64) -> Outcome<()> {
    match limit() {
        Some(limit) if new > limit && new > size()? => exceeded(),
        _ => Ok(()),
    }
}

fn exceeded<T>() -> Outcome<T> {
    let (process, thread) = (rustix::process::getpid(), rustix::thread::gettid());
    let ids = [process, thread].map(|id| id.as_raw_nonzero().get() as usize);
    // SAFETY: a signal to this thread, as the kernel would send it.
    let _ = unsafe { try_system_call(libc::SYS_tgkill, [ids[0], ids[1], libc::SIGXFSZ as usize, 0, 0, 0]) };
    fail(libc::EFBIG)
}

/// Sets a limit and discards the cached one.
pub(crate) fn change(
    process: pid_t,
    resource: c_long,
    new: *const rlimit,
    old: *mut rlimit,
) -> Outcome<c_int> {
    let args = [process as usize, resource as usize, new as usize, old as usize, 0, 0];
    // SAFETY: the application's own call.
    let done = unsafe { try_system_call(libc::SYS_prlimit64, args) };
    READ_AT.store(NEVER, Ordering::Release);
    Ok(done? as c_int)
}

hook::hooks! {
    fn [setrlimit, setrlimit64](resource: libc::c_uint, new: *const rlimit) -> c_int =>
        change(0, c_long::from(resource), new, std::ptr::null_mut());
    fn [prlimit, prlimit64](process: pid_t, resource: libc::c_uint, new: *const rlimit, old: *mut rlimit) -> c_int =>
        change(process, c_long::from(resource), new, old);
}
