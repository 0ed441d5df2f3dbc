//! Unmodified programs through `forebay exec` and its embedded library, against a server in this process.
//!
//! Needs a C compiler and, for some tests, Debian's `fio`, `git`, `python3`, `rsync` and `sqlite3`; tests
//! without their
//! tools print a note and are skipped.

mod asynchronous;
mod beyond;
mod copies;
mod credentials;
mod dispatch;
mod exerciser;
mod header;
mod mapped;
mod programs;
mod sharing;
mod suites;
mod symbols;
mod tools;
mod unanswered;
mod world;
