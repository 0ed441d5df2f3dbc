//! Tracks whether the application has signal handlers. Without handlers, signals need not be blocked, which saves two
//! system calls each time.
//!
//! Handlers for faults do not count: they run only if this library itself faults.
//!
//! **Invariant**: when the first handler is installed, no thread is in a section that began without one.

use crate::errno::Errno;
use crate::{hook, mem, process_state, quiet};
use libc::{c_int, c_long, sighandler_t};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of counters: threads are spread over them to avoid contention.
const COUNTERS: usize = 64;
/// How long the installation of the first handler waits for sections that began before it: a thread that was cancelled
/// in such a section never leaves it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Signals that a thread's own instruction raises.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Whether there are handlers, and which threads rely on there being none.
struct Handlers {
    /// A handler is installed, or is about to be.
    any: AtomicBool,
    /// No thread relies on the absence of handlers any more.
    is_quiescent: AtomicBool,
    counters: [Counter; COUNTERS],
}

/// A generation of the process, and how many threads of it rely on the absence of handlers. Threads of the parent do
/// not count.
#[repr(align(64))]
struct Counter(AtomicU64);

/// A section that began without handlers.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    counter: usize,
    generation: u64,
}

const COUNT: u64 = u32::MAX as u64;

static HANDLERS: Handlers = Handlers::new();

impl Handlers {
    const fn new() -> Handlers {
        let counters = [const { Counter(AtomicU64::new(0)) }; COUNTERS];
        Handlers { any: AtomicBool::new(false), is_quiescent: AtomicBool::new(false), counters }
    }

    fn enter(&self, counter: usize, generation: u64) -> Option<Section> {
        if self.any.load(Ordering::Relaxed) {
            return None;
        }
        let section = Section { counter, generation };
        self.change(section, |count| count + 1);
        // An installer sets `any` before it reads the counters.
        if self.any.load(Ordering::SeqCst) {
            self.leave(section);
            return None;
        }
        Some(section)
    }

    fn leave(&self, section: Section) {
        self.change(section, |count| count.saturating_sub(1));
    }

    fn change(&self, Section { counter, generation }: Section, change: impl Fn(u64) -> u64) {
        let word = &self.counters[counter].0;
        let mut before = word.load(Ordering::Relaxed);
        loop {
            let after = generation << 32 | change(Handlers::count(before, generation));
            match word.compare_exchange_weak(before, after, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
    }

    fn count(word: u64, generation: u64) -> u64 {
        if word >> 32 == generation & COUNT { word & COUNT } else { 0 }
    }

    /// Declares that there are handlers. When this returns, no thread relies on their absence.
    fn expect(&self, generation: u64) {
        self.any.store(true, Ordering::SeqCst);
        if self.is_quiescent.load(Ordering::Acquire) {
            return;
        }
        let begin = Instant::now();
        let is_relied_on =
            |counter: &Counter| Handlers::count(counter.0.load(Ordering::SeqCst), generation) > 0;
        while self.counters.iter().any(is_relied_on) && begin.elapsed() < PATIENCE {
            rustix::thread::sched_yield();
        }
        self.is_quiescent.store(true, Ordering::Release);
    }
}

/// Begins a section in which no handler can run; `None` if there are handlers. `own` is an address in the thread's own
/// memory, which distinguishes threads.
pub(crate) fn enter(own: usize) -> Option<Section> {
    // Threads have their memory in different pages.
    let counter = (own >> 12 ^ own >> 20) % COUNTERS;
    // Before the library is set up there is no generation to count in.
    if process_state::is_set_up() { HANDLERS.enter(counter, process_state::generation()) } else { None }
}

/// Ends a section.
pub(crate) fn leave(section: Section) {
    HANDLERS.leave(section);
}

/// Declares that a handler is installed, or is about to be.
pub(crate) fn expect() {
    // A thread inside such a section would wait for itself.
    quiet::with_handlers_allowed(|| HANDLERS.expect(process_state::generation()));
}

/// Checks whether the application installed a handler without calling this library.
pub(crate) fn look() {
    const OF_THE_C_LIBRARY: [c_int; 2] = [32, 33];
    let caught = process_state::status("SigCgt:", 16);
    if caught.is_none_or(|caught| caught & !bits(&FAULTS) & !bits(&OF_THE_C_LIBRARY) != 0) {
        expect();
    }
}

fn bits(signals: &[c_int]) -> u64 {
    signals.iter().fold(0, |bits, signal| bits | 1 << (signal - 1))
}

/// Notes that the action of a signal is about to change.
fn note(signal: c_int, handler: sighandler_t) {
    if !matches!(handler, libc::SIG_DFL | libc::SIG_IGN) && !FAULTS.contains(&signal) {
        expect();
    }
}

/// Both the C library's and the kernel's structure begin with the handler.
fn note_in(signal: c_int, action: *const sighandler_t) {
    if !action.is_null()
        && let Ok(handler) = mem::take(action)
    {
        note(signal, handler);
    }
}

/// As above, for a system call by number.
pub(crate) fn note_call(number: c_long, signal: usize, action: usize) {
    if number == libc::SYS_rt_sigaction {
        note_in(signal as c_int, action as *const sighandler_t);
    }
}

/// Replaces functions that install a handler; `$note` checks their arguments. Their system calls must be intercepted
/// too where all are, so they are not replaced by `hooks!`.
macro_rules! installers {
    ($($name:ident)+, $action:ty, $before:ty, $failed:expr, $note:path) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C" fn $name(signal: c_int, action: $action, before: *mut libc::sigaction) -> $before {
            static REAL: hook::Real = hook::Real::new(concat!(stringify!($name), "\0"));
            let error = Errno::last();
            let looked = hook::guarded(|| {
                $note(signal, action);
                Ok(REAL.address())
            });
            error.set();
            let Ok(Some(real)) = looked else {
                Errno(libc::ENOSYS).set();
                return $failed;
            };
            // SAFETY: the C library's function of this name has this signature, and the arguments are the caller's own;
            // the last one where the caller has passed it.
            unsafe {
                let real: unsafe extern "C" fn(c_int, $action, *mut libc::sigaction) -> $before =
                    std::mem::transmute(real);
                real(signal, action, before)
            }
        }
    )+};
}

installers!(sigaction __sigaction, *const sighandler_t, c_int, -1, note_in);
installers!(signal bsd_signal ssignal sysv_signal __sysv_signal sigset, sighandler_t, sighandler_t, libc::SIG_ERR, note);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_handler_waits_for_sections_begun_without_handlers() {
        let handlers = Handlers::new();
        let first = handlers.enter(3, 1).expect("no handlers yet");
        let second = handlers.enter(3, 1).expect("no handlers yet");
        handlers.leave(first);
        std::thread::scope(|scope| {
            let installing = scope.spawn(|| handlers.expect(1));
            while handlers.enter(4, 1).map(|section| handlers.leave(section)).is_some() {
                std::thread::yield_now();
            }
            let another = scope.spawn(|| handlers.expect(1));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!installing.is_finished() && !another.is_finished());
            handlers.leave(second);
        });
        assert!(handlers.enter(3, 1).is_none());
        assert!(handlers.counters.iter().all(|counter| counter.0.load(Ordering::SeqCst) & COUNT == 0));
    }

    #[test]
    fn sections_of_parent_threads_do_not_count() {
        let handlers = Handlers::new();
        let left_behind = handlers.enter(3, 1).expect("no handlers yet");
        let count = |generation| Handlers::count(handlers.counters[3].0.load(Ordering::SeqCst), generation);
        assert_eq!((count(1), count(2)), (1, 0));
        let own = handlers.enter(3, 2).expect("no handlers yet");
        assert_eq!((count(1), count(2)), (0, 1));
        handlers.leave(own);
        assert_eq!((left_behind.generation, count(2)), (1, 0));
    }
}
