//! Shared test utilities: seeded random numbers, fuzzing by mutation, reports of skipped tests, waiting, and a client
//! that sends raw frames.
//!
//! **Invariant**: the same seed gives the same run; a failing test prints its seed.
//!
//! **Deliberately absent**: code that ships; of Forebay it knows the wire, and no server or client.

#![forbid(unsafe_code)]

mod address;
mod alone;
mod child;
mod fuzz;
mod raw;
mod seeded;
mod skip;
mod user;
mod wait;

pub use address::address;
pub use alone::alone;
pub use child::{child, child_of};
pub use fuzz::{Corpus, mutate};
pub use raw::{Raw, Socket, hello, name, person, refused};
pub use seeded::{Rng, Seeded, pattern, rounds, seed};
pub use skip::{is_root, skip};
pub use user::{as_user, become_user};
pub use wait::{until, until_async, until_equal, until_some};
