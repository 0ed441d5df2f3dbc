//! Concurrent writes, each with an equal part of the bandwidth for their number.

use super::{Device, Work};
use crate::share::Tick;
use forebay_model::{FileId, Span};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Rounding error in bytes from whole nanoseconds.
const NOTHING: f64 = 0.5;

#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Shared {
    /// Bytes per writer since the target was last idle. All writers get the same, so a write ends when this
    /// has grown by its bytes, seeks included, however many writes start and end in between.
    done: f64,
    /// The value of `done` at which each write ends, the next first, as the bits of a non-negative float,
    /// which sort like the float. The write that starts last mostly ends last.
    order: VecDeque<(u64, Work)>,
    /// Ends of recent writes, the latest first.
    ends: VecDeque<(FileId, u64)>,
}

impl Shared {
    /// Starts a write. Returns the number of seeks.
    pub(super) fn begin(&mut self, device: &Device, work: Work, file: FileId, span: Span) -> u64 {
        let known = self.ends.iter().position(|&end| end == (file, span.start));
        let seeks = u64::from(known.is_none());
        if let Some(place) = known {
            self.ends.remove(place);
        }
        self.ends.push_front((file, span.end));
        self.ends.truncate(device.streams);
        let jump = seeks as f64 * device.seek.secs() * device.curve.best().1;
        let end = (self.done + span.len() as f64 + jump).to_bits();
        let place = self.order.iter().rposition(|&one| one < (end, work)).map_or(0, |before| before + 1);
        self.order.insert(place, (end, work));
        seeks
    }

    pub(super) fn next_end(&self, device: &Device, now: Tick) -> Option<Tick> {
        let least = self.least()?;
        let nanos = (least / self.each(device) * 1e9).ceil().max(0.0);
        Some(Tick(now.0.saturating_add(nanos as u64)))
    }

    pub(super) fn is_under_way(&self, work: Work) -> bool {
        self.order.iter().rev().any(|&(_, one)| one == work)
    }

    pub(super) fn writers(&self) -> usize {
        self.order.len()
    }

    /// Advances from one end of a write to the next, where the rate of the others changes. Collects the ended
    /// writes.
    pub(super) fn advance(&mut self, device: &Device, from: Tick, to: Tick, ended: &mut Vec<Work>) {
        let mut from = from;
        while let Some(end) = self.next_end(device, from) {
            let until = end.min(to);
            self.done += self.each(device) * until.since(from).secs();
            while self.least().is_some_and(|least| least < NOTHING)
                && let Some((_, work)) = self.order.pop_front()
            {
                ended.push(work);
            }
            from = until;
            if until == to {
                break;
            }
        }
        if self.order.is_empty() {
            self.done = 0.0;
        }
    }

    fn least(&self) -> Option<f64> {
        self.order.front().map(|&(end, _)| f64::from_bits(end) - self.done)
    }

    /// Bytes per second for each writer.
    fn each(&self, device: &Device) -> f64 {
        let writers = u32::try_from(self.order.len()).unwrap_or(u32::MAX);
        device.curve.rate(writers) / f64::from(writers.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Curve, ModelledTarget};
    use super::*;

    fn trio(seek: Tick) -> ModelledTarget {
        ModelledTarget::new(Device { curve: Curve::trio(), seek, streams: 4, queue: 0 })
    }

    /// `n` concurrent writers of `len` bytes each: seconds until the last has ended.
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
    fn writers_share_the_bandwidth_of_the_curve() {
        const LEN: u64 = 574_000_000;
        for (writers, secs) in [(1, 574.0 / 356.0), (2, 2.0), (32, 32.0 * 574.0 / 401.0)] {
            let took = together(writers, LEN, Tick(0));
            assert!((took - secs).abs() < 1e-6 * secs, "{writers} writers: {took} instead of {secs}");
        }
    }

    /// The result does not depend on how often the caller advances the time.
    #[test]
    fn time_may_advance_in_steps_of_any_size() {
        let begin = || {
            let mut target = trio(Tick(0));
            for (file, len) in [(1, 100_000_000), (2, 200_000_000), (3, 50_000_000)] {
                target.begin(Tick(0), FileId(file), Span::new(0, len));
            }
            target
        };
        let (mut often, mut seldom) = (begin(), begin());
        for now in (0..=600).step_by(10).map(Tick::ms) {
            often.advance(now);
        }
        seldom.advance(Tick::ms(600));
        assert_eq!((often.writers(), seldom.writers()), (1, 1));
        let ends = [often, seldom].map(|target| target.next_end().expect("one is left").secs());
        assert!((ends[0] - ends[1]).abs() < 1e-6, "{ends:?}");
    }

    #[test]
    fn only_discontiguous_writes_cost_a_seek() {
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
