//! The world behind the buffer, as far as names go: what a miss may still find there, and what has to change
//! there too.
//!
//! **Invariant**: the server asks before it answers a miss, and tells before it acknowledges a change. It changes the
//! buffer first, because there the rights of the caller are checked; an error from here is then the answer.
//!
//! **Deliberately absent**: bytes (there is nothing to drain to yet), paths from the root (a place is named as
//! the buffer names it, so that renaming a directory changes nothing here), and knowledge of regions.

#![forbid(unsafe_code)]

mod fake;

pub use fake::Fake;

use forebay_model::{Attr, FileId, Result};

/// A place in the namespace: a directory and a relative path below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// The directory.
    pub dir: FileId,
    /// The path below it, as the client wrote it; one name for every request but a walk.
    pub path: &'a [u8],
}

/// What stands behind the buffer. Every call may take as long as the world behind does.
pub trait Backend: Send + Sync {
    /// Whether it could ever have anything, so that a server without a back end never waits for one.
    fn exists(&self) -> bool;

    /// What is there, for a path that the buffer does not have.
    fn find(&self, place: Place<'_>) -> Result<Option<Attr>>;

    /// Removes a file or link, if it is there; says whether it was.
    fn unlink(&self, place: Place<'_>) -> Result<bool>;

    /// Removes an empty directory, if it is there; says whether it was.
    fn remove_dir(&self, place: Place<'_>) -> Result<bool>;

    /// Moves what is there, if anything is; says whether it was.
    fn rename(&self, from: Place<'_>, to: Place<'_>) -> Result<bool>;

    /// Sets the length of a file, if it is there; says whether it was.
    fn truncate(&self, file: FileId, size: u64) -> Result<bool>;
}

/// No back end: the buffer is all there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Backend for Nothing {
    fn exists(&self) -> bool {
        false
    }

    fn find(&self, _place: Place<'_>) -> Result<Option<Attr>> {
        Ok(None)
    }

    fn unlink(&self, _place: Place<'_>) -> Result<bool> {
        Ok(false)
    }

    fn remove_dir(&self, _place: Place<'_>) -> Result<bool> {
        Ok(false)
    }

    fn rename(&self, _from: Place<'_>, _to: Place<'_>) -> Result<bool> {
        Ok(false)
    }

    fn truncate(&self, _file: FileId, _size: u64) -> Result<bool> {
        Ok(false)
    }
}
