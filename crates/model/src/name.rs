//! Names of directory entries.

use crate::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fmt::Display as _;

/// Longest name of an entry, in bytes.
pub const MAX_NAME: usize = 255;
/// Longest path, in bytes.
pub const MAX_PATH: usize = 4096;

/// The name of a directory entry: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct Name(Vec<u8>);

impl Name {
    /// Checks a name.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Name> {
        let bytes = bytes.into();
        if bytes.len() > MAX_NAME {
            let text = format!("a name has at most {MAX_NAME} bytes, this one has {}", bytes.len());
            return Err(Error::new(ErrorKind::NameTooLong, text));
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|b| matches!(b, 0 | b'/'))
        {
            let text = format!("\"{}\" cannot be the name of an entry", bytes.escape_ascii());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Name(bytes))
    }

    /// The name in quotes, with bytes that are no printable ASCII escaped.
    pub fn quoted(&self) -> impl fmt::Display + '_ {
        struct Quoted<'a>(&'a [u8]);
        impl fmt::Display for Quoted<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }
        Quoted(&self.0)
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for Name {
    type Error = Error;

    fn try_from(bytes: Vec<u8>) -> Result<Name> {
        Name::new(bytes)
    }
}

impl From<Name> for Vec<u8> {
    fn from(name: Name) -> Vec<u8> {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.quoted().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_limits_are_enforced() {
        assert!(Name::new("x".repeat(MAX_NAME)).is_ok());
        assert_eq!(Name::new("x".repeat(MAX_NAME + 1)).unwrap_err().kind(), ErrorKind::NameTooLong);
        for bad in ["", ".", "..", "a/b", "a\0b"] {
            assert_eq!(Name::new(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
        assert!(Name::new(b"\xff\xfe".to_vec()).is_ok(), "names are bytes, not text");
    }
}
