//! Panics of fjall. On damaged files it panics in places where it should return an error, in the calling thread and in
//! workers of its own. The files are the world, so a panic becomes an error here, at the edge, and nobody hears of it in
//! another way: what it said is remembered for the error.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::{Mutex, Once, PoisonError};

/// How fjall names its threads.
const WORKERS: &str = "fjall";

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Runs something of fjall; the error is what it panicked with.
pub(super) fn run<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    listen();
    INSIDE.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(false);
    done.map_err(|_| last().unwrap_or_else(|| "a panic".to_owned()))
}

/// What the last panic of fjall in this process said.
pub(super) fn last() -> Option<String> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Puts itself before whoever hears of panics, once.
fn listen() {
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
    fn what_fjall_says_is_remembered_and_nothing_else_is() {
        let text = "index 7 out of range";
        assert_eq!(run(|| panic!("{text}")), Err::<(), _>(text.to_owned()));
        assert_eq!(run(|| 5), Ok(5));
        let worker = std::thread::Builder::new().name("fjall:worker".to_owned());
        assert!(worker.spawn(|| panic!("a bad table")).unwrap().join().is_err());
        assert_eq!(last().as_deref(), Some("a bad table"));
    }
}
