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
/// How often it is looked again whether something behind has come to rest.
const TRIES: u32 = 20;

impl Service {
    /// Brings near what of a file of ours is behind, on all servers that hold a part of it. Returns how many bytes are.
    pub(crate) async fn fetch(self: &Arc<Service>, file: FileId, span: Span) -> Result<u64> {
        let Some(union) = &self.union else { return Ok(0) };
        let _place =
            union.waiting.acquire().await.map_err(|_| forebay_model::Error::from(ErrorKind::Busy))?;
        tokio::task::block_in_place(|| self.refresh(file))?;
        let Some(place) = self.place_behind(file)? else { return Ok(0) };
        let Some(layout) = self.shared_layout(file)? else {
            return tokio::task::block_in_place(|| self.fetch_here(file, &place, &[span]));
        };
        let own = self.config.server;
        let parts = |server| {
            let pieces = layout.pieces(span).filter(move |(of, _)| *of == server);
            pieces.map(|(_, span)| span).collect::<Vec<Span>>()
        };
        let others = layout.servers.iter().copied().filter(|server| *server != own);
        let request = |server| PeerRequest::Fetch { file, place: place.clone(), spans: parts(server) };
        let list = others.map(|server| (server, request(server))).collect();
        let told = self.ask_all(list).await;
        let mut near = tokio::task::block_in_place(|| self.fetch_here(file, &place, &parts(own)))?;
        for answer in told {
            match answer? {
                PeerReply::Fetched { bytes } => near += bytes,
                other => return Err(nonsense(&other)),
            }
        }
        Ok(near)
    }

    /// Brings near what of these spans is behind, from where the file is. Returns how many of their bytes are near.
    pub(crate) fn fetch_here(&self, file: FileId, place: &Place, spans: &[Span]) -> Result<u64> {
        let Some(union) = &self.union else { return Ok(0) };
        let mut near = 0;
        for &span in spans {
            let mut start = span.start / BLOCK * BLOCK;
            while start < span.end {
                let block = Span::new(start, start + BLOCK);
                let Some(len) = self.fetch_block(union, file, place, block)? else { return Ok(near) };
                let end = (start + len).min(span.end);
                near += end.saturating_sub(start.max(span.start));
                start += BLOCK;
            }
        }
        Ok(near)
    }

    /// Brings a block near, of which something is behind and needed. Returns how much of it is near; nothing at the end.
    fn fetch_block(&self, union: &Union, file: FileId, place: &Place, block: Span) -> Result<Option<u64>> {
        for _ in 0..TRIES {
            // What this server writes to behind changes all the time.
            if self.is_changing(union, file) {
                return Ok(Some(0));
            }
            let pieces = self.store.data().read(file, block.start, BLOCK as u32)?;
            if pieces.is_empty() {
                return Ok(None);
            }
            if !pieces.iter().any(|piece| matches!(piece, Piece::Behind(_))) {
                return Ok(Some(0));
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
                return Ok(None);
            }
            if union.near.has(file, version, block.start) {
                return Ok(Some(len));
            }
            if is_fresh(version.mtime) {
                std::thread::sleep(FRESH);
                continue;
            }
            let mut bytes = vec![0; len as usize];
            let count = union.ask(|_| object.read_at(block.start, &mut bytes))?;
            let same = count == bytes.len() && union.ask(|_| object.version())? == version;
            if same && !self.is_changing(union, file) {
                union.near.put(file, version, block.start, &bytes)?;
                // Whoever began to change it meanwhile has thrown away what was near before.
                if self.is_changing(union, file) {
                    union.near.forget(file);
                    return Ok(Some(0));
                }
                return Ok(Some(len));
            }
        }
        Ok(Some(0))
    }

    /// Whether this server changes a file behind, or may.
    pub(super) fn is_changing(&self, union: &Union, file: FileId) -> bool {
        let has_leave = || self.drain.as_ref().is_some_and(|engine| engine.permits().has_leave(file));
        union.claimed(file).is_some() || has_leave()
    }
}

/// Whether something was changed only just now, or by a clock that is ahead of ours by less than a second.
fn is_fresh(mtime: Time) -> bool {
    let changed = Duration::new(mtime.secs.try_into().unwrap_or(0), mtime.nanos);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now < changed + FRESH && changed < now + Duration::from_secs(1)
}
