//! The client against a fake server on real sockets.

mod addresses;
mod cluster;
mod fake;
mod garbage;
mod handshake;
mod paths;
mod retrying;
mod striped;
mod transfers;
