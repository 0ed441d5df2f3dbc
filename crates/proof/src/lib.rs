//! Proofs of the whole service: what the tests of this package share.
//!
//! ```text
//! host, fleet         a server process that can be killed, and several of one service
//! raw, meter          frames without a client, what a process uses
//! tree, oracle, op    the reference model of a file system, and what can be done to it
//! driver              random operations in both worlds, compared after every step
//! found, meddle       what is behind before the service, and what somebody else changes there
//! behind, faults      what the service has brought there, though it fails now and then
//! block, ledger       writes that describe themselves, and what was acknowledged of them
//! person              real users
//! process             clients in processes of their own
//! ```
//!
//! **Invariant**: everything goes through real sockets to a real process, and nothing here knows more about the
//! server than a client may know. Whatever fails prints the seed that repeats it.
//!
//! **Deliberately absent**: tests of a single room (they live there), and any assertion about a wall clock.

#![forbid(unsafe_code)]

mod behind;
mod block;
mod driver;
mod faults;
mod fleet;
mod found;
mod host;
mod ledger;
mod meddle;
mod meter;
mod op;
mod oracle;
mod person;
mod process;
mod raw;
mod tree;

pub use behind::drain;
pub use block::{Block, HEAD};
pub use driver::{Driver, Step};
pub use fleet::Fleet;
pub use forebay_dice::{Dice, Seeded, is_root, pattern, rounds, skip};
pub use host::{By, Drains, Host, Plan, Seat};
pub use ledger::{Fate, Ledger};
pub use meter::Meter;
pub use op::{Answer, Op, Seen, perform};
pub use person::Person;
pub use process::process;
pub use raw::{Raw, Relay, Socket, hello, name, refused};
pub use tree::{Body, Node, NodeId, Tree};
