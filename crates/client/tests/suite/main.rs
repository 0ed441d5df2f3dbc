//! The client against a fake server on real sockets and, in `service`, against the real one.

mod addresses;
mod cluster;
mod fake;
mod garbage;
mod handshake;
mod paths;
mod retrying;
mod service;
mod striped;
mod transfers;
