//! A storage target as one can reckon with it: how fast it is with so many writers, and what a jump costs.
//!
//! **Invariant**: all writers at work share the target equally, and together get what the curve says for their number;
//! a write that does not go on where an earlier one ended costs the work of a seek on top.

use crate::share::Tick;
use forebay_model::{Bytes, Error, ErrorKind, FileId, Result, Span};
use std::collections::{BTreeMap, VecDeque};

/// Bandwidth by the number of concurrent writers, straight lines between the points; beyond the last it stays.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// Writers and bytes a second.
    points: Vec<(u32, f64)>,
}

impl Curve {
    /// A curve through measured points.
    pub fn new(points: &[(u32, Bytes)]) -> Result<Curve> {
        let rising = points.is_sorted_by(|one, other| one.0 < other.0);
        let sane = points.iter().all(|&(writers, rate)| writers > 0 && rate.0 > 0);
        if points.is_empty() || !rising || !sane {
            let text = "a bandwidth curve has points with rising numbers of writers from 1 on, none of them with no bandwidth";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Curve { points: points.iter().map(|&(writers, rate)| (writers, rate.0 as f64)).collect() })
    }

    /// The target of TRIO's Fig. 1: 356, 574 and 401 MB/s with 1, 2 and 32 writers.
    #[must_use]
    pub fn trio() -> Curve {
        Curve { points: vec![(1, 356e6), (2, 574e6), (32, 401e6)] }
    }

    /// Bytes a second with so many writers.
    #[must_use]
    pub fn rate(&self, writers: u32) -> f64 {
        let after = self.points.partition_point(|&(count, _)| count < writers);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (Some((one, low)), Some(&(other, high))) => {
                low + (high - low) * f64::from(writers - one) / f64::from(other - one)
            }
            (None, Some(&(_, rate))) | (Some((_, rate)), None) => rate,
            (None, None) => unreachable!("a curve has points"),
        }
    }

    /// The number of writers with which it is fastest, and how fast it is then.
    #[must_use]
    pub fn best(&self) -> (u32, f64) {
        self.points
            .iter()
            .copied()
            .reduce(|best, next| if next.1 > best.1 { next } else { best })
            .expect("a curve has points")
    }
}

/// What a target is like.
#[derive(Clone, PartialEq, Debug)]
pub struct Device {
    /// How fast it is.
    pub curve: Curve,
    /// What a write costs that does not go on where an earlier one ended.
    pub seek: Tick,
    /// How many places it remembers at which it can go on without a seek.
    pub streams: usize,
}

/// A write that a target is working on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Work(u64);

/// One target at work, in any time.
#[derive(Clone, Debug)]
pub struct Target {
    device: Device,
    /// Bytes that are left of each write, seeks included.
    left: BTreeMap<Work, f64>,
    /// Where recent writes ended, the latest first.
    ends: VecDeque<(FileId, u64)>,
    now: Tick,
    next: u64,
    seeks: u64,
}

impl Target {
    /// A target with nothing to do.
    #[must_use]
    pub fn new(device: Device) -> Target {
        Target {
            device,
            left: BTreeMap::new(),
            ends: VecDeque::new(),
            now: Tick::default(),
            next: 0,
            seeks: 0,
        }
    }

    /// Begins a write. Time never goes back.
    pub fn begin(&mut self, now: Tick, file: FileId, span: Span) -> Work {
        self.advance(now);
        let known = self.ends.iter().position(|&end| end == (file, span.start));
        let mut work = span.len() as f64;
        match known {
            Some(place) => {
                self.ends.remove(place);
            }
            None => {
                work += self.device.seek.secs() * self.device.curve.best().1;
                self.seeks += 1;
            }
        }
        self.ends.push_front((file, span.end));
        self.ends.truncate(self.device.streams);
        self.next += 1;
        self.left.insert(Work(self.next), work);
        Work(self.next)
    }

    /// When the next write ends if none comes in between.
    #[must_use]
    pub fn next_end(&self) -> Option<Tick> {
        let least = self.left.values().copied().reduce(f64::min)?;
        let nanos = (least / self.each() * 1e9).ceil();
        Some(Tick(self.now.0 + nanos as u64))
    }

    /// The writes that have ended by now.
    pub fn ended(&mut self, now: Tick) -> Vec<Work> {
        self.advance(now);
        // Half a byte is what rounding to whole nanoseconds may leave.
        let ended: Vec<Work> =
            self.left.iter().filter(|&(_, &left)| left < 0.5).map(|(&work, _)| work).collect();
        for work in &ended {
            self.left.remove(work);
        }
        ended
    }

    /// How many writes it is working on.
    #[must_use]
    pub fn writers(&self) -> u32 {
        u32::try_from(self.left.len()).unwrap_or(u32::MAX)
    }

    /// How often it had to seek.
    #[must_use]
    pub fn seeks(&self) -> u64 {
        self.seeks
    }

    /// Bytes a second for each writer.
    fn each(&self) -> f64 {
        self.device.curve.rate(self.writers()) / f64::from(self.writers().max(1))
    }

    fn advance(&mut self, now: Tick) {
        assert!(now >= self.now, "time goes back from {:?} to {now:?}", self.now);
        let done = self.each() * Tick(now.0 - self.now.0).secs();
        self.left.values_mut().for_each(|left| *left -= done);
        self.now = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trio(seek: Tick) -> Target {
        Target::new(Device { curve: Curve::trio(), seek, streams: 4 })
    }

    #[test]
    fn the_curve_has_the_papers_points_and_its_peak_at_two() {
        let curve = Curve::trio();
        for (writers, rate) in [(1, 356e6), (2, 574e6), (32, 401e6), (17, 487.5e6), (1000, 401e6), (0, 356e6)]
        {
            assert!((curve.rate(writers) - rate).abs() < 1.0, "{writers}: {}", curve.rate(writers));
        }
        assert_eq!(curve.best(), (2, 574e6));
        for bad in [&[][..], &[(0, Bytes(5))], &[(2, Bytes(5)), (2, Bytes(6))], &[(3, Bytes(0))]] {
            assert!(Curve::new(bad).is_err(), "{bad:?}");
        }
    }

    /// `n` writers of `len` bytes each, all from the start: how long until the last has ended, in seconds.
    fn together(n: u64, len: u64, seek: Tick) -> f64 {
        let mut target = trio(seek);
        for file in 0..n {
            target.begin(Tick(0), FileId(file), Span::new(0, len));
        }
        let (mut now, mut ended) = (Tick(0), 0);
        while let Some(next) = target.next_end() {
            now = next;
            ended += target.ended(now).len() as u64;
        }
        assert_eq!(ended, n);
        now.secs()
    }

    #[test]
    fn writers_share_what_the_curve_gives_them() {
        const LEN: u64 = 574_000_000;
        for (writers, secs) in [(1, 574.0 / 356.0), (2, 2.0), (32, 32.0 * 574.0 / 401.0)] {
            let took = together(writers, LEN, Tick(0));
            assert!((took - secs).abs() < 1e-6 * secs, "{writers} writers: {took} instead of {secs}");
        }
    }

    #[test]
    fn only_jumps_cost_a_seek() {
        let mut target = trio(Tick::ms(10));
        let mut now = Tick(0);
        for (file, start) in [(1, 0), (1, 100), (2, 0), (1, 200), (2, 100), (1, 900), (2, 200)] {
            target.begin(now, FileId(file), Span::new(start, start + 100));
            now = target.next_end().expect("at work");
            assert_eq!(target.ended(now).len(), 1);
        }
        assert_eq!(target.seeks(), 3);
        let (calm, jumpy) = (together(2, 1 << 20, Tick(0)), together(2, 1 << 20, Tick::ms(10)));
        assert!((jumpy - calm - 0.02).abs() < 1e-6, "two seeks of 10 ms: {calm} and {jumpy}");
    }
}
