//! Panics of fjall. On damaged files fjall panics in places where it should return an error, in the calling thread and
//! in its worker threads. This module turns such a panic into an error, suppresses the usual report, and keeps the
//! message for the error.
//!
//! Panics are counted for one *opening* of a tree: what an earlier opening met, or another store of the process, says
//! nothing about this one. Only a worker thread does not say whose it is; its panic counts for every tree that was open
//! then.

use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// The prefix of the names of fjall's threads.
const WORKERS: &str = "fjall";
/// Number of panics that are remembered.
const REMEMBERED: usize = 64;

thread_local! {
    static INSIDE: Cell<Option<Opening>> = const { Cell::new(None) };
}

static PANICS: Mutex<VecDeque<Panic>> = Mutex::new(VecDeque::new());
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// One opening of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Opening(u64);

struct Panic {
    /// Greater than the number of every opening before it.
    number: u64,
    /// `None` in a worker thread.
    opening: Option<Opening>,
    text: String,
}

impl Opening {
    pub(super) fn new() -> Opening {
        Opening(NUMBERS.fetch_add(1, Ordering::Relaxed))
    }

    /// The message of the last panic that this opening may have caused.
    pub(super) fn last_panic(self) -> Option<String> {
        let panics = PANICS.lock();
        let is_own = |panic: &&Panic| panic.opening.map_or(panic.number > self.0, |opening| opening == self);
        panics.iter().rev().find(is_own).map(|panic| panic.text.clone())
    }
}

/// Calls fjall; the error is the message of its panic.
pub(super) fn run<T>(opening: Opening, work: impl FnOnce() -> T) -> Result<T, String> {
    install_hook();
    let outer = INSIDE.replace(Some(opening));
    let done = catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(outer);
    done.map_err(|_| opening.last_panic().unwrap_or_else(|| "a panic".to_owned()))
}

/// Installs the panic hook in front of the existing one, once.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |info| {
            let worker = || std::thread::current().name().is_some_and(|name| name.starts_with(WORKERS));
            let opening = INSIDE.get();
            if opening.is_some() || worker() {
                remember(opening, words(info));
            } else {
                others(info);
            }
        }));
    });
}

fn remember(opening: Option<Opening>, text: String) {
    let mut panics = PANICS.lock();
    if panics.len() == REMEMBERED {
        panics.pop_front();
    }
    panics.push_back(Panic { number: NUMBERS.fetch_add(1, Ordering::Relaxed), opening, text });
}

fn words(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_messages_of_fjall_are_captured() {
        let (opening, text) = (Opening::new(), "index 7 out of range");
        assert_eq!(run(opening, || panic!("{text}")), Err::<(), _>(text.to_owned()));
        assert_eq!(run(opening, || 5), Ok(5));
        let worker = std::thread::Builder::new().name("fjall:worker".to_owned());
        assert!(worker.spawn(|| panic!("a bad table")).unwrap().join().is_err());
        assert_eq!(opening.last_panic().as_deref(), Some("a bad table"));
    }

    #[test]
    fn panics_of_other_stores_and_of_earlier_openings_do_not_count() {
        let (one, other) = (Opening::new(), Opening::new());
        assert!(run(one, || panic!("one")).is_err());
        let worker = std::thread::Builder::new().name("fjall:worker".to_owned());
        let reopened = {
            assert!(worker.spawn(|| panic!("a worker")).unwrap().join().is_err());
            Opening::new()
        };
        assert!(run(one, || panic!("one again")).is_err());
        assert_eq!(one.last_panic().as_deref(), Some("one again"));
        assert_ne!(other.last_panic().as_deref(), Some("one again"));
        // Another test's worker may panic meanwhile.
        assert_ne!(reopened.last_panic().as_deref(), Some("a worker"));
    }
}
