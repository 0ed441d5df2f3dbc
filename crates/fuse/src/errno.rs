//! The one table from what went wrong to the number that a program sees.

use forebay_model::{Error, ErrorKind};
use fuser::Errno;

/// The error number of an error.
pub(crate) fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Exists => Errno::EEXIST,
        ErrorKind::NotDirectory => Errno::ENOTDIR,
        ErrorKind::IsDirectory => Errno::EISDIR,
        ErrorKind::NotEmpty => Errno::ENOTEMPTY,
        ErrorKind::AccessDenied => Errno::EACCES,
        ErrorKind::NotPermitted => Errno::EPERM,
        ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::Invalid => Errno::EINVAL,
        ErrorKind::NameTooLong => Errno::ENAMETOOLONG,
        ErrorKind::TooManyLinks => Errno::ELOOP,
        ErrorKind::LinkLimit => Errno::EMLINK,
        ErrorKind::TooLarge => Errno::EFBIG,
        ErrorKind::NoAttribute => Errno::NO_XATTR,
        ErrorKind::Range => Errno::ERANGE,
        ErrorKind::BadHandle => Errno::EBADF,
        ErrorKind::Stale => Errno::ESTALE,
        ErrorKind::Busy => Errno::EAGAIN,
        ErrorKind::Unreachable => Errno::ETIMEDOUT,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::Unauthenticated => Errno::EACCES,
        ErrorKind::Io | ErrorKind::Protocol | ErrorKind::BadStore => Errno::EIO,
    }
}
