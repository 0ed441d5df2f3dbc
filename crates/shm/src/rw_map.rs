//! Mappings of another process's region files.

use crate::map::Map;
use crate::stream_copy;
use rustix::fs::fstatfs;
use std::fs::File;
use std::io;
use std::ops::Range;

/// File system type number of tmpfs.
const TMPFS: u64 = 0x0102_1994;

/// A mapped file of which some bytes were granted to this process by the one that owns it.
pub struct RwMap {
    map: Map,
}

impl RwMap {
    /// Maps the first `len` bytes of a file. What was granted to this process is allocated.
    pub fn new(file: &File, len: u32) -> io::Result<RwMap> {
        Ok(RwMap { map: Map::new(file, len as usize)? })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.map.len() as u32
    }

    /// Never true: a mapping has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Faults in the pages of a range, so that filling them does not wait.
    pub fn populate(&self, range: Range<u32>) -> io::Result<()> {
        self.map.populate_range(range.start as usize, (range.end - range.start) as usize)
    }

    /// Copies bytes to a position. The caller guarantees that they were granted to it.
    pub fn put(&self, position: u32, bytes: &[u8]) {
        let to = self.map.at(position as usize, bytes.len());
        // SAFETY: `at` checked the range; `bytes` is memory of this process that no mapping of a region overlaps, and
        // no code in this process has a reference into the mapping.
        unsafe { stream_copy::copy(bytes, to) }
    }
}

/// A read-only mapping of another process's file, for copying leased bytes.
pub struct RoMap {
    map: Map,
    /// Whether the file is on a device, which can fail, and not in memory.
    device: bool,
}

impl RoMap {
    /// Maps the first `len` bytes of a file, for reading only. What was leased to this process is allocated.
    pub fn new(file: &File, len: u32) -> io::Result<RoMap> {
        let device = fstatfs(file)?.f_type as u64 != TMPFS;
        Ok(RoMap { map: Map::readable(file, len as usize)?, device })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.map.len() as u32
    }

    /// Never true: a mapping has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies bytes from a position. They are valid only if the lease was valid throughout. Fails if the device of the
    /// file cannot read them.
    pub fn get(&self, position: u32, into: &mut [u8]) -> io::Result<()> {
        if self.device {
            self.map.probe(position as usize, into.len())?;
        }
        let from = self.map.at(position as usize, into.len());
        // SAFETY: `at` checked the range; `into` is memory of this process that no mapping of a region overlaps.
        // Another process may change the bytes meanwhile: any byte value is valid, and the lease check makes the caller
        // drop them.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into.as_mut_ptr(), into.len()) }
        Ok(())
    }
}
