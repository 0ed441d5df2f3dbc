//! Whose turn it is: policies, shares, and the schedulers that enforce them.
//!
//! A [`Policy`] is one line of the administrator's. Together with the jobs it gives every job a share
//! ([`shares`]), as the product of one transition matrix per level. A [`Scheduler`] holds the requests that wait
//! and says who is next, so that what is *done* for each job (bytes and a price per operation) follows the
//! shares. Only jobs with waiting requests take part: an idle share is spread at once, first among the jobs of
//! the same user, then of the same group.
//!
//! On several servers a job's share is a share of all of them together: [`Peers`] keeps what the servers tell
//! each other, [`divide`] turns it into shares for each server.
//!
//! **What is trusted, from whom**: see [`Trust`].
//!
//! **How long a waiting request can be passed over** is bounded by every scheduler but [`Draws`]; see each.
//!
//! **Deliberately absent**: clocks and entropy. Time is an argument; a scheduler that draws lots owns a generator
//! whose seed it was given.

mod book;
mod cost;
mod dice;
mod discipline;
mod fifo;
mod flat;
mod gift;
mod global;
mod heap;
mod matrix;
mod outline;
mod parse;
mod policy;
mod scheduler;
mod stride;
mod sums;
mod tbf;
mod tokens;
mod tree;
mod trust;

pub use book::MAX_JOBS;
pub use cost::{Cost, OPERATION, Rate, Tariff, Tick, Ticket};
pub use dice::Dice;
pub use discipline::Discipline;
pub use fifo::Fifo;
pub use gift::Gift;
pub use global::{Allotment, Ignored, MAX_TABLE, Peers, Presence, Table, divide};
pub use matrix::{Transition, shares, transitions};
pub use outline::{Line, outline};
pub use parse::PolicyError;
pub use policy::{Level, Policy};
pub use scheduler::{Next, Request, Scheduler};
pub use stride::Stride;
pub use tbf::Tbf;
pub use tokens::{Draws, SLICE, Tokens};
pub use trust::{Caller, Doubt, Trust};
