//! Helpers shared by the tests.

use forebay_model::{
    Attr, Error, ErrorKind, FileId, Gid, Identity, Incarnation, Layout, Name, Result, ServerId, Stamp, Uid,
};
use forebay_store::{Batch, Inode, Kv, MemoryKv, Names, Root, Timeline, Visit, Walked};
use forebay_testkit::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const SERVER: ServerId = ServerId(0);
pub(crate) const ROOT: FileId = FileId::ROOT;

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

pub(crate) fn layout() -> Layout {
    Layout { servers: vec![SERVER], stripe: 4 << 20 }
}

pub(crate) fn user(uid: u32, gid: u32, groups: &[u32]) -> Identity {
    Identity { uid: Uid(uid), gid: Gid(gid), groups: groups.iter().copied().map(Gid).collect() }
}

/// A fresh namespace in memory whose root is writable by all users.
pub(crate) fn fresh() -> World {
    let kv = Arc::new(MemoryKv::new());
    Names::format(&*kv, SERVER, Some(open_root()), Stamp(1)).expect("an empty store can be formatted");
    World { names: open(kv.clone()), kv, now: AtomicU64::new(1000) }
}

/// A root directory writable by all users.
pub(crate) fn open_root() -> Root {
    Root { owner: (Uid(0), Gid(0)), mode: 0o777 }
}

pub(crate) fn open(kv: Arc<dyn Kv>) -> Names {
    Names::open(kv, SERVER).expect("a sound store opens")
}

/// A store with random delays, so that threads race between two reads.
pub(crate) struct Jittery<K> {
    inner: K,
    calls: AtomicU64,
}

impl<K> Jittery<K> {
    pub(crate) fn new(inner: K) -> Jittery<K> {
        Jittery { inner, calls: AtomicU64::new(0) }
    }

    fn wait(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        match Rng::new(call).below(4) {
            0 => std::thread::sleep(std::time::Duration::from_micros(call % 64)),
            1 => std::thread::yield_now(),
            _ => {}
        }
    }
}

impl<K: Kv> Kv for Jittery<K> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.wait();
        self.inner.get(key)
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<()> {
        self.wait();
        self.inner.scan(prefix, from, visit)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.wait();
        self.inner.commit(batch)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
}

/// A namespace with a clock that ticks at every use, and access by path.
pub(crate) struct World {
    pub(crate) kv: Arc<MemoryKv>,
    pub(crate) names: Names,
    now: AtomicU64,
}

impl World {
    pub(crate) fn now(&self) -> Stamp {
        Stamp(self.now.fetch_add(1_000_000_007, Ordering::Relaxed))
    }

    /// The file at a path; links are not followed.
    pub(crate) fn at(&self, path: &str) -> Result<(FileId, Inode)> {
        match self.names.walk(&Identity::root(), ROOT, path.as_bytes(), false)? {
            Walked::Found(id, inode) => Ok((id, *inode)),
            Walked::Link { .. } => Err(Error::new(ErrorKind::TooManyLinks, "a link in the path")),
            Walked::At { .. } | Walked::Elsewhere { .. } => {
                Err(Error::new(ErrorKind::Unsupported, "it is on another server"))
            }
        }
    }

    /// The link count that `stat` reports.
    pub(crate) fn links(&self, path: &str) -> u32 {
        self.attr(path).links
    }

    /// The attributes that `stat` reports.
    pub(crate) fn attr(&self, path: &str) -> Attr {
        let (id, inode) = self.at(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        inode.attr(id, &self.names.share(id).expect("readable").into(), &Timeline::default())
    }

    pub(crate) fn id(&self, path: &str) -> FileId {
        self.at(path).unwrap_or_else(|error| panic!("{path}: {error}")).0
    }

    /// The directory and last name of a path.
    pub(crate) fn split(&self, path: &str) -> (FileId, Name) {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        (self.id(dir), name(last))
    }

    pub(crate) fn create(&self, who: &Identity, path: &str, mode: u16) -> Result<(FileId, Inode)> {
        let (dir, last) = self.split(path);
        let (incarnations, before) = (vec![Incarnation(7)], |_| Ok(()));
        let made = self.names.create_file(who, dir, &last, mode, layout(), incarnations, self.now(), before);
        let (file, inode, ()) = made?;
        Ok((file, inode))
    }

    pub(crate) fn make_dir(&self, who: &Identity, path: &str, mode: u16) -> Result<(FileId, Inode)> {
        let (dir, last) = self.split(path);
        Ok(self.names.make_dir(who, dir, &last, mode, self.now())?)
    }

    pub(crate) fn symlink(&self, who: &Identity, path: &str, target: &str) -> Result<(FileId, Inode)> {
        let (dir, last) = self.split(path);
        Ok(self.names.symlink(who, dir, &last, target.as_bytes(), self.now())?)
    }

    /// Runs a script as root: `d PATH MODE`, `f PATH MODE`, `s PATH TARGET`, `l PATH NEW`, each with an optional final
    /// uid and gid: `d dir 755 10:100`.
    pub(crate) fn build(&self, script: &[&str]) {
        for line in script {
            let words: Vec<_> = line.split(' ').collect();
            let mode = |text: &str| u16::from_str_radix(text, 8).expect("an octal mode");
            let root = Identity::root();
            let (path, owner) = (words[1], words.get(3).copied().unwrap_or("0:0"));
            let (id, _) = match words[0] {
                "d" => self.make_dir(&root, path, 0o700),
                "f" => self.create(&root, path, 0o600),
                "s" => self.symlink(&root, path, words[2]),
                other => panic!("unknown command: {other}"),
            }
            .unwrap_or_else(|error| panic!("{line}: {error}"));
            let (uid, gid) = owner.split_once(':').expect("uid:gid");
            let number = |text: &str| text.parse().expect("a number");
            let change = forebay_model::Change {
                uid: Some(Uid(number(uid))),
                gid: Some(Gid(number(gid))),
                mode: (words[0] != "s").then(|| mode(words[2])),
                ..Default::default()
            };
            self.names.set_attr(&root, id, &change, self.now()).expect("root may");
        }
    }

    /// Panics unless the namespace is consistent.
    pub(crate) fn check(&self) {
        assert_eq!(forebay_store::check(&*self.kv), Vec::<String>::new());
    }
}

/// The outcome of a result for tables: `ok` or the kind of error.
pub(crate) fn outcome<T, E: Clone + Into<Error>>(result: &Result<T, E>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{:?}", error.clone().into().kind()),
    }
}
