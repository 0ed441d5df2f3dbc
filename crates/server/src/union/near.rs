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
/// So many entries of what has gone do not matter.
const SPARE: usize = 1024;

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
    /// In the order in which they came, or were last asked for, with the number of that; some may be gone, or have come
    /// again.
    order: VecDeque<(FileId, u64, u64)>,
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
    /// Under which number it was last asked for.
    turn: u64,
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

    /// Whether a block of a file of a version is kept; it was asked for under this number then.
    pub(super) fn renew(&self, file: FileId, version: Version, start: u64, turn: u64) -> bool {
        let mut kept = self.write();
        let of = kept.files.get_mut(&file).filter(|of| of.version == version);
        let Some(block) = of.and_then(|of| of.blocks.get_mut(&start)) else { return false };
        if std::mem::replace(&mut block.turn, turn) != turn {
            kept.come((file, start, turn));
        }
        true
    }

    /// Whether a block more can be kept without throwing away what was asked for under this number.
    pub(super) fn has_room(&self, turn: u64) -> bool {
        self.most >= BLOCK && self.write().can_make_room(self.most, turn)
    }

    /// Keeps a block; throws away the oldest for it, but none that was asked for under the same number. False if there is
    /// no room for it then.
    pub(super) fn put(
        &self,
        file: FileId,
        version: Version,
        start: u64,
        bytes: &[u8],
        turn: u64,
    ) -> Result<bool> {
        let keeps = self.file()?;
        let len = u32::try_from(bytes.len()).ok().filter(|&len| len > 0 && u64::from(len) <= BLOCK);
        let (Some(len), true) = (len, self.most >= BLOCK) else { return Ok(false) };
        let place = {
            let mut kept = self.write();
            if kept.files.get(&file).is_some_and(|of| of.version != version) {
                kept.forget(file);
            }
            kept.drop_block(file, start);
            kept.make_room(self.most, turn)
        };
        let Some(place) = place else { return Ok(false) };
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
            return Ok(true);
        }
        of.blocks.insert(start, Block { place, len, sum: crc32c(bytes), turn });
        kept.come((file, start, turn));
        kept.bytes += u64::from(len);
        Ok(true)
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
    /// A block has come, or was asked for again.
    fn come(&mut self, entry: (FileId, u64, u64)) {
        self.order.push_back(entry);
        // Those are looked at when room is needed, which may be never.
        let blocks = (self.next / BLOCK) as usize - self.free.len();
        if self.order.len() > SPARE && self.order.len() / 2 > blocks {
            let (files, order) = (&self.files, &mut self.order);
            order.retain(|&entry| is_kept(files, entry));
        }
    }

    /// Whether there is a place for a block, with no more than so much kept beside it, and the oldest of what was not
    /// asked for under a number thrown away.
    fn can_make_room(&mut self, most: u64, turn: u64) -> bool {
        while self.order.front().is_some_and(|&entry| !is_kept(&self.files, entry)) {
            self.order.pop_front();
        }
        self.bytes + BLOCK <= most || self.order.front().is_some_and(|&(_, _, oldest)| oldest != turn)
    }

    fn make_room(&mut self, most: u64, turn: u64) -> Option<u64> {
        while self.bytes + BLOCK > most {
            if !self.can_make_room(most, turn) {
                return None;
            }
            if let Some((file, start, _)) = self.order.pop_front() {
                self.drop_block(file, start);
            }
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.next += BLOCK;
            self.next - BLOCK
        });
        Some(place)
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
            self.order.retain(|(other, ..)| *other != file);
        }
    }
}

/// Whether a block is there that was last asked for under this number.
fn is_kept(files: &HashMap<FileId, Blocks>, (file, start, turn): (FileId, u64, u64)) -> bool {
    files.get(&file).and_then(|of| of.blocks.get(&start)).is_some_and(|block| block.turn == turn)
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
            let turn = u64::from(number);
            assert!(near.put(file, version(1), turn * BLOCK, &vec![number; block], turn).unwrap());
        }
        assert_eq!(near.bytes(), (2 * BLOCK, 2 * BLOCK));
        assert_eq!(near.get(file, version(1), Span::new(0, 1)), None, "the oldest is gone");
        let over = near.get(file, version(1), Span::new(2 * BLOCK - 2, 2 * BLOCK + 2));
        assert_eq!(over, Some(vec![1, 1, 2, 2]));
        assert_eq!(near.get(file, version(1), Span::new(3 * BLOCK - 1, 3 * BLOCK + 1)), None, "beyond");
        assert_eq!(near.get(file, version(2), Span::new(BLOCK, BLOCK + 1)), None, "another version");
        assert_eq!(near.get(FileId(8), version(1), Span::new(BLOCK, BLOCK + 1)), None);
        assert!(near.put(file, version(2), 0, &[9; 10], 3).unwrap());
        assert_eq!((near.bytes().0, near.get(file, version(2), Span::new(3, 5))), (10, Some(vec![9, 9])));
        assert!(near.put(file, version(2), 0, &[8; 12], 3).unwrap());
        assert_eq!((near.bytes().0, near.get(file, version(2), Span::new(3, 5))), (12, Some(vec![8, 8])));
        assert!(near.renew(file, version(2), 0, 4) && !near.renew(file, version(1), 0, 4));
        near.forget(file);
        assert_eq!((near.bytes().0, near.get(file, version(2), Span::new(3, 5))), (0, None));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left beside the store");
        let places = near.read();
        assert!(places.next <= 3 * BLOCK, "places are used again: {}", places.next);
    }

    #[test]
    fn what_was_asked_for_under_a_number_is_not_driven_out_under_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (near, file) = (Near::new(dir.path().to_owned(), 3 * BLOCK), FileId(7));
        let put = |block: u64, turn| near.put(file, version(1), block * BLOCK, &[7; BLOCK as usize], turn);
        let kept = || {
            (0..8).filter(|block| near.get(file, version(1), Span::at(block * BLOCK, 1).unwrap()).is_some())
        };
        for block in 0..3 {
            assert!(put(block, 1).unwrap());
        }
        assert!(!near.has_room(1) && !put(3, 1).unwrap() && near.has_room(2));
        assert!(near.renew(file, version(1), 0, 2), "it was there");
        assert!(put(4, 2).unwrap() && put(5, 2).unwrap());
        assert_eq!(
            kept().collect::<Vec<_>>(),
            [0, 4, 5],
            "the oldest went, but for what was asked for again"
        );
        assert!(!near.has_room(2) && !put(6, 2).unwrap());
        for turn in 3..3 + 4 * SPARE as u64 {
            assert!(near.renew(file, version(1), 4 * BLOCK, turn));
        }
        assert!(near.read().order.len() <= SPARE + 1, "what has gone is not remembered for ever");
        assert!(put(6, 1).unwrap() && put(7, 1).unwrap());
        assert_eq!(kept().collect::<Vec<_>>(), [4, 6, 7]);
    }

    #[test]
    fn what_came_to_be_something_else_is_not_given() {
        let dir = tempfile::tempdir().unwrap();
        let near = Near::new(dir.path().to_owned(), 4 * BLOCK);
        assert!(near.put(FileId(1), version(1), 0, b"as it was", 0).unwrap());
        near.file().unwrap().write_all_at(b"x", 3).unwrap();
        assert_eq!(near.get(FileId(1), version(1), Span::new(0, 2)), None);
        let none = Near::new(dir.path().to_owned(), BLOCK - 1);
        assert!(!none.put(FileId(1), version(1), 0, b"no room", 0).unwrap() && !none.has_room(0));
        assert_eq!(none.bytes(), (0, 0));
    }
}
