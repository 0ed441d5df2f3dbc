//! Waiting for events.

use std::fmt;
use std::time::{Duration, Instant};

/// How long a test waits for what must happen; reached only if it never does.
const PATIENCE: Duration = Duration::from_secs(240);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until a condition holds.
///
/// # Panics
///
/// If it does not hold within four minutes.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_some(what, || holds().then_some(()));
}

/// Waits until there is a value, and returns it.
///
/// # Panics
///
/// If there is none within four minutes.
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until what is looked at equals what is expected.
///
/// # Panics
///
/// If it does not within four minutes; shows both.
pub fn until_equal<T: PartialEq + fmt::Debug>(what: &str, expected: &T, mut look: impl FnMut() -> T) {
    let begin = Instant::now();
    loop {
        let found = look();
        if found == *expected {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain: {what}: {found:?} instead of {expected:?}");
        std::thread::sleep(PAUSE);
    }
}

/// As [`until`], in a test on tokio's runtime.
///
/// # Panics
///
/// If it does not hold within four minutes.
pub async fn until_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_returned_as_soon_as_there_is_one() {
        let mut looks = 0;
        let found = until_some("the third look", || {
            looks += 1;
            (looks == 3).then_some("it")
        });
        assert_eq!((found, looks), ("it", 3));
        until("it is there", || true);
        let mut next = 0..;
        until_equal("the fourth look", &3, || next.next().unwrap());
        assert_eq!(next.next(), Some(4));
    }
}
