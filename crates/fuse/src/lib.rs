//! The mount: a service as an ordinary directory, by FUSE.
//!
//! ```text
//! mount, unmount   the session with the kernel           what the command line sees
//! options          what can be said behind -o
//! serve            one method for each kernel request    decides nothing: asks the client, answers the kernel
//! work             what takes more than one question, or a decision
//! open, list       open files, open directories          what a handle of the kernel stands for
//! speaker          on whose behalf a request is made
//! convert, errno   attributes, times, flags, errors      the only place that knows error numbers
//! ```
//!
//! Permissions are the server's business: every request carries the user and groups of the process that made it, so
//! the mount must run as root or as the service's owner to serve others than its own user.
//!
//! **Invariant**: nothing is remembered that another client could change. Attributes and names are valid for no time
//! at all, reads and writes bypass the page cache, and `O_APPEND` goes to the end that the server knows. So a write
//! that returned, anywhere, is seen by every later read through the mount.
//!
//! Mapped memory is the one exception: a page of a mapped file is the kernel's copy. It is read afresh when the file
//! is mapped, follows every write made through the same mount, and is written back at `msync`, `munmap` and the
//! last close; what other clients write in the meantime may stay unseen until the file is mapped again.
//!
//! **Deliberately absent**: a write-back cache and cached attributes (they would break the promise above), locks
//! between machines (`flock` and `fcntl` locks are the kernel's, and hold within one mount), access times (kept as
//! they were set, as on a `noatime` mount), data and holes told apart by `lseek` (all is data).

#![forbid(unsafe_code)]

mod convert;
mod errno;
mod list;
mod mount;
mod open;
mod options;
mod serve;
mod speaker;
mod unmount;
mod work;

pub use mount::{Mount, Mounted, Stopper};
pub use options::Options;
pub use unmount::unmount;
