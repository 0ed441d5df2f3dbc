//! Group commit: callers that request a flush at the same time share one.

use forebay_model::Result;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Runs a flush for many callers.
///
/// A caller needs a flush that *began* after its request: one that was already running may have missed its changes.
#[derive(Default)]
pub(super) struct Flusher {
    turns: Mutex<Turns>,
    ended: Condvar,
}

#[derive(Default)]
struct Turns {
    begun: u64,
    ended: u64,
    running: bool,
    /// The result of the last flush that ended.
    outcome: Option<Result<()>>,
}

impl Flusher {
    /// Returns after a flush that began after this call, performed by this or another caller.
    pub(super) fn flush(&self, perform: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut turns = self.turns();
        let mine = turns.begun + 1;
        while turns.running {
            self.ended.wait(&mut turns);
            if turns.ended >= mine {
                return turns.outcome.clone().expect("a flush that ended has an outcome");
            }
        }
        turns.running = true;
        turns.begun += 1;
        drop(turns);
        let outcome = perform();
        let mut turns = self.turns();
        turns.running = false;
        turns.ended = turns.begun;
        turns.outcome = Some(outcome.clone());
        drop(turns);
        self.ended.notify_all();
        outcome
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn callers_that_arrive_during_a_flush_share_the_next_one() {
        let flusher = Arc::new(Flusher::default());
        let flushes = Arc::new(AtomicU64::new(0));
        let (started, first_runs) = channel();
        let (go, wait_for_go) = channel::<()>();
        let first = {
            let (flusher, flushes) = (flusher.clone(), flushes.clone());
            std::thread::spawn(move || {
                flusher.flush(|| {
                    flushes.fetch_add(1, Ordering::SeqCst);
                    started.send(()).expect("the test receives");
                    wait_for_go.recv().expect("the test sends");
                    Ok(())
                })
            })
        };
        first_runs.recv().expect("the first flush starts");
        let requested = Arc::new(AtomicU64::new(0));
        let others: Vec<_> = (0..8)
            .map(|_| {
                let (flusher, flushes, requested) = (flusher.clone(), flushes.clone(), requested.clone());
                std::thread::spawn(move || {
                    requested.fetch_add(1, Ordering::SeqCst);
                    flusher.flush(|| {
                        flushes.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    })
                })
            })
            .collect();
        while requested.load(Ordering::SeqCst) < 8 {
            std::thread::yield_now();
        }
        assert_eq!(flushes.load(Ordering::SeqCst), 1, "no caller overtakes a running flush");
        go.send(()).expect("the first flush waits");
        for thread in others.into_iter().chain([first]) {
            thread.join().expect("no panic").expect("no failure");
        }
        // A thread that had not reached the queue when the first flush ended may need another flush.
        assert!((2..=9).contains(&flushes.load(Ordering::SeqCst)));
    }
}
