//! A shared mapping of a file.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::io;
use std::ptr::NonNull;

/// Where a mapping can be divided.
const PAGE: usize = 4096;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// A shared mapping of the first `len` bytes of a file, unmapped when dropped.
///
/// The file must be allocated in full: touching a hole of a full disk would end the process.
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; who may touch which bytes is decided by the types that
// hold a `Map` (`Arena`, `Slots`), which do their own synchronisation.
unsafe impl Send for Map {}
// SAFETY: as above; `Map` itself offers no access, only the address.
unsafe impl Sync for Map {}

impl Map {
    /// For reading and writing.
    pub(crate) fn new(file: &File, len: usize) -> io::Result<Map> {
        Map::with(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// For reading: whoever writes to it is ended by the kernel.
    pub(crate) fn readable(file: &File, len: usize) -> io::Result<Map> {
        Map::with(file, len, ProtFlags::READ)
    }

    fn with(file: &File, len: usize, rights: ProtFlags) -> io::Result<Map> {
        if len == 0 || file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is shorter than its mapping"));
        }
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing in this process.
        let start = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Map { start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes every page present and writable, without changing a byte.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.populate_range(0, self.len)
    }

    /// The same for the pages of a range.
    pub(crate) fn populate_range(&self, position: usize, len: usize) -> io::Result<()> {
        let end = position + len;
        let mut from = position & !(PAGE - 1);
        while from < end {
            // Up to where a huge page ends: nobody else in the process maps anything while pages come.
            let len = (end - from).min(HUGE - from % HUGE);
            let start = self.at(from, len);
            // SAFETY: the range is our own mapping, and this advice only does early what touching the pages would do.
            unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite)? };
            from += len;
        }
        Ok(())
    }

    /// The address of a byte; the caller answers for what it does with it.
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
