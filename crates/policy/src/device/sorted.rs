//! A disk with a sorting queue.
//!
//! Writes are gathered. A full queue goes to the disk at once, sorted by file and offset, with a seek before
//! each run of contiguous writes. The disk works on one queue while the next is gathered. A write that
//! arrives when both are full waits until the first is on the disk: so writers run at the disk's rate, with
//! one queue of slack.

use super::{Device, Work};
use crate::share::Tick;
use forebay_model::{FileId, Span};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Sorted {
    gathered: Vec<(FileId, Span)>,
    /// Head position after the last queue.
    head: Option<(FileId, u64)>,
    /// When the disk starts the last full queue, and when it ends.
    begins: Tick,
    ends: Tick,
    /// Waiting writes, and when each ends.
    waiting: BTreeMap<Work, Tick>,
}

impl Sorted {
    /// Accepts a write. Returns the number of seeks that go to the disk with it.
    pub(super) fn begin(&mut self, device: &Device, now: Tick, work: Work, file: FileId, span: Span) -> u64 {
        self.gathered.push((file, span));
        let seeks = if self.gathered.len() >= device.queue { self.send(device, now) } else { 0 };
        if self.begins > now {
            self.waiting.insert(work, self.begins);
        }
        seeks
    }

    pub(super) fn flush(&mut self, device: &Device, now: Tick, work: Work) -> u64 {
        let seeks = self.send(device, now);
        if self.ends > now {
            self.waiting.insert(work, self.ends);
        }
        seeks
    }

    pub(super) fn next_end(&self) -> Option<Tick> {
        self.waiting.values().copied().min()
    }

    pub(super) fn is_under_way(&self, work: Work) -> bool {
        self.waiting.contains_key(&work)
    }

    pub(super) fn writers(&self) -> usize {
        self.waiting.len()
    }

    /// Advances the time. Collects the ended writes.
    pub(super) fn advance(&mut self, now: Tick, ended: &mut Vec<Work>) {
        ended.extend(self.waiting.extract_if(.., |_, end| *end <= now).map(|(work, _)| work));
    }

    /// Sends the gathered writes to the disk.
    fn send(&mut self, device: &Device, now: Tick) -> u64 {
        self.gathered.sort_unstable_by_key(|&(file, span)| (file, span.start));
        let (mut seeks, mut bytes) = (0, 0);
        for (file, span) in self.gathered.drain(..) {
            seeks += u64::from(self.head != Some((file, span.start)));
            bytes += span.len();
            self.head = Some((file, span.end));
        }
        let secs = bytes as f64 / device.curve.rate(1) + seeks as f64 * device.seek.secs();
        self.begins = self.ends.max(now);
        self.ends = self.begins.after(Tick((secs * 1e9) as u64));
        seeks
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Curve, ModelledTarget};
    use super::*;
    use forebay_model::Bytes;

    /// 100 bytes per second, one second per seek, four writes per queue.
    fn disk() -> ModelledTarget {
        let curve = Curve::new(&[(1, Bytes(100))]).expect("a curve");
        ModelledTarget::new(Device { curve, seek: Tick::ms(1000), streams: 1, queue: 4 })
    }

    fn secs(tick: Option<Tick>) -> Option<f64> {
        tick.map(Tick::secs)
    }

    #[test]
    fn queue_is_written_sorted_and_writes_to_a_full_queue_wait() {
        let mut disk = disk();
        let put = |disk: &mut ModelledTarget, file, start: u64| {
            let work = disk.begin(Tick(0), FileId(file), Span::new(start, start + 100));
            disk.is_under_way(work)
        };
        // Two runs, whatever the order: 4 s and two seeks.
        let first = [(1, 300), (2, 0), (1, 200), (2, 100)].map(|(file, start)| put(&mut disk, file, start));
        assert_eq!((first, disk.seeks()), ([false; 4], 2));
        // The head is at 2:200 and the next queue has space for three: it starts when the disk is free.
        let second = [(2, 200), (2, 300), (1, 0), (1, 100)].map(|(file, start)| put(&mut disk, file, start));
        assert_eq!((second, secs(disk.next_end())), ([false, false, false, true], Some(6.0)));
        assert_eq!(disk.ended(Tick::ms(5999)).len(), 0);
        assert_eq!(disk.ended(Tick::ms(6000)).len(), 1);
        assert_eq!(disk.seeks(), 4);
        let flushed = disk.flush(Tick::ms(6000));
        assert_eq!((disk.is_under_way(flushed), secs(disk.next_end())), (true, Some(12.0)));
        disk.advance(Tick::ms(12_000));
        assert!(!disk.is_under_way(flushed));
    }

    #[test]
    fn one_stream_never_seeks_after_its_first_write() {
        let mut disk = disk();
        for number in 0..40 {
            disk.begin(Tick(0), FileId(1), Span::new(number * 10, number * 10 + 10));
        }
        assert_eq!(disk.seeks(), 1);
    }
}
