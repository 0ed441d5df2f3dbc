//! What paths led to, for as long as nothing on their way or at their end has changed: the server says so in shared memory,
//! before anybody can see the change.
//!
//! Only paths are here that lead from the root through directories to what they name, without a link, and only for this
//! process itself: not for those on whose behalf it asks.

use forebay_model::{Attr, FileId, FileKind, Name};
use forebay_shm::{EPOCHS_NAME, Lease, Told};
use forebay_wire::{Reply, Request};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Paths in one generation; two are kept.
const GENERATION: usize = 8192;
/// Longer paths are not worth their memory.
const LONGEST: usize = 512;
/// How often the lock is tried.
const LOOKS: u32 = 100;
/// Directories whose paths are known.
const MOST_DIRS: usize = 512;

/// What one life of a server has told one connection.
pub(crate) struct Seen {
    told: Told,
    known: Mutex<Known>,
}

/// What paths led to. Who adds to it comes to a new page seldom: the map is small, and what it leads to lies in a row.
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
    /// Where directories are.
    dirs: HashMap<FileId, (Vec<u8>, Lease)>,
}

impl Default for Known {
    fn default() -> Known {
        // One that grows has to be copied each time.
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

    /// The path of a name in a directory that was where it was seen when something was leased.
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

/// A path from the root that can be remembered, without slashes in front.
fn plain(path: &[u8]) -> Option<&[u8]> {
    let start = path.iter().position(|&byte| byte != b'/')?;
    let path = &path[start..];
    let dots = path.starts_with(b".") || path.windows(2).any(|pair| pair == b"/.");
    (!dots && path.len() <= LONGEST).then_some(path)
}

impl Seen {
    /// Beside the queue of the connection; `None` if the server tells nothing there.
    pub(crate) fn beside(queue: &Path) -> Option<Seen> {
        let file = File::open(queue.with_file_name(EPOCHS_NAME)).ok()?;
        let told = Told::open(&file).ok()?;
        Some(Seen { told, known: Mutex::default() })
    }

    /// What is known, unless somebody else looks at it for longer than that takes: asking the server is always right, and
    /// nobody ever waits here, not even a signal handler that has interrupted somebody who looks.
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

    /// Remembers what came of a request, if it came with a lease.
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

    /// What a path leads to; `follow`ing a link in its last place, if there was one.
    pub(crate) fn attr(&self, path: &[u8], follow: bool) -> Option<Attr> {
        self.find(path, |attr, lease| {
            let link = attr.kind == FileKind::Symlink && (follow || path.ends_with(b"/"));
            (!link && self.told.stands(lease, attr.id.0)).then(|| attr.clone())
        })
    }

    /// The directory that a path leads to. It may be gone by now, if it was empty: then its number is nobody's.
    pub(crate) fn dir(&self, path: &[u8]) -> Option<FileId> {
        self.find(path, |attr, lease| {
            (attr.kind == FileKind::Directory && self.told.stands_for_tree(lease)).then_some(attr.id)
        })
    }
}
