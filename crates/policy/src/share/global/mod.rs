//! Shares over several servers: what they tell each other, and what follows for each.
//!
//! Every server sends its table of active jobs to the others once in an interval λ. Each computes the same shares
//! from the same tables, so nothing has to be agreed on; a globally unfair state lasts at most until every server has
//! the newest tables, two intervals after a change.

mod divide;
mod flow;
mod table;

pub use divide::{Allotment, divide};
pub use table::{Ignored, MAX_TABLE, Peers, Presence, Table};
