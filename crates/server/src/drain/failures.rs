//! What could not be drained, why, and when it is tried again.

use forebay_model::{Error, ErrorKind, FileId, Uid};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);
/// Most files of which it is told why they were not drained.
const MOST: usize = 4096;
/// So many failures without a success in between are the back end's.
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

/// All failures that were not made good yet.
#[derive(Default)]
pub(super) struct Failures {
    files: HashMap<FileId, Failure>,
    streak: u32,
    /// Nothing is tried before.
    pause: Option<Instant>,
    /// There were more than are noted.
    pub(super) forgot: bool,
}

impl Failures {
    /// Something was not drained; returns how often that was so.
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
            self.forgot = true;
        }
        let tries = self.files.get(&file).map_or(1, |failure| failure.tries + 1);
        if tries == 1 {
            tracing::warn!(%path, %user, %error, "this could not be drained; it is kept, and tried again");
        }
        if is_the_back_ends(&error) {
            self.streak += 1;
            if self.streak.is_multiple_of(STREAK) {
                self.pause = Some(now + pause(self.streak / STREAK));
            }
        }
        self.files.insert(file, Failure { path, user, error, tries, next: now + pause(tries) });
        tries
    }

    /// Something was drained.
    pub(super) fn made_good(&mut self, file: FileId) {
        self.files.remove(&file);
        (self.streak, self.pause) = (0, None);
    }

    /// Somebody asks for it: it is tried at once, as often as at first.
    pub(super) fn try_anew(&mut self, now: Instant, file: FileId) {
        self.pause = None;
        if let Some(failure) = self.files.get_mut(&file) {
            (failure.tries, failure.next) = (0, now);
        }
    }

    /// It is not to be drained any more.
    pub(super) fn forget(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    /// Whether a file may be tried.
    pub(super) fn may_try(&self, now: Instant, file: FileId) -> bool {
        self.files.get(&file).is_none_or(|failure| failure.next <= now)
    }

    /// What is to be tried again, though nobody waits for it. What cannot be done at all is not.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = FileId> {
        let is_due =
            move |failure: &Failure| failure.next <= now && failure.error.kind() != ErrorKind::Unsupported;
        self.files.iter().filter(move |(_, failure)| is_due(failure)).map(|(&file, _)| file)
    }

    /// Whether nothing is to be tried now.
    pub(super) fn rests(&self, now: Instant) -> bool {
        self.pause.is_some_and(|until| until > now)
    }

    /// How often a file was tried in vain.
    pub(super) fn tries(&self, file: FileId) -> u32 {
        self.files.get(&file).map_or(0, |failure| failure.tries)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Failure> {
        self.files.values()
    }
}

/// Whether an error says more of the back end than of the file.
fn is_the_back_ends(error: &Error) -> bool {
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
    fn pauses_grow_and_a_back_end_that_fails_everything_is_left_alone() {
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
        assert!(failures.rests(now) && !failures.rests(now + FIRST));
        failures.try_anew(now, FileId(1));
        assert!(!failures.rests(now) && failures.may_try(now, FileId(1)));
        assert_eq!(note(&mut failures, now, 1), 1, "it was asked for");
        let mut due: Vec<FileId> = failures.due(now + FIRST).collect();
        due.sort_unstable();
        assert_eq!(due, (1..u64::from(STREAK)).map(FileId).collect::<Vec<_>>());
        assert_eq!(failures.due(now).count(), 0);
        failures.made_good(FileId(1));
        assert!(!failures.rests(now) && failures.all().count() > 1);
        assert_eq!(pause(100), LONGEST);
    }
}
