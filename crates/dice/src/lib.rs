//! What the tests of all rooms share: chance that can be repeated, input that is bent, and saying what was not run.
//!
//! **Invariant**: the same seed does the same again, for ever; a test that fails prints it.
//!
//! **Deliberately absent**: anything that is shipped, and anything that knows Forebay: what is tested lives in its room.

#![forbid(unsafe_code)]

mod address;
mod alone;
mod fuzz;
mod seeded;
mod skip;

pub use address::address;
pub use alone::alone;
pub use fuzz::{Corpus, mutate};
pub use seeded::{Dice, Seeded, pattern, rounds, seed};
pub use skip::{is_root, skip};
