//! Files whose names or attributes have changed in the buffer and may have to be changed in the back end.

use super::scanner::Walk;
use forebay_model::FileId;
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Most changed files that are remembered.
const MOST: usize = 1 << 16;

/// Changed files, ordered by their first change.
#[derive(Default)]
pub(super) struct Notes {
    files: HashSet<FileId>,
    order: VecDeque<(Instant, FileId)>,
    /// More files have changed than are recorded, since this time.
    more: Option<Instant>,
    /// A scan of all files is under way.
    pub(super) sweep: Option<Walk>,
}

impl Notes {
    /// All files may have changed.
    pub(super) fn of_everything(now: Instant) -> Notes {
        Notes { more: Some(now), ..Notes::default() }
    }

    pub(super) fn note(&mut self, now: Instant, file: FileId) {
        if self.files.len() >= MOST {
            return self.note_more(now);
        }
        if self.files.insert(file) {
            self.order.push_back((now, file));
        }
    }

    /// Records that some unknown file has changed.
    pub(super) fn note_more(&mut self, now: Instant) {
        self.more.get_or_insert(now);
    }

    /// Takes up to `most` files that changed at least `age` ago. Begins a scan of all files if more changed than were
    /// recorded.
    pub(super) fn due(&mut self, now: Instant, age: Duration, most: usize) -> Vec<FileId> {
        let is_due = |since: &Instant| now.duration_since(*since) >= age;
        if self.sweep.is_none() && self.more.as_ref().is_some_and(is_due) {
            self.more = None;
            self.sweep = Some(Walk::new(None));
        }
        let count = self.order.iter().take(most).take_while(|(since, _)| is_due(since)).count();
        let due: Vec<FileId> = self.order.drain(..count).map(|(_, file)| file).collect();
        for file in &due {
            self.files.remove(file);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_due_by_age_and_an_overflow_causes_a_full_scan() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut notes = Notes::default();
        notes.note(start, FileId(1));
        notes.note(start + second, FileId(2));
        notes.note(start + 2 * second, FileId(1));
        assert_eq!(notes.due(start + second, 2 * second, 9), []);
        assert_eq!(notes.due(start + 2 * second, 2 * second, 9), [FileId(1)]);
        notes.note(start + 2 * second, FileId(1));
        assert_eq!(notes.due(start + 9 * second, 2 * second, 1), [FileId(2)]);
        assert_eq!(notes.due(start + 9 * second, 2 * second, 1), [FileId(1)]);
        assert!(notes.sweep.is_none() && notes.files.is_empty());
        (0..=MOST as u64).for_each(|file| notes.note(start, FileId(file)));
        assert_eq!(notes.due(start + second, 2 * second, 9), []);
        assert!(notes.sweep.is_none());
        assert_eq!(notes.due(start + 2 * second, 2 * second, 9).len(), 9);
        assert!(notes.sweep.is_some());
        let mut notes = Notes::of_everything(start);
        assert!(notes.due(start + second, second, 9).is_empty() && notes.sweep.is_some());
    }
}
