//! Which files are open, by anybody: they outlive their last name until the last hold on them is let go.
//!
//! **Invariant**: whoever reads or changes the bytes of a file has a [`Hold`] on it, so that they are never
//! removed under his hands; each file without a name is buried exactly once.

use forebay_model::{Error, ErrorKind, FileId, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What happens when nobody has a file open any more.
pub(crate) trait Afterwards: Send + Sync {
    /// It still has a name.
    fn closed(&self, file: FileId);

    /// It has none: nobody can ever reach it again. False if it will be gone only when [`Opens::buried`] is called.
    fn bury(&self, file: FileId) -> bool;
}

/// Open files of all sessions.
pub(crate) struct Opens {
    table: Mutex<Table>,
    limit: usize,
    afterwards: Box<dyn Afterwards>,
    retired: AtomicBool,
}

#[derive(Default)]
struct Table {
    files: HashMap<FileId, Open>,
    total: usize,
}

#[derive(Default)]
struct Open {
    count: usize,
    state: State,
    set_id: Arc<AtomicBool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Named,
    /// No name is left.
    Orphan,
    /// It is being buried: nobody can hold it any more.
    Dying,
}

/// Keeps a file from being removed.
pub(crate) struct Hold {
    file: FileId,
    opens: Arc<Opens>,
    /// Whether it takes one of the places of the limit.
    counted: bool,
    /// Whether the file may have set-id bits, which it loses when its bytes change. Shared by all who hold it.
    set_id: Arc<AtomicBool>,
}

impl Opens {
    pub(crate) fn new(limit: usize, afterwards: Box<dyn Afterwards>) -> Arc<Opens> {
        Arc::new(Opens { table: Mutex::default(), limit, afterwards, retired: AtomicBool::new(false) })
    }

    /// Holds a file. Whether it exists has to be asked afterwards: only then the answer stays true.
    pub(crate) fn hold(self: &Arc<Opens>, file: FileId) -> Result<Hold> {
        let mut table = self.lock();
        self.room(&table)?;
        let open = table.files.entry(file).or_default();
        if open.state == State::Dying {
            return Err(Error::new(ErrorKind::Stale, format!("file {file} is gone")));
        }
        open.count += 1;
        let set_id = open.set_id.clone();
        table.total += 1;
        Ok(Hold { file, opens: self.clone(), counted: true, set_id })
    }

    /// Fails if nothing more can be held.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.room(&self.lock())
    }

    fn room(&self, table: &Table) -> Result<()> {
        if table.total < self.limit {
            return Ok(());
        }
        let text = format!("{} files are open already: close some, or raise limits.opens", self.limit);
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// The file has lost its last name. It is buried now, or when the last hold on it is let go.
    pub(crate) fn orphaned(&self, file: FileId) {
        let last = {
            let mut table = self.lock();
            let open = table.files.entry(file).or_default();
            open.state = if open.count > 0 { State::Orphan } else { State::Dying };
            open.count == 0
        };
        if last {
            self.bury(file);
        }
    }

    /// A file is about to lose its last name, and to be buried with it: nobody can hold it any more. Not if somebody does
    /// already. [`Opens::buried`] follows in any case.
    pub(crate) fn bury_at_once(&self, file: FileId) -> bool {
        match self.lock().files.entry(file) {
            Entry::Vacant(place) => {
                place.insert(Open { state: State::Dying, ..Open::default() });
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The file has been given a set-id bit. Whoever holds it from now on finds out by its mode.
    pub(crate) fn has_set_id(&self, file: FileId) {
        if let Some(open) = self.lock().files.get(&file) {
            open.set_id.store(true, Ordering::SeqCst);
        }
    }

    fn bury(&self, file: FileId) {
        if self.afterwards.bury(file) {
            self.buried(file);
        }
    }

    /// A file is gone for good.
    pub(crate) fn buried(&self, file: FileId) {
        self.lock().files.remove(&file);
    }

    /// Whether anybody has a file open, or uses it just now.
    pub(crate) fn is_held(&self, file: FileId) -> bool {
        self.lock().files.get(&file).is_some_and(|open| open.count > 0)
    }

    /// Holds a file without a name for its unknown openers, outside the limit.
    pub(crate) fn hold_orphan(self: &Arc<Opens>, file: FileId) -> Hold {
        let mut table = self.lock();
        let open = table.files.entry(file).or_default();
        open.count += 1;
        open.state = State::Orphan;
        let set_id = open.set_id.clone();
        Hold { file, opens: self.clone(), counted: false, set_id }
    }

    /// The server ends: what is let go from now on is not closed, because its openers will come back for it.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    /// How many holds there are.
    pub(crate) fn count(&self) -> u64 {
        self.lock().total as u64
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    /// Which file.
    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// The file was seen with a set-id bit.
    pub(crate) fn has_set_id(&self) {
        self.set_id.store(true, Ordering::SeqCst);
    }

    /// Whether the file may have had a set-id bit; whoever asks takes it away.
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
            let open = table.files.get_mut(&self.file).expect("what is held is in the table");
            open.count -= 1;
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
            State::Dying => self.opens.bury(self.file),
            _ if retired => {}
            _ => self.opens.afterwards.closed(self.file),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes down what happened.
    #[derive(Clone, Default)]
    pub(crate) struct Diary(Arc<Mutex<Vec<String>>>);

    impl Diary {
        fn note(&self, what: &str, file: FileId) {
            self.0.lock().unwrap().push(format!("{what} {file}"));
        }

        pub(crate) fn check(&self, expected: &[&str]) {
            assert_eq!(*self.0.lock().unwrap(), expected);
        }
    }

    impl Afterwards for Diary {
        fn closed(&self, file: FileId) {
            self.note("closed", file);
        }

        fn bury(&self, file: FileId) -> bool {
            self.note("buried", file);
            true
        }
    }

    #[test]
    fn the_last_hold_on_a_file_without_a_name_buries_it() {
        let diary = Diary::default();
        let opens = Opens::new(3, Box::new(diary.clone()));
        let file = FileId(9);
        let (one, two) = (opens.hold(file).unwrap(), opens.hold(file).unwrap());
        drop(one);
        diary.check(&[]);
        drop(two);
        diary.check(&["closed 9"]);
        opens.orphaned(file);
        diary.check(&["closed 9", "buried 9"]);

        let (one, two) = (opens.hold(FileId(7)).unwrap(), opens.hold(FileId(8)).unwrap());
        opens.orphaned(FileId(7));
        let three = opens.hold(FileId(7)).unwrap();
        assert_eq!(opens.hold(file).err().expect("refused").kind(), ErrorKind::Busy);
        drop((one, two));
        diary.check(&["closed 9", "buried 9", "closed 8"]);
        drop(three);
        drop(opens.hold_orphan(FileId(6)));
        diary.check(&["closed 9", "buried 9", "closed 8", "buried 7", "buried 6"]);
        assert_eq!(opens.count(), 0);
        let held = opens.hold(FileId(4)).unwrap();
        assert!(!opens.bury_at_once(FileId(4)));
        drop(held);
        assert!(opens.bury_at_once(FileId(4)) && opens.hold(FileId(4)).is_err());
        opens.buried(FileId(4));
        drop(opens.hold(FileId(4)).unwrap());
        diary.check(&["closed 9", "buried 9", "closed 8", "buried 7", "buried 6", "closed 4", "closed 4"]);
        let last = opens.hold_orphan(FileId(5));
        opens.retire();
        drop(last);
        diary.check(&["closed 9", "buried 9", "closed 8", "buried 7", "buried 6", "closed 4", "closed 4"]);
    }
}
