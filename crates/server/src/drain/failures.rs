//! Files that could not be drained, why, and when they are retried.

use forebay_model::{Error, ErrorKind, FileId, Uid};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);
/// Most failures that are remembered.
const MOST: usize = 4096;
/// After this many failures without a success in between, the whole drain pauses.
const STREAK: u32 = 16;

/// A file that could not be drained.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) path: String,
    pub(super) user: Uid,
    pub(super) error: Error,
    pub(super) tries: u32,
    next: Instant,
}

/// All failures that were not resolved yet.
#[derive(Default)]
pub(super) struct Failures {
    files: HashMap<FileId, Failure>,
    streak: u32,
    /// Nothing is tried before this time.
    pause: Option<Instant>,
    /// Some failures were dropped because there were too many.
    pub(super) overflowed: bool,
}

impl Failures {
    /// Records a failure; returns how often the file has failed.
    pub(super) fn note(
        &mut self,
        now: Instant,
        file: FileId,
        (path, user): (String, Uid),
        error: Error,
    ) -> u32 {
        if self.files.len() >= MOST && !self.files.contains_key(&file) {
            let oldest = self.files.iter().min_by_key(|(_, failure)| failure.next).map(|(&file, _)| file);
            oldest.and_then(|file| self.files.remove(&file));
            self.overflowed = true;
        }
        let tries = self.files.get(&file).map_or(1, |failure| failure.tries + 1);
        if tries == 1 {
            tracing::warn!(%path, %user, %error, "cannot drain a file; the buffer keeps it and the drain retries");
        }
        if is_backend_error(&error) {
            self.streak += 1;
            if self.streak.is_multiple_of(STREAK) {
                self.pause = Some(now + pause(self.streak / STREAK));
            }
        }
        self.files.insert(file, Failure { path, user, error, tries, next: now + pause(tries) });
        tries
    }

    /// The file was drained.
    pub(super) fn resolved(&mut self, file: FileId) {
        self.files.remove(&file);
        (self.streak, self.pause) = (0, None);
    }

    /// A request wants the file: it is tried at once, and its tries are counted anew.
    pub(super) fn retry_now(&mut self, now: Instant, file: FileId) {
        self.pause = None;
        if let Some(failure) = self.files.get_mut(&file) {
            (failure.tries, failure.next) = (0, now);
        }
    }

    /// The file no longer has to be drained.
    pub(super) fn forget(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    /// Whether a file may be tried now.
    pub(super) fn may_try(&self, now: Instant, file: FileId) -> bool {
        self.files.get(&file).is_none_or(|failure| failure.next <= now)
    }

    /// Files whose retry is due without a request. Unsupported files are not retried.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = FileId> {
        let is_due =
            move |failure: &Failure| failure.next <= now && failure.error.kind() != ErrorKind::Unsupported;
        self.files.iter().filter(move |(_, failure)| is_due(failure)).map(|(&file, _)| file)
    }

    /// Whether the drain pauses now.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.pause.is_some_and(|until| until > now)
    }

    /// How often a file has failed.
    pub(super) fn tries(&self, file: FileId) -> u32 {
        self.files.get(&file).map_or(0, |failure| failure.tries)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Failure> {
        self.files.values()
    }
}

/// Whether an error concerns the back end rather than the file.
fn is_backend_error(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Io
            | ErrorKind::NoSpace
            | ErrorKind::Busy
            | ErrorKind::Unreachable
            | ErrorKind::NotPermitted
    )
}

fn pause(tries: u32) -> Duration {
    FIRST.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_back_off_and_a_failing_back_end_pauses_the_drain() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let note = |failures: &mut Failures, now, file| {
            failures.note(now, FileId(file), ("/x".into(), Uid(7)), ErrorKind::Io.into())
        };
        assert_eq!(note(&mut failures, now, 1), 1);
        assert!(!failures.may_try(now, FileId(1)) && failures.may_try(now, FileId(2)));
        assert!(failures.may_try(now + FIRST, FileId(1)));
        assert_eq!(note(&mut failures, now + FIRST, 1), 2);
        assert!(
            !failures.may_try(now + 2 * FIRST, FileId(1)) && failures.may_try(now + 3 * FIRST, FileId(1))
        );
        let tries: u32 = (2..u64::from(STREAK)).map(|file| note(&mut failures, now, file)).sum();
        assert_eq!(tries, STREAK - 2);
        assert!(failures.is_paused(now) && !failures.is_paused(now + FIRST));
        failures.retry_now(now, FileId(1));
        assert!(!failures.is_paused(now) && failures.may_try(now, FileId(1)));
        assert_eq!(note(&mut failures, now, 1), 1, "a request wants it");
        let mut due: Vec<FileId> = failures.due(now + FIRST).collect();
        due.sort_unstable();
        assert_eq!(due, (1..u64::from(STREAK)).map(FileId).collect::<Vec<_>>());
        assert_eq!(failures.due(now).count(), 0);
        failures.resolved(FileId(1));
        assert!(!failures.is_paused(now) && failures.all().count() > 1);
        assert_eq!(pause(100), LONGEST);
    }
}
