//! The metadata store on disk: a tree and the log ahead of it.
//!
//! A batch is committed when it is in the log ([`ahead`](super::ahead)). The [tree](super::tree) gets many batches at
//! once, or all before a scan or sync. Changes that are not in the tree yet are read from memory. fjall writes every
//! batch to its journal before it applies it. With `PersistMode::Buffer` the journal's buffer is handed to the
//! operating system before the log is cleared, so that a killed process loses nothing it acknowledged;
//! `PersistMode::SyncAll` makes the journal durable. All reads use snapshots, because a plain read sees a partly
//! applied batch.

use super::ahead::{self, Log, Mark};
use super::flush::Flusher;
use super::hash::Seeded;
use super::last_keys::{self, LastKeys};
use super::tree::{Change, MARKER, Pairs, Tree, damaged_tree, holds_database, io_failed};
use super::{Batch, HEAD, Head, Kv, Visit, archives};
use forebay_model::{Bytes, Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

/// Largest batch that is searched linearly, and the initial capacity for the changes of a log.
const FEW: usize = 16;
const MANY: usize = 14_000;
/// Upper bound of the bytes that a change takes in the log beside its key and value.
const EACH: usize = 8;

/// An ordered, crash-safe map in a directory.
pub struct FjallKv {
    tree: Tree,
    flusher: Flusher,
    log: Mutex<Log>,
    /// The end of the log at the last call of [`Kv::rest`].
    rested: Mutex<Option<Mark>>,
    ahead: RwLock<Ahead>,
}

/// What is known without reading the tree.
#[derive(Default)]
struct Ahead {
    /// The changes in the log, only the last one of each key.
    changes: HashMap<Vec<u8>, Option<Vec<u8>>, Seeded>,
    /// The prefixes of those keys that are long enough.
    heads: HashSet<Head, Seeded>,
    last_keys: LastKeys,
    /// The last batch of the log, if it is not merged into `changes` yet.
    late: Option<Arc<Batch>>,
}

impl Ahead {
    fn put(&mut self, key: &[u8], value: Option<&[u8]>) {
        match (self.changes.get_mut(key), value) {
            // Reuses the buffer.
            (Some(Some(before)), Some(value)) => {
                before.clear();
                before.extend_from_slice(value);
            }
            (Some(before), value) => *before = value.map(<[u8]>::to_vec),
            (None, value) => {
                if let Some(head) = key.first_chunk() {
                    self.heads.insert(*head);
                }
                self.changes.insert(key.to_vec(), value.map(<[u8]>::to_vec));
            }
        }
    }

    /// Merges the last batch into `changes`.
    fn tidy(&mut self) {
        if let Some(batch) = self.late.take() {
            batch.changes().for_each(|(key, value)| self.put(key, value));
        }
    }

    /// The pending change of a key: a value or a removal.
    fn find(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let late = self.late.as_ref().and_then(|batch| batch.find(key));
        late.or_else(|| self.changes.get(key).map(Option::as_deref))
    }

    /// Whether any pending key may have this prefix.
    fn may_have(&self, prefix: &[u8]) -> bool {
        match prefix.first_chunk::<HEAD>() {
            Some(head) => self.heads.contains(head),
            None => self.changes.keys().any(|key| key.starts_with(prefix)),
        }
    }

    /// Takes out all changes, and reserves capacity for as many again.
    fn take(&mut self) -> HashMap<Vec<u8>, Option<Vec<u8>>, Seeded> {
        self.heads.clear();
        let capacity = self.changes.len().max(MANY);
        let next = HashMap::with_capacity_and_hasher(capacity, self.changes.hasher().clone());
        std::mem::replace(&mut self.changes, next)
    }
}

impl FjallKv {
    /// Creates an empty store in a directory that has none. `cache` bounds the memory of caches.
    pub fn create(dir: &Path, cache: Bytes) -> Result<FjallKv> {
        if holds_database(dir)? {
            let text = format!("cannot create a metadata store in {}: it holds one already", dir.display());
            return Err(Error::new(ErrorKind::BadStore, text));
        }
        let kv = FjallKv::start(dir, cache)?;
        // The keyspace itself is a record: without this an empty store could be lost with the machine.
        kv.sync()?;
        Ok(kv)
    }

    /// Opens the store in a directory, and recovers it if necessary. `cache` bounds the memory of caches.
    pub fn open(dir: &Path, cache: Bytes) -> Result<FjallKv> {
        if !holds_database(dir)? {
            let text = format!(
                "cannot open the metadata store in {}: there is none (file \"{MARKER}\" is missing); \
                 restore the directory, or create a new store",
                dir.display()
            );
            return Err(Error::new(ErrorKind::BadStore, text));
        }
        let overlong = archives::overlong(dir).map_err(|cause| io_failed(dir, &cause))?;
        if let Some(file) = overlong {
            return Err(damaged_tree(dir, &format!("the table of contents of {}", file.display())));
        }
        FjallKv::start(dir, cache)
    }

    fn start(dir: &Path, cache: Bytes) -> Result<FjallKv> {
        let tree = Tree::open(dir, cache)?;
        let log = replay_log(dir, &tree)?;
        let last_keys = find_last_keys(&tree)?;
        // Preallocated, so that a burst does not wait for the map to grow.
        let changes = HashMap::with_capacity_and_hasher(MANY, Seeded::default());
        let ahead = RwLock::new(Ahead { changes, last_keys, ..Ahead::default() });
        let flusher = Flusher::default();
        let (log, rested) = (Mutex::new(log), Mutex::default());
        Ok(FjallKv { tree, flusher, log, rested, ahead })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }

    fn ahead(&self) -> RwLockReadGuard<'_, Ahead> {
        self.ahead.read()
    }

    fn change_ahead(&self) -> RwLockWriteGuard<'_, Ahead> {
        self.ahead.write()
    }

    /// Applies everything in the log to the tree.
    fn catch_up(&self, log: &mut Log) -> Result<()> {
        self.tidy();
        if self.ahead().changes.is_empty() {
            return Ok(());
        }
        let had = {
            let mut ahead = self.change_ahead();
            let Ahead { changes, last_keys, .. } = &mut *ahead;
            let had = last_keys.clone();
            // Raised before the tree has the keys: a reader must find them in memory or in the tree.
            changes.iter().filter(|(_, value)| value.is_some()).for_each(|(key, _)| last_keys.raise(key));
            had
        };
        {
            let ahead = self.ahead();
            // Drops removals of keys that the tree never had.
            let stays = ahead.changes.iter().filter(|(key, value)| value.is_some() || had.may_have(key));
            let mut changes: Vec<_> = stays.map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
            // Sorted, so that neighbours in the tree are written one after the other.
            changes.sort_unstable();
            put(&self.tree, changes, log.mark())?;
        }
        // Only now that the tree has the changes.
        let done = self.change_ahead().take();
        log.clear();
        // Freed after the lock on `ahead` is released.
        drop(done);
        Ok(())
    }
}

/// Applies to the tree what an earlier run left in the log, and starts the log of this run.
fn replay_log(dir: &Path, tree: &Tree) -> Result<Log> {
    let left = match tree.get(ahead::KEY)?.as_deref().and_then(Mark::decode) {
        Some(mark) => ahead::unapplied(dir, mark).map_err(|cause| io_failed(dir, &cause))?,
        None => Vec::new(),
    };
    let mut run = [0; 8];
    getrandom::fill(&mut run)
        .map_err(|error| Error::new(ErrorKind::Io, format!("the system gives no random numbers: {error}")))?;
    let log = Log::begin(dir, u64::from_le_bytes(run)).map_err(|cause| io_failed(dir, &cause))?;
    let changes: BTreeMap<_, _> = left.into_iter().flat_map(|batch| batch.changes).collect();
    let changes = changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
    put(tree, changes, log.mark())?;
    Ok(log)
}

/// The largest key of each kind in the tree.
fn find_last_keys(tree: &Tree) -> Result<LastKeys> {
    let mut found = LastKeys::default();
    for letter in last_keys::letters() {
        tree.last(letter)?.iter().for_each(|key| found.raise(key));
    }
    Ok(found)
}

fn encoded(batch: &Batch) -> Result<Vec<u8>> {
    let bytes = |(key, value): (&[u8], Option<&[u8]>)| key.len() + value.map_or(0, <[u8]>::len) + EACH;
    let buffer = Vec::with_capacity(EACH + batch.changes().map(bytes).sum::<usize>());
    postcard::to_extend(batch, buffer)
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot encode a metadata batch: {error}")))
}

/// Applies changes of distinct keys to the tree, all or none, together with the mark of the log.
fn put(tree: &Tree, changes: Vec<Change<'_>>, mark: Mark) -> Result<()> {
    let mark = mark.encode();
    // Shortens the lifetime to that of the mark.
    let mut changes: Vec<Change<'_>> = changes;
    changes.push((ahead::KEY, Some(&mark)));
    tree.put(&changes)
}

/// Visits the pairs of a tree merged with the changes that it does not have yet.
fn show_both(mut pairs: Pairs, later: BTreeMap<Vec<u8>, Option<Vec<u8>>>, visit: Visit<'_>) -> Result<()> {
    let (mut later, mut current) = (later.into_iter().peekable(), pairs.next()?);
    loop {
        let comes = |(key, _): &(Vec<u8>, Option<Vec<u8>>)| {
            current.as_ref().is_none_or(|(own, _)| key[..] <= own[..])
        };
        let goes_on = match later.next_if(comes) {
            Some((key, value)) => {
                if current.as_ref().is_some_and(|(own, _)| own[..] == key[..]) {
                    current = pairs.next()?;
                }
                value.map_or(ControlFlow::Continue(()), |value| visit(&key, &value))
            }
            None => match current.take() {
                Some((key, value)) => {
                    current = pairs.next()?;
                    if *key == *ahead::KEY { ControlFlow::Continue(()) } else { visit(&key, &value) }
                }
                None => return Ok(()),
            },
        };
        if goes_on == ControlFlow::Break(()) {
            return Ok(());
        }
    }
}

impl Kv for FjallKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        {
            let ahead = self.ahead();
            if let Some(value) = ahead.find(key) {
                return Ok(value.map(<[u8]>::to_vec));
            }
            if !ahead.last_keys.may_have(key) {
                return Ok(None);
            }
        }
        self.tree.get(key)
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<()> {
        self.tidy();
        let start = prefix.max(from).to_vec();
        let range = (Bound::Included(start.clone()), after_prefix(prefix));
        let mut ahead = BTreeMap::new();
        let pairs = if self.ahead().may_have(prefix) {
            let mut log = self.log();
            if self.catch_up(&mut log).is_err() {
                // The tree refuses writes. While the log is locked, neither changes.
                let known = self.ahead();
                let within =
                    known.changes.iter().filter(|(key, _)| key.starts_with(prefix) && **key >= start);
                ahead.extend(within.map(|(key, value)| (key.clone(), value.clone())));
            }
            self.tree.pairs(range)?
        } else {
            self.tree.pairs(range)?
        };
        show_both(pairs, ahead, visit)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.commit_shared(&Arc::new(batch))
    }

    fn commit_shared(&self, batch: &Arc<Batch>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let record = encoded(batch)?;
        let mut log = self.log();
        if Log::is_too_large(&record) {
            self.catch_up(&mut log)?;
            // Within one batch fjall does not order two changes of a key: only the last one is passed on.
            let changes: BTreeMap<_, _> = batch.changes.iter().map(|(key, value)| (key, value)).collect();
            {
                let last_keys = &mut self.change_ahead().last_keys;
                changes.keys().for_each(|key| last_keys.raise(key));
            }
            let changes = changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
            let done = put(&self.tree, changes, log.next());
            match done {
                Ok(()) => log.pass(),
                // The tree may or may not have the batch: an empty record keeps the numbers in sequence in either case.
                Err(_) => log.append(&encoded(&Batch::default())?),
            }
            return done;
        }
        if !log.has_room(&record) {
            self.catch_up(&mut log)?;
        }
        log.append(&record);
        let mut ahead = self.change_ahead();
        ahead.tidy();
        ahead.late = Some(batch.clone());
        if batch.changes.len() > FEW {
            ahead.tidy();
        }
        Ok(())
    }

    fn tidy(&self) {
        if self.ahead().late.is_some() {
            self.change_ahead().tidy();
        }
    }

    fn rest(&self) -> Result<()> {
        let mut log = self.log();
        let mark = Some(log.mark());
        let before = std::mem::replace(&mut *self.rested.lock(), mark);
        match before == mark && log.is_worth_emptying() {
            true => self.catch_up(&mut log),
            false => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        self.catch_up(&mut self.log())?;
        self.flusher.flush(|| self.tree.persist())
    }
}

/// The upper bound of all keys with a prefix.
fn after_prefix(prefix: &[u8]) -> Bound<Vec<u8>> {
    let Some(last) = prefix.iter().rposition(|&byte| byte != u8::MAX) else { return Bound::Unbounded };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Bound::Excluded(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_store_empties_its_log_into_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let kv = FjallKv::create(dir.path(), Bytes::mib(1)).unwrap();
        let commit = |number: u32| {
            let mut batch = Batch::default();
            batch.put(number.to_be_bytes(), vec![7; 1000]);
            kv.commit(batch).unwrap();
        };
        let waits = || {
            kv.tidy();
            !kv.ahead().changes.is_empty()
        };
        commit(0);
        (0..3).for_each(|_| kv.rest().unwrap());
        assert!(waits(), "too little to be worth it");
        (1..100).for_each(commit);
        kv.rest().unwrap();
        assert!(waits(), "there were commits since the last call");
        kv.rest().unwrap();
        assert!(!waits());
        (0..100_u32)
            .for_each(|number| assert_eq!(kv.get(&number.to_be_bytes()).unwrap(), Some(vec![7; 1000])));
    }

    #[test]
    fn last_batch_is_visible_before_and_after_it_is_merged() {
        let dir = tempfile::tempdir().unwrap();
        let kv = FjallKv::create(dir.path(), Bytes::mib(1)).unwrap();
        let ways: [fn(&FjallKv); 4] = [
            |_| (),
            FjallKv::tidy,
            |kv| kv.sync().unwrap(),
            |kv| {
                let mut many = Batch::default();
                (0..=FEW as u8).for_each(|number| many.remove([number]));
                kv.commit(many).unwrap();
            },
        ];
        for (round, way) in ways.into_iter().enumerate() {
            let value = |key: &str| kv.get(key.as_bytes()).unwrap();
            let mut batch = Batch::default();
            batch.put("stays", vec![round as u8]);
            batch.put("twice", "first");
            batch.put("twice", "last");
            batch.put("goes", "x");
            kv.commit(batch).unwrap();
            let mut batch = Batch::default();
            batch.remove("goes");
            kv.commit(batch).unwrap();
            way(&kv);
            assert_eq!((value("stays"), value("goes")), (Some(vec![round as u8]), None), "round {round}");
            assert_eq!(value("twice"), Some(b"last".to_vec()));
            let mut listed = Vec::new();
            kv.scan(b"", b"", &mut |key, _| {
                listed.push(key.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(listed, [&b"stays"[..], b"twice"], "round {round}");
        }
    }

    #[test]
    fn keys_put_and_removed_before_the_tree_has_them_are_absent() {
        let dir = tempfile::tempdir().unwrap();
        let kv = FjallKv::create(dir.path(), Bytes::mib(1)).unwrap();
        let change = |key: &str, comes: bool| {
            let mut batch = Batch::default();
            if comes {
                batch.put(key, "x");
            } else {
                batch.remove(key);
            }
            kv.commit(batch).unwrap();
        };
        // Whether the tree has the key before, then puts (true) and removals (false) in order.
        let cases: [(&str, bool, &[bool]); 8] = [
            ("i1", false, &[true, false]),
            ("i2", true, &[false]),
            ("i3", true, &[false, true]),
            ("i4", true, &[true, false]),
            ("i5", false, &[true, false, true]),
            ("i6", false, &[true, false]),
            ("i7", false, &[false]),
            ("o", false, &[true, false]),
        ];
        cases.iter().filter(|(_, before, _)| *before).for_each(|(key, ..)| change(key, true));
        kv.sync().unwrap();
        cases.iter().for_each(|(key, _, then)| then.iter().for_each(|comes| change(key, *comes)));
        let check = |kv: &FjallKv| {
            for (key, _, then) in cases {
                let exists = kv.get(key.as_bytes()).unwrap().is_some();
                assert_eq!(exists, then.ends_with(&[true]), "{key}");
            }
        };
        check(&kv);
        kv.sync().unwrap();
        check(&kv);
        drop(kv);
        check(&FjallKv::open(dir.path(), Bytes::mib(1)).unwrap());
    }

    #[test]
    fn upper_bound_of_a_prefix() {
        for (prefix, end) in [
            (&b"ab"[..], Bound::Excluded(b"ac".to_vec())),
            (b"a\xff", Bound::Excluded(b"b".to_vec())),
            (b"\xff\xff", Bound::Unbounded),
            (b"", Bound::Unbounded),
        ] {
            assert_eq!(after_prefix(prefix), end, "{prefix:?}");
        }
    }
}
