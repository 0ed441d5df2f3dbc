//! What servers say to each other about places at targets.
//!
//! Each target is given out by one server of the service. Whoever has bytes for it says so, whenever that changes and with every
//! beat, and is told where it may write; whoever is given a place while it waits is told to ask at once.

use super::board::Board;
use crate::service::{Service, stopped};
use forebay_model::{Error, ErrorKind, Result, ServerId};
use forebay_policy::Tick;
use forebay_wire::{PeerReply, PeerRequest, Wanted};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Between two statements, at most, while it is found out how many writers a target likes.
const QUICK: Duration = Duration::from_millis(50);
/// Others give out the targets of a server that does not answer for so long.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks whether it does again.
const AGAIN: Duration = Duration::from_secs(1);

/// Goes on talking with another server.
pub(crate) async fn converse(service: Arc<Service>, server: ServerId) {
    let Some(engine) = &service.drain else { return };
    let mut stopping = service.stopping();
    let (mut silent, mut last): (Option<Instant>, Instant) = (None, Instant::now());
    // It was given something, and could not be told.
    let mut owes = false;
    let beat = engine.settings.beat;
    let beat = if engine.board().learner.is_some() { QUICK.min(beat) } else { beat };
    loop {
        let pause = if silent.is_some() || owes { AGAIN.min(beat) } else { beat };
        let woken = engine.talk.notified();
        let waits = silent.is_some() || !engine.board().places.has_word_for(server);
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => return,
            () = woken, if waits => {}
            () = sleep(pause.saturating_sub(last.elapsed())), if waits => {}
            () = std::future::ready(()), if !waits => {}
        }
        let (poke, statement, written) = {
            let mut board = engine.board();
            let (poke, asks) = board.places.words_for(server);
            // What others are told does not concern this one.
            if !poke && !asks && last.elapsed() < pause {
                continue;
            }
            (poke, board.places.statement(server), board.written_at(server))
        };
        last = Instant::now();
        if poke || owes {
            let told = service.ask(server, PeerRequest::Granted).await;
            owes = told.is_err();
            if let Err(error) = told {
                tracing::debug!(%server, %error, "a server will hear later that it may write");
            }
        }
        let Some((heard, fill, wanted)) = statement else { continue };
        match service.ask(server, PeerRequest::Arbitrate { heard, fill, wanted, written }).await {
            Ok(PeerReply::Granted(granted)) => {
                silent = None;
                engine.tell_of_places(|board| board.places.hear(server, &granted));
            }
            _ => {
                let since = *silent.get_or_insert_with(Instant::now);
                if since.elapsed() >= PATIENCE {
                    engine.tell(|board| board.places.miss(server));
                }
            }
        }
    }
}

impl Service {
    /// Another server says what it has for targets of ours.
    pub(crate) fn arbitrate(
        &self,
        from: ServerId,
        (heard, fill): (u64, u16),
        wanted: &[Wanted],
        written: &[(u32, u64)],
    ) -> Result<PeerReply> {
        let Some(engine) = &self.drain else {
            return Err(Error::new(ErrorKind::Unsupported, "this server has nothing behind it"));
        };
        let now = Tick(self.store.data().now().0);
        let mut granted = Vec::new();
        engine.tell_of_places(|board: &mut Board| {
            board.heard(now, from, written);
            granted = board.places.judge(now, from, (heard, fill), wanted);
        });
        Ok(PeerReply::Granted(granted))
    }

    /// Another server has a place for us.
    pub(crate) fn ask_for_places(&self, from: ServerId) {
        if let Some(engine) = &self.drain {
            engine.tell_of_places(|board| board.places.ask(from));
        }
    }
}
