//! Whether a thread of this process waits for something, or only for a core.

use rustix::thread::{Pid, gettid};
use std::sync::atomic::{AtomicI32, Ordering};

/// The thread that runs something; none at first.
#[derive(Default)]
pub(crate) struct Runner(AtomicI32);

impl Runner {
    /// The calling thread runs it from now on.
    pub(crate) fn is_this_thread(&self) {
        self.0.store(gettid().as_raw_nonzero().get(), Ordering::Release);
    }

    /// Whether its thread waits for something other than a core. Also true if that cannot be known.
    pub(crate) fn waits(&self) -> bool {
        let Some(thread) = Pid::from_raw(self.0.load(Ordering::Acquire)) else { return true };
        let path = format!("/proc/self/task/{thread}/stat");
        let Ok(stat) = std::fs::read(path) else { return true };
        // The name of the thread, in parentheses, may contain anything.
        let after = stat.iter().rposition(|&byte| byte == b')').map_or(0, |name| name + 1);
        let state = stat[after..].iter().find(|byte| !byte.is_ascii_whitespace());
        state != Some(&b'R')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    #[test]
    fn thread_that_computes_does_not_wait_and_one_that_sleeps_does() {
        let (runner, stop) = (&Runner::default(), &AtomicBool::new(false));
        assert!(runner.waits(), "no thread runs it");
        std::thread::scope(|scope| {
            let (end, ended) = channel::<()>();
            let (report, begun) = channel();
            scope.spawn(move || {
                runner.is_this_thread();
                report.send(()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                // Sleeps until the sender is dropped.
                let _ = ended.recv();
            });
            begun.recv().unwrap();
            let waits = runner.waits();
            stop.store(true, Ordering::Relaxed);
            assert!(!waits);
            while !runner.waits() {
                std::thread::yield_now();
            }
            drop(end);
        });
    }
}
