//! What the kernel's file handles stand for.

use crate::list::Listing;
use forebay_client::File;
use forebay_model::{Error, ErrorKind, Result};
use fuser::FileHandle;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Something open.
pub(crate) enum Open {
    File(File),
    Directory(Listing),
}

/// Everything open. The server bounds how many there can be.
#[derive(Default)]
pub(crate) struct Handles {
    open: RwLock<HashMap<u64, Arc<Open>>>,
    next: AtomicU64,
}

impl Handles {
    pub(crate) fn insert(&self, open: Open) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(open));
        FileHandle(handle)
    }

    fn get(&self, handle: FileHandle) -> Option<Arc<Open>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle.0).cloned()
    }

    /// Forgets a handle. Whatever it stands for is closed when the last request on it is done.
    pub(crate) fn remove(&self, handle: FileHandle) {
        let gone = self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.0);
        drop(gone);
    }

    /// Does something with an open file.
    pub(crate) fn with_file<T>(&self, handle: FileHandle, act: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        match self.get(handle).as_deref() {
            Some(Open::File(file)) => act(file),
            _ => Err(not_open(handle)),
        }
    }

    /// Does something with an open directory.
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
    Error::new(ErrorKind::BadHandle, format!("nothing is open under the kernel's handle {handle}"))
}
