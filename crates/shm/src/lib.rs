//! Mapped files, and who may touch which bytes of them.
//!
//! An [`Arena`] hands out every byte of a mapped file once per generation: as a [`Grant`] to one writer, who turns
//! it into a [`Ticket`] when the bytes are complete. A ticket opens a [`View`], which keeps the generation alive.
//! [`Arena::reset`] begins a new generation, and only when no grant and no view is left. [`Slots`] is a mapped
//! array of fixed-size records.
//!
//! Between processes: a [`Slab`] is a grant that another process fills through its own [`Window`] and publishes piece
//! by piece, with a [`Commit`] for each in a ring ([`Writer`], [`Taker`]). A [`Bell`] wakes whoever takes them. What a
//! process was leased it copies through a [`Pane`], as a [`Reader`] that looks at the lease before and after. What has to be
//! asked goes through a queue ([`Asker`], [`Clerk`]); how long the answer counts is told by [`Epochs`].
//!
//! **Invariant**: bytes behind a ticket do not change while its generation lives; bytes behind a grant belong to
//! its holder alone. The safe interface cannot break this within one process; another process can spoil what it was
//! given, which checksums tell, and nothing else.
//!
//! **Deliberately absent**: what the bytes mean, whose they are, where files come from, when anything is flushed.

mod arena;
mod bell;
mod epochs;
mod map;
mod past;
mod queue;
mod ring;
mod slots;
mod window;

pub use arena::{Arena, Grant, Slab, Ticket, View};
pub use bell::{BELL_BYTES, Bell};
pub use epochs::{EPOCHS_BYTES, EPOCHS_NAME, Epochs, Lease, Moment, Told};
pub use queue::{
    Answered, Aside, Asked, Asker, Away, Clerk, Core, Looked, MOST_REPLY, MOST_REQUEST, QUEUE_BYTES,
    QUEUE_SLOTS, Spin, Taken,
};
pub use ring::{Commit, Filling, Found, Nonce, RECORD, RING_BYTES, RING_RECORDS, Reader, Taker, Writer};
pub use slots::{SLOT, Slots};
pub use window::{Pane, Window};
