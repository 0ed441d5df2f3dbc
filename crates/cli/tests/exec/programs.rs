//! Programs in C, beside these tests.

use crate::world::{World, has, succeed};
use std::process::Command;

const TABLES: [&str; 2] = ["blackbox", "further"];

#[test]
fn a_table_of_operations_gives_what_tmpfs_gives() {
    let world = World::new();
    for table in TABLES {
        world.table(table, "preload", |program| world.command(program), "/fb");
    }
}

/// Fortified programs call other functions.
#[test]
fn a_table_of_operations_gives_what_tmpfs_gives_when_it_is_fortified() {
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
fn a_table_of_operations_gives_what_tmpfs_gives_through_the_mount() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    for table in TABLES {
        world.table(table, "mount", |program| Command::new(program), mount.path());
    }
}

const REFUSED: &str = "\
inotify EOPNOTSUPP
inotify of nothing ENOENT
handle EOPNOTSUPP
fanotify EOPNOTSUPP
fts EOPNOTSUPP
temporary EOPNOTSUPP
nftw EOPNOTSUPP
reflink EOPNOTSUPP
terminal ENOTTY
lease EINVAL
collapse EOPNOTSUPP
pipe EOPNOTSUPP
rename EXDEV
wide refused
";

#[test]
fn what_is_not_supported_is_refused_at_once() {
    let world = World::new();
    let mut program = world.command(world.compile("refused"));
    program.arg("/fb");
    assert_eq!(succeed(program), REFUSED);
}

#[test]
fn a_signal_handler_may_write_while_memory_is_allocated() {
    let world = World::new();
    let mut program = world.command(world.compile("signals"));
    program.arg("/fb/signals");
    succeed(program);
}

#[test]
fn a_handler_may_come_when_calls_are_under_way_without_one() {
    let world = World::new();
    let late = world.compile("late");
    for way in ["sigaction", "signal", "by number", "early, by an instruction"] {
        let mut program = world.command(&late);
        program.args(["/fb", way]);
        succeed(program);
    }
}

#[test]
fn a_child_that_borrows_memory_leaves_its_parents_files_open() {
    let world = World::new();
    let mut program = world.command(world.compile("lent"));
    program.arg("/fb/file");
    assert_eq!(succeed(program), "onetwo\n");
}

#[test]
fn while_a_program_goes_on_it_finds_no_descriptors_but_its_own() {
    let world = World::new();
    let mut program = world.command(world.compile("numbers"));
    program.arg("/fb/file");
    assert_eq!(succeed(program), "0 of 16\n");
}

#[test]
fn streams_of_cpp() {
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
fn a_program_in_rust() {
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
fn ten_thousand_opens_leave_nothing_behind() {
    let world = World::new();
    let mut program = world.command(world.compile("cycles"));
    program.arg("/fb/cycles");
    succeed(program);
    assert_eq!(world.client().status().expect("the server answers").opens, 0, "nothing is open");
}

#[test]
fn a_program_that_stays_outside_makes_no_connection_and_no_thread() {
    let world = World::new();
    let mut program = world.command("sh");
    program.env("FOREBAY_SERVICE", "unix:/nowhere/at/all");
    program.args([
        "-c",
        "ls / > /dev/null; grep Threads /proc/self/status; ls -l /proc/self/fd | grep -c socket",
    ]);
    let output = program.output().expect("the program runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Threads:\t1\n0\n");
}

#[test]
fn without_a_service_calls_fail_and_the_library_is_silent() {
    let world = World::new();
    let mut program = world.command("cat");
    program.env("FOREBAY_SERVICE", "unix:/nowhere/at/all").arg("/fb/x");
    let output = program.output().expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "cat: /fb/x: Transport endpoint is not connected\n");
    let log = world.path("log");
    let mut program = world.command("cat");
    program.env("FOREBAY_SERVICE", "unix:/nowhere/at/all").env("FOREBAY_LOG", &log).arg("/fb/x");
    program.output().expect("the program runs");
    let said = std::fs::read_to_string(log).expect("a log was asked for");
    assert!(said.contains("service unix:/nowhere/at/all: cannot connect"), "{said}");
}
