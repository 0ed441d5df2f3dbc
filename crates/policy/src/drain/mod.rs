//! What leaves the buffer next: an index of what is to be written where, and orders in which that is done.
//!
//! The index is a stack of layers, as in TRIO: target → file → offset → extent. A layer more or less (the paper's
//! example is a timestamp on top) is one [`Level`] more or less, and the others know nothing of it.
//!
//! **Invariant**: at every byte the newest stamp wins; no byte is given out twice while its write is under way; what was
//! cut or deleted is never given out, and never comes back when a write that was under way fails.
//!
//! **Deliberately absent**: bytes, regions, back ends; whose turn it is at a target (that is the [arbiter](crate::arbiter)'s).

mod few;
mod layout;
mod pieces;
mod queue;
mod stack;

pub use layout::{Layout, TargetId};
pub use pieces::Pieces;
pub use queue::{Batch, BatchId, Drain, Order, Pick};
pub use stack::{Layer, Level, Piece, Ranges};
