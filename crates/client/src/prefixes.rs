//! Remembered paths of directories. They are only hints: the server verifies them on every use.

use forebay_model::{FileId, lock};
use forebay_wire::Known;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// Number of paths in a generation. Two generations are kept.
const GENERATION: usize = 2048;
/// Longer paths are not cached.
const LONGEST: usize = 1024;

/// Directories by path from the root: names separated by single slashes.
#[derive(Default)]
pub(crate) struct Prefixes {
    generations: Mutex<[HashMap<Vec<u8>, FileId>; 2]>,
}

impl Prefixes {
    fn lock(&self) -> MutexGuard<'_, [HashMap<Vec<u8>, FileId>; 2]> {
        lock(&self.generations)
    }

    pub(crate) fn learn(&self, path: &[u8], dir: FileId) {
        if path.is_empty() || path.len() > LONGEST {
            return;
        }
        let mut generations = self.lock();
        if generations[0].len() >= GENERATION {
            generations.swap(0, 1);
            generations[0].clear();
        }
        generations[0].insert(path.to_vec(), dir);
    }

    pub(crate) fn forget(&self, path: &[u8]) {
        for generation in self.lock().iter_mut() {
            generation.remove(path);
        }
    }

    /// The directory at a normalized path.
    pub(crate) fn whole(&self, path: &[u8]) -> Option<FileId> {
        let found = {
            let generations = self.lock();
            match generations[0].get(path) {
                Some(dir) => return Some(*dir),
                None => generations[1].get(path).copied(),
            }
        };
        // Move a used entry to the current generation.
        found.inspect(|dir| self.learn(path, *dir))
    }

    /// The deepest known directory on a normalized path, not counting the last component.
    pub(crate) fn on_the_way(&self, path: &[u8]) -> Option<Known> {
        let mut end = path.strip_suffix(b"/").unwrap_or(path).len();
        while let Some(slash) = path[..end].iter().rposition(|&byte| byte == b'/') {
            if let Some(dir) = self.whole(&path[..slash]) {
                return Some(Known { len: u16::try_from(slash).ok()?, dir });
            }
            end = slash;
        }
        None
    }
}

/// Normalizes a path from the root: single slashes, no leading one. `None` if it contains `.` or `..`.
pub(crate) fn tidy(path: &[u8]) -> Option<Vec<u8>> {
    let mut tidy = Vec::with_capacity(path.len());
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        if part == b"." || part == b".." {
            return None;
        }
        if !tidy.is_empty() {
            tidy.push(b'/');
        }
        tidy.extend_from_slice(part);
    }
    if path.ends_with(b"/") && !tidy.is_empty() {
        tidy.push(b'/');
    }
    Some(tidy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized() {
        for (path, expected) in [
            ("/a/b", Some("a/b")),
            ("a//b///c", Some("a/b/c")),
            ("///a/", Some("a/")),
            ("/", Some("")),
            ("", Some("")),
            ("/a/./b", None),
            ("/a/..", None),
            ("/...", Some("...")),
        ] {
            assert_eq!(tidy(path.as_bytes()).as_deref(), expected.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn longest_known_prefix_is_found() {
        let prefixes = Prefixes::default();
        prefixes.learn(b"a", FileId(10));
        prefixes.learn(b"a/b", FileId(11));
        prefixes.learn(b"a/b/c", FileId(12));
        for (path, expected) in [
            ("a/b/c/d", Some((5, 12))),
            ("a/b/c/", Some((3, 11))),
            ("a/b/c", Some((3, 11))),
            ("a/x/y/z", Some((1, 10))),
            ("a", None),
            ("x/y", None),
            ("", None),
        ] {
            let found = prefixes.on_the_way(path.as_bytes()).map(|known| (known.len, known.dir.0));
            assert_eq!(found, expected, "{path}");
        }
        prefixes.forget(b"a/b");
        assert_eq!(prefixes.on_the_way(b"a/b/x").map(|known| known.len), Some(1));
    }

    #[test]
    fn used_prefixes_stay_and_the_cache_is_bounded() {
        let prefixes = Prefixes::default();
        prefixes.learn(b"used", FileId(1));
        for number in 0..20 * GENERATION {
            prefixes.learn(format!("d{number}").as_bytes(), FileId(2));
            if number % 100 == 0 {
                assert_eq!(prefixes.whole(b"used"), Some(FileId(1)), "{number}");
            }
        }
        let kept: usize = prefixes.lock().iter().map(HashMap::len).sum();
        assert!(kept <= 2 * GENERATION, "{kept}");
        assert_eq!(prefixes.whole(b"d0"), None);
    }
}
