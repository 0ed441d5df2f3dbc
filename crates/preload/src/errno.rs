//! The table from Forebay's errors to error numbers; logs the error's text.

use forebay_model::{Error, ErrorKind};
use libc::c_int;
use std::ffi::CString;

/// An error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    /// Sets the calling thread's `errno`.
    pub(crate) fn set(self) {
        // SAFETY: the C library gives every thread a place for its error number.
        unsafe { *libc::__errno_location() = self.0 };
    }

    /// The calling thread's `errno`.
    pub(crate) fn last() -> Errno {
        // SAFETY: as above.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl From<ErrorKind> for Errno {
    fn from(kind: ErrorKind) -> Errno {
        Errno(match kind {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Exists => libc::EEXIST,
            ErrorKind::NotDirectory => libc::ENOTDIR,
            ErrorKind::IsDirectory => libc::EISDIR,
            ErrorKind::NotEmpty => libc::ENOTEMPTY,
            ErrorKind::AccessDenied | ErrorKind::Unauthenticated => libc::EACCES,
            ErrorKind::NotPermitted => libc::EPERM,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::Invalid => libc::EINVAL,
            ErrorKind::NameTooLong => libc::ENAMETOOLONG,
            ErrorKind::TooManyLinks => libc::ELOOP,
            ErrorKind::LinkLimit => libc::EMLINK,
            ErrorKind::TooLarge => libc::EFBIG,
            ErrorKind::NoAttribute => libc::ENODATA,
            ErrorKind::Range => libc::ERANGE,
            ErrorKind::BadHandle => libc::EBADF,
            ErrorKind::Stale => libc::ESTALE,
            ErrorKind::Io | ErrorKind::BadStore | ErrorKind::OutcomeUnknown => libc::EIO,
            ErrorKind::Busy => libc::EBUSY,
            ErrorKind::Unreachable => libc::ENOTCONN,
            ErrorKind::Protocol => libc::EPROTO,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::TimedOut => libc::ETIMEDOUT,
        })
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        // Errors that a local file system also returns are not logged.
        let own = matches!(
            error.kind(),
            ErrorKind::Stale
                | ErrorKind::Io
                | ErrorKind::Busy
                | ErrorKind::Unreachable
                | ErrorKind::Protocol
                | ErrorKind::Unauthenticated
                | ErrorKind::BadStore
                | ErrorKind::Unsupported
                | ErrorKind::TimedOut
                | ErrorKind::OutcomeUnknown
        );
        if own {
            crate::log::note(|| error.to_string());
        }
        error.kind().into()
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Errno {
        Errno(errno.raw_os_error())
    }
}

/// Why a call does not return a value from Forebay.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The call does not concern Forebay: the C library handles it.
    Foreign,
    /// The call fails.
    Errno(Errno),
    /// A symbolic link or `..` led out of Forebay: the C library handles this path.
    Outside(CString),
}

impl<E: Into<Errno>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Errno(error.into())
    }
}

/// The result of a call.
pub(crate) type Outcome<T> = Result<T, Stop>;

/// Fails with an error number.
pub(crate) fn fail<T>(number: c_int) -> Outcome<T> {
    Err(Stop::Errno(Errno(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_without_an_answer_have_their_own_numbers() {
        for (kind, number) in [
            (ErrorKind::Unreachable, libc::ENOTCONN),
            (ErrorKind::TimedOut, libc::ETIMEDOUT),
            (ErrorKind::OutcomeUnknown, libc::EIO),
        ] {
            assert_eq!(Errno::from(kind), Errno(number), "{kind:?}");
        }
    }
}
