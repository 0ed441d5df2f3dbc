//! Which core a thread runs on, and how it leaves that to somebody else.
//!
//! Two threads that answer each other, and share a core, wait for each other in vain while they look. The scheduler notices
//! that after some milliseconds only, though another core is idle; and in a virtual machine, where an idle core takes long to
//! wake up, it has whoever is woken run on the core of who wakes it.

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
        Away::from(taken).is_some()
    }
}

/// The calling thread is kept off some cores for as long as this is there.
pub struct Away {
    all: CpuSet,
    left: CpuSet,
}

impl Away {
    /// Away from these cores, if the thread may run on any other.
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
        // Unless somebody has said meanwhile where it is to run. Should it be refused, the thread stays with what it has.
        if sched_getaffinity(None) == Ok(self.left) {
            let _ = sched_setaffinity(None, &self.all);
        }
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

    /// None that anybody runs on.
    pub(crate) const NOWHERE: Core = Core(u32::MAX);

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
            !Aside::default().step([Core::NOWHERE].into_iter().chain(all()), now),
            "nor is there such a core"
        );
        assert!(Away::from([Core::NOWHERE]).is_none() && !Core::NOWHERE.is_here());
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

    #[test]
    fn who_is_away_may_come_back_unless_somebody_says_where_it_is_to_run() {
        let may = sched_getaffinity(None).unwrap();
        let here = Core::here();
        let Some(away) = Away::from([here]) else {
            assert_eq!(may.count(), 1, "there is nowhere else");
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
