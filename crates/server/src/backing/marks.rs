//! Writeback marks: the files that the server writes to in the back end.
//!
//! A mark is durable before the first change in the back end, and ends when the new version has been recorded. While it
//! exists, changes of size and time are the server's own, so that the file is identified by its serial number alone.
//!
//! Some back ends assemble a file when its last writer closes it. A mark keeps such a file open: otherwise all its
//! bytes would be copied again whenever the drain pauses.

use super::Backing;
use forebay_backend::Object;
use forebay_model::{Error, ErrorKind, FileId, Name, Result};
use forebay_store::{Batch, KeySpace};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::ops::ControlFlow;

const MARKS: &[u8] = KeySpace::WritebackMark.prefix();

/// All writeback marks.
#[derive(Default)]
pub(super) struct WritebackMarks {
    table: Mutex<HashMap<FileId, Mark>>,
}

#[derive(Default)]
pub(super) struct Mark {
    /// How often bytes of it have reached the back end.
    count: u64,
    /// Keeps the file open in the back end, where that is needed.
    keep: Option<Box<dyn Object>>,
}

fn key(file: FileId) -> Vec<u8> {
    [MARKS, &file.0.to_be_bytes()].concat()
}

impl WritebackMarks {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Mark>> {
        self.table.lock()
    }
}

impl Backing {
    /// Sets the writeback mark of a file; true if it had none.
    pub(crate) fn set_mark(&self, file: FileId) -> Result<bool> {
        if self.writeback_marks.lock().contains_key(&file) {
            return Ok(false);
        }
        let mut batch = Batch::default();
        batch.put(key(file), []);
        self.kv.commit(batch)?;
        if self.durable {
            self.kv.sync()?;
        }
        self.writeback_marks.lock().insert(file, Mark::default());
        self.read_cache.forget(file);
        Ok(true)
    }

    /// How often bytes of a file have reached the back end under its mark; `None` if it has no mark.
    pub(crate) fn mark(&self, file: FileId) -> Option<u64> {
        self.writeback_marks.lock().get(&file).map(|mark| mark.count)
    }

    /// Bytes of a file are about to reach the back end.
    pub(crate) fn count_writeback(&self, file: FileId) {
        if let Some(mark) = self.writeback_marks.lock().get_mut(&file) {
            mark.count += 1;
        }
    }

    /// Keeps a marked file open, if the back end assembles files when they are closed.
    pub(super) fn keep(&self, file: FileId, path: &[Name]) -> Result<()> {
        if !self.backend.gathers() || self.is_held_open(file) {
            return Ok(());
        }
        let keep = self.ask(|backend| backend.open_to_write(path))?;
        self.keep_on(file, keep);
        Ok(())
    }

    /// Stores this open file, if it is needed.
    fn keep_on(&self, file: FileId, keep: Box<dyn Object>) {
        let spare = match self.writeback_marks.lock().get_mut(&file) {
            Some(mark) if mark.keep.is_none() => {
                mark.keep = Some(keep);
                None
            }
            _ => Some(keep),
        };
        if spare.is_some() {
            self.ask(|_| drop(spare));
        }
    }

    /// Whether a marked file lies in parts in the back end.
    pub(crate) fn is_held_open(&self, file: FileId) -> bool {
        self.writeback_marks.lock().get(&file).is_some_and(|mark| mark.keep.is_some())
    }

    /// All marked files that lie in parts in the back end.
    pub(crate) fn all_held_open(&self) -> Vec<FileId> {
        if !self.backend.gathers() {
            return Vec::new();
        }
        let writeback_marks = self.writeback_marks.lock();
        writeback_marks.iter().filter(|(_, mark)| mark.keep.is_some()).map(|(file, _)| *file).collect()
    }

    /// Assembles a file that is kept open, and closes it. On failure it stays open.
    pub(super) fn gather(&self, file: FileId) -> Result<()> {
        let keep = self.writeback_marks.lock().get_mut(&file).and_then(|mark| mark.keep.take());
        let Some(keep) = keep else { return Ok(()) };
        match self.ask(|_| keep.gather()) {
            Err(error) if error.kind() != ErrorKind::Stale => {
                self.keep_on(file, keep);
                Err(error)
            }
            // A file that was removed meanwhile need not be assembled.
            _ => {
                self.ask(|_| drop(keep));
                Ok(())
            }
        }
    }

    /// Runs `act` if a file has a mark, which does not end meanwhile.
    pub(crate) fn while_marked<T>(&self, file: FileId, act: impl FnOnce() -> T) -> Option<T> {
        let _size_lock = self.lock_size(file);
        self.mark(file).is_some().then(act)
    }

    /// Adds the end of a mark to a batch.
    pub(crate) fn end_mark(file: FileId, batch: &mut Batch) {
        batch.remove(key(file));
    }

    /// The end of a mark was committed.
    pub(crate) fn drop_mark(&self, file: FileId) {
        let mark = self.take_mark(file);
        self.release_mark(mark);
    }

    /// Takes the mark of a file out of the table.
    pub(super) fn take_mark(&self, file: FileId) -> Option<Mark> {
        self.writeback_marks.lock().remove(&file)
    }

    /// Closes what a mark kept open in the back end, which may take long.
    pub(super) fn release_mark(&self, mark: Option<Mark>) {
        if let Some(keep) = mark.and_then(|mark| mark.keep) {
            self.ask(|_| drop(keep));
        }
    }

    /// Loads the marks of an earlier run of the server.
    pub(super) fn load_marks(&self) -> Result<()> {
        let mut bad = false;
        let mut table = self.writeback_marks.lock();
        self.kv.scan(MARKS, &[], &mut |key, _| {
            match key[MARKS.len()..].try_into() {
                Ok(number) => drop(table.insert(FileId(u64::from_be_bytes(number)), Mark::default())),
                Err(_) => bad = true,
            }
            ControlFlow::Continue(())
        })?;
        match bad {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::BadStore, "a writeback mark cannot be decoded")),
        }
    }

    /// All files with marks.
    pub(crate) fn all_marked(&self) -> Vec<FileId> {
        self.writeback_marks.lock().keys().copied().collect()
    }
}
