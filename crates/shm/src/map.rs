//! A shared mapping of a file.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::io;
use std::ptr::NonNull;

/// Granularity of a mapping.
const PAGE: usize = 4096;
/// Size of a huge page in bytes.
const HUGE: usize = 2 << 20;

/// A shared mapping of the first `len` bytes of a file, unmapped when dropped.
///
/// Only allocated parts of the file may be touched: touching a hole on a full disk would kill the process.
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; the types that hold a `Map` (`Arena`, `Slots`) decide which
// thread accesses which bytes and do their own synchronisation.
unsafe impl Send for Map {}
// SAFETY: as above; `Map` itself offers no access, only the address.
unsafe impl Sync for Map {}

impl Map {
    /// Maps for reading and writing.
    pub(crate) fn new(file: &File, len: usize) -> io::Result<Map> {
        Map::with(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps for reading and writing. Fails if the device of the file cannot read all of it now.
    pub(crate) fn read_in(file: &File, len: usize) -> io::Result<Map> {
        let map = Map::new(file, len)?;
        map.probe(0, len)?;
        Ok(map)
    }

    /// Maps read-only: a write through the mapping would kill the process.
    pub(crate) fn readable(file: &File, len: usize) -> io::Result<Map> {
        Map::with(file, len, ProtFlags::READ)
    }

    fn with(file: &File, len: usize, rights: ProtFlags) -> io::Result<Map> {
        if len == 0 || file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the file is shorter than the range to map",
            ));
        }
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing in this process.
        let start = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Map { start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Faults in the pages of a range as writable, without changing a byte.
    pub(crate) fn populate_range(&self, position: usize, len: usize) -> io::Result<()> {
        let end = position + len;
        let mut from = position & !(PAGE - 1);
        while from < end {
            // In steps of at most one huge page: the kernel holds the process's mapping lock during each step.
            let len = (end - from).min(HUGE - from % HUGE);
            let start = self.at(from, len);
            // SAFETY: the range is our own mapping, and this advice only does early what touching the pages would do.
            unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite)? };
            from += len;
        }
        Ok(())
    }

    /// Faults in the pages of a range for reading. Fails where the device of the file cannot read them; accessing them
    /// would then kill the process (`SIGBUS`).
    pub(crate) fn probe(&self, position: usize, len: usize) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let from = position & !(PAGE - 1);
        let start = self.at(from, position + len - from);
        // SAFETY: the range is our own mapping, and this advice changes no byte.
        match unsafe { madvise(start.cast(), position + len - from, Advice::LinuxPopulateRead) } {
            // Report the error that `read` would return for such a page.
            Err(Errno::FAULT | Errno::HWPOISON) => Err(Errno::IO.into()),
            // Older kernels do not support the check.
            Err(Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }

    /// The address of a byte. The caller is responsible for the access.
    pub(crate) fn at(&self, position: usize, len: usize) -> *mut u8 {
        assert!(
            position <= self.len && len <= self.len - position,
            "{position}+{len} is outside the mapping"
        );
        // SAFETY: `position` is within the mapping, as asserted.
        unsafe { self.start.as_ptr().add(position) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of our own mapping, and no reference into it outlives `self`: grants
        // and views hold the arena.
        // An error would mean the address was never mapped, which `new` rules out.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
