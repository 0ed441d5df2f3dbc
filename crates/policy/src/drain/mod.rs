//! The order in which bytes leave the buffer: an index of the bytes to write per target, and the drain
//! orders; and when they leave it.
//!
//! The index is a stack of layers, as in TRIO: target → file → offset → extent. Adding or removing a layer
//! (the paper's example is a timestamp on top) adds or removes one [`StackLevel`], and the others do not change.
//!
//! **Invariant**: at every byte the newest stamp wins. No byte is handed out twice while its write is in
//! flight. Truncated or deleted bytes are never handed out, and do not return when a write in flight fails.
//!
//! **Deliberately absent**: data, regions, back ends; access to targets (see the [arbiter](crate::arbiter)).

mod arrivals;
mod few;
mod layout;
mod pieces;
mod queue;
mod slots;
mod stack;
mod trigger;

pub use arrivals::{Arrivals, WINDOW};
pub use layout::{Layout, TargetId};
pub use pieces::Pieces;
pub use queue::{Batch, BatchId, Drain, Order, Pick};
pub use slots::{Side, TURN_TIMEOUT, WriteSlots};
pub use stack::{Layer, Piece, Ranges, StackLevel};
pub use trigger::{Burst, HIGH, LULL, Pipeline, Trigger, View, Want, burst, oldest_first, want};
