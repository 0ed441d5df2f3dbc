//! The process as the library sees it: its start, its forks, its configuration.
//!
//! A page that the kernel wipes in forked children holds the *generation* of the process. One load tells a child,
//! however it was created, that threads, connections and locks of its parent are not its own. Children of `vfork` share
//! the page; the library recognises them by their process id, and they never change shared memory.

use crate::log::Log;
use crate::{backing, path, stdio, table};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static LATEST: AtomicU64 = AtomicU64::new(1);
static PID: AtomicI32 = AtomicI32::new(0);
static BEGINNING: AtomicU8 = AtomicU8::new(0);
static CONFIG: OnceLock<Config> = OnceLock::new();

/// Settings from the environment.
pub(crate) struct Config {
    pub(crate) prefix: Vec<u8>,
    pub(crate) service: Option<String>,
    pub(crate) key: Option<String>,
    /// The minimum protection over TCP.
    pub(crate) security: Option<String>,
    /// Timeout of a request.
    pub(crate) request_time: Option<Duration>,
    pub(crate) log: Log,
    /// The page of counters of a run.
    pub(crate) counts: Option<std::ffi::OsString>,
    pub(crate) intercept: Intercept,
    /// The descriptor of the directory with the socket for programs of a run that have switched to other users.
    pub(crate) run_socket: Option<RawFd>,
}

/// How the calls of a program are intercepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intercept {
    /// Functions of the C library; also every system call, for programs that bypass the C library.
    Auto,
    /// Functions of the C library only.
    Library,
    /// Every system call.
    Dispatch,
}

/// The generation of this process; differs in every forked child.
pub(crate) fn generation() -> u64 {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: the page stays mapped until the process ends.
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

/// Makes sure that the library is set up.
pub(crate) fn ready() {
    generation();
}

#[cold]
fn begin(page: *mut AtomicU64) -> u64 {
    if !page.is_null() {
        // SAFETY: as above.
        return begin_child(unsafe { &*page });
    }
    match BEGINNING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            let _quiet = crate::quiet::Quiet::begin();
            std::panic::set_hook(Box::new(|panic| crate::log::note(|| panic.to_string())));
            if let Some(directory) = config().run_socket {
                table::keep(directory);
            }
            PID.store(pid(), Ordering::Relaxed);
            backing::adopt_inherited();
            PAGE.store(wiped_page(), Ordering::Release);
            stdio::standard_streams();
        }
        // The setup itself closes descriptors, through the same functions as the application.
        Err(_) if crate::quiet::is_internal() => {}
        Err(_) => {
            while PAGE.load(Ordering::Acquire).is_null() {
                rustix::thread::sched_yield();
            }
        }
    }
    1
}

/// Starts a new generation in a forked child.
fn begin_child(page: &AtomicU64) -> u64 {
    let next = LATEST.load(Ordering::Relaxed) + 1;
    match page.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            LATEST.store(next, Ordering::Relaxed);
            PID.store(pid(), Ordering::Relaxed);
            // Otherwise the parent's connections would stay open in the child after the parent's end.
            table::forget_hidden(|fd| {
                // SAFETY: a descriptor of the parent's library, of which nothing is in use in this process.
                unsafe { rustix::io::close(fd) };
            });
            next
        }
        Err(now) => now,
    }
}

/// A page with the word 1 that reads zero in every child. Without kernel support, forks are not detected.
fn wiped_page() -> *mut AtomicU64 {
    static FALLBACK: AtomicU64 = AtomicU64::new(1);
    let size = 4096;
    // SAFETY: a new private page at an address of the kernel's choice.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let Ok(page) = mapped else {
        backing::note_sharing();
        return (&raw const FALLBACK).cast_mut();
    };
    // SAFETY: the page is referenced only here, aligned, and stays mapped.
    unsafe {
        // An older kernel refuses; then a child treats its memory as borrowed from its parent until it execs.
        if rustix::mm::madvise(page, size, Advice::LinuxWipeOnFork).is_err() {
            backing::note_sharing();
        }
        let word = page.cast::<AtomicU64>();
        (*word).store(1, Ordering::Relaxed);
        word
    }
}

/// A number from `/proc/self/status`.
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

/// Whether this process borrows its parent's memory until it execs: then it must not change that memory. Functions that
/// create such a child call `note_sharing` first.
pub(crate) fn is_borrowed() -> bool {
    generation();
    backing::may_share() && PID.load(Ordering::Relaxed) != pid()
}

/// The settings from the environment.
pub(crate) fn config() -> &'static Config {
    CONFIG.get_or_init(|| {
        let bytes = |name| std::env::var_os(name).map(std::os::unix::ffi::OsStringExt::into_vec);
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let log: Option<Vec<u8>> = bytes("FOREBAY_LOG");
        Config {
            prefix: path::clean_prefix(bytes("FOREBAY_PREFIX").as_deref()),
            service: text("FOREBAY_SERVICE"),
            key: text("FOREBAY_KEY"),
            security: text("FOREBAY_SECURITY"),
            request_time: text("FOREBAY_REQUEST_TIME")
                .and_then(|millis| millis.parse().ok())
                .map(Duration::from_millis),
            log: Log::named(log.as_deref()),
            counts: std::env::var_os(forebay_client::COUNTS_VARIABLE).filter(|path| !path.is_empty()),
            intercept: match bytes("FOREBAY_INTERCEPT").as_deref() {
                Some(b"dispatch") => Intercept::Dispatch,
                Some(b"library") => Intercept::Library,
                _ => Intercept::Auto,
            },
            run_socket: text(forebay_client::RUN_SOCKET_VARIABLE).zip(text("FOREBAY_SERVICE")).and_then(
                |(value, service)| forebay_client::run_socket_of(&value, &service).filter(is_directory),
            ),
        }
    })
}

/// Whether the descriptor with this number is a directory.
fn is_directory(number: &RawFd) -> bool {
    // SAFETY: borrowed for one call; a closed descriptor gives an error.
    let facts = (*number > 2).then(|| rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(*number) }));
    facts.and_then(Result::ok).is_some_and(|facts| FileType::from_raw_mode(facts.st_mode).is_dir())
}

#[cfg_attr(not(test), used, unsafe(link_section = ".init_array"))]
#[cfg_attr(test, allow(dead_code))]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        // No panic may reach the loader.
        let _ = std::panic::catch_unwind(|| {
            ready();
            crate::dispatch::begin();
            if table::has_files() {
                let _gate = crate::dispatch::Gate::open();
                crate::handing::reopen_handed_on();
            }
        });
    }
    begin
};

#[cfg_attr(not(test), used, unsafe(link_section = ".fini_array"))]
#[cfg_attr(test, allow(dead_code))]
static END: extern "C" fn() = {
    extern "C" fn end() {
        let _gate = crate::dispatch::Gate::open();
        let _ = std::panic::catch_unwind(crate::exit::at_exit);
    }
    end
};
