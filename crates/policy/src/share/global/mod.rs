//! Shares over several servers: the job tables that servers exchange, and the shares of each server.
//!
//! Every server sends its table of active jobs to the others once in an interval λ. Each computes the same
//! shares from the same tables, so no agreement protocol is needed. A globally unfair state lasts at most
//! until every server has the newest tables, two intervals after a change.

mod divide;
mod flow;
mod table;

pub use divide::{Allotment, divide};
pub use table::{Ignored, MAX_TABLE, Peers, Presence, Table};
