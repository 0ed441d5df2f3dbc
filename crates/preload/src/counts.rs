//! Time spent in calls to the service, summed over all processes of a run in a shared page that `FOREBAY_COUNTS` names.
//! Without that variable the library counts nothing and reads no clock.

use crate::errno::Errno;
use crate::process_state::config;
use forebay_client::{Count, PAGE};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Instant;

static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// Nanoseconds spent by this process.
static OWN: AtomicU64 = AtomicU64::new(0);

/// A call whose time is measured.
pub(crate) struct Counted(Option<Instant>);

impl Counted {
    pub(crate) fn begin() -> Counted {
        Counted(config().counts.as_ref().map(|_| Instant::now()))
    }

    pub(crate) fn end<T>(self, result: &Result<T, Errno>) {
        let Some(begin) = self.0 else { return };
        let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let own = OWN.fetch_add(nanos, Ordering::Relaxed) + nanos;
        add(Count::Nanos, nanos);
        add(Count::Calls, 1);
        if let Some(longest) = word(Count::Longest) {
            longest.fetch_max(own, Ordering::Relaxed);
        }
        if matches!(result, Err(Errno(libc::ENOSPC))) {
            add(Count::Full, 1);
        }
    }
}

/// Counts bytes that a call of the program has moved.
pub(crate) fn moved(which: Count, bytes: usize) {
    add(which, bytes as u64);
}

/// Counts this process when it first calls the service.
pub(crate) fn join() {
    if config().counts.is_none() {
        return;
    }
    OWN.store(0, Ordering::Relaxed);
    if WORDS.load(Ordering::Acquire).is_null() {
        WORDS.store(map().unwrap_or(std::ptr::null_mut()), Ordering::Release);
    }
    add(Count::Processes, 1);
}

fn map() -> Option<*mut AtomicU64> {
    let path = config().counts.as_deref()?;
    let file = rustix::fs::openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if rustix::fs::fstat(&file).ok()?.st_size < PAGE as i64 {
        return None;
    }
    // SAFETY: a new mapping at an address of the kernel's choice; only atomics are used in it, and it is never
    // unmapped.
    let page = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &file,
            0,
        )
    };
    Some(page.ok()?.cast())
}

fn word(count: Count) -> Option<&'static AtomicU64> {
    let words = WORDS.load(Ordering::Acquire);
    // SAFETY: the page is never unmapped, and every count has its word in it.
    (!words.is_null()).then(|| unsafe { &*words.add(count as usize) })
}

fn add(count: Count, more: u64) {
    if let Some(word) = word(count) {
        word.fetch_add(more, Ordering::Relaxed);
    }
}
