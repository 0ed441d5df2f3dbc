//! Performance model of a storage target: bandwidth by number of writers, and the cost of a seek.
//!
//! Two kinds. A *shared* target ([`Device::queue`] 0) serves all writes at once, like a storage server with
//! many disks. A *sorted* one is a disk with a queue: the queue accepts writes while it has space, and a
//! whole queue goes to the disk at once, sorted by offset.
//!
//! **Invariant**: durations depend only on which writes began when; time is monotonic.
//!
//! **Deliberately absent**: clocks and sleep (real-time callers supply them); reads.

mod curve;
mod shared;
mod sorted;

pub use curve::Curve;

use crate::share::Tick;
use forebay_model::{Bytes, Error, FileId, Result, Span};
use serde::{Deserialize, Serialize};
use shared::Shared;
use sorted::Sorted;

/// Parameters of a target. Parsed from a table as in `scenarios/devices.toml`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(try_from = "Entry")]
pub struct Device {
    /// Its bandwidth.
    pub curve: Curve,
    /// Cost of a write that does not continue where an earlier one ended.
    pub seek: Tick,
    /// Number of sequential streams it tracks, which continue without a seek.
    pub streams: usize,
    /// Number of writes that are sorted together; 0 for a shared target.
    pub queue: usize,
}

/// Serialized form of a device.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    bandwidth: Vec<(u32, f64)>,
    seek_us: u32,
    streams: usize,
    queue: usize,
}

impl TryFrom<Entry> for Device {
    type Error = Error;

    fn try_from(entry: Entry) -> Result<Device> {
        let Entry { bandwidth, seek_us, streams, queue } = entry;
        let points: Vec<(u32, Bytes)> =
            bandwidth.into_iter().map(|(writers, rate)| (writers, Bytes(rate as u64))).collect();
        Ok(Device { curve: Curve::new(&points)?, seek: Tick(u64::from(seek_us) * 1000), streams, queue })
    }
}

impl Device {
    /// The same device, `times` times slower.
    #[must_use]
    pub fn slower(&self, times: f64) -> Device {
        assert!(times > 0.0, "the factor is positive");
        let seek = Tick((self.seek.0 as f64 * times) as u64);
        Device { curve: self.curve.slower(times), seek, ..*self }
    }

    /// The same device with every byte standing for `bytes` bytes; a seek takes as long as before.
    #[must_use]
    pub fn grain(&self, bytes: f64) -> Device {
        assert!(bytes > 0.0, "the factor is positive");
        Device { curve: self.curve.slower(bytes), ..*self }
    }
}

/// A write in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Work(u64);

/// The simulation of one target.
#[derive(Clone, Debug)]
pub struct ModelledTarget {
    device: Device,
    state: ModelledState,
    /// Completed writes that were not returned yet.
    ended: Vec<Work>,
}

/// State of a target; enough to resume it in another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelledState {
    kind: Kind,
    now: Tick,
    next: u64,
    seeks: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Kind {
    Shared(Shared),
    Sorted(Sorted),
}

impl ModelledTarget {
    /// An idle target.
    #[must_use]
    pub fn new(device: Device) -> ModelledTarget {
        let kind = match device.queue {
            0 => Kind::Shared(Shared::default()),
            _ => Kind::Sorted(Sorted::default()),
        };
        let state = ModelledState { kind, now: Tick::default(), next: 0, seeks: 0 };
        ModelledTarget { device, state, ended: Vec::new() }
    }

    /// Resumes a target; starts idle if the state is from the future or of another kind.
    #[must_use]
    pub fn resume(device: Device, state: ModelledState, now: Tick) -> ModelledTarget {
        let fits = matches!(state.kind, Kind::Shared(_)) == (device.queue == 0);
        match fits && state.now <= now {
            true => ModelledTarget { device, state, ended: Vec::new() },
            false => ModelledTarget::new(device),
        }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> &ModelledState {
        &self.state
    }

    /// Starts a write.
    pub fn begin(&mut self, now: Tick, file: FileId, span: Span) -> Work {
        self.advance(now);
        self.state.next += 1;
        let work = Work(self.state.next);
        self.state.seeks += match &mut self.state.kind {
            Kind::Shared(shared) => shared.begin(&self.device, work, file, span),
            Kind::Sorted(sorted) => sorted.begin(&self.device, now, work, file, span),
        };
        work
    }

    /// Starts a flush of all writes accepted so far; it ends when these are on the disk.
    pub fn flush(&mut self, now: Tick) -> Work {
        self.advance(now);
        self.state.next += 1;
        let work = Work(self.state.next);
        if let Kind::Sorted(sorted) = &mut self.state.kind {
            self.state.seeks += sorted.flush(&self.device, now, work);
        }
        work
    }

    /// When the next write ends if no other starts before.
    #[must_use]
    pub fn next_end(&self) -> Option<Tick> {
        match &self.state.kind {
            Kind::Shared(shared) => shared.next_end(&self.device, self.state.now),
            Kind::Sorted(sorted) => sorted.next_end(),
        }
    }

    /// The writes that have ended by `now` and were not returned yet.
    pub fn ended(&mut self, now: Tick) -> std::vec::Drain<'_, Work> {
        self.advance(now);
        self.ended.drain(..)
    }

    /// Whether a write has not ended yet.
    #[must_use]
    pub fn is_under_way(&self, work: Work) -> bool {
        match &self.state.kind {
            Kind::Shared(shared) => shared.is_under_way(work),
            Kind::Sorted(sorted) => sorted.is_under_way(work),
        }
    }

    /// Number of writes in progress.
    #[must_use]
    pub fn writers(&self) -> usize {
        match &self.state.kind {
            Kind::Shared(shared) => shared.writers(),
            Kind::Sorted(sorted) => sorted.writers(),
        }
    }

    /// Number of seeks so far.
    #[must_use]
    pub fn seeks(&self) -> u64 {
        self.state.seeks
    }

    /// Advances the time.
    pub fn advance(&mut self, now: Tick) {
        assert!(now >= self.state.now, "time goes back from {:?} to {now:?}", self.state.now);
        match &mut self.state.kind {
            Kind::Shared(shared) => shared.advance(&self.device, self.state.now, now, &mut self.ended),
            Kind::Sorted(sorted) => sorted.advance(now, &mut self.ended),
        }
        self.state.now = now;
    }
}
