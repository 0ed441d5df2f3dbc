//! The client against the real server, in one process, through real sockets.

mod calls;
mod model;
mod people;
mod queue;
mod restart;
mod seen;
mod sharing;
mod world;
