//! The client library: paths and open files of a Forebay service, over TCP, Unix sockets and shared memory.
//!
//! [`Client`] and [`File`] are async; [`blocking`] offers the same calls to synchronous code.
//!
//! ```text
//! client, file, dir          paths, open files, directory listings (the public API)
//! by_id                      the same operations by file id, as a mount needs them
//! service, server_list       all servers of a service; which server answers which request
//! walk, prefixes             path lookup over several servers, with hints that a server verifies
//! listing, striped           directories and file data on several servers: merged by cookie, split by layout
//! session, opens             state that outlives a connection: retries, reconnects, reopened files
//! control                    the control connection: many calls at once
//! transfer, flow, data       payload: split, pipelined, copied directly from and to the caller's memory
//! memory, ring_writer,       payload by shared memory on the server's machine: rings and slabs for writes,
//!   granted_slabs, leased    read leases for reads
//! queue                      requests by a queue in shared memory on the server's machine
//! name_cache                 lookup results, valid until the server invalidates them in shared memory
//! connect                    connecting: tries every address until the expected server answers
//! handshake, transport       authentication; frames of a stream
//! run_socket                 where programs of a run connect that have switched to other users
//! socket                     socket I/O by the runtime or by the calling thread
//! job, counts                identity of the job; counters that the processes of a run share
//! ```
//!
//! **Invariant**: a request that must not run twice is sent again only if no byte of the first attempt had left. Every
//! other request that gets no answer fails within the configured time. The client closes a connection whose transfer
//! was aborted and never reuses it.
//!
//! **Deliberately absent**: caches that a server cannot invalidate before a change (a write that returned is visible to
//! every later read on any client); trust in remembered paths (a server verifies them on every use, or vouches for them
//! in shared memory); locks between writers of one file; background writeback; environment variables other than those
//! that describe the job.
//!
//! # Example
//!
//! Synchronous code uses [`blocking::Client`]:
//!
//! ```
//! use forebay_client::blocking::Client;
//! use forebay_client::{Address, ClientConfig, Listing, OpenOptions, RenameMode};
//!
//! # let dir = tempfile::tempdir()?;
//! # let config = forebay_server::Config {
//! #     tcp: false,
//! #     capacity: forebay_model::Bytes::mib(64),
//! #     medium: forebay_server::Medium::Disk,
//! #     ..forebay_server::Config::for_store(dir.path().join("store"))
//! # };
//! # let socket = config.socket_path();
//! # let server = forebay_server::Server::start(config)?;
//! let client = Client::connect(ClientConfig::new(Address::Unix(socket)))?;
//! client.mkdir("/run1", 0o755)?;
//! let file = client.open("/run1/ckpt.new", OpenOptions::CREATE)?;
//! file.pwrite(0, b"state of the run")?;
//! file.close()?;
//! client.rename("/run1/ckpt.new", "/run1/ckpt", RenameMode::Replace)?;
//!
//! let file = client.open("/run1/ckpt", OpenOptions::READ)?;
//! let mut bytes = [0; 16];
//! assert_eq!(file.pread(0, &mut bytes)?, 16);
//! assert_eq!(&bytes, b"state of the run");
//! assert_eq!(client.read_dir("/run1", Listing::Names)?.count(), 1);
//! # drop((file, client));
//! # server.shutdown()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod address;
pub mod blocking;
mod by_id;
mod client;
mod config;
mod connect;
mod control;
mod counts;
mod data;
mod dir;
mod file;
mod flow;
mod granted_slabs;
mod handshake;
mod job;
mod join;
mod leased;
mod listing;
mod mapped;
mod memory;
mod name_cache;
mod open_with_ring;
mod opens;
mod path;
mod prefixes;
mod program;
mod queue;
mod retry;
mod ring_writer;
mod run_socket;
mod server_list;
mod service;
mod session;
mod socket;
mod striped;
mod transfer;
mod transport;
mod walk;

pub use address::{Address, Addresses};
pub use by_id::{ById, MAX_LINKS, Step};
pub use client::Client;
pub use config::{Acting, ClientConfig, Credential};
pub use counts::{COUNTS_VARIABLE, Count, PAGE, RunCounts};
pub use dir::{Listing, ReadDir};
pub use file::{File, OpenOptions};
pub use job::{job_from_environment, job_of_this_process};
pub use mapped::Mapping;
pub use memory::Now;
pub use program::{ElfNote, PROGRAM_HEAD, ProgramKind, elf_notes, names_prefix, program_kind};
pub use queue::{waiting_here, waiting_here_with};
pub use run_socket::{RUN_SOCKET, RUN_SOCKET_VARIABLE, run_socket, run_socket_of, run_socket_value};
pub use transfer::called_at;

// Types that the calls take and return, so that callers need not depend on the protocol crate.
pub use forebay_wire::{Entry, IfExists, KeyCall, KeyReply, RenameMode, Security, Token, UserKey, XattrMode};
