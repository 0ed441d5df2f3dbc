//! Panics of fjall. On damaged files fjall panics in places where it should return an error, in the calling thread and
//! in its worker threads. This module turns such a panic into an error, suppresses the usual report, and keeps the
//! message for the error.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::{Mutex, Once, PoisonError};

/// The prefix of the names of fjall's threads.
const WORKERS: &str = "fjall";

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Calls fjall; the error is the message of its panic.
pub(super) fn run<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    install_hook();
    INSIDE.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(false);
    done.map_err(|_| last().unwrap_or_else(|| "a panic".to_owned()))
}

/// The message of fjall's last panic in this process.
pub(super) fn last() -> Option<String> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Installs the panic hook in front of the existing one, once.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |info| {
            let worker = || std::thread::current().name().is_some_and(|name| name.starts_with(WORKERS));
            if INSIDE.get() || worker() {
                *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(words(info));
            } else {
                others(info);
            }
        }));
    });
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
        let text = "index 7 out of range";
        assert_eq!(run(|| panic!("{text}")), Err::<(), _>(text.to_owned()));
        assert_eq!(run(|| 5), Ok(5));
        let worker = std::thread::Builder::new().name("fjall:worker".to_owned());
        assert!(worker.spawn(|| panic!("a bad table")).unwrap().join().is_err());
        assert_eq!(last().as_deref(), Some("a bad table"));
    }
}
