//! Which requests may be sent twice, and the pauses between attempts. Pure.

use forebay_model::{Error, ErrorKind};
use forebay_wire::{At, IfExists, KeyCall, Request, XattrMode};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);

/// Whether a request is idempotent, so that it can be repeated if its answer was lost.
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
        | Request::Seek { .. }
        | Request::Sync { .. }
        | Request::SyncAll
        | Request::ReadLink { .. }
        | Request::LocalPipe { .. }
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
        | Request::Repair { .. }
        | Request::Drain(_)
        | Request::Abandon { .. }
        | Request::Ring { .. }
        | Request::Slab { .. }
        | Request::Number { .. }
        | Request::Map { .. }
        | Request::MapFile { .. }
        | Request::KeepPages { .. }
        | Request::Queue
        | Request::Keys(KeyCall::List | KeyCall::Revoke { .. })
        | Request::Read { .. } => true,
        // The mode may deny its creator the requested access: a repeated request would then fail to open the created
        // file.
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
        | Request::Keys(KeyCall::Grant { .. })
        | Request::Shutdown => false,
    }
}

/// Whether an error means that the server did nothing and may succeed later: it is overloaded, or another server that
/// it needs does not answer.
pub(crate) fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unreachable)
}

/// Why an attempt got no answer.
#[derive(Clone, Debug)]
pub(crate) struct AttemptError {
    /// Whether the server may have received the request.
    pub(crate) sent: bool,
    pub(crate) error: Error,
}

impl AttemptError {
    pub(crate) fn unsent(error: Error) -> AttemptError {
        AttemptError { sent: false, error }
    }

    /// Whether another attempt can help: the connection broke or the server was overloaded, and a request that is not
    /// idempotent cannot have run.
    pub(crate) fn may_retry(&self, repeatable: bool) -> bool {
        match self.error.kind() {
            ErrorKind::Busy => true,
            ErrorKind::Unreachable | ErrorKind::TimedOut => repeatable || !self.sent,
            _ => false,
        }
    }

    /// The error to report when there is no further attempt. The outcome is unknown if this or an earlier attempt was
    /// sent.
    pub(crate) fn into_error(self, repeatable: bool, end: End) -> Error {
        let is_over = end == End::Timeout || self.error.kind() == ErrorKind::TimedOut;
        let kind = match self.error.kind() {
            ErrorKind::Unreachable | ErrorKind::TimedOut if !self.sent => ErrorKind::Unreachable,
            ErrorKind::Unreachable | ErrorKind::TimedOut if is_over => ErrorKind::TimedOut,
            ErrorKind::Unreachable => ErrorKind::OutcomeUnknown,
            ErrorKind::Busy if self.sent => ErrorKind::TimedOut,
            _ => return self.error,
        };
        if !self.sent || repeatable {
            return Error::new(kind, self.error.to_string());
        }
        let text = format!(
            "{}; the request was sent and its outcome is unknown: check the result before you retry",
            self.error
        );
        Error::new(kind, text)
    }
}

/// Why there is no further attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The request timed out.
    Timeout,
    /// Another attempt cannot help or is not allowed.
    NoRetry,
}

/// Exponential backoff with jitter, so that many clients do not reconnect to a restarted server at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    rng: SplitMix64,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(seed: u64) -> Backoff {
        Backoff { rng: SplitMix64::seed_from_u64(seed), next: FIRST }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST);
        // Between half of the pause and all of it.
        whole / 2 + (whole / 2).mul_f64((self.rng.next_u64() >> 40) as f64 / (1_u64 << 24) as f64)
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
    fn requests_that_create_or_remove_names_are_not_repeatable() {
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
    fn transient_failures_are_retried_and_final_errors_reported() {
        use ErrorKind::{Busy, NoSpace, OutcomeUnknown, Protocol, TimedOut, Unreachable};
        for (kind, sent, repeatable, passes, doubt, over, lost) in [
            (Unreachable, false, false, true, false, Unreachable, Unreachable),
            (Unreachable, true, true, true, false, TimedOut, OutcomeUnknown),
            (Unreachable, true, false, false, true, TimedOut, OutcomeUnknown),
            (TimedOut, false, false, true, false, Unreachable, Unreachable),
            (TimedOut, true, true, true, false, TimedOut, TimedOut),
            (TimedOut, true, false, false, true, TimedOut, TimedOut),
            (Busy, false, false, true, false, Busy, Busy),
            (Protocol, false, true, false, false, Protocol, Protocol),
            (NoSpace, true, true, false, false, NoSpace, NoSpace),
        ] {
            let failure = AttemptError { sent, error: kind.into() };
            assert_eq!(failure.may_retry(repeatable), passes, "{kind:?} {sent} {repeatable}");
            for (end, shown) in [(End::Timeout, over), (End::NoRetry, lost)] {
                let error = failure.clone().into_error(repeatable, end);
                assert_eq!(error.kind(), shown, "{kind:?} {sent} {repeatable} {end:?}");
                assert_eq!(error.to_string().contains("check the result before you retry"), doubt, "{error}");
            }
        }
    }

    #[test]
    fn backoff_grows_to_its_limit() {
        let mut pauses = Backoff::new(7);
        let first: Vec<_> = (0..20).map(|_| pauses.next()).collect();
        assert!(first[0] <= FIRST && first[0] >= FIRST / 2);
        assert!(first.iter().all(|pause| *pause <= LONGEST));
        assert!(first[19] >= LONGEST / 2);
        pauses.restart();
        assert!(pauses.next() <= FIRST);
    }
}
