//! Open files of a bucket.

use super::store::{Head, Meta};
use super::{Inner, Overlay, Piece, Source, There, metadata};
use crate::{Object, Version};
use forebay_model::{Error, ErrorKind, Result, Span, Time};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// A write or a truncation, as encoded in the key of its private object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bytes {
    pub(super) number: u64,
    /// The written bytes; `None` for a truncation.
    span: Option<Span>,
    size: u64,
}

impl Bytes {
    /// Parses the file id and the change from a key.
    pub(super) fn parse(key: &str) -> Option<(u64, Bytes)> {
        let (id, name) = key.strip_prefix(super::PARTS)?.split_once('/')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let mut words = name.split('-');
        let (number, first, last) = (hex(words.next()?)?, hex(words.next()?)?, words.next()?);
        let bytes = match last {
            "cut" => Bytes { number, span: None, size: first },
            len => Bytes { number, span: Some(Span::at(first, hex(len)?)?), size: 0 },
        };
        words.next().is_none().then_some((hex(id)?, bytes))
    }

    /// A write.
    pub(super) fn written(number: u64, span: Span) -> Bytes {
        Bytes { number, span: Some(span), size: 0 }
    }

    pub(super) fn name(self) -> String {
        match self.span {
            Some(span) => format!("{:016x}-{:016x}-{:x}", self.number, span.start, span.len()),
            None => format!("{:016x}-{:016x}-cut", self.number, self.size),
        }
    }
}

/// How an open file is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Read,
    Write,
}

/// A file that is in use, or was left half written.
#[derive(Default)]
pub(super) struct File {
    pub(super) key: String,
    readers: usize,
    /// While there are any, changes older than the composed object may still arrive.
    pub(super) writers: usize,
    /// Its private objects.
    pub(super) log: Vec<Bytes>,
    /// Other private objects that may exist but no longer count: the object contains them, or they failed.
    pub(super) spent: Vec<Bytes>,
    /// The object combined with the private objects, if there are any.
    pub(super) overlay: Option<Overlay>,
    /// The mtime, if it was set after the last write.
    pub(super) mtime: Option<Time>,
    pub(super) gone: bool,
    /// The file was removed from the table; another entry may have replaced it.
    pub(super) forgotten: bool,
}

impl File {
    /// A file that an earlier server left.
    pub(super) fn left(mut log: Vec<Bytes>) -> File {
        log.sort_unstable_by_key(|bytes| bytes.number);
        File { log, ..File::default() }
    }

    /// The number of its users of this kind.
    pub(super) fn count(&mut self, what_for: Use) -> &mut usize {
        match what_for {
            Use::Read => &mut self.readers,
            Use::Write => &mut self.writers,
        }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.readers + self.writers == 0
    }

    /// Whether its object has this key. A failed rename may have left a copy elsewhere.
    pub(super) fn is_at(&self, key: &str) -> bool {
        self.key.is_empty() || self.key == key
    }

    /// Its object was found: builds the overlay.
    pub(super) fn attach_object(&mut self, head: &Head) {
        head.key.clone_into(&mut self.key);
        if self.overlay.is_some() {
            return;
        }
        let upto = metadata::upto(head);
        self.spent.extend(self.log.extract_if(.., |bytes| bytes.number <= upto));
        if !self.log.is_empty() {
            let mut overlay = Overlay::new(head.size);
            self.log.iter().for_each(|&bytes| apply(&mut overlay, bytes));
            self.overlay = Some(overlay);
        }
    }

    /// The locations of its bytes, in order.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let all = |overlay: &Overlay| overlay.pieces(Span::new(0, overlay.size())).collect();
        self.overlay.as_ref().map_or_else(Vec::new, all)
    }

    /// Adds a private object.
    pub(super) fn apply(&mut self, bytes: Bytes) {
        self.log.push(bytes);
        if let Some(overlay) = &mut self.overlay {
            apply(overlay, bytes);
        }
    }

    /// The object now contains all changes.
    pub(super) fn mark_composed(&mut self) {
        self.spent.append(&mut self.log);
        self.overlay = None;
    }

    /// The key of the object that holds a piece.
    pub(super) fn source(&self, id: u64, source: Source) -> Result<String> {
        let Source::Part(number) = source else { return Ok(self.key.clone()) };
        let part = self.log.iter().find(|bytes| bytes.number == number);
        part.map(|bytes| Inner::part(id) + &bytes.name()).ok_or_else(|| Error::from(ErrorKind::Stale))
    }

    /// Adjusts a version by the changes that are not in the object.
    pub(super) fn show(&self, version: &mut Version) {
        if let Some(overlay) = &self.overlay {
            version.size = overlay.size();
            version.mtime = self.mtime.unwrap_or_else(|| metadata::moment(overlay.last()));
        }
    }
}

fn apply(overlay: &mut Overlay, bytes: Bytes) {
    match bytes.span {
        Some(span) => overlay.write(bytes.number, span),
        None => overlay.cut(bytes.number, bytes.size),
    }
}

/// An open file.
pub(super) struct S3Object {
    inner: Arc<Inner>,
    file: Arc<Mutex<File>>,
    id: u64,
    what_for: Use,
}

impl S3Object {
    pub(super) fn new(inner: Arc<Inner>, there: &There, what_for: Use) -> Result<S3Object> {
        let file = inner.used(there, what_for)?;
        Ok(S3Object { inner, file, id: metadata::id(&there.head), what_for })
    }

    /// Sets its length.
    pub(super) fn cut(&self, size: u64) -> Result<()> {
        let number = self.inner.next();
        self.change(Bytes { number, span: None, size }, &[])
    }

    fn lock(&self) -> Result<MutexGuard<'_, File>> {
        let state = self.file.lock();
        if state.gone { Err(Error::from(ErrorKind::Stale)) } else { Ok(state) }
    }

    fn change(&self, bytes: Bytes, body: &[u8]) -> Result<()> {
        drop(self.lock()?);
        let key = Inner::part(self.id) + &bytes.name();
        let done = self.inner.store.put(&key, body, &Meta::new()).and_then(|()| self.add(bytes));
        if done.is_err() {
            // The request may have succeeded all the same, or may still: remove it now, and once more at the
            // end.
            let _ = self.inner.store.delete(&key);
            self.file.lock().spent.push(bytes);
        }
        done
    }

    /// Records a change.
    fn add(&self, bytes: Bytes) -> Result<()> {
        let mut state = self.lock()?;
        if state.overlay.is_none() {
            let head = self.inner.store.head(&state.key)?.ok_or_else(|| Error::from(ErrorKind::Stale))?;
            state.overlay = Some(Overlay::new(head.size));
        }
        state.mtime = None;
        state.apply(bytes);
        Ok(())
    }
}

impl Object for S3Object {
    fn version(&self) -> Result<Version> {
        let state = self.lock()?;
        let head = self.inner.store.head(&state.key)?.ok_or_else(|| Error::from(ErrorKind::Stale))?;
        let mut version = metadata::found(&head, false).version;
        state.show(&mut version);
        Ok(version)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let state = self.lock()?;
        let whole;
        let overlay = match &state.overlay {
            Some(overlay) => overlay,
            None => {
                let head = self.inner.store.head(&state.key)?.ok_or_else(|| Error::from(ErrorKind::Stale))?;
                whole = Overlay::new(head.size);
                &whole
            }
        };
        let span = Span::new(offset, offset.saturating_add(into.len() as u64));
        let mut done = 0;
        for piece in overlay.pieces(span) {
            let here = &mut into[done..done + piece.span.len() as usize];
            match piece.source {
                Source::Zero => here.fill(0),
                source => self.inner.store.get(&state.source(self.id, source)?, piece.from, here)?,
            }
            done += here.len();
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let body = parts.concat();
        if body.is_empty() {
            return Ok(());
        }
        let span = Span::at(offset, body.len() as u64).ok_or_else(|| Error::from(ErrorKind::TooLarge))?;
        let number = self.inner.next();
        self.change(Bytes::written(number, span), &body)
    }

    fn sync(&self) -> Result<()> {
        // An acknowledged request is durable.
        self.lock().map(drop)
    }

    fn gather(&self) -> Result<()> {
        let mut state = self.lock()?;
        match state.writers > usize::from(self.what_for == Use::Write) {
            true => Ok(()),
            false => self.inner.finish(self.id, &mut state),
        }
    }
}

impl Drop for S3Object {
    fn drop(&mut self) {
        let mut state = self.file.lock();
        *state.count(self.what_for) -= 1;
        if state.writers > 0 {
            return;
        }
        // Drop cannot report an error. A file that is not composed now stays readable, and the next lookup
        // retries.
        let _ = match state.gone {
            true => self.inner.remove_parts(self.id, &mut state),
            false => self.inner.finish(self.id, &mut state),
        };
        drop(state);
        self.inner.forget(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_object_keys_are_parsed() {
        for bytes in [
            Bytes { number: 7, span: Some(Span::new(3, 10)), size: 0 },
            Bytes { number: u64::MAX, span: Some(Span::new(1 << 63, (1 << 63) + 1)), size: 0 },
            Bytes { number: 9, span: None, size: 12 },
        ] {
            assert_eq!(Bytes::parse(&(Inner::part(5) + &bytes.name())), Some((5, bytes)));
        }
        for key in ["x", ".forebay-parts/5", ".forebay-parts/5/1-2", ".forebay-parts/5/1-ffffffffffffffff-2"]
        {
            assert_eq!(Bytes::parse(key), None, "{key}");
        }
    }
}
