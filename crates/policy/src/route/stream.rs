//! Whether a stream of writes would make a disk seek: SSDUP's random factor.
//!
//! A stream is so many writes one after the other. Sorted by file and offset, as a disk's queue would sort them, each that
//! does not begin where the one before it ends counts one. The share of those says where the next stream goes: into the
//! buffer above the high mark, past it below the low one, as before in between.

use super::{Route, Write};
use forebay_model::{Bytes, Error, ErrorKind, FileId, Result};

/// Most writes in a stream.
pub const MOST_REQUESTS: usize = 1 << 16;

/// Two marks with a space between them in which everything stays as it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Marks {
    high: f64,
    low: f64,
}

impl Marks {
    /// Two shares of random writes, from 0 to 1.
    pub fn new(high: f64, low: f64) -> Result<Marks> {
        let share = 0.0..=1.0;
        if share.contains(&high) && share.contains(&low) && low <= high {
            return Ok(Marks { high, low });
        }
        let text = format!(
            "the marks {high} (high) and {low} (low) are no shares in order: choose 0 ≤ low ≤ high ≤ 1, such as 0.45 and 0.30"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    fn decide(self, percent: f64, now: Route) -> Route {
        match now {
            Route::Direct if percent > self.high => Route::Buffer,
            Route::Buffer if percent < self.low => Route::Direct,
            _ => now,
        }
    }
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { high: 0.45, low: 0.30 }
    }
}

/// How streams are looked at.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// Writes in a stream.
    stream: usize,
    marks: Marks,
    /// Synchronous writes below this are random, wherever they begin.
    small: Bytes,
}

impl Settings {
    /// Streams of so many writes.
    pub fn new(stream: usize, marks: Marks) -> Result<Settings> {
        if (2..=MOST_REQUESTS).contains(&stream) {
            return Ok(Settings { stream, marks, ..Settings::default() });
        }
        let text =
            format!("a stream of {stream} requests says nothing: choose 2 to {MOST_REQUESTS}, such as 128");
        Err(Error::new(ErrorKind::Invalid, text))
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { stream: 128, marks: Marks::default(), small: Bytes::kib(64) }
    }
}

/// What a stream was like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen {
    /// Writes in it.
    pub requests: usize,
    /// Those that do not begin where the one before ends.
    pub random: usize,
}

impl Seen {
    /// The share of random writes, from 0 to 1.
    #[must_use]
    pub fn percent(self) -> f64 {
        if self.requests < 2 { 0.0 } else { self.random as f64 / (self.requests - 1) as f64 }
    }
}

/// One write of a stream, as far as it counts.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: FileId,
    start: u64,
    /// Not one past the largest number.
    end: Option<u64>,
    alone: bool,
}

/// Looks at streams.
#[derive(Clone, Debug)]
pub struct Detector {
    settings: Settings,
    stream: Vec<Place>,
    route: Route,
}

impl Detector {
    /// One that has seen nothing: the first stream goes past the buffer.
    #[must_use]
    pub fn new(settings: Settings) -> Detector {
        Detector { settings, stream: Vec::with_capacity(settings.stream), route: Route::default() }
    }

    /// Where writes go now.
    #[must_use]
    pub fn now(&self) -> Route {
        self.route
    }

    /// Looks at a write; if it was the last of a stream, says what that was like.
    pub fn see(&mut self, write: &Write) -> Option<Seen> {
        self.stream.push(Place {
            file: write.file,
            start: write.offset,
            end: write.offset.checked_add(write.len.0),
            alone: self.is_small_sync(write),
        });
        (self.stream.len() >= self.settings.stream).then(|| {
            let seen = self.finish().expect("there is at least this one");
            self.route = self.settings.marks.decide(seen.percent(), self.route);
            seen
        })
    }

    /// Ends a stream before it is full; it decides nothing. Nothing if there is none.
    pub fn finish(&mut self) -> Option<Seen> {
        // Stable: of two writes at one place the first to come is the first.
        self.stream.sort_by_key(|place| (place.file, place.start));
        let follows = |pair: &&[Place]| {
            pair[0].file == pair[1].file && pair[0].end == Some(pair[1].start) && !pair[1].alone
        };
        let requests = self.stream.len();
        let sequential = self.stream.windows(2).filter(follows).count();
        self.stream.clear();
        requests.checked_sub(1).map(|distances| Seen { requests, random: distances - sequential })
    }

    /// Where a write goes; what it is like counts for those that come later.
    pub(super) fn route(&mut self, write: &Write) -> Route {
        let route = if self.is_small_sync(write) { Route::Buffer } else { self.route };
        self.see(write);
        route
    }

    /// Whether somebody waits for each of such writes to be on a device.
    pub(super) fn is_small_sync(&self, write: &Write) -> bool {
        write.sync && write.len < self.settings.small
    }
}
