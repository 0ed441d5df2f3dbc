//! A metadata store whose last used values are in memory: what was read or written lately is not looked for again.
//!
//! **Invariant**: whoever reads a value that was committed finds, from then on, everything that was committed with it; a
//! value is never older than a commit that has returned. While a commit is under way its keys are asked of the store
//! itself, whose reads see all of it or nothing; afterwards all its values appear here at once.

use super::hash::Seeded;
use super::{Batch, Kv, Visit};
use forebay_model::Result;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Values in one generation; two are kept.
const GENERATION: usize = 32 << 10;
/// Longer values are not kept.
const LONGEST: usize = 1024;

/// A store, and what was used of it lately.
pub struct CachedKv<K> {
    inner: K,
    known: RwLock<Known>,
}

type Values = HashMap<Vec<u8>, Option<Vec<u8>>, Seeded>;

#[derive(Default)]
struct Known {
    recent: Values,
    older: Values,
    /// Keys of commits that are under way.
    changing: HashMap<Vec<u8>, Changing, Seeded>,
    /// Counts beginnings and ends of commits: what was read across one may be too old.
    changes: u64,
}

/// A key that is being changed.
struct Changing {
    /// By so many commits.
    by: u32,
    /// There was more than one at once: nobody here knows which of them was the later.
    contended: bool,
}

/// What is known of a key.
enum Found {
    Value(Option<Vec<u8>>),
    /// It was not used for a while.
    Older(Option<Vec<u8>>),
    /// Nothing; to be remembered if there are still so many changes.
    Nothing(u64),
    /// It is being changed.
    Changing,
}

impl Known {
    fn find(&self, key: &[u8]) -> Found {
        if !self.changing.is_empty() && self.changing.contains_key(key) {
            return Found::Changing;
        }
        if let Some(value) = self.recent.get(key) {
            return Found::Value(value.clone());
        }
        match self.older.get(key) {
            Some(value) => Found::Older(value.clone()),
            None => Found::Nothing(self.changes),
        }
    }

    fn put(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.older.remove(&key);
        if value.as_ref().is_some_and(|value| value.len() > LONGEST) {
            self.recent.remove(&key);
            return;
        }
        if self.recent.len() >= GENERATION {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key, value);
    }

    fn forget(&mut self, key: &[u8]) {
        self.recent.remove(key);
        self.older.remove(key);
    }

    fn begin(&mut self, key: &[u8]) {
        match self.changing.get_mut(key) {
            Some(changing) => {
                changing.by += 1;
                changing.contended = true;
            }
            None => drop(self.changing.insert(key.to_vec(), Changing { by: 1, contended: false })),
        }
    }

    /// Whether no other commit changed the key meanwhile.
    fn end(&mut self, key: &[u8]) -> bool {
        match self.changing.get_mut(key) {
            Some(changing) if changing.by > 1 => {
                changing.by -= 1;
                false
            }
            _ => self.changing.remove(key).is_none_or(|changing| !changing.contended),
        }
    }
}

impl<K: Kv> CachedKv<K> {
    /// Keeps what is used of a store.
    pub fn new(inner: K) -> CachedKv<K> {
        CachedKv { inner, known: RwLock::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kv> Kv for CachedKv<K> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.read().find(key);
        match found {
            Found::Value(value) => Ok(value),
            Found::Older(value) => {
                let mut known = self.write();
                // What is used stays.
                if let Found::Older(value) = known.find(key) {
                    known.put(key.to_vec(), value);
                }
                Ok(value)
            }
            Found::Changing => self.inner.get(key),
            Found::Nothing(changes) => {
                let value = self.inner.get(key)?;
                let mut known = self.write();
                if known.changes == changes {
                    known.put(key.to_vec(), value.clone());
                }
                Ok(value)
            }
        }
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<()> {
        self.inner.scan(prefix, from, visit)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        {
            let mut known = self.write();
            known.changes += 1;
            batch.changes.iter().for_each(|(key, _)| known.begin(key));
        }
        let done = self.inner.commit_copy(&batch);
        let mut known = self.write();
        known.changes += 1;
        for (key, value) in batch.changes {
            // What a failed one has done is not known here.
            match known.end(&key) && done.is_ok() {
                true => known.put(key, value),
                false => known.forget(&key),
            }
        }
        done
    }

    fn commit_copy(&self, batch: &Batch) -> Result<()> {
        self.commit(batch.clone())
    }

    fn rest(&self) -> Result<()> {
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
    use std::sync::Arc;

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

    fn get(kv: &dyn Kv, key: &str) -> Option<String> {
        kv.get(key.as_bytes()).unwrap().map(|value| String::from_utf8(value).unwrap())
    }

    #[test]
    fn what_was_committed_is_read_whatever_was_read_before() {
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
        assert_eq!((get(&kv, "a"), kv.read().recent.contains_key("a".as_bytes())), (Some(long), false));
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_used_stays() {
        let kv = CachedKv::new(MemoryKv::default());
        kv.commit(put(&[("used", Some("1"))])).unwrap();
        for number in 0..3 * GENERATION {
            get(&kv, &number.to_string());
            if number % 1000 == 0 {
                assert_eq!(get(&kv, "used").as_deref(), Some("1"));
                assert!(kv.read().recent.contains_key("used".as_bytes()), "{number}");
            }
        }
        let known = kv.read();
        assert!(known.recent.len() <= GENERATION && known.older.len() <= GENERATION);
    }

    #[test]
    fn of_commits_at_the_same_time_the_store_knows_the_later() {
        let kv = CachedKv::new(MemoryKv::default());
        let mut known = kv.write();
        known.put(b"a".to_vec(), None);
        known.begin(b"a");
        known.begin(b"a");
        assert!(!known.end(b"a") && matches!(known.find(b"a"), Found::Changing));
        assert!(!known.end(b"a") && known.changing.is_empty());
        known.begin(b"a");
        assert!(known.end(b"a"));
    }

    #[test]
    fn after_a_failure_the_store_is_asked() {
        let inner = MemoryKv::default();
        inner.commit(put(&[("a", Some("1"))])).unwrap();
        inner.fail(Fault::Commit, 1, ErrorKind::NoSpace.into());
        let kv = CachedKv::new(inner);
        assert_eq!(get(&kv, "a").as_deref(), Some("1"));
        kv.commit(put(&[("a", Some("2"))])).unwrap_err();
        assert!(!kv.read().recent.contains_key("a".as_bytes()) && kv.read().changing.is_empty());
        assert_eq!(get(&kv, "a").as_deref(), Some("1"));
    }

    #[test]
    fn readers_of_pairs_that_change_together_never_see_one_of_them_go_back() {
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
            for round in 1..=2000 {
                let text = round.to_string();
                kv.commit(put(&[("a", Some(&text)), ("b", Some(&text))])).unwrap();
                assert_eq!((number("a"), number("b")), (round, round));
            }
        });
    }
}
