//! Files of a bucket that are being read or written.

use super::{Inner, Overlay, Source, There, facts};
use crate::{Object, Version};
use forebay_model::{Error, ErrorKind, Result, Span, Time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A write or a cut, as the name of its private object says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bytes {
    pub(super) number: u64,
    /// What was written; a cut if not given.
    span: Option<Span>,
    size: u64,
}

impl Bytes {
    /// The number of the file and the change that a key names.
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

    pub(super) fn name(self) -> String {
        match self.span {
            Some(span) => format!("{:016x}-{:016x}-{:x}", self.number, span.start, span.len()),
            None => format!("{:016x}-{:016x}-cut", self.number, self.size),
        }
    }
}

/// A file that is used, or was left half written.
#[derive(Default)]
pub(super) struct File {
    pub(super) key: String,
    pub(super) users: usize,
    /// Its private objects.
    pub(super) log: Vec<Bytes>,
    /// What they and its object come to, if there are any.
    pub(super) overlay: Option<Overlay>,
    /// The time of its last change, where that was set after the last write.
    pub(super) mtime: Option<Time>,
    pub(super) gone: bool,
}

impl File {
    /// One that an earlier server left.
    pub(super) fn left(mut log: Vec<Bytes>) -> File {
        log.sort_unstable_by_key(|bytes| bytes.number);
        File { log, ..File::default() }
    }

    /// Its object was found, with so many bytes.
    pub(super) fn meet(&mut self, key: &str, size: u64) {
        key.clone_into(&mut self.key);
        if self.overlay.is_none() && !self.log.is_empty() {
            let mut overlay = Overlay::new(size);
            self.log.iter().for_each(|&bytes| apply(&mut overlay, bytes));
            self.overlay = Some(overlay);
        }
    }

    /// What it is, beside its object.
    pub(super) fn show(&self, version: &mut Version) {
        if let Some(overlay) = &self.overlay {
            version.size = overlay.size();
            version.mtime = self.mtime.unwrap_or_else(|| facts::moment(overlay.last()));
        }
    }
}

fn apply(overlay: &mut Overlay, bytes: Bytes) {
    match bytes.span {
        Some(span) => overlay.write(bytes.number, span),
        None => overlay.cut(bytes.number, bytes.size),
    }
}

/// A file that is open.
pub(super) struct S3Object {
    inner: Arc<Inner>,
    file: Arc<Mutex<File>>,
    id: u64,
}

impl S3Object {
    pub(super) fn new(inner: Arc<Inner>, there: &There) -> S3Object {
        let file = inner.used(there);
        S3Object { inner, file, id: facts::id(&there.head) }
    }

    /// Sets its length.
    pub(super) fn cut(&self, size: u64) -> Result<()> {
        let number = self.inner.next();
        self.change(Bytes { number, span: None, size }, &[])
    }

    fn lock(&self) -> Result<MutexGuard<'_, File>> {
        let state = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if state.gone { Err(Error::from(ErrorKind::Stale)) } else { Ok(state) }
    }

    fn change(&self, bytes: Bytes, body: &[u8]) -> Result<()> {
        drop(self.lock()?);
        self.inner.store.put(&(Inner::part(self.id) + &bytes.name()), body, &super::Meta::new())?;
        let mut state = self.lock()?;
        if state.overlay.is_none() {
            let head = self.inner.store.head(&state.key)?.ok_or_else(|| Error::from(ErrorKind::Stale))?;
            state.overlay = Some(Overlay::new(head.size));
        }
        state.log.push(bytes);
        state.mtime = None;
        if let Some(overlay) = &mut state.overlay {
            apply(overlay, bytes);
        }
        Ok(())
    }
}

impl Object for S3Object {
    fn version(&self) -> Result<Version> {
        let state = self.lock()?;
        let head = self.inner.store.head(&state.key)?.ok_or_else(|| Error::from(ErrorKind::Stale))?;
        let mut version = facts::found(&head, false).version;
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
                Source::Base => self.inner.store.get(&state.key, piece.from, here)?,
                Source::Part(number) => {
                    let bytes = state.log.iter().find(|bytes| bytes.number == number);
                    let bytes = bytes.ok_or_else(|| Error::from(ErrorKind::Stale))?;
                    self.inner.store.get(&(Inner::part(self.id) + &bytes.name()), piece.from, here)?;
                }
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
        self.change(Bytes { number, span: Some(span), size: 0 }, &body)
    }

    fn sync(&self) -> Result<()> {
        // What a store has acknowledged is on its devices.
        self.lock().map(drop)
    }
}

impl Drop for S3Object {
    fn drop(&mut self) {
        let mut state = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        state.users -= 1;
        if state.users > 0 {
            return;
        }
        // Nobody can be told. What is not put together now is read as it is, until somebody looks again.
        let _ = if state.gone { Ok(()) } else { self.inner.finish(self.id, &mut state) };
        drop(state);
        self.inner.forget(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_private_objects_say_what_they_are() {
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
