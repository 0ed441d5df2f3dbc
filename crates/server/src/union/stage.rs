//! Bringing near what is behind, before it is read.

use super::Union;
use super::near::BLOCK;
use super::{changed_behind, gone_behind};
use crate::service::Service;
use crate::several::nonsense;
use forebay_model::{ErrorKind, FileId, Result, Span, Time};
use forebay_store::Piece;
use forebay_wire::{PeerReply, PeerRequest, Place};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What was changed so lately may change once more without being seen to: times there are not finer.
const FRESH: Duration = Duration::from_millis(50);
/// The same where times seem to be whole seconds.
const FRESH_IN_SECONDS: Duration = Duration::from_millis(1050);
/// How often it is looked again whether something behind has come to rest.
const TRIES: u32 = 20;

/// What became of a block that was to be brought near.
enum Block {
    /// So much of it is near: nothing if none of it is needed, or may be.
    Near(u64),
    /// The file has none there.
    End,
    NoRoom,
}

/// What is near of what was to be.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Brought {
    pub(crate) bytes: u64,
    /// Whether the rest is not because what came under the same number takes all the room.
    pub(crate) full: bool,
}

impl Service {
    /// Brings near what of a file of ours is behind, on all servers that hold a part of it.
    pub(crate) async fn fetch(self: &Arc<Service>, file: FileId, span: Span, turn: u64) -> Result<Brought> {
        let Some(union) = &self.union else { return Ok(Brought::default()) };
        let _place =
            union.waiting.acquire().await.map_err(|_| forebay_model::Error::from(ErrorKind::Busy))?;
        tokio::task::block_in_place(|| self.refresh(file))?;
        let Some(place) = self.place_behind(file)? else { return Ok(Brought::default()) };
        let Some(layout) = self.shared_layout(file)? else {
            return tokio::task::block_in_place(|| self.fetch_here(file, &place, &[span], turn));
        };
        let own = self.config.server;
        let parts = |server| {
            let pieces = layout.pieces(span).filter(move |(of, _)| *of == server);
            pieces.map(|(_, span)| span).collect::<Vec<Span>>()
        };
        let others = layout.servers.iter().copied().filter(|server| *server != own);
        let request = |server| PeerRequest::Fetch { file, place: place.clone(), spans: parts(server), turn };
        let list = others.map(|server| (server, request(server))).collect();
        let told = self.ask_all(list).await;
        let mut near = tokio::task::block_in_place(|| self.fetch_here(file, &place, &parts(own), turn))?;
        for answer in told {
            match answer? {
                PeerReply::Fetched { bytes, full } => {
                    near.bytes += bytes;
                    near.full |= full;
                }
                other => return Err(nonsense(&other)),
            }
        }
        Ok(near)
    }

    /// Brings near what of these spans is behind, from where the file is.
    pub(crate) fn fetch_here(
        &self,
        file: FileId,
        place: &Place,
        spans: &[Span],
        turn: u64,
    ) -> Result<Brought> {
        let (Some(union), mut near) = (&self.union, Brought::default()) else {
            return Ok(Brought::default());
        };
        for &span in spans {
            let mut start = span.start / BLOCK * BLOCK;
            while start < span.end {
                let block = Span::new(start, start + BLOCK);
                let len = match self.fetch_block(union, (file, place), block, turn)? {
                    Block::Near(len) => len,
                    Block::End => return Ok(near),
                    Block::NoRoom => return Ok(Brought { full: true, ..near }),
                };
                let end = (start + len).min(span.end);
                near.bytes += end.saturating_sub(start.max(span.start));
                start += BLOCK;
            }
        }
        Ok(near)
    }

    /// Brings a block near, of which something is behind and needed.
    fn fetch_block(
        &self,
        union: &Union,
        (file, place): (FileId, &Place),
        block: Span,
        turn: u64,
    ) -> Result<Block> {
        for _ in 0..TRIES {
            // What this server writes to behind changes all the time.
            if self.is_changing(union, file) {
                return Ok(Block::Near(0));
            }
            let pieces = self.store.data().read(file, block.start, BLOCK as u32)?;
            if pieces.is_empty() {
                return Ok(Block::End);
            }
            if !pieces.iter().any(|piece| matches!(piece, Piece::Behind(_))) {
                return Ok(Block::Near(0));
            }
            let object = union.ask(|backend| backend.open(&place.path)).map_err(|error| {
                if error.kind() == ErrorKind::NotFound { gone_behind(file) } else { error }
            })?;
            let version = union.ask(|_| object.version())?;
            if version.serial != place.serial {
                return Err(changed_behind(file));
            }
            let len = BLOCK.min(version.size.saturating_sub(block.start));
            if len == 0 {
                return Ok(Block::End);
            }
            if union.near.renew(file, version, block.start, turn) {
                return Ok(Block::Near(len));
            }
            if !union.near.has_room(turn) {
                return Ok(Block::NoRoom);
            }
            if let Some(pause) = settles_in(version.mtime) {
                std::thread::sleep(pause);
                continue;
            }
            let mut bytes = vec![0; len as usize];
            let count = union.ask(|_| object.read_at(block.start, &mut bytes))?;
            let same = count == bytes.len() && union.ask(|_| object.version())? == version;
            if same && !self.is_changing(union, file) {
                if !union.near.put(file, version, block.start, &bytes, turn)? {
                    return Ok(Block::NoRoom);
                }
                // Whoever began to change it meanwhile has thrown away what was near before.
                if self.is_changing(union, file) {
                    union.near.forget(file);
                    return Ok(Block::Near(0));
                }
                return Ok(Block::Near(len));
            }
        }
        Ok(Block::Near(0))
    }

    /// Whether this server changes a file behind, or may.
    pub(super) fn is_changing(&self, union: &Union, file: FileId) -> bool {
        let has_leave = || self.drain.as_ref().is_some_and(|engine| engine.permits().has_leave(file));
        union.claimed(file).is_some() || has_leave()
    }
}

/// How long it takes until what was changed then, by a clock that is ahead of ours by less than a second, is not new any more.
fn settles_in(mtime: Time) -> Option<Duration> {
    let changed = Duration::new(mtime.secs.try_into().unwrap_or(0), mtime.nanos);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let settled = changed + if mtime.nanos == 0 { FRESH_IN_SECONDS } else { FRESH };
    (now < settled && changed < now + Duration::from_secs(1)).then(|| settled - now)
}
