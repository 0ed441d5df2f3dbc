//! Shared memory between a server and a client of the same machine and user: where to find it.

use serde::{Deserialize, Serialize};

/// A ring that is bound to an open file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RingGrant {
    /// Which.
    pub ring: u32,
    /// Its file.
    pub path: Vec<u8>,
    /// The file of the bell that wakes the server.
    pub bell: Vec<u8>,
    /// What its records are checked with.
    pub nonce: u128,
    /// What its records have to say about the file.
    pub binding: u32,
    /// The server's monotonic clock, in nanoseconds: a client whose clock is another cannot stamp what it writes.
    pub clock: u64,
}

/// A slab that a ring's client may fill.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlabGrant {
    /// Its number.
    pub slab: u32,
    /// The file of its region.
    pub path: Vec<u8>,
    /// Bytes of that file.
    pub size: u32,
    /// Where in it the slab is.
    pub start: u32,
    /// Bytes of the slab.
    pub len: u32,
    /// Most records for it.
    pub records: u32,
    /// In which epoch of the ring it was granted.
    pub epoch: u64,
}
