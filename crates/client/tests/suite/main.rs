//! The client against a fake server on real sockets.

mod entering;
mod fake;
mod garbage;
mod paths;
mod retrying;
mod several;
mod spread;
mod transfers;
