//! Where a write goes: into the buffer, or past it to the storage behind.
//!
//! Four modes. `traffic` is SSDUP's: writes are looked at in streams of so many, whoever they are from, and the share of
//! them that would make a disk seek says where the next stream goes. `overflow` is Algorithm 2 of the Sizing paper: as much
//! as the storage behind takes goes straight there, and the rest is buffered.
//!
//! **Invariant**: a router's memory does not grow with what it has seen; a small synchronous write is buffered in every
//! mode, and never taken for part of a sequential stream.
//!
//! **Deliberately absent**: the order of the two ways at one byte (whoever writes keeps it); what happens when the buffer
//! is full.

mod overflow;
mod stream;

pub use stream::{Detector, MOST_REQUESTS, Marks, Seen, Settings};

use crate::share::Tick;
use forebay_model::{Bytes, Error, ErrorKind, FileId, Result};
use overflow::Allowance;
use serde::{Deserialize, Serialize};

/// How writes are routed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Everything is buffered.
    #[default]
    Buffer,
    /// What would make disks seek is buffered.
    Traffic,
    /// What the storage behind cannot take now is buffered.
    Overflow,
    /// Nothing is buffered that can go past the buffer.
    Direct,
}

impl Mode {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Mode); 4] = [
        ("buffer", Mode::Buffer),
        ("traffic", Mode::Traffic),
        ("overflow", Mode::Overflow),
        ("direct", Mode::Direct),
    ];

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        Mode::ALL.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

impl std::str::FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Mode> {
        let found = Mode::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, mode)| *mode).ok_or_else(|| {
            let text = format!("\"{text}\" is no way for writes: choose buffer, traffic, overflow or direct");
            Error::new(ErrorKind::Invalid, text)
        })
    }
}

/// What is known of a write before its bytes have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The file.
    pub file: FileId,
    /// Its first byte in this server's part of the file: see [`local`].
    pub offset: u64,
    /// How much it is.
    pub len: Bytes,
    /// Whether its writer waits until it is on a device.
    pub sync: bool,
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// Into a region.
    Buffer,
    /// Straight to the storage behind.
    #[default]
    Direct,
}

/// Decides where writes go, before anything is reserved for them.
#[derive(Clone, Debug)]
pub struct Router {
    mode: Mode,
    detector: Detector,
    allowance: Allowance,
}

impl Router {
    /// A router that has seen nothing.
    #[must_use]
    pub fn new(mode: Mode, settings: Settings) -> Router {
        Router { mode, detector: Detector::new(settings), allowance: Allowance::default() }
    }

    /// Where a write goes that comes now.
    pub fn route(&mut self, now: Tick, write: &Write) -> Route {
        match self.mode {
            Mode::Buffer => Route::Buffer,
            Mode::Traffic => self.detector.route(write),
            // Its writer waits for every byte, and a buffer is what he wants.
            Mode::Overflow | Mode::Direct if self.detector.is_small_sync(write) => Route::Buffer,
            Mode::Direct => Route::Direct,
            Mode::Overflow => self.allowance.route(now, write.len),
        }
    }

    /// Routes in another way from now on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// The storage behind takes so many bytes a second, as was measured.
    pub fn measured(&mut self, now: Tick, bandwidth: Bytes) {
        self.allowance.measured(now, bandwidth);
    }
}

/// Where a byte of a file lies in a server's own part of it, when stripes go round over so many servers: a file that is
/// written from its beginning to its end is so written on each of them.
#[must_use]
pub fn local(offset: u64, stripe: u64, servers: u64) -> u64 {
    assert!(stripe > 0 && servers > 0, "a layout has servers, and stripes have bytes");
    offset / stripe / servers * stripe + offset % stripe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_has_its_way() {
        let first = Write { file: FileId(1), offset: u64::MAX, len: Bytes::mib(4), sync: false };
        for (mode, route) in [
            (Mode::Buffer, Route::Buffer),
            (Mode::Direct, Route::Direct),
            (Mode::Traffic, Route::Direct),
            (Mode::Overflow, Route::Direct),
        ] {
            let mut router = Router::new(Mode::Buffer, Settings::default());
            router.set_mode(mode);
            assert_eq!(router.route(Tick(0), &first), route, "{mode:?}");
            let small = Write { len: Bytes::kib(4), sync: true, ..first };
            assert_eq!(router.route(Tick(0), &small), Route::Buffer, "{mode:?}");
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("sometimes".parse::<Mode>().unwrap_err().to_string().contains("sometimes"));
    }

    #[test]
    fn a_striped_file_is_sequential_on_each_server() {
        let found: Vec<u64> = [0, 9, 30, 35, 60].map(|offset| local(offset, 10, 3)).to_vec();
        assert_eq!(found, [0, 9, 10, 15, 20]);
        assert_eq!(local(u64::MAX, u64::MAX, 7), 0);
    }
}
