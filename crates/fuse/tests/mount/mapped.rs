//! A memory-mapped file.

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::ptr::null_mut;

/// A shared mapping.
pub(crate) struct Mapped {
    start: *mut c_void,
    len: usize,
}

impl Mapped {
    /// Maps the first `len` bytes of a file, which must be at least that long while it is mapped.
    pub(crate) fn new(file: &File, len: usize) -> Mapped {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let start = unsafe { rustix::mm::mmap(null_mut(), len, protection, MapFlags::SHARED, file, 0) };
        Mapped { start: start.expect("mapped"), len }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length and lives as long as `self`; no process truncates the file meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) }
    }

    pub(crate) fn sync(&mut self) {
        // SAFETY: the range is our own mapping.
        unsafe { rustix::mm::msync(self.start, self.len, MsyncFlags::SYNC) }.expect("synced");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is our own mapping, and nothing borrows from it any more.
        unsafe { rustix::mm::munmap(self.start, self.len) }.expect("unmapped");
    }
}
