//! Every system call of the program, by the kernel's Syscall User Dispatch (`FOREBAY_INTERCEPT=dispatch`).
//!
//! The kernel sends `SIGSYS` for a system call from anywhere but this library's own code, while a byte of the calling
//! thread says so. What concerns Forebay is done in the handler, with the application's signals as they were;
//! everything else goes back into the program's own context, to an instruction in this library that asks the kernel
//! with the very same registers.
//!
//! **Invariant**: the byte says *ask* only while the application's own code runs. `SIGSYS` is never blocked there:
//! the kernel would end the process.
//!
//! **Deliberately absent**: other machines than x86-64; threads without thread-local storage of their own.

use crate::{handlers, hook, life, mem, raw};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_arch = "x86_64")]
mod caught;
#[cfg(target_arch = "x86_64")]
mod entry;
#[cfg(target_arch = "x86_64")]
mod masks;

#[cfg(not(target_arch = "x86_64"))]
mod caught {
    pub(super) fn prepare() -> bool {
        false
    }
    pub(super) fn arm_thread() {}
}

const PASS: u8 = 0;
const ASK: u8 = 1;

static ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    static SELECTOR: Cell<u8> = const { Cell::new(PASS) };
}

/// Whether system calls are intercepted.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Begins to intercept, if the environment says so.
pub(crate) fn begin() {
    if !life::config().dispatch {
        return;
    }
    if caught::prepare() {
        ON.store(true, Ordering::Relaxed);
        // Not all ways to install a handler are looked at, and ours is one.
        handlers::expect();
        arm();
    } else {
        crate::log::note(|| "this machine cannot intercept system calls: only functions are".to_owned());
    }
}

/// The calling thread is new, or a forked child: the kernel has forgotten what it was told.
pub(crate) fn arm() {
    if is_on() {
        caught::arm_thread();
        SELECTOR.set(ASK);
    }
}

/// While this lives, the thread runs our own code or the C library's on our behalf.
pub(crate) struct Gate(u8);

impl Gate {
    pub(crate) fn open() -> Gate {
        Gate(SELECTOR.replace(PASS))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        SELECTOR.set(self.0);
    }
}

/// Waits with the thread's byte as the application's handlers need it.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    if !is_on() || crate::quiet::is_internal() {
        return wait();
    }
    let before = SELECTOR.replace(ASK);
    let waited = wait();
    SELECTOR.set(before);
    waited
}
