//! Where a write goes: into the buffer, always, for now.

use forebay_model::Bytes;

/// How writes are routed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Mode {
    /// Everything is buffered.
    #[default]
    Buffer,
}

/// What is known of a write before its bytes have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// Its first byte in the file; `None` for an append.
    pub offset: Option<u64>,
    /// How much it is.
    pub len: Bytes,
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Into a region.
    Buffer,
}

/// Decides where a write goes, before anything is reserved for it.
#[must_use]
pub fn route(mode: Mode, _write: Write) -> Route {
    match mode {
        Mode::Buffer => Route::Buffer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_mode_buffers() {
        for (offset, len) in [(Some(0), Bytes(0)), (Some(u64::MAX), Bytes::mib(4)), (None, Bytes(1))] {
            assert_eq!(route(Mode::Buffer, Write { offset, len }), Route::Buffer);
        }
    }
}
