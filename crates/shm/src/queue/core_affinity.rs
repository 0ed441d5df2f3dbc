//! Which core a thread runs on, and how it moves off that core.
//!
//! Two threads that spin for each other's replies on one core make no progress. The scheduler notices only after some
//! milliseconds, even if another core is idle. In a virtual machine, where an idle core is slow to wake, it places the
//! woken thread on the core of the waking thread.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::time::{Duration, Instant};

/// Minimum time between two moves: more frequent collisions mean that there are too many threads.
const PAUSE: Duration = Duration::from_millis(2);

/// Moves a thread off the cores of other threads.
#[derive(Default)]
pub struct Aside {
    last: Option<Instant>,
}

impl Aside {
    /// Moves the calling thread to a core not in `taken`, if its affinity allows one and it has not moved just now. The
    /// affinity is restored afterwards, so that the scheduler may move it again.
    pub fn step(&mut self, taken: impl IntoIterator<Item = Core>, now: Instant) -> bool {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            return false;
        }
        self.last = Some(now);
        Away::from(taken).is_some()
    }
}

/// Keeps the calling thread off some cores while it exists.
pub struct Away {
    all: CpuSet,
    left: CpuSet,
}

impl Away {
    /// Excludes these cores, if the thread may run on any other.
    pub fn from(taken: impl IntoIterator<Item = Core>) -> Option<Away> {
        let all = sched_getaffinity(None).ok()?;
        let mut left = all;
        for Core(core) in taken {
            let core = core as usize - 1;
            if core < CpuSet::MAX_CPU {
                left.unset(core);
            }
        }
        let moved = left != all && left.count() > 0 && sched_setaffinity(None, &left).is_ok();
        moved.then_some(Away { all, left })
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        // Only if no other code changed the affinity meanwhile. On an error the thread keeps its current affinity.
        if sched_getaffinity(None) == Ok(self.left) {
            let _ = sched_setaffinity(None, &self.all);
        }
    }
}

/// The number of a core, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Core(u32);

impl Core {
    /// The core that the calling thread runs on.
    pub(crate) fn here() -> Core {
        Core(sched_getcpu() as u32 + 1)
    }

    /// A core that no thread runs on.
    pub(crate) const NOWHERE: Core = Core(u32::MAX);

    /// The core that a word encodes, if any.
    pub(crate) fn of(word: u32) -> Option<Core> {
        (word != 0).then_some(Core(word))
    }

    /// The encoded word.
    pub(crate) fn word(self) -> u32 {
        self.0
    }

    /// Whether the calling thread runs on this core.
    #[must_use]
    pub fn is_here(self) -> bool {
        self == Core::here()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_thread_runs_on_another_core_and_keeps_its_affinity() {
        let (may, now) = (sched_getaffinity(None).unwrap(), Instant::now());
        let all = || (0..CpuSet::MAX_CPU as u32).map(|core| Core(core + 1));
        assert!(!Aside::default().step(all(), now), "every core is taken");
        assert!(
            !Aside::default().step([Core::NOWHERE].into_iter().chain(all()), now),
            "there is no such core"
        );
        assert!(Away::from([Core::NOWHERE]).is_none() && !Core::NOWHERE.is_here());
        for core in (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core)) {
            let mut core_affinity = Aside::default();
            let taken = Core::of(core as u32 + 1);
            assert_eq!(core_affinity.step(taken, now), may.count() > 1, "core {core}");
            assert!(!core_affinity.step(taken, now + PAUSE - Duration::from_nanos(1)), "it has just moved");
            assert_eq!(core_affinity.step(taken, now + PAUSE), may.count() > 1);
            assert_eq!(sched_getaffinity(None).unwrap(), may);
        }
        assert_eq!(Core::of(0), None);
    }

    #[test]
    fn affinity_is_restored_unless_it_was_changed_meanwhile() {
        let may = sched_getaffinity(None).unwrap();
        let here = Core::here();
        let Some(away) = Away::from([here]) else {
            assert_eq!(may.count(), 1, "there is no other core");
            return;
        };
        assert!(!here.is_here() && sched_getaffinity(None).unwrap().count() == may.count() - 1);
        drop(away);
        assert_eq!(sched_getaffinity(None).unwrap(), may);
        let away = Away::from([here]);
        let mut only = CpuSet::new();
        only.set(here.0 as usize - 1);
        sched_setaffinity(None, &only).unwrap();
        drop(away);
        assert_eq!(sched_getaffinity(None).unwrap(), only);
        sched_setaffinity(None, &may).unwrap();
    }
}
