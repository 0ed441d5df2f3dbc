//! Unmodified programs through `forebay exec` and the library that travels in it, against a server in this process.
//!
//! Needs a C compiler and, for some tests, Debian's `fio`, `git`, `python3`, `rsync` and `sqlite3`; what is missing is
//! skipped aloud.

mod dispatch;
mod exerciser;
mod header;
mod programs;
mod sharing;
mod symbols;
mod tools;
mod world;
