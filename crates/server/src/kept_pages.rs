//! Files of which mounts cache pages that programs may store into.
//!
//! The kernel of a mount writes whole pages back, so its pages cannot be shared with processes that map the file's memory
//! object: each side would undo stores of the other. One side at a time may therefore store into mappings of a file.
//!
//! **Invariant**: no process gets a writable memory object of a file while a client keeps pages of it, and no client
//! begins to keep pages while a process has such an object. A client keeps them until it closes the file.

use crate::opens::Hold;
use forebay_model::{Error, ErrorKind, FileId, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

#[derive(Default)]
pub(crate) struct KeptPages {
    files: Mutex<HashMap<FileId, Kept>>,
}

#[derive(Default)]
struct Kept {
    /// The open files of the clients that keep pages. At most one for each open file.
    by: Vec<Weak<Hold>>,
    /// Number of requests that are about to hand out a writable memory object.
    mapping: usize,
}

/// A writable memory object is about to be handed out; meanwhile no client begins to keep pages of the file.
pub(crate) struct MappingGuard<'a> {
    kept: &'a KeptPages,
    file: FileId,
}

impl Drop for MappingGuard<'_> {
    fn drop(&mut self) {
        let mut files = self.kept.lock();
        if let Some(kept) = files.get_mut(&self.file) {
            kept.mapping -= 1;
        }
        tidy(&mut files, self.file);
    }
}

/// Removes files that were closed.
fn tidy(files: &mut HashMap<FileId, Kept>, file: FileId) {
    let Some(kept) = files.get_mut(&file) else { return };
    kept.by.retain(|hold| hold.strong_count() > 0);
    if kept.by.is_empty() && kept.mapping == 0 {
        files.remove(&file);
    }
}

impl KeptPages {
    /// Fails while a client keeps pages of the file.
    pub(crate) fn begin_mapping(&self, file: FileId) -> Result<MappingGuard<'_>> {
        let mut files = self.lock();
        tidy(&mut files, file);
        let kept = files.entry(file).or_default();
        if !kept.by.is_empty() {
            let text = "it cannot be mapped for writing now: a program on a mount maps it for writing, and its memory \
                        cannot be shared with the library; end that mapping, or use the mount for both";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        kept.mapping += 1;
        Ok(MappingGuard { kept: self, file })
    }

    /// A client begins to keep pages of an open file, unless `is_mapped` says that processes have its memory object.
    pub(crate) fn keep(&self, hold: &Arc<Hold>, is_mapped: impl Fn() -> Result<bool>) -> Result<()> {
        let file = hold.file();
        let known = {
            let mut files = self.lock();
            tidy(&mut files, file);
            let kept = files.entry(file).or_default();
            if kept.mapping > 0 {
                return Err(is_shared(file));
            }
            let known = kept.by.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(hold)));
            if !known {
                kept.by.push(Arc::downgrade(hold));
            }
            known
        };
        // From here on no process gets the object.
        let mapped = if known { Ok(false) } else { is_mapped() };
        match mapped {
            Ok(false) => Ok(()),
            refused => {
                self.forget(hold);
                refused.and_then(|_| Err(is_shared(file)))
            }
        }
    }

    fn forget(&self, hold: &Arc<Hold>) {
        let mut files = self.lock();
        if let Some(kept) = files.get_mut(&hold.file()) {
            kept.by.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(hold)));
        }
        tidy(&mut files, hold.file());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Kept>> {
        self.files.lock()
    }
}

fn is_shared(file: FileId) -> Error {
    let text = format!(
        "file {file} cannot be mapped for writing on a mount now: a process maps it for writing with the library; end \
         that mapping, or use the mount for both"
    );
    Error::new(ErrorKind::Unsupported, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opens::Opens;
    use crate::opens::tests::Diary;
    use crate::per_user::tests::UNPRIVILEGED;

    #[test]
    fn pages_are_kept_or_an_object_is_shared_but_never_both() {
        let opens = Opens::new(9, UNPRIVILEGED, Box::new(Diary::default()));
        let (one, two) = (Arc::new(opens.hold(FileId(7)).unwrap()), Arc::new(opens.hold(FileId(7)).unwrap()));
        let kept = KeptPages::default();
        let (free, shared) = (|| Ok(false), || Ok(true));
        assert_eq!(kept.keep(&one, shared).unwrap_err().kind(), ErrorKind::Unsupported);
        drop(kept.begin_mapping(FileId(7)).expect("the refused client keeps nothing"));
        let mapping = kept.begin_mapping(FileId(7)).unwrap();
        assert!(kept.keep(&one, free).is_err(), "an object is about to be handed out");
        drop(mapping);
        for hold in [&one, &two, &one] {
            kept.keep(hold, free).unwrap();
        }
        drop(two);
        assert!(kept.begin_mapping(FileId(7)).is_err(), "one client keeps pages still");
        drop(kept.begin_mapping(FileId(8)).expect("another file"));
        drop(one);
        drop(kept.begin_mapping(FileId(7)).expect("all are closed"));
        assert!(kept.lock().is_empty());
    }
}
