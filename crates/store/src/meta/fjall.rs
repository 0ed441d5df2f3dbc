//! The metadata store on disk: one fjall database, one keyspace.
//!
//! A batch counts when it is in the log ahead of the tree ([`ahead`](super::ahead)); the tree gets many at once, or all
//! that there are before it is scanned or synced. What the tree does not have yet is read from memory. fjall writes every
//! batch to its journal before it applies it. With `PersistMode::Buffer` the journal's buffer is handed to the operating
//! system before the log begins anew, so that a killed process loses nothing it acknowledged; `PersistMode::SyncAll` makes
//! the journal durable. All reads go through snapshots, because a bare read sees a batch that is being applied in part.

use super::ahead::{self, Log, Mark};
use super::flush::Flusher;
use super::hash::Seeded;
use super::tops::{self, Tops};
use super::{Batch, HEAD, Head, Kv, Visit, archives, quiet};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use forebay_model::{Bytes, Error, ErrorKind, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const KEYSPACE: &str = "meta";
/// fjall writes this file last when it makes a database.
const MARKER: &str = "version";
/// The share of the cache argument that goes to one memtable; fjall keeps up to five.
const MEMTABLE_SHARE: u64 = 8;
const MIN_MEMTABLE: u64 = 1 << 20;
const MAX_JOURNALS: u64 = 256 << 20;
const OPEN_TABLES: usize = 64;
/// Changes that are looked through one by one, and those that the log may soon hold.
const FEW: usize = 16;
const MANY: usize = 14_000;
/// What a change takes in the log beside its key and value, at most.
const EACH: usize = 8;

/// An ordered, crash-safe map in a directory.
pub struct FjallKv {
    dir: PathBuf,
    database: Database,
    keyspace: Keyspace,
    flusher: Flusher,
    log: Mutex<Log>,
    /// What the log held when nobody was there the last time.
    rested: Mutex<Option<Mark>>,
    ahead: RwLock<Ahead>,
}

/// What is known without asking the tree.
#[derive(Default)]
struct Ahead {
    /// What is in the log, as far as nothing later in it changes it.
    changes: HashMap<Vec<u8>, Option<Vec<u8>>, Seeded>,
    /// With what those keys begin that are long enough.
    heads: HashSet<Head, Seeded>,
    tops: Tops,
    /// The last batch of the log, if it is not among the changes yet.
    late: Option<Arc<Batch>>,
}

impl Ahead {
    fn put(&mut self, key: &[u8], value: Option<&[u8]>) {
        match (self.changes.get_mut(key), value) {
            // It has room for the next one already.
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

    /// Puts the last batch among the changes.
    fn tidy(&mut self) {
        if let Some(batch) = self.late.take() {
            batch.changes().for_each(|(key, value)| self.put(key, value));
        }
    }

    /// What is known of a key: its value, or that it is not there.
    fn find(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let late = self.late.as_ref().and_then(|batch| batch.find(key));
        late.or_else(|| self.changes.get(key).map(Option::as_deref))
    }

    /// Whether there may be keys that begin like this.
    fn may_have(&self, prefix: &[u8]) -> bool {
        match prefix.first_chunk::<HEAD>() {
            Some(head) => self.heads.contains(head),
            None => self.changes.keys().any(|key| key.starts_with(prefix)),
        }
    }

    /// Takes everything out, and expects as much again.
    fn take(&mut self) -> HashMap<Vec<u8>, Option<Vec<u8>>, Seeded> {
        self.heads.clear();
        let room = self.changes.len().max(MANY);
        let next = HashMap::with_capacity_and_hasher(room, self.changes.hasher().clone());
        std::mem::replace(&mut self.changes, next)
    }
}

impl FjallKv {
    /// Makes an empty store in a directory that has none. `cache` bounds what is kept in memory.
    pub fn create(dir: &Path, cache: Bytes) -> Result<FjallKv> {
        if holds_database(dir)? {
            let text = format!("cannot make a metadata store in {}: it holds one already", dir.display());
            return Err(Error::new(ErrorKind::BadStore, text));
        }
        let kv = FjallKv::start(dir, cache)?;
        // The keyspace itself is a record: without this an empty store could be lost with the machine.
        kv.sync()?;
        Ok(kv)
    }

    /// Opens the store in a directory, and recovers it if need be. `cache` bounds what is kept in memory.
    pub fn open(dir: &Path, cache: Bytes) -> Result<FjallKv> {
        if !holds_database(dir)? {
            let text = format!(
                "cannot open the metadata store in {}: there is none (file \"{MARKER}\" is missing); \
                 restore the directory, or make a new store",
                dir.display()
            );
            return Err(Error::new(ErrorKind::BadStore, text));
        }
        let overlong =
            archives::overlong(dir).map_err(|cause| explain(dir, "open", &fjall::Error::Io(cause)))?;
        if let Some(file) = overlong {
            let how = format!("the table of contents of {}", file.display());
            return Err(Error::new(ErrorKind::BadStore, failed(dir, "open", &damaged(&how))));
        }
        FjallKv::start(dir, cache)
    }

    fn start(dir: &Path, cache: Bytes) -> Result<FjallKv> {
        let (database, keyspace) = guarded(dir, "open", || {
            let database = Database::builder(dir)
                .cache_size(cache.0)
                .max_cached_files(Some(OPEN_TABLES))
                .max_journaling_size(MAX_JOURNALS)
                // Two workers hand a compaction to each other in a busy loop; one does all we need.
                .worker_threads(1)
                .open()?;
            let memtable = (cache.0 / MEMTABLE_SHARE).max(MIN_MEMTABLE);
            let options = || KeyspaceCreateOptions::default().max_memtable_size(memtable);
            let keyspace = database.keyspace(KEYSPACE, options)?;
            Ok((database, keyspace))
        })?;
        let log = take_over(dir, &database, &keyspace)?;
        let tops = find_tops(dir, &database, &keyspace)?;
        // A burst is not to wait while it grows.
        let changes = HashMap::with_capacity_and_hasher(MANY, Seeded::default());
        let ahead = RwLock::new(Ahead { changes, tops, ..Ahead::default() });
        let flusher = Flusher::default();
        let (log, rested) = (Mutex::new(log), Mutex::default());
        Ok(FjallKv { dir: dir.to_owned(), database, keyspace, flusher, log, rested, ahead })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ahead(&self) -> RwLockReadGuard<'_, Ahead> {
        self.ahead.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_ahead(&self) -> RwLockWriteGuard<'_, Ahead> {
        self.ahead.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts everything that is in the log into the tree.
    fn catch_up(&self, log: &mut Log) -> Result<()> {
        self.tidy();
        if self.ahead().changes.is_empty() {
            return Ok(());
        }
        let had = {
            let mut ahead = self.change_ahead();
            let Ahead { changes, tops, .. } = &mut *ahead;
            let had = tops.clone();
            // Before the tree has it: whoever asks finds it here or there.
            changes.iter().filter(|(_, value)| value.is_some()).for_each(|(key, _)| tops.raise(key));
            had
        };
        {
            let ahead = self.ahead();
            // What came and went since the last time was never there.
            let stays = ahead.changes.iter().filter(|(key, value)| value.is_some() || had.may_have(key));
            let mut changes: Vec<_> = stays.map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
            // Neighbours in the tree one after the other.
            changes.sort_unstable();
            put(&self.dir, &self.database, &self.keyspace, changes.into_iter(), log.mark())?;
        }
        // Only now that it is in the tree.
        let done = self.change_ahead().take();
        log.clear();
        // Nobody waits for its memory.
        drop(done);
        Ok(())
    }
}

/// Takes over what an earlier life has left in the log, and begins one of this life.
fn take_over(dir: &Path, database: &Database, keyspace: &Keyspace) -> Result<Log> {
    let log_failed = |cause: io::Error| explain(dir, "open", &fjall::Error::Io(cause));
    let mark = guarded(dir, "read", || database.snapshot().get(keyspace, ahead::KEY))?;
    let left = match mark.as_deref().and_then(Mark::decode) {
        Some(mark) => ahead::left(dir, mark).map_err(log_failed)?,
        None => Vec::new(),
    };
    let mut life = [0; 8];
    getrandom::fill(&mut life)
        .map_err(|error| Error::new(ErrorKind::Io, format!("the system gives no random numbers: {error}")))?;
    let log = Log::begin(dir, u64::from_le_bytes(life)).map_err(log_failed)?;
    let changes: BTreeMap<_, _> = left.into_iter().flat_map(|batch| batch.changes).collect();
    let changes = changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()));
    put(dir, database, keyspace, changes, log.mark())?;
    Ok(log)
}

/// The largest keys in the tree.
fn find_tops(dir: &Path, database: &Database, keyspace: &Keyspace) -> Result<Tops> {
    let mut found = Tops::default();
    let snapshot = database.snapshot();
    for letter in tops::letters() {
        let last = guarded(dir, "read", || {
            let last = snapshot.prefix(keyspace, [letter]).next_back();
            last.map(fjall::Guard::into_inner).transpose()
        })?;
        last.iter().for_each(|(key, _)| found.raise(key));
    }
    Ok(found)
}

fn encoded(batch: &Batch) -> Result<Vec<u8>> {
    let bytes = |(key, value): (&[u8], Option<&[u8]>)| key.len() + value.map_or(0, <[u8]>::len) + EACH;
    let room = Vec::with_capacity(EACH + batch.changes().map(bytes).sum::<usize>());
    postcard::to_extend(batch, room)
        .map_err(|error| Error::new(ErrorKind::Io, format!("a batch cannot be written down: {error}")))
}

/// Makes changes of different keys in the tree, all of them or none, and notes how much of the log it has.
fn put<'a>(
    dir: &Path,
    database: &Database,
    keyspace: &Keyspace,
    changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    mark: Mark,
) -> Result<()> {
    guarded(dir, "write", || {
        let mut writes = database.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in changes {
            match value {
                Some(value) => writes.insert(keyspace, key, value),
                None => writes.remove(keyspace, key),
            }
        }
        writes.insert(keyspace, ahead::KEY, mark.encode());
        writes.commit()
    })
}

impl Kv for FjallKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        {
            let ahead = self.ahead();
            if let Some(value) = ahead.find(key) {
                return Ok(value.map(<[u8]>::to_vec));
            }
            if !ahead.tops.may_have(key) {
                return Ok(None);
            }
        }
        guarded(&self.dir, "read", || {
            let value = self.database.snapshot().get(&self.keyspace, key)?;
            Ok(value.map(|value| value.to_vec()))
        })
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<()> {
        self.tidy();
        if self.ahead().may_have(prefix) {
            self.catch_up(&mut self.log())?;
        }
        let start = Bound::Included(prefix.max(from).to_vec());
        let end = after_prefix(prefix);
        let mut pairs =
            guarded(&self.dir, "read", || Ok(self.database.snapshot().range(&self.keyspace, (start, end))))?;
        while let Some((key, value)) =
            guarded(&self.dir, "read", || pairs.next().map(fjall::Guard::into_inner).transpose())?
        {
            if key != ahead::KEY && visit(&key, &value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
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
            // Within one batch fjall gives no order to two changes of a key: only the last one goes in.
            let changes: BTreeMap<_, _> = batch.changes.iter().map(|(key, value)| (key, value)).collect();
            {
                let tops = &mut self.change_ahead().tops;
                changes.keys().for_each(|key| tops.raise(key));
            }
            let changes = changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()));
            let done = put(&self.dir, &self.database, &self.keyspace, changes, log.next());
            match done {
                Ok(()) => log.pass(),
                // Nobody knows whether the tree has it: what follows is taken over in either case.
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
        let before =
            std::mem::replace(&mut *self.rested.lock().unwrap_or_else(PoisonError::into_inner), mark);
        match before == mark && log.is_worth_emptying() {
            true => self.catch_up(&mut log),
            false => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        self.catch_up(&mut self.log())?;
        self.flusher.flush(|| guarded(&self.dir, "flush", || self.database.persist(PersistMode::SyncAll)))
    }
}

/// Whether fjall would recover a database here rather than make one.
fn holds_database(dir: &Path) -> Result<bool> {
    dir.join(MARKER).try_exists().map_err(|cause| explain(dir, "open", &fjall::Error::Io(cause)))
}

/// The first key behind all keys with a prefix.
fn after_prefix(prefix: &[u8]) -> Bound<Vec<u8>> {
    let Some(last) = prefix.iter().rposition(|&byte| byte != u8::MAX) else { return Bound::Unbounded };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Bound::Excluded(end)
}

/// Runs something of fjall. Its locks refuse further writes after a panic.
fn guarded<T>(dir: &Path, doing: &str, run: impl FnOnce() -> fjall::Result<T>) -> Result<T> {
    match quiet::run(run) {
        Ok(result) => result.map_err(|cause| explain(dir, doing, &cause)),
        Err(said) => Err(Error::new(ErrorKind::BadStore, failed(dir, doing, &damaged(&said)))),
    }
}

fn damaged(how: &str) -> String {
    format!("its files are damaged ({how}): restore them from a copy, or make a new store")
}

fn failed(dir: &Path, doing: &str, why: &str) -> String {
    format!("cannot {doing} the metadata store in {}: {why}", dir.display())
}

fn explain(dir: &Path, doing: &str, cause: &fjall::Error) -> Error {
    let (kind, why) = match cause {
        fjall::Error::Io(cause) | fjall::Error::Storage(fjall::LsmError::Io(cause)) => explain_io(cause),
        fjall::Error::Locked => {
            (ErrorKind::BadStore, "another process has it open: stop that server first".to_owned())
        }
        // A worker of fjall's may have met the damage, with nobody to tell.
        fjall::Error::Poisoned => match quiet::last() {
            Some(said) => (ErrorKind::BadStore, damaged(&said)),
            None => (
                ErrorKind::Io,
                "an earlier write failed, so it takes no more: see the first error, then restart the server"
                    .to_owned(),
            ),
        },
        fjall::Error::InvalidVersion(_) => (
            ErrorKind::BadStore,
            "it has a format of another version: use the program that made it".to_owned(),
        ),
        other => (ErrorKind::BadStore, damaged(&format!("{other:?}"))),
    };
    Error::new(kind, failed(dir, doing, &why))
}

fn explain_io(cause: &io::Error) -> (ErrorKind, String) {
    use io::ErrorKind as Io;
    match cause.kind() {
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => {
            (ErrorKind::NoSpace, format!("{cause}: free space on that file system, then restart the server"))
        }
        Io::PermissionDenied | Io::ReadOnlyFilesystem | Io::NotFound | Io::NotADirectory => {
            (ErrorKind::BadStore, format!("{cause}: check the directory and its owner"))
        }
        Io::AlreadyExists | Io::UnexpectedEof | Io::InvalidData | Io::InvalidInput => (
            ErrorKind::BadStore,
            format!("its files are damaged or incomplete ({cause}): restore them, or make a new store"),
        ),
        _ => (ErrorKind::Io, format!("{cause}: check the disk")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_emptied_while_nobody_commits() {
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
        assert!(waits(), "it is not worth it");
        (1..100).for_each(commit);
        kv.rest().unwrap();
        assert!(waits(), "somebody was there");
        kv.rest().unwrap();
        assert!(!waits());
        (0..100_u32)
            .for_each(|number| assert_eq!(kv.get(&number.to_be_bytes()).unwrap(), Some(vec![7; 1000])));
    }

    #[test]
    fn the_last_batch_counts_wherever_it_is() {
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
    fn what_came_and_went_is_not_there_and_what_was_there_goes() {
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
        // Whether the tree has it before, whether it comes or goes then, time after time; those in front and behind.
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
                let there = kv.get(key.as_bytes()).unwrap().is_some();
                assert_eq!(there, then.ends_with(&[true]), "{key}");
            }
        };
        check(&kv);
        kv.sync().unwrap();
        check(&kv);
        drop(kv);
        check(&FjallKv::open(dir.path(), Bytes::mib(1)).unwrap());
    }

    #[test]
    fn the_end_of_a_prefix() {
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
