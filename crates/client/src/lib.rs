//! The client: paths and open files of a Forebay service, over TCP and Unix sockets.
//!
//! [`Client`] and [`File`] are async; [`blocking`] has the same for code that waits.
//!
//! ```text
//! client, file, dir      paths, open files, listings        what callers see
//! by_id                  the same by ids                    what a mount needs
//! service, roll          all servers of a service           who is asked what, where it is
//! walk, prefixes         paths over several servers         what is remembered of them is checked, never believed
//! listing, spread        directories and bytes of several   merged by cookie; split by layout
//! session, opens         what outlives a connection         retry, reconnect, re-established files
//! line                   the control connection             many calls at once
//! transfer, flow, data   payload                            split, pipelined, straight from and to the caller
//! memory, lane, arrived  payload on the server's machine   by rings and slabs, without asking; else as above
//! queue                  requests on the server's machine  by a queue in shared memory; else by the line
//! seen                   what was answered there           for as long as the server says, in shared memory, that it counts
//! handshake, transport   first words, frames of a stream
//! socket                 bytes, and who waits for them where
//! job, counts            who works, and what the processes of a run count together
//! ```
//!
//! **Invariant**: a request that must happen only once is sent a second time only if no byte of the first had
//! left; whatever else cannot be answered ends in an error within the configured time. A connection on which a
//! transfer was given up half-way is closed, never used again.
//!
//! **Deliberately absent**: caches that others cannot end before they change something (a write that returned is visible to
//! every later read, anywhere), belief in remembered paths (a server checks them with every
//! use, or says in shared memory that they stand), locks that writers
//! of one file wait for, background writing, environment variables other than those that describe the job.

#![forbid(unsafe_code)]

mod address;
mod arrived;
pub mod blocking;
mod by_id;
mod client;
mod config;
mod counts;
mod data;
mod dir;
mod file;
mod flow;
mod handshake;
mod job;
mod join;
mod lane;
mod leased;
mod line;
mod listing;
mod memory;
mod opens;
mod path;
mod prefixes;
mod queue;
mod retry;
mod roll;
mod seen;
mod service;
mod session;
mod socket;
mod spread;
mod transfer;
mod transport;
mod walk;

pub use address::Address;
pub use by_id::{ById, MAX_LINKS, Step};
pub use client::Client;
pub use config::{ClientConfig, Credential};
pub use counts::{COUNTS_VARIABLE, Count, PAGE, RunCounts};
pub use dir::{Listing, ReadDir};
pub use file::{File, OpenOptions};
pub use job::{job_from_environment, job_of_this_process};
pub use memory::Now;
pub use queue::{waiting_here, waiting_here_with};

// What its calls take and give, so that callers need not know the protocol.
pub use forebay_wire::{Entry, IfExists, RenameMode, Token, XattrMode};
