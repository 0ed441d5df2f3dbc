//! The client against the real server, in one process, over real sockets.

mod calls;
mod identities;
mod model;
mod name_cache;
mod queue;
mod relay;
mod restart;
mod sharing;
mod world;
