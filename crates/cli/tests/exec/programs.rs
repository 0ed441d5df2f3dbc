//! Programs in C, beside these tests.

use crate::world::{World, has, succeed};
use std::process::Command;

const TABLES: [&str; 2] = ["blackbox", "further"];

#[test]
fn operations_behave_as_on_tmpfs() {
    let world = World::new();
    for table in TABLES {
        world.table(table, "preload", |program| world.command(program), "/fb");
    }
}

/// Fortified programs call other functions of the C library.
#[test]
fn fortified_operations_behave_as_on_tmpfs() {
    let world = World::new();
    for table in TABLES {
        let program = world.compile_with(table, &["-O2", "-D_FORTIFY_SOURCE=2", "-D_FILE_OFFSET_BITS=64"]);
        let mut make = world.command("mkdir");
        make.arg(format!("/fb/{table}"));
        succeed(make);
        let mut command = world.command(program);
        command.arg(format!("/fb/{table}")).arg(world.path("found"));
        succeed(command);
        let found = std::fs::read_to_string(world.path("found")).expect("the program has written it");
        assert!(found.ends_with("end\n"), "{table}: {found}");
        world.table(table, "again", |program| world.command(program), "/fb");
        let plain = std::fs::read_to_string(world.path("found")).expect("the program has written it");
        assert_eq!(found, plain, "{table}");
    }
}

#[test]
fn operations_through_the_mount_behave_as_on_tmpfs() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    for table in TABLES {
        world.table(table, "mount", |program| Command::new(program), mount.path());
    }
}

#[test]
fn rare_calls_fail_as_on_tmpfs() {
    let world = World::new();
    for how in ["library", "dispatch"] {
        let command = |program: &std::path::Path| {
            let mut command = world.command(program);
            command.env("FOREBAY_INTERCEPT", how);
            command
        };
        // Below the hard limit, so that descriptors of the library can be above it.
        let limited = |program: &std::path::Path| {
            let mut shell = command(std::path::Path::new("sh"));
            shell.args(["-c", "ulimit -Sn 512 && exec \"$@\"", "sh"]).arg(program);
            shell
        };
        world.table("errors", how, limited, "/fb");
        world.table("rare", how, command, "/fb");
    }
}

#[test]
fn pipes_sockets_and_unnamed_files_behave_as_on_tmpfs() {
    let world = World::new();
    for (table, how) in
        [("special", "library"), ("special", "dispatch"), ("unnamed", "library"), ("unnamed", "dispatch")]
    {
        let command = |program: &std::path::Path| {
            let mut command = world.command(program);
            command.env("FOREBAY_INTERCEPT", how);
            command
        };
        world.table(table, how, command, "/fb");
    }
}

#[test]
fn pipes_and_sockets_through_the_mount_behave_as_on_tmpfs() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    world.table("special", "mount", |program| Command::new(program), mount.path());
}

#[test]
fn data_and_holes_are_those_of_tmpfs() {
    for servers in [1, 3] {
        let world = World::of(servers);
        for how in ["library", "dispatch"] {
            let command = |program: &std::path::Path| {
                let mut command = world.command(program);
                command.env("FOREBAY_INTERCEPT", how);
                command
            };
            world.table("holes", how, command, "/fb");
        }
    }
}

#[test]
fn data_and_holes_are_those_of_tmpfs_through_the_mount() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    world.table("holes", "mount", |program| Command::new(program), mount.path());
}

#[test]
fn errors_of_rare_calls_are_those_of_tmpfs_through_the_mount() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    world.table("errors", "mount", |program| Command::new(program), mount.path());
    world.table("rare", "mount", |program| Command::new(program), mount.path());
}

/// The FUSE library does not know the kernel's request for a file without a name.
#[test]
fn unnamed_files_are_refused_on_the_mount() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    let script = "import os, sys
try: os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, 0o600)
except OSError as error: print(os.strerror(error.errno))";
    if has("python3") {
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(mount.path());
        assert_eq!(succeed(python), "Operation not supported\n");
    }
}

/// Threads that write to the memory and to the file, as in xfstests.
#[test]
fn no_word_is_lost_between_mapped_and_written_pages() {
    let world = World::new();
    let program = world.compile("holetest");
    let mut through = world.command(&program);
    through.arg("/fb/holes");
    assert_eq!(succeed(through), "0 words lost\n");
    let Some(mount) = world.mounted() else { return };
    let mut command = Command::new(&program);
    command.arg(mount.path().join("mapped"));
    assert_eq!(succeed(command), "0 words lost\n");
}

/// Roots in Forebay.
#[test]
fn operations_that_need_the_kernel_are_refused() {
    let world = World::new();
    let mut shell = world.command("bash");
    shell.args(["-c", "mkdir /fb/root; chroot /fb/root true; echo $?"]);
    let output = shell.output().expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "125\n");
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(reported.matches("not supported").count(), 1, "{reported}");
}

const REFUSED: &str = "\
inotify EOPNOTSUPP
inotify of nothing ENOENT
handle EOPNOTSUPP
fanotify EOPNOTSUPP
fts EOPNOTSUPP
reflink EOPNOTSUPP
terminal ENOTTY
lease EINVAL
collapse EOPNOTSUPP
rename EXDEV
wide refused
";

#[test]
fn unsupported_operations_are_refused_at_once() {
    let world = World::new();
    let mut program = world.command(world.compile("refused"));
    program.arg("/fb");
    assert_eq!(succeed(program), REFUSED);
}

#[test]
fn signal_handler_may_write_during_an_allocation() {
    let world = World::new();
    let mut program = world.command(world.compile("signals"));
    program.arg("/fb/signals");
    succeed(program);
}

#[test]
fn signal_handler_may_be_installed_during_calls() {
    let world = World::new();
    let late = world.compile("late");
    for way in ["sigaction", "signal", "by number", "early, by an instruction"] {
        let mut program = world.command(&late);
        program.args(["/fb", way]);
        succeed(program);
    }
}

#[test]
fn vfork_child_leaves_its_parents_files_open() {
    let world = World::new();
    let mut program = world.command(world.compile("lent"));
    program.arg("/fb/file");
    assert_eq!(succeed(program), "onetwo\n");
}

#[test]
fn running_program_sees_only_its_own_descriptors() {
    let world = World::new();
    let mut program = world.command(world.compile("numbers"));
    program.arg("/fb/file");
    assert_eq!(succeed(program), "0 of 16\n");
}

#[test]
fn cpp_streams_work() {
    if !has("c++") {
        return;
    }
    let world = World::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec/programs/streams.cc");
    let mut compiler = Command::new("c++");
    compiler.args(["-o"]).arg(world.path("streams")).arg(source);
    succeed(compiler);
    world.same(
        "echo one two > $D/in; ../streams $D/file < $D/in > $D/out 2> $D/err; cat $D/out $D/err $D/file",
    );
}

#[test]
fn rust_program_works() {
    if !has("rustc") {
        return;
    }
    let world = World::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec/programs/files.rs");
    let mut compiler = Command::new("rustc");
    compiler.args(["--edition", "2024", "-o"]).arg(world.path("files")).arg(source);
    succeed(compiler);
    world.same("../files $D");
}

#[test]
fn sixty_four_threads_on_one_descriptor() {
    let world = World::new();
    let mut program = world.command(world.compile("threads"));
    program.arg("/fb/threads");
    succeed(program);
}

#[test]
fn ten_thousand_opens_leak_nothing() {
    let world = World::new();
    let mut program = world.command(world.compile("cycles"));
    program.arg("/fb/cycles");
    succeed(program);
    assert_eq!(world.client().status().expect("the server answers").opens, 0, "nothing is open");
}

/// A program with the library and without a service; `exec` would refuse to start it.
fn alone(world: &World, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", world.library()).env("FOREBAY_PREFIX", "/fb");
    command.env("FOREBAY_SERVICE", "unix:/nowhere/at/all");
    command
}

#[test]
fn program_without_forebay_files_makes_no_connection_or_thread() {
    let world = World::new();
    let mut program = alone(&world, "sh");
    program.args([
        "-c",
        "ls / > /dev/null; grep Threads /proc/self/status; ls -l /proc/self/fd | grep -c socket",
    ]);
    let output = program.output().expect("the program runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Threads:\t1\n0\n");
}

#[test]
fn calls_without_a_service_fail_without_output() {
    let world = World::new();
    let mut program = alone(&world, "cat");
    program.arg("/fb/x");
    let output = program.output().expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "cat: /fb/x: Transport endpoint is not connected\n");
    let log = world.path("log");
    let mut program = alone(&world, "cat");
    program.env("FOREBAY_LOG", &log).arg("/fb/x");
    program.output().expect("the program runs");
    let printed = std::fs::read_to_string(log).expect("the log exists");
    assert!(printed.contains("service unix:/nowhere/at/all: cannot connect"), "{printed}");
}
