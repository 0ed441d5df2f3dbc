//! Mapped files and the ownership of their byte ranges.
//!
//! An [`Arena`] grants every byte of a mapped file once per generation: as a [`Grant`] to one writer, which turns it
//! into a [`Ticket`] when the bytes are complete. A ticket opens a [`View`], which keeps the generation alive.
//! [`Arena::reset`] begins a new generation; it is refused while any grant or view exists. [`Slots`] is a mapped array
//! of fixed-size records.
//!
//! Between processes: a [`Slab`] is a grant that another process fills through its own [`RwMap`] and publishes piece by
//! piece, with one [`Commit`] per piece in a ring ([`Writer`], [`Taker`]). A [`Doorbell`] wakes the consumer of the
//! ring. A client copies leased bytes through a [`RoMap`] with a [`Reader`], which checks the lease before and after
//! the copy. Requests go through a queue ([`QueueClient`], [`QueueServer`]); [`Epochs`] invalidate leased replies.
//! [`TokenKeys`] stores keys that survive a restart of the process.
//!
//! **Invariant**: the bytes of a ticket do not change while its generation lives; the bytes of a grant belong to its
//! holder alone. The safe interface cannot break this within one process. Another process can only corrupt bytes that
//! it was granted, and checksums detect that.
//!
//! **Deliberately absent**: the meaning and owner of the bytes, where files come from, when data is flushed.

mod arena;
mod clock;
mod doorbell;
mod epochs;
mod liveness;
mod map;
mod queue;
mod ring;
mod rw_map;
mod slots;
mod stream_copy;
mod token_keys;

pub use arena::{Arena, Grant, Slab, Ticket, View};
pub use clock::monotonic;
pub use doorbell::{DOORBELL_BYTES, Doorbell};
pub use epochs::{EPOCHS_BYTES, EPOCHS_NAME, EpochReader, Epochs, Lease, Moment};
pub use liveness::is_locked;
pub use queue::{
    Answered, Aside, Asked, Away, Core, Looked, MOST_REPLY, MOST_REQUEST, QUEUE_BYTES, QUEUE_SLOTS,
    QueueClient, QueueServer, Spin, Taken,
};
pub use ring::{Commit, Filling, Found, Nonce, RECORD, RING_BYTES, RING_RECORDS, Reader, Taker, Writer};
pub use rw_map::{RoMap, RwMap};
pub use slots::{SLOT, Slots};
pub use token_keys::{TOKEN_KEYS_BYTES, TOKEN_KEYS_NAME, TokenKeys};
