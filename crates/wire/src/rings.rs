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

/// A queue for one connection's requests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueGrant {
    /// Its file.
    pub path: Vec<u8>,
    /// The file of the bell that wakes whoever serves it.
    pub bell: Vec<u8>,
    /// What tells it from others.
    pub nonce: u128,
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

/// What a ring's client may copy without asking, while the lease stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapGrant {
    /// The lease's number.
    pub lease: u64,
    /// The length of the file.
    pub size: u64,
    /// Where in the file the first piece begins.
    pub start: u64,
    /// The pieces, one behind the other; those of a long file may end before it does.
    pub pieces: Vec<MapPiece>,
    /// The directory of the regions' files, and their names in it.
    pub dir: Vec<u8>,
    /// The names.
    pub names: Vec<Vec<u8>>,
    /// Bytes of each.
    pub region: u32,
}

/// A stretch of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapPiece {
    /// Its bytes.
    pub len: u64,
    /// Where they are.
    pub at: MapAt,
}

/// Where bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MapAt {
    /// Nowhere: they are zeros.
    Zeros,
    /// In the region's file with this number in the list.
    Region {
        /// Which.
        file: u32,
        /// From this position on.
        position: u32,
    },
    /// Only the server knows.
    Ask,
}
