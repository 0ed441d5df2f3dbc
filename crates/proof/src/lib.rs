//! End-to-end tests of the whole service: what the tests of this package share.
//!
//! ```text
//! host, fleet         a server process that can be killed, and a cluster of them
//! raw, meter          frames without a client; resources that a process uses
//! tree, oracle, op    reference model of a file system, and its operations
//! driver              random operations on service and model, compared after every step
//! found, meddle       back-end files that exist before the service, and changes by another process
//! backing, faults     comparison of drained files with the model; injected back-end faults
//! block, ledger       self-describing writes, and the acknowledged ones
//! writer              random writes, truncations and removals that are recorded and compared
//! person              real users of this host
//! process             clients in processes of their own
//! ```
//!
//! **Invariant**: everything goes through real sockets to a real process, and the tests know no more about the server
//! than a client may. A failing test prints the seed that repeats it.
//!
//! **Deliberately absent**: tests of a single module (they are next to it), and assertions about wall-clock
//! time, except for the generous ones of `bounds`.

#![forbid(unsafe_code)]

mod backing;
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
mod refused;
mod relay;
mod tree;
mod writer;

pub use backing::drain;
pub use block::{Block, HEAD};
pub use driver::{Driver, Step};
pub use fleet::Fleet;
pub use forebay_testkit::{Raw, Rng, Seeded, Socket, hello, is_root, name, pattern, rounds, skip};
pub use host::{By, ClusterConfig, Drains, Host, Plan};
pub use ledger::{Fate, Ledger};
pub use meter::Meter;
pub use op::{Answer, Op, Seen, perform};
pub use person::Person;
pub use process::process;
pub use refused::refused;
pub use relay::Relay;
pub use tree::{Body, Node, NodeId, Tree};
pub use writer::Writer;
