//! When data is drained automatically.

use crate::share::Tick;
use forebay_model::Stamp;
use serde::{Deserialize, Serialize};

/// Outside the configured hours, and while programs write a burst, the buffer is drained only above this share of its
/// capacity.
pub const HIGH: f64 = 0.8;
/// Without a pipeline, a burst ends when no bytes have arrived for this long.
pub const LULL: Tick = Tick::ms(300);

/// Whether data is drained while more arrives.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pipeline {
    /// Some regions are filled while others are drained.
    #[default]
    On,
    /// Nothing is drained before the burst is over, unless a writer waits for space.
    Off,
}

/// The state of a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Burst {
    /// Bursts do not matter.
    Any,
    /// The burst continues: nothing is drained.
    GoesOn,
    /// The burst is over: everything is drained.
    Over,
}

/// The state of a burst whose last bytes arrived at `last`.
#[must_use]
pub fn burst(pipeline: Pipeline, last: Tick, now: Tick) -> Burst {
    match pipeline {
        Pipeline::On => Burst::Any,
        Pipeline::Off if now.since(last) < LULL => Burst::GoesOn,
        Pipeline::Off => Burst::Over,
    }
}

/// What an administrator chooses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Trigger {
    /// Above this share of the capacity, data is drained until the level is reached.
    pub threshold: f64,
    /// Below the threshold, only data older than this is drained.
    pub age: Tick,
    /// Drain whenever no other data is being drained, however little there is.
    pub when_idle: bool,
}

impl Trigger {
    /// The bytes that fit into a buffer between the threshold and the share that is drained even during a burst.
    #[must_use]
    pub fn room(&self, capacity: u64) -> u64 {
        (capacity as f64 * (HIGH - self.threshold).max(0.0)) as u64
    }
}

impl Default for Trigger {
    fn default() -> Trigger {
        Trigger { threshold: 0.2, age: Tick::ms(600_000), when_idle: false }
    }
}

/// The state that the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Bytes of the buffer.
    pub capacity: u64,
    /// Bytes in it that are not drained.
    pub live: u64,
    /// Writers that wait for space.
    pub waiting: usize,
    /// Whether nothing is being drained.
    pub idle: bool,
    /// The state of the burst.
    pub burst: Burst,
    /// Whether programs fill the buffer so fast that the drain would take processors from them.
    pub filling: bool,
    /// Whether it is an hour in which data may be drained.
    pub within_hours: bool,
    /// The time.
    pub now: Stamp,
}

/// What should be drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Nothing.
    Nothing,
    /// This many bytes, the oldest first.
    Bytes(u64),
    /// Everything that was written before.
    Before(Stamp),
}

impl Want {
    /// Whether bytes are drained, when this many others were chosen and the oldest of them arrived then.
    #[must_use]
    pub fn takes(self, chosen: u64, oldest: Stamp) -> bool {
        match self {
            Want::Nothing => false,
            Want::Bytes(bytes) => chosen < bytes,
            Want::Before(then) => oldest <= then,
        }
    }
}

/// Files with the age and the number of their bytes in the buffer, in the order in which they are drained: those with
/// the oldest bytes first.
pub fn oldest_first<F: Ord>(files: &mut [(Stamp, u64, F)]) {
    files.sort_unstable();
}

/// What should be drained now.
#[must_use]
pub fn want(trigger: &Trigger, view: View) -> Want {
    let above = |share: f64| view.live.saturating_sub((view.capacity as f64 * share) as u64);
    if view.waiting > 0 {
        return Want::Bytes(above(trigger.threshold).max(view.capacity / 4));
    }
    match view.burst {
        Burst::GoesOn => return Want::Nothing,
        Burst::Over if view.live > 0 => return Want::Before(view.now),
        Burst::Over | Burst::Any => {}
    }
    if view.filling && above(HIGH.max(trigger.threshold)) == 0 {
        return Want::Nothing;
    }
    let mark = if view.within_hours { trigger.threshold } else { HIGH.max(trigger.threshold) };
    if above(mark) > 0 {
        return Want::Bytes(above(mark));
    }
    if !view.within_hours || view.live == 0 {
        return Want::Nothing;
    }
    if trigger.when_idle && view.idle {
        return Want::Before(view.now);
    }
    Want::Before(Stamp(view.now.0.saturating_sub(trigger.age.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn drain_is_lazy_below_the_threshold_and_eager_above() {
        let at = |seconds: u64| Stamp(seconds * SECOND);
        let lazy = Trigger { age: Tick(10 * SECOND), ..Trigger::default() };
        let idle = Trigger { when_idle: true, ..lazy };
        let (any, on, over) = (Burst::Any, Burst::GoesOn, Burst::Over);
        for (burst, trigger, within_hours, live, waiting, wanted) in [
            (on, lazy, true, 900, 0, Want::Nothing),
            (on, lazy, true, 900, 1, Want::Bytes(700)),
            (over, lazy, true, 100, 0, Want::Before(at(100))),
            (over, lazy, true, 0, 0, Want::Nothing),
            (any, lazy, true, 0, 0, Want::Nothing),
            (any, lazy, true, 200, 0, Want::Before(at(90))),
            (any, lazy, true, 201, 0, Want::Bytes(1)),
            (any, lazy, true, 900, 0, Want::Bytes(700)),
            (any, lazy, true, 900, 1, Want::Bytes(700)),
            (any, lazy, true, 100, 1, Want::Bytes(250)),
            (any, idle, true, 100, 0, Want::Before(at(100))),
            (any, lazy, false, 200, 0, Want::Nothing),
            (any, lazy, false, 700, 0, Want::Nothing),
            (any, lazy, false, 900, 0, Want::Bytes(100)),
            (any, lazy, false, 700, 1, Want::Bytes(500)),
        ] {
            let idle = true;
            let view = View {
                capacity: 1000,
                live,
                waiting,
                idle,
                burst,
                filling: false,
                within_hours,
                now: at(100),
            };
            assert_eq!(want(&trigger, view), wanted, "{trigger:?} {view:?}");
        }
        // While programs write a burst, the drain leaves them the processors as long as there is room.
        for (live, waiting, wanted) in [
            (100, 0, Want::Nothing),
            (800, 0, Want::Nothing),
            (801, 0, Want::Bytes(601)),
            (100, 1, Want::Bytes(250)),
        ] {
            let (capacity, idle, filling, within_hours) = (1000, true, true, true);
            let view =
                View { capacity, live, waiting, idle, burst: any, filling, within_hours, now: at(100) };
            assert_eq!(want(&lazy, view), wanted, "{live} {waiting}");
        }
    }

    #[test]
    fn oldest_files_are_drained_until_the_trigger_is_satisfied() {
        let backlog = [(Stamp(30), 5, 'c'), (Stamp(10), 4, 'a'), (Stamp(20), 6, 'b')];
        for (want, chosen) in [
            (Want::Nothing, ""),
            (Want::Bytes(0), ""),
            (Want::Bytes(1), "a"),
            (Want::Bytes(4), "a"),
            (Want::Bytes(5), "ab"),
            (Want::Bytes(100), "abc"),
            (Want::Before(Stamp(9)), ""),
            (Want::Before(Stamp(20)), "ab"),
        ] {
            let (mut files, mut bytes, mut names) = (backlog, 0, String::new());
            oldest_first(&mut files);
            for (oldest, len, name) in files {
                if want.takes(bytes, oldest) {
                    (bytes, names) = (bytes + len, names + &name.to_string());
                }
            }
            assert_eq!(names, chosen, "{want:?}");
        }
    }

    #[test]
    fn room_lies_between_the_threshold_and_the_share_of_a_burst() {
        let room = |threshold| Trigger { threshold, ..Trigger::default() }.room(1000);
        assert_eq!([0.0, 0.3, 0.8, 0.9].map(room), [800, 500, 0, 0]);
    }

    #[test]
    fn burst_continues_as_long_as_bytes_arrive() {
        let last = Tick(SECOND);
        assert_eq!(burst(Pipeline::Off, last, Tick(SECOND + LULL.0 - 1)), Burst::GoesOn);
        assert_eq!(burst(Pipeline::Off, last, last.after(LULL)), Burst::Over);
        assert_eq!(burst(Pipeline::On, last, last), Burst::Any);
    }
}
