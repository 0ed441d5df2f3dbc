//! Mapped files, and who may touch which bytes of them.
//!
//! An [`Arena`] hands out every byte of a mapped file once per generation: as a [`Grant`] to one writer, who turns
//! it into a [`Ticket`] when the bytes are complete. A ticket opens a [`View`], which keeps the generation alive.
//! [`Arena::reset`] begins a new generation, and only when no grant and no view is left. [`Slots`] is a mapped
//! array of fixed-size records.
//!
//! **Invariant**: bytes behind a ticket do not change while its generation lives; bytes behind a grant belong to
//! its holder alone. The safe interface cannot break this within one process.
//!
//! **Deliberately absent**: what the bytes mean, where files come from, when anything is flushed.

mod arena;
mod map;
mod slots;

pub use arena::{Arena, Grant, Ticket, View};
pub use slots::{SLOT, Slots};
