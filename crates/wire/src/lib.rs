//! The protocol: messages, framing, handshake, and the proofs in it. `docs/wire.md` has every byte.
//!
//! **Invariant**: whatever bytes come in, decoding returns a value or an error of kind `Protocol`; it never
//! panics, and never allocates more than a small multiple of the bytes it was given plus one mebibyte. How
//! many bytes that can be is known from a header of fixed size, and bounded.
//!
//! **Deliberately absent**: sockets, clocks, randomness (nonces and keys come in as arguments), retries, and
//! payloads: those go from the socket to where they belong without passing through here.

#![forbid(unsafe_code)]

mod drain;
mod frame;
mod fuzz;
mod hello;
mod lost;
mod message;
mod peer;
mod rings;
mod seal;
mod status;

pub use drain::{DrainCall, DrainReport, DrainStatus, DrainTicket, Failing, MAX_FETCH, TargetStatus};
pub use forebay_model::{RenameMode, XattrMode};
pub use frame::{FrameKind, HEADER, Header, MAX_BODY, MAX_HANDSHAKE, MAX_PAYLOAD, body, frame};
pub use fuzz::fuzz;
pub use hello::{Channel, Greeting, Hello, Proof, Roster, VERSION, Welcome};
pub use lost::{Loss, Losses, Lost, Remain, Remains};
pub use message::{Answer, At, Call, Entry, IfExists, Known, Reply, Request, Token};
pub use peer::{
    Born, Granted, Held, Left, MAX_PUT, Meeting, Met, PeerReply, PeerRequest, Place, Vouched, Wanted,
};
pub use rings::{MapAt, MapGrant, MapPiece, QueueGrant, RingGrant, SlabGrant};
pub use seal::{Key, client_proof, same_proof, server_proof};
pub use status::{
    Exchange, JobState, JobStatus, PeerStatus, RecoverySummary, RegionCounts, RouteStatus, Sample, Sharing,
    Standing, Status,
};
