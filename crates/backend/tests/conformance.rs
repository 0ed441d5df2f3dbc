//! Conformance tests of all back ends.

mod support;

use forebay_backend::{Backend, Creation, Dir, Faulty, Layout, Memory, Model, Seen, Slot, Target};
use forebay_model::{ErrorKind, FileKind, Gid, Name, Span, Time, Uid};
use rustix::io::{ReadWriteFlags, preadv2};
use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::Bucket;

fn path(text: &str) -> Vec<Name> {
    text.split('/').filter(|part| !part.is_empty()).map(|part| Name::new(part).unwrap()).collect()
}

fn me() -> (Uid, Gid) {
    (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()))
}

/// A back end.
struct World {
    backend: Arc<dyn Backend>,
    dirs: Vec<tempfile::TempDir>,
}

fn striped(count: usize) -> World {
    let dirs: Vec<_> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
    let paths: Vec<String> = dirs.iter().map(|dir| dir.path().display().to_string()).collect();
    World { backend: forebay_backend::open(&format!("stripes:{}", paths.join(","))).unwrap(), dirs }
}

/// The same with slow targets that other processes could share.
fn modelled(count: usize) -> World {
    let shared = tempfile::tempdir().unwrap();
    let World { backend, mut dirs } = striped(count);
    let name = format!("hdd,slower=0.001,shared={}", shared.path().display());
    dirs.push(shared);
    World { backend: Arc::new(Model::open(&name, backend).unwrap()), dirs }
}

fn dir() -> World {
    let dir = tempfile::tempdir().unwrap();
    let backend = forebay_backend::open(&format!("dir:{}", dir.path().display())).unwrap();
    World { backend, dirs: vec![dir] }
}

fn memory(wrap: impl FnOnce(Memory) -> Arc<dyn Backend>) -> World {
    World { backend: wrap(Memory::default()), dirs: Vec::new() }
}

impl World {
    /// Creates or replaces a file with these bytes.
    fn put(&self, at: &str, bytes: &[u8]) {
        self.backend.unlink(&path(at)).unwrap();
        let creation = Creation { owner: me(), mode: 0o644, stripes: Some((3, 2)) };
        let file = self.backend.create(&path(at), &creation).unwrap();
        let (one, other) = bytes.split_at(bytes.len() / 2);
        file.write_at(0, &[one, b"", other]).unwrap();
        file.sync().unwrap();
    }
}

fn listed(backend: &dyn Backend, dir: &str) -> Vec<String> {
    let mut names = Vec::new();
    backend.list(&path(dir), &mut |name| names.push(name.to_string())).unwrap();
    names.sort();
    names
}

fn bytes(backend: &dyn Backend, file: &str) -> Vec<u8> {
    let object = backend.open(&path(file)).unwrap();
    let mut bytes = vec![0; 100];
    let count = object.read_at(0, &mut bytes).unwrap();
    bytes.truncate(count);
    assert_eq!(object.version().unwrap().size, count as u64);
    bytes
}

/// Names and their entries.
fn conform(world: &World) {
    let backend = &*world.backend;
    let find = |at: &str| backend.find(&path(at)).unwrap();
    assert_eq!(find("a"), None);
    assert_eq!(find("a/b"), None);
    backend.make_dir(&path("d"), me(), 0o751).unwrap();
    backend.make_dir(&path("d"), me(), 0o700).unwrap();
    world.put("d/f", b"hello");
    backend.symlink(&path("l"), b"d/f").unwrap();
    assert_eq!((find("d").unwrap().kind, find("d").unwrap().mode), (FileKind::Directory, 0o751));
    let file = find("d/f").unwrap();
    assert_eq!((file.kind, file.version.size, (file.uid, file.gid)), (FileKind::File, 5, me()));
    assert_eq!((find("l").unwrap().kind, find("l").unwrap().target), (FileKind::Symlink, b"d/f".to_vec()));
    assert_eq!(find("d/f/g"), None, "a file has no children");
    assert_eq!((listed(backend, ""), listed(backend, "d")), (vec!["d".into(), "l".into()], vec!["f".into()]));
    assert_eq!(bytes(backend, "d/f"), b"hello");
    assert_eq!(backend.open(&path("d")).err().unwrap().kind(), ErrorKind::Invalid);
    assert_eq!(backend.open(&path("x")).err().unwrap().kind(), ErrorKind::NotFound);

    let object = backend.open(&path("d/f")).unwrap();
    let mut end = [0; 8];
    assert_eq!(object.read_at(3, &mut end).unwrap(), 2);
    assert_eq!(object.read_at(9, &mut end).unwrap(), 0);
    assert!(backend.truncate(&path("d/f"), 3).unwrap());
    assert_ne!(object.version().unwrap(), file.version);
    assert!(!backend.truncate(&path("d/g"), 3).unwrap());
    assert_eq!(backend.truncate(&path("d"), 3).unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(bytes(backend, "d/f"), b"hel");

    world.put("g", b"replaced");
    assert!(backend.rename(&path("d/f"), &path("g")).unwrap());
    assert_eq!((bytes(backend, "g"), find("d/f")), (b"hel".to_vec(), None));
    assert_eq!(find("g").unwrap().version.serial, file.version.serial, "it is the same file");
    assert!(!backend.rename(&path("d/f"), &path("h")).unwrap());
    assert_eq!(backend.rename(&path("g"), &path("d")).unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(backend.rename(&path("d"), &path("d/e")).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(backend.rename(&path("g"), &path("no/g")).unwrap_err().kind(), ErrorKind::NotFound);
    world.put("d/x", b"x");
    assert!(backend.rename(&path("d"), &path("e")).unwrap());
    assert_eq!(bytes(backend, "e/x"), b"x");

    assert_eq!(backend.unlink(&path("e")).unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(backend.remove_dir(&path("g")).unwrap_err().kind(), ErrorKind::NotDirectory);
    assert_eq!(backend.remove_dir(&path("e")).unwrap_err().kind(), ErrorKind::NotEmpty);
    assert!(backend.unlink(&path("e/x")).unwrap() && !backend.unlink(&path("e/x")).unwrap());
    assert!(backend.remove_dir(&path("e")).unwrap() && !backend.remove_dir(&path("e")).unwrap());
    assert!(backend.unlink(&path("l")).unwrap() && backend.unlink(&path("g")).unwrap());
    assert_eq!(listed(backend, ""), Vec::<String>::new());
}

/// Bytes, attributes and layouts, in an empty tree.
fn write(world: &World) {
    let backend = &*world.backend;
    let creation = Creation { owner: me(), mode: 0o640, stripes: Some((2, 3)) };
    let file = backend.create(&path("w"), &creation).unwrap();
    assert_eq!(backend.create(&path("w"), &creation).err().unwrap().kind(), ErrorKind::Exists);
    assert_eq!(backend.create(&path("no/w"), &creation).err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(backend.find(&path("w")).unwrap().unwrap().mode, 0o640);
    let mut model: Vec<u8> = Vec::new();
    for (offset, parts) in
        [(0, &[&b"abcdefg"[..]][..]), (3, &[b"XY", b"", b"Z"]), (12, &[b"end"]), (1, &[b"12", b"34"])]
    {
        let before = file.version().unwrap();
        file.write_at(offset as u64, parts).unwrap();
        let put = parts.concat();
        model.resize(model.len().max(offset + put.len()), 0);
        model[offset..offset + put.len()].copy_from_slice(&put);
        assert_eq!(bytes(backend, "w"), model);
        assert_eq!(file.version().unwrap().size, model.len() as u64);
        assert_eq!(file.version().unwrap().serial, before.serial);
    }
    file.sync().unwrap();
    for size in [13, 5, 9, 0, 4] {
        assert!(backend.truncate(&path("w"), size).unwrap());
        model.resize(size as usize, 0);
        assert_eq!(bytes(backend, "w"), model, "cut to {size}");
    }
    backend.open_to_write(&path("w")).unwrap().write_at(2, &[b"again"]).unwrap();
    assert_eq!(bytes(backend, "w"), b"\0\0again");
    let layout = backend.layout(&path("w")).unwrap();
    let targets = backend.targets().len() as u32;
    assert!(layout.stripe > 0 && layout.targets.iter().all(|&target| target < targets), "{layout:?}");
    let mtime = Time { secs: 1_000_000, nanos: 7000 };
    backend.set_attr(&path("w"), me(), 0o600, mtime).unwrap();
    let found = backend.find(&path("w")).unwrap().unwrap();
    assert_eq!((found.mode, found.version.mtime), (0o600, mtime));
    assert_eq!(backend.symlink(&path("w"), b"x").unwrap_err().kind(), ErrorKind::Exists);
    assert!(backend.unlink(&path("w")).unwrap());
    assert_eq!(listed(backend, ""), Vec::<String>::new());
}

#[test]
fn every_back_end_conforms() {
    let worlds = [
        dir(),
        striped(1),
        striped(4),
        memory(|memory| Arc::new(memory)),
        memory(|memory| Arc::new(Faulty::new(memory, |_| None))),
        memory(|memory| Arc::new(Model::open("ost,slower=0.001", Arc::new(memory)).unwrap())),
        modelled(4),
    ];
    for world in &worlds {
        conform(world);
        write(world);
    }
}

/// Every call that changes or creates an entry by path leaves a replaced entry unchanged.
fn leaves_replaced_entries_unchanged(world: &World) {
    let backend = &*world.backend;
    backend.make_dir(&path("s"), me(), 0o755).unwrap();
    backend.make_dir(&path("s/d"), me(), 0o755).unwrap();
    world.put("s/f", b"hello");
    let (file, dir, to, super_dir) = (path("s/f"), path("s/d"), path("s/g"), path("s"));
    let serial = |at: &[Name]| backend.find(at).unwrap().unwrap().version.serial;
    let other = |at: &[Name]| serial(at).wrapping_add(1).max(1);
    let wrong = Slot::any(&file).seen(other(&file));
    let wrong_dir = Slot::any(&dir).seen(other(&dir));
    let slot = Slot { path: &to, dir: other(&path("s")) };
    let within = |path| Slot { path, ..slot }.seen(0);
    let creation = Creation { owner: me(), mode: 0o644, stripes: None };
    let (name, mtime) = (Name::new("user.x").unwrap(), Time { secs: 5, nanos: 0 });
    let before = [&file, &dir].map(|at| backend.find(at).unwrap());
    let mut calls = vec![
        ("set_attr", backend.set_attr_of(wrong, me(), 0o600, mtime)),
        ("set_attr of a directory", backend.set_attr_of(wrong_dir, me(), 0o700, mtime)),
        ("truncate", backend.truncate_of(wrong, 1).map(drop)),
        ("unlink", backend.unlink_of(wrong).map(drop)),
        ("remove_dir", backend.remove_dir_of(wrong_dir).map(drop)),
        ("rename", backend.rename_of(wrong, Slot::any(&to), Target::Any).map(drop)),
    ];
    if !backend.name().starts_with("s3") {
        calls.extend([
            ("create", backend.create_at(slot, &creation).map(drop)),
            ("make_dir", backend.make_dir_at(slot, me(), 0o755).map(drop)),
            ("symlink", backend.symlink_at(slot, b"x")),
            ("find", backend.find_at(Slot { path: &file, ..slot }).map(drop)),
            ("list", backend.list_of(slot.dir(), &mut |_| {})),
            ("unlink in", backend.unlink_of(within(&file)).map(drop)),
            ("remove_dir in", backend.remove_dir_of(within(&dir)).map(drop)),
            ("rename in", backend.rename_of(within(&file), Slot::any(&to), Target::Any).map(drop)),
            ("rename to", backend.rename_of(Seen::any(&file), slot, Target::Any).map(drop)),
        ]);
    }
    if backend.set_xattr(&file, &name, b"x").is_ok() {
        calls.push(("set_xattr", backend.set_xattr_of(wrong, &name, b"y")));
    }
    if backend.link(&file, &path("s/second")).is_ok() {
        backend.unlink(&path("s/second")).unwrap();
        calls.push(("link", backend.link_of(wrong, Slot::any(&to))));
        calls.push(("link to", backend.link_of(Seen::any(&file), slot)));
    }
    for (call, done) in calls {
        assert_eq!(done.expect_err(call).kind(), ErrorKind::Stale, "{call} of {}", backend.name());
    }
    let now = |at: &Vec<Name>| backend.find(at).unwrap().map(|found| (found.version, found.mode));
    for (at, before) in [&file, &dir].into_iter().zip(before) {
        assert_eq!(now(at), before.map(|found| (found.version, found.mode)), "{}", backend.name());
    }
    assert_eq!(listed(backend, "s"), ["d", "f"]);
    // With the right serial numbers all calls succeed.
    let in_s = |path| Slot { path, dir: serial(&super_dir) };
    let (right, right_dir) = (in_s(&file).seen(serial(&file)), in_s(&dir).seen(serial(&dir)));
    assert_eq!(backend.find_at(in_s(&file)).unwrap(), backend.find(&file).unwrap());
    // A rename replaces what the caller saw, and nothing else.
    world.put("s/g", b"other");
    for target in [Target::Nothing, Target::Entry(other(&to))] {
        assert!(backend.rename_of(right, in_s(&to), target).is_err());
        assert_eq!(bytes(backend, "s/g"), b"other");
    }
    world.put("s/h", b"moved");
    let (moved, seen) = (path("s/h"), Target::Entry(serial(&to)));
    assert!(backend.rename_of(Seen::any(&moved), in_s(&to), seen).unwrap());
    assert_eq!(bytes(backend, "s/g"), b"moved");
    assert!(backend.unlink(&to).unwrap());
    backend.set_attr_of(right, me(), 0o600, mtime).unwrap();
    assert!(backend.truncate_of(right, 1).unwrap());
    assert!(backend.rename_of(right, in_s(&to), Target::Nothing).unwrap());
    let moved = Seen { path: &to, ..right };
    assert!(backend.unlink_of(moved).unwrap() && backend.remove_dir_of(right_dir).unwrap());
    let made = backend.make_dir_at(in_s(&dir), me(), 0o750).unwrap();
    assert_eq!(made, Some(serial(&dir)));
    assert_eq!(backend.make_dir_at(in_s(&dir), me(), 0o755).unwrap(), None, "it exists");
}

#[test]
fn replaced_entries_are_left_unchanged_by_every_back_end() {
    let worlds = [
        dir(),
        striped(3),
        modelled(3),
        memory(|memory| Arc::new(memory)),
        memory(|memory| Arc::new(Faulty::new(memory, |_| None))),
    ];
    worlds.iter().for_each(leaves_replaced_entries_unchanged);
    if let Some(bucket) = Bucket::new() {
        leaves_replaced_entries_unchanged(&World { backend: Arc::new(bucket.open()), dirs: Vec::new() });
    }
}

#[test]
fn forged_layout_reads_no_data_of_another_file() {
    if !rustix::process::geteuid().is_root() {
        forebay_testkit::skip("a forged layout", "only root can make files of another user");
        return;
    }
    let world = striped(2);
    let creation = |uid| Creation { owner: (Uid(uid), Gid(uid)), mode: 0o600, stripes: None };
    let secret = world.backend.create(&path("hers"), &creation(4001)).unwrap();
    secret.write_at(0, &[b"secret"]).unwrap();
    drop(world.backend.create(&path("his"), &creation(4002)).unwrap());
    let at = |name: &str| world.dirs[0].path().join(name);
    let mut layout = vec![0; 100];
    let len = rustix::fs::getxattr(at("hers"), "user.forebay.layout", layout.as_mut_slice()).unwrap();
    // The owner of a file may do this.
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(at("his"), "user.forebay.layout", &layout[..len], flags).unwrap();
    std::fs::File::options().write(true).open(at("his")).unwrap().set_len(6).unwrap();
    let refused = [
        world.backend.open(&path("his")).map(drop),
        world.backend.open_to_write(&path("his")).map(drop),
        world.backend.truncate(&path("his"), 0).map(drop),
    ];
    for error in refused {
        assert!(error.unwrap_err().to_string().contains("layout of another file"));
    }
    assert!(world.backend.unlink(&path("his")).unwrap());
    assert_eq!(bytes(&*world.backend, "hers"), b"secret");
}

#[test]
fn stripe_set_refuses_an_objects_directory_of_another_user() {
    let dir = tempfile::tempdir().unwrap();
    let squat = dir.path().join(".objects");
    std::fs::create_dir(&squat).unwrap();
    std::fs::write(squat.join("bait"), b"").unwrap();
    std::fs::set_permissions(&squat, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let name = format!("stripes:{}", dir.path().display());
    let error = forebay_backend::open(&name).err().expect("refused");
    assert!(error.to_string().contains(".objects"), "{error}");
    std::fs::remove_dir_all(&squat).unwrap();
    assert!(forebay_backend::open(&name).is_ok() && forebay_backend::open(&name).is_ok());
}

#[test]
fn bucket_conforms() {
    let Some(bucket) = Bucket::new() else { return };
    let world = World { backend: Arc::new(bucket.open()), dirs: Vec::new() };
    conform(&world);
    write(&world);
    assert_eq!(bucket.parts(), 0);
}

/// The rule by which a striped file can be reassembled by hand.
#[test]
fn stripes_are_stored_as_documented() {
    let world = striped(3);
    world.put("f", b"0123456789");
    let dirs: Vec<&Path> = world.dirs.iter().map(tempfile::TempDir::path).collect();
    let mut text = [0; 100];
    let len = rustix::fs::getxattr(dirs[0].join("f"), "user.forebay.layout", &mut text[..]).unwrap();
    let text = String::from_utf8(text[..len].to_vec()).unwrap();
    let (id, rest) = text.split_once(' ').unwrap();
    let words: Vec<usize> = rest.split(' ').map(|word| word.parse().unwrap()).collect();
    let [count, size, first] = words[..] else { panic!("{text}") };
    assert_eq!((count, size), (3, 2));
    let mut whole = Vec::new();
    for stripe in 0..5 {
        let object = dirs[(first + stripe % count) % 3].join(".objects").join(id);
        let bytes = std::fs::read(object).unwrap();
        let at = stripe / count * size;
        whole.extend_from_slice(&bytes[at..(at + size).min(bytes.len())]);
    }
    assert_eq!(whole, b"0123456789");
    let objects =
        || dirs.iter().map(|dir| std::fs::read_dir(dir.join(".objects")).unwrap().count()).sum::<usize>();
    assert_eq!((objects(), world.backend.find(&path(".objects")).unwrap()), (3, None));
    world.put("g", b"other");
    assert!(world.backend.rename(&path("f"), &path("g")).unwrap());
    assert_eq!((objects(), bytes(&*world.backend, "g")), (3, b"0123456789".to_vec()));
    world.backend.unlink(&path("g")).unwrap();
    assert_eq!(objects(), 0);
}

#[test]
fn file_is_created_on_the_requested_targets() {
    let world = striped(4);
    let creation = Creation { owner: me(), mode: 0o644, stripes: None };
    for (name, targets) in [("several", vec![3, 0, 2]), ("one", vec![2])] {
        let asked = Layout { targets, stripe: 4 };
        let object = world.backend.create_on(&path(name), &creation, &asked).unwrap();
        object.write_at(0, &[b"0123456789abcdef"]).unwrap();
        assert_eq!(world.backend.layout(&path(name)).unwrap(), asked, "{name}");
        assert_eq!(bytes(&*world.backend, name), b"0123456789abcdef", "{name}");
        let used = |number: u32| {
            let objects = world.dirs[number as usize].path().join(".objects");
            std::fs::read_dir(objects).unwrap().any(|entry| entry.unwrap().metadata().unwrap().len() > 0)
        };
        for number in 0..4 {
            assert_eq!(used(number), asked.targets.contains(&number), "{name}: {number}");
        }
        assert!(world.backend.unlink(&path(name)).unwrap());
    }
    let beyond = Layout { targets: vec![4], stripe: 4 };
    let refused = world.backend.create_on(&path("f"), &creation, &beyond).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let whole = dir();
    whole.backend.create_on(&path("f"), &creation, &beyond).unwrap();
    assert_eq!(whole.backend.layout(&path("f")).unwrap().targets, [0], "a directory has one target");
}

#[test]
fn symlink_never_leads_out_of_the_directory() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), b"secret").unwrap();
    std::fs::create_dir(outside.path().join("sub")).unwrap();
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("mine"), b"mine").unwrap();
    let link =
        |target: &Path, name: &str| std::os::unix::fs::symlink(target, root.path().join(name)).unwrap();
    link(outside.path(), "out");
    link(&outside.path().join("secret"), "secret");
    link(Path::new("mine"), "inner");
    let backend = Dir::open(root.path()).unwrap();
    assert_eq!(backend.find(&path("out/secret")).unwrap(), None);
    for file in ["secret", "out/secret", "inner", "out"] {
        assert!(backend.open(&path(file)).is_err(), "{file}");
        assert!(!matches!(backend.truncate(&path(file), 0), Ok(true)), "{file}");
    }
    assert!(backend.list(&path("out"), &mut |_| {}).is_err());
    assert!(backend.make_dir(&path("out/new"), me(), 0o755).is_err());
    assert!(!matches!(backend.unlink(&path("out/secret")), Ok(true)));
    assert!(!matches!(backend.remove_dir(&path("out/sub")), Ok(true)));
    assert!(!matches!(backend.rename(&path("mine"), &path("out/mine")), Ok(true)));
    assert!(!matches!(backend.rename(&path("out/secret"), &path("taken")), Ok(true)));
    assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 2);
    assert!(backend.unlink(&path("out")).unwrap(), "the link itself can be removed");
}

#[test]
fn invalid_back_end_names_are_refused() {
    for (name, says) in
        [("", "dir:PATH"), ("dir:", "dir:PATH"), ("tape:7", "tape:7"), ("dir:/no/such", "/no/such")]
    {
        let error = forebay_backend::open(name).err().expect("refused");
        assert!(error.to_string().contains(says), "{name}: {error}");
    }
}

#[test]
fn replaced_file_has_a_new_serial_number() {
    for world in [dir(), striped(2)] {
        let serial = || world.backend.find(&path("f")).unwrap().expect("it is there").version.serial;
        let mut seen = BTreeSet::new();
        for _ in 0..8 {
            world.put("f", b"same");
            assert!(seen.insert(serial()), "serial number was used before");
            // Clocks of file systems tick slowly.
            std::thread::sleep(Duration::from_millis(20));
        }
        world.backend.open_to_write(&path("f")).unwrap().write_at(0, &[b"more"]).unwrap();
        assert!(seen.contains(&serial()), "a write keeps the serial number");
    }
}

#[test]
fn cached_pages_of_a_file_can_be_dropped() {
    const LEN: usize = 1 << 20;
    let world = dir();
    world.put("f", &[7; LEN]);
    let file = std::fs::File::open(world.dirs[0].path().join("f")).unwrap();
    let in_memory = || {
        let mut page = [0; 16];
        let mut into = [IoSliceMut::new(&mut page)];
        preadv2(&file, &mut into, (LEN / 2) as u64, ReadWriteFlags::NOWAIT).is_ok()
    };
    let object = world.backend.open(&path("f")).unwrap();
    let mut back = vec![0; LEN];
    assert_eq!(object.read_at(0, &mut back).unwrap(), LEN);
    let is_tmpfs = rustix::fs::fstatfs(&file).unwrap().f_type == 0x0102_1994;
    if is_tmpfs || !in_memory() {
        return forebay_testkit::skip(
            "dropping cached pages",
            "the file system keeps all pages, or does not report them",
        );
    }
    object.forget(Span::new(100, LEN as u64 - 100));
    assert!(!in_memory());
    assert_eq!(object.read_at(0, &mut back).unwrap(), LEN);
    assert!(back.iter().all(|&byte| byte == 7));
}
