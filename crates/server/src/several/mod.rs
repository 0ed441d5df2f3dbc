//! One of several servers: lines to the others, who they are, what they are asked and told.
//!
//! ```text
//! homes     which servers have the names: that never changes
//! joining   whom this server has met, with which store; whether it may serve
//! lines     a connection to each other server, many questions at once
//! leases    how long what others said of their directories counts, and what was said to them
//! stop      why a request could not be served at once
//! deal      what is done about that, so that it can be tried again
//! answer    what this server answers others
//! losses    what went with stores that were lost
//! afar      files whose bytes are on several servers: vouching, gathering, settling, forgetting
//! anew      what somebody else changes of them behind: all take it over or none
//! reshape   truncations and holes of them: all make them or none
//! append    appends to them
//! tidy      what servers owe each other
//! ```
//!
//! Requests are handled by plain calls ([`Service::handle`](crate::service::Service::handle)); one that needs another
//! server stops, what it needs is fetched, and it is handled again from its beginning.
//!
//! **Invariant**: with one server nothing here is ever reached.

/// What one server has carried out over several at the same time. Each is at most one long question to each other
/// server, so that short ones always get through: see [`PEER_IN_FLIGHT`].
pub(crate) const TASKS: usize = 32;
/// Questions of another server that are worked on at the same time, at least.
pub(crate) const PEER_IN_FLIGHT: usize = 2 * TASKS;

mod afar;
mod anew;
mod answer;
mod append;
mod deal;
mod homes;
mod joining;
mod leases;
mod lines;
mod losses;
mod reshape;
mod stop;
mod tidy;

pub(crate) use afar::{Afar, is_afar};
pub(crate) use append::Writer;
pub(crate) use deal::{Undone, and, resolve};
pub(crate) use homes::check_homes;
pub(crate) use joining::Joining;
pub use joining::forgive;
pub(crate) use leases::{Leases, beat, outlive};
pub(crate) use lines::{Line, Lines, keep, nonsense};
pub(crate) use losses::Book;
pub(crate) use stop::{Handled, Helps, Stop};
pub(crate) use tidy::{settle_first, work};
