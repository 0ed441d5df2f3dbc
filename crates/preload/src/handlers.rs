//! Whether the application has signal handlers. As long as it has none nobody interrupts us, and no signal has to be
//! blocked, which costs two system calls every time.
//!
//! Handlers for faults do not count: what runs when this library does what it must not is of no help to it.
//!
//! **Invariant**: when the first handler is installed, nobody is in a moment that began without one.

use crate::errno::Errno;
use crate::{hook, life, mem, quiet};
use libc::{c_int, c_long, sighandler_t};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads are counted in so many places, so that few share one.
const PLACES: usize = 64;
/// How long the first handler waits for those who began before it: a thread that was cancelled in such a moment never
/// leaves it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Signals that come from what a thread has just done.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// What is known of handlers, and who relies on there being none.
struct Handlers {
    /// There are some, or will be.
    any: AtomicBool,
    /// And nobody relies on the contrary any more.
    settled: AtomicBool,
    places: [Place; PLACES],
}

/// A life of the process, and how many threads rely on it: those that were left behind in a parent do not count.
#[repr(align(64))]
struct Place(AtomicU64);

/// A moment that began without handlers.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    place: usize,
    life: u64,
}

const COUNT: u64 = u32::MAX as u64;

static HANDLERS: Handlers = Handlers::new();

impl Handlers {
    const fn new() -> Handlers {
        let places = [const { Place(AtomicU64::new(0)) }; PLACES];
        Handlers { any: AtomicBool::new(false), settled: AtomicBool::new(false), places }
    }

    fn enter(&self, place: usize, life: u64) -> Option<Moment> {
        if self.any.load(Ordering::Relaxed) {
            return None;
        }
        let moment = Moment { place, life };
        self.change(moment, |count| count + 1);
        // Whoever installs one says so before he looks who is here.
        if self.any.load(Ordering::SeqCst) {
            self.leave(moment);
            return None;
        }
        Some(moment)
    }

    fn leave(&self, moment: Moment) {
        self.change(moment, |count| count.saturating_sub(1));
    }

    fn change(&self, Moment { place, life }: Moment, change: impl Fn(u64) -> u64) {
        let word = &self.places[place].0;
        let mut before = word.load(Ordering::Relaxed);
        loop {
            let after = life << 32 | change(Handlers::count(before, life));
            match word.compare_exchange_weak(before, after, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
    }

    fn count(word: u64, life: u64) -> u64 {
        if word >> 32 == life & COUNT { word & COUNT } else { 0 }
    }

    /// There are handlers from now on; nobody relies on the contrary when this returns.
    fn expect(&self, life: u64) {
        self.any.store(true, Ordering::SeqCst);
        if self.settled.load(Ordering::Acquire) {
            return;
        }
        let begin = Instant::now();
        let is_relied_on = |place: &Place| Handlers::count(place.0.load(Ordering::SeqCst), life) > 0;
        while self.places.iter().any(is_relied_on) && begin.elapsed() < PATIENCE {
            rustix::thread::sched_yield();
        }
        self.settled.store(true, Ordering::Release);
    }
}

/// Begins a moment in which no handler can run, unless there are any. The address of something of the thread's own tells
/// threads apart.
pub(crate) fn enter(own: usize) -> Option<Moment> {
    // Threads have their memory whole pages apart.
    let place = (own >> 12 ^ own >> 20) % PLACES;
    // Before that, there is no life to be counted in.
    if life::is_set_up() { HANDLERS.enter(place, life::generation()) } else { None }
}

/// Ends it.
pub(crate) fn leave(moment: Moment) {
    HANDLERS.leave(moment);
}

/// There is a handler, or one is about to be installed.
pub(crate) fn expect() {
    // Whoever is in such a moment itself would wait for its own end.
    quiet::aloud(|| HANDLERS.expect(life::generation()));
}

/// Looks whether somebody has installed a handler past us.
pub(crate) fn look() {
    const OF_THE_C_LIBRARY: [c_int; 2] = [32, 33];
    let caught = life::status("SigCgt:", 16);
    if caught.is_none_or(|caught| caught & !bits(&FAULTS) & !bits(&OF_THE_C_LIBRARY) != 0) {
        expect();
    }
}

fn bits(signals: &[c_int]) -> u64 {
    signals.iter().fold(0, |bits, signal| bits | 1 << (signal - 1))
}

/// A signal is about to get a handler, or to be ignored, or to do what it does by itself.
fn note(signal: c_int, handler: sighandler_t) {
    if !matches!(handler, libc::SIG_DFL | libc::SIG_IGN) && !FAULTS.contains(&signal) {
        expect();
    }
}

/// The C library's structure begins with the handler, and so does the kernel's.
fn note_in(signal: c_int, action: *const sighandler_t) {
    if !action.is_null()
        && let Ok(handler) = mem::take(action)
    {
        note(signal, handler);
    }
}

/// The same by number.
pub(crate) fn note_call(number: c_long, signal: usize, action: usize) {
    if number == libc::SYS_rt_sigaction {
        note_in(signal as c_int, action as *const sighandler_t);
    }
}

/// Functions that install a handler, looked at by `$note`. Where every system call is intercepted, theirs have to be, too: so
/// they are not taken over as others are.
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
            // SAFETY: the C library's function of this name has this signature, and the arguments are the caller's own; the last
            // one where it has given it.
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
    fn who_began_without_handlers_is_waited_for() {
        let handlers = Handlers::new();
        let first = handlers.enter(3, 1).expect("there are none");
        let second = handlers.enter(3, 1).expect("there are none");
        handlers.leave(first);
        std::thread::scope(|scope| {
            let installing = scope.spawn(|| handlers.expect(1));
            while handlers.enter(4, 1).map(|moment| handlers.leave(moment)).is_some() {
                std::thread::yield_now();
            }
            let another = scope.spawn(|| handlers.expect(1));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!installing.is_finished() && !another.is_finished());
            handlers.leave(second);
        });
        assert!(handlers.enter(3, 1).is_none());
        assert!(handlers.places.iter().all(|place| place.0.load(Ordering::SeqCst) & COUNT == 0));
    }

    #[test]
    fn who_was_left_behind_in_a_parent_does_not_count() {
        let handlers = Handlers::new();
        let left_behind = handlers.enter(3, 1).expect("there are none");
        let count = |life| Handlers::count(handlers.places[3].0.load(Ordering::SeqCst), life);
        assert_eq!((count(1), count(2)), (1, 0));
        let own = handlers.enter(3, 2).expect("there are none");
        assert_eq!((count(1), count(2)), (0, 1));
        handlers.leave(own);
        assert_eq!((left_behind.life, count(2)), (1, 0));
    }
}
