//! The mount: a service as an ordinary directory, through FUSE.
//!
//! ```text
//! mount, unmount   the session with the kernel           used by the command line
//! options          the mount options (-o)
//! serve            one method for each kernel request    no decisions: calls the client, replies to the kernel
//! dispatcher       which thread serves a request
//! work             requests that need several calls, or a decision
//! open, list       open files and directories, by handle
//! pages            direct writes beside mapped pages
//! speaker          clients that act for the calling processes
//! convert, errno   attributes, times, flags, errors      the only place that knows error numbers
//! ```
//!
//! The server checks permissions: every request carries the user and groups of the calling process, so the mount must
//! run as root or as the service's owner to serve users other than its own.
//!
//! **Invariant**: the mount caches nothing that another client could change. Attributes and names have a validity of
//! zero, reads and writes bypass the page cache, and `O_APPEND` writes at the end that the server knows. So every later
//! read through the mount sees a write that has returned, on any client.
//!
//! Mapped memory is the one exception: a page of a mapped file is the kernel's copy. It is read afresh when the file
//! is mapped, reflects every write through the same mount, and is written back at `msync`, `munmap` and the last close;
//! writes of other clients in the meantime may stay invisible until the file is mapped again.
//!
//! **Deliberately absent**: a write-back cache and cached attributes (they would break the invariant), locks between
//! hosts (`flock` and `fcntl` locks are the kernel's, and hold within one mount), access times (kept as they were set,
//! as on a `noatime` mount).

#![forbid(unsafe_code)]

mod convert;
mod dispatcher;
mod errno;
mod list;
mod mount;
mod open;
mod options;
mod pages;
mod serve;
mod speaker;
mod unmount;
mod users;
mod work;

pub use mount::{FirstUse, Mount, Mounted, Stopper};
pub use options::Options;
pub use unmount::unmount;
