//! Shared test utilities: seeded random numbers, fuzzing by mutation, and reports of skipped tests.
//!
//! **Invariant**: the same seed gives the same run; a failing test prints its seed.
//!
//! **Deliberately absent**: code that ships, and anything specific to Forebay.

#![forbid(unsafe_code)]

mod address;
mod alone;
mod child;
mod fuzz;
mod seeded;
mod skip;
mod user;

pub use address::address;
pub use alone::alone;
pub use child::{child, child_of};
pub use fuzz::{Corpus, mutate};
pub use seeded::{Rng, Seeded, pattern, rounds, seed};
pub use skip::{is_root, skip};
pub use user::{as_user, become_user};
