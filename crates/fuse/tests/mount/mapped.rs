//! A file in memory.

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::ptr::null_mut;

/// A mapping that is shared with everybody who has the file.
pub(crate) struct Mapped {
    start: *mut c_void,
    len: usize,
}

impl Mapped {
    /// Maps the first `len` bytes of a file, of which it must have that many while it is mapped.
    pub(crate) fn new(file: &File, len: usize) -> Mapped {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice overlaps nothing.
        let start = unsafe { rustix::mm::mmap(null_mut(), len, protection, MapFlags::SHARED, file, 0) };
        Mapped { start: start.expect("a file of the mount can be mapped"), len }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is that long and lives as long as `self`; nobody cuts the file meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) }
    }

    pub(crate) fn sync(&mut self) {
        // SAFETY: the range is our own mapping.
        unsafe { rustix::mm::msync(self.start, self.len, MsyncFlags::SYNC) }
            .expect("a mapping can be synced");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is our own mapping, and nothing borrows from it any more.
        unsafe { rustix::mm::munmap(self.start, self.len) }.expect("a mapping can be undone");
    }
}
