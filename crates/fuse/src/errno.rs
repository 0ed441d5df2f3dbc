//! The one table from errors to error numbers.

use forebay_model::{Error, ErrorKind};
use fuser::Errno;

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
        // Not ENOTCONN, which the kernel returns for a mount whose process has died.
        ErrorKind::Unreachable | ErrorKind::TimedOut => Errno::ETIMEDOUT,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::Unauthenticated => Errno::EACCES,
        ErrorKind::Io | ErrorKind::Protocol | ErrorKind::BadStore | ErrorKind::OutcomeUnknown => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_without_an_answer_have_their_own_numbers() {
        for (kind, number) in [
            (ErrorKind::Unreachable, libc::ETIMEDOUT),
            (ErrorKind::TimedOut, libc::ETIMEDOUT),
            (ErrorKind::OutcomeUnknown, libc::EIO),
        ] {
            assert_eq!(i32::from(errno(&kind.into())), number, "{kind:?}");
        }
    }
}
