//! Files that several processes map: they share pages, as on a local file system.

use crate::world::{World, has, skip, succeed};
use forebay_model::Striping;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

const OTHER_UID: u32 = 65_534;

#[test]
fn processes_that_map_a_file_share_its_pages() {
    let world = World::new();
    for how in ["library", "dispatch"] {
        let command = |program: &Path| {
            let mut command = world.command(program);
            command.env("FOREBAY_INTERCEPT", how);
            command
        };
        world.table("mapped", how, command, "/fb");
    }
}

#[test]
fn processes_that_map_a_file_of_a_mount_share_its_pages() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    world.table("mapped", "mount", |program| Command::new(program), mount.path());
}

/// A Python interpreter that has a module; prints a note if there is none.
fn python(module: &str) -> Option<String> {
    let python = std::env::var("FOREBAY_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", &format!("import {module}")]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        skip(&format!("{python} has no module {module}"));
        return None;
    }
    Some(python)
}

/// Runs a script with the library and without it: both must print the same.
fn same_in_python(module: &str, script: &str) {
    let Some(python) = python(module) else { return };
    let world = World::new();
    std::fs::write(world.path("script.py"), script).expect("a file");
    world.same(&format!("{python} ../script.py $D"));
}

const SQLITE: &str = r#"
import sqlite3, subprocess, sys
root = sys.argv[1]
if len(sys.argv) > 2:
    base = sqlite3.connect(root + "/base", timeout=60, isolation_level=None)
    for i in range(20):
        base.execute("insert into t values (?, ?)", (int(sys.argv[2]), i))
    base.close()
    sys.exit()
base = sqlite3.connect(root + "/base", timeout=60, isolation_level=None)
print(base.execute("pragma journal_mode=wal").fetchone())
base.execute("create table t (who integer, what integer, unique (who, what))")
people = [subprocess.Popen([sys.executable, sys.argv[0], root, str(who)]) for who in range(3)]
print([person.wait() for person in people])
print(base.execute("select count(*) from t").fetchone(), base.execute("pragma integrity_check").fetchone())
base.close()
again = sqlite3.connect(root + "/base")
print(again.execute("select count(*), sum(what) from t").fetchone(), again.execute("pragma journal_mode").fetchone())
"#;

#[test]
fn sqlite_in_wal_mode_keeps_every_commit_of_three_processes() {
    same_in_python("sqlite3", SQLITE);
}

const MEMMAP: &str = r#"
import numpy, subprocess, sys
path = sys.argv[1] + "/array"
if len(sys.argv) > 2:
    who = int(sys.argv[2])
    array = numpy.memmap(path, dtype="f8", mode="r+", shape=(4, 10000))
    array[who] += who + 1
    sys.exit()
array = numpy.memmap(path, dtype="f8", mode="w+", shape=(4, 10000))
people = [subprocess.Popen([sys.executable, sys.argv[0], sys.argv[1], str(who)]) for who in range(3)]
print([person.wait() for person in people])
print(array.sum(axis=1).tolist())
array[3] = 7
print(numpy.fromfile(path, dtype="f8").reshape(4, 10000).sum(axis=1).tolist())
del array
print(numpy.fromfile(path).sum())
"#;

#[test]
fn numpy_arrays_in_a_mapped_file_are_shared_by_processes() {
    same_in_python("numpy", MEMMAP);
}

const JOBLIB: &str = r#"
import sys, numpy, joblib
path = sys.argv[1] + "/array"
def work(array, i):
    array[i] = i * i
    return float(array[i])
array = numpy.memmap(path, dtype="f8", mode="w+", shape=(64,))
with joblib.Parallel(n_jobs=3) as parallel:
    print(sum(parallel(joblib.delayed(work)(array, i) for i in range(64))))
print(float(array.sum()), float(numpy.fromfile(path, dtype="f8").sum()))
joblib.dump(numpy.arange(100000.0), sys.argv[1] + "/dump")
mapped = joblib.load(sys.argv[1] + "/dump", mmap_mode="r")
print(sum(joblib.Parallel(n_jobs=2)(joblib.delayed(numpy.sum)(mapped[i::2]) for i in range(2))))
"#;

#[test]
fn joblib_workers_share_one_mapped_array() {
    same_in_python("joblib", JOBLIB);
}

const LMDB: &str = r#"
import lmdb, subprocess, sys
path = sys.argv[1] + "/base"
def opened():
    return lmdb.open(path, map_size=16 << 20, writemap=sys.argv[2] == "map")
if len(sys.argv) > 3:
    base = opened()
    for i in range(20):
        with base.begin(write=True) as change:
            change.put(b"%s %d" % (sys.argv[3].encode(), i), b"x" * 1000)
            count = int(change.get(b"count", b"0"))
            change.put(b"count", b"%d" % (count + 1))
    base.close()
    sys.exit()
base = opened()
people = [subprocess.Popen([sys.executable, *sys.argv, str(who)]) for who in range(3)]
print([person.wait() for person in people])
with base.begin() as look:
    print(look.stat()["entries"], look.get(b"count"), sum(len(value) for _, value in look.cursor()))
base.close()
base = opened()
with base.begin() as look:
    print(look.stat()["entries"], look.get(b"count"))
"#;

#[test]
fn lmdb_keeps_the_commits_of_three_writers() {
    let Some(python) = python("lmdb") else { return };
    let world = World::new();
    std::fs::write(world.path("script.py"), LMDB).expect("a file");
    for way in ["write", "map"] {
        world.same(&format!("{python} ../script.py $D {way}"));
    }
}

const STEADY: &str = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8192)
with mmap.mmap(fd, 8192) as mapped:
    mapped[:5] = b"first"
    print("mapped", flush=True); sys.stdin.readline()
    mapped[5000:5006] = b"second"
    print(bytes(mapped[:5]), os.pread(fd, 5, 0), os.pread(fd, 6, 5000), flush=True); sys.stdin.readline()
    os.pwrite(fd, b"third", 100)
    print(bytes(mapped[100:105]), flush=True); sys.stdin.readline()
"#;

#[test]
fn mapping_outlives_a_restart_of_the_server() {
    if !has("python3") {
        return;
    }
    let mut world = World::new();
    let mut program = world.command("python3");
    program.args(["-c", STEADY, "/fb/steady"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().expect("python runs");
    let (mut to, mut from) =
        (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
    let mut line = || {
        let mut line = String::new();
        from.read_line(&mut line).expect("it speaks");
        line
    };
    assert_eq!(line(), "mapped\n");
    world.restart();
    to.write_all(b"\n").expect("it listens");
    assert_eq!(line(), "b'first' b'first' b'second'\n");
    world.restart();
    to.write_all(b"\n").expect("it listens");
    assert_eq!(line(), "b'third'\n");
    to.write_all(b"\n").expect("it listens");
    assert!(child.wait().expect("it ends").success());
    let mut check = world.command("sh");
    check.args([
        "-c",
        "head -c 5 /fb/steady; tail -c +5001 /fb/steady | head -c 6; tail -c +101 /fb/steady | head -c 5",
    ]);
    assert_eq!(succeed(check), "firstsecondthird");
    world.restart();
    let mut check = world.command("sh");
    check.args([
        "-c",
        "head -c 5 /fb/steady; tail -c +5001 /fb/steady | head -c 6; tail -c +101 /fb/steady | head -c 5",
    ]);
    assert_eq!(succeed(check), "firstsecondthird");
}

const OTHER_USER: &str = r#"
import mmap, os, sys
root = os.getuid() == 0
def mapped(name, write):
    fd = os.open("/fb/" + name, os.O_RDWR if write else os.O_RDONLY)
    return mmap.mmap(fd, 4096, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
def wait_for_line(): sys.stdin.readline()
if root:
    for name, mode in [("open", 0o666), ("readable", 0o644), ("closed", 0o600)]:
        fd = os.open("/fb/" + name, os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 4096); os.fchmod(fd, mode); os.close(fd)
    shared, readable = mapped("open", True), mapped("readable", True)
    shared[:4] = readable[:4] = b"root"
    print("ready", flush=True); wait_for_line()
    print(bytes(shared[10:16]), flush=True)
else:
    shared, readable = mapped("open", True), mapped("readable", False)
    print(bytes(shared[:4]), bytes(readable[:4]))
    shared[10:16] = b"nobody"
    for name, write in [("readable", True), ("closed", False)]:
        try: mapped(name, write); print("mapped", name)
        except PermissionError: print("refused", name)
"#;

#[test]
fn mappings_are_shared_between_users_as_the_file_mode_allows() {
    if !rustix::process::geteuid().is_root() || !has("setpriv") || !has("python3") {
        return skip("another user's mappings: they need root, setpriv and python3");
    }
    let world = World::new();
    let open = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("ours");
    open(&world.path(""));
    let home = world.path("home");
    std::fs::create_dir(&home).expect("a directory");
    chown(&home, Some(OTHER_UID), Some(OTHER_UID)).expect("root may");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), world.path("forebay")).expect("a copy");
    open(&world.path("forebay"));
    std::fs::write(world.path("script.py"), OTHER_USER).expect("a file");
    let mut first = world.command("python3");
    first.arg(world.path("script.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut first = first.spawn().expect("python runs");
    let (mut to, mut from) =
        (first.stdin.take().expect("piped"), BufReader::new(first.stdout.take().expect("piped")));
    let mut line = String::new();
    from.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "ready\n");
    let mut other = Command::new("setpriv");
    let user = OTHER_UID.to_string();
    other.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(world.path("forebay"));
    other.args(["exec", "--", "python3"]).arg(world.path("script.py")).current_dir(&home).env("HOME", &home);
    other.env("FOREBAY_SERVICE", world.service()).env("XDG_CACHE_HOME", &home).env("XDG_RUNTIME_DIR", &home);
    assert_eq!(succeed(other), "b'root' b'root'\nrefused readable\nrefused closed\n");
    to.write_all(b"\n").expect("it listens");
    line.clear();
    from.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "b'nobody'\n");
    assert!(first.wait().expect("it ends").success());
}

const SPREAD: &str = r#"
import errno, mmap, os
def mapped(fd, **how):
    try: return mmap.mmap(fd, 1 << 20, **how)
    except OSError as error: return errno.errorcode[error.errno]
fd = os.open("/fb/spread", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
os.pwrite(fd, b"first", 500000)
print(mapped(fd), mapped(fd, prot=mmap.PROT_READ))
reader = os.open("/fb/spread", os.O_RDONLY)
private = mapped(fd, flags=mmap.MAP_PRIVATE)
private[500000:500001] = b"x"
# A copy would show nothing of what the other descriptor writes.
print(private[500000:500005], mapped(reader, prot=mmap.PROT_READ))
private.close()
os.close(fd)
shown = mapped(reader, prot=mmap.PROT_READ)
fd = os.open("/fb/spread", os.O_WRONLY)
os.pwrite(fd, b"later", 500000)
os.close(fd)
print(shown[500000:500005], mapped(reader, prot=mmap.PROT_READ)[500000:500005])
# Files that are on one of several servers of the machine.
for number in range(8):
    fds = [os.open(f"/fb/one/{number}", os.O_RDWR | os.O_CREAT) for _ in range(2)]
    os.ftruncate(fds[0], 1 << 20)
    one, two = [mapped(fd) for fd in fds]
    one[5:8] = b"one"
    assert two[5:8] == os.pread(fds[0], 3, 5) == b"one"
"#;

#[test]
fn file_on_several_servers_is_mapped_for_reading_while_no_program_writes() {
    if !has("python3") {
        return;
    }
    let world = World::of(2);
    let one = Striping { width: 1, stripe: 64 << 10 };
    let mut program = world.command("sh");
    program.args(["-c", "mkdir /fb/one"]);
    succeed(program);
    world.client().set_layout("/one", Some(one)).expect("the owner may");
    std::fs::write(world.path("script.py"), SPREAD).expect("a file");
    let mut program = world.command("python3");
    program.arg(world.path("script.py")).env("FOREBAY_LOG", world.path("log"));
    assert_eq!(succeed(program), "ENODEV ENODEV\nb'xirst' ENODEV\nb'first' b'later'\n");
    let log = std::fs::read_to_string(world.path("log")).expect("a log");
    assert_eq!(log.matches("it cannot be mapped for writing here").count(), 2, "{log}");
    assert_eq!(log.matches("while a program has it open for writing").count(), 1, "{log}");
}

const BOTH_WAYS: &str = r#"
import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8192)
try: mapped = mmap.mmap(fd, 8192)
except OSError as error: sys.exit(errno.errorcode[error.errno])
mapped[:len(sys.argv[2])] = sys.argv[2].encode()
print("stored", flush=True); sys.stdin.readline()
mapped.close()
assert os.pread(fd, len(sys.argv[2]), 0) == sys.argv[2].encode()
"#;

/// A process that has stored into a mapping and keeps it until its standard input ends.
fn storing(mut command: Command) -> std::process::Child {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python runs");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it speaks");
    assert_eq!(line, "stored\n");
    child
}

/// The kernel's pages of a mount cannot be those of the library: a second way of storing is refused, and loses nothing.
#[test]
fn library_and_mount_do_not_both_map_a_file_for_writing() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    if !has("python3") {
        return;
    }
    let way = |mut command: Command, path: &Path, word: &str| {
        command.args(["-c", BOTH_WAYS]).arg(path).arg(word);
        command
    };
    let library = |word| way(world.command("python3"), Path::new("/fb/both"), word);
    let through = |word| way(Command::new("python3"), &mount.path().join("both"), word);
    let ended = |mut child: std::process::Child| {
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
        // The kernel closes files of the mount in the background.
        while world.client().status().expect("the server answers").opens > 0 {
            std::thread::yield_now();
        }
    };
    let content = || std::fs::read(mount.path().join("both")).expect("it is there")[..9].to_vec();

    let first = storing(library("library 1"));
    let output = through("mount 1").output().expect("python runs");
    assert_eq!(output.status.signal(), Some(7), "SIGBUS: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(content(), b"library 1");
    ended(first);
    let second = storing(through("mount two"));
    let output = library("library 2").output().expect("python runs");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).trim()), (Some(1), "ENODEV"));
    ended(second);
    assert_eq!(content(), b"mount two");
    ended(storing(library("library 3")));
    assert_eq!(content(), b"library 3");
}
