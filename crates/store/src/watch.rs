//! A metadata store that announces its changes to clients with cached answers, through epochs in shared memory.
//!
//! **Invariant**: before a change of an inode, of a name, or of a directory's entry counts becomes visible, clients
//! that cached the old state can see that it is stale.

use crate::meta::{Batch, Kv, Look, Visit};
use crate::names::{Concern, concern};
use forebay_model::{FileId, Result};
use forebay_shm::Epochs;
use std::sync::{Arc, OnceLock};

/// A store and the epochs to advance when it changes.
pub(crate) struct WatchedKv<K> {
    inner: K,
    epochs: OnceLock<Arc<Epochs>>,
}

/// The objects that a batch is about to change.
struct Changing<'a> {
    epochs: &'a Epochs,
    files: Vec<FileId>,
    tree: bool,
}

impl<'a> Changing<'a> {
    fn begin(epochs: &'a Epochs, batch: &Batch) -> Changing<'a> {
        let mut changing = Changing { epochs, files: Vec::with_capacity(4), tree: false };
        for Concern { file, tree } in batch.changes().filter_map(|(key, value)| concern(key, value)) {
            changing.tree |= tree;
            if !changing.files.contains(&file) {
                changing.files.push(file);
            }
        }
        changing.files.iter().for_each(|file| epochs.begin_file(file.0));
        if changing.tree {
            epochs.begin_tree();
        }
        changing
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.files.iter().for_each(|file| self.epochs.done_file(file.0));
        if self.tree {
            self.epochs.done_tree();
        }
    }
}

impl<K: Kv> WatchedKv<K> {
    pub(crate) fn new(inner: K) -> WatchedKv<K> {
        WatchedKv { inner, epochs: OnceLock::new() }
    }

    /// Sets the epochs to advance at every change. Must be called before the first change that clients may have cached.
    pub(crate) fn notify(&self, epochs: Arc<Epochs>) {
        self.epochs.get_or_init(|| epochs);
    }

    fn begin(&self, batch: &Batch) -> Option<Changing<'_>> {
        self.epochs.get().map(|epochs| Changing::begin(epochs, batch))
    }
}

impl<K: Kv> Kv for WatchedKv<K> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.get(key)
    }

    fn view(&self, key: &[u8], look: Look<'_>) -> Result<()> {
        self.inner.view(key, look)
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<()> {
        self.inner.scan(prefix, from, visit)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        let _changing = self.begin(&batch);
        self.inner.commit(batch)
    }

    fn commit_shared(&self, batch: &Arc<Batch>) -> Result<()> {
        let _changing = self.begin(batch);
        self.inner.commit_shared(batch)
    }

    fn tidy(&self) {
        self.inner.tidy();
    }

    fn begins(&self, prefix: &[u8]) {
        self.inner.begins(prefix);
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
    use super::*;
    use crate::meta::MemoryKv;
    use crate::names::{Names, Root};
    use forebay_model::{
        Change, Gid, Identity, Incarnation, Layout, Name, RenameMode, ServerId, Stamp, Uid, XattrMode,
    };
    use forebay_shm::{EPOCHS_BYTES, EpochReader};

    struct World {
        names: Names,
        epochs: Arc<Epochs>,
        reader: EpochReader,
        who: Identity,
    }

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    impl World {
        fn new() -> World {
            let file = tempfile::tempfile().unwrap();
            file.set_len(EPOCHS_BYTES).unwrap();
            let epochs = Arc::new(Epochs::create(&file, 9).unwrap());
            let kv = Arc::new(WatchedKv::new(MemoryKv::default()));
            let root = Root { owner: (Uid(0), Gid(0)), mode: 0o755 };
            Names::format(&*kv, ServerId(1), Some(root), Stamp(1)).unwrap();
            kv.notify(epochs.clone());
            let names = Names::open(kv, ServerId(1)).unwrap();
            let who = Identity { uid: Uid(0), gid: Gid(0), groups: Vec::new() };
            World { names, epochs, reader: EpochReader::open(&file).unwrap(), who }
        }

        fn file(&self, dir: FileId, text: &str) -> FileId {
            let (layout, incarnations) = (Layout::whole(ServerId(1), 4 << 20), vec![Incarnation(1)]);
            let before = |_| Ok(());
            let made = self.names.create_file(
                &self.who,
                dir,
                &name(text),
                0o644,
                layout,
                incarnations,
                Stamp(2),
                before,
            );
            made.unwrap().0
        }

        fn shift(&self, from: (FileId, &str), to: (FileId, &str), mode: RenameMode) {
            let names = &self.names;
            let moved = names.rename(&self.who, from.0, &name(from.1), to.0, &name(to.1), mode, Stamp(3));
            moved.unwrap();
        }

        fn dir(&self, dir: FileId, text: &str) -> FileId {
            self.names.make_dir(&self.who, dir, &name(text), 0o755, Stamp(2)).unwrap().0
        }
    }

    /// Whether an operation ends the leases on the directory `d`, its files `f` and `g`, and on the paths to them.
    #[test]
    fn changes_end_the_leases_of_changed_objects_only() {
        type Operation = fn(&World, [FileId; 3]);
        let root = FileId::ROOT;
        let cases: [(&str, Operation, [bool; 4]); 13] = [
            // Is the lease still valid for: d, f, g, paths?
            ("nothing", |_, _| {}, [true; 4]),
            ("a name beside", |world, [d, ..]| _ = world.file(d, "h"), [false, true, true, true]),
            ("a name elsewhere", |world, _| _ = world.file(FileId::ROOT, "h"), [true; 4]),
            ("a directory elsewhere", |world, _| _ = world.dir(FileId::ROOT, "h"), [true; 4]),
            (
                "a mode",
                |world, [_, f, _]| {
                    let change = Change { mode: Some(0o600), ..Change::default() };
                    world.names.set_attr(&world.who, f, &change, Stamp(3)).unwrap();
                },
                [true, false, true, true],
            ),
            (
                "a mode of the directory",
                |world, [d, ..]| {
                    let change = Change { mode: Some(0o700), ..Change::default() };
                    world.names.set_attr(&world.who, d, &change, Stamp(3)).unwrap();
                },
                [false, true, true, false],
            ),
            (
                "a removal",
                |world, [d, ..]| drop(world.names.unlink(&world.who, d, &name("f"), Stamp(3)).unwrap()),
                [false, false, true, true],
            ),
            (
                "a second name",
                |world, [_, f, _]| {
                    world.names.link(&world.who, f, FileId::ROOT, &name("l"), Stamp(3)).unwrap();
                },
                [true, false, true, true],
            ),
            (
                "a move",
                |world, [d, ..]| {
                    world.shift((d, "f"), (FileId::ROOT, "m"), RenameMode::Replace);
                },
                [false, false, true, true],
            ),
            (
                "a move over another",
                |world, [d, ..]| {
                    world.shift((d, "f"), (d, "g"), RenameMode::Replace);
                },
                [false, false, false, true],
            ),
            (
                "an exchange",
                |world, [d, ..]| {
                    world.shift((d, "f"), (d, "g"), RenameMode::Exchange);
                },
                [false, false, false, true],
            ),
            (
                "a move of the directory",
                |world, _| {
                    world.shift((FileId::ROOT, "d"), (FileId::ROOT, "e"), RenameMode::Replace);
                },
                [false, true, true, false],
            ),
            (
                "an extended attribute",
                |world, [_, f, _]| {
                    let set =
                        world.names.set_xattr(&world.who, f, &name("user.a"), b"1", XattrMode::Any, Stamp(3));
                    set.unwrap();
                },
                [true, false, true, true],
            ),
        ];
        for (case, operation, expected) in cases {
            let world = World::new();
            let d = world.dir(root, "d");
            let files = [d, world.file(d, "f"), world.file(d, "g")];
            let leases = files.map(|file| world.epochs.lease(world.epochs.moment(), file.0).unwrap());
            operation(&world, files);
            let paths = leases.iter().all(|lease| world.reader.stands_for_tree(*lease));
            // The epochs of files alone: if a path changed, its lease is invalid in any case.
            let now = files.map(|file| world.epochs.lease(world.epochs.moment(), file.0).unwrap());
            let same = |at: usize| leases[at].is_same_file(now[at]);
            assert_eq!([same(0), same(1), same(2), paths], expected, "{case}");
        }
    }

    #[test]
    fn failed_commit_ends_its_epoch_change() {
        use crate::meta::Fault;
        use forebay_model::ErrorKind;
        let world = World::new();
        let file = world.file(FileId::ROOT, "f");
        let inner = MemoryKv::default();
        inner.fail(Fault::Commit, 1, ErrorKind::NoSpace.into());
        let kv = WatchedKv::new(inner);
        kv.notify(world.epochs.clone());
        let mut batch = Batch::default();
        batch.put([b"i".as_slice(), &file.0.to_be_bytes()].concat(), b"x".to_vec());
        kv.commit(batch).unwrap_err();
        assert!(world.epochs.lease(world.epochs.moment(), file.0).is_some());
    }
}
