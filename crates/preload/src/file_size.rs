//! The maximum size of files that this process may write (`RLIMIT_FSIZE`).

use crate::errno::{Outcome, fail};
use crate::hook;
use crate::kernel::try_system_call;
use libc::{c_int, c_long, pid_t, rlimit};
use std::sync::atomic::{AtomicU64, Ordering};

const NONE: u64 = u64::MAX;
const UNKNOWN: u64 = u64::MAX - 1;

static LIMIT: AtomicU64 = AtomicU64::new(UNKNOWN);

/// The limit, if there is one.
pub(crate) fn limit() -> Option<u64> {
    let mut limit = LIMIT.load(Ordering::Relaxed);
    if limit == UNKNOWN {
        limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(NONE);
        LIMIT.store(limit, Ordering::Relaxed);
    }
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
fn change(process: pid_t, resource: c_long, new: *const rlimit, old: *mut rlimit) -> Outcome<c_int> {
    let args = [process as usize, resource as usize, new as usize, old as usize, 0, 0];
    // SAFETY: the application's own call.
    let done = unsafe { try_system_call(libc::SYS_prlimit64, args) };
    LIMIT.store(UNKNOWN, Ordering::Relaxed);
    Ok(done? as c_int)
}

hook::hooks! {
    fn [setrlimit, setrlimit64](resource: libc::c_uint, new: *const rlimit) -> c_int =>
        change(0, c_long::from(resource), new, std::ptr::null_mut());
    fn [prlimit, prlimit64](process: pid_t, resource: libc::c_uint, new: *const rlimit, old: *mut rlimit) -> c_int =>
        change(process, c_long::from(resource), new, old);
}
