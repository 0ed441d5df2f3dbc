//! Requests that must fail.

use forebay_model::{Error, ErrorKind};

/// Asserts that the result is one of these errors.
pub fn refused<T: std::fmt::Debug>(what: &str, result: Result<T, Error>, kinds: &[ErrorKind]) {
    match result {
        Err(error) if kinds.contains(&error.kind()) => {}
        other => panic!("{what}: expected one of {kinds:?}, got {other:?}"),
    }
}
