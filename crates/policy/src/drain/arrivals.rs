//! Whether programs write a burst that will soon fill the buffer: while they do, the drain leaves them the processors.

use crate::share::Tick;
use forebay_model::Stamp;
use std::collections::VecDeque;

/// Rates are measured over this time.
pub const WINDOW: Tick = Tick::ms(100);
/// Programs that would fill the room in this many windows write a burst. A slower writer leaves the drain time, and a
/// drain that waited longer would be complete later.
const WINDOWS: u64 = 40;

/// The bytes that had arrived at some times.
#[derive(Clone, Default, Debug)]
pub struct Arrivals {
    samples: VecDeque<(Stamp, u64)>,
}

impl Arrivals {
    /// Adds a sample, and returns whether programs write a burst that would soon fill `room` bytes.
    pub fn is_burst(&mut self, now: Stamp, arrived: u64, room: u64) -> bool {
        while self.samples.get(1).is_some_and(|(time, _)| now.0.saturating_sub(time.0) >= WINDOW.0) {
            self.samples.pop_front();
        }
        self.samples.push_back((now, arrived));
        let &(time, before) = self.samples.front().expect("a sample was added");
        let took = now.0.saturating_sub(time.0).max(WINDOW.0);
        let bytes = u128::from(arrived.saturating_sub(before));
        bytes > 0 && bytes * u128::from(WINDOW.0) / u128::from(took) * u128::from(WINDOWS) >= u128::from(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_fast_for_the_room_and_over_when_no_bytes_arrive() {
        let ms = |ms: u64| Stamp(ms * 1_000_000);
        let mut arrivals = Arrivals::default();
        let room = 4000;
        for (time, arrived, burst) in [
            (ms(0), 500, false),
            (ms(20), 550, false),
            (ms(40), 600, true),
            (ms(100), 600, true),
            (ms(140), 600, false),
            // 0.9 bytes a millisecond, seen late: too slow.
            (ms(1140), 1500, false),
            (ms(1240), 1600, true),
        ] {
            assert_eq!(arrivals.is_burst(time, arrived, room), burst, "{time:?} {arrived}");
        }
        assert!(arrivals.samples.len() <= 3, "{} samples", arrivals.samples.len());
    }
}
