//! The grace period after a start, in which clients re-assert their open files.
//!
//! Until it is over, the server reaps no file that a client may have opened in an earlier boot: neither files without a
//! name at the start, nor files that lose their name now. Files created in this boot need no such protection.

use crate::opens::{Hold, Opens};
use forebay_model::FileId;
use forebay_store::Store;
use forebay_wire::Token;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Holds for clients that may still re-assert their files.
pub(crate) struct OrphanGrace {
    /// `None` after the grace period.
    held: Mutex<Option<Held>>,
    /// The first file created in this boot; ids only grow.
    first: FileId,
}

#[derive(Default)]
struct Held {
    /// Files without a name.
    orphans: Vec<Hold>,
    /// Tokens that other servers vouched for and whose clients have not contacted this server yet.
    vouched: HashMap<(FileId, u64), Hold>,
}

impl OrphanGrace {
    /// Holds the files without a name; files created from now on have ids of at least `first`.
    pub(crate) fn begin(opens: &Arc<Opens>, orphans: Vec<FileId>, first: FileId) -> OrphanGrace {
        let orphans = orphans.into_iter().map(|file| opens.hold_orphan(file)).collect();
        OrphanGrace { held: Mutex::new(Some(Held { orphans, ..Held::default() })), first }
    }

    /// A file has lost its last name.
    pub(crate) fn orphaned(&self, opens: &Arc<Opens>, file: FileId) {
        let mut held = self.held.lock();
        match &mut *held {
            Some(held) if file < self.first => held.orphans.push(opens.hold_orphan(file)),
            _ => {
                drop(held);
                opens.orphaned(file);
            }
        }
    }

    /// Passes files that lost their last name on to be reaped.
    pub(crate) fn take_orphaned(&self, store: &Store, opens: &Arc<Opens>) {
        for file in store.names().take_orphaned() {
            self.orphaned(opens, file);
        }
    }

    /// A client that opened a file in an earlier boot uses it on another server: the file stays open until the client
    /// contacts this server.
    pub(crate) fn vouched(&self, token: &Token, hold: Hold) {
        let mut held = self.held.lock();
        let spare = match &mut *held {
            Some(held) => held.vouched.insert((token.file, token.serial), hold),
            None => Some(hold),
        };
        drop(held);
        drop(spare);
    }

    /// The client has re-asserted or closed the file.
    pub(crate) fn release(&self, token: &Token) {
        let mut held = self.held.lock();
        let known = held.as_mut().and_then(|held| held.vouched.remove(&(token.file, token.serial)));
        drop(held);
        drop(known);
    }

    /// Whether no client of an earlier boot can have a file open.
    pub(crate) fn is_over_for(&self, file: FileId) -> bool {
        file >= self.first || !self.lasts()
    }

    /// Whether the grace period lasts.
    pub(crate) fn lasts(&self) -> bool {
        self.held.lock().is_some()
    }

    /// Ends the grace period and releases files that were not re-asserted.
    pub(crate) fn end(&self) {
        let held = self.held.lock().take();
        drop(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opens::tests::Diary;
    use crate::per_user::tests::UNPRIVILEGED;

    #[test]
    fn only_files_of_an_earlier_boot_wait_for_their_clients() {
        let diary = Diary::default();
        let opens = Opens::new(9, UNPRIVILEGED, Box::new(diary.clone()));
        let grace = OrphanGrace::begin(&opens, vec![FileId(3)], FileId(10));
        grace.orphaned(&opens, FileId(4));
        grace.orphaned(&opens, FileId(11));
        grace.orphaned(&opens, FileId(5));
        diary.check(&["reaped 11"]);
        assert_eq!([FileId(9), FileId(10)].map(|file| grace.is_over_for(file)), [false, true]);
        let reopened = opens.hold(FileId(4)).unwrap();
        grace.end();
        assert!(grace.is_over_for(FileId(9)));
        diary.check(&["reaped 11", "reaped 3", "reaped 5"]);
        drop(reopened);
        grace.orphaned(&opens, FileId(6));
        diary.check(&["reaped 11", "reaped 3", "reaped 5", "reaped 4", "reaped 6"]);
    }

    #[test]
    fn file_used_on_another_server_stays_open_until_its_client_reports() {
        let diary = Diary::default();
        let opens = Opens::new(9, UNPRIVILEGED, Box::new(diary.clone()));
        let grace = OrphanGrace::begin(&opens, Vec::new(), FileId(10));
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
        grace.release(&token(3, 1));
        grace.release(&token(3, 7));
        diary.check(&[]);
        grace.release(&token(3, 2));
        diary.check(&["closed 3"]);
        grace.end();
        diary.check(&["closed 3", "closed 4"]);
        grace.vouched(&token(5, 4), opens.hold(FileId(5)).unwrap());
        diary.check(&["closed 3", "closed 4", "closed 5"]);
    }
}
