//! The daemon: sockets, turns, sessions, and the introduction of policy to store.
//!
//! A request comes in by a `transport`, is framed by a `link`, belongs to a `connection` whose peer was met in the
//! `handshake`, waits for its turn (`turns`), and is handled (`handle`) by the store; payload takes the shorter way
//! of a `data` connection.
//!
//! **Invariant**: nothing is acknowledged before the store has it; nobody acts for anybody but himself, unless he is
//! root or the service's owner; no table, queue or buffer grows without a bound, and at the bound the peer is told.
//!
//! **Deliberately absent**: decisions (they are `policy`'s), bytes at rest (`store`'s), signals and printing (the
//! command line's), and any trust in what a peer says about itself.

#![deny(unsafe_code)]

mod circle;
mod config;
mod connection;
mod control;
mod data;
mod desk;
mod device;
mod dial;
mod drain;
mod fence;
mod grace;
mod hall;
mod handle;
mod handshake;
mod history;
mod human;
mod jobs;
mod key;
mod link;
mod members;
mod memory;
mod opens;
mod pace;
mod peer;
mod people;
mod route;
mod rows;
mod run;
mod service;
mod session;
mod several;
mod standing;
mod transport;
mod turns;
mod union;
#[cfg(test)]
mod virtual_time;
mod visitor;
mod warm;

pub use config::{Belief, Config, Limits, Medium, Times, beside};
pub use drain::{Alpha, Described, Draining, Hours, Verify};
pub use human::parse_rate;
pub use members::{Fixed, Membership};
pub use route::{Full, Mode, Pipeline, Routing, Share};
pub use run::{Addresses, Running, Server, Stopper};
pub use several::forgive;
