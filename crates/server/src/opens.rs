//! The table of open files. An open file outlives its last name until its last hold is dropped.
//!
//! **Invariant**: every reader or writer of a file's bytes has a [`Hold`] on it, so the bytes are never removed while
//! they are in use; each file without a name is reaped exactly once.

use crate::per_user::{UserCounts, UserLimit};
use forebay_model::{Access, Error, ErrorKind, FileId, Result, Uid};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The set-user-id and set-group-id bits of a mode.
pub(crate) const SET_ID: u16 = 0o6000;

/// Called when the last hold on a file is dropped.
pub(crate) trait AfterLastClose: Send + Sync {
    /// The file still has a name.
    fn closed(&self, file: FileId);

    /// The file has no name, so no client can reach it again. Returns false if [`Opens::reaped`] is called later.
    fn reap(&self, file: FileId) -> bool;
}

pub(crate) struct Opens {
    table: Mutex<Table>,
    limit: usize,
    afterwards: Box<dyn AfterLastClose>,
    retired: AtomicBool,
}

struct Table {
    files: HashMap<FileId, Open>,
    total: usize,
    users: UserCounts,
}

#[derive(Default)]
struct Open {
    count: usize,
    /// Number of holds of files that are open for writing.
    writers: usize,
    state: State,
    set_id: Arc<AtomicBool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Named,
    /// The file has no name.
    Orphan,
    /// The file is being reaped and cannot be held any more.
    Dying,
}

/// Keeps a file from being removed.
pub(crate) struct Hold {
    file: FileId,
    opens: Arc<Opens>,
    /// Whether it counts towards the limit.
    counted: bool,
    /// The user who opened the file; `None` for the hold of a single request.
    user: Option<Uid>,
    /// Whether the file is open for writing.
    writes: bool,
    /// Whether the file may have set-id bits, which a write clears. Shared by all holds.
    set_id: Arc<AtomicBool>,
}

impl Opens {
    /// At most `limit` open files, and per user as `users` says.
    pub(crate) fn new(limit: usize, users: UserLimit, afterwards: Box<dyn AfterLastClose>) -> Arc<Opens> {
        let table = Table { files: HashMap::new(), total: 0, users: UserCounts::new(users) };
        Arc::new(Opens { table: Mutex::new(table), limit, afterwards, retired: AtomicBool::new(false) })
    }

    /// Holds a file for the duration of a request. Check its existence after this call: only then the result stays
    /// valid.
    pub(crate) fn hold(self: &Arc<Opens>, file: FileId) -> Result<Hold> {
        self.hold_for(file, None, false)
    }

    /// Holds a file for the user who opens it, until it is closed.
    pub(crate) fn open(self: &Arc<Opens>, file: FileId, uid: Uid, access: Access) -> Result<Hold> {
        self.hold_for(file, Some(uid), access.write)
    }

    fn hold_for(self: &Arc<Opens>, file: FileId, user: Option<Uid>, writes: bool) -> Result<Hold> {
        let mut table = self.lock();
        self.check_total(&table)?;
        let Table { files, users, .. } = &mut *table;
        let open = files.entry(file).or_default();
        if open.state == State::Dying {
            return Err(Error::new(ErrorKind::Stale, format!("file {file} is gone")));
        }
        if let Some(Err(error)) = user.map(|uid| users.add(uid)) {
            if open.count == 0 {
                files.remove(&file);
            }
            return Err(error);
        }
        open.count += 1;
        open.writers += usize::from(writes);
        let set_id = open.set_id.clone();
        table.total += 1;
        Ok(Hold { file, opens: self.clone(), counted: true, user, writes, set_id })
    }

    /// Fails if this user cannot open another file.
    pub(crate) fn check_room(&self, uid: Uid) -> Result<()> {
        let table = self.lock();
        self.check_total(&table)?;
        table.users.check(uid)
    }

    fn check_total(&self, table: &Table) -> Result<()> {
        if table.total < self.limit {
            return Ok(());
        }
        let text = format!("too many open files ({}): close some, or raise limits.opens", self.limit);
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// The file has lost its last name. It is reaped now, or when its last hold is dropped.
    pub(crate) fn orphaned(&self, file: FileId) {
        let last = {
            let mut table = self.lock();
            let open = table.files.entry(file).or_default();
            open.state = if open.count > 0 { State::Orphan } else { State::Dying };
            open.count == 0
        };
        if last {
            self.reap(file);
        }
    }

    /// A held file is about to get a name; returns whether it had none.
    pub(crate) fn named(&self, file: FileId) -> bool {
        let mut table = self.lock();
        let orphan = table.files.get_mut(&file).filter(|open| open.state == State::Orphan);
        orphan.map(|open| open.state = State::Named).is_some()
    }

    /// Marks a file as being reaped together with the removal of its last name. Returns false if the file is held.
    /// [`Opens::reaped`] must follow in any case.
    pub(crate) fn reap_at_once(&self, file: FileId) -> bool {
        match self.lock().files.entry(file) {
            Entry::Vacant(place) => {
                place.insert(Open { state: State::Dying, ..Open::default() });
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The file got a set-id bit. Later holders learn it from the file's mode.
    pub(crate) fn has_set_id(&self, file: FileId) {
        if let Some(open) = self.lock().files.get(&file) {
            open.set_id.store(true, Ordering::SeqCst);
        }
    }

    fn reap(&self, file: FileId) {
        if self.afterwards.reap(file) {
            self.reaped(file);
        }
    }

    /// The file was removed.
    pub(crate) fn reaped(&self, file: FileId) {
        self.lock().files.remove(&file);
    }

    /// Whether the file is open or in use by a request.
    pub(crate) fn is_held(&self, file: FileId) -> bool {
        self.lock().files.get(&file).is_some_and(|open| open.count > 0)
    }

    /// Whether a session has the file open for writing.
    pub(crate) fn has_writers(&self, file: FileId) -> bool {
        self.lock().files.get(&file).is_some_and(|open| open.writers > 0)
    }

    /// Holds a file without a name for clients that may re-assert it, outside the limit.
    pub(crate) fn hold_orphan(self: &Arc<Opens>, file: FileId) -> Hold {
        let mut table = self.lock();
        let open = table.files.entry(file).or_default();
        open.count += 1;
        open.state = State::Orphan;
        let set_id = open.set_id.clone();
        Hold { file, opens: self.clone(), counted: false, user: None, writes: false, set_id }
    }

    /// The server stops: holds dropped from now on do not close files, because their clients will re-assert them.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    /// Number of holds.
    pub(crate) fn count(&self) -> u64 {
        self.lock().total as u64
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Hold {
    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// The file was seen with a set-id bit.
    pub(crate) fn has_set_id(&self) {
        self.set_id.store(true, Ordering::SeqCst);
    }

    /// Whether the file may have a set-id bit; the caller must clear it.
    pub(crate) fn take_set_id(&self) -> bool {
        self.set_id.load(Ordering::Relaxed) && self.set_id.swap(false, Ordering::SeqCst)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let retired = self.opens.retired.load(Ordering::SeqCst);
        let state = {
            let mut table = self.opens.lock();
            table.total -= usize::from(self.counted);
            if let Some(uid) = self.user {
                table.users.remove(uid);
            }
            let open = table.files.get_mut(&self.file).expect("held files are in the table");
            open.count -= 1;
            open.writers -= usize::from(self.writes);
            if open.count > 0 {
                return;
            }
            match open.state {
                State::Orphan if !retired => open.state = State::Dying,
                _ => drop(table.files.remove(&self.file)),
            }
            table.files.get(&self.file).map_or(State::Named, |open| open.state)
        };
        match state {
            State::Dying => self.opens.reap(self.file),
            _ if retired => {}
            _ => self.opens.afterwards.closed(self.file),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::per_user::tests::UNPRIVILEGED;

    /// Records calls.
    #[derive(Clone, Default)]
    pub(crate) struct Diary(Arc<Mutex<Vec<String>>>);

    impl Diary {
        fn note(&self, what: &str, file: FileId) {
            self.0.lock().push(format!("{what} {file}"));
        }

        pub(crate) fn check(&self, expected: &[&str]) {
            assert_eq!(*self.0.lock(), expected);
        }
    }

    impl AfterLastClose for Diary {
        fn closed(&self, file: FileId) {
            self.note("closed", file);
        }

        fn reap(&self, file: FileId) -> bool {
            self.note("reaped", file);
            true
        }
    }

    #[test]
    fn last_hold_on_a_file_without_a_name_reaps_it() {
        let diary = Diary::default();
        let opens = Opens::new(3, UNPRIVILEGED, Box::new(diary.clone()));
        let file = FileId(9);
        let (one, two) = (opens.hold(file).unwrap(), opens.hold(file).unwrap());
        drop(one);
        diary.check(&[]);
        drop(two);
        diary.check(&["closed 9"]);
        opens.orphaned(file);
        diary.check(&["closed 9", "reaped 9"]);

        let (one, two) = (opens.hold(FileId(7)).unwrap(), opens.hold(FileId(8)).unwrap());
        opens.orphaned(FileId(7));
        let three = opens.hold(FileId(7)).unwrap();
        assert_eq!(opens.hold(file).err().expect("refused").kind(), ErrorKind::Busy);
        drop((one, two));
        diary.check(&["closed 9", "reaped 9", "closed 8"]);
        assert!(opens.named(FileId(7)) && !opens.named(FileId(7)));
        opens.orphaned(FileId(7));
        drop(three);
        drop(opens.hold_orphan(FileId(6)));
        diary.check(&["closed 9", "reaped 9", "closed 8", "reaped 7", "reaped 6"]);
        assert_eq!(opens.count(), 0);
        let held = opens.hold(FileId(4)).unwrap();
        assert!(!opens.reap_at_once(FileId(4)));
        drop(held);
        assert!(opens.reap_at_once(FileId(4)) && opens.hold(FileId(4)).is_err());
        opens.reaped(FileId(4));
        drop(opens.hold(FileId(4)).unwrap());
        diary.check(&["closed 9", "reaped 9", "closed 8", "reaped 7", "reaped 6", "closed 4", "closed 4"]);
        let last = opens.hold_orphan(FileId(5));
        opens.retire();
        drop(last);
        diary.check(&["closed 9", "reaped 9", "closed 8", "reaped 7", "reaped 6", "closed 4", "closed 4"]);
    }

    #[test]
    fn open_files_per_user_are_limited() {
        let diary = Diary::default();
        let users = UserLimit { what: "open files", key: "user_opens", most: 2, owner: Some(Uid(1)) };
        let opens = Opens::new(9, users, Box::new(diary.clone()));
        let held = [
            opens.open(FileId(5), Uid(7), Access::READ).unwrap(),
            opens.open(FileId(5), Uid(7), Access::READ).unwrap(),
        ];
        let refused = opens.open(FileId(6), Uid(7), Access::READ).err().expect("the third");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.to_string().contains("limits.user_opens"), "{refused}");
        assert!(opens.check_room(Uid(7)).is_err() && opens.check_room(Uid(8)).is_ok());
        assert!(!opens.is_held(FileId(6)) && opens.reap_at_once(FileId(6)), "the refused open left no entry");
        opens.reaped(FileId(6));
        drop((opens.hold(FileId(5)).unwrap(), opens.open(FileId(6), Uid(8), Access::READ).unwrap()));
        let writes = opens.open(FileId(6), Uid(8), Access::WRITE).unwrap();
        assert!(opens.has_writers(FileId(6)) && !opens.has_writers(FileId(5)));
        drop(writes);
        assert!(!opens.has_writers(FileId(6)));
        let owners: Vec<Hold> =
            (0..4).map(|_| opens.open(FileId(7), Uid(1), Access::READ).unwrap()).collect();
        drop(held);
        assert!(opens.open(FileId(6), Uid(7), Access::READ).is_ok());
        drop(owners);
        assert_eq!(opens.count(), 0);
    }
}
