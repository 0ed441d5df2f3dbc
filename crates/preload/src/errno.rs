//! The one table from our errors to error numbers, and the words behind them for whoever asks.

use forebay_model::{Error, ErrorKind};
use libc::c_int;
use std::ffi::CString;

/// An error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    /// Makes this the calling thread's error.
    pub(crate) fn set(self) {
        // SAFETY: the C library gives every thread a place for its error number.
        unsafe { *libc::__errno_location() = self.0 };
    }

    /// The calling thread's error.
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
            ErrorKind::Io | ErrorKind::BadStore => libc::EIO,
            ErrorKind::Busy => libc::EBUSY,
            ErrorKind::Unreachable => libc::ENOTCONN,
            ErrorKind::Protocol => libc::EPROTO,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
        })
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        // What a local file system would say too needs no words.
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

/// Why a call is not answered with a value of ours.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It has nothing to do with Forebay: the C library answers.
    Foreign,
    /// It fails.
    Errno(Errno),
    /// A symbolic link or `..` led out of Forebay: the C library answers for this path.
    Outside(CString),
}

impl<E: Into<Errno>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Errno(error.into())
    }
}

/// What a call comes to.
pub(crate) type Outcome<T> = Result<T, Stop>;

/// Fails with an error number.
pub(crate) fn fail<T>(number: c_int) -> Outcome<T> {
    Err(Stop::Errno(Errno(number)))
}
