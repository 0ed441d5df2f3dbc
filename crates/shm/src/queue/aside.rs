//! Which core a thread runs on, and how it leaves that to somebody else.
//!
//! Two threads that answer each other, and share a core, wait for each other in vain while they look. The scheduler notices
//! that after some milliseconds only, though another core is idle.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::time::{Duration, Instant};

/// Between two steps aside: where others are in the way again, there are too many of them.
const PAUSE: Duration = Duration::from_millis(2);

/// A thread that goes out of others' way.
#[derive(Default)]
pub struct Aside {
    last: Option<Instant>,
}

impl Aside {
    /// Moves the calling thread to a core that is not one of these, if it may run on any, and has not moved just now. From
    /// there the scheduler may move it wherever it could before.
    pub fn step(&mut self, taken: impl IntoIterator<Item = Core>, now: Instant) -> bool {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            return false;
        }
        self.last = Some(now);
        let Ok(all) = sched_getaffinity(None) else { return false };
        let mut free = all;
        for Core(core) in taken {
            let core = core as usize - 1;
            if core < CpuSet::MAX_CPU {
                free.unset(core);
            }
        }
        let moved = free.count() > 0 && sched_setaffinity(None, &free).is_ok();
        // Should it be refused, the thread stays with those that it has.
        moved && sched_setaffinity(None, &all).is_ok()
    }
}

/// A core that somebody runs on, or says so; counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Core(u32);

impl Core {
    /// The one that the calling thread runs on.
    pub(crate) fn here() -> Core {
        Core(sched_getcpu() as u32 + 1)
    }

    /// What a word says, if it says anything.
    pub(crate) fn of(word: u32) -> Option<Core> {
        (word != 0).then_some(Core(word))
    }

    /// The word for it.
    pub(crate) fn word(self) -> u32 {
        self.0
    }

    /// Whether the calling thread runs there.
    #[must_use]
    pub fn is_here(self) -> bool {
        self == Core::here()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_steps_aside_runs_elsewhere_and_may_come_back() {
        let (may, now) = (sched_getaffinity(None).unwrap(), Instant::now());
        let all = || (0..CpuSet::MAX_CPU as u32).map(|core| Core(core + 1));
        assert!(!Aside::default().step(all(), now), "every core is somebody's");
        assert!(
            !Aside::default().step([Core(u32::MAX)].into_iter().chain(all()), now),
            "nor is there such a core"
        );
        for core in (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core)) {
            let mut aside = Aside::default();
            let taken = Core::of(core as u32 + 1);
            assert_eq!(aside.step(taken, now), may.count() > 1, "core {core}");
            assert!(!aside.step(taken, now + PAUSE - Duration::from_nanos(1)), "it has just moved");
            assert_eq!(aside.step(taken, now + PAUSE), may.count() > 1);
            assert_eq!(sched_getaffinity(None).unwrap(), may);
        }
        assert_eq!(Core::of(0), None);
    }
}
