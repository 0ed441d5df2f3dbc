//! `libforebay.so`: programs that know nothing of Forebay use it under a path prefix.
//!
//! Loaded with `LD_PRELOAD` it takes the place of the C library's file functions. What does not concern the prefix
//! goes on to the C library at once.
//!
//! ```text
//! hook, errno, kernel     how a function is taken over; what an error becomes; system calls as such
//! life, quiet, handlers   forks, signals
//! lock, heap              locks and memory that survive them
//! engine, exit, counts    the client and its threads; closing; time spent there
//! backing, table, open    open files: the kernel's part, this process's table, the service's part
//! path, place, cwd        which paths are ours, and where they lead
//! canonical, private      paths without links; a directory of the user's own
//! opening, data, copy     open; read, write, lengths; copies between descriptors
//! descriptors, locks      close, dup, fcntl, ioctl; locks
//! stat, attributes, names attributes and names
//! dir, tree, temp         listings, walks through trees, temporary names
//! stdio, map, aio         streams, memory, asynchronous I/O
//! program, spawn          programs in Forebay, children, and the end of this program
//! raw, dispatch           the function `syscall`, and system calls that go past the C library's functions
//! variadic, refused       functions with any number of arguments; what Forebay cannot do
//! api                     the calls of `forebay.h`
//! mem, log                memory that may not be there; words for whoever asks
//! ```
//!
//! **Invariant**: no panic reaches the application; nothing is printed unless `FOREBAY_LOG` asks for it; a program
//! that never touches the prefix makes no connection and starts no thread; a descriptor of ours is a descriptor of the
//! kernel's, with its offset and flags in it, so that `dup`, `fork` and `exec` mean what they always mean.
//!
//! **Deliberately absent**: caches of its own; special files; locks between machines.

mod aio;
pub mod api;
mod attributes;
mod backing;
mod canonical;
mod copy;
mod counts;
mod cwd;
mod data;
mod descriptors;
mod dir;
mod dispatch;
mod engine;
mod errno;
mod exit;
mod handlers;
mod heap;
mod hook;
mod kernel;
mod life;
mod lock;
mod locks;
mod log;
mod map;
mod mem;
mod names;
mod open;
mod opening;
mod path;
mod place;
mod private;
mod program;
mod quiet;
mod raw;
mod refused;
mod spawn;
mod stat;
mod stdio;
mod table;
mod temp;
mod tree;
#[cfg(target_arch = "x86_64")]
mod variadic;
