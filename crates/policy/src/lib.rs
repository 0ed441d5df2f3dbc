//! Pure decisions: whose turn it is, where a write goes, and what leaves the buffer next.
//!
//! **Invariant**: a decision depends on its arguments and on what was told before, on nothing else; the daemon
//! and a simulator that tell the same story get the same decisions.
//!
//! **Deliberately absent**: clocks, randomness, locks, sockets, files. Callers bring them, or do without.

#![forbid(unsafe_code)]

pub mod arbiter;
pub mod device;
pub mod drain;
pub mod place;
pub mod route;
pub mod share;

pub use route::{Mode, Route, Router, Write};
pub use share::{Cost, Fifo, Next, OPERATION, Request, Scheduler, Tick, Ticket};
