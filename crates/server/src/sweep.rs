//! The sweep: ends the sessions of silent clients, and the grace period after a start.
//!
//! A client is silent only if this server was reading. A server that was stopped (SIGSTOP, a paused virtual machine)
//! has read no socket meanwhile, and its clients' messages are still there. So a round judges the state as of the
//! previous round, which leaves one period to read the sockets; a round that is late ends no session and gives every
//! client a fresh session period.

use crate::lifecycle::{Lifecycle, rested};
use crate::orphans::OrphanGrace;
use crate::session::Sessions;
use crate::tokens::OpenTokens;
use forebay_store::Store;
use std::sync::Arc;
use std::time::Duration;

/// When rounds take place, on the clock of sessions.
struct Rounds {
    silence: Duration,
    last: Duration,
    /// When the current grace period began.
    grace: Duration,
}

/// What a round may end.
#[derive(PartialEq, Eq, Debug)]
enum Round {
    /// The server was stopped for this long: no session ends.
    Late(Duration),
    /// Sessions silent for the session period as of `as_of` end; so does the grace period if `grace_ends`.
    Judge { as_of: Duration, grace_ends: bool },
}

impl Rounds {
    fn new(silence: Duration, now: Duration) -> Rounds {
        Rounds { silence, last: now, grace: now }
    }

    /// Interval between two rounds.
    fn period(&self) -> Duration {
        (self.silence / 8).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    /// Starts a round at `now`; `serves` is whether clients could re-assert their open files.
    fn next(&mut self, now: Duration, serves: bool) -> Round {
        let as_of = std::mem::replace(&mut self.last, now);
        let gap = now.saturating_sub(as_of);
        // Clients send three heartbeats per session period: after a shorter gap than this a live one is within its
        // time.
        let late = gap > self.silence / 2;
        if late || !serves {
            self.grace = now;
        }
        if late {
            return Round::Late(gap);
        }
        Round::Judge { as_of, grace_ends: as_of.saturating_sub(self.grace) >= self.silence }
    }
}

/// What a sweep ends, and the clock by which it does.
#[derive(Clone)]
pub(crate) struct Sweep {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) tokens: Arc<OpenTokens>,
    pub(crate) grace: Arc<OrphanGrace>,
    pub(crate) store: Arc<Store>,
    pub(crate) life: Arc<Lifecycle>,
    /// How long a client may be silent.
    pub(crate) silence: Duration,
}

/// Sweeps until the server stops.
pub(crate) async fn sweep(parts: Sweep) {
    let Sweep { sessions, tokens, grace, store, life, silence } = parts;
    let (mut in_grace, mut stopping) = (true, life.stopping());
    let mut rounds = Rounds::new(silence, life.age());
    while rested(&mut stopping, rounds.period()).await {
        follow_clock(&store);
        // Read once: a stop between two looks at the clock would count as the clients' silence.
        let now = life.age();
        match rounds.next(now, life.serves()) {
            Round::Late(gap) => {
                sessions.renew(now);
                tracing::warn!(
                    gap = %forebay_model::shown_time(gap),
                    "the server process was paused: every client gets a fresh session period"
                );
            }
            Round::Judge { as_of, grace_ends } => {
                if in_grace && grace_ends {
                    in_grace = false;
                    tokio::task::block_in_place(|| grace.end());
                    tokens.end_of_grace();
                }
                let ended = tokio::task::block_in_place(|| sessions.expire(as_of, silence));
                if ended > 0 {
                    tracing::info!(ended, "ended sessions of silent clients and closed their files");
                }
            }
        }
    }
}

/// Has times be those of the machine's clock again where that was set, such as by the first word of a time server.
fn follow_clock(store: &Store) {
    match tokio::task::block_in_place(|| store.data().follow_clock()) {
        Ok(false) => {}
        Ok(true) => tracing::warn!("the machine's clock was set: files that change from now on get its time"),
        Err(error) => tracing::warn!(%error, "the machine's clock was set, and that could not be noted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = at(60);

    const fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn judge(as_of: u64, grace_ends: bool) -> Round {
        Round::Judge { as_of: at(as_of), grace_ends }
    }

    #[test]
    fn late_round_ends_no_session_and_restarts_the_grace_period() {
        let mut rounds = Rounds::new(SILENCE, at(0));
        assert_eq!(rounds.period(), at(5));
        assert_eq!(rounds.next(at(5), true), judge(0, false));
        assert_eq!(rounds.next(at(85), true), Round::Late(at(80)));
        assert_eq!(rounds.next(at(90), true), judge(85, false), "sockets were read between 85 and 90");
        for now in (95..=145).step_by(5) {
            assert_eq!(rounds.next(at(now), true), judge(now - 5, false));
        }
        assert_eq!(rounds.next(at(150), true), judge(145, true), "60 s after the stop");
    }

    #[test]
    fn grace_period_begins_when_clients_are_served() {
        let mut rounds = Rounds::new(SILENCE, at(0));
        for now in (5..=100).step_by(5) {
            assert_eq!(rounds.next(at(now), false), judge(now - 5, false));
        }
        for now in (105..=160).step_by(5) {
            assert_eq!(rounds.next(at(now), true), judge(now - 5, false));
        }
        assert_eq!(rounds.next(at(165), true), judge(160, true));
    }
}
