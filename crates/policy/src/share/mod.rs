//! I/O sharing between jobs: policies, shares, and the schedulers that enforce them.
//!
//! A [`Policy`] is one line written by the administrator. Applied to the active jobs it gives every job a
//! share ([`shares`]), as the product of one transition matrix per level. A [`Scheduler`] holds the waiting
//! requests and picks the next one, so that the work done for each job (bytes plus a price per operation)
//! follows the shares. Only jobs with waiting requests take part: an idle job's share goes at once to jobs of
//! the same user, then of the same group, then to all others.
//!
//! On several servers a job's share is a share of all servers together: [`Peers`] keeps the job tables that
//! the servers exchange, [`divide`] turns them into shares for each server.
//!
//! **Which claims of a caller are trusted**: see [`Trust`].
//!
//! **How long a waiting request can be passed over** is bounded by every scheduler except [`Draws`]; see
//! each.
//!
//! **Deliberately absent**: clocks and entropy. Time is an argument; a lottery scheduler owns a generator
//! with a given seed.

mod cost;
mod discipline;
mod fifo;
mod flat;
mod gift;
mod global;
mod heap;
mod job_table;
mod matrix;
mod outline;
mod parse;
mod policy;
mod rng;
mod scheduler;
mod space;
mod stride;
mod sums;
mod tbf;
mod tokens;
mod tree;
mod trust;

pub use cost::{Cost, OPERATION, Rate, Tariff, Tick, Ticket};
pub use discipline::Discipline;
pub use fifo::Fifo;
pub use gift::Gift;
pub use global::{Allotment, Ignored, MAX_TABLE, Peers, Presence, Table, divide};
pub use job_table::MAX_JOBS;
pub use matrix::{Transition, shares, transitions};
pub use outline::{Line, outline};
pub use parse::PolicyError;
pub use policy::{Level, Policy};
pub use rng::Rng;
pub use scheduler::{Next, Request, Scheduler};
pub use space::{SpaceQueue, due_among, is_roomy};
pub use stride::Stride;
pub use tbf::Tbf;
pub use tokens::{Draws, SLICE, Tokens};
pub use trust::{Caller, Doubt, Trust};
