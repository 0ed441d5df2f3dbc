//! Names are bytes; what is shown is text.

/// The text of a name or path, with what is no text replaced.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
