//! Several servers as one service: connections to the other servers, membership, and the requests between servers.
//!
//! ```text
//! homes        which servers hold names: that never changes
//! membership   the other servers and their stores; whether this server may serve
//! peers        a connection to each other server, many requests at once
//! requests     requests to them
//! leases       how long copies of other servers' directories count, in both directions
//! outcome      why a request could not be served at once
//! transaction  changes of names on several servers, and questions about names
//! answer       answers to requests of other servers
//! local        this server's bytes of files that are gone elsewhere
//! lost         what was lost with lost stores
//! striped      files whose bytes are on several servers: gathering and persisting sizes, reaping
//! rebuild      changes that other programs make to them in the back end: all holders take them over or none
//! reshape      truncations and holes of them: all holders make them or none
//! append       appends to them
//! tidy         background work between servers
//! vouch        vouching for tokens of files of other authorities
//! ```
//!
//! Requests are handled by plain calls ([`Requests::handle`](crate::handle::Requests::handle)). A request that needs
//! another server stops, what it needs is fetched ([`Resolver`](crate::handle::Resolver)), and it is handled again from
//! its beginning.
//!
//! **Invariant**: with one server nothing in this module is ever reached.

/// Most transactions of several servers that one server runs at the same time. Each sends at most one long request to
/// each other server, so that short ones always get through: see [`PEER_IN_FLIGHT`].
pub(crate) const TASKS: usize = 32;
/// Minimum number of requests of another server that are served at the same time.
pub(crate) const PEER_IN_FLIGHT: usize = 2 * TASKS;

mod answer;
mod append;
mod homes;
mod leases;
mod local;
mod lost;
mod membership;
mod outcome;
mod peers;
mod rebuild;
mod requests;
mod reshape;
mod striped;
mod tidy;
mod transaction;
mod vouch;

pub(crate) use answer::PeerAnswers;
pub(crate) use append::{Appends, Writer};
pub(crate) use homes::check_homes;
pub(crate) use leases::{DirLeases, LeaseTable, beat, outlive};
pub(crate) use local::LocalBytes;
pub(crate) use lost::{LossParts, LossSearch};
pub(crate) use membership::JoinState;
pub use membership::forgive;
pub(crate) use outcome::{Blocked, Outcome, RetryContext};
pub(crate) use peers::{PeerClient, PeerClients, PeerLinks, keep, nonsense};
pub(crate) use requests::Peers;
pub(crate) use striped::{StripedFiles, StripedParts, StripedQueue, and};
pub(crate) use tidy::{Tidy, resolve_first, work};
pub(crate) use transaction::{RetryState, TransactionParts, Transactions, Undone};
pub(crate) use vouch::Vouching;
