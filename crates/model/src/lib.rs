//! Types shared by all crates: ids, byte units, spans, identities, attributes, errors; and how locks are taken in other
//! programs.
//!
//! **Invariant**: plain values. All of them can be built, compared and printed without I/O.
//!
//! **Deliberately absent**: clocks, randomness, files, sockets, threads, error numbers of an operating system
//! (those belong to the edges).

#![forbid(unsafe_code)]

mod attr;
mod error;
mod id;
mod job;
mod lock;
mod members;
mod name;
mod perm;
mod shared_memory;
mod sieve;
mod span;
mod text;
mod time;
mod units;

pub use attr::{Attr, Change, FileKind, Layout, RenameMode, SetTime, Special, Striping, Usage, XattrMode};
pub use error::{Error, ErrorKind, Result};
pub use id::{FileId, Gid, Incarnation, RegionId, ServerId, Stamp, Uid};
pub use job::{Job, JobId, MAX_LABEL};
pub use lock::{lock, lock_exclusive, lock_shared};
pub use members::{Homes, MAX_SERVERS, Member, Members};
pub use name::{MAX_NAME, MAX_PATH, Name};
pub use perm::{Access, Identity, MAX_GROUPS, may};
pub use shared_memory::{MapAt, MapGrant, MapPiece, RingGrant, SlabGrant};
pub use sieve::{Sieve, Sifted};
pub use span::{Reshape, SeekTo, Span, Stripes};
pub use text::{list, shown_time};
pub use time::Time;
pub use units::{Bytes, parse_rate, parse_time, time_unit};
