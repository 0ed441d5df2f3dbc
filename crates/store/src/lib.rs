//! File data and names on disk or in memory: regions, journals, index, cleaner, recovery, namespace.
//!
//! A [`Store`] is one directory, used by one process. [`Data`] holds the bytes of files, [`Names`] the directory tree;
//! both keep their records in one metadata store, a [`Kv`].
//!
//! **Invariant**: acknowledged data survives the death of the process, synced data survives the death of the machine,
//! and deleted data never comes back.
//!
//! **Deliberately absent**: sockets, policies, open files, authentication.

#![forbid(unsafe_code)]

mod at_rest;
mod data;
mod files;
mod fuzz;
mod homes;
mod inspect;
mod lasting;
mod meta;
mod names;
mod owner;
mod reshape;
mod room;
mod store;
mod superblock;
mod timeline;
mod watch;

pub use at_rest::{AtRest, check_payloads, check_stores, repair_stores};
pub use data::{
    AtFlush, Backlog, Committed, Counts, CrashDisk, Data, DirDisk, Dirty, Disk, Faults, Filled, Geometry,
    Grant, MAX_DOORBELLS, MAX_FILE, MAX_QUEUES, Mapper, Missing, Picked, Piece, Place, Preparing, RecordView,
    Recovery, Released, RingId, RingView, Start, Traffic, changed_here_too,
};
pub use files::Medium;
pub use forebay_model::{RenameMode, XattrMode};
pub use fuzz::fuzz;
pub use homes::{homes, names_with_the_first};
pub use inspect::{Inspection, RegionView, capacity_of, inspect};
pub use meta::{Batch, CachedKv, Fault, FjallKv, KeySpace, Kv, Look, MemoryKv, Visit};
pub use names::{
    AfterReply, Arrival, Attempt, Body, Carried, DirCopy, Entry, Extent, Facts, Fate, Flaw, Found, Inode,
    InodePart, IntentId, Kind, Leased, MAX_LINKS, MAX_LISTED, MAX_XATTR, MAX_XATTRS, NameReply, NameRequest,
    Names, Next, Obstacle, Op, Part, Prepare, Question, Renamed, Root, Share, Sticky, Stopped, Target, Task,
    Unlinked, Verdict, Walked, Withdrawal, check, check_all, repair,
};
pub use owner::who_may_replace;
pub use reshape::{Opening, Reshapes};
pub use room::available_memory;
pub use store::{Store, StoreConfig};
pub use timeline::Timeline;
