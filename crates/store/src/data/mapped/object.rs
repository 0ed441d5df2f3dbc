//! The memory of a mapped file: a file of the store's directory that processes of this machine map and share.
//!
//! The store reads and writes it with system calls and never maps it: a client that may write could truncate it, and
//! touching a truncated mapping kills the process.

use forebay_model::Span;
use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom, fallocate, flock, seek};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The smallest unit that is compared and written back.
pub(super) const PAGE: u64 = 4096;

/// The memory of a mapped file.
pub(super) struct Object {
    file: File,
    path: PathBuf,
    /// Descriptors for reading and for writing that were handed out without a lock, because a process held the
    /// exclusive one. The object keeps them until it can lock them.
    unlocked: [Option<File>; 2],
}

impl Object {
    pub(super) fn new(file: File, path: PathBuf) -> Object {
        Object { file, path, unlocked: [None, None] }
    }

    /// A descriptor for a process. The mappings made from it hold its shared lock until the last of them is gone, in
    /// the process itself and in its forked children.
    pub(super) fn share(&mut self, write: bool) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(write).open(&self.path)?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(file),
            // A process that has a descriptor can take the exclusive lock. Others must not wait for it or fail.
            Err(Errno::WOULDBLOCK) => self.unlocked[usize::from(write)].get_or_insert(file).try_clone(),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether no process maps it or has a descriptor of it.
    pub(super) fn is_unused(&mut self) -> bool {
        for unlocked in &mut self.unlocked {
            if let Some(file) = unlocked
                && flock(file, FlockOperation::NonBlockingLockShared).is_err()
            {
                return false;
            }
            *unlocked = None;
        }
        let free = flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if free {
            // Otherwise the next process could not lock it.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
        free
    }

    /// Fills a buffer. Bytes that a client has truncated are read as zeros.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => {
                    into[done..].fill(0);
                    return Ok(());
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Changes its size. New bytes are zero, even if processes have stored bytes beyond the old end.
    pub(super) fn resize(&self, before: u64, size: u64) -> io::Result<()> {
        let page_end = before.next_multiple_of(PAGE);
        if size > before && before < page_end {
            self.punch(Span::new(before, page_end))?;
        }
        self.file.set_len(size)
    }

    /// Turns a range into zeros.
    pub(super) fn punch(&self, span: Span) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let len = span.len().min(i64::MAX as u64 - span.start);
        if len == 0 {
            return Ok(());
        }
        Ok(fallocate(&self.file, flags, span.start, len)?)
    }

    /// Whether nothing was ever stored in a range.
    pub(super) fn is_hole(&self, span: Span) -> bool {
        match seek(&self.file, SeekFrom::Data(span.start)) {
            Ok(data) => data >= span.end,
            Err(error) => error == Errno::NXIO,
        }
    }
}
