//! The wire protocol: messages, framing, handshake and transport security. `docs/wire.md` documents every byte.
//!
//! **Invariant**: for any input bytes, decoding returns a value or an error of kind `Protocol`. It never panics, and
//! never allocates more than a small multiple of the input plus one mebibyte. A fixed-size header states the size of
//! the input, which is bounded.
//!
//! **Deliberately absent**: sockets, clocks, randomness (the caller passes keys in; only `ring` generates the ephemeral
//! keys of a handshake, because it accepts none), retries, and payloads: the caller moves these directly between the
//! socket and their destination, and decrypts them in place.

#![forbid(unsafe_code)]

mod drain;
mod frame;
mod fuzz;
mod grant;
mod hello;
mod keys;
mod lost;
mod message;
mod noise;
mod opening;
mod peer;
mod record;
mod rings;
mod seal;
mod security;
mod status;
mod variant;

pub use drain::{DrainCall, DrainReport, DrainStatus, DrainTicket, Failing, MAX_FETCH, TargetStatus};
pub use forebay_model::{RenameMode, XattrMode};
pub use frame::{FrameKind, HEADER, Header, MAX_BODY, MAX_HANDSHAKE, MAX_PAYLOAD, body, frame};
pub use fuzz::fuzz;
pub use grant::{KeyCall, KeyReply, MAX_KEYS, UserKey};
pub use hello::{Channel, Greeting, Hello, Proof, Roster, VERSION, Welcome};
pub use keys::{ConnectionKey, KeyId};
pub use lost::{Loss, Losses, Lost, Remain, Remains, RepairStep};
pub use message::{Answer, At, Call, Entry, IfExists, Known, Reply, Request, Token};
pub use opening::{Agreed, Answered, Initiator, Opening, answer_opening};
pub use peer::{
    BackingFile, FilePart, Granted, Introduction, IntroductionReply, MAX_PUT, PeerReply, PeerRequest, Place,
    Undrained, Vouched, Wanted,
};
pub use record::{CHUNK, CHUNK_HEAD, Opener, Sealer, TAG, frame_with};
pub use rings::{FileMap, MapAt, MapGrant, MapPiece, QueueGrant, RingGrant, SlabGrant};
pub use seal::Key;
pub use security::Security;
pub use status::{
    Exchange, JobState, JobStatus, PeerStatus, RecoverySummary, RegionCounts, RouteStatus, Sample, Sharing,
    Standing, Status,
};
pub use variant::variant_name;
