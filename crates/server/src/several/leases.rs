//! How long what others said of their directories counts, and how long what was said to them does.
//!
//! What a server M said counts here for the lease time after the last beat that M answered was sent. M changes a
//! directory only when all others have dropped their copy, or a lease's time has passed since it last answered their
//! beat. Clocks are compared only with themselves.

use crate::service::{Service, stopped};
use forebay_model::{Error, ErrorKind, Result, ServerId};
use forebay_store::{Ask, Told};
use forebay_wire::{PeerReply, PeerRequest};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Between two attempts to have a copy dropped.
const AGAIN: Duration = Duration::from_millis(20);

/// The leases of a server, in both directions.
pub(crate) struct Leases {
    time: Duration,
    born: Instant,
    state: Mutex<HashMap<ServerId, Lease>>,
}

#[derive(Default)]
struct Lease {
    /// Which life of the server said it.
    life: u64,
    /// What it said counts until then.
    until: Option<Instant>,
    /// When a beat of it was last answered.
    answered: Option<Instant>,
    /// Attempts to have it drop something that it did not answer.
    unheard: u32,
}

impl Leases {
    pub(crate) fn new(time: Duration) -> Arc<Leases> {
        Arc::new(Leases { time, born: Instant::now(), state: Mutex::default() })
    }

    /// Whether what a server said still counts.
    pub(crate) fn hold(&self, server: ServerId) -> bool {
        self.lock().get(&server).and_then(|lease| lease.until).is_some_and(|until| Instant::now() < until)
    }

    /// Whether what this life of a server said still counts.
    fn counts(&self, server: ServerId, life: u64) -> bool {
        self.hold(server) && self.lock().get(&server).is_some_and(|lease| lease.life == life)
    }

    /// A beat that was sent then was answered.
    fn extend(&self, server: ServerId, life: u64, sent: Instant) {
        let mut state = self.lock();
        let lease = state.entry(server).or_default();
        (lease.life, lease.until) = (life, Some(sent + self.time));
    }

    /// A beat has come. It is not answered while something should be dropped and nobody hears that: otherwise what is
    /// to be dropped would count for ever.
    pub(crate) fn answer(&self, server: ServerId) -> Result<()> {
        let mut state = self.lock();
        let lease = state.entry(server).or_default();
        if lease.unheard > 0 {
            let text = format!("server {server} was told to drop something and did not answer");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        lease.answered = Some(Instant::now());
        Ok(())
    }

    /// Whether nothing that this server said can count at another any more.
    fn is_over(&self, server: ServerId) -> bool {
        let answered = self.lock().get(&server).and_then(|lease| lease.answered);
        answered.unwrap_or(self.born).max(self.born).elapsed() > self.time
    }

    fn unheard(&self, server: ServerId, count: bool) {
        let mut state = self.lock();
        let lease = state.entry(server).or_default();
        lease.unheard = if count { lease.unheard + 1 } else { lease.unheard.saturating_sub(1) };
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServerId, Lease>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts an attempt that was not heard, until it is dropped.
struct Unheard<'a>(&'a Leases, ServerId);

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        self.0.unheard(self.1, false);
    }
}

impl Service {
    /// Returns when another server has dropped its copy of a directory, or that counts no more.
    pub(crate) async fn recall(self: Arc<Service>, server: ServerId, dir: forebay_model::FileId) {
        let ask = PeerRequest::Names { ask: Ask::Drop(dir).encode() };
        let mut unheard = None;
        loop {
            let patience = self.config.times.lease.min(self.config.times.peer);
            match self.ask_for(server, ask.clone(), patience).await {
                Ok(PeerReply::Names { told }) if matches!(Told::decode(&told), Ok(Told::Done)) => return,
                answer => tracing::debug!(%server, %dir, ?answer, "a copy could not be recalled"),
            }
            if unheard.is_none() {
                self.leases.unheard(server, true);
                unheard = Some(Unheard(&self.leases, server));
            }
            if self.leases.is_over(server) {
                return;
            }
            sleep(AGAIN).await;
        }
    }
}

/// Keeps what another server said counting, for as long as this one serves.
pub(crate) async fn beat(service: Arc<Service>, server: ServerId) {
    let pause = service.config.times.lease / 4;
    let mut stopping = service.stopping();
    loop {
        let sent = Instant::now();
        let asked = service.ask_for(server, PeerRequest::Beat, service.config.times.lease);
        let answer = tokio::select! {
            answer = asked => answer,
            () = stopped(&mut stopping) => return,
        };
        match answer {
            Ok(PeerReply::Alive { life }) => {
                if !service.leases.counts(server, life) {
                    // While it did not count, the server may have changed what it had said; and another life of it
                    // does not know what it had said.
                    tokio::task::block_in_place(|| service.store.names().forget_copies(server));
                }
                service.leases.extend(server, life, sent);
            }
            Ok(other) => tracing::warn!(%server, ?other, "a beat was answered with something else"),
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                if let Ok(line) = service.lines.to(server) {
                    line.hang_up();
                }
            }
            Err(_) => {}
        }
        let left = pause.saturating_sub(sent.elapsed()).max(pause / 8);
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => return,
            () = sleep(left) => {}
        }
    }
}

/// After a lease's time nobody can hold anything that an earlier life of this server said.
pub(crate) async fn outlive(service: Arc<Service>) {
    sleep(service.config.times.lease).await;
    service.store.names().outlived_leases();
}
