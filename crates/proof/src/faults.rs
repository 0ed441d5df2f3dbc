//! Injected faults of the back-end directory, suspended while service and model are compared.

use forebay_model::{Error, ErrorKind};
use std::fs;
use std::path::PathBuf;

/// Controls the injected faults.
#[derive(Default)]
pub(crate) struct Faults {
    /// Faults are suspended while these files exist. Empty if there are no faults.
    pause_files: Vec<PathBuf>,
}

/// Suspends the faults while it is held.
pub(crate) struct Pause(Vec<PathBuf>);

impl Faults {
    /// Enables the faults.
    pub(crate) fn begin(pause_files: Vec<PathBuf>) -> Faults {
        drop(Pause(pause_files.clone()));
        Faults { pause_files }
    }

    pub(crate) fn pause(&self) -> Pause {
        self.pause_files.iter().for_each(|path| drop(fs::File::create(path).expect("file created")));
        Pause(self.pause_files.clone())
    }

    /// Whether an injected fault may have caused this error.
    pub(crate) fn explain(&self, error: &Error) -> bool {
        !self.pause_files.is_empty() && error.kind() == ErrorKind::Io
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| fs::remove_file(path).expect("file removed"));
    }
}
