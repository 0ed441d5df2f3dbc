//! The rule for every request of the protocol about filling and slowing down: what bounds that which one user's requests of
//! this kind take from other users.
//!
//! The table is matched exhaustively: a request without a rule does not compile.

use Bound::{
    Answers, Connections, Drains, Mapped, Mappings, Opens, Places, Refused, Space, Syncs, Turns, Working,
};
use forebay_wire::{DrainCall, Request};

/// A bound, each with a key and an error that names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bound {
    /// Connections and sessions: the request is answered at once, or holds what its connection holds.
    Connections,
    /// Requests that wait for a turn, and the policy.
    Turns,
    /// Requests that the server works on.
    Working,
    /// Bytes of unread answers.
    Answers,
    /// Open files.
    Opens,
    /// Requests that wait for the back end.
    Places,
    /// Drain requests.
    Drains,
    /// Bytes in the buffer.
    Space,
    /// Flushes in progress.
    Syncs,
    /// Mappings that were granted and not fetched.
    Mappings,
    /// Memory of mapped files.
    Mapped,
    /// Users other than the service's own are refused.
    Refused,
}

impl Bound {
    /// The keys in the table `limits`.
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Connections => &["user_connections", "user_sessions"],
            Turns => &["user_waiting"],
            Working => &["user_working"],
            Answers => &["user_answers", "connection_answers"],
            Opens => &["user_opens"],
            Places => &["user_backend_places"],
            Drains => &["user_drains"],
            Space => &["user_space"],
            Syncs => &["user_syncs"],
            Mappings => &["user_mappings"],
            Mapped => &["user_mapped"],
            Refused => &[],
        }
    }
}

/// What bounds requests about names.
const NAMES: &[Bound] = &[Turns, Working, Places, Answers];

/// What bounds one user's requests of this kind.
pub(super) fn takes(request: &Request) -> &'static [Bound] {
    match request {
        Request::Ping
        | Request::Status
        | Request::GetPolicy
        | Request::Number { .. }
        | Request::Abandon { .. }
        | Request::Drain(DrainCall::Look { .. }) => &[Connections, Answers],
        Request::Walk { .. }
        | Request::Jump { .. }
        | Request::GetAttr { .. }
        | Request::SetAttr { .. }
        | Request::Close { .. }
        | Request::Truncate { .. }
        | Request::TruncateFile { .. }
        | Request::Punch { .. }
        | Request::Extend { .. }
        | Request::MakeDir { .. }
        | Request::RemoveDir { .. }
        | Request::Unlink { .. }
        | Request::Rename { .. }
        | Request::Link { .. }
        | Request::Symlink { .. }
        | Request::ReadLink { .. }
        | Request::MakeSpecial { .. }
        | Request::GetXattr { .. }
        | Request::SetXattr { .. }
        | Request::ListXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::GetLayout { .. }
        | Request::SetLayout { .. }
        | Request::StatFs
        | Request::LocalPipe { .. }
        | Request::History { .. }
        | Request::ReadDir { .. }
        | Request::Drain(DrainCall::Fetch { .. }) => NAMES,
        Request::Drain(DrainCall::Begin { .. }) => &[Drains, Turns, Working, Places, Answers],
        Request::Open { .. }
        | Request::Create { .. }
        | Request::Reopen { .. }
        | Request::KeepPages { .. } => &[Opens, Turns, Working, Places, Answers],
        Request::Sync { .. } | Request::SyncAll | Request::Seek { .. } => &[Syncs, Turns, Working, Answers],
        Request::Write { .. } => &[Space, Turns, Working, Answers],
        Request::Read { .. } => &[Turns, Working, Answers],
        Request::MapFile { .. } => &[Mappings, Mapped, Turns, Working, Answers],
        Request::Shutdown
        | Request::SetPolicy { .. }
        | Request::Exchange(_)
        | Request::ReplaceServer { .. }
        | Request::Peer(_)
        | Request::Losses
        | Request::Ring { .. }
        | Request::Slab { .. }
        | Request::Map { .. }
        | Request::Queue
        | Request::SetRoute { .. }
        | Request::Repair { .. }
        | Request::Keys(_) => &[Refused],
    }
}
