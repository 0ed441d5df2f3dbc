//! Leases on cached copies of directories, in both directions.
//!
//! A copy from server M counts on this server for the lease time after the last heartbeat that M answered was sent. M
//! changes a directory only when all other servers have dropped their copies, or the lease time has passed since it
//! last answered their heartbeats. Clocks are compared only with themselves. A machine whose clock stood still (a
//! paused virtual machine) does not notice that its leases have expired: so a server that did not wait for another one
//! answers its heartbeats with a new boot number from then on, and the other drops all copies.

use super::Peers;
use crate::lifecycle::{Lifecycle, stopped};
use forebay_model::{Error, ErrorKind, FileId, Result, ServerId};
use forebay_store::{NameReply, NameRequest, Store};
use forebay_wire::{PeerReply, PeerRequest, variant_name};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Pause between two attempts to recall a copy.
const AGAIN: Duration = Duration::from_millis(20);

/// When copies of directories expire, in both directions.
pub(crate) struct LeaseTable {
    time: Duration,
    started: Instant,
    state: Mutex<HashMap<ServerId, Lease>>,
}

#[derive(Default)]
struct Lease {
    /// The boot number of the server that sent the copies.
    boot: u64,
    /// Its copies count until then.
    until: Option<Instant>,
    /// When its last heartbeat was answered.
    answered: Option<Instant>,
    /// Recalls that it has not answered.
    unanswered: u32,
    /// How often its copies were taken to be expired without its answer.
    lapses: u64,
}

impl LeaseTable {
    pub(crate) fn new(time: Duration) -> Arc<LeaseTable> {
        Arc::new(LeaseTable { time, started: Instant::now(), state: Mutex::default() })
    }

    /// Whether copies from a server still count.
    pub(crate) fn hold(&self, server: ServerId) -> bool {
        self.lock().get(&server).and_then(|lease| lease.until).is_some_and(|until| Instant::now() < until)
    }

    /// Whether copies from this boot of a server still count.
    fn counts(&self, server: ServerId, boot: u64) -> bool {
        self.hold(server) && self.lock().get(&server).is_some_and(|lease| lease.boot == boot)
    }

    /// The heartbeat that was sent at `sent` was answered.
    fn extend(&self, server: ServerId, boot: u64, sent: Instant) {
        let mut state = self.lock();
        let lease = state.entry(server).or_default();
        (lease.boot, lease.until) = (boot, Some(sent + self.time));
    }

    /// A heartbeat has arrived. It is refused while a recall is unanswered: otherwise the recalled copy would count for
    /// ever. Returns how often the server's copies were taken to be expired.
    pub(crate) fn answer(&self, server: ServerId) -> Result<u64> {
        let mut state = self.lock();
        let lease = state.entry(server).or_default();
        if lease.unanswered > 0 {
            let text = format!("server {server} has not answered the recall of a directory copy");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        lease.answered = Some(Instant::now());
        Ok(lease.lapses)
    }

    /// Whether all copies from this server have expired on another one. If so, its next heartbeat is answered with a
    /// new number.
    fn has_lapsed(&self, server: ServerId) -> bool {
        let mut state = self.lock();
        let lease = state.entry(server).or_default();
        let is_over = lease.answered.unwrap_or(self.started).max(self.started).elapsed() > self.time;
        lease.lapses += u64::from(is_over);
        is_over
    }

    fn unanswered(&self, server: ServerId, count: bool) {
        let mut state = self.lock();
        let lease = state.entry(server).or_default();
        lease.unanswered = if count { lease.unanswered + 1 } else { lease.unanswered.saturating_sub(1) };
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServerId, Lease>> {
        self.state.lock()
    }
}

/// Counts an unanswered recall, until it is dropped.
struct UnansweredRecall<'a>(&'a LeaseTable, ServerId);

impl UnansweredRecall<'_> {
    fn count(leases: &LeaseTable, server: ServerId) -> UnansweredRecall<'_> {
        leases.unanswered(server, true);
        UnansweredRecall(leases, server)
    }
}

impl Drop for UnansweredRecall<'_> {
    fn drop(&mut self) {
        self.0.unanswered(self.1, false);
    }
}

/// Keeps and recalls leases on copies of directories.
pub(crate) struct DirLeases {
    pub(crate) table: Arc<LeaseTable>,
    pub(crate) store: Arc<Store>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) life: Arc<Lifecycle>,
    /// Timeout of a request to another server.
    pub(crate) patience: Duration,
}

impl DirLeases {
    /// Returns when another server has dropped its copy of a directory, or the copy has expired.
    pub(crate) async fn recall(self: Arc<DirLeases>, server: ServerId, dir: FileId) {
        let ask = PeerRequest::Names { request: NameRequest::Drop(dir).encode() };
        let mut unanswered = None;
        loop {
            let patience = self.table.time.min(self.patience);
            match self.peers.request_within(server, ask.clone(), patience).await {
                Ok(PeerReply::Names { reply })
                    if matches!(NameReply::decode(&reply), Ok(NameReply::Done)) =>
                {
                    return;
                }
                Ok(_) => tracing::debug!(%server, %dir, "a server does not drop its copy of a directory"),
                Err(error) => tracing::debug!(%server, %dir, %error, "cannot recall a copy of a directory"),
            }
            if unanswered.is_none() {
                unanswered = Some(UnansweredRecall::count(&self.table, server));
            }
            if self.table.has_lapsed(server) {
                return;
            }
            sleep(AGAIN).await;
        }
    }
}

/// Renews the lease on another server's copies, for as long as this server runs.
pub(crate) async fn beat(leases: Arc<DirLeases>, server: ServerId) {
    let pause = leases.table.time / 4;
    let mut stopping = leases.life.stopping();
    loop {
        let sent = Instant::now();
        let request = leases.peers.request_within(server, PeerRequest::Heartbeat, leases.table.time);
        let answer = tokio::select! {
            answer = request => answer,
            () = stopped(&mut stopping) => return,
        };
        match answer {
            Ok(PeerReply::Alive { boot }) => {
                if !leases.table.counts(server, boot) {
                    // The server may have changed its directories while the lease had expired, and a new boot does not
                    // know which copies it sent.
                    tokio::task::block_in_place(|| leases.store.names().forget_copies(server));
                }
                leases.table.extend(server, boot, sent);
            }
            Ok(other) => {
                tracing::warn!(%server, answer = variant_name(&other), "unexpected answer to a heartbeat");
            }
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                if let Ok(client) = leases.peers.clients.to(server) {
                    client.disconnect();
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

/// After the lease time no server holds copies from an earlier boot of this server.
pub(crate) async fn outlive(leases: Arc<DirLeases>) {
    sleep(leases.table.time).await;
    leases.store.names().outlived_leases();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_server_gets_a_new_boot_number_with_its_next_beat() {
        let (leases, other, third) = (LeaseTable::new(Duration::from_millis(1)), ServerId(1), ServerId(2));
        assert_eq!((leases.answer(other).unwrap(), leases.answer(third).unwrap()), (0, 0));
        let unanswered = UnansweredRecall::count(&leases, other);
        while !leases.has_lapsed(other) {
            std::thread::yield_now();
        }
        assert_eq!(leases.answer(other).unwrap_err().kind(), ErrorKind::Busy, "the recall is pending");
        drop(unanswered);
        assert_eq!((leases.answer(other).unwrap(), leases.answer(third).unwrap()), (1, 0));
    }

    #[test]
    fn copies_from_another_boot_do_not_count_under_a_valid_lease() {
        let (leases, other) = (LeaseTable::new(Duration::from_secs(3600)), ServerId(1));
        leases.extend(other, 40, Instant::now());
        assert!(leases.counts(other, 40) && !leases.counts(other, 41));
    }
}
