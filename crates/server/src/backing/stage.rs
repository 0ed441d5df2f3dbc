//! Staging: copies bytes from the back end to the read cache before they are read.

use super::Backing;
use super::BackingLayer;
use super::read_cache::BLOCK;
use super::{changed_in_backing, missing_in_backing};
use crate::cluster::nonsense;
use forebay_model::{ErrorKind, FileId, Result, Span, Time};
use forebay_store::Piece;
use forebay_wire::{PeerReply, PeerRequest, Place};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file modified this recently may change again within the resolution of its time.
const FRESH: Duration = Duration::from_millis(50);
/// The same where times seem to be whole seconds.
const FRESH_IN_SECONDS: Duration = Duration::from_millis(1050);
/// How often a block is tried until its file is old enough.
const TRIES: u32 = 20;

/// The result of staging a block.
enum Block {
    /// This many bytes of it are cached: 0 if none is needed, or the file is changing.
    Cached(u64),
    /// The file ends before the block.
    End,
    Full,
}

/// The result of a staging request.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Brought {
    pub(crate) bytes: u64,
    /// Whether the cache is full of bytes of the same turn.
    pub(crate) full: bool,
}

impl BackingLayer {
    /// Stages the bytes of a file of this authority that are in the back end, on all its holders. The caller holds a
    /// permit of `waiting`: a second one could wait for others that wait for a second one, too.
    pub(crate) async fn fetch(
        self: &Arc<BackingLayer>,
        file: FileId,
        span: Span,
        turn: u64,
    ) -> Result<Brought> {
        if self.backing.is_none() {
            return Ok(Brought::default());
        }
        tokio::task::block_in_place(|| self.refresh(file))?;
        let Some(place) = self.backing_place(file)? else { return Ok(Brought::default()) };
        let Some(layout) = self.homes.shared_layout(file)? else {
            return tokio::task::block_in_place(|| self.fetch_here(file, &place, &[span], turn));
        };
        let own = self.own;
        let parts = |server| {
            let pieces = layout.pieces(span).filter(move |(of, _)| *of == server);
            pieces.map(|(_, span)| span).collect::<Vec<Span>>()
        };
        let others = layout.servers.iter().copied().filter(|server| *server != own);
        let request = |server| PeerRequest::Fetch { file, place: place.clone(), spans: parts(server), turn };
        let list = others.map(|server| (server, request(server))).collect();
        let replies = self.peers.request_all(list).await;
        let mut staged = tokio::task::block_in_place(|| self.fetch_here(file, &place, &parts(own), turn))?;
        for answer in replies {
            match answer? {
                PeerReply::Fetched { bytes, full } => {
                    staged.bytes += bytes;
                    staged.full |= full;
                }
                other => return Err(nonsense(&other)),
            }
        }
        Ok(staged)
    }

    /// Stages the bytes of these spans that are in the back end, from the file at `place`.
    pub(crate) fn fetch_here(
        &self,
        file: FileId,
        place: &Place,
        spans: &[Span],
        turn: u64,
    ) -> Result<Brought> {
        let (Some(backing), mut staged) = (&self.backing, Brought::default()) else {
            return Ok(Brought::default());
        };
        for &span in spans {
            let mut start = span.start / BLOCK * BLOCK;
            while start < span.end {
                let block = Span::new(start, start + BLOCK);
                let len = match self.fetch_block(backing, (file, place), block, turn)? {
                    Block::Cached(len) => len,
                    Block::End => return Ok(staged),
                    Block::Full => return Ok(Brought { full: true, ..staged }),
                };
                let end = (start + len).min(span.end);
                staged.bytes += end.saturating_sub(start.max(span.start));
                start += BLOCK;
            }
        }
        Ok(staged)
    }

    /// Stages a block, if bytes of it are in the back end and needed.
    fn fetch_block(
        &self,
        backing: &Backing,
        (file, place): (FileId, &Place),
        block: Span,
        turn: u64,
    ) -> Result<Block> {
        for _ in 0..TRIES {
            // The server's own writes change the file all the time.
            if self.is_changing(backing, file) {
                return Ok(Block::Cached(0));
            }
            let pieces = self.store.data().read(file, block.start, BLOCK as u32)?;
            if pieces.is_empty() {
                return Ok(Block::End);
            }
            if !pieces.iter().any(|piece| matches!(piece, Piece::Backing(_))) {
                return Ok(Block::Cached(0));
            }
            let object = backing.ask(|backend| backend.open(&place.path)).map_err(|error| {
                if error.kind() == ErrorKind::NotFound { missing_in_backing(file) } else { error }
            })?;
            let version = backing.ask(|_| object.version())?;
            if version.serial != place.serial {
                return Err(changed_in_backing(file));
            }
            let len = BLOCK.min(version.size.saturating_sub(block.start));
            if len == 0 {
                return Ok(Block::End);
            }
            if backing.read_cache.renew(file, version, block.start, turn) {
                return Ok(Block::Cached(len));
            }
            if !backing.read_cache.has_space(turn) {
                return Ok(Block::Full);
            }
            if let Some(pause) = stable_in(version.mtime) {
                std::thread::sleep(pause);
                continue;
            }
            let mut bytes = vec![0; len as usize];
            let count = backing.ask(|_| object.read_at(block.start, &mut bytes))?;
            let same = count == bytes.len() && backing.ask(|_| object.version())? == version;
            if same && !self.is_changing(backing, file) {
                if !backing.read_cache.put(file, version, block.start, &bytes, turn)? {
                    return Ok(Block::Full);
                }
                // A writer that began meanwhile has already dropped the cached blocks.
                if self.is_changing(backing, file) {
                    backing.read_cache.forget(file);
                    return Ok(Block::Cached(0));
                }
                return Ok(Block::Cached(len));
            }
        }
        Ok(Block::Cached(0))
    }

    /// Whether this server changes a file in the back end, or may.
    pub(super) fn is_changing(&self, backing: &Backing, file: FileId) -> bool {
        let has_lease = || self.writers.leases.has_lease(file);
        backing.mark(file).is_some() || has_lease()
    }
}

/// How long to wait until a modification is old enough, if the back end's clock is ahead by less than a second.
fn stable_in(mtime: Time) -> Option<Duration> {
    let changed = Duration::new(mtime.secs.try_into().unwrap_or(0), mtime.nanos);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let stable = changed + if mtime.nanos == 0 { FRESH_IN_SECONDS } else { FRESH };
    (now < stable && changed < now + Duration::from_secs(1)).then(|| stable - now)
}
