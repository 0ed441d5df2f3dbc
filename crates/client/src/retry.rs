//! What may be asked twice, and how long to wait in between. Pure.

use forebay_model::{Error, ErrorKind};
use forebay_wire::{At, IfExists, Request, XattrMode};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);

/// Whether asking twice does the same as asking once, so that a request whose answer was lost can be repeated.
pub(crate) fn repeatable(request: &Request) -> bool {
    match request {
        Request::Ping
        | Request::Walk { .. }
        | Request::Jump { .. }
        | Request::GetAttr { .. }
        | Request::SetAttr { .. }
        | Request::Open { .. }
        | Request::Reopen { .. }
        | Request::Close { .. }
        | Request::Truncate { .. }
        | Request::TruncateFile { .. }
        | Request::Extend { .. }
        | Request::Punch { .. }
        | Request::Sync { .. }
        | Request::SyncAll
        | Request::ReadLink { .. }
        | Request::ReadDir { .. }
        | Request::GetXattr { .. }
        | Request::ListXattr { .. }
        | Request::StatFs
        | Request::Status
        | Request::History { .. }
        | Request::GetPolicy
        | Request::SetPolicy { .. }
        | Request::SetRoute { .. }
        | Request::Exchange(_)
        | Request::GetLayout { .. }
        | Request::SetLayout { .. }
        | Request::ReplaceServer { .. }
        | Request::Losses
        | Request::Drain(_)
        | Request::Abandon { .. }
        | Request::Ring { .. }
        | Request::Slab { .. }
        | Request::Number { .. }
        | Request::Map { .. }
        | Request::Queue
        | Request::Read { .. } => true,
        // One that its maker may not open could be made, but not opened a second time.
        Request::Create { if_exists, mode, access, .. } => {
            let needed = u16::from(access.read) << 8 | u16::from(access.write) << 7;
            *if_exists != IfExists::Refuse && mode & needed == needed
        }
        Request::SetXattr { mode, .. } => *mode == XattrMode::Any,
        Request::Write { at, .. } => matches!(at, At::Offset(_)),
        Request::MakeDir { .. }
        | Request::MakeSpecial { .. }
        | Request::RemoveDir { .. }
        | Request::Unlink { .. }
        | Request::Rename { .. }
        | Request::Link { .. }
        | Request::Symlink { .. }
        | Request::RemoveXattr { .. }
        | Request::Peer(_)
        | Request::Shutdown => false,
    }
}

/// Whether a server that answered with this error has done nothing, and may do it a little later: it is full of work, or
/// another server that it needs does not answer it.
pub(crate) fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unreachable)
}

/// Why an attempt did not lead to an answer.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    /// Whether the server may have heard the request.
    pub(crate) sent: bool,
    /// What happened.
    pub(crate) error: Error,
}

impl Trouble {
    pub(crate) fn unsent(error: Error) -> Trouble {
        Trouble { sent: false, error }
    }

    /// Whether another attempt can help: the connection broke, or the server was full of work, and nothing that
    /// must happen only once can have happened.
    pub(crate) fn is_passing(&self, repeatable: bool) -> bool {
        match self.error.kind() {
            ErrorKind::Busy => true,
            ErrorKind::Unreachable => repeatable || !self.sent,
            _ => false,
        }
    }

    /// The error to show when there is no further attempt.
    pub(crate) fn into_error(self, repeatable: bool) -> Error {
        if self.error.kind() != ErrorKind::Unreachable || !self.sent || repeatable {
            return self.error;
        }
        let text = format!(
            "{}; the request had been sent, and nobody knows whether it was carried out: look before you try again",
            self.error
        );
        Error::new(ErrorKind::Unreachable, text)
    }
}

/// Growing pauses, spread at random so that many clients of a server that comes back do not come all at once.
#[derive(Debug)]
pub(crate) struct Pauses {
    dice: u64,
    next: Duration,
}

impl Pauses {
    pub(crate) fn new(seed: u64) -> Pauses {
        Pauses { dice: seed, next: FIRST }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST);
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Between half and all of it.
        whole / 2 + (whole / 2).mul_f64((self.dice >> 40) as f64 / (1_u64 << 24) as f64)
    }

    pub(crate) fn restart(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::{Access, FileId, Name};

    #[test]
    fn what_creates_or_removes_a_name_is_not_repeated() {
        let (dir, name) = (FileId::ROOT, Name::new("x").unwrap());
        let create_as =
            |mode, access, if_exists| Request::Create { dir, name: name.clone(), mode, access, if_exists };
        let create = |if_exists| create_as(0o400, Access::READ, if_exists);
        let open = |truncate| Request::Open { file: dir, access: Access::WRITE, truncate };
        for (request, expected) in [
            (Request::StatFs, true),
            (open(false), true),
            (open(true), true),
            (create(IfExists::Open), true),
            (create(IfExists::Truncate), true),
            (create(IfExists::Refuse), false),
            (create_as(0o400, Access::BOTH, IfExists::Open), false),
            (create_as(0o077, Access::READ, IfExists::Open), false),
            (create_as(0o600, Access::BOTH, IfExists::Truncate), true),
            (Request::Unlink { dir, name: name.clone() }, false),
            (Request::MakeDir { dir, name: name.clone(), mode: 0 }, false),
            (Request::Link { file: dir, dir, name: name.clone() }, false),
        ] {
            assert_eq!(repeatable(&request), expected, "{request:?}");
        }
    }

    #[test]
    fn what_passes_and_what_is_said_when_it_does_not() {
        for (kind, sent, repeatable, passes, doubt) in [
            (ErrorKind::Unreachable, false, false, true, false),
            (ErrorKind::Unreachable, true, true, true, false),
            (ErrorKind::Unreachable, true, false, false, true),
            (ErrorKind::Busy, true, false, true, false),
            (ErrorKind::Protocol, false, true, false, false),
            (ErrorKind::NoSpace, true, true, false, false),
        ] {
            let trouble = Trouble { sent, error: kind.into() };
            assert_eq!(trouble.is_passing(repeatable), passes, "{kind:?} {sent} {repeatable}");
            let text = trouble.into_error(repeatable).to_string();
            assert_eq!(text.contains("nobody knows"), doubt, "{text}");
        }
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut pauses = Pauses::new(7);
        let first: Vec<_> = (0..20).map(|_| pauses.next()).collect();
        assert!(first[0] <= FIRST && first[0] >= FIRST / 2);
        assert!(first.iter().all(|pause| *pause <= LONGEST));
        assert!(first[19] >= LONGEST / 2);
        pauses.restart();
        assert!(pauses.next() <= FIRST);
    }
}
