//! Messages between servers about write slots at targets.
//!
//! One server of the service is the arbiter of each target. A server with bytes for a target sends a statement to its
//! arbiter, on every change and at every beat, and receives its grants in the reply. The arbiter notifies a server that
//! gets a grant while it waits; that server then sends a statement at once.

use super::DrainEngine;
use super::arbiter_rpc::Statement;
use super::queue::DrainQueue;
use crate::lifecycle::stopped;
use forebay_model::ServerId;
use forebay_policy::Tick;
use forebay_wire::{PeerReply, PeerRequest};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Longest time between two statements while α is being learnt.
const QUICK: Duration = Duration::from_millis(50);
/// A server that does not answer for this long loses its targets to other arbiters.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time between two attempts to reach it again.
const AGAIN: Duration = Duration::from_secs(1);

/// Exchanges statements and grants with another server until this server stops.
pub(crate) async fn converse(engine: Arc<DrainEngine>, server: ServerId) {
    let mut stopping = engine.life.stopping();
    let (mut silent_since, mut last): (Option<Instant>, Instant) = (None, Instant::now());
    // The server has a new grant, and the notification failed.
    let mut notice_failed = false;
    let beat = engine.settings.beat;
    let beat = if engine.drain_queue().learner.is_some() { QUICK.min(beat) } else { beat };
    loop {
        let pause = if silent_since.is_some() || notice_failed { AGAIN.min(beat) } else { beat };
        let woken = engine.exchange.notified();
        let waits = silent_since.is_some() || !engine.drain_queue().grants.has_message_for(server);
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => return,
            () = woken, if waits => {}
            () = sleep(pause.saturating_sub(last.elapsed())), if waits => {}
            () = std::future::ready(()), if !waits => {}
        }
        let (notice, statement, written) = {
            let mut drain_queue = engine.drain_queue();
            let (notice, statement_due) = drain_queue.grants.take_messages_for(server);
            // The wake-up was for messages to other servers.
            if !notice && !statement_due && last.elapsed() < pause {
                continue;
            }
            (notice, drain_queue.grants.statement(server), drain_queue.written_at(server))
        };
        last = Instant::now();
        if notice || notice_failed {
            let sent = engine.peers.ask(server, PeerRequest::Granted).await;
            notice_failed = sent.is_err();
            if let Err(error) = sent {
                tracing::debug!(%server, %error, "cannot notify a server of its grant; the notification is retried");
            }
        }
        let Some((last_received, fill, wanted)) = statement else { continue };
        match engine.peers.ask(server, PeerRequest::Arbitrate { last_received, fill, wanted, written }).await
        {
            Ok(PeerReply::Granted(granted)) => {
                silent_since = None;
                engine.notify_of_grants(|drain_queue| drain_queue.grants.handle_reply(server, &granted));
            }
            _ => {
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= PATIENCE {
                    engine.notify(|drain_queue| drain_queue.grants.mark_unreachable(server));
                }
            }
        }
    }
}

impl DrainEngine {
    /// Handles a statement of another server about targets of this arbiter.
    pub(crate) fn arbitrate(
        &self,
        from: ServerId,
        statement: Statement<'_>,
        written: &[(u32, u64)],
    ) -> PeerReply {
        let now = Tick(self.store.data().now().0);
        let mut granted = Vec::new();
        self.notify_of_grants(|drain_queue: &mut DrainQueue| {
            drain_queue.note_remote_writes(now, from, written);
            granted = drain_queue.grants.handle_statement(now, from, statement);
        });
        PeerReply::Granted(granted)
    }

    /// Another arbiter has a grant for this server: request it at once.
    pub(crate) fn request_grants(&self, from: ServerId) {
        self.notify_of_grants(|drain_queue| drain_queue.grants.send_statement_soon(from));
    }
}
