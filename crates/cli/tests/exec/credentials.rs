//! Programs that change users: their requests carry the current identity.

use crate::world::{World, has, skip, succeed};
use forebay_client::blocking::Client;
use forebay_client::{
    Address, Addresses, ClientConfig, OpenOptions, RUN_SOCKET_VARIABLE, run_socket, run_socket_of,
};
use forebay_model::{ErrorKind, Gid, Identity, Uid};
use forebay_testkit::until;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Whether this process may change users; prints a note if not.
fn can() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("changing users needs root");
    }
    root
}

/// A service that only root can reach.
fn closed_world() -> World {
    let world = World::new();
    std::fs::set_permissions(world.path(""), std::fs::Permissions::from_mode(0o700)).expect("it is ours");
    world
}

#[test]
fn programs_have_the_permissions_of_their_current_user() {
    if can() {
        let world = World::new();
        world.table("credentials", "exec", |program| world.command(program), "/fb");
    }
}

#[test]
fn programs_of_a_run_may_become_users_without_access_to_it() {
    if !can() {
        return;
    }
    let world = World::new();
    let program = world.compile("credentials");
    let local = tempfile::Builder::new().prefix("fb-table-").tempdir_in("/dev/shm").expect("a directory");
    let (expected, found) = (world.path("expected"), world.path("found"));
    let mut plain = Command::new(&program);
    plain.arg(local.path()).arg(&expected);
    succeed(plain);
    // The directory admits only root, whatever the mode of its socket.
    let script = "chmod 700 $(dirname ${FOREBAY_SERVICE#unix:}) && mkdir /fb/t && exec \"$@\"";
    let mut run = Command::new("timeout");
    run.args(["--foreground", "--signal=KILL", "600", env!("CARGO_BIN_EXE_forebay"), "run"]);
    run.args(["--capacity", "64MiB", "--pfs"]).arg(world.path("pfs")).args(["--", "sh", "-c", script, "sh"]);
    run.arg(&program).arg("/fb/t").arg(&found).env("XDG_CACHE_HOME", world.path("cache"));
    succeed(run);
    let read = |path| std::fs::read_to_string(path).expect("the program has written it");
    assert_eq!(read(&found), read(&expected));
}

#[test]
fn raw_setuid_calls_are_noticed_with_dispatch() {
    if cfg!(target_arch = "x86_64") && can() {
        let world = World::new();
        let command = |program: &Path| {
            let mut command = world.command(program);
            command.env("FOREBAY_INTERCEPT", "dispatch");
            command
        };
        world.table("credentials", "dispatch", command, "/fb");
    }
}

/// A program that prints a line at each step, and continues when it reads a line.
struct Steps {
    child: Child,
    printed: BufReader<std::process::ChildStdout>,
}

impl Steps {
    fn start(mut command: Command) -> Steps {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let printed = BufReader::new(child.stdout.take().expect("a pipe"));
        Steps { child, printed }
    }

    fn next(&mut self) -> String {
        let mut line = String::new();
        self.printed.read_line(&mut line).expect("it says something");
        line.trim_end().to_owned()
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it reads");
    }

    fn end(mut self) {
        assert!(self.child.wait().expect("it ends").success());
    }
}

// Opens a file as root, becomes another user (`CHANGE`), waits, and uses the file and others.
const SWITCHES: &str = r"
import os, sys
os.makedirs('/fb/w', exist_ok=True); os.chmod('/fb/w', 0o777); os.chdir('/fb/w')
old = os.open('old', os.O_CREAT | os.O_RDWR, 0o600)
os.write(old, b'a' * 300000)
CHANGE
print('ready', os.getpid(), flush=True); sys.stdin.readline()
def refused(path):
    try: open(path)
    except PermissionError: return True
assert refused('old') and refused('/fb/w/old')
assert os.pwrite(old, b'b' * 100000, 300000) == 100000
assert os.pread(old, 400001, 0) == b'a' * 300000 + b'b' * 100000
with open('new', 'w') as new: new.write('mine')
assert os.stat('new').st_uid == 4001 and os.fstat(old).st_size == 400000
if os.fork() == 0:
    assert refused('old') and os.pread(old, 1, 300000) == b'b'
    os._exit(0)
assert os.wait()[1] == 0
print('done', flush=True); sys.stdin.readline()
";

fn switching(world: &World, change: &str) -> Steps {
    let mut command = world.command("python3");
    command.args(["-c", &SWITCHES.replace("CHANGE", change)]);
    Steps::start(command)
}

const FOR_A_WHILE: &str = "os.setgroups([]); os.setegid(4001); os.seteuid(4001)";
const FOR_GOOD: &str = "os.setgroups([]); os.setgid(4001); os.setuid(4001)";

#[test]
fn changed_user_persists_through_a_server_restart() {
    if !can() || !has("python3") {
        return;
    }
    type Case = (fn() -> World, &'static str);
    let worlds: [Case; 3] = [(World::new, FOR_A_WHILE), (World::new, FOR_GOOD), (closed_world, FOR_A_WHILE)];
    for (number, (world, change)) in worlds.into_iter().enumerate() {
        let mut world = world();
        let mut program = switching(&world, change);
        assert!(program.next().starts_with("ready "), "{number}");
        world.restart();
        program.go_on();
        assert_eq!(program.next(), "done", "{number}");
        program.go_on();
        program.end();
    }
}

/// The number of the store's files that a process has mapped.
fn shared_memory(pid: &str) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    maps.lines().filter(|line| line.contains("/regions/")).count()
}

#[test]
fn dropping_privileges_ends_sessions_and_shared_memory_of_root() {
    if !can() || !has("python3") {
        return;
    }
    for (change, kept) in [(FOR_A_WHILE, true), (FOR_GOOD, false)] {
        let world = World::new();
        let mut program = switching(&world, change);
        let ready = program.next();
        let pid = ready.strip_prefix("ready ").expect("it is ready");
        assert_eq!(shared_memory(pid) > 0, kept, "{change}");
        program.go_on();
        assert_eq!(program.next(), "done");
        // One session belongs to the client that reads the status.
        let client = world.client();
        until("two sessions are left", || client.status().expect("the server answers").sessions <= 2);
        assert_eq!(shared_memory(pid) > 0, kept, "{change}");
        program.go_on();
        program.end();
    }
}

/// Capabilities belong to threads: the C library ends a process of which some threads may change their group, and others may
/// not. So threads of the library must be recognised, also those that have not run yet.
#[test]
fn privileges_are_dropped_while_threads_of_the_library_start() {
    if !can() {
        return;
    }
    let world = World::new();
    let mut command = world.command(world.compile("drops"));
    command.arg("/fb/file");
    assert_eq!(succeed(command), "0 failed\n");
}

#[test]
fn root_descriptors_are_inherited_by_programs_of_other_users() {
    if !can() || !has("setpriv") {
        return;
    }
    let world = World::new();
    let script = "
        mkdir -m 777 /fb/w; cd /fb/w; echo secret > secret; chmod 600 secret
        setpriv --reuid 4001 --regid 4001 --clear-groups sh -c '
            echo to the old; id -u; cat secret 2> refused || echo refused; echo mine > mine; stat -c %u mine
        ' > out 2>&1
        chmod 600 out; cat out; stat -c '%n %u' mine refused";
    let mut command = world.command("bash");
    command.args(["-c", script]);
    assert_eq!(succeed(command), "to the old\n4001\nrefused\n4001\nmine 4001\nrefused 4001\n");
}

#[test]
fn inherited_root_descriptors_survive_a_server_restart() {
    if !can() || !has("setpriv") {
        return;
    }
    let mut world = World::new();
    // Each `/bin/echo` is a new program, which inherits the descriptor.
    let script = "
        mkdir -m 777 /fb/w; cd /fb/w
        setpriv --reuid 4001 --regid 4001 --clear-groups bash -c '
            echo one; echo ready >&9; read line; for word in two three four; do /bin/echo $word; done
        ' 9>&1 > out
        tr '\\n' ' ' < out; stat -c %u out";
    let mut command = world.command("bash");
    command.args(["-c", script]);
    let mut program = Steps::start(command);
    assert_eq!(program.next(), "ready");
    world.restart();
    program.go_on();
    assert_eq!(program.next(), "one two three four 0");
    program.end();
}

/// The descriptor of the directory with the socket for programs of a run, if this process is one.
fn inherited_directory() -> Option<i32> {
    run_socket_of(&std::env::var(RUN_SOCKET_VARIABLE).ok()?, &std::env::var("FOREBAY_SERVICE").ok()?)
}

/// Runs as a program of a run that has given up root, started by the test below: asks for root's rights wherever it can
/// connect.
#[test]
fn dropped_program_asks_for_root() {
    let Some(directory) = inherited_directory() else { return };
    let service = std::env::var("FOREBAY_SERVICE").expect("the service of the run");
    let refused = Client::connect(ClientConfig::new(service.parse::<Addresses>().expect("an address")));
    assert_eq!(refused.err().expect("refused").kind(), ErrorKind::AccessDenied);
    let config = ClientConfig::new(Address::Unix(run_socket(directory)));
    let client = Client::connect(config).expect("the run's service admits its programs");
    let secret = || "/w/secret";
    assert_eq!(client.stat(secret()).expect("names are shown").uid, Uid::ROOT);
    let read = |client: &Client| client.open(secret(), OpenOptions::READ).map(drop).unwrap_err().kind();
    assert_eq!(read(&client), ErrorKind::AccessDenied);
    for named in [Identity::root(), Identity { uid: Uid(4002), gid: Gid(4002), groups: Vec::new() }] {
        assert_eq!(read(&client.as_identity(named)), ErrorKind::NotPermitted);
    }
    let mine = format!("/w/of-{}", std::process::id());
    client.open(&mine, OpenOptions::CREATE).and_then(|file| file.pwrite(0, b"mine")).expect("its own file");
    assert_eq!(client.stat(&mine).expect("it is there").uid, Uid(4001));
    Write::write_all(&mut std::io::stdout(), b"asked for root\n").expect("standard output");
}

/// A program that gave up root for good has no way to a connection that acts as root, also after a restart of the server.
#[test]
fn program_of_a_run_that_dropped_root_cannot_act_as_root() {
    if !can() || !has("setpriv") || !Path::new("/dev/shm").is_dir() {
        return;
    }
    let world = World::new();
    // The other user may be unable to read the build directory.
    std::fs::set_permissions(world.path(""), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let asks = world.path("asks");
    std::fs::copy(std::env::current_exe().expect("this program"), &asks).expect("a copy");
    let script = r#"
        set -e
        dir=$(dirname "${FOREBAY_SERVICE#unix:}")
        mkdir -m 777 /fb/w; echo secret > /fb/w/secret; chmod 600 /fb/w/secret
        ask() { setpriv --reuid 4001 --regid 4001 --clear-groups "$1" --exact credentials::dropped_program_asks_for_root --nocapture; }
        ask "$1"; kill -9 "$(cat "$dir/store/lock")"; cat /fb/w/secret; ask "$1"
    "#;
    let mut run = Command::new("timeout");
    run.args(["--foreground", "--signal=KILL", "600", env!("CARGO_BIN_EXE_forebay"), "run"]);
    run.args(["--capacity", "64MiB", "--pfs"])
        .arg(world.path("pfs"))
        .args(["--", "bash", "-c", script, "bash"]);
    run.arg(&asks).env("XDG_CACHE_HOME", world.path("cache")).current_dir("/");
    let printed = succeed(run);
    assert_eq!(printed.matches("asked for root").count(), 2, "{printed}");
}

/// Without a run there is no way in for the new user: root's connection is closed all the same.
#[test]
fn dropping_root_for_good_closes_root_sessions_where_the_new_user_is_not_let_in() {
    if !can() || !has("python3") {
        return;
    }
    let world = closed_world();
    let script = r"
import os, sys
with open('/fb/old', 'w') as old: old.write('a')
os.setgroups([]); os.setgid(4001); os.setuid(4001)
def refused(work):
    try: work()
    except PermissionError: return True
assert refused(lambda: os.listdir('/fb')) and refused(lambda: os.stat('/fb/old'))
print('ready', flush=True); sys.stdin.readline()";
    let mut command = world.command("python3");
    command.args(["-c", script]);
    let mut program = Steps::start(command);
    assert_eq!(program.next(), "ready");
    let client = world.client();
    until("one session is left", || client.status().expect("the server answers").sessions <= 1);
    program.go_on();
    program.end();
}
