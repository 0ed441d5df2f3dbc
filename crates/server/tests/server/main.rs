//! Tests of the server over real sockets, with a client that uses the wire protocol only.

mod again;
mod bounds;
mod cluster;
mod counting;
mod drain;
mod drain_several;
mod files;
mod half;
mod handshakes;
mod hostile;
mod keys;
mod last;
mod mapped;
mod meddling;
mod meeting;
mod mounts;
mod past;
mod people;
mod privacy;
#[path = "../../../backend/tests/s3/proxy.rs"]
mod proxy;
mod queue;
mod races;
mod raw;
mod read_cache;
mod replaced;
mod restart;
mod root;
mod route;
mod sharing;
#[path = "../../../backend/tests/support/mod.rs"]
mod store;
mod strangers;
mod swapped;
mod swaps;
mod targets;
mod trouble;
mod turn;
mod union;
mod verified;
