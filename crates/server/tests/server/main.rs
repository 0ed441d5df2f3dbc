//! The server over real sockets, spoken to by a client that knows nothing but the wire.

mod again;
mod counting;
mod drain;
mod drain_several;
mod files;
mod half;
mod hostile;
mod last;
mod meddling;
mod meeting;
mod near;
mod past;
mod people;
#[path = "../../../backend/tests/s3/proxy.rs"]
mod proxy;
mod queue;
mod races;
mod raw;
mod restart;
mod route;
mod several;
mod sharing;
#[path = "../../../backend/tests/support/mod.rs"]
mod store;
mod targets;
mod trouble;
mod turn;
mod union;
