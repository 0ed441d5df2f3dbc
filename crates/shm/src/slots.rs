//! A mapped array of fixed-size records.

use crate::map::Map;
use forebay_model::lock;
use std::fs::File;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Size of a slot in bytes. Divides every sector size, so that a slot never spans two sectors.
pub const SLOT: usize = 64;

/// An array of [`SLOT`]-byte records in a mapped file.
pub struct Slots {
    map: Mutex<Map>,
    count: u32,
}

impl Slots {
    /// Maps `count` slots at the beginning of a file. Fails if the device of the file cannot read them.
    pub fn new(file: &File, count: u32) -> io::Result<Slots> {
        Ok(Slots { map: Mutex::new(Map::read_in(file, count as usize * SLOT)?), count })
    }

    /// Does the same without a look at the file, which is in memory and may be allocated in part: slots in the other
    /// parts must not be accessed.
    pub fn in_memory(file: &File, count: u32) -> io::Result<Slots> {
        Ok(Slots { map: Mutex::new(Map::new(file, count as usize * SLOT)?), count })
    }

    /// Number of slots.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Writes one slot.
    pub fn write(&self, slot: u32, bytes: &[u8; SLOT]) {
        let map = lock(&self.map);
        let to = map.at(slot as usize * SLOT, SLOT);
        // SAFETY: `at` checked the range, and the lock makes this the only access from this process. Another process
        // that writes to the slot can only corrupt bytes that are verified by checksum when they are read.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, SLOT) }
    }

    /// Writes the first four bytes of one slot atomically: a crash leaves either the old or the new bytes.
    pub fn write_head(&self, slot: u32, bytes: [u8; 4]) {
        let map = lock(&self.map);
        let to: *mut u32 = map.at(slot as usize * SLOT, SLOT).cast();
        // SAFETY: `at` checked the range, a mapping starts at a page and slots have 64 bytes, so the address is
        // aligned; the lock makes this the only access from this process.
        unsafe { AtomicU32::from_ptr(to) }.store(u32::from_ne_bytes(bytes), Ordering::Release);
    }

    /// Reads one slot.
    #[must_use]
    pub fn read(&self, slot: u32) -> [u8; SLOT] {
        let map = lock(&self.map);
        let from = map.at(slot as usize * SLOT, SLOT);
        let mut bytes = [0; SLOT];
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), SLOT) }
        bytes
    }
}
