//! Cache of lookup results. The server invalidates entries in shared memory before a change on their path, or of the
//! file itself, becomes visible to any client.
//!
//! The cache has only paths from the root without symbolic links, and only for the identity of this process, not for
//! those on whose behalf it sends requests.

use forebay_model::{Attr, FileId, FileKind, Name};
use forebay_shm::{EPOCHS_NAME, EpochReader, Lease};
use forebay_wire::{Reply, Request};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Number of paths in a generation. Two generations are kept.
const GENERATION: usize = 8192;
/// Longer paths are not cached.
const LONGEST: usize = 512;
/// How often the lock is tried.
const LOOKS: u32 = 100;
/// Maximum number of directories with a known path.
const MOST_DIRS: usize = 512;

/// Lookup results of one connection to one run of the server process.
pub(crate) struct NameCache {
    epochs: EpochReader,
    known: Mutex<Known>,
}

/// Attributes by path. The map holds only indices, and the attributes are contiguous: inserting seldom touches a new
/// memory page.
#[derive(Default)]
struct Paths {
    places: HashMap<Box<[u8]>, u32>,
    attrs: Vec<(Attr, Lease)>,
}

impl Paths {
    fn get(&self, path: &[u8]) -> Option<&(Attr, Lease)> {
        self.attrs.get(*self.places.get(path)? as usize)
    }

    fn put(&mut self, path: Vec<u8>, attr: Attr, lease: Lease) {
        match self.places.entry(path.into_boxed_slice()) {
            Entry::Occupied(place) => self.attrs[*place.get() as usize] = (attr, lease),
            Entry::Vacant(place) => {
                place.insert(self.attrs.len() as u32);
                self.attrs.push((attr, lease));
            }
        }
    }

    fn clear(&mut self) {
        self.places.clear();
        self.attrs.clear();
    }
}

struct Known {
    generations: [Paths; 2],
    /// Paths of directories.
    dirs: HashMap<FileId, (Vec<u8>, Lease)>,
}

impl Default for Known {
    fn default() -> Known {
        // Preallocated: a growing map would be copied each time.
        let first =
            Paths { places: HashMap::with_capacity(GENERATION), attrs: Vec::with_capacity(GENERATION) };
        Known { generations: [first, Paths::default()], dirs: HashMap::new() }
    }
}

impl Known {
    fn keep(&mut self, path: Vec<u8>, attr: &Attr, lease: Lease) {
        if attr.kind == FileKind::Directory {
            if self.dirs.len() >= MOST_DIRS {
                self.dirs.clear();
            }
            self.dirs.insert(attr.id, (path.clone(), lease));
        }
        if self.generations[0].attrs.len() >= GENERATION {
            self.generations.swap(0, 1);
            self.generations[0].clear();
        }
        self.generations[0].put(path, attr.clone(), lease);
    }

    /// The path of a name in a directory, if no directory has moved between the directory's lease and `lease`.
    fn path_of(&self, dir: FileId, name: &Name, lease: Lease) -> Option<Vec<u8>> {
        let (before, slash): (&[u8], &[u8]) = match (dir, self.dirs.get(&dir)) {
            (FileId::ROOT, _) => (b"", b""),
            (_, Some((path, seen))) if seen.is_same_tree(lease) => {
                (path, if path.ends_with(b"/") { b"" } else { b"/" })
            }
            _ => return None,
        };
        Some([before, slash, name.as_bytes()].concat())
    }
}

/// A path from the root that can be cached, without leading slashes.
fn plain(path: &[u8]) -> Option<&[u8]> {
    let start = path.iter().position(|&byte| byte != b'/')?;
    let path = &path[start..];
    let dots = path.starts_with(b".") || path.windows(2).any(|pair| pair == b"/.");
    (!dots && path.len() <= LONGEST).then_some(path)
}

impl NameCache {
    /// Opens the epochs file beside the queue of the connection; `None` if the server has none.
    pub(crate) fn beside(queue: &Path) -> Option<NameCache> {
        let file = File::open(queue.with_file_name(EPOCHS_NAME)).ok()?;
        let epochs = EpochReader::open(&file).ok()?;
        Some(NameCache { epochs, known: Mutex::default() })
    }

    /// Locks the cache, but never blocks: a signal handler may have interrupted the thread that holds the lock. Without
    /// the cache, the caller sends a request, which is always correct.
    fn lock(&self) -> Option<MutexGuard<'_, Known>> {
        for _ in 0..LOOKS {
            match self.known.try_lock() {
                Ok(known) => return Some(known),
                Err(TryLockError::Poisoned(known)) => return Some(known.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    /// Caches the result of a request that came with a lease.
    pub(crate) fn learn(&self, request: &Request, reply: &Reply, lease: Lease) {
        match (request, reply) {
            (Request::Walk { dir: FileId::ROOT, path, .. }, Reply::Found(attr)) => {
                if let (Some(path), Some(mut known)) = (plain(path), self.lock()) {
                    known.keep(path.to_vec(), attr, lease);
                }
            }
            (Request::Create { dir, name, .. }, Reply::Opened { attr, .. }) => {
                let Some(mut known) = self.lock() else { return };
                let path = known.path_of(*dir, name, lease);
                if let Some(path) = path.filter(|path| plain(path).is_some()) {
                    known.keep(path, attr, lease);
                }
            }
            _ => {}
        }
    }

    fn find<T>(&self, path: &[u8], take: impl FnOnce(&Attr, Lease) -> Option<T>) -> Option<T> {
        let path = plain(path)?;
        let known = self.lock()?;
        let (attr, lease) = known.generations.iter().find_map(|paths| paths.get(path))?;
        take(attr, *lease)
    }

    /// Attributes of the file at a path. A symbolic link in the last component is no hit if it has to be followed.
    pub(crate) fn attr(&self, path: &[u8], follow: bool) -> Option<Attr> {
        self.find(path, |attr, lease| {
            let link = attr.kind == FileKind::Symlink && (follow || path.ends_with(b"/"));
            (!link && self.epochs.stands(lease, attr.id.0)).then(|| attr.clone())
        })
    }

    /// Whether attributes of a file that came with this lease are current.
    pub(crate) fn stands(&self, lease: Lease, file: FileId) -> bool {
        self.epochs.stands(lease, file.0)
    }

    /// The directory at a path. It may have been removed if it was empty; its id is not reused.
    pub(crate) fn dir(&self, path: &[u8]) -> Option<FileId> {
        self.find(path, |attr, lease| {
            (attr.kind == FileKind::Directory && self.epochs.stands_for_tree(lease)).then_some(attr.id)
        })
    }
}
