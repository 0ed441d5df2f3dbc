//! Files that programs map: stores to them are drained, even if the server or the program is killed.

use crate::support::{World, run, skip, text};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

fn has_python() -> bool {
    let found = Command::new("python3").args(["-c", "import mmap, sqlite3"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        skip("python3 with sqlite3 is not installed: mapped files were not tested");
    }
    found
}

const STEADY: &str = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
mapped = mmap.mmap(fd, 1 << 20)
for word in ["one", "two", "three", "four"]:
    place = len(word) * 10000
    mapped[place:place + len(word)] = word.encode()
    print(word, bytes(mapped[30000:30003]), flush=True)
    sys.stdin.readline()
    os.pwrite(fd, b"+", place + len(word))
"#;

#[test]
fn mapped_stores_survive_a_killed_server_and_are_drained() {
    if !has_python() {
        return;
    }
    let mut world = World::empty();
    let pfs = world.path("pfs");
    std::fs::create_dir(&pfs).unwrap();
    let backing = format!("dir:{}", text(&pfs));
    let start = |world: &mut World| drop(world.start(&["--backend", &backing]));
    start(&mut world);
    let mut program = world.command(&["exec", "--", "python3", "-c", STEADY, "/fb/steady"]);
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().expect("python runs");
    let mut to = child.stdin.take().expect("piped");
    let mut from = BufReader::new(child.stdout.take().expect("piped"));
    let mut printed = |words: &str| {
        let mut line = String::new();
        from.read_line(&mut line).expect("it speaks");
        assert_eq!(line, format!("{words}\n"));
    };
    let at = |place: usize, len: usize| {
        let bytes = std::fs::read(pfs.join("steady")).expect("it is drained");
        String::from_utf8_lossy(&bytes[place..place + len]).into_owned()
    };
    printed("one b'one'");
    world.kill();
    start(&mut world);
    world.well(&["drain", "--wait"]);
    assert_eq!(at(30000, 4), "one\0", "stored before the server was killed");
    to.write_all(b"\n").expect("it listens");
    printed("two b'two'");
    world.well(&["drain", "--wait"]);
    assert_eq!(at(30000, 4), "two+", "stored since it is drained once");
    to.write_all(b"\n").expect("it listens");
    printed("three b'two'");
    // Kill with an unsynced store: first the server, then the program.
    world.kill();
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    start(&mut world);
    world.well(&["drain", "--wait"]);
    assert_eq!((at(30000, 4), at(50000, 6)), ("two+".to_owned(), "three\0".to_owned()));
}

const EVERYTHING: &str = r#"
import mmap, os, signal, sqlite3, subprocess, sys
if len(sys.argv) > 1:
    base = sqlite3.connect("/fb/base", timeout=60, isolation_level=None)
    for i in range(20):
        base.execute("insert into t values (?, ?)", (int(sys.argv[1]), i))
    os._exit(0)
base = sqlite3.connect("/fb/base", timeout=60, isolation_level=None)
base.execute("pragma journal_mode=wal")
base.execute("create table t (who integer, what integer, unique (who, what))")
people = [subprocess.Popen([sys.executable, sys.argv[0], str(who)]) for who in range(3)]
assert [person.wait() for person in people] == [0, 0, 0]
fd = os.open("/fb/killed", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 3 << 20)
if os.fork() == 0:
    mapped = mmap.mmap(os.open("/fb/killed", os.O_RDWR), 3 << 20)
    mapped[2000000:2000006] = b"stored"
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
os._exit(0)
"#;

#[test]
fn run_drains_stores_to_mappings() {
    if !has_python() {
        return;
    }
    if !Path::new("/dev/shm").is_dir() {
        return skip("there is no /dev/shm, so \"forebay run\" was not tested");
    }
    let world = World::empty();
    let script = world.write("script.py", EVERYTHING);
    let ran =
        run(world.command(&["run", "--capacity", "64MiB", "--pfs", "pfs", "--", "python3", text(&script)]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let killed = std::fs::read(world.path("pfs/killed")).unwrap();
    assert_eq!((killed.len(), &killed[1_999_999..2_000_007]), (3 << 20, b"\0stored\0".as_slice()));
    let mut look = Command::new("python3");
    let count = "import sqlite3; base = sqlite3.connect('pfs/base'); \
                 print(base.execute('select count(*), sum(what) from t').fetchone(), \
                 base.execute('pragma integrity_check').fetchone())";
    look.args(["-c", count]).current_dir(world.dir());
    assert_eq!(run(look).out, "(60, 570) ('ok',)\n");
}
