//! `libforebay.so`: unmodified programs use Forebay under a path prefix.
//!
//! Loaded with `LD_PRELOAD`, the library replaces the file functions of the C library. Calls that do not concern the
//! prefix go straight on to the C library.
//!
//! ```text
//! hook, errno, kernel     replacing a function; the table of error numbers; raw system calls
//! process_state, quiet, handlers   configuration and forks; blocking signals; signal handlers of the application
//! lock, heap              a lock and an allocator that are safe in signal handlers and forked children
//! engine, exit, counts    the client and its threads; closing files; time spent in calls
//! credentials, handing    credentials of threads; handing open files on when the user changes
//! backing, table, open    open files: the shared memory file, the descriptor table, the file at the service
//! path, place, cwd        which paths are inside Forebay, and what they resolve to; the working directory
//! canonical, private      paths without symbolic links; the user's private directory
//! opening, resolve        `open`; `openat2`
//! data, copy, file_size   read, write, truncate; copies between descriptors; the file size limit
//! descriptors, locks      close, dup, fcntl, ioctl; file locks
//! stat, attributes, names attributes, extended attributes and names
//! dir, tree, temp         directory listings, tree walks, temporary names
//! stdio, map              streams, memory mappings
//! aio, kernel_aio, rings  asynchronous I/O: POSIX, Linux, io_uring
//! program, spawn          exec of programs in Forebay, child processes, process exit
//! beyond                  programs that the library cannot intercept
//! raw, dispatch           the function `syscall`; system calls that bypass the C library
//! special                 named pipes and sockets
//! variadic, refused       variadic functions; functions that Forebay does not support
//! api                     the functions of `forebay.h`
//! mem, log                checked access to the application's memory; log lines
//! ```
//!
//! **Invariant**: no panic reaches the application; unless `FOREBAY_LOG` is set, the library prints nothing but a warning
//! to a program that does not see all files; a program that never touches the prefix makes no connection and starts no
//! thread; a descriptor of Forebay is a descriptor of the kernel that carries offset and flags, so `dup`, `fork` and
//! `exec` work as for any other descriptor.
//!
//! **Deliberately absent**: caches; special files; locks between machines.

mod aio;
pub mod api;
mod attributes;
mod backing;
mod beyond;
mod canonical;
mod copy;
mod counts;
mod credentials;
mod cwd;
mod data;
mod descriptors;
mod dir;
mod dispatch;
mod engine;
mod errno;
mod exit;
mod file_size;
mod handing;
mod handlers;
mod heap;
mod hook;
mod kernel;
mod kernel_aio;
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
mod process_state;
mod program;
mod quiet;
mod raw;
mod refused;
mod resolve;
mod rings;
mod spawn;
mod special;
mod stat;
mod stdio;
mod table;
mod temp;
mod tree;
#[cfg(target_arch = "x86_64")]
mod variadic;
