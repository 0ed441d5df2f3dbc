//! x
pub(crate) fn is_on() -> bool { false }
