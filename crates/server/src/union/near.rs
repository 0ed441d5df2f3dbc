//! Bytes from behind that somebody asked to have near, to be read soon: in a file of their own beside the store, on its
//! medium, a quarter of its capacity at most, the oldest thrown away first.
//!
//! **Invariant**: what is kept is of the version that stands beside it, and nobody is given any of it who has not just found
//! that version behind, as for every other read; of what this server writes to behind nothing is kept.
//!
//! **Deliberately absent**: names, and which bytes are behind at all: whoever reads knows.

use crc32c::crc32c;
use forebay_backend::Version;
use forebay_model::{Error, ErrorKind, FileId, Result, Span};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What is kept or not, at a time.
pub(super) const BLOCK: u64 = 256 << 10;

/// All that is kept.
pub(crate) struct Near {
    dir: PathBuf,
    /// Most bytes.
    most: u64,
    file: OnceLock<File>,
    kept: RwLock<Kept>,
}

#[derive(Default)]
struct Kept {
    files: HashMap<FileId, Blocks>,
    /// In the order in which they came; some may be gone.
    order: VecDeque<(FileId, u64)>,
    /// Places in the file that nothing is in, and the first that never had anything.
    free: Vec<u64>,
    next: u64,
    bytes: u64,
}

struct Blocks {
    version: Version,
    /// By where they begin in the file behind.
    blocks: BTreeMap<u64, Block>,
}

#[derive(Clone, Copy)]
struct Block {
    place: u64,
    len: u32,
    sum: u32,
}

impl Near {
    pub(crate) fn new(dir: PathBuf, most: u64) -> Near {
        Near { dir, most: most / BLOCK * BLOCK, file: OnceLock::new(), kept: RwLock::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Kept> {
        self.kept.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Kept> {
        self.kept.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much is kept, and how much may be.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.read().bytes, self.most)
    }

    /// Where bytes are kept. Nobody else sees it, and it is gone with the server.
    fn file(&self) -> Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let path = self.dir.join("near");
        let failed = |error| trouble(&error);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = open.map_err(failed)?;
        std::fs::remove_file(&path).map_err(failed)?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Whether a block of a file of a version is kept.
    pub(super) fn has(&self, file: FileId, version: Version, start: u64) -> bool {
        let kept = self.read();
        kept.files.get(&file).is_some_and(|of| of.version == version && of.blocks.contains_key(&start))
    }

    /// Keeps a block; throws away the oldest for it.
    pub(super) fn put(&self, file: FileId, version: Version, start: u64, bytes: &[u8]) -> Result<()> {
        let keeps = self.file()?;
        let len = u32::try_from(bytes.len()).ok().filter(|&len| len > 0 && u64::from(len) <= BLOCK);
        let (Some(len), true) = (len, self.most >= BLOCK) else { return Ok(()) };
        let place = {
            let mut kept = self.write();
            if kept.files.get(&file).is_some_and(|of| of.version != version) {
                kept.forget(file);
            }
            kept.drop_block(file, start);
            kept.make_room(self.most)
        };
        // Nobody reads there before it is said what is there.
        let written = keeps.write_all_at(bytes, place);
        let mut kept = self.write();
        if let Err(error) = written {
            kept.free.push(place);
            return Err(trouble(&error));
        }
        let of = kept.files.entry(file).or_insert_with(|| Blocks { version, blocks: BTreeMap::new() });
        if of.version != version || of.blocks.contains_key(&start) {
            kept.free.push(place);
            return Ok(());
        }
        of.blocks.insert(start, Block { place, len, sum: crc32c(bytes) });
        kept.order.push_back((file, start));
        kept.bytes += u64::from(len);
        Ok(())
    }

    /// Bytes of a file of a version, if all of them are kept.
    pub(super) fn get(&self, file: FileId, version: Version, span: Span) -> Option<Vec<u8>> {
        let kept = self.read();
        let of = kept.files.get(&file).filter(|of| of.version == version)?;
        let keeps = self.file.get()?;
        let mut bytes = Vec::with_capacity(usize::try_from(span.len()).ok()?);
        let mut at = span.start;
        while at < span.end {
            let start = at / BLOCK * BLOCK;
            let block = of.blocks.get(&start)?;
            let mut whole = vec![0; block.len as usize];
            keeps.read_exact_at(&mut whole, block.place).ok()?;
            if crc32c(&whole) != block.sum {
                tracing::warn!(%file, start, "what was brought near is not what it was; it is read from behind");
                return None;
            }
            let end = (span.end - start).min(whole.len() as u64);
            let part = whole.get((at - start) as usize..end as usize).filter(|part| !part.is_empty())?;
            bytes.extend_from_slice(part);
            at += part.len() as u64;
        }
        Some(bytes)
    }

    /// Nothing is kept of a file: this server is about to change it behind.
    pub(crate) fn forget(&self, file: FileId) {
        // Most files were never brought near.
        if self.read().files.contains_key(&file) {
            self.write().forget(file);
        }
    }
}

impl Kept {
    /// A place for a block, with no more than so much kept beside it.
    fn make_room(&mut self, most: u64) -> u64 {
        while self.bytes + BLOCK > most
            && let Some((file, start)) = self.order.pop_front()
        {
            self.drop_block(file, start);
        }
        self.free.pop().unwrap_or_else(|| {
            self.next += BLOCK;
            self.next - BLOCK
        })
    }

    fn drop_block(&mut self, file: FileId, start: u64) {
        let Some(of) = self.files.get_mut(&file) else { return };
        if let Some(block) = of.blocks.remove(&start) {
            self.bytes -= u64::from(block.len);
            self.free.push(block.place);
        }
        if of.blocks.is_empty() {
            self.files.remove(&file);
        }
    }

    fn forget(&mut self, file: FileId) {
        if let Some(of) = self.files.remove(&file) {
            self.bytes -= of.blocks.values().map(|block| u64::from(block.len)).sum::<u64>();
            self.free.extend(of.blocks.values().map(|block| block.place));
            self.order.retain(|(other, _)| *other != file);
        }
    }
}

fn trouble(error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("what is brought near cannot be kept beside the store: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Time;

    fn version(serial: u64) -> Version {
        Version { size: 3 << 20, mtime: Time { secs: 1, nanos: 2 }, serial }
    }

    #[test]
    fn what_is_kept_is_found_and_the_oldest_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let (near, file, block) = (Near::new(dir.path().to_owned(), 2 * BLOCK), FileId(7), BLOCK as usize);
        for number in 0..3_u8 {
            near.put(file, version(1), u64::from(number) * BLOCK, &vec![number; block]).unwrap();
        }
        assert_eq!(near.bytes(), (2 * BLOCK, 2 * BLOCK));
        assert_eq!(near.get(file, version(1), Span::new(0, 1)), None, "the oldest is gone");
        let over = near.get(file, version(1), Span::new(2 * BLOCK - 2, 2 * BLOCK + 2));
        assert_eq!(over, Some(vec![1, 1, 2, 2]));
        assert_eq!(near.get(file, version(1), Span::new(3 * BLOCK - 1, 3 * BLOCK + 1)), None, "beyond");
        assert_eq!(near.get(file, version(2), Span::new(BLOCK, BLOCK + 1)), None, "another version");
        assert_eq!(near.get(FileId(8), version(1), Span::new(BLOCK, BLOCK + 1)), None);
        near.put(file, version(2), 0, &[9; 10]).unwrap();
        assert_eq!((near.bytes().0, near.get(file, version(2), Span::new(3, 5))), (10, Some(vec![9, 9])));
        near.put(file, version(2), 0, &[8; 12]).unwrap();
        assert_eq!((near.bytes().0, near.get(file, version(2), Span::new(3, 5))), (12, Some(vec![8, 8])));
        assert!(near.has(file, version(2), 0) && !near.has(file, version(1), 0));
        near.forget(file);
        assert_eq!((near.bytes().0, near.get(file, version(2), Span::new(3, 5))), (0, None));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left beside the store");
        let places = near.read();
        assert!(places.next <= 3 * BLOCK, "places are used again: {}", places.next);
    }

    #[test]
    fn what_came_to_be_something_else_is_not_given() {
        let dir = tempfile::tempdir().unwrap();
        let near = Near::new(dir.path().to_owned(), 4 * BLOCK);
        near.put(FileId(1), version(1), 0, b"as it was").unwrap();
        near.file().unwrap().write_all_at(b"x", 3).unwrap();
        assert_eq!(near.get(FileId(1), version(1), Span::new(0, 2)), None);
        let none = Near::new(dir.path().to_owned(), BLOCK - 1);
        none.put(FileId(1), version(1), 0, b"no room").unwrap();
        assert_eq!(none.bytes(), (0, 0));
    }
}
