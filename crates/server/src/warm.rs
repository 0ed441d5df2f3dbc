//! Prepares the memory of the regions for the first burst, at low priority while the server already serves clients.

use crate::service::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Instant;

/// Nice value: yields to threads that serve clients. Not lower, because a client that maps a region may wait for a
/// page.
const NICE: i32 = 10;

/// Whether all regions are prepared.
#[derive(Clone, Default)]
pub(crate) struct Warmth(Arc<AtomicBool>);

impl Warmth {
    pub(crate) fn is_reached(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Returns when all regions are prepared or the server stops.
pub(crate) fn warm(service: &Service) {
    std::thread::scope(|scope| {
        let thread = Builder::new().name("forebay-warm".to_owned());
        // On a separate thread, because lowering the priority cannot be undone.
        let given_way = thread.spawn_scoped(scope, || {
            // If this fails, the thread merely competes with others.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            touch(service);
        });
        if given_way.is_err() {
            touch(service);
        }
    });
}

fn touch(service: &Service) {
    let (begin, stopping) = (Instant::now(), service.life.stopping());
    service.store.data().warm(&|| *stopping.borrow());
    if !*stopping.borrow() {
        service.warmth.0.store(true, Ordering::Release);
        tracing::debug!(took = ?begin.elapsed(), "prefaulted the regions");
    }
}
