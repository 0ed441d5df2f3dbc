//! Writing back the bytes that processes stored into their mappings.
//!
//! Stores into a mapping are not reported. So the pages of an object are compared, by their hashes, with the pages that
//! the store last had. A page without a known hash is compared with the bytes in the store, or written once more if the
//! back end has them.

use super::{Mapped, Mapper, PIECE, page_of};
use crate::data::file::File;
use crate::data::mapped::object::PAGE;
use crate::data::publish::{Put, Write};
use crate::data::{Data, Filled, Piece};
use crc32c::crc32c;
use forebay_model::{FileId, Result, Span};
use xxhash_rust::xxh3::xxh3_64;

impl Data {
    /// Writes everything to the store that was stored into mappings of a file before this call.
    pub fn write_back(&self, id: FileId) -> Result<()> {
        let Some(state) = self.files.resident(id) else { return Ok(()) };
        let mut at = 0;
        loop {
            let (dirty, writer, next) = {
                let mut state = state.lock();
                let Some(mapped) = state.mapped.as_ref().filter(|mapped| mapped.stored) else {
                    return Ok(());
                };
                let writer = mapped.writer;
                let Some(piece) = next_piece(mapped, state.size, at) else { return Ok(()) };
                let dirty = self.find_dirty(&mut state, piece);
                (dirty.map_err(|error| self.object_failed("compare", id, &error))?, writer, piece.end)
            };
            for span in dirty {
                self.write_back_span(id, span, writer)?;
            }
            at = next;
        }
    }

    fn write_back_span(&self, id: FileId, span: Span, writer: Mapper) -> Result<()> {
        let mut at = span.start;
        while at < span.end {
            let grant = self.reserve(writer.uid, id, (span.end - at) as u32)?;
            let whole = (u64::from(grant.len()) / PAGE * PAGE).max(PAGE.min(u64::from(grant.len())));
            let part = Span::new(at, span.end.min(at + whole));
            self.commit_mapped(id, part, Filled { grant, len: part.len() as u32, crc: 0 }, writer)?;
            at = part.end;
        }
        Ok(())
    }

    /// Commits the current content of a range of the object.
    fn commit_mapped(&self, id: FileId, span: Span, mut filled: Filled, writer: Mapper) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        let dead = {
            let mut state = state.lock();
            self.consume(id, &mut state)?;
            // The file was truncated or deleted, or its object removed, meanwhile.
            let Some(span) = span.intersect(Span::new(0, state.size)) else { return Ok(()) };
            let Some(mapped) = &state.mapped else { return Ok(()) };
            let bytes = &mut filled.grant.as_mut_slice()[..span.len() as usize];
            let read = mapped.object.read(span.start, bytes);
            read.map_err(|error| self.object_failed("read", id, &error))?;
            (filled.len, filled.crc) = (bytes.len() as u32, crc32c(bytes));
            let pages = bytes.chunks(PAGE as usize).zip(page_of(span.start)..);
            let known: Vec<(u64, u64)> = pages.map(|(page, number)| (number, xxh3_64(page))).collect();
            if !state.size_pending {
                self.note_size(id, &state, true)?;
                state.size_pending = true;
            }
            let write = Write { file: id, stamp: self.clock.next(), job: writer.job };
            let dead = self.publish(write, &mut state, span.start, vec![Put::from(filled)]);
            state.touch(write.stamp);
            if span.start % PAGE == 0
                && let Some(mapped) = &mut state.mapped
            {
                mapped.known.extend(known);
            }
            dead
        };
        self.reclaim_if(dead);
        Ok(())
    }

    /// Writes back the mappings of all files; continues after a failure, and returns the first error.
    pub fn write_back_all(&self) -> Result<()> {
        let mut first = Ok(());
        for file in self.mapped() {
            let done = self.write_back(file);
            first = first.and(done);
        }
        first
    }

    /// Removes the object of a file that no process maps any more, after everything is written back; true if it did.
    pub fn end_map(&self, id: FileId) -> Result<bool> {
        let unused = |mapped: &mut Mapped| {
            let unused = !self.objects.is_prepared(id) && mapped.object.is_unused();
            unused.then_some(mapped.shared)
        };
        let Some(state) = self.files.resident(id) else { return Ok(false) };
        let Some(shared) = state.lock().mapped.as_deref_mut().and_then(unused) else { return Ok(false) };
        self.write_back(id)?;
        let dropped = {
            let mut state = state.lock();
            if state.mapped.as_deref_mut().and_then(unused) != Some(shared) {
                return Ok(false);
            }
            let dropped = self.drop_object(id, &mut state);
            if state.mapped.is_some() {
                return dropped.map(|()| false);
            }
            dropped
        };
        drop(state);
        // The file may have been closed long before.
        self.persist_size(id)?;
        dropped.map(|()| true)
    }

    /// The ranges of a piece that differ from the store, or may, neighbours merged.
    fn find_dirty(&self, state: &mut File, piece: Span) -> std::io::Result<Vec<Span>> {
        let Some(mapped) = &state.mapped else { return Ok(Vec::new()) };
        let (first, end) = (page_of(piece.start), page_of(piece.end.next_multiple_of(PAGE)));
        if mapped.known.range(first..end).next().is_none() && mapped.object.is_hole(piece) {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; piece.len() as usize];
        mapped.object.read(piece.start, &mut bytes)?;
        let (mut dirty, mut same): (Vec<Span>, Vec<(u64, u64)>) = Default::default();
        for (page, number) in bytes.chunks(PAGE as usize).zip(first..) {
            let span = Span::new(number * PAGE, number * PAGE + page.len() as u64);
            let (hash, known) = (xxh3_64(page), mapped.known.get(&number));
            if known == Some(&hash) {
                continue;
            }
            if known.is_none() && self.is_stored(state, span, page) {
                same.push((number, hash));
                continue;
            }
            match dirty.last_mut() {
                Some(before) if before.end == span.start => before.end = span.end,
                _ => dirty.push(span),
            }
        }
        state.mapped.iter_mut().for_each(|mapped| mapped.committed(&same));
        Ok(dirty)
    }

    /// Whether the store has exactly these bytes, outside the back end.
    fn is_stored(&self, state: &File, span: Span, page: &[u8]) -> bool {
        let (mut pieces, mut at) = (Vec::new(), 0);
        let read = self.read_stored(state, span, &mut pieces);
        read.is_ok()
            && pieces.iter().all(|piece| {
                let (from, rest) = (at, &page[at..]);
                match piece {
                    Piece::Bytes(view) => {
                        at += view.as_ref().len();
                        rest.starts_with(view.as_ref())
                    }
                    Piece::Zeros(count) => {
                        at += *count as usize;
                        page[from..at].iter().all(|&byte| byte == 0)
                    }
                    Piece::Backing(_) | Piece::Copied(_) => false,
                }
            })
    }
}

/// The next piece of the present ranges, from an offset on.
fn next_piece(mapped: &Mapped, size: u64, at: u64) -> Option<Span> {
    let rest = Span::new(at.min(size), size);
    let present = mapped.present.within(rest).next()?;
    Some(Span::new(present.start, present.end.min(present.start + PIECE)))
}
