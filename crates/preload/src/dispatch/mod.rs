//! Interception of every system call of the program, by the kernel's Syscall User Dispatch.
//!
//! It is switched on by `FOREBAY_INTERCEPT=dispatch`, and automatically for programs that make system calls bypassing
//! the C library: those that have the instruction in their own code or load a library that has it (`scan`, `decode`,
//! `remember`), load libraries that are stored in Forebay (`loading`), or use io_uring. `FOREBAY_INTERCEPT=library`
//! keeps it off.
//!
//! The kernel sends `SIGSYS` for a system call from any code but this library's own, while a selector byte of the
//! calling thread is set. The handler executes calls that concern Forebay, with the application's signal mask. All
//! other calls return to the program's own context, to an instruction in this library that makes the system call with
//! the same registers.
//!
//! **Invariant**: the selector is `BLOCK` only while the application's own code runs. `SIGSYS` is never blocked then:
//! the kernel would end the process.
//!
//! **Deliberately absent**: architectures other than x86-64; threads without thread-local storage of their own; raw
//! calls that a library makes while it is first loaded as a dependency of another one.

use crate::lock::Lock;
use crate::process_state::Intercept;
use crate::{handlers, hook, mem, process_state, raw};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_arch = "x86_64")]
mod caught;
#[cfg(target_arch = "x86_64")]
mod decode;
#[cfg(target_arch = "x86_64")]
mod entry;
#[cfg(target_arch = "x86_64")]
mod loading;
#[cfg(target_arch = "x86_64")]
mod masks;
#[cfg(target_arch = "x86_64")]
mod remember;
#[cfg(target_arch = "x86_64")]
mod scan;

#[cfg(not(target_arch = "x86_64"))]
mod caught {
    pub(super) fn prepare() -> bool {
        false
    }
    pub(super) fn arm_thread() {}
    pub(super) fn arm_others() {}
}

#[cfg(not(target_arch = "x86_64"))]
mod scan {
    pub(super) fn finds_raw_calls() -> bool {
        false
    }
    pub(super) fn has_go() -> bool {
        false
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use loading::next_function;

/// A function of the libraries that are loaded after this one; null if none has it.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn next_function(name: &std::ffi::CStr) -> *mut libc::c_void {
    // SAFETY: a valid name; the pseudo-handle means those libraries.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Calls that have nothing to do with files: waiting, time, threads, signals, memory without a file.
#[cfg(target_arch = "x86_64")]
const HARMLESS: [i64; 26] = [
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_getrandom,
    libc::SYS_arch_prctl,
    libc::SYS_membarrier,
    libc::SYS_set_robust_list,
];

const PASS: u8 = 0;
const BLOCK: u8 = 1;

static ON: AtomicBool = AtomicBool::new(false);
/// Held while interception is switched on.
static SWITCH: Lock<()> = Lock::new(());

thread_local! {
    /// The thread's selector, which the kernel reads, and above it the number of open gates.
    static STATE: Cell<u16> = const { Cell::new(PASS as u16) };
}

const GATE: u16 = 1 << 8;

fn set_selector(selector: u8) {
    STATE.set(STATE.get() & !(GATE - 1) | u16::from(selector));
}

/// The address of the thread's selector: the first byte of the word on a little-endian machine.
#[cfg(target_arch = "x86_64")]
fn selector() -> *mut u8 {
    STATE.with(Cell::as_ptr).cast()
}

/// Whether system calls are intercepted.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Switches interception on, if the environment or the program itself requires it.
pub(crate) fn begin() {
    let wanted = match process_state::config().intercept {
        Intercept::Dispatch => true,
        Intercept::Library => false,
        Intercept::Auto => {
            let _gate = Gate::open();
            scan::finds_raw_calls()
        }
    };
    if wanted {
        require();
    }
}

/// Switches interception on for a program that has system calls of its own; says so once where that cannot be done.
fn require() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if switch_on() || process_state::is_borrowed() || WARNED.swap(true, Ordering::Relaxed) {
        return;
    }
    let program = std::env::current_exe().unwrap_or_default();
    let prefix = String::from_utf8_lossy(&process_state::config().prefix).into_owned();
    let why = if scan::has_go() {
        "Forebay cannot intercept them (it contains Go code, whose stacks are too small)"
    } else {
        "this kernel cannot intercept them (it lacks Syscall User Dispatch)"
    };
    crate::log::warn(&format!(
        "{} makes system calls that bypass the C library, and {why}: they do not see files below {prefix}; use \
         \"forebay exec --intercept mount\"",
        program.display()
    ));
}

/// Switches interception on in all threads, unless it is disabled; returns whether it is on.
pub(crate) fn switch_on() -> bool {
    if is_on() {
        return true;
    }
    let ruled_out = match process_state::config().intercept {
        Intercept::Library => true,
        // Go makes its calls on stacks that the handler would overrun.
        Intercept::Auto => scan::has_go(),
        Intercept::Dispatch => false,
    };
    if ruled_out || process_state::is_borrowed() {
        return false;
    }
    hook::find_all();
    let on = SWITCH.with(|()| {
        if !is_on() && caught::prepare() {
            ON.store(true, Ordering::Relaxed);
        }
        is_on()
    });
    if on {
        // Not all ways to install a handler are observed, and this library installs one itself.
        handlers::expect();
        arm();
        caught::arm_others();
        crate::log::note(|| "system calls are intercepted".to_owned());
    } else {
        crate::log::note(|| {
            "this kernel cannot intercept system calls: only C library functions are intercepted".to_owned()
        });
    }
    on
}

/// Arms a new thread, or a forked child: the kernel does not inherit the setting.
pub(crate) fn arm() {
    if is_on() {
        caught::arm_thread();
        if STATE.get() < GATE {
            set_selector(BLOCK);
        }
    }
}

/// While this value exists, the thread runs code of this library, or of the C library on its behalf.
pub(crate) struct Gate(u16);

impl Gate {
    pub(crate) fn open() -> Gate {
        let before = STATE.get();
        STATE.set((before & !(GATE - 1)).wrapping_add(GATE) | u16::from(PASS));
        Gate(before)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // The application's own code continues: interception may have been switched on meanwhile.
        let outermost = self.0 < GATE;
        STATE.set(if outermost && is_on() { u16::from(BLOCK) } else { self.0 });
    }
}

/// Waits with the selector set as the application's signal handlers need it.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    if !is_on() || crate::quiet::is_internal() {
        return wait();
    }
    let before = STATE.get();
    set_selector(BLOCK);
    let waited = wait();
    STATE.set(before);
    waited
}
