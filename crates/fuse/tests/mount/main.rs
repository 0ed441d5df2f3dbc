//! A mounted service as programs see it. Needs `/dev/fuse` and permission to mount; prints a note and skips otherwise.

mod helper;
mod life;
mod mapped;
mod operations;
mod people;
mod posix;
mod programs;
mod random;
mod sharing;
mod shell;
mod world;
