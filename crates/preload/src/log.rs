//! Log lines of the library. None are written unless `FOREBAY_LOG` names a file or is `stderr`, except for warnings that
//! a program does not see all of Forebay's files.

use crate::process_state;
use rustix::fs::{CWD, Mode, OFlags};

/// Destination of log lines.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum Log {
    #[default]
    Nowhere,
    Stderr,
    File(std::ffi::CString),
}

impl Log {
    pub(crate) fn named(value: Option<&[u8]>) -> Log {
        match value {
            None | Some(b"" | b"0") => Log::Nowhere,
            Some(b"1" | b"stderr") => Log::Stderr,
            Some(path) => std::ffi::CString::new(path).map_or(Log::Nowhere, Log::File),
        }
    }
}

/// Writes a log line if logging is enabled.
pub(crate) fn note(words: impl FnOnce() -> String) {
    let line = |words: String| format!("forebay[{}]: {words}\n", rustix::process::getpid().as_raw_nonzero());
    match &process_state::config().log {
        Log::Nowhere => {}
        Log::Stderr => to_stderr(&line(words())),
        Log::File(path) => {
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
            if let Ok(file) = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600)) {
                let _ = rustix::io::write(&file, line(words()).as_bytes());
            }
        }
    }
}

fn to_stderr(line: &str) {
    // SAFETY: borrowed for one write; whatever descriptor 2 is, an extra line on it breaks no memory safety.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, line.as_bytes());
}

/// Writes a warning to standard error.
pub(crate) fn warn(words: &str) {
    to_stderr(&format!("forebay: {words}\n"));
}
