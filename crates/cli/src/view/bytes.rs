//! Names are bytes; output is text.

/// The text of a name or path, with invalid UTF-8 replaced.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
