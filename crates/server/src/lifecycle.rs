//! Whether the server starts, serves or stops.

use forebay_model::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::sleep;

/// The state that all parts of a server share from its start to its stop.
pub(crate) struct Lifecycle {
    stop: watch::Sender<bool>,
    /// Whether the server accepts client requests.
    open: watch::Sender<bool>,
    started: Instant,
    /// Whether this is the only server of its service.
    alone: bool,
}

impl Lifecycle {
    /// The server starts now. One that is alone serves at once.
    pub(crate) fn begin(alone: bool) -> Lifecycle {
        let (stop, open) = (watch::Sender::new(false), watch::Sender::new(alone));
        Lifecycle { stop, open, started: Instant::now(), alone }
    }

    /// Whether this is the only server of its service.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Time since the server started; the clock of sessions.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Accepts client requests; recovery of the previous boot's open files is complete.
    pub(crate) fn open_doors(&self) {
        self.open.send_replace(true);
    }

    pub(crate) fn serves(&self) -> bool {
        *self.open.borrow()
    }

    /// Waits until the server accepts client requests.
    pub(crate) async fn serving(&self) {
        if !self.serves() {
            // An error means that the service was dropped.
            let _ = self.open.subscribe().wait_for(|&open| open).await;
        }
    }

    /// Stops the server and wakes all waiters, which then return.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// A handle that stops the server without keeping it alive.
    pub(crate) fn stopper(&self) -> watch::Sender<bool> {
        self.stop.clone()
    }

    /// Waits for a future unless the server stops first. Blocks the thread.
    pub(crate) fn await_unless_it_ends<T>(&self, what: impl Future<Output = T>) -> Result<T> {
        tokio::runtime::Handle::current().block_on(async {
            let mut stopping = self.stopping();
            tokio::select! {
                biased;
                () = stopped(&mut stopping) => Err(Error::new(ErrorKind::Unreachable, "the server is stopping")),
                done = what => Ok(done),
            }
        })
    }

    /// A receiver that becomes true when the server stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}

/// Waits until the server stops. Cancel-safe.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the service was dropped, so the server has stopped.
    let _ = stopping.wait_for(|&stops| stops).await;
}

/// Sleeps for `pause`; returns false at once when the server stops, without reading the clock, which may be paused.
pub(crate) async fn rested(stopping: &mut watch::Receiver<bool>, pause: Duration) -> bool {
    tokio::select! {
        biased;
        () = stopped(stopping) => false,
        () = sleep(pause) => true,
    }
}
