//! Open files and directories, by the kernel's handles.

use crate::list::Listing;
use crate::pages::Pages;
use forebay_client::File;
use forebay_model::{Error, ErrorKind, Result};
use fuser::FileHandle;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open file or directory.
pub(crate) enum Open {
    /// A file and the state of its pages.
    File(File, Arc<Pages>),
    Directory(Listing),
}

/// All open files and directories. The server limits their number.
#[derive(Default)]
pub(crate) struct Handles {
    open: RwLock<HashMap<u64, Arc<Open>>>,
    next: AtomicU64,
}

impl Handles {
    pub(crate) fn insert(&self, open: Open) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(handle, Arc::new(open));
        FileHandle(handle)
    }

    fn get(&self, handle: FileHandle) -> Option<Arc<Open>> {
        self.open.read().get(&handle.0).cloned()
    }

    /// Removes a handle. Its file is closed when the last request on it is done.
    pub(crate) fn remove(&self, handle: FileHandle) {
        let gone = self.open.write().remove(&handle.0);
        drop(gone);
    }

    /// Calls `act` with an open file.
    pub(crate) fn with_file<T>(&self, handle: FileHandle, act: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        match self.get(handle).as_deref() {
            Some(Open::File(file, _)) => act(file),
            _ => Err(not_open(handle)),
        }
    }

    /// Calls `act` with an open file and its pages.
    pub(crate) fn with_pages<T>(
        &self,
        handle: FileHandle,
        act: impl FnOnce(&File, &Arc<Pages>) -> Result<T>,
    ) -> Result<T> {
        match self.get(handle).as_deref() {
            Some(Open::File(file, pages)) => act(file, pages),
            _ => Err(not_open(handle)),
        }
    }

    /// Calls `act` with an open directory.
    pub(crate) fn with_directory<T>(
        &self,
        handle: FileHandle,
        act: impl FnOnce(&Listing) -> Result<T>,
    ) -> Result<T> {
        match self.get(handle).as_deref() {
            Some(Open::Directory(listing)) => act(listing),
            _ => Err(not_open(handle)),
        }
    }
}

fn not_open(handle: FileHandle) -> Error {
    Error::new(ErrorKind::BadHandle, format!("the kernel's handle {handle} is not open"))
}
