//! Locations of the shared memory between a server and a client on the same machine: what the store grants, and what the
//! wire carries, in the order of the fields.

use serde::{Deserialize, Serialize};

/// A ring bound to an open file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RingGrant {
    /// The ring.
    pub ring: u32,
    /// Path of its file.
    pub path: Vec<u8>,
    /// Path of the doorbell that wakes the server.
    pub doorbell: Vec<u8>,
    /// Nonce of the checksums of its records.
    pub nonce: u128,
    /// Binding number that its records use for the file.
    pub binding: u32,
    /// The server's monotonic clock, in nanoseconds: a client with a different clock cannot timestamp its writes.
    pub clock: u64,
}

/// A slab that the client of a ring may fill.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlabGrant {
    /// The slab number.
    pub slab: u32,
    /// Path of its region file.
    pub path: Vec<u8>,
    /// Size of that file in bytes.
    pub size: u32,
    /// Position of the slab in it.
    pub start: u32,
    /// Length of the slab in bytes.
    pub len: u32,
    /// Maximum number of records for it.
    pub records: u32,
    /// The epoch of the ring in which it was granted.
    pub epoch: u64,
}

/// The extents that the client of a ring may copy while the lease is valid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapGrant {
    /// The lease number.
    pub lease: u64,
    /// Size of the file.
    pub size: u64,
    /// File offset of the first piece.
    pub start: u64,
    /// Consecutive pieces; those of a long file may end before its end.
    pub pieces: Vec<MapPiece>,
    /// Directory of the region files.
    pub dir: Vec<u8>,
    /// Names of the region files in it.
    pub names: Vec<Vec<u8>>,
    /// Size of each region file in bytes.
    pub region: u32,
}

impl MapGrant {
    /// The end of the last piece.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.pieces.iter().map(|piece| piece.len).sum::<u64>()
    }
}

/// An extent of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapPiece {
    /// Length in bytes.
    pub len: u64,
    /// Location of the bytes.
    pub at: MapAt,
}

/// The location of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MapAt {
    /// A hole.
    Zeros,
    /// In a region file.
    Region {
        /// Index in the list of names.
        file: u32,
        /// Position in that file.
        position: u32,
    },
    /// Not mapped: the client must read from the server.
    Ask,
}
