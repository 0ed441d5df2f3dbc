//! Placement: dry runs, and real programs on a file system that behaves like Lustre.

mod bench;
mod drained;
mod dry;
mod lustre;
mod others;
mod parallel;
mod programs;
mod turns;
mod world;
