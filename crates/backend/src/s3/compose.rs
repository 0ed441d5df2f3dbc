//! Composes one object from a file's pieces, mostly by server-side copies.

use super::overlay::{Piece, Source};
use super::store::{Meta, Store};
use forebay_model::{Error, ErrorKind, Result, Span};

/// Smallest part of an upload, except the last.
const LEAST: u64 = 5 << 20;
/// Largest range that is copied as one part.
const MOST: u64 = 1 << 30;
/// Up to this size, an object is read and written again instead.
const SMALL: u64 = 8 << 20;
/// Most parts of an upload.
const PARTS: usize = 10_000;

/// Key of the object that holds a piece.
pub(super) type Name<'a> = dyn Fn(Source) -> Result<String> + 'a;

/// Writes an object that consists of these pieces in order.
pub(super) fn compose(
    store: &Store,
    key: &str,
    meta: &Meta,
    pieces: &[Piece],
    name: &Name<'_>,
) -> Result<()> {
    let size: u64 = pieces.iter().map(|piece| piece.span.len()).sum();
    if size <= SMALL {
        let mut bytes = Vec::new();
        for &piece in pieces {
            read(store, piece, name, &mut bytes)?;
        }
        return store.put(key, &bytes, meta);
    }
    let upload = store.begin_upload(key, meta)?;
    let mut parts = Parts { store, key, upload: &upload, tags: Vec::new(), pending: Vec::new() };
    let done = parts.take(pieces, name).and_then(|()| store.finish_upload(key, &upload, &parts.tags));
    if done.is_err() {
        // Report the first error.
        let _ = store.abort_upload(key, &upload);
    }
    done
}

/// Appends the bytes of a piece to a buffer.
fn read(store: &Store, piece: Piece, name: &Name<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    let before = bytes.len();
    bytes.resize(before + piece.span.len() as usize, 0);
    match piece.source {
        Source::Zero => Ok(()),
        source => store.get(&name(source)?, piece.from, &mut bytes[before..]),
    }
}

/// A multipart upload.
struct Parts<'a> {
    store: &'a Store,
    key: &'a str,
    upload: &'a str,
    tags: Vec<String>,
    /// Bytes that are too few for a part of their own.
    pending: Vec<u8>,
}

impl Parts<'_> {
    fn take(&mut self, pieces: &[Piece], name: &Name<'_>) -> Result<()> {
        for &piece in pieces {
            let mut piece = piece;
            while !piece.span.is_empty() {
                let (left, free) = (piece.span.len(), self.pending.is_empty());
                if free && left >= LEAST && piece.source != Source::Zero {
                    let count = left.min(MOST);
                    self.copy(&name(piece.source)?, piece.from, count)?;
                    piece = rest(piece, count);
                    continue;
                }
                let count = left.min(LEAST - self.pending.len() as u64);
                read(self.store, Piece { span: Span::new(0, count), ..piece }, name, &mut self.pending)?;
                piece = rest(piece, count);
                if self.pending.len() as u64 == LEAST {
                    self.send()?;
                }
            }
        }
        if self.pending.is_empty() { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.pending);
        let number = self.number()?;
        self.tags.push(self.store.upload(self.key, self.upload, number, &bytes)?);
        Ok(())
    }

    fn copy(&mut self, from: &str, first: u64, count: u64) -> Result<()> {
        let number = self.number()?;
        self.tags.push(self.store.upload_copy(self.key, self.upload, number, from, (first, count))?);
        Ok(())
    }

    fn number(&self) -> Result<u16> {
        let next = self.tags.len() + 1;
        u16::try_from(next).ok().filter(|_| next <= PARTS).ok_or_else(|| {
            let text = format!("cannot compose {}: it has more than {PARTS} parts", self.key);
            Error::new(ErrorKind::TooLarge, text)
        })
    }
}

fn rest(piece: Piece, count: u64) -> Piece {
    Piece { span: Span::new(piece.span.start + count, piece.span.end), from: piece.from + count, ..piece }
}
