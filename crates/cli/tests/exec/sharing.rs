//! Open files that are shared, inherited, passed on, and left open.

use crate::world::{World, has, skip, succeed};
use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const OTHER: u32 = 65_534;

#[test]
fn redirections_and_chains_of_programs() {
    let world = World::new();
    for script in [
        "(echo a; echo b) > $D/x; cat $D/x",
        "{ echo a; (echo b; exec echo c); echo d; } > $D/x; cat $D/x",
        "echo one > $D/a; bash -c 'cat $D/a > $D/b'; exec cat $D/b",
        "echo 1 > $D/x; echo 2 >> $D/x; printf 3 >> $D/x; cat < $D/x",
        "printf 'a\\nb\\nc\\n' > $D/x; { read one; cat; } < $D/x",
        "exec 7> $D/x; echo first >&7; sh -c 'echo second >&7'; exec 7>&-; cat $D/x",
        "exec 8<> $D/x; echo 12345 >&8; head -c 2 $D/x; exec 8>&-",
        "ls / > $D/x; cmp $D/x <(ls /)",
        "ls /nonexistent 2> $D/x || true; grep -c nonexistent $D/x",
        "ls / > $D/x 2>&1; wc -l < $D/x",
        "echo gone > $D/x; exec 9< $D/x; rm $D/x; cat <&9",
        "for i in 1 2 3; do echo $i; done | tee $D/x | cat; cat $D/x",
        "cat > $D/x <<< here; cat $D/x",
        "cd $D; mkdir sub; cd sub; echo in > file; bash -c 'cat file; cd ..; ls; cat sub/file'; cd ../sub/..; ls",
        "printf '#!/bin/sh\necho script $1\n' > $D/s; chmod +x $D/s; $D/s one; cd $D; ./s two; (exec ./s three)",
        "cp /bin/echo $D/e; $D/e copied; cd $D; ./e here; chmod -x e; ./e 2>/dev/null || echo $?",
    ] {
        world.same(script);
    }
}

#[test]
fn killed_program_leaves_its_written_data() {
    let world = World::new();
    let mut program = world.command("bash");
    program.args(["-c", "for i in $(seq 100); do echo line $i; done > /fb/killed; echo ready; kill -9 $$"]);
    let mut child = program.stdout(Stdio::piped()).spawn().expect("bash runs");
    let mut printed = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut printed).expect("it speaks");
    let status = child.wait().expect("it ends");
    assert!(!status.success() && printed == "ready\n", "{status} {printed}");
    let mut check = world.command("wc");
    check.args(["-l", "/fb/killed"]);
    assert_eq!(succeed(check), "100 /fb/killed\n");
}

#[test]
fn program_continues_after_a_server_restart() {
    let mut world = World::new();
    let mut program = world.command(world.compile("steady"));
    let mut child = program.args(["/fb/steady", "3000"]).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut printed = [0; 6];
    child.stdout.as_mut().expect("piped").read_exact(&mut printed).expect("it begins");
    for _ in 0..2 {
        world.restart();
    }
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    let mut check = world.command("wc");
    check.args(["-l", "/fb/steady"]);
    assert_eq!(succeed(check), "3000 /fb/steady\n");
}

const BESIDE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int unlinkat(int dir, const char *path, int flags) {
    int (*next)(int, const char *, int) = dlsym(RTLD_NEXT, "unlinkat");
    if (write(2, "seen\n", 5) != 5) _exit(9);
    return next(dir, path, flags);
}
"#;

#[test]
fn other_preloaded_libraries_work_too() {
    let world = World::new();
    std::fs::write(world.path("beside.c"), BESIDE).expect("a file");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(world.path("beside.so")).arg(world.path("beside.c"));
    succeed(compiler);
    let mut program = world.command("sh");
    program.args(["-c", "echo > /fb/ours; echo > theirs; rm theirs; rm /fb/ours; ls /fb theirs"]);
    let output = program.env("LD_PRELOAD", world.path("beside.so")).output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        printed, "seen\nls: cannot access 'theirs': No such file or directory\n",
        "other files still work"
    );
}

const PYTHON: &str = r#"
import mmap, multiprocessing, os, shutil, socket, subprocess, sys, tempfile
root = sys.argv[1]
os.makedirs(root + "/a/b/c")
for i in range(20):
    with open(f"{root}/a/f{i}", "w") as f: f.write("x" * i * 1000)
shutil.copytree(root + "/a", root + "/copy", symlinks=True)
print(sum(len(files) for _, _, files in os.walk(root)))
with open(root + "/m", "wb") as f: f.write(bytes(100000))
with open(root + "/m", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
    m[5:10] = b"hello"; m.flush(); print(open(root + "/m", "rb").read()[5:10])
    m.resize(200000); m[199999:] = b"!"
print(os.path.getsize(root + "/m"), open(root + "/m", "rb").read()[-1:])
def work(i):
    with open(f"{root}/w{i}", "wb") as f: f.write(bytes([i]) * 100000)
    return len(open(f"{root}/w{i}", "rb").read())
with multiprocessing.Pool(3) as p: print(p.map(work, range(8)))
shared = open(root + "/log", "wb", 0)
def log(i):
    for k in range(50): shared.write(b"%03d %03d\n" % (i, k))
people = [multiprocessing.Process(target=log, args=(i,)) for i in range(4)]
[p.start() for p in people]; [p.join() for p in people]
lines = open(root + "/log").read().split("\n"); print(len(lines), len(set(lines)))
print(subprocess.run(["cat", "w1"], cwd=root, capture_output=True).stdout[:3])
with open(root + "/out", "w") as f: subprocess.run(["echo", "from child"], stdout=f)
print(open(root + "/out").read())
with tempfile.TemporaryDirectory(dir=root) as d: print(os.path.exists(d))
with tempfile.TemporaryFile(dir=root) as t: t.write(b"abc"); t.seek(0); print(t.read())
one, two = socket.socketpair()
if os.fork() == 0:
    fd = os.open(root + "/passed", os.O_CREAT | os.O_RDWR); os.write(fd, b"passed on"); os.lseek(fd, 3, 0)
    socket.send_fds(one, [b"x"], [fd]); os._exit(0)
fd = socket.recv_fds(two, 1, 1)[1][0]; print(os.read(fd, 99)); os.wait()
os.chdir(root); print(os.path.relpath(os.getcwd(), root), len(os.listdir("."))); print(os.path.relpath(os.path.realpath("a/../m"), root))
print(subprocess.check_output("basename $PWD; ls | wc -l", shell=True)[-4:])
print(subprocess.check_output([sys.executable, "-c", "import subprocess; print(subprocess.check_output(['ls', 'a'], cwd='.'))"], cwd=root)[:12])
print(subprocess.check_output([sys.executable, "-c", "import os; os.listdir('.'); os.closerange(3, 100000); print(open('passed').read())"], cwd=root))
os.chdir("/"); shutil.rmtree(root + "/copy"); print(os.path.exists(root + "/copy"))
"#;

#[test]
fn python_with_its_modules() {
    if !has("python3") {
        return;
    }
    let world = World::new();
    std::fs::write(world.path("script.py"), PYTHON).expect("a file");
    world.same("python3 ../script.py $D");
}

#[test]
fn files_closed_before_exec_are_closed_at_the_service() {
    let world = World::new();
    for round in 0..20 {
        let mut program = world.command("bash");
        program.args(["-c", "echo x > /fb/f; exec rm /fb/f"]);
        succeed(program);
        assert_eq!(world.client().status().expect("the server answers").opens, 0, "round {round}");
    }
}

/// Both ends are of one pipe, whatever the address by which a program knows the service.
#[test]
fn named_pipe_connects_programs_that_name_the_service_differently() {
    let world = World::new();
    let mut make = world.command("mkfifo");
    make.arg("/fb/pipe");
    succeed(make);
    let other = world.service().replace("/store", "/./store");
    assert_ne!(other, world.service());
    let mut writer = world.command("timeout");
    writer.args(["60", "sh", "-c", "echo through > /fb/pipe"]).env("FOREBAY_SERVICE", other);
    let mut writer = writer.spawn().expect("it starts");
    let mut reader = world.command("timeout");
    reader.args(["60", "cat", "/fb/pipe"]);
    assert_eq!(succeed(reader), "through\n");
    assert!(writer.wait().expect("it ends").success());
}

const PIPES: &str = r#"
import errno, os, sys
dir, what = sys.argv[1:3]
MODES = [0o666, 0o644, 0o622, 0o600, 0o606, 0o060, 0]
def tried(path, flags):
    try: os.close(os.open(path, flags | os.O_NONBLOCK)); return "done"
    except OSError as error: return errno.errorcode[error.errno]
if what == "make":
    os.makedirs(dir + "/closed")
    for place in [dir, dir + "/closed"]:
        for mode in MODES:
            for owner in [0, 65534]:
                path = f"{place}/{mode:o}-{owner}"
                os.mkfifo(path); os.chown(path, owner, 0); os.chmod(path, mode)
    os.chmod(dir + "/closed", 0o700)
elif what == "open":
    for place in [dir, dir + "/closed"]:
        for mode in MODES:
            for owner in [0, 65534]:
                path = f"{place}/{mode:o}-{owner}"
                print(f"{mode:o}", owner, *[tried(path, flags) for flags in [os.O_RDONLY, os.O_WRONLY, os.O_RDWR]])
elif what == "swap":
    os.chmod(dir + "/666-0", 0o600); os.chmod(dir + "/600-0", 0o666); os.chown(dir + "/600-65534", 0, 0)
elif what == "read":
    print(open(dir + "/622-0").read())
elif what == "write":
    with open(dir + "/622-0", "w") as pipe: pipe.write("through")
"#;

fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("ours");
}

/// Lets another user run Forebay; returns that user's home.
fn admit_other_user(world: &World) -> PathBuf {
    let home = world.path("home");
    std::fs::create_dir(&home).expect("a directory");
    chown(&home, Some(OTHER), Some(OTHER)).expect("root may");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), world.path("forebay")).expect("a copy");
    [world.path(""), world.path("forebay")].iter().for_each(|path| open_to_all(path));
    home
}

/// The script of the world's directory as root or as another user, with the library for a directory of Forebay.
fn scripted(world: &World, home: &Path, as_other: bool, dir: &Path, what: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--signal=KILL", "120"]);
    if as_other {
        let user = OTHER.to_string();
        command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
    }
    if dir.starts_with("/fb") {
        command.arg(world.path("forebay")).args(["exec", "--"]);
    }
    // Another user may have no access to an interpreter of root's.
    let system = Path::new("/usr/bin/python3");
    command.arg(if system.exists() { system } else { Path::new("python3") }).arg(world.path("script.py"));
    command.arg(dir).arg(what);
    let own = if as_other { home.to_owned() } else { world.path("") };
    command.current_dir(&own).env("HOME", &own).env("XDG_CACHE_HOME", &own).env("XDG_RUNTIME_DIR", &own);
    command.env("FOREBAY_SERVICE", world.service());
    command
}

/// Named pipes connect users of one machine, with the rights that they have on tmpfs.
#[test]
fn named_pipes_connect_users_with_the_rights_of_tmpfs() {
    if !rustix::process::geteuid().is_root() || !has("setpriv") || !has("python3") {
        return skip("another user's pipes: they need root, setpriv and python3");
    }
    let world = World::new();
    let home = admit_other_user(&world);
    std::fs::write(world.path("script.py"), PIPES).expect("a file");
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { world.path("") };
    let local = tempfile::Builder::new().prefix("fb-pipes-").tempdir_in(base).expect("a directory");
    open_to_all(local.path());
    let command = |as_other: bool, inside: bool, what: &str| {
        let dir = if inside { Path::new("/fb/pipes") } else { local.path() };
        scripted(&world, &home, as_other, dir, what)
    };
    let all = |inside: bool| {
        let mut found = String::new();
        for (as_other, what) in
            [(false, "make"), (true, "open"), (false, "open"), (false, "swap"), (true, "open")]
        {
            found += &succeed(command(as_other, inside, what));
        }
        let reader = command(false, inside, "read").stdout(Stdio::piped()).spawn().expect("it starts");
        succeed(command(true, inside, "write"));
        let read = reader.wait_with_output().expect("it ends");
        found + &String::from_utf8_lossy(&read.stdout)
    };
    let expected = all(false);
    assert!(expected.contains("EACCES") && expected.ends_with("through\n"), "{expected}");
    assert_eq!(all(true), expected);
    // Nothing is left of removed pipes.
    let twins = || {
        let entries = std::fs::read_dir("/run/forebay-pipes").expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name()).collect::<BTreeSet<_>>()
    };
    let before = twins();
    let mut remove = world.command("rm");
    remove.args(["-r", "/fb/pipes"]);
    succeed(remove);
    assert!(before.difference(&twins()).count() >= 28, "other tests may remove theirs");
}

const SOCKETS: &str = r#"
import errno, os, socket, sys
dir, what = sys.argv[1:3]
def tried(call):
    try: call(); return "done"
    except OSError as error: return errno.errorcode[error.errno]
def bound(name):
    at = socket.socket(socket.AF_UNIX); at.bind(f"{dir}/{name}"); os.chmod(f"{dir}/{name}", 0o777); at.listen()
    return at
def connect(name): socket.socket(socket.AF_UNIX).connect(f"{dir}/{name}")
if what == "make":
    os.mkdir(dir); os.chmod(dir, 0o777)
elif what == "serve":
    at = bound("root"); print("ready", flush=True); sys.stdin.read()
else:
    own = bound(what)
    print(tried(lambda: connect("root")), tried(lambda: connect(what)), end=" ")
    print(tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", f"{dir}/root")))
    if what == "root again": print(tried(lambda: connect("other")))
"#;

/// A socket is its owner's: other users are refused, not told that no process listens.
#[test]
fn sockets_of_other_users_are_refused() {
    if !rustix::process::geteuid().is_root() || !has("setpriv") || !has("python3") {
        return skip("another user's sockets: they need root, setpriv and python3");
    }
    let world = World::new();
    let home = admit_other_user(&world);
    std::fs::write(world.path("script.py"), SOCKETS).expect("a file");
    let command = |as_other, what| scripted(&world, &home, as_other, Path::new("/fb/sockets"), what);
    succeed(command(false, "make"));
    let mut server = command(false, "serve");
    let mut server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut ready = [0; 6];
    server.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("it listens");
    assert_eq!(succeed(command(true, "other")), "ENOTSUP done ENOTSUP\n");
    assert_eq!(succeed(command(false, "root again")), "done done EPROTOTYPE\nENOTSUP\n");
    drop(server.stdin.take());
    assert!(server.wait().expect("it ends").success());
}
