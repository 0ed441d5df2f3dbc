//! What was made or changed here, and may have to be made or changed behind.

use super::scout::Walk;
use forebay_model::FileId;
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Most things of which it is remembered that their names or attributes changed.
const MOST: usize = 1 << 16;

/// Things in the order in which they changed first.
#[derive(Default)]
pub(super) struct Notes {
    files: HashSet<FileId>,
    order: VecDeque<(Instant, FileId)>,
    /// More has changed than is noted, since then.
    more: Option<Instant>,
    /// Everything is being looked at.
    pub(super) sweep: Option<Walk>,
}

impl Notes {
    /// Everything may have changed.
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

    /// Something has changed of which it is not remembered what.
    pub(super) fn note_more(&mut self, now: Instant) {
        self.more.get_or_insert(now);
    }

    /// Some of what changed so long ago, which is forgotten with that. When it is more than is noted, everything is
    /// looked at from now on.
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
    fn each_is_due_in_its_own_time_and_what_was_forgotten_makes_everything_due() {
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
