//! A storage target as one can reckon with it: how fast it is with so many writers, and what a jump costs.
//!
//! Two kinds. A *shared* target ([`Device::queue`] 0) works on all writes at once, as a storage server with many disks
//! does. A *sorted* one is a disk behind a queue: writes are taken into the queue while it has room, and go down a whole
//! queue at a time, in the order of their offsets.
//!
//! **Invariant**: how long something takes depends on what was begun when, on nothing else; time never goes back.
//!
//! **Deliberately absent**: clocks and sleep (who uses it in real time brings them); reads.

mod curve;
mod shared;
mod sorted;

pub use curve::Curve;

use crate::share::Tick;
use forebay_model::{Bytes, Error, FileId, Result, Span};
use serde::{Deserialize, Serialize};
use shared::Shared;
use sorted::Sorted;

/// What a target is like. Read from a table as in `scenarios/devices.toml`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(try_from = "Entry")]
pub struct Device {
    /// How fast it is.
    pub curve: Curve,
    /// What a write costs that does not go on where an earlier one ended.
    pub seek: Tick,
    /// How many places it remembers at which it can go on without a seek.
    pub streams: usize,
    /// How many writes are put in order before they go down; 0 if they are not.
    pub queue: usize,
}

/// A device as it is written down.
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
    /// The same in a world where everything takes so many times as long.
    #[must_use]
    pub fn slower(&self, times: f64) -> Device {
        assert!(times > 0.0, "time goes on");
        let seek = Tick((self.seek.0 as f64 * times) as u64);
        Device { curve: self.curve.slower(times), seek, ..*self }
    }

    /// The same in a world where every byte stands for so many: what takes time by itself, a seek, takes as long.
    #[must_use]
    pub fn grain(&self, bytes: f64) -> Device {
        assert!(bytes > 0.0, "a byte stands for something");
        Device { curve: self.curve.slower(bytes), ..*self }
    }
}

/// A write that a target is working on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Work(u64);

/// One target at work, in any time.
#[derive(Clone, Debug)]
pub struct Target {
    device: Device,
    state: State,
    /// Writes that have ended and were not told yet.
    ended: Vec<Work>,
}

/// What a target is doing: all that has to be known to go on elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
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

impl Target {
    /// A target with nothing to do.
    #[must_use]
    pub fn new(device: Device) -> Target {
        let kind = match device.queue {
            0 => Kind::Shared(Shared::default()),
            _ => Kind::Sorted(Sorted::default()),
        };
        let state = State { kind, now: Tick::default(), next: 0, seeks: 0 };
        Target { device, state, ended: Vec::new() }
    }

    /// A target that goes on where one like it was; as if nothing had been if that is of the future or of another kind.
    #[must_use]
    pub fn resume(device: Device, state: State, now: Tick) -> Target {
        let fits = matches!(state.kind, Kind::Shared(_)) == (device.queue == 0);
        match fits && state.now <= now {
            true => Target { device, state, ended: Vec::new() },
            false => Target::new(device),
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Begins a write.
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

    /// Begins to bring everything down that was taken so far: that is done when this is.
    pub fn flush(&mut self, now: Tick) -> Work {
        self.advance(now);
        self.state.next += 1;
        let work = Work(self.state.next);
        if let Kind::Sorted(sorted) = &mut self.state.kind {
            self.state.seeks += sorted.flush(&self.device, now, work);
        }
        work
    }

    /// When the next write ends if none comes in between.
    #[must_use]
    pub fn next_end(&self) -> Option<Tick> {
        match &self.state.kind {
            Kind::Shared(shared) => shared.next_end(&self.device, self.state.now),
            Kind::Sorted(sorted) => sorted.next_end(),
        }
    }

    /// The writes that have ended by now, and were not told yet.
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

    /// How many writes it is working on.
    #[must_use]
    pub fn writers(&self) -> usize {
        match &self.state.kind {
            Kind::Shared(shared) => shared.writers(),
            Kind::Sorted(sorted) => sorted.writers(),
        }
    }

    /// How often it had to seek.
    #[must_use]
    pub fn seeks(&self) -> u64 {
        self.state.seeks
    }

    /// Lets time pass.
    pub fn advance(&mut self, now: Tick) {
        assert!(now >= self.state.now, "time goes back from {:?} to {now:?}", self.state.now);
        match &mut self.state.kind {
            Kind::Shared(shared) => shared.advance(&self.device, self.state.now, now, &mut self.ended),
            Kind::Sorted(sorted) => sorted.advance(now, &mut self.ended),
        }
        self.state.now = now;
    }
}
