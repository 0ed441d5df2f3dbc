//! Pure decisions: which request is served next, where a write goes, and which bytes the drain takes next.
//!
//! **Invariant**: a decision depends only on its arguments and on earlier calls. The daemon and a simulator
//! that make the same calls get the same decisions.
//!
//! **Deliberately absent**: clocks, randomness, locks, sockets, files. Callers supply them.

#![forbid(unsafe_code)]

pub mod arbiter;
pub mod device;
pub mod drain;
pub mod place;
pub mod route;
pub mod share;

pub use route::{Mode, Route, Write, WriteRouter};
pub use share::{Cost, Fifo, Next, OPERATION, Request, Scheduler, Tick, Ticket};
