//! Memory is made ready for the first burst while clients are served already, with what they leave of the processors.

use crate::service::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Instant;

/// Gives way to whoever serves somebody. Not to everybody: who maps something waits until a page is there.
const NICE: i32 = 10;

/// Whether everything is ready.
#[derive(Clone, Default)]
pub(crate) struct Warmth(Arc<AtomicBool>);

impl Warmth {
    pub(crate) fn is_reached(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Returns when it is done, or the server ends.
pub(crate) fn warm(service: &Service) {
    std::thread::scope(|scope| {
        let thread = Builder::new().name("forebay-warm".to_owned());
        // A thread of its own: there is no way back to more.
        let given_way = thread.spawn_scoped(scope, || {
            // Where it is refused nothing but time is lost.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            touch(service);
        });
        if given_way.is_err() {
            touch(service);
        }
    });
}

fn touch(service: &Service) {
    let (begin, stopping) = (Instant::now(), service.stopping());
    service.store.data().warm(&|| *stopping.borrow());
    if !*stopping.borrow() {
        service.warmth.0.store(true, Ordering::Release);
        tracing::debug!(took = ?begin.elapsed(), "the regions are warm");
    }
}
