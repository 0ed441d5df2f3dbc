//! Tests of the server over real sockets, with a client that uses the wire protocol only.

mod backend_failures;
mod backing;
mod bounds;
mod cluster;
mod cluster_bounds;
mod counting;
mod direct;
mod drain;
mod files;
mod final_drain;
mod handshake_checks;
mod handshakes;
mod hostile;
mod interrupted;
mod keys;
mod mapped;
mod meddling;
mod mounts;
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
mod retries;
mod root;
mod route;
mod sharing;
#[path = "../../../backend/tests/support/mod.rs"]
mod store;
mod strangers;
mod striped_drain;
mod swapped;
mod swaps;
mod targets;
mod turn;
mod verified;
