//! Another process's memory, for bytes that were granted there.

use crate::map::Map;
use crate::past;
use std::fs::File;
use std::io;
use std::ops::Range;

/// A mapped file of which some bytes were granted to this process by the one that owns it.
pub struct Window {
    map: Map,
}

impl Window {
    /// Maps the first `len` bytes of a file that is allocated in full.
    pub fn new(file: &File, len: u32) -> io::Result<Window> {
        Ok(Window { map: Map::new(file, len as usize)? })
    }

    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.map.len() as u32
    }

    /// Never true: a mapping has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Makes the pages of a range present, so that nobody waits for them when they are filled.
    pub fn populate(&self, range: Range<u32>) -> io::Result<()> {
        self.map.populate_range(range.start as usize, (range.end - range.start) as usize)
    }

    /// Copies bytes to a position. That they were granted is the caller's promise to the owner.
    pub fn put(&self, position: u32, bytes: &[u8]) {
        let to = self.map.at(position as usize, bytes.len());
        // SAFETY: `at` checked the range; `bytes` is memory of this process that no mapping of a region overlaps, and
        // nobody in this process has a reference into the mapping.
        unsafe { past::copy(bytes, to) }
    }
}

/// A mapped file of another process's from which bytes are copied that it leased.
pub struct Pane {
    map: Map,
}

impl Pane {
    /// Maps the first `len` bytes of a file that is allocated in full, for reading only.
    pub fn new(file: &File, len: u32) -> io::Result<Pane> {
        Ok(Pane { map: Map::readable(file, len as usize)? })
    }

    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.map.len() as u32
    }

    /// Never true: a mapping has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies the bytes from a position on. What they are is known only if their lease stood all the time.
    pub fn get(&self, position: u32, into: &mut [u8]) {
        let from = self.map.at(position as usize, into.len());
        // SAFETY: `at` checked the range; `into` is memory of this process that no mapping of a region overlaps. Another
        // process may change the bytes meanwhile: any bytes are bytes, and the lease tells the caller to drop them.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into.as_mut_ptr(), into.len()) }
    }
}
