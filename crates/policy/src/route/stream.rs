//! Randomness of a stream of writes: SSDUP's random factor.
//!
//! A stream is a fixed number of consecutive writes. The detector sorts them by file and offset, as a disk's
//! queue would, and counts each write that does not begin where the one before it ends. Their share decides
//! the route of the next stream: the buffer above the high mark, direct below the low mark, unchanged in
//! between.

use super::{Route, Write};
use forebay_model::{Bytes, Error, ErrorKind, FileId, Result};

/// Most writes in a stream.
pub const MOST_REQUESTS: usize = 1 << 16;

/// High and low mark; between them the route stays unchanged.
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
            "invalid marks {high} (high) and {low} (low): choose 0 ≤ low ≤ high ≤ 1, such as 0.45 and 0.30"
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

/// Settings of the detector.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// Writes in a stream.
    stream: usize,
    marks: Marks,
    /// Synchronous writes below this size always count as random.
    small: Bytes,
}

impl Settings {
    /// Streams of the given number of writes.
    pub fn new(stream: usize, marks: Marks) -> Result<Settings> {
        if (2..=MOST_REQUESTS).contains(&stream) {
            return Ok(Settings { stream, marks, ..Settings::default() });
        }
        let text = format!("{stream} is not a stream length: choose 2 to {MOST_REQUESTS}, such as 128");
        Err(Error::new(ErrorKind::Invalid, text))
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { stream: 128, marks: Marks::default(), small: Bytes::kib(64) }
    }
}

/// Statistics of a stream.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen {
    /// Number of writes.
    pub requests: usize,
    /// Writes that do not begin where the one before ends.
    pub random: usize,
}

impl Seen {
    /// The share of random writes, from 0 to 1.
    #[must_use]
    pub fn percent(self) -> f64 {
        if self.requests < 2 { 0.0 } else { self.random as f64 / (self.requests - 1) as f64 }
    }
}

/// One write of a stream.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: FileId,
    start: u64,
    /// `None` if the end overflows.
    end: Option<u64>,
    alone: bool,
}

/// Measures the randomness of streams.
#[derive(Clone, Debug)]
pub struct Detector {
    settings: Settings,
    stream: Vec<Place>,
    route: Route,
}

impl Detector {
    /// A detector without history: the first stream goes direct.
    #[must_use]
    pub fn new(settings: Settings) -> Detector {
        Detector { settings, stream: Vec::with_capacity(settings.stream), route: Route::default() }
    }

    /// The current route.
    #[must_use]
    pub fn now(&self) -> Route {
        self.route
    }

    /// Adds a write. Returns the statistics of the stream if this was its last write.
    pub fn see(&mut self, write: &Write) -> Option<Seen> {
        self.stream.push(Place {
            file: write.file,
            start: write.offset,
            end: write.offset.checked_add(write.len.0),
            alone: self.is_small_sync(write),
        });
        (self.stream.len() >= self.settings.stream).then(|| {
            let seen = self.finish().expect("the stream has at least this write");
            self.route = self.settings.marks.decide(seen.percent(), self.route);
            seen
        })
    }

    /// Ends a stream early, without a routing decision. `None` if it is empty.
    pub fn finish(&mut self) -> Option<Seen> {
        // Stable sort: writes to the same offset keep their order of arrival.
        self.stream.sort_by_key(|place| (place.file, place.start));
        let follows = |pair: &&[Place]| {
            pair[0].file == pair[1].file && pair[0].end == Some(pair[1].start) && !pair[1].alone
        };
        let requests = self.stream.len();
        let sequential = self.stream.windows(2).filter(follows).count();
        self.stream.clear();
        requests.checked_sub(1).map(|distances| Seen { requests, random: distances - sequential })
    }

    /// Routes a write, and counts it for later ones.
    pub(super) fn route(&mut self, write: &Write) -> Route {
        let route = if self.is_small_sync(write) { Route::Buffer } else { self.route };
        self.see(write);
        route
    }

    /// Whether this is a small write whose writer waits until it is on a device.
    pub(super) fn is_small_sync(&self, write: &Write) -> bool {
        write.sync && write.len < self.settings.small
    }
}
