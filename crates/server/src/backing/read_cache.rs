//! Staged bytes from the back end, to be read soon: in a separate file beside the store, on the same medium, at most a
//! quarter of its capacity; the oldest are evicted first.
//!
//! **Invariant**: every block belongs to the version recorded with it, and is used only for a read that has just found
//! that version in the back end; nothing is cached of a file that this server writes to in the back end.
//!
//! **Deliberately absent**: names, and which bytes are in the back end: the reader knows.

use crc32c::crc32c;
use forebay_backend::Version;
use forebay_model::{Error, ErrorKind, FileId, Result, Span};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Unit of caching.
pub(super) const BLOCK: u64 = 256 << 10;
/// This many stale entries are tolerated.
const SPARE: usize = 1024;

/// The cache.
pub(crate) struct ReadCache {
    dir: PathBuf,
    /// Capacity, in bytes.
    most: u64,
    file: OnceLock<File>,
    cached: RwLock<Cached>,
}

#[derive(Default)]
struct Cached {
    files: HashMap<FileId, Blocks>,
    /// In order of insertion or last request, with the request's turn; some entries may be stale or repeated.
    order: VecDeque<(FileId, u64, u64)>,
    /// Free offsets in the cache file, and the first that was never used.
    free: Vec<u64>,
    next: u64,
    bytes: u64,
}

struct Blocks {
    version: Version,
    /// By offset in the file.
    blocks: BTreeMap<u64, Block>,
}

#[derive(Clone, Copy)]
struct Block {
    place: u64,
    len: u32,
    sum: u32,
    /// The turn of the last request.
    turn: u64,
}

impl ReadCache {
    pub(crate) fn new(dir: PathBuf, most: u64) -> ReadCache {
        ReadCache { dir, most: most / BLOCK * BLOCK, file: OnceLock::new(), cached: RwLock::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Cached> {
        self.cached.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Cached> {
        self.cached.write()
    }

    /// Used and total bytes.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.read().bytes, self.most)
    }

    /// The cache file, created on first use. It has no name, and is freed with the server process.
    fn file(&self) -> Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let path = self.dir.join("near");
        let failed = |error| cache_error(&error);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = open.map_err(failed)?;
        std::fs::remove_file(&path).map_err(failed)?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Whether a block of this version is cached; renews its turn.
    pub(super) fn renew(&self, file: FileId, version: Version, start: u64, turn: u64) -> bool {
        let mut cached = self.write();
        let of = cached.files.get_mut(&file).filter(|of| of.version == version);
        let Some(block) = of.and_then(|of| of.blocks.get_mut(&start)) else { return false };
        if std::mem::replace(&mut block.turn, turn) != turn {
            cached.note_use((file, start, turn));
        }
        true
    }

    /// Whether another block fits without evicting blocks of this turn.
    pub(super) fn has_space(&self, turn: u64) -> bool {
        self.most >= BLOCK && self.write().can_evict(self.most, turn)
    }

    /// Stores a block; evicts the oldest, but none of the same turn. False if there is no space then.
    pub(super) fn put(
        &self,
        file: FileId,
        version: Version,
        start: u64,
        bytes: &[u8],
        turn: u64,
    ) -> Result<bool> {
        let cache_file = self.file()?;
        let len = u32::try_from(bytes.len()).ok().filter(|&len| len > 0 && u64::from(len) <= BLOCK);
        let (Some(len), true) = (len, self.most >= BLOCK) else { return Ok(false) };
        let place = {
            let mut cached = self.write();
            if cached.files.get(&file).is_some_and(|of| of.version != version) {
                cached.forget(file);
            }
            cached.drop_block(file, start);
            cached.allocate(self.most, turn)
        };
        let Some(place) = place else { return Ok(false) };
        // No reader uses the offset before the block is inserted.
        let written = cache_file.write_all_at(bytes, place);
        let mut cached = self.write();
        if let Err(error) = written {
            cached.free.push(place);
            return Err(cache_error(&error));
        }
        let of = cached.files.entry(file).or_insert_with(|| Blocks { version, blocks: BTreeMap::new() });
        if of.version != version || of.blocks.contains_key(&start) {
            cached.free.push(place);
            return Ok(true);
        }
        of.blocks.insert(start, Block { place, len, sum: crc32c(bytes), turn });
        cached.note_use((file, start, turn));
        cached.bytes += u64::from(len);
        Ok(true)
    }

    /// Bytes of a file of this version, if all of them are cached.
    pub(super) fn get(&self, file: FileId, version: Version, span: Span) -> Option<Vec<u8>> {
        let cached = self.read();
        let of = cached.files.get(&file).filter(|of| of.version == version)?;
        let cache_file = self.file.get()?;
        let mut bytes = Vec::with_capacity(usize::try_from(span.len()).ok()?);
        let mut at = span.start;
        while at < span.end {
            let start = at / BLOCK * BLOCK;
            let block = of.blocks.get(&start)?;
            let mut whole = vec![0; block.len as usize];
            cache_file.read_exact_at(&mut whole, block.place).ok()?;
            if crc32c(&whole) != block.sum {
                tracing::warn!(%file, start, "checksum mismatch in a staged block; it is read from the back end");
                return None;
            }
            let end = (span.end - start).min(whole.len() as u64);
            let part = whole.get((at - start) as usize..end as usize).filter(|part| !part.is_empty())?;
            bytes.extend_from_slice(part);
            at += part.len() as u64;
        }
        Some(bytes)
    }

    /// Drops all blocks of a file: this server is about to change it in the back end.
    pub(crate) fn forget(&self, file: FileId) {
        // Most files were never staged.
        if self.read().files.contains_key(&file) {
            self.write().forget(file);
        }
    }
}

impl Cached {
    /// A block was inserted or renewed.
    fn note_use(&mut self, entry: (FileId, u64, u64)) {
        self.order.push_back(entry);
        // Stale entries are otherwise dropped only when space is needed, which may be never.
        let blocks = (self.next / BLOCK) as usize - self.free.len();
        if self.order.len() > SPARE && self.order.len() / 2 > blocks {
            let (files, order) = (&self.files, &mut self.order);
            order.retain(|&entry| is_held_open(files, entry));
        }
    }

    /// Whether there is space for a block within `most` bytes, if the oldest blocks of other turns are evicted.
    fn can_evict(&mut self, most: u64, turn: u64) -> bool {
        while self.order.front().is_some_and(|&entry| !is_held_open(&self.files, entry)) {
            self.order.pop_front();
        }
        self.bytes + BLOCK <= most || self.order.front().is_some_and(|&(_, _, oldest)| oldest != turn)
    }

    fn allocate(&mut self, most: u64, turn: u64) -> Option<u64> {
        while self.bytes + BLOCK > most {
            if !self.can_evict(most, turn) {
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

/// Whether a block is cached that was last requested in this turn.
fn is_held_open(files: &HashMap<FileId, Blocks>, (file, start, turn): (FileId, u64, u64)) -> bool {
    files.get(&file).and_then(|of| of.blocks.get(&start)).is_some_and(|block| block.turn == turn)
}

fn cache_error(error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("cannot write the file of staged bytes beside the store: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Time;

    fn version(serial: u64) -> Version {
        Version { size: 3 << 20, mtime: Time { secs: 1, nanos: 2 }, serial }
    }

    #[test]
    fn cached_blocks_are_found_and_the_oldest_are_evicted_first() {
        let dir = tempfile::tempdir().unwrap();
        let (read_cache, file, block) =
            (ReadCache::new(dir.path().to_owned(), 2 * BLOCK), FileId(7), BLOCK as usize);
        for number in 0..3_u8 {
            let turn = u64::from(number);
            assert!(read_cache.put(file, version(1), turn * BLOCK, &vec![number; block], turn).unwrap());
        }
        assert_eq!(read_cache.bytes(), (2 * BLOCK, 2 * BLOCK));
        assert_eq!(read_cache.get(file, version(1), Span::new(0, 1)), None, "the oldest is evicted");
        let over = read_cache.get(file, version(1), Span::new(2 * BLOCK - 2, 2 * BLOCK + 2));
        assert_eq!(over, Some(vec![1, 1, 2, 2]));
        assert_eq!(read_cache.get(file, version(1), Span::new(3 * BLOCK - 1, 3 * BLOCK + 1)), None, "beyond");
        assert_eq!(read_cache.get(file, version(2), Span::new(BLOCK, BLOCK + 1)), None, "another version");
        assert_eq!(read_cache.get(FileId(8), version(1), Span::new(BLOCK, BLOCK + 1)), None);
        assert!(read_cache.put(file, version(2), 0, &[9; 10], 3).unwrap());
        assert_eq!(
            (read_cache.bytes().0, read_cache.get(file, version(2), Span::new(3, 5))),
            (10, Some(vec![9, 9]))
        );
        assert!(read_cache.put(file, version(2), 0, &[8; 12], 3).unwrap());
        assert_eq!(
            (read_cache.bytes().0, read_cache.get(file, version(2), Span::new(3, 5))),
            (12, Some(vec![8, 8]))
        );
        assert!(read_cache.renew(file, version(2), 0, 4) && !read_cache.renew(file, version(1), 0, 4));
        read_cache.forget(file);
        assert_eq!((read_cache.bytes().0, read_cache.get(file, version(2), Span::new(3, 5))), (0, None));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left beside the store");
        let places = read_cache.read();
        assert!(places.next <= 3 * BLOCK, "offsets are reused: {}", places.next);
    }

    #[test]
    fn blocks_of_a_turn_are_not_evicted_in_the_same_turn() {
        let dir = tempfile::tempdir().unwrap();
        let (read_cache, file) = (ReadCache::new(dir.path().to_owned(), 3 * BLOCK), FileId(7));
        let put =
            |block: u64, turn| read_cache.put(file, version(1), block * BLOCK, &[7; BLOCK as usize], turn);
        let cached = || {
            (0..8).filter(|block| {
                read_cache.get(file, version(1), Span::at(block * BLOCK, 1).unwrap()).is_some()
            })
        };
        for block in 0..3 {
            assert!(put(block, 1).unwrap());
        }
        assert!(!read_cache.has_space(1) && !put(3, 1).unwrap() && read_cache.has_space(2));
        assert!(read_cache.renew(file, version(1), 0, 2), "it is cached");
        assert!(put(4, 2).unwrap() && put(5, 2).unwrap());
        assert_eq!(
            cached().collect::<Vec<_>>(),
            [0, 4, 5],
            "the oldest are evicted, except for renewed blocks"
        );
        assert!(!read_cache.has_space(2) && !put(6, 2).unwrap());
        for turn in 3..3 + 4 * SPARE as u64 {
            assert!(read_cache.renew(file, version(1), 4 * BLOCK, turn));
        }
        assert!(read_cache.read().order.len() <= SPARE + 1, "stale entries are dropped");
        assert!(put(6, 1).unwrap() && put(7, 1).unwrap());
        assert_eq!(cached().collect::<Vec<_>>(), [4, 6, 7]);
    }

    #[test]
    fn corrupt_cached_block_is_not_returned() {
        let dir = tempfile::tempdir().unwrap();
        let read_cache = ReadCache::new(dir.path().to_owned(), 4 * BLOCK);
        assert!(read_cache.put(FileId(1), version(1), 0, b"as it was", 0).unwrap());
        read_cache.file().unwrap().write_all_at(b"x", 3).unwrap();
        assert_eq!(read_cache.get(FileId(1), version(1), Span::new(0, 2)), None);
        let none = ReadCache::new(dir.path().to_owned(), BLOCK - 1);
        assert!(!none.put(FileId(1), version(1), 0, b"no room", 0).unwrap() && !none.has_space(0));
        assert_eq!(none.bytes(), (0, 0));
    }
}
