//! Reads of bytes in the back end.

use super::Backing;
use super::BackingLayer;
use super::missing_in_backing;
use super::mutate::changed_in_backing;
use forebay_backend::{Object, Version};
use forebay_model::{Error, ErrorKind, FileId, Result, Span, Uid};
use forebay_store::Piece;
use std::collections::VecDeque;
use std::sync::Arc;

/// How often a read is repeated because the file was truncated or replaced meanwhile.
const TRIES: u32 = 64;
/// Source of the zeros that are sent for holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A part of the bytes that were read.
pub(crate) enum Part {
    /// From the buffer.
    Here(Piece),
    /// From the back end.
    There(Vec<u8>),
}

impl BackingLayer {
    /// Reads a file with bytes in the back end, outside the threads that serve connections.
    pub(crate) async fn read_both(
        self: &Arc<BackingLayer>,
        uid: Uid,
        file: FileId,
        offset: u64,
        len: u32,
    ) -> Result<Vec<Part>> {
        let Some(backing) = &self.backing else { return Err(nothing_in_backing(file)) };
        let _own = self.users.backend.wait(uid, self.patience).await?;
        let _place = backing.waiting.acquire().await.map_err(|_| Error::from(ErrorKind::Busy))?;
        if self.homes.authority(file) != self.own {
            return self.read_remote(file, offset, len).await;
        }
        let layer = self.clone();
        let read = tokio::task::spawn_blocking(move || match &layer.backing {
            Some(backing) => layer.read_parts(backing, file, offset, len),
            None => Err(nothing_in_backing(file)),
        });
        read.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Io, "the server failed while it read from the back end"))
        })
    }

    fn read_parts(&self, backing: &Backing, file: FileId, offset: u64, len: u32) -> Result<Vec<Part>> {
        for _ in 0..TRIES {
            let (record, mark) = (backing.record(file)?, backing.mark(file));
            let pieces = self.store.data().read(file, offset, len)?;
            if !pieces.iter().any(|piece| matches!(piece, Piece::Backing(_))) {
                return Ok(pieces.into_iter().map(Part::Here).collect());
            }
            let record = record.ok_or_else(|| missing_in_backing(file))?;
            let opened = {
                let _tree = backing.lock_tree();
                let path = backing.path(file)?.ok_or_else(|| missing_in_backing(file))?;
                backing.ask(|backend| backend.open(&path))
            };
            let object = match opened {
                Ok(object) => Some(object),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => None,
                Err(error) => return Err(error),
            };
            let spans = backing_spans(&pieces);
            // A file with a writeback mark is identified by its serial number.
            let is_same = |version: Version| match mark {
                Some(_) => version.serial == record.version.serial,
                None => version == record.version,
            };
            let read_cache = |version, span| match mark {
                Some(_) => None,
                None => backing.read_cache.get(file, version, span),
            };
            if let Some(object) = &object
                && let Some(parts) = backing.ask(|_| fetch(&**object, is_same, pieces, read_cache))?
                && (mark.is_none() || self.is_still_in_backing(backing, file, mark, (offset, len), &spans)?)
            {
                return Ok(parts);
            }
            if backing.mark(file).is_some() || mark.is_some() {
                continue;
            }
            // The file has changed. A truncation in progress on this server is recorded in a moment.
            drop(backing.lock_size(file));
            if backing.record(file)?.as_ref() == Some(&record) {
                self.refresh(file)?;
                if backing.record(file)?.as_ref() == Some(&record) {
                    return Err(if object.is_some() {
                        changed_in_backing(file)
                    } else {
                        missing_in_backing(file)
                    });
                }
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("file {file} changes in the back end faster than it can be read: try again"),
        ))
    }

    /// Whether the bytes read from a file with a writeback mark are valid: none of them was overwritten meanwhile, and
    /// no overwritten byte reached the back end.
    fn is_still_in_backing(
        &self,
        backing: &Backing,
        file: FileId,
        mark: Option<u64>,
        (offset, len): (u64, u32),
        spans: &[Span],
    ) -> Result<bool> {
        let now = backing_spans(&self.store.data().read(file, offset, len)?);
        Ok(now == spans && backing.mark(file) == mark)
    }
}

pub(super) fn backing_spans(pieces: &[Piece]) -> Vec<Span> {
    let spans = pieces.iter().map(|piece| match piece {
        Piece::Backing(span) => Some(*span),
        Piece::Bytes(_) | Piece::Zeros(_) | Piece::Copied(_) => None,
    });
    spans.flatten().collect()
}

fn nothing_in_backing(file: FileId) -> Error {
    let text =
        format!("bytes of file {file} are in a back end, and this server has none: start it with --backend");
    Error::new(ErrorKind::Io, text)
}

/// All parts, from the read cache where possible; `None` if the object is not the expected version before or after the
/// read.
pub(super) fn fetch(
    object: &dyn Object,
    is_same: impl Fn(Version) -> bool,
    pieces: Vec<Piece>,
    read_cache: impl Fn(Version, Span) -> Option<Vec<u8>>,
) -> Result<Option<Vec<Part>>> {
    let version = object.version()?;
    if !is_same(version) {
        return Ok(None);
    }
    let mut parts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        parts.push(match piece {
            Piece::Backing(span @ Span { start, end }) => {
                if let Some(bytes) = read_cache(version, span) {
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

/// The pieces as memory slices, and their total length.
pub(crate) fn bytes_of(parts: &[Part]) -> (VecDeque<&[u8]>, u32) {
    let (mut slices, mut total) = (VecDeque::with_capacity(parts.len()), 0);
    for part in parts {
        match part {
            Part::Here(Piece::Bytes(view)) => {
                let bytes: &[u8] = view.as_ref();
                total += bytes.len();
                slices.push_back(bytes);
            }
            Part::There(bytes) | Part::Here(Piece::Copied(bytes)) => {
                total += bytes.len();
                slices.push_back(bytes);
            }
            Part::Here(Piece::Backing(span)) => unreachable!("{span} was read from the back end"),
            Part::Here(Piece::Zeros(count)) => {
                let mut left = *count as usize;
                total += left;
                while left > 0 {
                    let some = left.min(ZEROS.len());
                    slices.push_back(&ZEROS[..some]);
                    left -= some;
                }
            }
        }
    }
    (slices, u32::try_from(total).expect("at most the requested length"))
}
