//! Locations of the shared memory between a server and a client on the same machine; those of rings are in `model`,
//! because the store grants them.

pub use forebay_model::{MapAt, MapGrant, MapPiece, RingGrant, SlabGrant};
use serde::{Deserialize, Serialize};

/// A queue for the requests of one connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueGrant {
    /// Path of its file.
    pub path: Vec<u8>,
    /// Path of the doorbell that wakes the server.
    pub doorbell: Vec<u8>,
    /// Identifies the queue.
    pub nonce: u128,
}

/// The mapping of a file range.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FileMap {
    /// Memory shared by all processes of the server's machine. The server passes its descriptor once, over the Unix
    /// socket with this abstract name, to the requesting user: the client connects, sends the ticket and receives one
    /// byte with the descriptor.
    Shared {
        /// Name of the socket, without the leading zero byte.
        socket: Vec<u8>,
        /// The ticket.
        ticket: [u8; 16],
    },
    /// No shared memory: the client may show a copy of the file as it is now, for reading only.
    Copy,
}
