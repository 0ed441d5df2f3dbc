//! The files of queues in which clients of this machine ask, and of the epochs by which they see how long an answer counts:
//! beside the rings, and gone with the process.

use super::{Data, Disk};
use crate::files::failed;
use forebay_model::{Error, ErrorKind, Result};
use forebay_shm::{BELL_BYTES, EPOCHS_BYTES, EPOCHS_NAME, Epochs, QUEUE_BYTES};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Most queues of a store.
pub const MOST_QUEUES: u32 = 256;
/// Most bells of those who serve them.
pub const MOST_BELLS: u32 = 8;

const QUEUE: &str = ".queue";
const BELL: &str = ".bell";

/// What the files of all queues may take.
pub(crate) fn queues_cost() -> u64 {
    u64::from(MOST_QUEUES) * QUEUE_BYTES + u64::from(MOST_BELLS) * BELL_BYTES + EPOCHS_BYTES
}

fn queue_name(number: u32) -> String {
    format!("q{number:05}{QUEUE}")
}

/// Removes what an earlier life left: whoever asked there asks again, and believes nothing that it was told.
pub(super) fn clear_queues(disk: &dyn Disk) -> Result<()> {
    if let Some(file) = disk.open(EPOCHS_NAME)? {
        let unusable = |error| Error::new(ErrorKind::Io, format!("cannot map {EPOCHS_NAME}: {error}"));
        Epochs::end(&file).map_err(unusable)?;
        disk.remove(EPOCHS_NAME)?;
    }
    for name in disk.names()? {
        if name.ends_with(QUEUE) || name.ends_with(BELL) {
            disk.remove(&name)?;
        }
    }
    Ok(())
}

impl Data {
    /// Makes the file of a queue, in place of one with that number.
    pub fn make_queue(&self, number: u32) -> Result<(File, PathBuf)> {
        self.make_shared(&queue_name(number), QUEUE_BYTES)
    }

    /// Makes the file of a bell, in place of one with that number.
    pub fn make_bell(&self, number: u32) -> Result<(File, PathBuf)> {
        self.make_shared(&format!("desk{number}{BELL}"), BELL_BYTES)
    }

    /// Makes the file of the epochs.
    pub(crate) fn make_epochs(&self) -> Result<File> {
        self.make_shared(EPOCHS_NAME, EPOCHS_BYTES).map(|(file, _)| file)
    }

    /// Removes the file of a queue. Who has it mapped may go on with it; nobody answers there.
    pub fn remove_queue(&self, number: u32) -> Result<()> {
        self.disk.remove(&queue_name(number))
    }

    fn make_shared(&self, name: &str, len: u64) -> Result<(File, PathBuf)> {
        let path = self.disk.path(name).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "other processes cannot see the files of this store")
        })?;
        self.disk.remove(name)?;
        // Nobody looks for it after the end of this process: it need not be durable, but every page must be there.
        let make = || {
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            fallocate(&file, FallocateFlags::empty(), 0, len)?;
            Ok(file)
        };
        let file = make().map_err(|error| failed("make", &path, &error))?;
        Ok((file, path))
    }
}
