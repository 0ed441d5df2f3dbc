//! Programs that cannot load the library: they get a private mount, or are refused.

use crate::world::{World, has, skip, succeed};
use forebay_testkit::until;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// A statically linked program.
fn linked_statically(world: &World) -> PathBuf {
    world.compile_with("plain", &["-O1", "-static"])
}

pub(crate) fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &device {
        skip(&format!("/dev/fuse cannot be opened ({error}): no private mount was tested"));
    }
    device.is_ok()
}

fn content(world: &World, path: &str) -> String {
    let mut cat = world.command("cat");
    cat.arg(path);
    succeed(cat)
}

#[test]
fn static_program_gets_a_private_mount() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let program = linked_statically(&world);
    let mut command = world.command(&program);
    let output = command.args(["/fb/written", "word", "7"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let here = world.path("");
    let expected =
        format!("{} word {}\n", program.display(), here.display().to_string().trim_end_matches('/'));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(content(&world, "/fb/written"), expected, "the file is in the buffer");
    assert!(!Path::new("/fb/written").exists(), "and not on the disk of this machine");
}

/// The started process is the program itself: signals reach it.
#[test]
fn signal_ends_a_static_program() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let program = linked_statically(&world);
    let mut forebay = Command::new(FOREBAY);
    forebay.args(["exec", "--"]).arg(&program).args(["/fb/file", "word", "0", "wait"]);
    forebay.env("FOREBAY_SERVICE", world.service()).env("XDG_CACHE_HOME", world.path("cache"));
    let mut child = forebay.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let reported = child.stdout.take().expect("a pipe");
    BufReader::new(reported).read_line(&mut line).expect("it writes a line");
    assert!(line.contains(" word "), "{line}");
    child.kill().expect("it runs");
    assert_eq!(child.wait().expect("it ends").signal(), Some(9));
}

#[test]
fn static_child_programs_get_a_private_mount() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let program = linked_statically(&world);
    let dir = world.path("");
    for (number, script) in [
        "plain /fb/$N a 0; cat /fb/$N",
        "mkdir /fb/dir; cd /fb/dir; plain ../$N b 0; cat ../$N",
        "cp $(command -v plain) /fb/inside; /fb/inside /fb/$N c 0; cat /fb/$N",
        "exec plain /fb/$N d 0",
    ]
    .iter()
    .enumerate()
    {
        let mut shell = world.command("bash");
        let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
        shell.args(["-c", &format!("set -e; {script}")]).env("N", format!("f{number}")).env("PATH", path);
        let found = succeed(shell);
        let line = found.lines().next().unwrap_or_default().to_owned();
        assert_eq!(content(&world, &format!("/fb/f{number}")), format!("{line}\n"), "{script}");
        assert!(line.ends_with("/fb/dir") == script.contains("cd "), "{line}");
    }
    if has("python3") {
        let script = "import os, subprocess, sys
print(subprocess.run([sys.argv[1], '/fb/spawned', 'e', '3']).returncode)
print(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(sys.argv[1], ['name', '/fb/posix', 'f', '4'], os.environ), 0)[1]))";
        let mut python = world.command("python3");
        python.args(["-c", script]).arg(&program);
        let found = succeed(python);
        assert!(found.contains("3\n") && found.ends_with("4\n"), "{found}");
        assert!(content(&world, "/fb/posix").starts_with("name f "));
    }
}

#[test]
fn setuid_program_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return skip("not root: no program can be given to another user");
    }
    let world = World::new();
    let program = world.path("privileged");
    std::fs::copy(world.compile("plain"), &program).expect("a copy");
    std::os::unix::fs::chown(&program, Some(65534), None).expect("root may");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("root may");
    let output = world.command(&program).args(["/fb/none", "x", "0"]).output().expect("forebay runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("set-uid") && text.contains("forebay put"), "{text}");
    // From a shell: refused if an argument names a file of Forebay, run as usual if not.
    for (script, expected, reported) in [("$P /fb/none x 0", 1, "set-uid"), ("cd $W; $P out x 0", 0, "")] {
        let writable = world.path("writable");
        std::fs::create_dir_all(&writable).expect("a directory");
        std::fs::set_permissions(&writable, std::fs::Permissions::from_mode(0o777)).expect("root may");
        std::fs::set_permissions(world.path(""), std::fs::Permissions::from_mode(0o755)).expect("root may");
        let mut shell = world.command("bash");
        shell.args(["-c", script]).env("P", &program).env("W", &writable);
        let output = shell.output().expect("bash runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{script}: {text}");
        assert!(text.contains(reported), "{script}: {text}");
    }
}

#[test]
fn static_program_is_refused_where_mounts_are_impossible() {
    if !rustix::process::geteuid().is_root() {
        return skip("not root: the FUSE device cannot be hidden");
    }
    let world = World::new();
    let program = linked_statically(&world);
    let hidden = world.path("hidden");
    std::fs::write(&hidden, "").expect("a file");
    // In a mount namespace without the device.
    let script = format!("mount --bind {} /dev/fuse 2>/dev/null; exec \"$@\"", hidden.display());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh", FOREBAY, "exec", "--"]).arg(&program);
    command.args(["/fb/none", "x", "0"]).env("FOREBAY_SERVICE", world.service());
    let output = command.output().expect("unshare runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("is linked statically") && text.contains("forebay mount DIR"), "{text}");
    assert!(!Path::new("/fb/none").exists());
}

/// An ordinary user mounts in a user namespace, if all users may open the FUSE device, as is usual.
#[test]
fn ordinary_user_gets_private_mounts() {
    if !rustix::process::geteuid().is_root() {
        return skip("not root: no process can be given to another user");
    }
    let world = World::new();
    let program = linked_statically(&world);
    let (forebay, home) = (world.path("forebay"), world.path("home"));
    std::fs::copy(FOREBAY, &forebay).expect("a copy that the user may run");
    std::fs::create_dir(&home).expect("a directory");
    std::os::unix::fs::chown(&home, Some(1234), Some(1234)).expect("root may");
    std::fs::set_permissions(world.path(""), std::fs::Permissions::from_mode(0o755)).expect("root may");
    let script = "mknod $1/fuse c 10 229 && chmod 666 $1/fuse && mount --bind $1/fuse /dev/fuse || exit 77
        shift; exec setpriv --reuid 1234 --regid 1234 --clear-groups -- \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(world.path("")).arg(&forebay);
    command.args(["run", "--capacity", "64MiB", "--pfs"]).arg(home.join("target")).arg("--").arg(&program);
    command.args(["/fb/written", "word", "7"]).env("HOME", &home).current_dir(&home);
    for name in ["XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    let output = command.output().expect("unshare runs");
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || text.contains("namespaces: ") {
        return skip(&format!("no user namespace or no FUSE device: {}", text.trim()));
    }
    assert_eq!(output.status.code(), Some(7), "{text}");
    let written = std::fs::read_to_string(home.join("target/written")).expect("it was drained");
    assert!(written.contains(" word "), "{written}");
}

#[test]
fn rclone_copies_into_a_run() {
    if !can_mount() || !has("rclone") {
        return;
    }
    let world = World::new();
    let (source, target) = (world.path("source"), world.path("target"));
    std::fs::create_dir_all(source.join("sub")).expect("a directory");
    for (name, len) in [("small", 10), ("sub/large", 3 << 20)] {
        let bytes: Vec<u8> = (0..len).map(|at: u32| (at / 7) as u8).collect();
        std::fs::write(source.join(name), bytes).expect("a file");
    }
    let mut forebay = Command::new(FOREBAY);
    forebay.args(["run", "--capacity", "64MiB", "--pfs"]).arg(&target).args(["--", "rclone", "copy"]);
    forebay.arg(&source).arg("/fb/x").env("HOME", world.path("")).env("XDG_CACHE_HOME", world.path("cache"));
    let output = forebay.output().expect("forebay runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("private mount") && text.contains("not counted"), "{text}");
    let mut compare = Command::new("diff");
    compare.arg("-r").arg(&source).arg(target.join("x"));
    assert_eq!(succeed(compare), "");
    assert!(!Path::new("/fb/x").exists(), "nothing is on the disk of this machine");
}

/// `run` drains the files of a static program.
#[test]
fn run_drains_files_of_a_static_program() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let program = linked_statically(&world);
    let target = world.path("target");
    let run = |command: &[&Path]| {
        let mut forebay = Command::new(FOREBAY);
        forebay.args(["run", "--capacity", "64MiB", "--pfs"]).arg(&target).arg("--").args(command);
        forebay
            .env("XDG_CACHE_HOME", world.path("cache"))
            .env("HOME", world.path(""))
            .current_dir(world.path(""));
        let output = forebay.output().expect("forebay runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{text}");
        text
    };
    let text = run(&[&program, Path::new("/fb/written"), Path::new("x"), Path::new("0")]);
    let written = std::fs::read_to_string(target.join("written")).expect("it was drained");
    assert!(written.contains(" x "), "{written}");
    assert!(!text.contains("no process"), "{text}");
    let unused = run(&[Path::new("true")]);
    assert!(unused.contains("no process of the program has used /fb"), "{unused}");
    // What the target had before is not the program's.
    let elsewhere = world.path("elsewhere");
    let unused = run(&[&program, &elsewhere, Path::new("x"), Path::new("0")]);
    assert!(elsewhere.exists(), "{unused}");
    assert!(unused.contains("no process of the program has used /fb"), "{unused}");
    let copied = run(&[&program, Path::new("/fb/more"), Path::new("y"), Path::new("0")]);
    assert!(!copied.contains("no process") && target.join("more").exists(), "{copied}");
    let used = run(&[Path::new("ls"), Path::new("/fb")]);
    assert!(!used.contains("no process"), "{used}");
}

#[test]
fn static_programs_of_one_service_share_locks_and_pages() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let program = world.compile_with("one_view", &["-O1", "-static"]);
    let start = |what: &str| {
        let mut command = world.command("sh");
        command.args(["-c", "\"$@\"; exit $?", "sh"]).arg(&program).args([what, "/fb/shared"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let mut holder = start("hold");
    let mut line = String::new();
    BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut line).expect("it writes a line");
    assert_eq!(line, "locked in memory\n");
    let other = start("try").wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&other.stdout), "EAGAIN in memory\n");
    drop(holder.stdin.take());
    assert!(holder.wait().expect("it ends").success());
    let last = start("try").wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&last.stdout), "locked in memory\n");
}

#[test]
fn directories_made_for_a_private_mount_are_removed_with_it() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let program = linked_statically(&world);
    let prefix = world.path("made/for/it");
    let mut command = Command::new(FOREBAY);
    command.args(["exec", "--prefix"]).arg(&prefix).arg("--").arg(&program).arg(prefix.join("file"));
    command.args(["word", "0"]).env("FOREBAY_SERVICE", world.service()).current_dir(world.path(""));
    succeed(command);
    until("nothing is left on the disk of this machine", || !world.path("made").exists());
    assert!(content(&world, "/fb/file").contains(" word "), "the file is in the buffer");
}

#[test]
fn any_program_may_be_given_a_private_mount() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let mut command = Command::new(FOREBAY);
    command.args(["exec", "--intercept", "mount", "--", "sh", "-c"]);
    command.arg("echo \"${LD_PRELOAD:-no library}\" > /fb/file; stat -f -c %T /fb; cat /fb/file");
    command.env("FOREBAY_SERVICE", world.service());
    assert_eq!(succeed(command), "fuseblk\nno library\n");
    assert_eq!(content(&world, "/fb/file"), "no library\n");
}

/// A program that may be executed but not read may be of any kind: it gets a mount, or is refused.
#[test]
fn unreadable_program_is_not_left_without_files() {
    if !rustix::process::geteuid().is_root() || !has("setpriv") {
        return skip("not root: root's programs can always be read");
    }
    let world = World::new();
    let program = linked_statically(&world);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o711)).expect("it is ours");
    let (forebay, home) = (world.path("forebay"), world.path("home"));
    std::fs::copy(FOREBAY, &forebay).expect("a copy that the user may run");
    std::fs::create_dir(&home).expect("a directory");
    std::os::unix::fs::chown(&home, Some(4001), Some(4001)).expect("root may");
    for script in
        ["exec \"$F\" exec -- \"$P\" /fb/none x 0", "\"$F\" exec -- sh -c '\"$P\" /fb/none x 0; exit $?'"]
    {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "4001", "--regid", "4001", "--clear-groups", "sh", "-c", script]);
        command
            .env("F", &forebay)
            .env("P", &program)
            .env("FOREBAY_SERVICE", world.service())
            .env("HOME", &home);
        command.env("XDG_RUNTIME_DIR", &home).env("XDG_CACHE_HOME", home.join("cache")).current_dir(&home);
        let output = command.output().expect("setpriv runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() || text.contains("cannot be read") || text.contains("cannot load"),
            "{script}: {text}"
        );
        assert!(!Path::new("/fb/none").exists());
    }
}
