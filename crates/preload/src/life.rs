//! The life of this process as the library sees it: when it began, whether it was forked, what it was told.
//!
//! A page that the kernel wipes in forked children says which *generation* this is: one load tells a child, however
//! it was made, that threads, connections and locks of its parent are not its own. Children of `vfork` share the
//! page; they are known by their process id, and never change what they share.

use crate::log::Log;
use crate::{backing, path, stdio, table};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering};

static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static LATEST: AtomicU64 = AtomicU64::new(1);
static PID: AtomicI32 = AtomicI32::new(0);
static BEGINNING: AtomicU8 = AtomicU8::new(0);
static CONFIG: OnceLock<Config> = OnceLock::new();

/// What the environment says.
pub(crate) struct Config {
    pub(crate) prefix: Vec<u8>,
    pub(crate) service: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) log: Log,
    /// The page in which a run is counted.
    pub(crate) counts: Option<std::ffi::OsString>,
    /// Whether every system call is intercepted.
    pub(crate) dispatch: bool,
}

/// Which life this is: another in every forked child.
pub(crate) fn generation() -> u64 {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: the page is mapped for the life of the process.
        let now = unsafe { &*page }.load(Ordering::Relaxed);
        if now != 0 {
            return now;
        }
    }
    begin(page)
}

/// Whether the first generation has begun.
pub(crate) fn is_set_up() -> bool {
    !PAGE.load(Ordering::Acquire).is_null()
}

/// Makes sure that everything is set up.
pub(crate) fn ready() {
    generation();
}

#[cold]
fn begin(page: *mut AtomicU64) -> u64 {
    if !page.is_null() {
        // SAFETY: as above.
        return reborn(unsafe { &*page });
    }
    match BEGINNING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            let _quiet = crate::quiet::Quiet::begin();
            std::panic::set_hook(Box::new(|panic| crate::log::note(|| panic.to_string())));
            config();
            PID.store(pid(), Ordering::Relaxed);
            backing::adopt_inherited();
            PAGE.store(wiped_page(), Ordering::Release);
            stdio::standard_streams();
        }
        // Our own beginning closes descriptors, by the same functions as everybody.
        Err(_) if crate::quiet::is_internal() => {}
        Err(_) => {
            while PAGE.load(Ordering::Acquire).is_null() {
                rustix::thread::sched_yield();
            }
        }
    }
    1
}

/// The first word of a child.
fn reborn(page: &AtomicU64) -> u64 {
    let next = LATEST.load(Ordering::Relaxed) + 1;
    match page.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            LATEST.store(next, Ordering::Relaxed);
            PID.store(pid(), Ordering::Relaxed);
            // The parent's connections would stay open here after its end.
            table::forget_hidden(|fd| {
                // SAFETY: a descriptor of the parent's library, of which nothing is left here.
                unsafe { rustix::io::close(fd) };
            });
            next
        }
        Err(now) => now,
    }
}

/// A page with the word 1 that is zero in every child; without the kernel's help, forks are not noticed.
fn wiped_page() -> *mut AtomicU64 {
    static FALLBACK: AtomicU64 = AtomicU64::new(1);
    let size = 4096;
    // SAFETY: a new private page at a place of the kernel's choice.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let Ok(page) = mapped else {
        backing::give_away();
        return (&raw const FALLBACK).cast_mut();
    };
    // SAFETY: the page is ours alone, aligned, and stays mapped.
    unsafe {
        // An older kernel refuses; then a child believes that it borrows its parent's memory, until it execs.
        if rustix::mm::madvise(page, size, Advice::LinuxWipeOnFork).is_err() {
            backing::give_away();
        }
        let word = page.cast::<AtomicU64>();
        (*word).store(1, Ordering::Relaxed);
        word
    }
}

/// A number that the kernel says of this process.
pub(crate) fn status(field: &str, radix: u32) -> Option<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, c"/proc/self/status", flags, Mode::empty()).ok()?;
    let mut text = [0; 4096];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let found = std::str::from_utf8(&text[..len]).ok()?.lines().find_map(|line| line.strip_prefix(field))?;
    u64::from_str_radix(found.trim(), radix).ok()
}

fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether this process only borrows its parent's memory until it execs: then nothing there may change. Whoever makes such
/// a child by a function gives everything away before.
pub(crate) fn is_borrowed() -> bool {
    generation();
    backing::is_generous() && PID.load(Ordering::Relaxed) != pid()
}

/// What the environment says.
pub(crate) fn config() -> &'static Config {
    CONFIG.get_or_init(|| {
        let bytes = |name| std::env::var_os(name).map(std::os::unix::ffi::OsStringExt::into_vec);
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let log: Option<Vec<u8>> = bytes("FOREBAY_LOG");
        Config {
            prefix: path::clean_prefix(bytes("FOREBAY_PREFIX").as_deref()),
            service: text("FOREBAY_SERVICE"),
            key: text("FOREBAY_KEY"),
            log: Log::named(log.as_deref()),
            counts: std::env::var_os(forebay_client::COUNTS_VARIABLE).filter(|path| !path.is_empty()),
            dispatch: bytes("FOREBAY_INTERCEPT").as_deref() == Some(b"dispatch"),
        }
    })
}

#[cfg_attr(not(test), used, unsafe(link_section = ".init_array"))]
#[cfg_attr(test, allow(dead_code))]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        // No panic may reach the loader.
        let _ = std::panic::catch_unwind(|| {
            ready();
            crate::dispatch::begin();
        });
    }
    begin
};

#[cfg_attr(not(test), used, unsafe(link_section = ".fini_array"))]
#[cfg_attr(test, allow(dead_code))]
static END: extern "C" fn() = {
    extern "C" fn end() {
        let _gate = crate::dispatch::Gate::open();
        let _ = std::panic::catch_unwind(crate::exit::farewell);
    }
    end
};
