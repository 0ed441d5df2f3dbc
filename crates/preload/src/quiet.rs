//! Moments in which the application must not interrupt us, and threads that are not the application's.

use crate::handlers::{self, Moment};
use crate::kernel::system_call;
use std::cell::Cell;

thread_local! {
    static INTERNAL: Cell<bool> = const { Cell::new(false) };
    /// What keeps a quiet moment quiet; `None` outside of one.
    static KEPT: Cell<Option<Kept>> = const { Cell::new(None) };
}

/// Why no handler runs in a quiet moment.
#[derive(Clone, Copy)]
enum Kept {
    /// There is none, and nobody adds one meanwhile.
    Without(Moment),
    /// Signals are blocked; this was the application's mask.
    Blocked(u64),
}

/// Whether the running code is ours: descriptors it makes are hidden from the application.
pub(crate) fn is_internal() -> bool {
    INTERNAL.try_with(Cell::get).unwrap_or(false)
}

/// Makes the calling thread one of ours for good: no signal is ever delivered to it.
pub(crate) fn become_internal() {
    mask(libc::SIG_BLOCK, ALL);
    INTERNAL.set(true);
}

/// The kernel's own form of a set of signals. Two are the C library's: with them it cancels threads and changes users.
const ALL: u64 = !(1 << 31 | 1 << 32);

/// Asks the kernel, because the C library might be asked by nobody but the application.
fn mask(how: i32, set: u64) -> u64 {
    let mut before = 0_u64;
    let args = [how as usize, &raw const set as usize, &raw mut before as usize, size_of::<u64>(), 0, 0];
    // SAFETY: both sets are variables here; changing the mask needs no other promise.
    unsafe { system_call(libc::SYS_rt_sigprocmask, args) };
    before
}

/// Runs something with all signals blocked, whoever has handlers: threads that are made there are born so.
pub(crate) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let before = mask(libc::SIG_BLOCK, ALL);
    let done = work();
    mask(libc::SIG_SETMASK, before);
    done
}

/// While this lives, no signal handler runs on the thread, and what the thread does counts as ours.
pub(crate) struct Quiet {
    /// Not inside another quiet moment.
    outermost: bool,
}

impl Quiet {
    pub(crate) fn begin() -> Quiet {
        let outermost = !is_internal();
        if outermost {
            hush();
        }
        Quiet { outermost }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.outermost {
            speak();
        }
    }
}

fn hush() {
    let kept = match handlers::enter(INTERNAL.with(|own| std::ptr::from_ref(own) as usize)) {
        Some(moment) => Kept::Without(moment),
        None => Kept::Blocked(mask(libc::SIG_BLOCK, ALL)),
    };
    INTERNAL.set(true);
    KEPT.set(Some(kept));
}

fn speak() {
    let kept = KEPT.take();
    INTERNAL.set(false);
    match kept {
        Some(Kept::Without(moment)) => handlers::leave(moment),
        Some(Kept::Blocked(before)) => drop(mask(libc::SIG_SETMASK, before)),
        None => {}
    }
}

/// Interrupts a quiet moment for something that may take long: signals are as the application has them meanwhile, and
/// its handlers may call in.
pub(crate) fn aloud<T>(wait: impl FnOnce() -> T) -> T {
    if KEPT.get().is_none() {
        return wait();
    }
    speak();
    let waited = wait();
    hush();
    waited
}
