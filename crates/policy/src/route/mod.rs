//! Routing of writes: into the buffer, or directly to the back end.
//!
//! Four modes. `traffic` is SSDUP's: the router groups all writes into streams of a fixed number of requests,
//! and the share of writes that would make a disk seek decides the route of the next stream. `overflow` is
//! Algorithm 2 of the Sizing paper: writes go directly to the back end up to its bandwidth, and the rest is
//! buffered.
//!
//! **Invariant**: a router's memory does not grow with the number of writes. Every mode buffers small
//! synchronous writes, and no mode counts one as part of a sequential stream.
//!
//! **Deliberately absent**: the order of a buffered and a direct write to the same byte (the writer keeps
//! it).

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
    /// All writes are buffered.
    #[default]
    Buffer,
    /// Writes that would make disks seek are buffered.
    Traffic,
    /// Writes beyond the back end's current bandwidth are buffered.
    Overflow,
    /// All writes bypass the buffer, except where that is impossible.
    Direct,
}

impl Mode {
    /// All modes, with their names.
    pub const ALL: [(&'static str, Mode); 4] = [
        ("buffer", Mode::Buffer),
        ("traffic", Mode::Traffic),
        ("overflow", Mode::Overflow),
        ("direct", Mode::Direct),
    ];

    /// Its name in the configuration.
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
            let text =
                format!("\"{text}\" is not a routing mode: choose buffer, traffic, overflow or direct");
            Error::new(ErrorKind::Invalid, text)
        })
    }
}

/// A write as known before its bytes arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The file.
    pub file: FileId,
    /// Its first byte within this server's part of the file: see [`local`].
    pub offset: u64,
    /// Its length.
    pub len: Bytes,
    /// Whether the writer waits until the write is on a device.
    pub sync: bool,
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// Into a buffer region.
    Buffer,
    /// Directly to the back end.
    #[default]
    Direct,
}

/// What happens to a write that finds the buffer full.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Full {
    /// It waits for space.
    #[default]
    Wait,
    /// It is written directly.
    Bypass,
}

/// Whether the buffer has space for a write that arrives now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// It has, and no other writer waits for it.
    Free,
    /// It has not, or others wait for it.
    Full,
}

/// The route of a write, given the way that the router chose for it and the space that it finds.
#[must_use]
pub fn decide(chosen: Route, space: Space, full: Full) -> Route {
    match (chosen, space, full) {
        (Route::Direct, ..) | (_, Space::Full, Full::Bypass) => Route::Direct,
        (Route::Buffer, Space::Free, _) | (Route::Buffer, Space::Full, Full::Wait) => Route::Buffer,
    }
}

/// Routes writes, before space is reserved for them.
#[derive(Clone, Debug)]
pub struct WriteRouter {
    mode: Mode,
    detector: Detector,
    allowance: Allowance,
}

impl WriteRouter {
    /// A router without history.
    #[must_use]
    pub fn new(mode: Mode, settings: Settings) -> WriteRouter {
        WriteRouter { mode, detector: Detector::new(settings), allowance: Allowance::default() }
    }

    /// The route of a write that arrives now.
    pub fn route(&mut self, now: Tick, write: &Write) -> Route {
        match self.mode {
            Mode::Buffer => Route::Buffer,
            Mode::Traffic => self.detector.route(write),
            // The writer waits for every such write, and the buffer has the lower latency.
            Mode::Overflow | Mode::Direct if self.detector.is_small_sync(write) => Route::Buffer,
            Mode::Direct => Route::Direct,
            Mode::Overflow => self.allowance.route(now, write.len),
        }
    }

    /// Changes the mode.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Records the measured bandwidth of the back end, in bytes per second.
    pub fn measured(&mut self, now: Tick, bandwidth: Bytes) {
        self.allowance.measured(now, bandwidth);
    }
}

/// Offset of a byte within one server's part of a file that is striped round-robin over the given number of
/// servers: a sequential file is sequential on each of them.
#[must_use]
pub fn local(offset: u64, stripe: u64, servers: u64) -> u64 {
    assert!(stripe > 0 && servers > 0, "a layout has servers, and stripes have bytes");
    offset / stripe / servers * stripe + offset % stripe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_routes_as_documented() {
        let first = Write { file: FileId(1), offset: u64::MAX, len: Bytes::mib(4), sync: false };
        for (mode, route) in [
            (Mode::Buffer, Route::Buffer),
            (Mode::Direct, Route::Direct),
            (Mode::Traffic, Route::Direct),
            (Mode::Overflow, Route::Direct),
        ] {
            let mut router = WriteRouter::new(Mode::Buffer, Settings::default());
            router.set_mode(mode);
            assert_eq!(router.route(Tick(0), &first), route, "{mode:?}");
            let small = Write { len: Bytes::kib(4), sync: true, ..first };
            assert_eq!(router.route(Tick(0), &small), Route::Buffer, "{mode:?}");
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("sometimes".parse::<Mode>().unwrap_err().to_string().contains("sometimes"));
    }

    #[test]
    fn full_buffer_is_bypassed_only_where_that_was_chosen() {
        for (chosen, space, full, route) in [
            (Route::Buffer, Space::Free, Full::Bypass, Route::Buffer),
            (Route::Buffer, Space::Full, Full::Wait, Route::Buffer),
            (Route::Buffer, Space::Full, Full::Bypass, Route::Direct),
            (Route::Direct, Space::Free, Full::Wait, Route::Direct),
        ] {
            assert_eq!(decide(chosen, space, full), route, "{chosen:?} {space:?} {full:?}");
        }
    }

    #[test]
    fn striped_file_is_sequential_on_each_server() {
        let found: Vec<u64> = [0, 9, 30, 35, 60].map(|offset| local(offset, 10, 3)).to_vec();
        assert_eq!(found, [0, 9, 10, 15, 20]);
        assert_eq!(local(u64::MAX, u64::MAX, 7), 0);
    }
}
