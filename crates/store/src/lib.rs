//! Bytes and names at rest: regions, journals, index, cleaner, recovery, namespace.
//!
//! A [`Store`] is one directory for one process. [`Data`] holds the bytes of files, [`Names`] the tree of names;
//! both keep their records in one metadata store behind [`Kv`].
//!
//! **Invariant**: whatever was acknowledged is there after the process died, whatever was synced is there after the
//! machine died, and whatever was deleted never comes back.
//!
//! **Deliberately absent**: sockets, policies, open files, the question who is allowed to connect.

#![forbid(unsafe_code)]

mod at_rest;
mod data;
mod files;
mod fuzz;
mod homes;
mod inspect;
mod meta;
mod names;
mod reshape;
mod store;
mod superblock;
mod watch;

pub use at_rest::{AtRest, check_stores, repair_stores};
pub use data::{
    AtFlush, Backlog, Before, Committed, Counts, CrashDisk, Data, DirDisk, Dirty, Disk, Faults, Filled,
    Geometry, Grant, MAX_FILE, MOST_BELLS, MOST_QUEUES, MapAt, MapOffer, MapPiece, NoRings, Picked, Piece,
    Place, RecordView, Recovery, RingId, RingOffer, SlabOffer, Start, Traffic, changed_here_too,
};
pub use files::Medium;
pub use forebay_model::{RenameMode, XattrMode};
pub use fuzz::fuzz;
pub use homes::{homes, names_with_the_first};
pub use inspect::{Inspection, RegionView, capacity_of, inspect};
pub use meta::{Batch, CachedKv, Fault, FjallKv, Kv, Look, MemoryKv, Visit};
pub use names::{
    Arrival, Ask, Attempt, Body, Carried, DirCopy, Entry, Extent, Facts, Fate, Flaw, Found, Heard, Inode,
    InodePart, IntentId, Kind, Leased, MAX_LINKS, MAX_LISTED, MAX_XATTR, MAX_XATTRS, Names, Next, Obstacle,
    Op, Part, Prepare, Question, Renamed, Root, Share, Sticky, Stopped, Target, Task, Told, Unlinked,
    Verdict, Walked, Withdrawal, check, check_all, repair,
};
pub use reshape::{Opening, Reshapes};
pub use store::{Store, StoreConfig};
