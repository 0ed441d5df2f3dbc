//! When data is drained automatically.

use super::settings::Draining;
use crate::writers::Burst;
use forebay_model::Stamp;

/// Outside the configured hours, and while programs write a burst, the buffer is drained only above this fill level, in
/// per cent.
pub(super) const HIGH: u64 = 80;

/// The state that the decision depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) capacity: u64,
    pub(super) live: u64,
    /// Writers that wait for space.
    pub(super) waiting: usize,
    /// Whether nothing is being drained.
    pub(super) idle: bool,
    pub(super) burst: Burst,
    /// Whether programs fill the buffer so fast that the drain would take processors from them.
    pub(super) filling: bool,
    pub(super) now: Stamp,
}

/// What should be drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    Nothing,
    /// This many bytes, the oldest first.
    Bytes(u64),
    /// Everything that was written before.
    Before(Stamp),
}

pub(super) fn want(settings: &Draining, view: View) -> Want {
    let per_cent = |share: u64| view.capacity / 100 * share;
    if view.waiting > 0 {
        return Want::Bytes(
            view.live.saturating_sub(per_cent(u64::from(settings.threshold))).max(view.capacity / 4),
        );
    }
    match view.burst {
        Burst::GoesOn => return Want::Nothing,
        Burst::Over if view.live > 0 => return Want::Before(view.now),
        Burst::Over | Burst::Any => {}
    }
    let (within, threshold) = (settings.may_drain(view.now), u64::from(settings.threshold));
    if view.filling && view.live <= per_cent(HIGH.max(threshold)) {
        return Want::Nothing;
    }
    let mark = if within { threshold } else { HIGH.max(threshold) };
    if view.live > per_cent(mark) {
        return Want::Bytes(view.live - per_cent(mark));
    }
    if !within || view.live == 0 {
        return Want::Nothing;
    }
    if settings.when_idle && view.idle {
        return Want::Before(view.now);
    }
    let age = u64::try_from(settings.age.as_nanos()).unwrap_or(u64::MAX);
    Want::Before(Stamp(view.now.0.saturating_sub(age)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn drain_is_lazy_below_the_threshold_and_eager_above() {
        let noon = 20_000 * 86_400 + 12 * 3600;
        let settings = Draining { age: Duration::from_secs(10), ..Draining::default() };
        let night = Draining { hours: Some("20:00-06:00".parse().unwrap()), ..settings.clone() };
        let idle = Draining { when_idle: true, ..settings.clone() };
        let second = |seconds: u64| Stamp(seconds * 1_000_000_000);
        let (any, on, over) = (Burst::Any, Burst::GoesOn, Burst::Over);
        for (burst, live, waiting, wanted) in [
            (on, 900, 0, Want::Nothing),
            (on, 900, 1, Want::Bytes(700)),
            (over, 100, 0, Want::Before(second(noon))),
            (over, 0, 0, Want::Nothing),
        ] {
            let view =
                View { capacity: 1000, live, waiting, idle: true, burst, filling: false, now: second(noon) };
            assert_eq!(want(&settings, view), wanted, "{burst:?} {live} {waiting}");
        }
        for (settings, live, waiting, wanted) in [
            (&settings, 0, 0, Want::Nothing),
            (&settings, 200, 0, Want::Before(second(noon - 10))),
            (&settings, 201, 0, Want::Bytes(1)),
            (&settings, 900, 0, Want::Bytes(700)),
            (&settings, 900, 1, Want::Bytes(700)),
            (&settings, 100, 1, Want::Bytes(250)),
            (&idle, 100, 0, Want::Before(second(noon))),
            (&night, 200, 0, Want::Nothing),
            (&night, 700, 0, Want::Nothing),
            (&night, 900, 0, Want::Bytes(100)),
            (&night, 700, 1, Want::Bytes(500)),
        ] {
            let view = View {
                capacity: 1000,
                live,
                waiting,
                idle: true,
                burst: any,
                filling: false,
                now: second(noon),
            };
            assert_eq!(want(settings, view), wanted, "{settings:?} {live} {waiting}");
        }
        // While programs write a burst, the drain leaves them the processors as long as there is room.
        for (live, waiting, wanted) in [
            (100, 0, Want::Nothing),
            (800, 0, Want::Nothing),
            (801, 0, Want::Bytes(601)),
            (100, 1, Want::Bytes(250)),
        ] {
            let view = View {
                capacity: 1000,
                live,
                waiting,
                idle: true,
                burst: any,
                filling: true,
                now: second(noon),
            };
            assert_eq!(want(&settings, view), wanted, "{live} {waiting}");
        }
    }
}
