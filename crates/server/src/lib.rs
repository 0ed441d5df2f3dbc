//! The server: sockets, scheduling, sessions, and the requests that clients and other servers send.
//!
//! A request arrives over a `transport`, is decoded by `framing`, belongs to a `connection` whose peer authenticated in
//! the `handshake`, waits for its turn (`turns`) or for a device (`dispatch`), and is handled by `handle`, which calls the
//! store. Payload takes a shorter path over a `data` connection. `compose` makes all parts and hands each what it uses.
//!
//! **Invariant**: the server acknowledges nothing before the store has it; a peer acts only as its own user unless it
//! is root or the service's owner; every table, queue and buffer is bounded, and the server reports an error to the
//! peer at the bound.
//!
//! **Deliberately absent**: decisions (`forebay_policy`), the on-disk format (`forebay_store`), signals and printing
//! (the command line), and trust in anything a peer claims about itself.

#![deny(unsafe_code)]

mod accept_limiter;
mod answers;
mod backing;
mod blocking;
mod caller;
mod cluster;
mod compose;
mod config;
mod connection;
mod connection_epoch;
mod connector;
mod control;
mod data;
mod device;
mod direct;
mod dispatch;
mod drain;
mod error_limit;
mod file_homes;
mod framing;
mod gossip;
mod handle;
mod handshake;
mod history;
mod human;
mod jobs;
mod kept_pages;
mod key;
mod keys;
mod lifecycle;
mod listing;
mod log_limit;
mod mapping;
mod members;
mod memory;
mod opens;
mod orphans;
mod pace;
mod peer;
mod peer_identity;
mod people;
mod per_user;
mod pipes;
mod policy_store;
mod privileges;
mod reaper;
mod rows;
mod run;
mod session;
mod shm_queue;
mod sweep;
mod thread_state;
mod tokens;
mod transport;
mod turns;
#[cfg(test)]
mod virtual_time;
mod warm;
mod working;
mod writers;

pub use cluster::forgive;
pub use config::{Belief, ClientTimes, Config, Limits, Medium, Times, TransportSettings, beside};
pub use direct::{Full, Mode, Pipeline, Routing, Share};
pub use drain::{Alpha, Described, Draining, Hours, Verify};
pub use forebay_model::parse_rate;
pub use members::{Fixed, Membership};
pub use run::{Addresses, Running, Server, Stopper};
