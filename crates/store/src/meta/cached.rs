//! A metadata store with a cache of the values used last.
//!
//! **Invariant**: after a reader gets a committed value, it gets everything that was committed with it; a value is
//! never older than a commit that has returned. During a commit, its keys are read from the inner store, whose reads
//! see all of it or nothing. That goes on after the commit has returned, until `tidy` moves all its values into the
//! cache at once.

use super::empty_prefixes::EmptyPrefixes;
use super::hash::{Hashed, Seeded};
use super::{Batch, Kv, Look, Visit};
use forebay_model::Result;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The cache has this many sets of this many entries; the hash of a key chooses its set.
const SETS: usize = 16 << 10;
const WAYS: usize = 4;
/// Longer values are not cached.
const LONGEST: usize = 1024;

/// A store with a cache.
pub struct CachedKv<K> {
    inner: K,
    known: RwLock<Known>,
}

struct Known {
    hashing: Seeded,
    /// In each set the oldest entries are evicted first, unless they were used.
    sets: Vec<[Option<Kept>; WAYS]>,
    /// Hashes of keys of commits in progress.
    changing: HashMap<u64, Changing, Hashed>,
    /// Counts the start and end of every commit: a value read across one may be stale.
    changes: u64,
    /// Commits that have returned, and whose keys are still read from the inner store.
    late: Vec<Arc<Batch>>,
    empty_prefixes: EmptyPrefixes,
}

/// A cached value.
struct Kept {
    hash: u64,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    /// Used since it was last considered for eviction.
    used: AtomicBool,
}

/// A key that is being changed, or another key with the same hash.
struct Changing {
    /// The number of commits that change it.
    by: u32,
    /// Several commits changed it at once: the cache does not know which was later.
    contended: bool,
}

/// The result of a cache lookup.
enum Found<'a> {
    Value(Option<&'a [u8]>),
    /// Not cached; the value may be cached if the change counter is still the same.
    Nothing(u64),
    /// The key is being changed.
    Changing,
}

impl Kept {
    fn is(&self, hash: u64, key: &[u8]) -> bool {
        self.hash == hash && self.key == key
    }
}

impl Default for Known {
    fn default() -> Known {
        let sets = std::iter::repeat_with(Default::default).take(SETS).collect();
        let (hashing, changing) = (Seeded::default(), HashMap::default());
        Known {
            hashing,
            sets,
            changing,
            changes: 0,
            late: Vec::new(),
            empty_prefixes: EmptyPrefixes::default(),
        }
    }
}

impl Known {
    fn hash(&self, key: &[u8]) -> u64 {
        self.hashing.hash_one(key)
    }

    fn find(&self, key: &[u8]) -> Found<'_> {
        let hash = self.hash(key);
        if !self.changing.is_empty() && self.changing.contains_key(&hash) {
            return Found::Changing;
        }
        if self.empty_prefixes.lacks(key, hash) {
            return Found::Value(None);
        }
        match self.sets[hash as usize % SETS].iter().flatten().find(|kept| kept.is(hash, key)) {
            Some(kept) => {
                if !kept.used.load(Ordering::Relaxed) {
                    kept.used.store(true, Ordering::Relaxed);
                }
                Found::Value(kept.value.as_deref())
            }
            None => Found::Nothing(self.changes),
        }
    }

    fn put(&mut self, hash: u64, key: Vec<u8>, value: Option<Vec<u8>>) {
        if value.as_ref().is_some_and(|value| value.len() > LONGEST) {
            return self.forget(hash, &key);
        }
        let set = &mut self.sets[hash as usize % SETS];
        let own = set.iter().position(|kept| kept.as_ref().is_none_or(|kept| kept.is(hash, &key)));
        let goes = own.unwrap_or_else(|| {
            let spared = |kept: &mut Option<Kept>| {
                kept.as_mut().is_some_and(|kept| std::mem::take(kept.used.get_mut()))
            };
            set.iter_mut().position(|kept| !spared(kept)).unwrap_or(0)
        });
        if own.is_none() {
            set[goes..].rotate_left(1);
        }
        let place = if own.is_none() { WAYS - 1 } else { goes };
        set[place] = Some(Kept { hash, key, value, used: AtomicBool::new(false) });
    }

    fn forget(&mut self, hash: u64, key: &[u8]) {
        let set = &mut self.sets[hash as usize % SETS];
        if let Some(at) = set.iter().position(|kept| kept.as_ref().is_some_and(|kept| kept.is(hash, key))) {
            set[at] = None;
            // Empty entries come after all others.
            set[at..].rotate_left(1);
        }
    }

    fn begin(&mut self, key: &[u8]) {
        let hash = self.hash(key);
        self.empty_prefixes.put(key, hash);
        let changing = self.changing.entry(hash).or_insert(Changing { by: 0, contended: false });
        changing.by += 1;
        changing.contended |= changing.by > 1;
    }

    /// Moves the values of finished commits into the cache.
    fn tidy(&mut self) {
        for batch in std::mem::take(&mut self.late) {
            for (key, value) in Arc::unwrap_or_clone(batch).changes {
                let hash = self.hash(&key);
                match self.end(hash) {
                    true => self.put(hash, key, value),
                    false => self.forget(hash, &key),
                }
            }
        }
    }

    /// Ends one change of a key; true if no other commit changed it meanwhile.
    fn end(&mut self, hash: u64) -> bool {
        match self.changing.get_mut(&hash) {
            Some(changing) if changing.by > 1 => {
                changing.by -= 1;
                false
            }
            _ => self.changing.remove(&hash).is_none_or(|changing| !changing.contended),
        }
    }
}

impl<K: Kv> CachedKv<K> {
    /// Adds a cache to a store.
    pub fn new(inner: K) -> CachedKv<K> {
        CachedKv { inner, known: RwLock::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write()
    }
}

impl<K: Kv> Kv for CachedKv<K> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = None;
        self.view(key, &mut |found| value = found.map(<[u8]>::to_vec))?;
        Ok(value)
    }

    fn view(&self, key: &[u8], look: Look<'_>) -> Result<()> {
        let remember = match self.read().find(key) {
            Found::Value(value) => {
                look(value);
                return Ok(());
            }
            Found::Changing => None,
            Found::Nothing(changes) => Some(changes),
        };
        let value = self.inner.get(key)?;
        look(value.as_deref());
        if let Some(changes) = remember {
            let mut known = self.write();
            if known.changes == changes {
                let hash = known.hash(key);
                known.put(hash, key.to_vec(), value);
            }
        }
        Ok(())
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<()> {
        self.inner.scan(prefix, from, visit)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.commit_shared(&Arc::new(batch))
    }

    fn commit_shared(&self, batch: &Arc<Batch>) -> Result<()> {
        {
            let mut known = self.write();
            known.tidy();
            known.changes += 1;
            batch.changes.iter().for_each(|(key, _)| known.begin(key));
        }
        let done = self.inner.commit_shared(batch);
        let mut known = self.write();
        known.changes += 1;
        match done {
            Ok(()) => known.late.push(batch.clone()),
            // A failed commit may have had any effect.
            Err(_) => batch.changes.iter().for_each(|(key, _)| {
                let hash = known.hash(key);
                known.end(hash);
                known.forget(hash, key);
            }),
        }
        done
    }

    fn tidy(&self) {
        // When the inner store has dropped the batch, it need not be copied.
        self.inner.tidy();
        if !self.read().late.is_empty() {
            self.write().tidy();
        }
    }

    fn begins(&self, prefix: &[u8]) {
        self.write().empty_prefixes.begins(prefix);
    }

    fn rest(&self) -> Result<()> {
        self.tidy();
        self.inner.rest()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, MemoryKv};
    use super::*;
    use forebay_model::ErrorKind;

    fn put(pairs: &[(&str, Option<&str>)]) -> Batch {
        let mut batch = Batch::default();
        for (key, value) in pairs {
            match value {
                Some(value) => batch.put(*key, *value),
                None => batch.remove(*key),
            }
        }
        batch
    }

    fn is_kept(kv: &CachedKv<MemoryKv>, key: &str) -> bool {
        let known = kv.read();
        known.sets.iter().flatten().flatten().any(|kept| kept.key == key.as_bytes())
    }

    fn get(kv: &dyn Kv, key: &str) -> Option<String> {
        kv.get(key.as_bytes()).unwrap().map(|value| String::from_utf8(value).unwrap())
    }

    #[test]
    fn committed_values_replace_cached_ones() {
        let kv = CachedKv::new(MemoryKv::default());
        assert_eq!(get(&kv, "a"), None);
        kv.commit(put(&[("a", Some("1")), ("b", Some("2")), ("a", Some("3"))])).unwrap();
        assert_eq!(
            (get(&kv, "a"), get(&kv, "b")),
            (Some("3".into()), Some("2".into())),
            "the last one counts"
        );
        kv.commit(put(&[("a", None)])).unwrap();
        assert_eq!((get(&kv, "a"), get(&kv, "b")), (None, Some("2".into())));
        let long = "x".repeat(LONGEST + 1);
        kv.commit(put(&[("a", Some(&long))])).unwrap();
        kv.tidy();
        assert_eq!((get(&kv, "a"), is_kept(&kv, "a")), (Some(long), false));
    }

    #[test]
    fn committed_keys_bypass_the_cache_until_tidy() {
        let kv = CachedKv::new(MemoryKv::default());
        for (round, tidies) in [(1, false), (2, true), (3, false)] {
            let (one, other) = (format!("{round}a"), format!("{round}b"));
            kv.commit(put(&[("a", Some(&one)), ("gone", None)])).unwrap();
            // Bypasses the cache: found only if the inner store is read.
            kv.inner.commit(put(&[("a", Some(&other))])).unwrap();
            assert_eq!(get(&kv, "a"), Some(other));
            if tidies {
                kv.tidy();
                assert_eq!((get(&kv, "a"), get(&kv, "gone")), (Some(one), None));
                assert!(is_kept(&kv, "a") && is_kept(&kv, "gone") && kv.read().changing.is_empty());
            }
        }
    }

    #[test]
    fn cache_is_bounded_and_keeps_used_entries() {
        let kv = CachedKv::new(MemoryKv::default());
        kv.commit(put(&[("used", Some("1"))])).unwrap();
        kv.tidy();
        for number in 0..3 * SETS * WAYS {
            get(&kv, &number.to_string());
            if number % 1000 == 0 {
                assert!(is_kept(&kv, "used"), "{number}");
            }
            // Read each time: an entry that is considered for eviction twice without being used is evicted.
            assert_eq!(get(&kv, "used").as_deref(), Some("1"));
        }
        let kept = kv.read().sets.iter().flatten().flatten().count();
        assert!((SETS * WAYS * 9 / 10..=SETS * WAYS).contains(&kept), "{kept}");
        assert!(!is_kept(&kv, "0"), "an unused entry is evicted");
    }

    /// Every key in turn is put, removed, set to a value too long to cache, or dropped.
    #[test]
    fn cache_set_has_no_duplicate_keys_and_no_gaps() {
        let kv = CachedKv::new(MemoryKv::default());
        let long = "x".repeat(LONGEST + 1);
        for round in 0..4 {
            for number in 0..2000_usize {
                let key = (number % 97).to_string();
                let value = match (number + round) % 4 {
                    0 => None,
                    1 => Some(long.as_str()),
                    _ => Some("1"),
                };
                kv.commit(put(&[(&key, value)])).unwrap();
                assert_eq!(get(&kv, &key).as_deref(), value);
            }
        }
        kv.tidy();
        let known = kv.read();
        for set in &known.sets {
            let keys: Vec<&[u8]> = set.iter().flatten().map(|kept| kept.key.as_slice()).collect();
            assert!(set.iter().skip(keys.len()).all(Option::is_none));
            assert!((0..keys.len()).all(|at| !keys[..at].contains(&keys[at])));
        }
    }

    #[test]
    fn concurrent_commits_of_a_key_are_not_cached() {
        let kv = CachedKv::new(MemoryKv::default());
        let mut known = kv.write();
        let hash = known.hash(b"a");
        known.put(hash, b"a".to_vec(), None);
        known.begin(b"a");
        known.begin(b"a");
        assert!(!known.end(hash) && matches!(known.find(b"a"), Found::Changing));
        assert!(!known.end(hash) && known.changing.is_empty());
        known.begin(b"a");
        assert!(known.end(hash));
    }

    /// Below an empty prefix only keys put since are looked up, even if they were removed.
    #[test]
    fn keys_below_an_empty_prefix_are_not_looked_up() {
        let kv = CachedKv::new(MemoryKv::default());
        let key = |text: &str| format!("e12345678{text}");
        // Bypasses the cache: found only if the inner store is read.
        kv.inner.commit(put(&[(&key("a"), Some("1")), (&key("b"), Some("2"))])).unwrap();
        kv.begins(key("").as_bytes());
        assert_eq!(get(&kv, &key("a")), None);
        kv.commit(put(&[(&key("b"), None), (&key("c"), Some("3"))])).unwrap();
        assert_eq!((get(&kv, &key("b")), get(&kv, &key("c")).as_deref()), (None, Some("3")));
        kv.inner.commit(put(&[(&key("b"), Some("4"))])).unwrap();
        let hash = kv.read().hash(key("b").as_bytes());
        kv.write().forget(hash, key("b").as_bytes());
        assert_eq!(get(&kv, &key("b")).as_deref(), Some("4"), "it was put once");
        assert_eq!(get(&kv, &key("a")), None);
        assert_eq!(get(&kv, "e1234567"), None);
    }

    #[test]
    fn failed_commit_drops_its_keys_from_the_cache() {
        let inner = MemoryKv::default();
        inner.commit(put(&[("a", Some("1"))])).unwrap();
        inner.fail(Fault::Commit, 1, ErrorKind::NoSpace.into());
        let kv = CachedKv::new(inner);
        assert_eq!(get(&kv, "a").as_deref(), Some("1"));
        kv.commit(put(&[("a", Some("2"))])).unwrap_err();
        assert!(!is_kept(&kv, "a") && kv.read().changing.is_empty());
        assert_eq!(get(&kv, "a").as_deref(), Some("1"));
    }

    #[test]
    fn readers_never_see_part_of_a_batch_go_back() {
        let kv = Arc::new(CachedKv::new(MemoryKv::default()));
        kv.commit(put(&[("a", Some("0")), ("b", Some("0"))])).unwrap();
        let number = |key: &str| get(&*kv, key).unwrap().parse::<u32>().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 2000 {
                        let (a, b) = (number("a"), number("b"));
                        assert!(b >= a && a >= last, "{last} {a} {b}");
                        last = a;
                    }
                });
            }
            scope.spawn(|| {
                while number("a") < 2000 {
                    kv.tidy();
                }
            });
            for round in 1..=2000 {
                let text = round.to_string();
                kv.commit(put(&[("a", Some(&text)), ("b", Some(&text))])).unwrap();
                assert_eq!((number("a"), number("b")), (round, round));
            }
        });
    }
}
