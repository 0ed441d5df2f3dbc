//! Sections in which no signal handler of the application may run, and threads of the library.

use crate::handlers::{self, Section};
use crate::kernel::system_call;
use std::cell::Cell;

thread_local! {
    static INTERNAL: Cell<bool> = const { Cell::new(false) };
    /// How the current quiet section is kept quiet; `None` outside of one.
    static KEPT: Cell<Option<Kept>> = const { Cell::new(None) };
}

/// Why no handler runs in a quiet section.
#[derive(Clone, Copy)]
enum Kept {
    /// There is no handler, and none is added before the section ends.
    Without(Section),
    /// Signals are blocked; this was the application's mask.
    Blocked(u64),
}

/// Whether library code is running: descriptors that it creates are hidden from the application.
pub(crate) fn is_internal() -> bool {
    INTERNAL.try_with(Cell::get).unwrap_or(false)
}

/// Makes the calling thread a thread of the library: no signal is ever delivered to it.
pub(crate) fn become_internal() {
    mask(libc::SIG_BLOCK, ALL);
    INTERNAL.set(true);
}

/// All signals, as the kernel's signal set, except the two that the C library uses to cancel threads and change users.
const ALL: u64 = !(1 << 31 | 1 << 32);

/// Calls the kernel directly: the C library's function may be replaced or intercepted.
fn mask(how: i32, set: u64) -> u64 {
    let mut before = 0_u64;
    let args = [how as usize, &raw const set as usize, &raw mut before as usize, size_of::<u64>(), 0, 0];
    // SAFETY: both sets are variables here; changing the mask needs no other promise.
    unsafe { system_call(libc::SYS_rt_sigprocmask, args) };
    before
}

/// Runs `work` with all signals blocked, whether there are handlers or not: threads created in it inherit the mask.
pub(crate) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let before = mask(libc::SIG_BLOCK, ALL);
    let done = work();
    mask(libc::SIG_SETMASK, before);
    done
}

/// Runs `work` with all signals blocked, including the C library's own: no other thread of this process can change the
/// credentials of this thread meanwhile.
pub(crate) fn with_all_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let before = mask(libc::SIG_BLOCK, !0);
    let done = work();
    mask(libc::SIG_SETMASK, before);
    done
}

/// While this value exists, no signal handler runs on the thread, and the thread counts as running library code.
pub(crate) struct Quiet {
    /// Whether this section is not nested in another one.
    outermost: bool,
}

impl Quiet {
    pub(crate) fn begin() -> Quiet {
        let outermost = !is_internal();
        if outermost {
            block_handlers();
        }
        Quiet { outermost }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.outermost {
            allow_handlers();
        }
    }
}

fn block_handlers() {
    let kept = match handlers::enter(INTERNAL.with(|own| std::ptr::from_ref(own) as usize)) {
        Some(section) => Kept::Without(section),
        None => Kept::Blocked(mask(libc::SIG_BLOCK, ALL)),
    };
    INTERNAL.set(true);
    KEPT.set(Some(kept));
}

fn allow_handlers() {
    let kept = KEPT.take();
    INTERNAL.set(false);
    match kept {
        Some(Kept::Without(section)) => handlers::leave(section),
        Some(Kept::Blocked(before)) => drop(mask(libc::SIG_SETMASK, before)),
        None => {}
    }
}

/// Interrupts a quiet section for a long wait: the application's signal mask applies meanwhile, and its handlers may
/// call the library.
pub(crate) fn with_handlers_allowed<T>(wait: impl FnOnce() -> T) -> T {
    if KEPT.get().is_none() {
        return wait();
    }
    allow_handlers();
    let waited = wait();
    block_handlers();
    waited
}
