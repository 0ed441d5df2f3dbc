//! Whether the process at the other end lives.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;

/// Whether a file is locked through another open file, as the client of a ring locks it as long as it lives.
#[must_use]
pub fn is_locked(file: &File) -> bool {
    let free = flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if free {
        // If unlocking fails, a later check still finds the same.
        let _ = flock(file, FlockOperation::Unlock);
    }
    !free
}
