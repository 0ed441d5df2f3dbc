//! The time after a start in which clients re-assert what they had open.
//!
//! Until it is over, no file that an earlier life of the server may have handed out is buried: neither those that
//! had no name when the server started, nor those that lose it now. Files made in this life need no such care.

use crate::opens::{Hold, Opens};
use forebay_model::FileId;
use forebay_wire::Token;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Holds for clients that may still come back.
pub(crate) struct Grace {
    /// `None` when the time is over.
    held: Mutex<Option<Held>>,
    /// The first file made in this life: ids only grow.
    first: FileId,
}

#[derive(Default)]
struct Held {
    /// What has no name.
    orphans: Vec<Hold>,
    /// What was vouched for elsewhere, by whom nothing else was heard here yet.
    vouched: HashMap<(FileId, u64), Hold>,
}

impl Grace {
    /// Holds what has no name; what is made from now on is `first` or later.
    pub(crate) fn begin(opens: &Arc<Opens>, orphans: Vec<FileId>, first: FileId) -> Grace {
        let orphans = orphans.into_iter().map(|file| opens.hold_orphan(file)).collect();
        Grace { held: Mutex::new(Some(Held { orphans, ..Held::default() })), first }
    }

    /// A file has lost its last name.
    pub(crate) fn orphaned(&self, opens: &Arc<Opens>, file: FileId) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            Some(held) if file < self.first => held.orphans.push(opens.hold_orphan(file)),
            _ => {
                drop(held);
                opens.orphaned(file);
            }
        }
    }

    /// Who opened a file in an earlier life uses it on another server: it is open, until he says more here.
    pub(crate) fn vouched(&self, token: &Token, hold: Hold) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = match &mut *held {
            Some(held) => held.vouched.insert((token.file, token.serial), hold),
            None => Some(hold),
        };
        drop(held);
        drop(spare);
    }

    /// He has said that he has it open, or that he has closed it.
    pub(crate) fn heard_of(&self, token: &Token) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let known = held.as_mut().and_then(|held| held.vouched.remove(&(token.file, token.serial)));
        drop(held);
        drop(known);
    }

    /// Whether nobody of an earlier life can have a file open.
    pub(crate) fn is_over_for(&self, file: FileId) -> bool {
        file >= self.first || !self.lasts()
    }

    /// Whether clients of an earlier life may still come back.
    pub(crate) fn lasts(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The time is over: what nobody claimed goes.
    pub(crate) fn end(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opens::tests::Diary;

    #[test]
    fn only_files_of_an_earlier_life_wait_for_their_openers() {
        let diary = Diary::default();
        let opens = Opens::new(9, Box::new(diary.clone()));
        let grace = Grace::begin(&opens, vec![FileId(3)], FileId(10));
        grace.orphaned(&opens, FileId(4));
        grace.orphaned(&opens, FileId(11));
        grace.orphaned(&opens, FileId(5));
        diary.check(&["buried 11"]);
        assert_eq!([FileId(9), FileId(10)].map(|file| grace.is_over_for(file)), [false, true]);
        let reopened = opens.hold(FileId(4)).unwrap();
        grace.end();
        assert!(grace.is_over_for(FileId(9)));
        diary.check(&["buried 11", "buried 3", "buried 5"]);
        drop(reopened);
        grace.orphaned(&opens, FileId(6));
        diary.check(&["buried 11", "buried 3", "buried 5", "buried 4", "buried 6"]);
    }

    #[test]
    fn what_is_used_elsewhere_is_open_until_its_opener_says_more() {
        let diary = Diary::default();
        let opens = Opens::new(9, Box::new(diary.clone()));
        let grace = Grace::begin(&opens, Vec::new(), FileId(10));
        let token = |file, serial| Token {
            file: FileId(file),
            access: forebay_model::Access::WRITE,
            uid: forebay_model::Uid(0),
            serial,
            seal: [0; 16],
        };
        for (file, serial) in [(3, 1), (3, 2), (3, 2), (4, 3)] {
            grace.vouched(&token(file, serial), opens.hold(FileId(file)).unwrap());
        }
        grace.heard_of(&token(3, 1));
        grace.heard_of(&token(3, 7));
        diary.check(&[]);
        grace.heard_of(&token(3, 2));
        diary.check(&["closed 3"]);
        grace.end();
        diary.check(&["closed 3", "closed 4"]);
        grace.vouched(&token(5, 4), opens.hold(FileId(5)).unwrap());
        diary.check(&["closed 3", "closed 4", "closed 5"]);
    }
}
