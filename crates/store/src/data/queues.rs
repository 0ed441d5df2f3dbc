//! The files of the request queues of clients on this machine, and of the epochs by which clients check their cached
//! answers. They are next to the rings, and end with the process. Also the file of token keys, which the next process
//! finds.

use super::{Data, Disk, Start};
use crate::files::failed;
use forebay_model::{Error, ErrorKind, Result};
use forebay_shm::{
    DOORBELL_BYTES, EPOCHS_BYTES, EPOCHS_NAME, Epochs, QUEUE_BYTES, TOKEN_KEYS_BYTES, TOKEN_KEYS_NAME,
    TokenKeys,
};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Largest number of queues of a store.
pub const MAX_QUEUES: u32 = 256;
/// Largest number of doorbells of queue servers.
pub const MAX_DOORBELLS: u32 = 8;

const QUEUE: &str = ".queue";
const DOORBELL: &str = ".bell";

/// Upper bound of the bytes of all these files.
pub(crate) fn queues_cost() -> u64 {
    u64::from(MAX_QUEUES) * QUEUE_BYTES
        + u64::from(MAX_DOORBELLS) * DOORBELL_BYTES
        + EPOCHS_BYTES
        + TOKEN_KEYS_BYTES
}

fn queue_name(number: u32) -> String {
    format!("q{number:05}{QUEUE}")
}

/// Removes the files of an earlier process: its clients reconnect, and drop their cached answers.
pub(super) fn clear_queues(disk: &dyn Disk) -> Result<()> {
    if let Some(file) = disk.open(EPOCHS_NAME)? {
        // If the device cannot read the file, clients cannot trust it either.
        if let Err(error) = Epochs::end(&file)
            && error.raw_os_error() != Some(Errno::IO.raw_os_error())
        {
            return Err(Error::new(ErrorKind::Io, format!("cannot map {EPOCHS_NAME}: {error}")));
        }
        disk.remove(EPOCHS_NAME)?;
    }
    for name in disk.names()? {
        if name.ends_with(QUEUE) || name.ends_with(DOORBELL) {
            disk.remove(&name)?;
        }
    }
    Ok(())
}

impl Data {
    /// Creates the file of a queue, replacing one with that number.
    pub fn make_queue(&self, number: u32) -> Result<(File, PathBuf)> {
        self.make_shared(&queue_name(number), QUEUE_BYTES)
    }

    /// Creates the file of a doorbell, replacing one with that number.
    pub fn make_doorbell(&self, number: u32) -> Result<(File, PathBuf)> {
        self.make_shared(&format!("desk{number}{DOORBELL}"), DOORBELL_BYTES)
    }

    /// Creates the file of the epochs.
    pub(crate) fn make_epochs(&self) -> Result<File> {
        self.make_shared(EPOCHS_NAME, EPOCHS_BYTES).map(|(file, _)| file)
    }

    /// Opens the keys that an earlier process left in memory. After the machine died they are discarded: keys that were
    /// already used could reappear.
    pub(crate) fn open_keys(&self, start: Start) -> Result<TokenKeys> {
        let left = match start {
            Start::MachineDied => None,
            Start::Fresh | Start::Clean | Start::ProcessDied => self.disk.open(TOKEN_KEYS_NAME)?,
        };
        if let Some(keys) = left.and_then(|file| TokenKeys::open(&file).ok()) {
            return Ok(keys);
        }
        let (file, path) = self.make_shared(TOKEN_KEYS_NAME, TOKEN_KEYS_BYTES)?;
        TokenKeys::open(&file).map_err(|error| failed("map", &path, &error))
    }

    /// Removes the file of a queue. A client that has it mapped may continue to write to it, but gets no answers.
    pub fn remove_queue(&self, number: u32) -> Result<()> {
        self.disk.remove(&queue_name(number))
    }

    fn make_shared(&self, name: &str, len: u64) -> Result<(File, PathBuf)> {
        let path = self.disk.path(name).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "other processes cannot open the files of this store")
        })?;
        self.disk.remove(name)?;
        // No process uses it after this one, so it need not be durable, but every page must be allocated.
        let make = || {
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            fallocate(&file, FallocateFlags::empty(), 0, len)?;
            Ok(file)
        };
        let file = make().map_err(|error| failed("create", &path, &error))?;
        Ok((file, path))
    }
}
