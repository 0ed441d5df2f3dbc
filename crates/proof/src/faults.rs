//! A directory behind that fails now and then, but not while both worlds are compared.

use forebay_model::{Error, ErrorKind};
use std::fs;
use std::path::PathBuf;

/// What makes the directory behind fail.
#[derive(Default)]
pub(crate) struct Faults {
    /// As long as these exist it does not. Nothing where it never does.
    calm: Vec<PathBuf>,
}

/// Nothing fails as long as this is held.
pub(crate) struct Pause(Vec<PathBuf>);

impl Faults {
    /// From now on it fails.
    pub(crate) fn begin(calm: Vec<PathBuf>) -> Faults {
        drop(Pause(calm.clone()));
        Faults { calm }
    }

    pub(crate) fn pause(&self) -> Pause {
        self.calm.iter().for_each(|path| drop(fs::File::create(path).expect("a file can be made")));
        Pause(self.calm.clone())
    }

    /// Whether something may have failed, or may not have been told to be done, because of them.
    pub(crate) fn explain(&self, error: &Error) -> bool {
        !self.calm.is_empty() && error.kind() == ErrorKind::Io
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| fs::remove_file(path).expect("it was there a moment ago"));
    }
}
