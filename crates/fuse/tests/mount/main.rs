//! A service, mounted: what programs see. Needs `/dev/fuse` and the right to mount; says so and skips where that is
//! missing.

mod helper;
mod smoke;
mod world;
