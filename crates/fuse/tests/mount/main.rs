//! A service, mounted: what programs see. Needs `/dev/fuse` and the right to mount; says so and skips where that is
//! missing.

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
