//! What every back end does, whatever it is made of.

use forebay_backend::{Backend, Dir, Faulty, Memory};
use forebay_model::{ErrorKind, FileKind, Gid, Name, Uid};
use std::path::Path;
use std::sync::Arc;

fn path(text: &str) -> Vec<Name> {
    text.split('/').filter(|part| !part.is_empty()).map(|part| Name::new(part).unwrap()).collect()
}

fn me() -> (Uid, Gid) {
    (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()))
}

type Put = Box<dyn Fn(&str, &[u8])>;
type Link = Box<dyn Fn(&str, &str)>;

/// A back end, and a way to put files there that is not its own.
struct World {
    backend: Arc<dyn Backend>,
    put: Put,
    link: Link,
    _dir: Option<tempfile::TempDir>,
}

fn dir() -> World {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().to_owned(), dir.path().to_owned());
    World {
        backend: forebay_backend::open(&format!("dir:{}", dir.path().display())).unwrap(),
        put: Box::new(move |path, bytes| std::fs::write(one.join(path), bytes).unwrap()),
        link: Box::new(move |path, target| std::os::unix::fs::symlink(target, two.join(path)).unwrap()),
        _dir: Some(dir),
    }
}

fn memory(wrap: impl FnOnce(Memory) -> Arc<dyn Backend>) -> World {
    let memory = Memory::default();
    let (one, two) = (memory.clone(), memory.clone());
    World {
        backend: wrap(memory),
        put: Box::new(move |at, bytes| one.put(&path(at), me(), 0o644, bytes)),
        link: Box::new(move |at, target| two.put_link(&path(at), target.as_bytes())),
        _dir: None,
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

fn conform(world: &World) {
    let backend = &*world.backend;
    let find = |at: &str| backend.find(&path(at)).unwrap();
    assert_eq!(find("a"), None);
    assert_eq!(find("a/b"), None);
    backend.make_dir(&path("d"), me(), 0o751).unwrap();
    backend.make_dir(&path("d"), me(), 0o700).unwrap();
    (world.put)("d/f", b"hello");
    (world.link)("l", "d/f");
    assert_eq!((find("d").unwrap().kind, find("d").unwrap().mode), (FileKind::Directory, 0o751));
    let file = find("d/f").unwrap();
    assert_eq!((file.kind, file.version.size, (file.uid, file.gid)), (FileKind::File, 5, me()));
    assert_eq!((find("l").unwrap().kind, find("l").unwrap().target), (FileKind::Symlink, b"d/f".to_vec()));
    assert_eq!(find("d/f/g"), None, "a file has nothing below it");
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

    (world.put)("g", b"replaced");
    assert!(backend.rename(&path("d/f"), &path("g")).unwrap());
    assert_eq!((bytes(backend, "g"), find("d/f")), (b"hel".to_vec(), None));
    assert_eq!(find("g").unwrap().version.serial, file.version.serial, "it is the same file");
    assert!(!backend.rename(&path("d/f"), &path("h")).unwrap());
    assert_eq!(backend.rename(&path("g"), &path("d")).unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(backend.rename(&path("d"), &path("d/e")).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(backend.rename(&path("g"), &path("no/g")).unwrap_err().kind(), ErrorKind::NotFound);
    (world.put)("d/x", b"x");
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

#[test]
fn every_back_end_does_the_same() {
    conform(&dir());
    conform(&memory(|memory| Arc::new(memory)));
    conform(&memory(|memory| Arc::new(Faulty::new(memory, |_| None))));
}

#[test]
fn a_link_never_leads_out_of_the_directory() {
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
    assert!(backend.unlink(&path("out")).unwrap(), "the link itself is ours to remove");
}

#[test]
fn what_cannot_be_a_back_end_is_said() {
    for (name, says) in
        [("", "dir:PATH"), ("dir:", "dir:PATH"), ("tape:7", "tape:7"), ("dir:/no/such", "/no/such")]
    {
        let error = forebay_backend::open(name).err().expect("refused");
        assert!(error.to_string().contains(says), "{name}: {error}");
    }
}
