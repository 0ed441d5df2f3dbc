//! Reading bytes that are behind.

use super::Union;
use super::change::changed_behind;
use super::gone_behind;
use crate::service::Service;
use forebay_backend::{Object, Version};
use forebay_model::{Error, ErrorKind, FileId, Result, Span};
use forebay_store::Piece;
use std::sync::Arc;

/// How often a read starts again because the file was cut or replaced meanwhile.
const TRIES: u32 = 64;

/// A stretch of what was read.
pub(crate) enum Part {
    /// From the store.
    Here(Piece),
    /// From behind.
    There(Vec<u8>),
}

impl Service {
    /// Reads a file of which something is behind, apart from the threads that serve connections.
    pub(crate) async fn read_both(
        self: &Arc<Service>,
        file: FileId,
        offset: u64,
        len: u32,
    ) -> Result<Vec<Part>> {
        let Some(union) = &self.union else { return Err(nothing_behind(file)) };
        let _place = union.waiting.acquire().await.map_err(|_| Error::from(ErrorKind::Busy))?;
        if self.members.members().authority(file) != self.config.server {
            return self.read_afar(file, offset, len).await;
        }
        let service = self.clone();
        let read = tokio::task::spawn_blocking(move || match &service.union {
            Some(union) => service.read_parts(union, file, offset, len),
            None => Err(nothing_behind(file)),
        });
        read.await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the server failed while it read from behind")))
    }

    fn read_parts(&self, union: &Union, file: FileId, offset: u64, len: u32) -> Result<Vec<Part>> {
        for _ in 0..TRIES {
            let (record, claim) = (union.record(file)?, union.claimed(file));
            let pieces = self.store.data().read(file, offset, len)?;
            if !pieces.iter().any(|piece| matches!(piece, Piece::Behind(_))) {
                return Ok(pieces.into_iter().map(Part::Here).collect());
            }
            let record = record.ok_or_else(|| gone_behind(file))?;
            let opened = {
                let _still = union.still();
                let path = union.path(file)?.ok_or_else(|| gone_behind(file))?;
                union.ask(|backend| backend.open(&path))
            };
            let object = match opened {
                Ok(object) => Some(object),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => None,
                Err(error) => return Err(error),
            };
            let spans = behind(&pieces);
            // One that is claimed is known by its serial number.
            let is_same = |version: Version| match claim {
                Some(_) => version.serial == record.version.serial,
                None => version == record.version,
            };
            let near = |version, span| match claim {
                Some(_) => None,
                None => union.near.get(file, version, span),
            };
            if let Some(object) = &object
                && let Some(parts) = union.ask(|_| fetch(&**object, is_same, pieces, near))?
                && (claim.is_none() || self.is_still_behind(union, file, claim, (offset, len), &spans)?)
            {
                return Ok(parts);
            }
            if union.claimed(file).is_some() || claim.is_some() {
                continue;
            }
            // It is not what it was. Somebody here who cuts it says so in a moment.
            drop(union.length(file));
            if union.record(file)?.as_ref() == Some(&record) {
                self.refresh(file)?;
                if union.record(file)?.as_ref() == Some(&record) {
                    return Err(if object.is_some() { changed_behind(file) } else { gone_behind(file) });
                }
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("file {file} changes behind faster than it can be read: try again"),
        ))
    }

    /// Whether what was read from a file under a claim is what was meant: nothing was laid over it, and nothing that was
    /// came to be behind.
    fn is_still_behind(
        &self,
        union: &Union,
        file: FileId,
        claim: Option<u64>,
        (offset, len): (u64, u32),
        spans: &[Span],
    ) -> Result<bool> {
        let now = behind(&self.store.data().read(file, offset, len)?);
        Ok(now == spans && union.claimed(file) == claim)
    }
}

pub(super) fn behind(pieces: &[Piece]) -> Vec<Span> {
    let spans = pieces.iter().map(|piece| match piece {
        Piece::Behind(span) => Some(*span),
        Piece::Bytes(_) | Piece::Zeros(_) => None,
    });
    spans.flatten().collect()
}

fn nothing_behind(file: FileId) -> Error {
    let text =
        format!("bytes of file {file} are in a back end, and this server has none: start it with --backend");
    Error::new(ErrorKind::Io, text)
}

/// All parts, those that are near from there, or nothing if the file is not the one that is meant, or was not to the end.
pub(super) fn fetch(
    object: &dyn Object,
    is_same: impl Fn(Version) -> bool,
    pieces: Vec<Piece>,
    near: impl Fn(Version, Span) -> Option<Vec<u8>>,
) -> Result<Option<Vec<Part>>> {
    let version = object.version()?;
    if !is_same(version) {
        return Ok(None);
    }
    let mut parts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        parts.push(match piece {
            Piece::Behind(span @ Span { start, end }) => {
                if let Some(bytes) = near(version, span) {
                    parts.push(Part::There(bytes));
                    continue;
                }
                let mut bytes = vec![0; (end - start) as usize];
                if object.read_at(start, &mut bytes)? != bytes.len() {
                    return Ok(None);
                }
                Part::There(bytes)
            }
            here => Part::Here(here),
        });
    }
    Ok(is_same(object.version()?).then_some(parts))
}
