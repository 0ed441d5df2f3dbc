//! Assigns kernel requests to threads.
//!
//! The threads that read requests also serve them, which is the shortest path. When the service does not answer, all of
//! them would wait, later requests would stay unread, and their timeouts would start only when they are read. So one
//! thread always keeps reading, and offloads a request to another thread if no inline permit is free within
//! [`INLINE_WAIT`].
//!
//! **Invariant**: reader threads serve at most [`INLINE_LIMIT`] requests at a time, other threads at most
//! [`OFFLOAD_LIMIT`].

use crate::work::Serve;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of requests that reader threads serve at a time.
const INLINE_LIMIT: usize = 8;
/// Number of threads that read requests.
pub(crate) const READERS: usize = INLINE_LIMIT + 1;
/// Maximum number of offloaded requests; more wait until one is done. Each may hold the data of one write.
const OFFLOAD_LIMIT: usize = 128;
/// Maximum number of threads besides the readers; the client needs a few of them.
pub(crate) const MOST_THREADS: usize = 2 * OFFLOAD_LIMIT;
/// How long a request waits for an inline permit: if the service answers, one is free by then.
const INLINE_WAIT: Duration = Duration::from_millis(5);

/// Runs each request on its reader thread or on another thread.
pub(crate) struct Dispatcher {
    serve: Arc<Serve>,
    inline: Arc<Semaphore>,
    offloaded: Arc<Semaphore>,
}

impl Dispatcher {
    pub(crate) fn new(serve: Serve) -> Dispatcher {
        let semaphore = |count| Arc::new(Semaphore { free: Mutex::new(count), freed: Condvar::new() });
        Dispatcher {
            serve: Arc::new(serve),
            inline: semaphore(INLINE_LIMIT),
            offloaded: semaphore(OFFLOAD_LIMIT),
        }
    }

    pub(crate) fn serve(&self) -> &Arc<Serve> {
        &self.serve
    }

    /// Serves a request on this thread, or offloads it if no inline permit is free.
    pub(crate) fn run(&self, work: impl FnOnce(&Serve) + Send + 'static) {
        match self.seat() {
            Some(_seat) => work(&self.serve),
            None => self.run_elsewhere(work),
        }
    }

    /// A permit to serve a request on this thread; `None` if none is free within [`INLINE_WAIT`].
    pub(crate) fn seat(&self) -> Option<Permit> {
        self.inline.acquire_within(INLINE_WAIT)
    }

    /// Serves a request on another thread; waits while [`OFFLOAD_LIMIT`] requests are offloaded.
    pub(crate) fn run_elsewhere(&self, work: impl FnOnce(&Serve) + Send + 'static) {
        let (serve, permit) = (self.serve.clone(), self.offloaded.acquire());
        self.serve.wait.spawn_blocking(move || {
            work(&serve);
            drop(permit);
        });
    }
}

/// A counting semaphore: each request holds one permit.
struct Semaphore {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A permit of a semaphore; released when dropped.
pub(crate) struct Permit(Arc<Semaphore>);

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

impl Semaphore {
    fn acquire(self: &Arc<Semaphore>) -> Permit {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Permit(self.clone())
    }

    fn acquire_within(self: &Arc<Semaphore>, time: Duration) -> Option<Permit> {
        let mut free = self.free.lock();
        self.freed.wait_while_for(&mut free, |free| *free == 0, time);
        *free = free.checked_sub(1)?;
        Some(Permit(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semaphore_permits_are_acquired_and_released() {
        let semaphore = Arc::new(Semaphore { free: Mutex::new(2), freed: Condvar::new() });
        let (one, _two) = (semaphore.acquire(), semaphore.acquire());
        assert!(semaphore.acquire_within(Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| semaphore.acquire());
            drop(one);
            drop(waiting.join().unwrap());
        });
        assert!(semaphore.acquire_within(Duration::ZERO).is_some());
    }
}
