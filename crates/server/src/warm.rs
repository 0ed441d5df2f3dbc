//! Prepares the memory of the regions for the first burst while the server already serves clients: at low priority, and
//! while clients write only on processors that they do not need.

use crate::lifecycle::Lifecycle;
use forebay_model::shown_time;
use forebay_store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Nice value: yields to threads that serve clients. Not lower, because a client that maps a region may wait for a
/// page.
const NICE: i32 = 10;
/// Processors that one writing client keeps busy: its own, and one of the server for its checksums.
const PROCESSORS: usize = 2;
/// How long to wait while clients need all processors.
const PAUSE: Duration = Duration::from_millis(5);

/// A client that was granted space or published bytes within this time is writing.
const WRITING: Duration = Duration::from_millis(20);

/// Whether all regions are prepared.
#[derive(Clone, Default)]
pub(crate) struct Prepared(Arc<AtomicBool>);

impl Prepared {
    pub(crate) fn is_reached(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Returns when all regions are prepared or the server stops.
pub(crate) fn warm(store: &Store, life: &Lifecycle, prepared: &Prepared) {
    std::thread::scope(|scope| {
        let thread = Builder::new().name("forebay-warm".to_owned());
        // On a separate thread, because lowering the priority cannot be undone.
        let at_low_priority = thread.spawn_scoped(scope, || {
            // If this fails, the thread merely competes with others.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            touch(store, life, prepared);
        });
        if at_low_priority.is_err() {
            touch(store, life, prepared);
        }
    });
}

fn touch(store: &Store, life: &Lifecycle, prepared: &Prepared) {
    let (begin, stopping, data) = (Instant::now(), life.stopping(), store.data());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let writing = || data.rings().iter().filter(|ring| ring.still < WRITING).count();
    let pause = || {
        while !*stopping.borrow() && writing() * PROCESSORS >= processors {
            std::thread::sleep(PAUSE);
        }
        *stopping.borrow()
    };
    if let Err(error) = data.warm(&pause) {
        tracing::warn!("not all of the buffer's memory could be allocated ahead: {error}");
        return;
    }
    if !*stopping.borrow() {
        prepared.0.store(true, Ordering::Release);
        tracing::debug!(took = %shown_time(begin.elapsed()), "prefaulted the regions");
    }
}
